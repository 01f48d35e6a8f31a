//! `everturn serve`.

use super::{
    Context,
    error::{CliError, exit},
    out,
};
use crate::daemon::Daemon;
use sd_notify::NotifyState;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(super) async fn serve(context: &Context) -> Result<u8, CliError> {
    let loaded = context.load()?;
    let data_dir = context.data_dir(&loaded)?;
    let token = context.token(&loaded)?;
    if loaded.demo {
        out::note(&demo_note(&loaded.candidates));
    }
    let mut signals = Signals::new()?;
    let mut daemon = Daemon::start(&loaded, &data_dir, loaded.config.daemon.listen, token, &out::note).await?;
    out::line(&format!("listening on http://{}", daemon.address));
    tell_manager(NotifyState::Ready);
    let drain = Duration::from_secs(loaded.config.daemon.drain_s);
    let readable = tokio::select! {
        readable = daemon.booted(&out::note) => readable,
        () = signals.next() => return drain_and_stop(daemon, drain, signals).await,
    };
    if !readable {
        daemon.stop(Duration::ZERO).await;
        return Err(CliError::new(
            exit::CORRUPT,
            "CORRUPT",
            "no session of this store can be read; run everturn verify, and restore a backup",
        ));
    }
    tokio::select! {
        why = daemon.failed() => Err(CliError::internal(format!("{why}; start the daemon again"))),
        () = signals.next() => drain_and_stop(daemon, drain, signals).await,
    }
}

/// The first signal lets open steps end; a second one ends at once, which is safe: what counts is durable.
async fn drain_and_stop(daemon: Daemon, drain: Duration, mut signals: Signals) -> Result<u8, CliError> {
    tell_manager(NotifyState::Stopping);
    tokio::select! {
        () = daemon.stop(drain) => {}
        () = signals.next() => out::note("a second signal: ending at once"),
    }
    Ok(exit::COMPLETED)
}

fn tell_manager(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}

/// What to write when no model is configured.
pub(super) fn demo_note(candidates: &[std::path::PathBuf]) -> String {
    let file = candidates.last().map_or_else(|| "everturn.toml".into(), |path| path.display().to_string());
    format!(
        "no model is configured: the built-in demonstration answers; write [providers.NAME] and [agents.default] \
         into {file} or ./everturn.toml"
    )
}

/// SIGINT and SIGTERM.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on both come here and do not end the process.
    pub(super) fn new() -> Result<Self, CliError> {
        let no = |error| CliError::internal(format!("signals cannot be listened to ({error})"));
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(no)?,
            interrupt: signal(SignalKind::interrupt()).map_err(no)?,
        })
    }

    /// Ends with the next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
