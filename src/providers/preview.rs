//! What an adapter would send, and what it would make of an answer, without asking anybody.

use super::{
    anthropic::AnthropicOptions, config::ProviderConfig, exchange::replay, openai::OpenAiOptions, route::Route,
};
use everturn_storage::{chunk::Chunk, log::request::ModelRequest, message::Failure};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The mappings of one provider, from a request of the log to a body on the wire and from bytes to chunks. Pure.
#[derive(Debug, Clone)]
pub struct Preview(Mapping);

#[derive(Debug, Clone)]
enum Mapping {
    OpenAi(OpenAiOptions),
    Anthropic(AnthropicOptions),
}

impl Preview {
    /// The mapping of a provider of kind `openai` or `anthropic`. An error is a sentence that says what to change.
    pub fn new(name: &str, config: &ProviderConfig, resolve: &dyn Fn(&Path) -> PathBuf) -> Result<Self, String> {
        let route = Route::new(name, config, resolve)?;
        match config.kind.as_str() {
            "openai" => Ok(Self(Mapping::OpenAi(OpenAiOptions::of(&route, config)))),
            "anthropic" => Ok(Self(Mapping::Anthropic(AnthropicOptions::of(&route, config)))),
            other => Err(format!("kind = {other:?} sends nothing; use \"openai\" or \"anthropic\"")),
        }
    }

    /// The body for `request`. A reasoning effort that the route cannot ask for is refused (L-1).
    pub fn body(&self, request: &ModelRequest) -> Result<Value, Failure> {
        match &self.0 {
            Mapping::OpenAi(options) => Ok(options.body(request)),
            Mapping::Anthropic(options) => options.body(request),
        }
    }
    /// The chunks of a recorded answer to `request`, whole or cut.
    pub fn chunks(&self, request: &ModelRequest, answer: &[u8]) -> Vec<Chunk> {
        match &self.0 {
            Mapping::OpenAi(options) => replay(&mut options.mapper(request), answer),
            Mapping::Anthropic(options) => replay(&mut options.mapper(request), answer),
        }
    }
}
