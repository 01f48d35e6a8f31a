//! Which adapter answers for which provider, by generation (5.1).

use everturn_actors::ports::ModelAdapter;
use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

/// Counts the adapters that a registry has held; a later one has a larger number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation(pub u64);

/// A provider of that name is there already.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a provider named {0:?} is registered already; replace it, or choose another name")]
pub struct AlreadyRegistered(pub String);

/// The adapters in use. Clones share it, so that a program can change providers while the system runs.
///
/// A call that was prepared keeps its adapter: replacing or removing a provider never breaks it.
#[derive(Clone, Default)]
pub struct Registry(Arc<RwLock<Held>>);

#[derive(Default)]
struct Held {
    adapters: BTreeMap<String, (Generation, Arc<dyn ModelAdapter>)>,
    generations: u64,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let held = self.read();
        f.debug_map().entries(held.adapters.iter().map(|(name, (generation, _))| (name, generation))).finish()
    }
}

impl Registry {
    /// Adds a provider. A name that is taken is refused.
    pub fn register(
        &self,
        name: impl Into<String>,
        adapter: Arc<dyn ModelAdapter>,
    ) -> Result<Generation, AlreadyRegistered> {
        let (name, mut held) = (name.into(), self.write());
        if held.adapters.contains_key(&name) {
            return Err(AlreadyRegistered(name));
        }
        Ok(held.put(name, adapter))
    }

    /// Adds a provider, or puts it in the place of the one of that name.
    pub fn replace(&self, name: impl Into<String>, adapter: Arc<dyn ModelAdapter>) -> Generation {
        self.write().put(name.into(), adapter)
    }

    /// Removes a provider; tells whether it was there.
    pub fn remove(&self, name: &str) -> bool {
        self.write().adapters.remove(name).is_some()
    }

    /// The present adapter of a provider, or `None` (`NO_ADAPTER`).
    pub fn adapter(&self, name: &str) -> Option<Arc<dyn ModelAdapter>> {
        self.read().adapters.get(name).map(|(_, adapter)| Arc::clone(adapter))
    }

    /// The present generation of a provider.
    pub fn generation(&self, name: &str) -> Option<Generation> {
        self.read().adapters.get(name).map(|(generation, _)| *generation)
    }

    fn read(&self) -> RwLockReadGuard<'_, Held> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Held> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn put(&mut self, name: String, adapter: Arc<dyn ModelAdapter>) -> Generation {
        self.generations += 1;
        let generation = Generation(self.generations);
        self.adapters.insert(name, (generation, adapter));
        generation
    }
}
