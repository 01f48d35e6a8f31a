//! Why a command failed: one sentence, a code, and the exit code of SURFACE 3.

use crate::{config::ConfigError, daemon::StartError, embed::BuildError};
use everturn_actors::system::SessionError;
use everturn_storage::{event::TurnReason, store};

/// Exit codes of SURFACE 3.
pub(super) mod exit {
    pub(crate) const COMPLETED: u8 = 0;
    pub(crate) const INTERNAL: u8 = 1;
    pub(crate) const USAGE: u8 = 2;
    pub(crate) const ERROR: u8 = 3;
    pub(crate) const ABORTED: u8 = 4;
    pub(crate) const REJECTED: u8 = 5;
    pub(crate) const BUSY: u8 = 6;
    pub(crate) const CORRUPT: u8 = 7;
    pub(crate) const MAX_TOKENS: u8 = 8;
}

/// An error on its way to stderr.
#[derive(Debug)]
pub(super) struct CliError {
    pub(super) exit: u8,
    pub(super) code: String,
    pub(super) message: String,
}

impl CliError {
    pub(super) fn new(exit: u8, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { exit, code: code.into(), message: message.into() }
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(exit::INTERNAL, "INTERNAL", message)
    }

    pub(super) fn bad_usage(message: impl Into<String>) -> Self {
        Self::new(exit::USAGE, "USAGE", message)
    }

    /// The first paragraph of what clap says, in one line.
    pub(super) fn usage(error: &clap::Error) -> Self {
        let text = error.render().to_string();
        let first = text.split("\n\n").next().unwrap_or_default();
        let sentence = first.strip_prefix("error: ").unwrap_or(first).split_whitespace().collect::<Vec<_>>().join(" ");
        Self::bad_usage(format!("{sentence}; see everturn --help"))
    }

    /// An error of the HTTP interface. Codes that say that the caller is wrong count as usage.
    pub(super) fn api(status: u16, code: &str, message: &str) -> Self {
        let exit = match code {
            "CORRUPT" | "TOO_NEW" | "TOO_OLD" | "UNKNOWN_EVENT" => exit::CORRUPT,
            _ if (400..500).contains(&status) => exit::USAGE,
            _ => exit::INTERNAL,
        };
        Self::new(exit, code, message)
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::new(exit::USAGE, "CONFIG", error.to_string())
    }
}

impl From<store::Error> for CliError {
    fn from(error: store::Error) -> Self {
        let (exit, code) = match &error {
            store::Error::Busy { .. } => (exit::BUSY, "STORE_BUSY"),
            store::Error::Corrupt { .. } => (exit::CORRUPT, "CORRUPT"),
            store::Error::Format { .. } => (exit::CORRUPT, "FORMAT"),
            store::Error::Full(_)
            | store::Error::Io(_)
            | store::Error::Poisoned(_)
            | store::Error::Fenced { .. }
            | store::Error::Invalid(_) => (exit::INTERNAL, "STORAGE"),
        };
        Self::new(exit, code, error.to_string())
    }
}

impl From<SessionError> for CliError {
    fn from(error: SessionError) -> Self {
        let exit = match &error {
            SessionError::Corrupt { .. } | SessionError::Unsupported { .. } => exit::CORRUPT,
            SessionError::Exists(_)
            | SessionError::Unknown(_)
            | SessionError::NoAgent(_)
            | SessionError::InvalidAgent { .. } => exit::USAGE,
            SessionError::Busy(_) | SessionError::Storage(_) | SessionError::Disposed => exit::INTERNAL,
        };
        Self::new(exit, error.code(), error.to_string())
    }
}

impl From<BuildError> for CliError {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Store(error) => error.into(),
            BuildError::Agent { .. } | BuildError::Limits(_) => Self::new(exit::USAGE, "CONFIG", error.to_string()),
        }
    }
}

impl From<StartError> for CliError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Config(error) => error.into(),
            StartError::Store(error) => error.into(),
            StartError::Build(error) => error.into(),
            StartError::Listen { .. } => Self::new(exit::INTERNAL, "LISTEN", error.to_string()),
            StartError::Address { .. } => Self::new(exit::INTERNAL, "STORAGE", error.to_string()),
        }
    }
}

/// How `run` and `send --wait` exit.
pub(super) fn exit_of(reason: &TurnReason) -> u8 {
    match reason {
        TurnReason::Completed => exit::COMPLETED,
        TurnReason::Rejected { .. } => exit::REJECTED,
        TurnReason::Aborted { .. } | TurnReason::Interrupted => exit::ABORTED,
        TurnReason::Error { .. } => exit::ERROR,
        TurnReason::MaxTokens => exit::MAX_TOKENS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everturn_storage::{event::Cause, message::Failure};

    /// SURFACE 3: what a turn's end and a store's refusal exit with.
    #[test]
    fn exit_codes_are_those_of_the_surface() {
        let failure = Failure::new("AUTH", "no");
        for (reason, code) in [
            (TurnReason::Completed, 0),
            (TurnReason::Error { failure }, 3),
            (TurnReason::Aborted { cause: Cause::User }, 4),
            (TurnReason::Interrupted, 4),
            (TurnReason::Rejected { reason: "no".to_owned() }, 5),
            (TurnReason::MaxTokens, 8),
        ] {
            assert_eq!(exit_of(&reason), code, "{reason:?}");
        }
        let busy = store::Error::Busy { holder: "process 1".to_owned() };
        assert_eq!(CliError::from(busy).exit, 6);
        assert_eq!(CliError::from(store::Error::Format { found: 2, supported: 1 }).exit, 7);
        assert_eq!(CliError::api(404, "NO_SESSION", "").exit, 2);
        assert_eq!(CliError::api(503, "CORRUPT", "").exit, 7);
        assert_eq!(CliError::api(503, "STORAGE", "").exit, 1);
    }
}
