//! The world outside: a model server and a web server on loopback that remember what was asked of them, judge every
//! request by the strictest rules that providers have, and can hold an answer until the test lets it go.

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, State},
    response::Response,
    routing::{get, post},
};
use futures::StreamExt;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};
use tokio::sync::watch;

/// What the outside saw.
#[derive(Default)]
struct Seen {
    /// How many requests the model got.
    requests: usize,
    /// What was wrong with them.
    complaints: Vec<String>,
    /// How often each page was fetched: each fetch is the outside effect of one tool body.
    fetched: BTreeMap<String, u32>,
}

/// A running world. Dropping it stops its servers.
pub(crate) struct World {
    pub(crate) address: std::net::SocketAddr,
    seen: Arc<Mutex<Seen>>,
    held: watch::Sender<bool>,
    progress: watch::Receiver<u64>,
    _server: tokio::task::JoinHandle<()>,
}

#[derive(Clone)]
struct Shared {
    /// Where the pages are.
    host: String,
    seen: Arc<Mutex<Seen>>,
    held: watch::Receiver<bool>,
    progress: watch::Sender<u64>,
}

impl World {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Seen>>::default();
        let (held, held_rx) = watch::channel(false);
        let (progress_tx, progress) = watch::channel(0);
        let shared =
            Shared { host: address.to_string(), seen: Arc::clone(&seen), held: held_rx, progress: progress_tx };
        let app = Router::new()
            .route("/v1/chat/completions", post(complete))
            .route("/page/{name}", get(page))
            .with_state(shared);
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, seen, held, progress, _server: server }
    }

    /// From now on held answers stop in the middle until [`World::release`].
    pub(crate) fn hold(&self) {
        self.held.send_replace(true);
    }

    pub(crate) fn release(&self) {
        self.held.send_replace(false);
    }

    /// Ends when something is held now that was not when `since` was read.
    pub(crate) async fn held_since(&mut self, since: u64) {
        self.progress.wait_for(|count| *count > since).await.unwrap();
    }

    pub(crate) fn held_count(&self) -> u64 {
        *self.progress.borrow()
    }

    pub(crate) fn complaints(&self) -> Vec<String> {
        self.seen.lock().unwrap().complaints.clone()
    }

    pub(crate) fn fetched(&self) -> BTreeMap<String, u32> {
        self.seen.lock().unwrap().fetched.clone()
    }
}

/// What the last user said decides the answer: `page NAME` fetches that page with a tool, `hold …` stops after the
/// first words, anything else is answered at once.
async fn complete(State(shared): State<Shared>, body: Bytes) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let complaint = judge(&request);
    let messages = request["messages"].as_array().cloned().unwrap_or_default();
    {
        let mut seen = shared.seen.lock().unwrap();
        seen.requests += 1;
        if let Some(complaint) = complaint {
            seen.complaints.push(complaint.clone());
            return plain(400, &json!({"error": {"message": complaint, "type": "invalid_request_error"}}).to_string());
        }
    }
    let last = messages.last().cloned().unwrap_or_default();
    let text = text_of(&last["content"]);
    let chunks = match (last["role"].as_str(), text.strip_prefix("page ")) {
        (Some("user"), Some(name)) => call(&shared, name),
        (Some("tool"), _) => said(&["The page says: ", &text]),
        _ => said(&["You said ", &text]),
    };
    stream(shared, chunks, text.starts_with("hold"))
}

fn call(shared: &Shared, name: &str) -> Vec<String> {
    let count = shared.seen.lock().unwrap().requests;
    let arguments = json!({"url": format!("http://{}/page/{name}", shared.host)}).to_string();
    let call = json!({"index": 0, "id": format!("call_{count}"), "type": "function",
        "function": {"name": "fetch", "arguments": arguments}});
    vec![
        json!({"choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}, "finish_reason": null}]})
            .to_string(),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}).to_string(),
    ]
}

fn said(parts: &[&str]) -> Vec<String> {
    let mut out: Vec<String> = parts
        .iter()
        .map(|part| json!({"choices": [{"index": 0, "delta": {"content": part}, "finish_reason": null}]}).to_string())
        .collect();
    out.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}).to_string());
    out
}

/// Sends the chunks; a held answer stops behind the first one until it is released.
fn stream(shared: Shared, chunks: Vec<String>, may_hold: bool) -> Response {
    let chunks = chunks.into_iter().chain(["[DONE]".to_owned()]).enumerate();
    let body = futures::stream::iter(chunks).then(move |(index, chunk)| {
        let mut shared = shared.clone();
        async move {
            if may_hold && index == 1 {
                pass(&mut shared).await;
            }
            Ok::<_, std::convert::Infallible>(Bytes::from(format!("data: {chunk}\n\n")))
        }
    });
    Response::builder().header("content-type", "text/event-stream").body(Body::from_stream(body)).unwrap()
}

async fn page(State(mut shared): State<Shared>, Path(name): Path<String>) -> String {
    *shared.seen.lock().unwrap().fetched.entry(name.clone()).or_default() += 1;
    if name.starts_with("hold") {
        pass(&mut shared).await;
    }
    format!("page {name}")
}

/// Waits while answers are held, and says so.
async fn pass(shared: &mut Shared) {
    if *shared.held.borrow() {
        shared.progress.send_modify(|count| *count += 1);
    }
    // The world may be gone; then nobody waits for the answer.
    let _ = shared.held.wait_for(|held| !held).await;
}

fn plain(status: u16, body: &str) -> Response {
    Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(Body::from(body.to_owned()))
        .unwrap()
}

fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    }
}

/// The strictest reading of what a provider accepts: every call is answered once, directly behind its message, in
/// order; nothing else is answered; no assistant message is empty; the last word is not the assistant's.
fn judge(request: &Value) -> Option<String> {
    let messages = request["messages"].as_array()?;
    let mut owed: Vec<String> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        if role != "tool" && !owed.is_empty() {
            return Some(format!("message {at}: calls {owed:?} have no result"));
        }
        match role {
            "system" | "user" => {}
            "assistant" => {
                let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
                owed = calls.iter().map(|call| call["id"].as_str().unwrap_or_default().to_owned()).collect();
                for call in &calls {
                    let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
                    if !serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object()) {
                        return Some(format!("message {at}: arguments are no object: {arguments}"));
                    }
                }
                if calls.is_empty() && text_of(&message["content"]).is_empty() {
                    return Some(format!("message {at}: an assistant that says nothing"));
                }
            }
            "tool" => {
                let id = message["tool_call_id"].as_str().unwrap_or_default();
                if owed.first().map(String::as_str) != Some(id) {
                    return Some(format!("message {at}: a result for {id:?}, but {owed:?} are owed"));
                }
                owed.remove(0);
            }
            other => return Some(format!("message {at}: no role is called {other:?}")),
        }
    }
    match messages.last().and_then(|message| message["role"].as_str()) {
        Some("user" | "tool") if owed.is_empty() => None,
        other => Some(format!("the last message is from {other:?}, calls owed: {owed:?}")),
    }
}
