//! `kind = "openai"`: chat completions over server-sent events, as OpenAI, DeepSeek, Mistral, Groq, OpenRouter,
//! LiteLLM, vLLM, llama.cpp, Ollama and LM Studio speak them.

mod calls;
mod request;
pub(super) mod response;

#[cfg(test)]
mod tests;

use super::{
    config::{ProviderConfig, ReplayReasoning},
    exchange::{Mapper, Outgoing, run},
    route::{Admitted, Route},
    wire::IdRule,
};
use async_trait::async_trait;
use everturn_actors::{
    limits::RetryLimits,
    ports::{ChunkStream, Dispatch, ModelAdapter, PrepareRequest, Prepared, Signal},
};
use everturn_storage::{
    chunk::{Chunk, Finish},
    event::SystemUpdate,
    log::request::{MessageView, ModelRequest},
    message::Failure,
};
use futures::{StreamExt as _, stream};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Longest call id that OpenAI itself takes.
const OPENAI_ID_MAX: usize = 40;

/// Longest call id for everybody else. Some gateways hide state in the id and want it back whole.
const ID_MAX: usize = 16 * 1024;

/// How the wire of this route differs from others.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OpenAiOptions {
    provider: String,
    images: bool,
    ids: IdRule,
    max_tokens_field: String,
    stream_usage: bool,
    replay_reasoning: ReplayReasoning,
    bridge_user_after_tool: bool,
}

impl OpenAiOptions {
    pub(super) fn of(route: &Route, config: &ProviderConfig) -> Self {
        let quirks = &config.quirks;
        // OpenAI's newer models refuse the old name; hardly any other server knows the new one.
        let official = route.host() == "api.openai.com" || route.host().ends_with(".openai.azure.com");
        let field = if official { "max_completion_tokens" } else { "max_tokens" };
        let ids = match (quirks.short_call_ids, official) {
            (true, _) => IdRule::Exactly(9),
            (false, true) => IdRule::Visible(OPENAI_ID_MAX),
            (false, false) => IdRule::Visible(ID_MAX),
        };
        Self {
            provider: route.name.clone(),
            images: route.images(),
            ids,
            max_tokens_field: quirks.max_tokens_field.clone().unwrap_or_else(|| field.to_owned()),
            stream_usage: quirks.stream_usage.unwrap_or(true),
            replay_reasoning: quirks.replay_reasoning,
            bridge_user_after_tool: quirks.bridge_user_after_tool,
        }
    }
}

impl OpenAiOptions {
    /// The body of a request.
    pub(super) fn body(&self, request: &ModelRequest) -> serde_json::Value {
        let views: Vec<MessageView<'_>> = request.messages.iter().filter_map(|message| message.view()).collect();
        request::body(self, &request.header.config, &request.header.tools, &views)
    }

    /// The reader of its answer.
    pub(super) fn mapper(&self, request: &ModelRequest) -> impl Mapper + use<> {
        response::OpenAiMapper::new(&self.provider, request::tool_names(&request.header.tools))
    }
}

/// One generation of one route.
#[derive(Debug)]
pub(super) struct OpenAiAdapter {
    route: Arc<Route>,
    options: Arc<OpenAiOptions>,
    context_window: Option<u64>,
    default_max_tokens: Option<u32>,
    retry: Option<RetryLimits>,
}

impl OpenAiAdapter {
    pub(super) fn new(name: &str, config: &ProviderConfig, resolve: &dyn Fn(&Path) -> PathBuf) -> Result<Self, String> {
        let route = Route::new(name, config, resolve)?;
        Ok(Self {
            options: Arc::new(OpenAiOptions::of(&route, config)),
            route: Arc::new(route),
            context_window: config.context_window,
            default_max_tokens: config.default_max_tokens,
            retry: config.retry.clone(),
        })
    }
}

#[async_trait]
impl ModelAdapter for OpenAiAdapter {
    async fn prepare(&self, request: PrepareRequest, signal: Signal) -> Result<Prepared, Failure> {
        self.route.check(&request)?;
        let admitted = self.route.admit(&signal).await?;
        let mut config = request.config;
        let mut defaulted = Vec::new();
        if let (None, Some(max_tokens)) = (config.max_tokens, self.default_max_tokens) {
            config.max_tokens = Some(max_tokens);
            defaulted.push("max_tokens".to_owned());
        }
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
    options: Arc<OpenAiOptions>,
    admitted: Admitted,
}

impl Dispatch for Call {
    fn dispatch(self: Box<Self>, request: ModelRequest, signal: Signal) -> ChunkStream {
        let Self { route, options, admitted: Admitted { secret, permit } } = *self;
        let body = options.body(&request);
        let built = match secret.as_ref().map(|secret| secret.header("Bearer ")).transpose() {
            Ok(key) => {
                let headers = key.into_iter().map(|key| ("authorization", key)).collect();
                route.post("chat/completions", headers, &body, secret.as_ref())
            }
            Err(failure) => Err(failure),
        };
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
