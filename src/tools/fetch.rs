//! `fetch`: HTTP GET of one address.

mod address;
mod body;

use super::FetchConfig;
use address::{Allowed, PublicOnly, Refused};
use async_trait::async_trait;
use body::Body;
use everturn_actors::ports::{
    Tool, ToolContext, ToolOutput,
    tool::{Idempotency, ToolFailure},
};
use everturn_storage::{RawJson, event::ToolSpec, message::Block};
use futures::StreamExt;
use reqwest::{Client, Response, StatusCode, header, redirect};
use serde_json::{Value, json};
use std::{error::Error, sync::OnceLock};
use url::Url;

/// Most redirects of one fetch. Sites need two or three; more is a loop.
const REDIRECTS_MAX: usize = 5;

/// HTTP GET; the body as text, with status, type and size in `meta`. A status of 400 and above is an error result.
///
/// Addresses outside the public internet are refused unless the configuration names their host and port, and so is
/// every redirect to one. Proxies of the environment are not used: a proxy would resolve the name where nothing can
/// be checked. The signal ends a fetch at any moment; a repeat is safe.
#[derive(Debug)]
pub struct Fetch {
    spec: ToolSpec,
    allowed: Allowed,
    timeout_ms: u64,
    max_bytes: usize,
    /// Made at the first use: a machine without root certificates can still use everything else.
    clients: OnceLock<Result<Clients, String>>,
}

#[derive(Debug)]
struct Clients {
    /// Resolves public addresses only.
    public: Client,
    /// For what the configuration opens.
    open: Client,
}

impl Fetch {
    /// The tool; an error is a sentence about the entry of `allow` that cannot be read.
    pub fn new(config: &FetchConfig) -> Result<Self, String> {
        let schema = json!({
            "type": "object",
            "properties": {"url": {"type": "string", "description": "An http or https address."}},
            "required": ["url"],
            "additionalProperties": false,
        });
        let description = "Fetches a web address with HTTP GET and returns the body as text.";
        Ok(Self {
            spec: super::spec("fetch", description, &schema),
            allowed: Allowed::parse(&config.allow)?,
            timeout_ms: config.timeout_ms,
            max_bytes: usize::try_from(config.max_bytes).unwrap_or(usize::MAX),
            clients: OnceLock::new(),
        })
    }

    fn clients(&self) -> Result<&Clients, ToolFailure> {
        let made = self.clients.get_or_init(|| {
            // Another part of the program may have installed it already, which is as good.
            drop(rustls::crypto::ring::default_provider().install_default());
            let builder = || {
                Client::builder()
                    .no_proxy()
                    .referer(false)
                    .redirect(redirect::Policy::none())
                    .user_agent(concat!("everturn/", env!("CARGO_PKG_VERSION")))
            };
            let public = builder().dns_resolver(PublicOnly).build().map_err(|error| causes(&error))?;
            let open = builder().build().map_err(|error| causes(&error))?;
            Ok(Clients { public, open })
        });
        made.as_ref().map_err(|why| failure("FETCH_FAILED", format!("The HTTP client cannot be made: {why}")))
    }

    async fn get(&self, address: &str) -> Result<ToolOutput, ToolFailure> {
        let mut url = Url::parse(address)
            .map_err(|error| failure("FETCH_URL", format!("{address:?} is no web address: {error}")))?;
        for _ in 0..=REDIRECTS_MAX {
            let response = self.hop(&url).await?;
            match moved(&response, &url)? {
                Some(next) => url = next,
                None => return self.read(response, &url).await,
            }
        }
        Err(failure("FETCH_FAILED", format!("The address redirects more than {REDIRECTS_MAX} times.")))
    }

    /// One request, to an address that was just checked.
    async fn hop(&self, url: &Url) -> Result<Response, ToolFailure> {
        let opened = self.allowed.check(url).map_err(|why| refused(&why))?;
        let clients = self.clients()?;
        let client = if opened { &clients.open } else { &clients.public };
        let sent = client.get(url.clone()).header(header::ACCEPT, "text/*, application/json, */*;q=0.5").send().await;
        sent.map_err(|error| match refusal(&error) {
            Some(why) => refused(why),
            None => failure("FETCH_FAILED", format!("The fetch failed: {}.", causes(&error.without_url()))),
        })
    }

