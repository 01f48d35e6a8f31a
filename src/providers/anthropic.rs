//! `kind = "anthropic"`: the Messages API over server-sent events, as Anthropic, llama.cpp, LiteLLM and others
//! speak it.

mod request;
mod response;

#[cfg(test)]
mod tests;

use super::{
    config::{ProviderConfig, Thinking},
    exchange::{Mapper, Outgoing, run},
    route::{Admitted, Route, no_effort},
};
use async_trait::async_trait;
use everturn_actors::{
    limits::RetryLimits,
    ports::{ChunkStream, Dispatch, ModelAdapter, PrepareRequest, Prepared, Signal},
};
use everturn_storage::{
    chunk::{Chunk, Finish},
    event::{RequestConfig, SystemUpdate},
    log::request::{MessageView, ModelRequest},
    message::{Failure, code},
};
use futures::{StreamExt as _, stream};
use reqwest::header::HeaderValue;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// The version of the protocol that this adapter speaks.
const VERSION: &str = "2023-06-01";

/// Output limit for agents that set none: the protocol wants one in every request.
const DEFAULT_MAX_TOKENS: u32 = 8_192;

/// Smallest number of tokens that can be given to thinking.
const BUDGET_MIN: u32 = 1_024;

/// The efforts that this adapter knows, with the tokens that each gives to thinking.
const EFFORTS: [(&str, u32); 5] =
    [("none", 0), ("minimal", 1_024), ("low", 4_096), ("medium", 10_240), ("high", 24_576)];

/// How the wire of this route differs from others.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AnthropicOptions {
    provider: String,
    images: bool,
    thinking: Thinking,
}

impl AnthropicOptions {
    pub(super) fn of(route: &Route, config: &ProviderConfig) -> Self {
        Self { provider: route.name.clone(), images: route.images(), thinking: config.quirks.thinking }
    }

    /// The body of a request.
    pub(super) fn body(&self, request: &ModelRequest) -> Result<serde_json::Value, Failure> {
        let views: Vec<MessageView<'_>> = request.messages.iter().filter_map(|message| message.view()).collect();
        let config = &request.header.config;
        effort(self, config).map(|effort| request::body(self, config, effort, &request.header.tools, &views))
    }

    /// The reader of its answer.
    pub(super) fn mapper(&self, request: &ModelRequest) -> impl Mapper + use<> {
        let names = request::tool_names(&request.header.tools);
        response::AnthropicMapper::new(&self.provider, &request.header.config.model, names)
    }
}

/// One generation of one route.
#[derive(Debug)]
pub(super) struct AnthropicAdapter {
    route: Arc<Route>,
    options: Arc<AnthropicOptions>,
    context_window: Option<u64>,
    default_max_tokens: u32,
    retry: Option<RetryLimits>,
}

impl AnthropicAdapter {
    pub(super) fn new(name: &str, config: &ProviderConfig, resolve: &dyn Fn(&Path) -> PathBuf) -> Result<Self, String> {
        let route = Route::new(name, config, resolve)?;
        Ok(Self {
            options: Arc::new(AnthropicOptions::of(&route, config)),
            route: Arc::new(route),
            context_window: config.context_window,
            default_max_tokens: config.default_max_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
            retry: config.retry.clone(),
        })
    }
}

/// What a request tells the model about thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effort<'a> {
    /// Nothing.
    Unset,
    /// Not to think.
    Off,
    /// At most so many tokens.
    Budget(u32),
    /// In a word.
    Word(&'a str),
}

/// The effort of a request. What the route cannot do is refused, never rounded (L-1).
fn effort<'a>(options: &AnthropicOptions, config: &'a RequestConfig) -> Result<Effort<'a>, Failure> {
    let Some(word) = config.reasoning_effort.as_deref() else { return Ok(Effort::Unset) };
    if word == "none" {
        return Ok(Effort::Off);
    }
    match options.thinking {
        // The provider knows its words; they change with its models.
        Thinking::Adaptive => Ok(Effort::Word(word)),
        Thinking::Budget => {
            let Some((_, budget)) = EFFORTS.iter().find(|(known, _)| *known == word) else {
                let known: Vec<&str> = EFFORTS.iter().map(|(known, _)| *known).collect();
                return Err(no_effort(&options.provider, word, &known.join(", ")));
            };
            // Thinking counts as output; half of it is left for the answer.
            let room = config.max_tokens.map_or(*budget, |max_tokens| max_tokens / 2);
            let refused = |why: &str| Err(Failure::new(code::UNSUPPORTED_REASONING_EFFORT, why));
            if room < BUDGET_MIN {
                return refused("thinking needs a max_tokens of 2048 or more; raise it, or set no reasoning_effort");
            }
            if config.temperature.is_some_and(|temperature| temperature != 1.0) {
                return refused("a model that thinks takes no temperature but 1; remove it, or the reasoning_effort");
            }
            Ok(Effort::Budget((*budget).min(room)))
        }
    }
}

#[async_trait]
impl ModelAdapter for AnthropicAdapter {
    async fn prepare(&self, request: PrepareRequest, signal: Signal) -> Result<Prepared, Failure> {
        self.route.check(&request)?;
        let mut config = request.config;
        let mut defaulted = Vec::new();
        let asked = effort(&self.options, &config)?;
        if config.max_tokens.is_none() {
            // What goes to thinking counts as output, and the answer needs room beside it.
            let thought = if let Effort::Budget(budget) = asked { budget } else { 0 };
            config.max_tokens = Some(self.default_max_tokens.saturating_add(thought));
            defaulted.push("max_tokens".to_owned());
        }
        let admitted = self.route.admit(&signal).await?;
        Ok(Prepared {
            config,
            defaulted,
            context_window: self.context_window,
            input_modalities: self.route.input_modalities.clone(),
            system_update: SystemUpdate::Replace,
            retry: self.retry.clone(),
            call: Box::new(Call { route: Arc::clone(&self.route), options: Arc::clone(&self.options), admitted }),
        })
    }
}

struct Call {
    route: Arc<Route>,
    options: Arc<AnthropicOptions>,
    admitted: Admitted,
}

impl Dispatch for Call {
    fn dispatch(self: Box<Self>, request: ModelRequest, signal: Signal) -> ChunkStream {
        let Self { route, options, admitted: Admitted { secret, permit } } = *self;
        let built = options.body(&request).and_then(|body| {
            let mut headers = Vec::new();
            if let Some(secret) = &secret {
                headers.push(("x-api-key", secret.header("")?));
            }
            // A version from the configuration takes the place of this one.
            if !route.headers.contains_key("anthropic-version") {
                headers.push(("anthropic-version", HeaderValue::from_static(VERSION)));
            }
            route.post("messages", headers, &body, secret.as_ref())
        });
        let mapper = options.mapper(&request);
        match built {
            Ok(request) => run(
                Outgoing {
                    client: route.client.clone(),
                    request,
                    mapper: Box::new(mapper),
                    secret,
                    permit,
                    clocks: route.clocks,
                },
                signal,
            ),
            Err(failure) => stream::iter([Chunk::Finish { finish: Finish::Error { failure } }]).boxed(),
        }
    }
}
