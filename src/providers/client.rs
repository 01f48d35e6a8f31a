//! The HTTP client of a route.

use super::limits::CONNECT_TIMEOUT_MS;
use everturn_storage::message::{Failure, code};
use reqwest::{Certificate, Client, redirect::Policy};
use std::{error::Error, path::Path, time::Duration};
use url::{Host, Url};

/// A client with the cryptography of this program. Proxies come from the environment, but never for a server on
/// this machine, which a proxy elsewhere would look for on its own.
///
/// Redirects are not followed: a moved address is a mistake in the configuration, and following it would carry the
/// request somewhere else.
pub(super) fn client(
    base_url: &Url,
    connect_timeout_ms: Option<u64>,
    ca_file: Option<&Path>,
) -> Result<Client, String> {
    crate::embed::install_tls();
    let connect_timeout = Duration::from_millis(connect_timeout_ms.unwrap_or(CONNECT_TIMEOUT_MS));
    let mut builder = Client::builder()
        .redirect(Policy::none())
        .connect_timeout(connect_timeout)
        .tcp_nodelay(true)
        .user_agent(concat!("everturn/", env!("CARGO_PKG_VERSION")));
    let local = match base_url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    if local {
        builder = builder.no_proxy();
    }
    if let Some(path) = ca_file {
        let place = path.display();
        let pem =
            std::fs::read(path).map_err(|error| format!("ca_file {place} cannot be read ({error}); correct it"))?;
        let certificates = Certificate::from_pem_bundle(&pem)
            .map_err(|error| format!("ca_file {place} holds no certificates in PEM form ({error}); correct it"))?;
        if certificates.is_empty() {
            return Err(format!("ca_file {place} holds no certificate in PEM form; correct it"));
        }
        builder = builder.tls_certs_merge(certificates);
    }
    builder
        .build()
        .map_err(|error| format!("no HTTP client can be made ({}); check ca_file and the proxies", chain(&error)))
}

/// What went wrong on the way to the provider or back.
pub(super) fn transport_failure(error: &reqwest::Error) -> Failure {
    let (code, what) = if error.is_timeout() {
        (code::TIMEOUT, "the provider cannot be reached in time")
    } else if error.is_builder() {
        (code::INVALID_REQUEST, "the request cannot be made")
    } else if error.is_connect() {
        (code::TRANSPORT, "the provider cannot be reached")
    } else {
        (code::TRANSPORT, "the connection to the provider broke")
    };
    Failure::new(code, format!("{what}: {}", chain(error)))
}

/// An error with its causes, without the address: it may hold what is nobody's business.
fn chain(error: &reqwest::Error) -> String {
    let mut out = String::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Many errors repeat the one below.
        if !out.ends_with(&text) {
            if !out.is_empty() {
                out.push_str(": ");
            }
            out.push_str(&text);
        }
        cause = error.source();
    }
    if out.is_empty() { "no reason given".to_owned() } else { out }
}
