//! Everything that is printed. A reader that went away is no error.

use super::error::CliError;
use serde_json::json;
use std::{
    io::{self, Write},
    process::ExitCode,
};

/// A line on stdout.
pub(super) fn line(text: &str) {
    let mut out = io::stdout().lock();
    drop(writeln!(out, "{text}").and_then(|()| out.flush()));
}

/// Text on stdout as it is.
pub(super) fn text(text: &str) {
    let mut out = io::stdout().lock();
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

/// A line on stderr.
pub(super) fn note(text: &str) {
    drop(writeln!(io::stderr().lock(), "{text}"));
}

/// An error on stderr, and its exit code.
pub(super) fn fail(error: &CliError, as_json: bool) -> ExitCode {
    if as_json {
        note(&json!({"error": {"code": error.code, "message": error.message}}).to_string());
    } else {
        note(&format!("error: {}", error.message));
    }
    ExitCode::from(error.exit)
}
