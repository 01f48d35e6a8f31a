//! A live probe: what an endpoint does with the requests of an agent, and which quirks it has.
//!
//! It asks for a word, for a call of a tool, and with the result of that call. An OpenAI-compatible server that calls
//! one of these invalid is asked again with one quirk after another, until it takes the request.

mod question;

use super::config::{ProviderConfig, Quirks, ReplayReasoning, build};
use everturn_actors::ports::Signal;
use everturn_storage::message::{Block, Failure, Usage, code, plain_text};
use question::{Heard, Question};
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::Instant;

/// What is checked.
#[derive(Clone, Copy)]
pub struct CheckTarget<'a> {
    /// Name of the provider.
    pub provider: &'a str,
    /// Its configuration.
    pub config: &'a ProviderConfig,
    /// Makes the paths of the configuration absolute.
    pub resolve: &'a (dyn Fn(&Path) -> PathBuf + Sync),
    /// Which model of it.
    pub model: &'a str,
}

impl std::fmt::Debug for CheckTarget<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckTarget").field("provider", &self.provider).field("model", &self.model).finish()
    }
}

/// What an endpoint does with a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolSupport {
    /// Nobody came to that question.
    Untried,
    /// It takes a tool, but this time the model made no call.
    NotCalled,
    /// The model made a call, and took its result.
    Works,
    /// It refused the tool, or the result of the call.
    Refused,
}

/// What came of the questions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckReport {
    /// Which provider.
    pub provider: String,
    /// Which model.
    pub model: String,
    /// Milliseconds until the first chunk of the first answer.
    pub first_chunk_ms: Option<u64>,
    /// Milliseconds from the beginning to the end of the check.
    pub total_ms: u64,
    /// What the model said first.
    pub text: String,
    /// Tokens of the first answer, where the provider told them.
    pub usage: Option<Usage>,
    /// Whether the model showed its reasoning.
    pub reasoning: bool,
    /// What it does with a tool.
    pub tools: ToolSupport,
    /// Lines for `[providers.NAME.quirks]` with which it took what it had refused.
    pub quirks: Vec<String>,
    /// Why the configuration, as it is, does not work; `None` when it does.
    pub failure: Option<Failure>,
    /// What to do about it.
    pub advice: Option<String>,
}

impl CheckReport {
    /// Whether the configuration works as it is.
    pub fn works(&self) -> bool {
        self.failure.is_none()
    }
}

/// Asks the provider of `target`. It takes no longer than `limit`, and ends early when `signal` fires. Nothing is
/// journaled; the provider may charge for some tokens. An error is a sentence that says what to change in the
/// configuration before anybody can be asked.
pub async fn check(target: CheckTarget<'_>, limit: Duration, signal: &Signal) -> Result<CheckReport, String> {
    build(target.provider, target.config, &target.resolve)?;
    let started = Instant::now();
    let report = CheckReport {
        provider: target.provider.to_owned(),
        model: target.model.to_owned(),
        first_chunk_ms: None,
        total_ms: 0,
        text: String::new(),
        usage: None,
        reasoning: false,
        tools: ToolSupport::Untried,
        quirks: Vec::new(),
        failure: None,
        advice: None,
    };
    let mut probe = Probe { target, config: target.config.clone(), signal, report };
    let late = match tokio::time::timeout(limit, probe.run(started)).await {
        Ok(result) => result.err(),
        Err(_) => Some(Failure::new(code::TIMEOUT, format!("no answer within {} ms", limit.as_millis()))),
    };
    let mut report = probe.report;
    report.failure = report.failure.or(late);
    report.total_ms = millis(Instant::now() - started);
    report.advice = report.failure.as_ref().map(|failure| match report.quirks.as_slice() {
        [] => advice(&failure.code).to_owned(),
        lines => format!("write under [providers.{}.quirks]: {}", report.provider, lines.join(", ")),
    });
    Ok(report)
}

struct Probe<'a> {
    target: CheckTarget<'a>,
    /// As configured, with the quirks that were found.
    config: ProviderConfig,
    signal: &'a Signal,
    report: CheckReport,
}

