//! What is sent, and answers of every kind.

use crate::{
    server::Server,
    world::{ANTHROPIC, OPENAI, adapter, ask, asks, config, prepare},
};
use everturn::{actors::ports::Signal, providers::ProviderConfig, storage::message::code};
use serde_json::json;

fn with_key(kind: &str, url: &str, key: &str) -> (ProviderConfig, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    std::fs::write(&path, key).unwrap();
    (ProviderConfig { api_key_file: Some(path), ..config(kind, url) }, dir)
}

/// SURFACE 7: `base_url` includes `/v1`, a slash at its end does not matter; key and headers are where they belong.
#[tokio::test]
async fn openai_requests() {
    let server = Server::events(OPENAI).await;
    for end in ["", "/"] {
        let (mut config, _dir) = with_key("openai", &format!("{}{end}", server.url), "sk-12345\n");
        config.headers.insert("HTTP-Referer".into(), "https://example.org".into());
        assert_eq!(ask(adapter(&config).as_ref()).await.unwrap(), "hello");
    }
    let asked = server.asked.lock().unwrap();
    for asked in asked.iter() {
        assert_eq!(asked.path, "/v1/chat/completions");
        let header = |name: &str| asked.headers.get(name).map(String::as_str);
        assert_eq!(header("authorization"), Some("Bearer sk-12345"));
        assert_eq!(header("http-referer"), Some("https://example.org"));
        assert_eq!((header("accept"), header("content-type")), (Some("text/event-stream"), Some("application/json")));
        assert_eq!(
            asked.body,
            json!({
                "model": "m",
                "messages": [{"role": "user", "content": "hello"}],
                "stream": true,
                "stream_options": {"include_usage": true},
            })
        );
    }
    assert_eq!(asked.len(), 2);
}

#[tokio::test]
async fn anthropic_requests() {
    let server = Server::events(ANTHROPIC).await;
    let (config, _dir) = with_key("anthropic", &server.url, "sk-ant-1");
    let adapter = adapter(&config);
    let prepared = prepare(adapter.as_ref()).await;
    assert_eq!((prepared.config.max_tokens, prepared.defaulted), (Some(8_192), vec!["max_tokens".to_owned()]));
    assert_eq!(ask(adapter.as_ref()).await.unwrap(), "hello");
    let asked = server.asked.lock().unwrap();
    assert_eq!(asked[0].path, "/v1/messages");
    assert_eq!(asked[0].headers["x-api-key"], "sk-ant-1");
    assert_eq!(asked[0].headers["anthropic-version"], "2023-06-01");
    assert!(!asked[0].headers.contains_key("authorization"));
    assert_eq!(asked[0].body["messages"], json!([{"role": "user", "content": [{"type": "text", "text": "hello"}]}]));
}

/// Answers that are no stream, whatever their content type says; streams whatever theirs says.
#[tokio::test]
async fn content_types_decide_nothing() {
    let json = r#"{"choices":[{"message":{"content":"whole"},"finish_reason":"stop"}]}"#;
    let error = r#"{"error":{"message":"busy","type":"server_error"}}"#;
    for (content_type, body, wanted) in [
        ("text/event-stream", OPENAI, Ok("hello")),
        ("text/plain", OPENAI, Ok("hello")),
        ("application/json", OPENAI, Ok("hello")),
        ("application/json", json, Ok("whole")),
        ("text/event-stream", json, Ok("whole")),
        ("application/json", error, Err(code::SERVER)),
        ("text/event-stream", error, Err(code::SERVER)),
        ("text/html", "<!doctype html><p>Sign in</p>", Err(code::INVALID_RESPONSE)),
        ("text/event-stream", "\n \n<html>", Err(code::INVALID_RESPONSE)),
        ("application/json", "{\"choices\":", Err(code::INVALID_RESPONSE)),
        ("application/json", "{}", Err(code::INVALID_RESPONSE)),
        ("text/event-stream", "", Err(code::TRANSPORT)),
    ] {
        let server = Server::start(move |_, _, mut connection| async move {
            connection.answer("200 OK", &format!("content-type: {content_type}\r\n"), body).await;
        })
        .await;
        let got = ask(adapter(&config("openai", &server.url)).as_ref()).await;
        let got = got.as_deref().map_err(|failure| failure.code.as_str());
        assert_eq!(got, wanted, "{content_type} {body}");
    }
}

