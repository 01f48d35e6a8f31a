//! What the adapters of the real providers would send for the requests of the simulation, judged by strict servers.

use super::judge::{Broken, Verdict};
use crate::strict::{refuse_anthropic, refuse_openai};
use everturn::{
    providers::{Preview, ProviderConfig, Quirks},
    storage::log::request::ModelRequest,
};
use serde_json::Value;
use std::path::Path;

/// The mappings that are tried on each request.
pub(crate) struct Wire {
    openai: [Preview; 2],
    anthropic: Preview,
    /// Requests so far.
    pub(crate) requests: u64,
    /// The longest history so far.
    pub(crate) longest: usize,
}

fn preview(kind: &str, quirks: Quirks) -> Preview {
    let base_url = Some("http://127.0.0.1:1/v1".to_owned());
    let config = ProviderConfig { kind: kind.to_owned(), base_url, quirks, ..ProviderConfig::default() };
    Preview::new("script", &config, &Path::to_path_buf).unwrap()
}

thread_local! {
    // Making one takes a client of HTTP, which nobody asks anything.
    static MADE: ([Preview; 2], Preview) = {
        let picky = Quirks { short_call_ids: true, bridge_user_after_tool: true, ..Quirks::default() };
        ([preview("openai", Quirks::default()), preview("openai", picky)], preview("anthropic", Quirks::default()))
    };
}

impl Wire {
    pub(crate) fn new() -> Self {
        let (openai, anthropic) = MADE.with(Clone::clone);
        Self { openai, anthropic, requests: 0, longest: 0 }
    }

    /// The request of one attempt.
    pub(crate) fn sent(&mut self, request: &ModelRequest) -> Verdict {
        self.requests += 1;
        self.longest = self.longest.max(request.messages.len());
        let broken = |kind: &str, why: String, body: &Value| {
            Broken::new("BR-052", format!("a strict {kind} server refuses a request: {why}\n{body}"))
        };
        for mapping in &self.openai {
            let body = mapping.body(request).map_err(|failure| Broken::new("5.3", failure.message))?;
            let messages = body["messages"].as_array().unwrap();
            refuse_openai(messages).map_err(|why| broken("openai", why, &body))?;
            if messages.last().is_some_and(|last| last["role"] == "assistant") {
                return Err(broken("openai", "nobody has asked anything".to_owned(), &body));
            }
        }
        let body = self.anthropic.body(request).map_err(|failure| Broken::new("5.3", failure.message))?;
        refuse_anthropic(&body).map_err(|why| broken("anthropic", why, &body))
    }
}
