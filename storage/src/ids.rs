//! Names and numbers of things in a log.
//!
//! Every identifier that comes from outside passes [`check_id`]: 1 to 128 characters of `[A-Za-z0-9._:-]`.

use crate::limits::ID_MAX_BYTES;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, sync::Arc};

/// Why a text is no identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text has no character, or more than [`ID_MAX_BYTES`].
    #[error("an id has 1 to {ID_MAX_BYTES} characters, this one has {0}")]
    Length(usize),
    /// The text holds a character outside `[A-Za-z0-9._:-]`.
    #[error("an id is made of letters, digits and . _ : -, this one holds {0:?}")]
    Character(char),
}

/// Tells whether `text` may name a session, an item or a message.
pub fn check_id(text: &str) -> Result<(), IdError> {
    if text.is_empty() || text.len() > ID_MAX_BYTES {
        return Err(IdError::Length(text.chars().count()));
    }
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-'))) {
        Some(bad) => Err(IdError::Character(bad)),
        None => Ok(()),
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, checked: $checked:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes the text as it is, for ids that this program made itself or read from a log.
            pub fn trusted(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                if $checked {
                    check_id(text)?;
                }
                Ok(Self(text.into()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

text_id!(
    /// Names a session, and so its log.
    SessionId, checked: true);
text_id!(
    /// Names an inbox item. It equals the message's id unless that id was withdrawn and submitted again.
    ItemId, checked: true);
text_id!(
    /// Names a message.
    MessageId, checked: true);
text_id!(
    /// Names a tool call as the model did. It is unique in one step only (I-18), and of any characters.
    CallId, checked: false);
text_id!(
    /// Names one scheduled retry.
    RetryId, checked: true);

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number behind this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// Place of an event in its log: 0, 1, 2, … without gaps (I-1).
    Seq(u64));
number!(
    /// A turn of a session: 1, 2, 3, … over the whole log (I-3).
    Turn(u32));
number!(
    /// A step of a turn: 1, 2, 3, …
    Step(u32));
number!(
    /// An attempt of a step: 1, 2, 3, …
    Attempt(u32));
number!(
    /// A proposal of a turn: 1, 2, 3, …
    Proposal(u32));
number!(
    /// Which opening for writing of a session a writer belongs to (W-2).
    Epoch(u64));