/// 5.5: refusals keep their status, their wait and their name, and no key.
#[tokio::test]
async fn refusals() {
    let server = Server::start(|_, _, mut connection| async move {
        let body = r#"{"error":{"message":"the key sk-12345 is used too often","type":"sk-12345"}}"#;
        let headers = "content-type: application/json\r\nretry-after: 1\r\nx-request-id: req-sk-12345\r\n";
        connection.answer("429 Too Many Requests", headers, body).await;
    })
    .await;
    for kind in ["openai", "anthropic"] {
        let (config, _dir) = with_key(kind, &server.url, "sk-12345");
        let failure = ask(adapter(&config).as_ref()).await.unwrap_err();
        assert_eq!((failure.code.as_str(), failure.status), (code::RATE_LIMIT, Some(429)));
        assert_eq!((failure.retry_after_ms, failure.request_id.as_deref()), (Some(1_000), Some("req-***")));
        assert!(failure.message.contains("the key *** is used too often"), "{}", failure.message);
        assert!(!format!("{failure:?}").contains("sk-12345"), "{failure:?}");
    }
}

/// A moved address is not followed: the key would go with the request.
#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = Server::events(OPENAI).await;
    let target = elsewhere.url.clone();
    let server = Server::start(move |_, _, mut connection| {
        let location = format!("location: {target}/chat/completions\r\n");
        async move { connection.answer("307 Temporary Redirect", &location, "").await }
    })
    .await;
    let failure = ask(adapter(&config("openai", &server.url)).as_ref()).await.unwrap_err();
    assert_eq!(failure.code, "HTTP_307");
    assert_eq!(elsewhere.requests(), 0);
}

/// L-1, L-3, 5.5: what can be refused locally never reaches the provider.
#[tokio::test]
async fn local_refusals_ask_nobody() {
    let server = Server::events(OPENAI).await;
    let refused = |config: ProviderConfig, change: fn(&mut everturn::actors::ports::PrepareRequest)| async move {
        let mut asks = asks();
        change(&mut asks);
        adapter(&config).prepare(asks, Signal::new()).await.unwrap_err().code
    };
    for kind in ["openai", "anthropic"] {
        let base = || ProviderConfig {
            input_modalities: Some(vec!["text".into()]),
            reasoning_efforts: Some(vec!["low".into()]),
            ..config(kind, &server.url)
        };
        let image = refused(base(), |asks| asks.modalities.push("image".into())).await;
        assert_eq!(image, code::UNSUPPORTED_CONTENT);
        let effort = refused(base(), |asks| asks.config.reasoning_effort = Some("high".into())).await;
        assert_eq!(effort, code::UNSUPPORTED_REASONING_EFFORT);
        assert_eq!(refused(base(), |asks| asks.config.model.clear()).await, code::INVALID_MODEL);
        let hot = refused(base(), |asks| asks.config.temperature = Some(f64::NAN)).await;
        assert_eq!(hot, code::INVALID_REQUEST_PROPOSAL);
        let (config, dir) = with_key(kind, &server.url, "two\nlines");
        assert_eq!(refused(config.clone(), |_| ()).await, code::INVALID_CREDENTIAL);
        // The key is read for each request.
        std::fs::write(dir.path().join("key"), "sk-1").unwrap();
        assert!(adapter(&config).prepare(asks(), Signal::new()).await.is_ok());
        std::fs::remove_file(dir.path().join("key")).unwrap();
        assert_eq!(refused(config, |_| ()).await, code::MISSING_CREDENTIAL);
    }
    assert_eq!(server.requests(), 0);
}
