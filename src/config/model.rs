//! What the configuration says, and the rules that concern more than one key.

use super::{ConfigError, Loaded};
use crate::{providers::ProviderConfig, tools::FetchConfig};
use everturn_actors::limits::{CheckpointPolicy, Limits};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

/// The whole file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The process.
    pub daemon: DaemonConfig,
    /// The record.
    pub journal: JournalConfig,
    /// Bounds, CONTRACT 0.4.
    pub limits: Limits,
    /// Providers of models by name.
    pub providers: BTreeMap<String, ProviderConfig>,
    /// Agents by name.
    pub agents: BTreeMap<String, AgentConfig>,
    /// Settings of built-in tools.
    pub tools: ToolsConfig,
    /// Servers of further tools by name.
    pub mcp: BTreeMap<String, McpConfig>,
}

/// `[daemon]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DaemonConfig {
    /// Where the HTTP interface listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where sessions are kept.
    pub data_dir: Option<PathBuf>,
    /// How long open steps may take to end when the daemon is told to stop, in seconds.
    pub drain_s: u64,
    /// A file with the token that clients have to show.
    pub token_file: Option<PathBuf>,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7717)), data_dir: None, drain_s: 20, token_file: None }
    }
}

/// `[journal]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JournalConfig {
    /// What keeps the logs.
    pub engine: Engine,
    /// Which checkpoints a turn waits for.
    pub checkpoint: CheckpointPolicy,
}

/// What keeps the logs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// The embedded store.
    #[default]
    Sled,
}

/// `[agents.NAME]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// Which of `[providers.*]`.
    pub provider: String,
    /// Which model of it, exactly.
    pub model: String,
    /// The instructions.
    pub system: Option<String>,
    /// A file with the instructions, read at start.
    pub system_file: Option<PathBuf>,
    /// The tools that its model may call; nothing is enabled that is not named.
    pub tools: Vec<String>,
    /// Whether a steer joins the open turn; off makes it a send (Z16).
    pub steering: Switch,
    /// How hard the model shall think.
    pub reasoning_effort: Option<String>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Output limit in tokens.
    pub max_tokens: Option<u32>,
    /// Texts that end the output.
    pub stop: Option<Vec<String>>,
}

/// `"on"` or `"off"`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    /// Yes.
    #[default]
    On,
    /// No.
    Off,
}

/// `[tools]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolsConfig {
    /// `[tools.fetch]`.
    pub fetch: FetchConfig,
}

/// `[mcp.NAME]`: read, so that a file can be shared with later builds; this build starts no such server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct McpConfig {
    /// A program and its arguments.
    pub command: Option<Vec<String>>,
    /// Or the address of a server.
    pub url: Option<String>,
    /// Environment of the program.
    pub env: BTreeMap<String, String>,
}

/// What stands where a secret could be.
const MASK: &str = "***";

impl Config {
    /// The built-in demonstration in place of a model.
    pub(super) fn install_demo(&mut self) {
        self.providers.insert("demo".to_owned(), ProviderConfig::demo());
        let agent = AgentConfig {
            provider: "demo".to_owned(),
            model: "demo".to_owned(),
            system: Some("You are a careful assistant.".to_owned()),
            tools: vec!["time".to_owned()],
            ..AgentConfig::default()
        };
        self.agents.insert("default".to_owned(), agent);
    }

    /// Puts a mask over everything that may hold a secret.
    pub(super) fn mask(&mut self) {
        for provider in self.providers.values_mut() {
            if let Some(url) = &mut provider.base_url {
                mask_url(url);
            }
            provider.headers.values_mut().for_each(|value| MASK.clone_into(value));
        }
        for server in self.mcp.values_mut() {
            server.env.values_mut().for_each(|value| MASK.clone_into(value));
            if let Some(url) = &mut server.url {
                mask_url(url);
            }
        }
    }

    /// The rules that concern more than one key.
    pub(super) fn check_whole(&self, loaded: &Loaded, has_token: bool) -> Result<(), ConfigError> {
        let fail = |what: String| Err(loaded.wrong(&what));
        if !self.daemon.listen.ip().is_loopback() && self.daemon.token_file.is_none() && !has_token {
            return fail(format!(
                "daemon.listen = \"{}\" can be reached from other machines and no token is set; set [daemon] \
                 token_file or EVERTURN_TOKEN, or listen on 127.0.0.1",
                self.daemon.listen
            ));
        }
        if let Some(what) = self.limits.wrong() {
            return fail(what);
        }
        if self.agents.is_empty() {
            return fail("providers are configured and no agent uses them; add [agents.default]".to_owned());
        }
        for (name, agent) in &self.agents {
            if let Some(what) = self.agent_wrong(name, agent) {
                return fail(what);
            }
        }
        Ok(())
    }

    fn agent_wrong(&self, name: &str, agent: &AgentConfig) -> Option<String> {
        if agent.provider.is_empty() {
            return Some(format!("agents.{name} names no provider; set agents.{name}.provider"));
        }
        if !self.providers.contains_key(&agent.provider) {
            let near = self.providers.keys().min_by_key(|known| strsim::damerau_levenshtein(known, &agent.provider));
            let hint = near.map_or_else(String::new, |near| format!(" (did you mean {near:?}?)"));
            return Some(format!(
                "agents.{name}.provider = {:?} is not one of [providers.*]{hint}; configure it",
                agent.provider
            ));
        }
        if agent.model.is_empty() {
            return Some(format!("agents.{name} names no model; set agents.{name}.model"));
        }
        if agent.system.is_some() && agent.system_file.is_some() {
            return Some(format!("agents.{name} has system and system_file; keep one of them"));
        }
        if agent.temperature.is_some_and(|t| !t.is_finite() || t < 0.0) {
            return Some(format!("agents.{name}.temperature must be a number of at least 0; correct it"));
        }
        if agent.max_tokens == Some(0) {
            return Some(format!("agents.{name}.max_tokens must be at least 1; correct it"));
        }
        let mut seen = std::collections::BTreeSet::new();
        for tool in &agent.tools {
            if !seen.insert(tool) {
                return Some(format!("agents.{name}.tools names {tool:?} twice; keep one"));
            }
            if tool.starts_with("mcp:") {
                return Some(format!("agents.{name}.tools names {tool:?}; MCP is not in this build yet, leave it out"));
            }
            if let Err(error) = crate::tools::build(tool, &self.tools) {
                return Some(format!("agents.{name}.tools: {error}"));
            }
        }
        None
    }
}

/// Hides user, password and query of an address.
fn mask_url(text: &mut String) {
    let Ok(mut url) = url::Url::parse(text) else {
        return;
    };
    let mut masked = false;
    if url.password().is_some() || !url.username().is_empty() {
        // Both can only fail for addresses without a host, which have no user either.
        let _ = url.set_username(MASK);
        let _ = url.set_password(None);
        masked = true;
    }
    if url.query().is_some() {
        url.set_query(Some(MASK));
        masked = true;
    }
    if masked {
        *text = url.into();
    }
}
