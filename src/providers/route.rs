//! What the adapters over HTTP have in common: settings, checks before any request, account, headers.

use super::{
    client::client,
    config::ProviderConfig,
    exchange::Clocks,
    gate::{Gate, Permit},
    secret::{Secret, SecretSource, scrub},
};
use everturn_actors::ports::{PrepareRequest, Signal};
use everturn_storage::message::{Failure, code};
use reqwest::{
    Client, Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, Mutex, PoisonError, Weak},
    time::Duration,
};

/// Who pays: the address and where the key is.
type Account = (String, SecretSource);

/// The gates of all accounts in use. An account is a thing of the world: two providers that name the same one share
/// its gate, and so do two generations of one provider.
static GATES: LazyLock<Mutex<BTreeMap<Account, Weak<Gate>>>> = LazyLock::new(Mutex::default);

fn gate_of(account: Account) -> Arc<Gate> {
    let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
    gates.retain(|_, gate| gate.strong_count() > 0);
    if let Some(gate) = gates.get(&account).and_then(Weak::upgrade) {
        return gate;
    }
    let gate = Gate::new();
    gates.insert(account, Arc::downgrade(&gate));
    gate
}

/// One route to one provider.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) name: String,
    pub(super) client: Client,
    pub(super) clocks: Clocks,
    pub(super) input_modalities: Option<Vec<String>>,
    pub(super) headers: HeaderMap,
    base_url: Url,
    secret: SecretSource,
    gate: Arc<Gate>,
    max_concurrent: usize,
    reasoning_efforts: Option<Vec<String>>,
}

/// A key and a place: what a request needs.
pub(super) struct Admitted {
    pub(super) secret: Option<Secret>,
    pub(super) permit: Permit,
}

impl Route {
    /// Errors are sentences that say what to change.
    pub(super) fn new(name: &str, config: &ProviderConfig, resolve: &dyn Fn(&Path) -> PathBuf) -> Result<Self, String> {
        if config.file.is_some() {
            return Err("`file` belongs to kind = \"script\"; remove it".to_owned());
        }
        let base_url = base_url(config.base_url.as_deref())?;
        let secret = match (&config.api_key_env, &config.api_key_file) {
            (Some(_), Some(_)) => return Err("api_key_env and api_key_file are both set; remove one".to_owned()),
            (Some(name), None) => SecretSource::Env(name.clone()),
            (None, Some(path)) => SecretSource::File(resolve(path)),
            (None, None) => SecretSource::None,
        };
        let ca_file = config.ca_file.as_deref().map(resolve);
        if config.max_concurrent == Some(0) {
            return Err("max_concurrent = 0 would let no request out; use 1 or more".to_owned());
        }
        Ok(Self {
            name: name.to_owned(),
            client: client(&base_url, config.connect_timeout_ms, ca_file.as_deref())?,
            clocks: Clocks {
                total: config.total_timeout_ms.map(Duration::from_millis),
                idle: config.idle_timeout_ms.map(Duration::from_millis),
            },
            input_modalities: config.input_modalities.clone(),
            headers: headers(&config.headers)?,
            gate: gate_of((base_url.to_string(), secret.clone())),
            base_url,
            secret,
            max_concurrent: config.max_concurrent.unwrap_or(usize::MAX),
            reasoning_efforts: config.reasoning_efforts.clone(),
        })
    }

    /// The host that requests go to.
    pub(super) fn host(&self) -> &str {
        self.base_url.host_str().unwrap_or_default()
    }

    /// Whether the route reads images, as far as is known.
    pub(super) fn images(&self) -> bool {
        self.input_modalities.as_ref().is_none_or(|known| known.iter().any(|modality| modality == "image"))
    }

    /// What can be refused before any request (L-1).
    pub(super) fn check(&self, request: &PrepareRequest) -> Result<(), Failure> {
        let config = &request.config;
        if config.model.trim().is_empty() {
            return Err(Failure::new(code::INVALID_MODEL, "no model is named; set `model` for the agent"));
        }
        if let Some(known) = &self.input_modalities
            && let Some(foreign) = request.modalities.iter().find(|modality| !known.contains(modality))
        {
            let why = format!(
                "{} takes {} and the request holds {foreign}; send it without, or choose another provider",
                self.name,
                known.join(", ")
            );
            return Err(Failure::new(code::UNSUPPORTED_CONTENT, why));
        }
        if let (Some(known), Some(effort)) = (&self.reasoning_efforts, &config.reasoning_effort)
            && !known.contains(effort)
        {
            return Err(no_effort(&self.name, effort, &known.join(", ")));
        }
        if config.temperature.is_some_and(|temperature| !temperature.is_finite()) {
            return Err(Failure::new(code::INVALID_REQUEST_PROPOSAL, "the temperature is no number; set another"));
        }
        Ok(())
    }

    /// Reads the key and waits for a place; both end with the signal.
    pub(super) async fn admit(&self, signal: &Signal) -> Result<Admitted, Failure> {
        let admitted = async {
            let secret = self.secret.read().await?;
            let permit = self.gate.enter(self.max_concurrent).await;
            Ok(Admitted { secret, permit })
        };
        tokio::select! {
            biased;
            () = signal.wait() => Err(Failure::new(code::ABORTED, "the turn was cancelled")),
            admitted = admitted => admitted,
        }
    }

    /// A request to `path` with the headers of the route and those of the adapter.
    pub(super) fn post(
        &self,
        path: &str,
        headers: Vec<(&'static str, HeaderValue)>,
        body: &Value,
        secret: Option<&Secret>,
    ) -> Result<reqwest::Request, Failure> {
        let mut url = self.base_url.clone();
        url.set_path(&format!("{}/{path}", self.base_url.path().trim_end_matches('/')));
        let mut request = self.client.post(url).header("accept", "text/event-stream").headers(self.headers.clone());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request.json(body).build().map_err(|error| {
            let mut failure = super::client::transport_failure(&error);
            scrub(secret, &mut failure);
            failure
        })
    }
}

/// L-1: an effort is refused, never rounded.
pub(super) fn no_effort(provider: &str, effort: &str, known: &str) -> Failure {
    Failure::new(
        code::UNSUPPORTED_REASONING_EFFORT,
        format!("{provider} does not know the reasoning effort {effort:?}; use one of: {known}"),
    )
}

fn base_url(text: Option<&str>) -> Result<Url, String> {
    let Some(text) = text else {
        return Err("base_url is missing; set it, /v1 included".to_owned());
    };
    let url = Url::parse(text).map_err(|error| format!("base_url is no address ({error}); correct it"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("base_url must begin with http:// or https:// and name a host; correct it".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("base_url holds a password; remove it and use api_key_env or api_key_file".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("base_url ends in ? or #, where no path can follow; remove that part".to_owned());
    }
    Ok(url)
}

fn headers(pairs: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let mut out = HeaderMap::new();
    for (name, value) in pairs {
        if ["authorization", "x-api-key", "api-key", "cookie", "proxy-authorization"]
            .iter()
            .any(|secret| name.eq_ignore_ascii_case(secret))
        {
            return Err(format!("headers.{name} would put a secret into the file; use api_key_env or api_key_file"));
        }
        let wrong = |what: &str| format!("headers.{name} has {what} that HTTP does not allow; correct it");
        let value = HeaderValue::from_str(value).map_err(|_| wrong("a value"))?;
        out.insert(HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong("a name"))?, value);
    }
    Ok(out)
}
