//! The daemon: boot order, the address that clients find, and the way down.
//!
//! ```text
//! profiles ─▶ store (owner of the data directory) ─▶ listen ─▶ system, boot repair in the background ─▶ HTTP
//! drain: HTTP takes nothing new ─▶ open steps end ─▶ agents suspended, store closed ─▶ HTTP ends
//! ```

use crate::{
    config::{self, ConfigError, Loaded},
    embed::{self, Builder},
    http::{self, App},
};
use everturn_actors::system::System;
use everturn_storage::{ids::SessionId, store};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinHandle};

/// Why a daemon did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// An agent, the bounds, or the store.
    #[error(transparent)]
    Build(#[from] embed::BuildError),
    /// The address.
    #[error("cannot listen on {address} ({error}); stop what listens there, or choose another [daemon] listen")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The file that tells clients where the daemon is.
    #[error("cannot write {path} ({error}); make the data directory writable", path = path.display())]
    Address {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// Where the daemon of a data directory is, for the commands that talk to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Address {
    /// Where it answers.
    pub(crate) url: String,
    /// Its process, for people.
    pub(crate) pid: u32,
}

impl Address {
    fn path(data_dir: &Path) -> PathBuf {
        data_dir.join("daemon.json")
    }

    /// What the last daemon wrote. It may be dead by now: only a connection tells.
    pub(crate) fn read(data_dir: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(Self::path(data_dir)).ok()?).ok()
    }

    fn write(&self, data_dir: &Path) -> io::Result<()> {
        let path = Self::path(data_dir);
        let fresh = path.with_extension("json.new");
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&fresh)?.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(fresh, path)
    }
}

/// The token that clients have to show: `EVERTURN_TOKEN`, or the file of `[daemon] token_file`.
pub(crate) fn token(loaded: &Loaded, env: &BTreeMap<String, String>) -> Result<Option<Arc<str>>, ConfigError> {
    if let Some(token) = env.get("EVERTURN_TOKEN").map(|token| token.trim()).filter(|token| !token.is_empty()) {
        return Ok(Some(token.into()));
    }
    let Some(path) = &loaded.config.daemon.token_file else { return Ok(None) };
    let path = loaded.resolve(path);
    let text = fs::read_to_string(&path)
        .map_err(|error| ConfigError(format!("daemon.token_file: {} cannot be read ({error})", path.display())))?;
    match text.trim() {
        "" => Err(ConfigError(format!("daemon.token_file: {} is empty; write a token into it", path.display()))),
        token => Ok(Some(token.into())),
    }
}

/// A daemon that serves.
pub(crate) struct Daemon {
    /// Where it answers.
    pub(crate) address: SocketAddr,
    /// What it serves.
    pub(crate) system: System,
    app: Arc<App>,
    server: JoinHandle<io::Result<()>>,
    data_dir: PathBuf,
}

impl Daemon {
    /// Starts on the data directory. It answers when this returns; boot repair goes on in the background.
    ///
    /// `report` is given what a person should know of the store, a sentence each.
    pub(crate) async fn start(
        loaded: &Loaded,
        data_dir: &Path,
        listen: SocketAddr,
        token: Option<Arc<str>>,
        report: &(dyn Fn(&str) + Sync),
    ) -> Result<Self, StartError> {
        embed::install_tls();
        let profiles = config::build_profiles(loaded)?;
        let (store, opened) = embed::open_store(data_dir.to_owned()).await?;
        opened.reports.iter().for_each(|line| report(line));
        let listener =
            TcpListener::bind(listen).await.map_err(|error| StartError::Listen { address: listen, error })?;
        let address = listener.local_addr().map_err(|error| StartError::Listen { address: listen, error })?;
        let system = Builder::new().profiles(profiles).limits(loaded.config.limits.clone()).start(store).await?;
        let file = Address { url: format!("http://{}", reachable(address)), pid: std::process::id() };
        file.write(data_dir).map_err(|error| StartError::Address { path: Address::path(data_dir), error })?;
        let app = App::new(system.clone(), token);
        let server = tokio::spawn(http::serve(listener, Arc::clone(&app)));
        tracing::info!(%address, "serving");
        Ok(Self { address, system, app, server, data_dir: data_dir.to_owned() })
    }

    /// Waits for boot repair and reports what it could not open. Answers false when no session at all can be read.
    pub(crate) async fn booted(&self, report: &(dyn Fn(&str) + Sync)) -> bool {
        let boot = self.system.booted().await;
        boot.reports.iter().for_each(|line| report(line));
        for (_, error) in &boot.refused {
            report(&error.to_string());
        }
        tracing::info!(touched = boot.touched, repaired = boot.repaired.len(), refused = boot.refused.len(), "booted");
        if boot.refused.is_empty() {
            return true;
        }
        let refused = |id: &SessionId| boot.refused.iter().any(|(refused, _)| refused == id);
        match self.system.sessions(None, boot.refused.len() + 1).await {
            Ok(sessions) => sessions.iter().any(|summary| !refused(&summary.session)),
            Err(_) => true,
        }
    }

    /// Ends when the server ended by itself, which it should not.
    pub(crate) async fn failed(&mut self) -> String {
        match (&mut self.server).await {
            Ok(Ok(())) => "the HTTP server ended".to_owned(),
            Ok(Err(error)) => format!("the HTTP server failed: {error}"),
            Err(error) => format!("the HTTP server died: {error}"),
        }
    }

    /// Takes nothing new, lets open steps end within `drain`, suspends, closes the store, and ends.
    pub(crate) async fn stop(self, drain: Duration) {
        self.app.drain();
        self.system.shutdown(drain).await;
        // Whoever takes the directory next writes its own; a file that stays behind harms nobody.
        drop(fs::remove_file(Address::path(&self.data_dir)));
        self.app.close();
        if let Ok(Err(error)) = self.server.await {
            tracing::warn!(%error, "the HTTP server ended badly");
        }
    }
}

/// An address that this machine can connect to.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, address.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, address.port()).into(),
        IpAddr::V4(_) | IpAddr::V6(_) => address,
    }
}
