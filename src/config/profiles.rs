//! Agents and adapters, made from the configuration.

use super::{ConfigError, Loaded, Switch};
use crate::providers::Registry;
use everturn_actors::ports::{AgentProfile, ModelAdapter, Profiles, Section, Tool};
use everturn_storage::event::RequestConfig;
use std::{collections::BTreeMap, sync::Arc};

/// What the system asks for agents and adapters. An embedder may put its own beside the configured ones.
#[derive(Default)]
pub struct ConfiguredProfiles {
    /// By agent.
    pub agents: BTreeMap<String, Arc<AgentProfile>>,
    /// By provider.
    pub adapters: Registry,
}

impl Profiles for ConfiguredProfiles {
    fn profile(&self, agent: &str) -> Option<Arc<AgentProfile>> {
        self.agents.get(agent).cloned()
    }

    fn adapter(&self, provider: &str) -> Option<Arc<dyn ModelAdapter>> {
        self.adapters.adapter(provider)
    }
}

/// Builds every provider and every agent. Files that the configuration names are read here, once; credentials are
/// looked up by their provider when it needs them.
pub fn build_profiles(loaded: &Loaded) -> Result<ConfiguredProfiles, ConfigError> {
    let config = &loaded.config;
    let mut out = ConfiguredProfiles::default();
    for (name, provider) in &config.providers {
        let adapter = crate::providers::build(name, provider, &|path| loaded.resolve(path))
            .map_err(|error| loaded.wrong(&format!("providers.{name}: {error}")))?;
        out.adapters.replace(name.as_str(), adapter);
    }
    for (name, agent) in &config.agents {
        let system = match (&agent.system, &agent.system_file) {
            (Some(text), _) => Some(text.clone()),
            (None, Some(path)) => {
                let path = loaded.resolve(path);
                Some(std::fs::read_to_string(&path).map_err(|error| {
                    loaded.wrong(&format!(
                        "agents.{name}.system_file: {} cannot be read ({error}); correct the path",
                        path.display()
                    ))
                })?)
            }
            (None, None) => None,
        };
        let tools = agent
            .tools
            .iter()
            .map(|tool| {
                crate::tools::build(tool, &config.tools)
                    .map_err(|error| loaded.wrong(&format!("agents.{name}.tools: {error}")))
            })
            .collect::<Result<Vec<Arc<dyn Tool>>, _>>()?;
        let profile = AgentProfile {
            sections: system
                .filter(|text| !text.trim().is_empty())
                .map(|text| Section { name: "system".to_owned(), text })
                .into_iter()
                .collect(),
            tools,
            config: RequestConfig {
                provider: agent.provider.clone(),
                model: agent.model.clone(),
                reasoning_effort: agent.reasoning_effort.clone(),
                temperature: agent.temperature,
                max_tokens: agent.max_tokens,
                stop: agent.stop.clone(),
            },
            steering: agent.steering == Switch::On,
            checkpoint: config.journal.checkpoint,
            limits: config.limits.clone(),
            ..AgentProfile::default()
        };
        out.agents.insert(name.clone(), Arc::new(profile));
    }
    #[cfg(feature = "testkit")]
    crate::testkit::equip(&mut out);
    Ok(out)
}
