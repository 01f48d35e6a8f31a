//! What a message must be (C-1).

use super::Rules;
use crate::handle::OpError;
use everturn_storage::message::Block;

/// Checks the content of a message.
pub(super) fn content(content: &[Block], rules: &Rules) -> Result<(), OpError> {
    let invalid = |why: &str| Err(OpError::InvalidMessage(why.to_owned()));
    let (mut bytes, mut said) = (0, false);
    for block in content {
        match block {
            Block::Text { text, .. } => {
                said |= !text.is_empty();
                bytes += text.len();
            }
            Block::Image { media_type, data, url } => {
                said = true;
                bytes += media_type.len() + data.as_ref().map_or(0, String::len) + url.as_ref().map_or(0, String::len);
                if media_type.is_empty() {
                    return invalid("an image has a media type, such as image/png");
                }
                if data.is_some() == url.is_some() {
                    return invalid("an image has either data or a url");
                }
            }
            Block::Reasoning { .. } | Block::ToolCall { .. } => {
                return invalid("a user's message has text and images only");
            }
        }
    }
    if bytes > rules.message_max_bytes {
        return Err(OpError::MessageTooLarge { bytes, limit_bytes: rules.message_max_bytes });
    }
    if said { Ok(()) } else { Err(OpError::EmptyMessage) }
}
