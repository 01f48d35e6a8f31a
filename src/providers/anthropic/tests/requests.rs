//! Bodies of requests: exact ones by hand, legal ones by lot.

use crate::providers::{
    anthropic::{AnthropicOptions, Effort, effort, request::body},
    config::Thinking,
    samples::{Sample, any_history, assistant, call, image, reasoning, result, results, system, user, users, views},
    strict::refuse_anthropic,
};
use everturn_storage::{
    RawJson,
    event::{RequestConfig, ToolSpec},
    message::Block,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn options() -> AnthropicOptions {
    AnthropicOptions { provider: "p".to_owned(), images: true, thinking: Thinking::Budget }
}

fn config() -> RequestConfig {
    RequestConfig { provider: "p".into(), model: "m".into(), max_tokens: Some(4_096), ..RequestConfig::default() }
}

fn tool(name: &str) -> ToolSpec {
    ToolSpec { name: name.to_owned(), description: "d".to_owned(), schema: RawJson::parse("{}").unwrap() }
}

fn of(samples: &[Sample]) -> Value {
    body(&options(), &config(), Effort::Unset, &[tool("time")], &views(samples))
}

fn messages(samples: &[Sample]) -> Value {
    of(samples)["messages"].clone()
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

#[test]
fn a_full_body() {
    let config = RequestConfig { temperature: Some(1.0), stop: Some(vec!["END".into()]), ..config() };
    let got = body(&options(), &config, Effort::Budget(2_048), &[tool("a.b")], &views(&[system("s"), user("u")]));
    let wanted = json!({
        "model": "m",
        "max_tokens": 4096,
        "system": "s",
        "tools": [{"name": "a_b", "description": "d", "input_schema": {"type": "object"}}],
        "messages": [{"role": "user", "content": [text("u")]}],
        "thinking": {"type": "enabled", "budget_tokens": 2048},
        "temperature": 1.0,
        "stop_sequences": ["END"],
        "stream": true,
    });
    assert_eq!(got.to_string(), wanted.to_string());
}

/// BR-052, BR-053: strict alternation; results form one block that leads the user behind it.
#[test]
fn a_loop_with_tools() {
    let got = messages(&[
        user("a"),
        user("b"),
        assistant(vec![Block::text("Let me look."), call("c1", "time", "{\"z\": 1.0}"), call("x|1", "time", "{oops")]),
        result("c1", "noon"),
        user("steer"),
        results("x|1", vec![Block::text("bad"), image(true)], true),
        user("more"),
        assistant(vec![Block::text("Done.")]),
    ]);
    let id = got[1]["content"][2]["id"].as_str().unwrap().to_owned();
    assert!(id.starts_with("x1_"), "{id}");
    let picture = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
    assert_eq!(
        got,
        json!([
            {"role": "user", "content": [text("a"), text("b")]},
            {"role": "assistant", "content": [
                text("Let me look."),
                {"type": "tool_use", "id": "c1", "name": "time", "input": {"z": 1.0}},
                {"type": "tool_use", "id": id, "name": "time", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [text("noon")]},
                {"type": "tool_result", "tool_use_id": id, "content": [text("bad"), picture], "is_error": true},
                text("steer"), text("more"),
            ]},
            {"role": "assistant", "content": [text("Done.")]},
            {"role": "user", "content": [text("(continue)")]},
        ])
    );
    assert_eq!(
        messages(&[assistant(vec![Block::text("x")]), user("u")])[0],
        json!({"role": "user", "content": [text("(continue)")]})
    );
    let by_url = messages(&[users(vec![image(false)])]);
    assert_eq!(by_url[0]["content"][0]["source"], json!({"type": "url", "url": "https://x/y.png"}));
}

/// BR-097, BR-098, 5.3: thinking goes back byte for byte to the model that made it, or not at all.
#[test]
fn thinking_is_whole_or_gone() {
    let signed = "{\"signed\":{\"model\":\"m\",\"signature\":\"s=\"}}";
    let thought = |provider: &str, text: &str, state: &str| {
        let got =
            messages(&[user("a"), assistant(vec![reasoning(text, provider, state), Block::text("x")]), user("b")]);
        let content = got[1]["content"].as_array().unwrap().clone();
        (content.len() == 2).then(|| content[0].clone())
    };
    assert_eq!(
        thought("p", "hm\n ", signed),
        Some(json!({"type": "thinking", "thinking": "hm\n ", "signature": "s="}))
    );
    assert_eq!(thought("p", "", signed), Some(json!({"type": "thinking", "thinking": "", "signature": "s="})));
    let redacted = "{\"redacted\":{\"model\":\"m\",\"data\":\"d\"}}";
    assert_eq!(thought("p", "", redacted), Some(json!({"type": "redacted_thinking", "data": "d"})));
    for (provider, state) in [
        ("q", signed),
        ("", ""),
        ("p", "{\"signed\":{\"model\":\"other\",\"signature\":\"s\"}}"),
        ("p", "{\"signed\":{\"model\":\"m\",\"signature\":\"\"}}"),
        ("p", "{\"field\":\"reasoning_content\"}"),
        ("p", "nonsense"),
    ] {
        assert_eq!(thought(provider, "hm", state), None, "{provider} {state}");
    }
    // Between parallel calls it keeps its place.
    let got = messages(&[
        user("a"),
        assistant(vec![
            reasoning("1", "p", signed),
            call("a", "time", "{}"),
            reasoning("2", "p", signed),
            call("b", "time", "{}"),
        ]),
        result("a", "1"),
        result("b", "2"),
    ]);
    let kinds: Vec<&str> =
        got[1]["content"].as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thinking", "tool_use", "thinking", "tool_use"]);
}

/// A history with calls needs tools, also when the agent has none any more.
#[test]
fn tools_of_the_past_are_declared() {
    let samples = [user("a"), assistant(vec![call("c", "old.tool", "{}")]), result("c", "1")];
    let got = body(&options(), &config(), Effort::Unset, &[], &views(&samples));
    assert_eq!(got["tools"][0]["name"], "old_tool");
    assert_eq!(got["tool_choice"], json!({"type": "none"}));
    let got = body(&options(), &config(), Effort::Unset, &[], &views(&[user("a")]));
    assert_eq!((got.get("tools"), got.get("tool_choice")), (None, None));
}

/// L-1, L-2: an effort is refused or becomes what the model knows; explicit values are never changed.
#[test]
fn efforts() {
    let ask = |word: &str, max_tokens: Option<u32>, temperature: Option<f64>, thinking: Thinking| {
        let config = RequestConfig { reasoning_effort: Some(word.into()), max_tokens, temperature, ..config() };
        let options = AnthropicOptions { thinking, ..options() };
        effort(&options, &config).map(|effort| format!("{effort:?}")).map_err(|failure| failure.code)
    };
    let refused = || Err("UNSUPPORTED_REASONING_EFFORT".to_owned());
    assert_eq!(ask("low", None, None, Thinking::Budget), Ok("Budget(4096)".into()));
    assert_eq!(ask("high", Some(10_000), Some(1.0), Thinking::Budget), Ok("Budget(5000)".into()));
    assert_eq!(ask("none", Some(1), Some(0.3), Thinking::Budget), Ok("Off".into()));
    assert_eq!(ask("high", Some(2_047), None, Thinking::Budget), refused());
    assert_eq!(ask("high", None, Some(0.3), Thinking::Budget), refused());
    assert_eq!(ask("enormous", None, None, Thinking::Budget), refused());
    assert_eq!(ask("max", None, None, Thinking::Adaptive), Ok("Word(\"max\")".into()));
    assert_eq!(effort(&options(), &config()), Ok(Effort::Unset));
    let got = body(&options(), &config(), Effort::Word("max"), &[], &views(&[user("a")]));
    assert_eq!((&got["thinking"], &got["output_config"]), (&json!({"type": "adaptive"}), &json!({"effort": "max"})));
}

proptest! {
    /// Every history becomes a request that a strict server takes.
    #[test]
    fn requests_are_legal(samples in any_history(), images in any::<bool>()) {
        let options = AnthropicOptions { images, ..options() };
        let got = body(&options, &config(), Effort::Unset, &[tool("time")], &views(&samples));
        prop_assert_eq!(refuse_anthropic(&got), Ok(()), "{}", got);
    }
}
