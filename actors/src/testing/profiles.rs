//! A configuration with one agent and one scripted provider.

use super::{Play, ScriptedModel};
use crate::ports::{AgentProfile, ModelAdapter, Profiles, Section};
use everturn_storage::event::RequestConfig;
use std::sync::{Arc, PoisonError, RwLock};

/// The agent `default` with the provider `script`. Its profile can be changed while it runs.
pub struct TestProfiles {
    profile: RwLock<Arc<AgentProfile>>,
    /// The model behind `script`.
    pub model: Arc<ScriptedModel>,
}

impl Default for TestProfiles {
    fn default() -> Self {
        let config =
            RequestConfig { provider: "script".to_owned(), model: "scripted".to_owned(), ..RequestConfig::default() };
        let sections = vec![Section { name: "system".to_owned(), text: "You are a test.".to_owned() }];
        let profile = AgentProfile { sections, config, steering: true, ..AgentProfile::default() };
        Self { profile: RwLock::new(Arc::new(profile)), model: Arc::default() }
    }
}

impl TestProfiles {
    /// Changes the profile, from the next step on.
    pub fn change(&self, change: impl FnOnce(&mut AgentProfile)) {
        let mut profile = self.profile.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = (**profile).clone();
        change(&mut changed);
        *profile = Arc::new(changed);
    }

    /// What comes next from the model.
    pub fn script(&self, plays: impl IntoIterator<Item = Play>) {
        self.model.script(plays);
    }
}

impl Profiles for TestProfiles {
    fn profile(&self, agent: &str) -> Option<Arc<AgentProfile>> {
        (agent == "default").then(|| Arc::clone(&self.profile.read().unwrap_or_else(PoisonError::into_inner)))
    }

    fn adapter(&self, provider: &str) -> Option<Arc<dyn ModelAdapter>> {
        (provider == "script").then(|| Arc::clone(&self.model) as Arc<dyn ModelAdapter>)
    }
}
