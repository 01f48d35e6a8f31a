//! What the model gets of a tool's output: bounded, at character boundaries.

use crate::limits::TOOL_BLOCK_MAX_BYTES;
use everturn_storage::message::{Block, truncate_utf8};

/// Cuts the texts of `content` to `limit_bytes` together and puts notes in place of what a tool must not or cannot
/// pass on. Texts that fit stay as they are, block by block.
pub(super) fn bounded(content: Vec<Block>, limit_bytes: usize) -> Vec<Block> {
    let blocks: Vec<Block> = content.into_iter().map(plain).collect();
    let total: usize = blocks.iter().filter_map(text_of).map(str::len).sum();
    if total <= limit_bytes {
        return blocks;
    }
    let mut whole = String::with_capacity(total);
    for text in blocks.iter().filter_map(text_of) {
        if !whole.is_empty() && !whole.ends_with('\n') {
            whole.push('\n');
        }
        whole.push_str(text);
    }
    let others = blocks.into_iter().filter(|block| text_of(block).is_none());
    std::iter::once(Block::text(cut(&whole, limit_bytes))).chain(others).collect()
}

/// The head and the tail of `text` around a marker that says what is missing; at most `limit_bytes` in all.
pub(super) fn cut(text: &str, limit_bytes: usize) -> String {
    if text.len() <= limit_bytes {
        return text.to_owned();
    }
    let marker = format!("\n[… cut: this output has {} bytes; the part between was not kept …]\n", text.len());
    if marker.len() >= limit_bytes {
        let mut head = text.to_owned();
        truncate_utf8(&mut head, limit_bytes);
        return head;
    }
    let room = limit_bytes - marker.len();
    // The head says what an output is; the tail says how it ended.
    let head = text.floor_char_boundary(room / 2);
    let tail = text.ceil_char_boundary(text.len() - (room - head));
    [&text[..head], &marker, &text[tail..]].concat()
}

fn text_of(block: &Block) -> Option<&str> {
    match block {
        Block::Text { text, .. } => Some(text),
        Block::Reasoning { .. } | Block::ToolCall { .. } | Block::Image { .. } => None,
    }
}

/// Only an assistant thinks and calls: from a tool such blocks become text. Images have a bound of their own.
fn plain(block: Block) -> Block {
    match block {
        Block::Text { text, .. } | Block::Reasoning { text, .. } => Block::text(text),
        Block::ToolCall { name, arguments, .. } => Block::text(format!("{name}({arguments})")),
        Block::Image { media_type, data, url } => {
            let size = data.as_ref().map_or(0, String::len) + url.as_ref().map_or(0, String::len) + media_type.len();
            if size <= TOOL_BLOCK_MAX_BYTES {
                Block::Image { media_type, data, url }
            } else {
                Block::text(format!("[an image of {size} bytes was left out: at most {TOOL_BLOCK_MAX_BYTES} are kept]"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everturn_storage::message::plain_text;

    /// X-30, BR-107: every limit, multi-byte characters at every place; never over, never a panic.
    #[test]
    fn cuts_at_characters_within_every_limit() {
        let text = "é中🦀".repeat(40);
        for limit in 0..=text.len() + 1 {
            let out = cut(&text, limit);
            assert!(out.len() <= limit, "limit {limit}");
            assert_eq!(out == text, limit >= text.len(), "limit {limit}");
        }
    }

    /// head and tail stay, and the marker says that the rest was not kept.
    #[test]
    fn keeps_head_and_tail_around_the_marker() {
        let text = format!("HEAD{}TAIL", "x".repeat(1_000));
        let out = cut(&text, 200);
        assert!(out.starts_with("HEAD") && out.ends_with("TAIL") && out.contains("was not kept"), "{out}");
        assert!(out.len() > 190, "{}", out.len());
    }

    /// the limit holds for all texts of a result together; other blocks stay behind the text.
    #[test]
    fn counts_all_texts_together() {
        let image = Block::Image { media_type: "image/png".into(), data: Some("AA==".into()), url: None };
        let content = vec![Block::text("a".repeat(60)), image.clone(), Block::text("b".repeat(60))];
        assert_eq!(bounded(content.clone(), 120), content);
        let cut = bounded(content, 119);
        assert!(plain_text(&cut).len() <= 119);
        assert_eq!(cut[1..], [image]);
    }

    /// X-33, BR-053: what only an assistant says becomes text, and a huge image a note.
    #[test]
    fn turns_foreign_blocks_into_text() {
        let call =
            Block::ToolCall { call_id: "c".parse().unwrap(), name: "t".into(), arguments: "{}".into(), replay: None };
        let huge =
            Block::Image { media_type: "image/png".into(), data: Some("A".repeat(TOOL_BLOCK_MAX_BYTES)), url: None };
        let out = bounded(vec![call, huge], 10_000);
        assert_eq!(out[0], Block::text("t({})"));
        assert!(matches!(&out[1], Block::Text { text, .. } if text.contains("left out")));
    }
}