impl Probe<'_> {
    async fn run(&mut self, started: Instant) -> Result<(), Failure> {
        let heard = self.ask(Question::Text).await?;
        self.report.first_chunk_ms = heard.first_chunk.map(|at| millis(at - started));
        self.report.text = plain_text(&heard.blocks);
        self.report.usage = heard.usage;
        self.see(&heard);
        self.report.tools = ToolSupport::Refused;
        let called = self.ask(Question::Tool).await?;
        self.see(&called);
        if !called.blocks.iter().any(|block| matches!(block, Block::ToolCall { .. })) {
            self.report.tools = ToolSupport::NotCalled;
            return Ok(());
        }
        let told = self.ask(Question::Result(&called.blocks)).await?;
        self.see(&told);
        self.report.tools = ToolSupport::Works;
        Ok(())
    }

    fn see(&mut self, heard: &Heard) {
        self.report.reasoning |= heard.blocks.iter().any(|block| matches!(block, Block::Reasoning { .. }));
    }

    /// Asks; a request that the server calls invalid is changed by one quirk after another.
    async fn ask(&mut self, question: Question<'_>) -> Result<Heard, Failure> {
        let failure = match self.once(&self.config, question).await {
            Err(failure) if failure.code == code::INVALID_REQUEST && self.config.kind == "openai" => failure,
            other => return other,
        };
        for (line, change) in MENDS {
            let mut changed = self.config.clone();
            change(&mut changed.quirks);
            if changed == self.config {
                continue;
            }
            if let Ok(heard) = self.once(&changed, question).await {
                self.config = changed;
                self.report.quirks.push((*line).to_owned());
                self.report.failure.get_or_insert(failure);
                return Ok(heard);
            }
        }
        Err(failure)
    }

    async fn once(&self, config: &ProviderConfig, question: Question<'_>) -> Result<Heard, Failure> {
        let CheckTarget { provider, resolve, model, .. } = self.target;
        let adapter =
            build(provider, config, &resolve).map_err(|error| Failure::new(code::INVALID_PREPARED_CALL, error))?;
        question.ask((provider, model), adapter.as_ref(), self.signal).await
    }
}

type Mend = (&'static str, fn(&mut Quirks));

/// What servers are known to want, one at a time and then in the combination of one vendor.
const MENDS: &[Mend] = &[
    ("stream_usage = false", |quirks| quirks.stream_usage = Some(false)),
    ("max_tokens_field = \"max_tokens\"", |quirks| quirks.max_tokens_field = Some("max_tokens".to_owned())),
    ("max_tokens_field = \"max_completion_tokens\"", |quirks| {
        quirks.max_tokens_field = Some("max_completion_tokens".to_owned());
    }),
    ("short_call_ids = true", |quirks| quirks.short_call_ids = true),
    ("bridge_user_after_tool = true", |quirks| quirks.bridge_user_after_tool = true),
    ("replay_reasoning = \"never\"", |quirks| quirks.replay_reasoning = ReplayReasoning::Never),
    ("replay_reasoning = \"always\"", |quirks| quirks.replay_reasoning = ReplayReasoning::Always),
    ("short_call_ids = true, bridge_user_after_tool = true", |quirks| {
        quirks.short_call_ids = true;
        quirks.bridge_user_after_tool = true;
    }),
];

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn advice(code: &str) -> &'static str {
    match code {
        code::MISSING_CREDENTIAL | code::INVALID_CREDENTIAL => "put the key where api_key_env or api_key_file says",
        code::AUTH => "check the key and what it may do",
        code::QUOTA => "look at the account: it has nothing left",
        code::RATE_LIMIT => "wait, or lower max_concurrent",
        code::TRANSPORT | code::TIMEOUT => "check base_url, the network and the proxies",
        code::INVALID_RESPONSE | "HTTP_404" | "HTTP_405" => "check base_url (/v1 included), kind and the model",
        code::INVALID_REQUEST | code::INVALID_MODEL | code::UNKNOWN_MODEL => "check the model and the quirks",
        code::SERVER => "try again later",
        _ => "read the message",
    }
}
