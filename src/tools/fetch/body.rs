//! What the model reads of a body.

use encoding_rs::{Encoding, UTF_8};

/// A body as far as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    /// Whether there was more.
    pub(super) cut: bool,
}

/// The text of a body, or a description of one that is no text. What cannot be decoded is replaced; a NUL stays.
pub(super) fn readable(body: &Body, content_type: Option<&str>) -> String {
    let (kind, charset) = content_type.map(split).unwrap_or_default();
    let size = body.bytes.len();
    let more = if body.cut { format!("\n[cut: only the first {size} bytes were read]") } else { String::new() };
    if !is_text(&kind, &body.bytes) {
        let kind = if kind.is_empty() { "unknown type" } else { &kind };
        return format!("[a body of {kind}, {size} bytes, is no text and is left out]{more}");
    }
    let encoding = charset.and_then(|label| Encoding::for_label(label.as_bytes())).unwrap_or(UTF_8);
    let mut bytes = &body.bytes[..];
    if body.cut && encoding == UTF_8 {
        bytes = whole_characters(bytes);
    }
    // The byte order mark, when there is one, is stronger than the header, as in browsers.
    let (text, _, _) = encoding.decode(bytes);
    format!("{text}{more}")
}

/// Leaves out a character that the cut went through.
fn whole_characters(bytes: &[u8]) -> &[u8] {
    let tail = bytes.len().saturating_sub(4);
    let started = bytes[tail..].iter().rposition(|byte| byte & 0xC0 != 0x80);
    match started.map(|at| tail + at) {
        Some(at) if std::str::from_utf8(&bytes[at..]).is_err_and(|error| error.error_len().is_none()) => &bytes[..at],
        Some(_) | None => bytes,
    }
}

/// The media type in small letters, and the charset.
pub(super) fn split(content_type: &str) -> (String, Option<String>) {
    let mut parts = content_type.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
    let charset = parts
        .filter_map(|part| part.split_once('='))
        .find(|(name, _)| name.trim().eq_ignore_ascii_case("charset"))
        .map(|(_, value)| value.trim().trim_matches('"').to_owned());
    (kind, charset)
}

fn is_text(kind: &str, bytes: &[u8]) -> bool {
    const TEXTS: &[&str] = &[
        "application/ecmascript",
        "application/graphql",
        "application/javascript",
        "application/json",
        "application/jsonl",
        "application/sql",
        "application/toml",
        "application/x-javascript",
        "application/x-ndjson",
        "application/x-sh",
        "application/x-www-form-urlencoded",
        "application/x-yaml",
        "application/xml",
        "application/yaml",
    ];
    match kind {
        // Nothing, or nothing of use, was said: it is text when it can be.
        "" | "application/octet-stream" => !bytes.contains(&0) && std::str::from_utf8(whole_characters(bytes)).is_ok(),
        kind => kind.starts_with("text/") || kind.ends_with("+json") || kind.ends_with("+xml") || TEXTS.contains(&kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8], content_type: &str) -> String {
        readable(&Body { bytes: bytes.to_vec(), cut: false }, Some(content_type))
    }

    /// SURFACE 7, BR-106, BR-034: invalid UTF-8 is replaced, a NUL stays, other charsets are decoded.
    #[test]
    fn decodes_text() {
        assert_eq!(text("é中🦀".as_bytes(), "text/plain"), "é中🦀");
        assert_eq!(text(b"a\xFFb\0c", "text/plain; charset=utf-8"), "a\u{FFFD}b\0c");
        assert_eq!(text(b"\xED\xA0\xBD", "application/json"), "\u{FFFD}".repeat(3), "half a surrogate pair");
        assert_eq!(text(b"caf\xE9", "Text/HTML; a=b; Charset=\"ISO-8859-1\""), "café");
        assert_eq!(text(b"\xFF\xFEh\0i\0", "text/plain"), "hi");
        assert_eq!(text(b"x", "text/plain; charset=nonsense"), "x");
        assert_eq!(text(b"{}", "application/problem+json"), "{}");
    }

    /// What is no text is described, never dumped.
    #[test]
    fn describes_what_is_no_text() {
        let said = text(b"\x89PNG\0", "image/png");
        assert_eq!(said, "[a body of image/png, 5 bytes, is no text and is left out]");
        assert!(text(b"\0\x01", "application/octet-stream").contains("left out"));
        assert_eq!(text(b"plain", "application/octet-stream"), "plain");
        assert_eq!(readable(&Body { bytes: b"plain".to_vec(), cut: false }, None), "plain");
        assert_eq!(readable(&Body { bytes: vec![], cut: false }, None), "");
    }

    /// BR-107: a cut at every byte of multi-byte text leaves whole characters and says so.
    #[test]
    fn a_cut_leaves_whole_characters() {
        let whole = "aé中🦀z".repeat(3);
        for end in 0..whole.len() {
            for kind in [Some("text/plain"), None] {
                let body = Body { bytes: whole.as_bytes()[..end].to_vec(), cut: true };
                let said = readable(&body, kind);
                let (text, note) = said.rsplit_once("\n[cut: ").unwrap();
                assert!(whole.starts_with(text) && end - text.len() < 4 && note.contains(&end.to_string()), "{said}");
            }
        }
    }
}
