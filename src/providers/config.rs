//! `[providers.NAME]` and what it makes.

use super::{anthropic::AnthropicAdapter, openai::OpenAiAdapter, script::ScriptAdapter};
use everturn_actors::{limits::RetryLimits, ports::ModelAdapter};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

/// `[providers.NAME]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProviderConfig {
    /// `openai`, `anthropic` or `script`.
    pub kind: String,
    /// Address, `/v1` included.
    pub base_url: Option<String>,
    /// Environment variable that holds the key. It is read anew for each request.
    pub api_key_env: Option<String>,
    /// File that holds the key. It is read anew for each request.
    pub api_key_file: Option<PathBuf>,
    /// The script of a scripted provider; without it the built-in demonstration is played.
    pub file: Option<PathBuf>,
    /// Further headers. Keys do not belong here.
    pub headers: BTreeMap<String, String>,
    /// How long making a connection may take.
    pub connect_timeout_ms: Option<u64>,
    /// How long a whole answer may take; unlimited without it.
    pub total_timeout_ms: Option<u64>,
    /// How long the provider may be silent, when that is less than `[limits] stream_idle_timeout_ms`.
    pub idle_timeout_ms: Option<u64>,
    /// Most requests that run at once on this account.
    pub max_concurrent: Option<usize>,
    /// Certificates in PEM form that are trusted beside those of the system.
    pub ca_file: Option<PathBuf>,
    /// How many tokens fit, when that is known.
    pub context_window: Option<u64>,
    /// What the model reads, such as `["text"]`; unknown without it, and then everything is sent.
    pub input_modalities: Option<Vec<String>>,
    /// The reasoning efforts that the model knows; unknown without it, and then the provider judges.
    pub reasoning_efforts: Option<Vec<String>>,
    /// Output limit for agents that set none.
    pub default_max_tokens: Option<u32>,
    /// When and how often failed requests are tried again; `[limits.retry]` without it.
    pub retry: Option<RetryLimits>,
    /// Where the server differs from what it claims to speak.
    pub quirks: Quirks,
}

/// `[providers.NAME.quirks]`: differences between servers that cannot be seen from outside.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quirks {
    /// The name of the output limit: `max_tokens`, or `max_completion_tokens` where the host is OpenAI's own.
    pub max_tokens_field: Option<String>,
    /// Whether token counts are asked for with `stream_options`; yes unless a server refuses the field.
    pub stream_usage: Option<bool>,
    /// When reasoning is given back to an OpenAI-compatible server.
    pub replay_reasoning: ReplayReasoning,
    /// Whether a short assistant message goes between a tool's result and a user, as Mistral's templates want it.
    pub bridge_user_after_tool: bool,
    /// Whether call ids have exactly nine letters and digits, as Mistral wants them.
    pub short_call_ids: bool,
    /// How Anthropic-compatible models are told to think.
    pub thinking: Thinking,
}

/// When reasoning is given back to the server that made it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplayReasoning {
    /// While the model works with tools on the last input, as DeepSeek and others want it.
    #[default]
    Loop,
    /// Never.
    Never,
    /// In every request.
    Always,
}

/// How a reasoning effort is put to an Anthropic-compatible model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thinking {
    /// As a number of tokens.
    #[default]
    Budget,
    /// As a word; the model decides how much it thinks.
    Adaptive,
}

impl ProviderConfig {
    /// The scripted provider with the built-in demonstration.
    pub fn demo() -> Self {
        Self { kind: "script".to_owned(), ..Self::default() }
    }
}

/// The adapter of one provider; an error is a sentence that says what to change. `resolve` makes the paths of the
/// configuration absolute.
pub fn build(
    name: &str,
    config: &ProviderConfig,
    resolve: &dyn Fn(&Path) -> PathBuf,
) -> Result<Arc<dyn ModelAdapter>, String> {
    match config.kind.as_str() {
        "script" => {
            if config.base_url.is_some() || config.api_key_env.is_some() || config.api_key_file.is_some() {
                return Err("kind = \"script\" asks nobody; remove base_url and the key".to_owned());
            }
            let script = match &config.file {
                Some(file) => ScriptAdapter::from_file(&resolve(file))?,
                None => ScriptAdapter::demonstration()?,
            };
            Ok(Arc::new(script.with_retry(config.retry.clone())))
        }
        "openai" => Ok(Arc::new(OpenAiAdapter::new(name, config, resolve)?)),
        "anthropic" => Ok(Arc::new(AnthropicAdapter::new(name, config, resolve)?)),
        "" => Err("kind is missing; set it to \"openai\", \"anthropic\" or \"script\"".to_owned()),
        other => Err(format!("kind = {other:?} is unknown; use \"openai\", \"anthropic\" or \"script\"")),
    }
}
