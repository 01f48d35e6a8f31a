//! The HTTP interface from the other side.

use super::{
    Context,
    error::{CliError, exit},
};
use crate::daemon::Address;
use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::Value;
use std::{path::Path, sync::Arc, time::Duration};

/// How long the daemon may take to accept a connection on this machine.
const CONNECT_WAIT: Duration = Duration::from_secs(2);

/// What was in a line of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StreamEvent {
    pub(super) name: String,
    pub(super) id: Option<u64>,
    pub(super) data: String,
}

/// A daemon that answered.
#[derive(Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    base: String,
    token: Option<Arc<str>>,
}

impl Client {
    /// The daemon of this data directory, when one answers.
    pub(super) async fn find(data_dir: &Path, token: Option<Arc<str>>) -> Result<Option<Self>, CliError> {
        let Some(address) = Address::read(data_dir) else { return Ok(None) };
        let client = Self::at(address.url, token)?;
        match client.request(Method::GET, "/v1/health").timeout(CONNECT_WAIT).send().await {
            Ok(_) => Ok(Some(client)),
            // The file of a daemon that died.
            Err(_) => Ok(None),
        }
    }

    /// The daemon at that address.
    pub(super) fn at(base: String, token: Option<Arc<str>>) -> Result<Self, CliError> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(CONNECT_WAIT)
            .build()
            .map_err(|error| CliError::internal(format!("the HTTP client cannot be made ({error})")))?;
        Ok(Self { http, base, token })
    }

    /// The daemon that must be there.
    pub(super) async fn must(context: &Context) -> Result<Self, CliError> {
        let loaded = context.load()?;
        let data_dir = context.data_dir(&loaded)?;
        Self::find(&data_dir, context.token(&loaded)?).await?.ok_or_else(|| {
            CliError::new(
                exit::INTERNAL,
                "NO_DAEMON",
                format!("no daemon runs on {}; start one with everturn serve", data_dir.display()),
            )
        })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn answer(&self, request: RequestBuilder) -> Result<Value, CliError> {
        let response = checked(request.send().await.map_err(|error| gone(&error))?).await?;
        let bytes = response.bytes().await.map_err(|error| gone(&error))?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes)
            .map_err(|error| CliError::internal(format!("the daemon's answer cannot be read ({error})")))
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value, CliError> {
        self.answer(self.request(Method::GET, path)).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.answer(self.request(Method::POST, path).json(body)).await
    }

    pub(super) async fn delete(&self, path: &str) -> Result<Value, CliError> {
        self.answer(self.request(Method::DELETE, path)).await
    }

    /// The stream of a session, behind the event `last` or from the next one.
    pub(super) async fn stream(&self, session: &str, last: Option<u64>) -> Result<EventStream, CliError> {
        let mut request = self.request(Method::GET, &format!("/v1/sessions/{session}/stream"));
        if let Some(last) = last {
            request = request.header("last-event-id", last.to_string());
        }
        let response = checked(request.send().await.map_err(|error| gone(&error))?).await?;
        Ok(EventStream { bytes: response.bytes_stream().boxed(), buffer: Vec::new() })
    }
}

async fn checked(response: Response) -> Result<Response, CliError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body: Value = response.json().await.unwrap_or_default();
    let text = |field: &str| body["error"][field].as_str().map(str::to_owned);
    let code = text("code").unwrap_or_else(|| "INTERNAL".to_owned());
    let message = text("message").unwrap_or_else(|| format!("the daemon answered with status {status}"));
    Err(CliError::api(status.as_u16(), &code, &message))
}

fn gone(error: &reqwest::Error) -> CliError {
    let why = if error.is_connect() { "it cannot be reached" } else { "the connection was lost" };
    CliError::new(
        exit::INTERNAL,
        "NO_DAEMON",
        format!("the daemon did not answer ({why}); what was acknowledged is kept, look again once it runs"),
    )
}

/// A stream of events as it comes.
pub(super) struct EventStream {
    bytes: BoxStream<'static, reqwest::Result<Bytes>>,
    buffer: Vec<u8>,
}

impl EventStream {
    /// The next event; `None` when the daemon ended the stream or went away. Dropping a call loses nothing.
    pub(super) async fn next(&mut self) -> Option<StreamEvent> {
        loop {
            while let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
                if let Some(event) = parse(&String::from_utf8_lossy(&block)) {
                    return Some(event);
                }
            }
            self.buffer.extend_from_slice(&self.bytes.next().await?.ok()?);
        }
    }
}

/// One block of our own daemon's stream: no line of data is ever broken.
fn parse(block: &str) -> Option<StreamEvent> {
    let field = |name: &str| {
        block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(|value| value.trim_start())
    };
    let data = field("data")?.to_owned();
    let name = field("event").unwrap_or("message").to_owned();
    Some(StreamEvent { name, id: field("id").and_then(|id| id.parse().ok()), data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_parsed_and_comments_are_not() {
        let event = parse("event: turn/end\nid: 7\ndata: {\"a\":1}\n\n").unwrap();
        assert_eq!(event, StreamEvent { name: "turn/end".into(), id: Some(7), data: "{\"a\":1}".into() });
        assert_eq!(parse(": keep-alive\n\n"), None);
    }
}