    async fn read(&self, response: Response, url: &Url) -> Result<ToolOutput, ToolFailure> {
        let status = response.status();
        let content_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.map(str::to_owned);
        let body = bounded(response, self.max_bytes).await?;
        let text = body::readable(&body, content_type.as_deref());
        let meta = json!({
            "status": status.as_u16(),
            "type": content_type.as_deref().map(|content_type| body::split(content_type).0),
            "size": body.bytes.len(),
            "cut": body.cut,
            "url": url.as_str(),
        });
        let meta = Some(RawJson::from_value(&meta));
        if status.is_client_error() || status.is_server_error() || status.as_u16() >= 600 {
            let code = Some("FETCH_STATUS".to_owned());
            return Err(ToolFailure { code, content: vec![Block::text(format!("HTTP {status}\n\n{text}"))], meta });
        }
        Ok(ToolOutput { content: vec![Block::text(text)], meta })
    }
}

#[async_trait]
impl Tool for Fetch {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn parallel_safe(&self, _: &Value) -> bool {
        true
    }

    fn timeout_ms(&self) -> Option<u64> {
        Some(self.timeout_ms)
    }

    /// A look-up in the system's resolver cannot be stopped; it may be left to itself.
    fn abandonable(&self) -> bool {
        true
    }

    fn idempotency(&self) -> Idempotency {
        Idempotency::Safe
    }

    async fn run(&self, args: Value, ctx: ToolContext) -> Result<ToolOutput, ToolFailure> {
        let address = args.get("url").and_then(Value::as_str).unwrap_or_default();
        tokio::select! {
            biased;
            () = ctx.signal.wait() => Err(failure("FETCH_FAILED", "The fetch was stopped.")),
            got = self.get(address) => got,
        }
    }
}

/// Where a redirect leads; nothing for every other answer.
fn moved(response: &Response, url: &Url) -> Result<Option<Url>, ToolFailure> {
    let moves = [
        StatusCode::MOVED_PERMANENTLY,
        StatusCode::FOUND,
        StatusCode::SEE_OTHER,
        StatusCode::TEMPORARY_REDIRECT,
        StatusCode::PERMANENT_REDIRECT,
    ];
    let Some(to) = response.headers().get(header::LOCATION).filter(|_| moves.contains(&response.status())) else {
        return Ok(None);
    };
    let to = String::from_utf8_lossy(to.as_bytes());
    let next = url.join(&to);
    next.map(Some).map_err(|error| failure("FETCH_FAILED", format!("The redirect to {to:?} leads nowhere: {error}.")))
}

/// Reads a body up to `max_bytes`; the connection is dropped there.
async fn bounded(response: Response, max_bytes: usize) -> Result<Body, ToolFailure> {
    let mut body = Body { bytes: Vec::new(), cut: false };
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| {
            failure("FETCH_FAILED", format!("The answer broke off: {}.", causes(&error.without_url())))
        })?;
        let room = max_bytes - body.bytes.len();
        body.bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            body.cut = true;
            break;
        }
    }
    Ok(body)
}

fn failure(code: &str, text: impl Into<String>) -> ToolFailure {
    ToolFailure { code: Some(code.to_owned()), ..ToolFailure::text(text) }
}

fn refused(why: &Refused) -> ToolFailure {
    failure("FETCH_REFUSED", format!("The address was not asked: {why}."))
}

/// The refusal of [`PublicOnly`] inside an error of the client.
fn refusal(error: &reqwest::Error) -> Option<&Refused> {
    std::iter::successors(error.source(), |&error| error.source()).find_map(|error| error.downcast_ref())
}

/// An error with what caused it. The address is left out: it may hold a secret.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |&error| error.source()) {
        text.push_str(": ");
        text.push_str(&cause.to_string());
    }
    text
}

#[cfg(test)]
pub(super) mod tests;
