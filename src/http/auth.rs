//! Who may ask: a bearer token where one is set, otherwise only this machine and no foreign web page.

use super::{App, errors::ApiError};
use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::{net::IpAddr, sync::Arc};

/// Refuses a request that may not be answered. `/v1/health` is always answered to the right host.
pub(super) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let refused = match &app.token {
        Some(_) if request.uri().path() == "/v1/health" => None,
        Some(token) if bearer(request.headers()).is_some_and(|given| equal(given.as_bytes(), token.as_bytes())) => None,
        Some(_) => Some(ApiError::new(
            StatusCode::UNAUTHORIZED,
            "UNAUTHORIZED",
            "a token is needed; send it as Authorization: Bearer TOKEN",
        )),
        None => foreign(request.headers()),
    };
    match refused {
        Some(error) => error.into_response(),
        None => next.run(request).await,
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Compares in a time that does not tell where the difference is.
fn equal(given: &[u8], wanted: &[u8]) -> bool {
    let differences = given.iter().zip(wanted).fold(0_u8, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
    given.len() == wanted.len() && differences == 0
}

/// DNS rebinding: without a token the name in `Host` must be this machine's, and no foreign page may ask.
fn foreign(headers: &HeaderMap) -> Option<ApiError> {
    let refuse = |message| Some(ApiError::new(StatusCode::FORBIDDEN, "FORBIDDEN", message));
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    if !host.is_some_and(is_loopback) {
        return refuse("without a token only loopback names are answered; use 127.0.0.1 or localhost, or set a token");
    }
    let cross_site = headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site");
    let origin_foreign = headers.get(header::ORIGIN).is_some_and(|origin| {
        let place = origin.to_str().ok().and_then(|text| text.split_once("://"));
        !place.is_some_and(|(_, host)| is_loopback(host))
    });
    if cross_site || origin_foreign {
        return refuse("a page of another site may not ask without a token; set one and send it");
    }
    None
}

/// Whether `host[:port]` is a loopback name.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inside, _)) => inside,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_names_are_told_from_others() {
        for yes in ["localhost", "LOCALHOST:7717", "127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:80"] {
            assert!(is_loopback(yes), "{yes}");
        }
        for no in ["evil.example", "localhost.evil.example:80", "10.0.0.1", "[::2]", "", "127.0.0.1.evil.example"] {
            assert!(!is_loopback(no), "{no}");
        }
    }

    #[test]
    fn tokens_are_compared_whole() {
        assert!(equal(b"abc", b"abc"));
        for other in [&b"abd"[..], b"ab", b"abcd", b""] {
            assert!(!equal(other, b"abc"));
        }
    }
}
