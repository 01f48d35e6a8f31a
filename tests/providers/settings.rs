//! What `[providers.NAME]` may say, and generations of adapters.

use crate::world::{asks, config, outcome, request};
use everturn::{
    actors::ports::{ModelAdapter, Signal},
    providers::{Preview, ProviderConfig, Quirks, Registry, build, script::ScriptAdapter},
};
use futures::StreamExt;
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// Every mistake is named with what to do about it.
#[test]
fn mistakes_are_named() {
    let url = "https://api.example.org/v1";
    let openai = || config("openai", url);
    let header = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    for (config, wanted) in [
        (config("", url), "kind is missing"),
        (config("opnai", url), "kind = \"opnai\" is unknown"),
        (ProviderConfig { base_url: None, ..openai() }, "base_url is missing"),
        (config("openai", "api.example.org"), "base_url is no address"),
        (config("anthropic", "ftp://api.example.org"), "http:// or https://"),
        (config("openai", "https://me:secret@api.example.org/v1"), "holds a password"),
        (config("openai", "https://api.example.org/v1?key=secret"), "ends in ? or #"),
        (ProviderConfig { api_key_env: Some("A".into()), api_key_file: Some("b".into()), ..openai() }, "both set"),
        (ProviderConfig { file: Some("x".into()), ..openai() }, "kind = \"script\""),
        (ProviderConfig { max_concurrent: Some(0), ..openai() }, "max_concurrent = 0"),
        (ProviderConfig { headers: header("Authorization", "Bearer secret"), ..openai() }, "api_key_env"),
        (ProviderConfig { headers: header("x-api-key", "secret"), ..openai() }, "api_key_env"),
        (ProviderConfig { headers: header("x y", "z"), ..openai() }, "a name"),
        (ProviderConfig { headers: header("x", "a\nb"), ..openai() }, "a value"),
        (ProviderConfig { ca_file: Some("/nowhere/ca.pem".into()), ..openai() }, "/nowhere/ca.pem cannot be read"),
        (ProviderConfig { ca_file: Some("Cargo.toml".into()), ..openai() }, "in PEM form"),
        (ProviderConfig { base_url: Some(url.into()), ..ProviderConfig::demo() }, "remove base_url"),
        (ProviderConfig { file: Some("/nowhere/s.jsonl".into()), ..ProviderConfig::demo() }, "/nowhere/s.jsonl"),
    ] {
        let Err(error) = build("p", &config, &Path::to_path_buf) else { panic!("{config:?} was taken") };
        assert!(error.contains(wanted), "{error:?} has no {wanted:?}");
        assert!(!error.contains("secret") || error.contains("a secret into"), "{error}");
    }
}

/// Unknown keys are refused, also among the quirks; the known ones come back as they were.
#[test]
fn keys_are_known() {
    let text = "kind = \"openai\"\nbase_url = \"https://x/v1\"\nmax_concurrent = 3\n[quirks]\nshort_call_ids = true\n\
        replay_reasoning = \"always\"\nthinking = \"adaptive\"\n[retry]\nmax_retries = 2\n";
    let config: ProviderConfig = toml::from_str(text).unwrap();
    assert_eq!(toml::from_str::<ProviderConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
    assert!(config.quirks.short_call_ids && config.quirks != Quirks::default());
    assert!(toml::from_str::<ProviderConfig>("kind = \"openai\"\napi_key = \"x\"").is_err());
    assert!(toml::from_str::<ProviderConfig>("kind = \"openai\"\n[quirks]\nshort_ids = true").is_err());
}

fn script(text: &str) -> Arc<dyn ModelAdapter> {
    Arc::new(ScriptAdapter::from_text("test", &format!("{{\"text\":\"{text}\"}}")).unwrap())
}

/// 5.1: a taken name is refused; a replaced or removed adapter finishes the calls that it prepared.
#[tokio::test]
async fn generations() {
    let registry = Registry::default();
    let first = registry.register("p", script("old")).unwrap();
    assert!(registry.register("p", script("new")).unwrap_err().to_string().contains("\"p\""));
    let prepared = registry.adapter("p").unwrap().prepare(asks(), Signal::new()).await.unwrap();
    let second = registry.replace("p", script("new"));
    assert!(second > first && registry.generation("p") == Some(second));
    let fresh = registry.adapter("p").unwrap().prepare(asks(), Signal::new()).await.unwrap();
    assert!(registry.remove("p") && !registry.remove("p"));
    assert!(registry.adapter("p").is_none() && registry.generation("p").is_none());
    for (prepared, wanted) in [(prepared, "old"), (fresh, "new")] {
        let stream = prepared.call.dispatch(request(prepared.config), Signal::new());
        assert_eq!(outcome(&stream.collect::<Vec<_>>().await).unwrap(), wanted);
    }
}

/// What an adapter sends and reads can be seen without asking anybody; a cut answer is never a complete one.
#[test]
fn previews() {
    for (kind, answer) in [("openai", crate::world::OPENAI), ("anthropic", crate::world::ANTHROPIC)] {
        let preview = Preview::new("p", &config(kind, "https://api.example.org/v1"), &Path::to_path_buf).unwrap();
        let request = request(asks().config);
        assert_eq!(preview.body(&request).unwrap()["messages"][0]["role"], "user");
        assert_eq!(outcome(&preview.chunks(&request, answer.as_bytes())).unwrap(), "hello");
        let label = answer.find("finish_reason").or(answer.find("stop_reason")).unwrap();
        for end in 0..label {
            let failure = outcome(&preview.chunks(&request, &answer.as_bytes()[..end])).unwrap_err();
            assert!(["TRANSPORT", "STREAM_CLOSED"].contains(&failure.code.as_str()), "{kind} {end} {failure:?}");
        }
        assert_eq!(outcome(&preview.chunks(&request, b"<html>")).unwrap_err().code, "INVALID_RESPONSE");
    }
    assert!(Preview::new("p", &ProviderConfig::demo(), &Path::to_path_buf).is_err());
}
