//! Traces go to stderr; `RUST_LOG` chooses which. Nothing that is traced holds a secret or a message's text.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts tracing. `quiet` shows warnings only, unless `RUST_LOG` says otherwise.
pub(crate) fn start(quiet: bool) {
    let fallback = if quiet { "warn" } else { "warn,everturn=info,everturn_actors=info,everturn_storage=info" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(fallback));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // Fails when an embedding program traces already; its choice stands.
    drop(subscriber.try_init());
}
