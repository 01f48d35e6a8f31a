//! Bodies of requests: exact ones by hand, legal ones by lot.

use crate::providers::{
    config::ReplayReasoning,
    openai::{OpenAiOptions, request::body},
    samples::{Sample, any_history, assistant, call, image, reasoning, result, results, system, user, users, views},
    strict::refuse_openai,
    wire::IdRule,
};
use everturn_storage::{
    RawJson,
    event::{RequestConfig, ToolSpec},
    message::{Block, Replay},
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn options() -> OpenAiOptions {
    OpenAiOptions {
        provider: "p".to_owned(),
        images: true,
        ids: IdRule::Visible(40),
        max_tokens_field: "max_tokens".to_owned(),
        stream_usage: true,
        replay_reasoning: ReplayReasoning::Loop,
        bridge_user_after_tool: false,
    }
}

fn config() -> RequestConfig {
    RequestConfig { provider: "p".to_owned(), model: "m".to_owned(), ..RequestConfig::default() }
}

fn tool(name: &str, schema: &str) -> ToolSpec {
    ToolSpec { name: name.to_owned(), description: "d".to_owned(), schema: RawJson::parse(schema).unwrap() }
}

fn messages_with(options: &OpenAiOptions, samples: &[Sample]) -> Value {
    body(options, &config(), &[], &views(samples))["messages"].clone()
}

fn messages(samples: &[Sample]) -> Value {
    messages_with(&options(), samples)
}

#[test]
fn a_full_body() {
    let config = RequestConfig {
        reasoning_effort: Some("high".to_owned()),
        temperature: Some(0.5),
        max_tokens: Some(100),
        stop: Some(vec!["END".to_owned()]),
        ..config()
    };
    let tools = [tool("time", "{}"), tool("a.b", r#"{"type":"object","properties":{"z":{"type":"integer"}}}"#)];
    let got = body(&options(), &config, &tools, &views(&[system("s"), user("u")]));
    let wanted = json!({
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "tools": [
            {"type": "function", "function": {"name": "time", "description": "d", "parameters": {"type": "object"}}},
            {"type": "function", "function": {"name": "a_b", "description": "d",
                "parameters": {"type": "object", "properties": {"z": {"type": "integer"}}}}},
        ],
        "reasoning_effort": "high",
        "temperature": 0.5,
        "max_tokens": 100,
        "stop": ["END"],
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    assert_eq!(got.to_string(), wanted.to_string());
    let plain = OpenAiOptions { max_tokens_field: "max_completion_tokens".into(), stream_usage: false, ..options() };
    let got = body(&plain, &RequestConfig { max_tokens: Some(1), ..self::config() }, &[], &views(&[user("u")]));
    let wanted = json!({"model": "m", "messages": [{"role": "user", "content": "u"}], "max_completion_tokens": 1, "stream": true});
    assert_eq!(got.to_string(), wanted.to_string());
}

#[test]
fn a_loop_with_tools() {
    let got = messages(&[
        user("a"),
        user("b"),
        assistant(vec![
            Block::text("Let me "),
            Block::text("look."),
            call("c1", "time", "{\"z\" : 1}"),
            call("", "x.y", "{oops"),
        ]),
        result("c1", "noon"),
        results("", vec![], true),
        assistant(vec![Block::text("It is noon.")]),
    ]);
    let id = got[1]["tool_calls"][1]["id"].as_str().unwrap().to_owned();
    assert_eq!(
        got,
        json!([
            {"role": "user", "content": "a\n\nb"},
            {"role": "assistant", "content": "Let me look.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "time", "arguments": "{\"z\" : 1}"}},
                {"id": id, "type": "function", "function": {"name": "x_y", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "noon"},
            {"role": "tool", "tool_call_id": id, "content": "(no output)"},
            {"role": "assistant", "content": "It is noon."},
        ])
    );
    let only_calls = messages(&[assistant(vec![call("c1", "time", "{}")]), result("c1", "noon")]);
    assert_eq!(only_calls[0]["content"], Value::Null);
}

#[test]
fn images_go_as_parts() {
    let got = messages(&[users(vec![Block::text("look"), image(true), image(false)])]);
    assert_eq!(
        got,
        json!([{"role": "user", "content": [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        ]}])
    );
    // Of tools too, behind the results.
    let shot =
        || [assistant(vec![call("a", "time", "{}")]), results("a", vec![Block::text("shot"), image(true)], false)];
    let picture = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
    let got = messages(&shot());
    assert_eq!(got[1]["content"], "shot\n\n[an image, shown behind the tool results]");
    assert_eq!(got[2], json!({"role": "user", "content": [picture]}));
    let got = messages(&[shot().to_vec(), vec![user("well?")]].concat());
    assert_eq!(got[2], json!({"role": "user", "content": [picture, {"type": "text", "text": "well?"}]}));
    assert_eq!(got.as_array().unwrap().len(), 3);
    let got = messages_with(&OpenAiOptions { images: false, ..options() }, &shot());
    assert_eq!(got[1]["content"], "shot\n\n[image of type image/png, not shown]");
}

/// M-9, 5.3: reasoning goes back under its own name, while the model works on the last input.
#[test]
fn reasoning_goes_back_in_the_loop() {
    let thought = |text: &str| reasoning(text, "p", "{\"field\":\"reasoning_content\"}");
    let samples = [
        user("a"),
        assistant(vec![thought("one"), Block::text("x")]),
        user("b"),
        assistant(vec![thought("two"), call("c", "time", "{}")]),
        result("c", "noon"),
    ];
    let fields = |replay_reasoning| {
        let got = messages_with(&OpenAiOptions { replay_reasoning, ..options() }, &samples);
        [got[1].get("reasoning_content").cloned(), got[3].get("reasoning_content").cloned()]
    };
    assert_eq!(fields(ReplayReasoning::Loop), [None, Some("two".into())]);
    assert_eq!(fields(ReplayReasoning::Always), [Some("one".into()), Some("two".into())]);
    assert_eq!(fields(ReplayReasoning::Never), [None, None]);
    let details = "{\"field\":\"reasoning\",\"details\":[{\"data\":\"x\"}]}";
    let got = messages(&[
        user("a"),
        assistant(vec![reasoning("t", "p", details), call("c", "time", "{}")]),
        result("c", "1"),
    ]);
    assert_eq!((&got[1]["reasoning"], &got[1]["reasoning_details"]), (&json!("t"), &json!([{"data": "x"}])));
    let foreign = messages(&[
        user("a"),
        assistant(vec![reasoning("t", "q", details), call("c", "time", "{}")]),
        result("c", "1"),
    ]);
    assert_eq!(foreign[1].as_object().unwrap().keys().collect::<Vec<_>>(), ["role", "content", "tool_calls"]);
}

/// 5.3: state of a call goes back with it, to its maker only.
#[test]
fn state_of_calls_goes_back() {
    let signed = |provider: &str| Block::ToolCall {
        call_id: everturn_storage::ids::CallId::trusted("c"),
        name: "time".into(),
        arguments: "{}".into(),
        replay: Some(Replay { provider: provider.into(), data: "{\"google\":{\"thought_signature\":\"s\"}}".into() }),
    };
    let extra = |provider: &str| {
        messages(&[assistant(vec![signed(provider)]), result("c", "1")])[0]["tool_calls"][0]
            .get("extra_content")
            .cloned()
    };
    assert_eq!(extra("p"), Some(json!({"google": {"thought_signature": "s"}})));
    assert_eq!(extra("q"), None);
}

/// BR-052: templates that want an assistant behind a tool get one.
#[test]
fn strict_templates() {
    let options = OpenAiOptions { bridge_user_after_tool: true, ids: IdRule::Exactly(9), ..options() };
    let samples =
        [user("a"), assistant(vec![call("call_123456", "time", "{}")]), result("call_123456", "noon"), user("steer")];
    let got = messages_with(&options, &samples);
    let roles: Vec<&str> = got.as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "user"]);
    assert_eq!(got[2]["tool_call_id"].as_str().map(str::len), Some(9));
    assert_eq!(got[2]["tool_call_id"], got[1]["tool_calls"][0]["id"]);
}

proptest! {
    /// Every history becomes a request that a strict server takes.
    #[test]
    fn requests_are_legal(samples in any_history(), images in any::<bool>(), bridge in any::<bool>(), short in any::<bool>()) {
        let ids = if short { IdRule::Exactly(9) } else { IdRule::Visible(40) };
        let options = OpenAiOptions { images, bridge_user_after_tool: bridge, ids, ..options() };
        let got = messages_with(&options, &samples);
        prop_assert_eq!(refuse_openai(got.as_array().unwrap()), Ok(()), "{}", got);
    }
}
