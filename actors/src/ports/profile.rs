//! What an agent is made of: instructions, tools, route, policies.

use super::{ModelAdapter, PreStep, Recovery, RequestPolicy, Stopping, Tool, ToolPolicy};
use crate::limits::{CheckpointPolicy, Limits};
use everturn_storage::event::RequestConfig;
use std::{collections::BTreeSet, sync::Arc};

/// One part of a system prompt. Names are unique; the order is that of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Its name.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// What an agent is made of. Read anew for every step, so that a change applies at the next one.
#[derive(Clone, Default)]
pub struct AgentProfile {
    /// The system prompt, in parts.
    pub sections: Vec<Section>,
    /// Tools that the model may call; nothing else is visible.
    pub tools: Vec<Arc<dyn Tool>>,
    /// Settings that a request starts from; an empty provider or model means that none is selected.
    pub config: RequestConfig,
    /// Pre-step chain.
    pub pre_step: Vec<Arc<dyn PreStep>>,
    /// Request waterfall.
    pub request: Vec<Arc<dyn RequestPolicy>>,
    /// Recovery chain, asked before the built-in retry.
    pub recovery: Vec<Arc<dyn Recovery>>,
    /// Stopping chain.
    pub stopping: Vec<Arc<dyn Stopping>>,
    /// Policies around tools.
    pub tool_policies: Vec<Arc<dyn ToolPolicy>>,
    /// Whether steering is accepted as steering; otherwise it is a send (Z16).
    pub steering: bool,
    /// Which checkpoints a turn waits for.
    pub checkpoint: CheckpointPolicy,
    /// Bounds.
    pub limits: Limits,
}

impl AgentProfile {
    /// What an agent cannot be made of, in words; none when it is sound. It is asked where an agent is registered and
    /// where a session is opened, so that a turn need not find out.
    ///
    /// A tool that panics when it is asked for its name panics here.
    pub fn wrong(&self) -> Option<String> {
        self.sections_wrong().or_else(|| self.limits.wrong()).or_else(|| {
            let names = self.tools.iter().map(|tool| tool.spec().name.as_str());
            twice(names).map(|name| format!("two tools are called {name:?}; give each a name of its own"))
        })
    }

    /// The part of [`Self::wrong`] that runs no code of others.
    pub(crate) fn settings_wrong(&self) -> Option<String> {
        self.sections_wrong().or_else(|| self.limits.wrong())
    }

    /// T-4.
    pub(crate) fn sections_wrong(&self) -> Option<String> {
        let names = self.sections.iter().map(|section| section.name.as_str());
        twice(names).map(|name| format!("two sections of the prompt are called {name:?}; give each a name of its own"))
    }
}

fn twice<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

impl std::fmt::Debug for AgentProfile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentProfile").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Where profiles and adapters come from.
pub trait Profiles: Send + Sync + 'static {
    /// The profile of an agent, or `None` when nothing of that name is configured.
    fn profile(&self, agent: &str) -> Option<Arc<AgentProfile>>;

    /// The present adapter generation of a provider, or `None` (`NO_ADAPTER`).
    fn adapter(&self, provider: &str) -> Option<Arc<dyn ModelAdapter>>;
}
