//! The system inside another program.

use crate::config::ConfiguredProfiles;
use everturn_actors::{
    limits::Limits,
    ports::{AgentProfile, ModelAdapter, World},
    system::{System, SystemOptions},
};
use everturn_storage::{
    segment_store::SegmentStore,
    store::{self, Opened, Store},
};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Once},
    time::{SystemTime, UNIX_EPOCH},
};

/// Why a system was not put together.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// An agent cannot be made of its profile.
    #[error("agent {agent:?} cannot be used: {why}")]
    Agent {
        /// Which.
        agent: String,
        /// What is wrong with it.
        why: String,
    },
    /// A bound of [`Builder::limits`] is none.
    #[error("{0}")]
    Limits(String),
    /// The store.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// Puts a system together: providers, agents, bounds, a store.
#[derive(Default)]
pub struct Builder {
    profiles: ConfiguredProfiles,
    limits: Limits,
}

impl Builder {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a provider, or puts it in the place of one of that name.
    #[must_use]
    pub fn provider(self, name: impl Into<String>, adapter: Arc<dyn ModelAdapter>) -> Self {
        self.profiles.adapters.replace(name, adapter);
        self
    }

    /// Adds an agent, or puts it in the place of one of that name. Its tools are those of its profile.
    #[must_use]
    pub fn agent(mut self, name: impl Into<String>, profile: AgentProfile) -> Self {
        self.profiles.agents.insert(name.into(), Arc::new(profile));
        self
    }

    /// Sets the bounds that are not an agent's own.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Takes the agents and providers of a configuration, see [`crate::config::build_profiles`].
    #[must_use]
    pub fn profiles(mut self, profiles: ConfiguredProfiles) -> Self {
        self.profiles = profiles;
        self
    }

    /// Opens the store in `dir`, or makes it, and starts. Fails with `Busy` while another process owns it.
    ///
    /// A store that has lost what it had acknowledged is refused here; the `everturn` program opens it with a loud
    /// report. Agents are checked first, see [`AgentProfile::wrong`].
    pub async fn open(self, dir: &Path) -> Result<System, BuildError> {
        self.check()?;
        let (store, opened) = open_store(dir.to_owned()).await?;
        if opened.behind_acknowledged {
            return Err(store::Error::Io(opened.reports.join("; ")).into());
        }
        self.start(store).await
    }

    /// Starts on a store that the caller made, when all agents are sound. Must be called inside a tokio runtime.
    pub async fn start(self, store: Arc<dyn Store>) -> Result<System, BuildError> {
        self.check()?;
        install_tls();
        let system = System::start(SystemOptions {
            store,
            profiles: Arc::new(self.profiles),
            world: Arc::new(MachineWorld),
            limits: self.limits,
        });
        Ok(system.await?)
    }

    /// What a turn would stumble over is refused here.
    fn check(&self) -> Result<(), BuildError> {
        if let Some(why) = self.limits.wrong() {
            return Err(BuildError::Limits(why));
        }
        for (agent, profile) in &self.profiles.agents {
            if let Some(why) = profile.wrong() {
                return Err(BuildError::Agent { agent: agent.clone(), why });
            }
        }
        Ok(())
    }
}

/// The store on disk, opened away from the runtime's own threads.
pub(crate) async fn open_store(dir: PathBuf) -> store::Result<(Arc<dyn Store>, Opened)> {
    let opening = tokio::task::spawn_blocking(move || SegmentStore::open(&dir));
    let (store, opened) =
        opening.await.map_err(|error| store::Error::Io(format!("opening was cut short: {error}")))??;
    Ok((Arc::new(store), opened))
}

/// Chooses the TLS library of this process, once. A choice that another part of the program made stands.
pub(crate) fn install_tls() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

/// This machine's clock and randomness.
#[derive(Debug, Clone, Copy, Default)]
pub struct MachineWorld;

impl World for MachineWorld {
    fn now_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    fn random_u64(&self) -> u64 {
        rand::random()
    }

    fn fresh_id(&self) -> String {
        format!("{:032x}", rand::random::<u128>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everturn_actors::ports::Section;
    use everturn_storage::memory::MemoryStore;

    async fn refused(change: impl FnOnce(&mut AgentProfile)) -> String {
        let mut profile = AgentProfile::default();
        change(&mut profile);
        let built = Builder::new().agent("a", profile).start(Arc::new(MemoryStore::new())).await;
        built.expect_err("refused").to_string()
    }

    /// Scenario 60, T-4, 0.4: what an agent cannot be made of is refused where it is registered.
    #[tokio::test]
    async fn agents_are_checked_where_they_are_registered() {
        let section = |text: &str| Section { name: "role".to_owned(), text: text.to_owned() };
        let twice = refused(|profile| profile.sections = vec![section("x"), section("y")]).await;
        assert!(twice.contains("\"a\"") && twice.contains("\"role\""), "{twice}");
        let none = refused(|profile| profile.limits.max_parallel_tool_calls = 0).await;
        assert!(none.contains("max_parallel_tool_calls"), "{none}");
        let tool = || crate::tools::build("time", &crate::config::ToolsConfig::default()).expect("a tool");
        let tools = refused(|profile| profile.tools = vec![tool(), tool()]).await;
        assert!(tools.contains("\"time\""), "{tools}");
        let limits = Limits { max_parallel_tool_calls: 0, ..Limits::default() };
        let built = Builder::new().limits(limits).start(Arc::new(MemoryStore::new())).await;
        assert!(matches!(built, Err(BuildError::Limits(_))));
    }
}
