//! The real program against servers that nobody here wrote: a mock of OpenAI and Anthropic with chaos switches, LiteLLM's
//! proxy in front of it, and a llama.cpp server with a real model. `tests/peers/install.sh` installs the first two.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::wildcard_enum_match_arm,
    reason = "a test may panic, prints its seed, and looks at the variants it is about"
)]

#[path = "../common/mod.rs"]
mod common;
mod server;

use common::Place;
use serde_json::{Value, json};
use server::{Peer, installed};

/// What the servers are shown.
const KEY: &str = "sk-peer-12345";

/// How to ask for one model of one server.
struct Route<'a> {
    kind: &'static str,
    url: &'a str,
    model: &'static str,
    system: &'a str,
}

/// What a scripted server needs to be told.
const BRIEF: &str = "Be brief.";

impl Route<'_> {
    /// A place whose agent asks there, and asks only once.
    fn place(&self) -> Place {
        let Self { kind, url, model, system } = self;
        let system = json!(system);
        let place = Place::new(&[]);
        let config = format!(
            "[providers.peer]\nkind = \"{kind}\"\nbase_url = \"{url}/v1\"\napi_key_file = \"key\"\n\
             [providers.peer.retry]\nmax_retries = 0\n\
             [agents.default]\nprovider = \"peer\"\nmodel = \"{model}\"\nsystem = {system}\ntools = [\"time\"]\n\
             max_tokens = 512\n"
        );
        std::fs::write(place.path().join("everturn.toml"), config).unwrap();
        std::fs::write(place.path().join("key"), KEY).unwrap();
        place
    }

    /// A turn of two steps with a call of a real tool; then everything is checked.
    fn two_steps(&self, prompt: &str) -> Vec<Value> {
        let place = self.place();
        let events = place.run(&["run", "--json", "--session", "s", prompt]).exits(0).lines();
        let count = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
        assert_eq!((count("assistant/message"), count("tool/result")), (2, 1), "{events:#?}");
        let result = events.iter().find(|event| event["type"] == "tool/result").unwrap();
        assert_eq!(result["data"]["error"], Value::Null, "{result}");
        assert_eq!(events.last().unwrap()["data"]["reason"]["kind"], "completed");
        place.run(&["verify"]).exits(0);
        events
    }

    /// The failure that a turn ends with.
    fn failure(&self, prompt: &str) -> Value {
        let ran = self.place().run(&["run", "--json", prompt]).exits(3);
        assert!(!format!("{ran:?}").contains(KEY), "{ran:?}");
        ran.lines().last().unwrap()["data"]["reason"]["failure"].clone()
    }
}

fn said(events: &[Value]) -> &str {
    let answer = events.iter().rfind(|event| event["type"] == "assistant/message").unwrap();
    answer["data"]["message"]["content"][0]["text"].as_str().unwrap()
}

/// Turns a switch of the mock on, or all of them off.
async fn chaos(mock: &Peer, switch: Option<&str>) {
    // The choice stands for the process; another test may have made it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("{}/__aimock/chaos", mock.url);
    let request = match switch {
        Some(name) => client.post(url).json(&json!({name: 1})),
        None => client.delete(url),
    };
    assert!(request.send().await.unwrap().status().is_success());
}

const SWITCHES: [&str; 4] = ["dropRate", "malformedRate", "disconnectRate", "rateLimitRate"];

/// 5.5: every switch ends the turn with the code that the contract demands; behind it the server works again.
async fn every_switch(mock: &Peer, route: &Route<'_>, codes: [&str; 4]) {
    for (switch, code) in SWITCHES.into_iter().zip(codes) {
        chaos(mock, Some(switch)).await;
        let failure = route.failure("time");
        chaos(mock, None).await;
        let about = format!("{} {} {switch}: {failure}", route.kind, route.model);
        assert_eq!(failure["code"], code, "{about}");
        if code == "RATE_LIMIT" {
            // LiteLLM keeps the wait to itself on one of its interfaces.
            let wait_ms = if route.kind == "anthropic" && route.url != mock.url { Value::Null } else { json!(1_000) };
            assert_eq!((&failure["status"], &failure["retry_after_ms"]), (&json!(429), &wait_ms), "{about}");
        }
    }
}

/// BR-067 and 5.5 at the mock itself.
#[tokio::test]
async fn a_mock_of_two_vendors() {
    let Some(program) = installed("node_modules/.bin/llmock") else { return };
    let mock = Peer::aimock(&program);
    for kind in ["openai", "anthropic"] {
        let route = Route { kind, url: &mock.url, model: "some-model", system: BRIEF };
        let events = route.two_steps("What time is it?");
        assert_eq!(said(&events), "It is noon, and all is well.");
        every_switch(&mock, &route, ["SERVER", "INVALID_RESPONSE", "TRANSPORT", "RATE_LIMIT"]).await;
        assert_eq!(route.failure("cut")["code"], "TRANSPORT");
        // Nothing of the kind is in its fixtures.
        assert_eq!(route.failure("unheard of")["status"], 503);
        let report = route.place().run(&["providers", "check", "peer", "--json"]).exits(0).lines().remove(0);
        assert_eq!((&report["tools"], &report["quirks"]), (&json!("works"), &json!([])), "{report}");
    }
}

/// Both of its interfaces before both kinds of server.
#[tokio::test]
async fn a_proxy_that_translates() {
    let (Some(mock), Some(program)) = (installed("node_modules/.bin/llmock"), installed("venv/bin/litellm")) else {
        return;
    };
    let mock = Peer::aimock(&mock);
    let proxy = Peer::litellm(&program, &mock);
    for (kind, model, malformed) in [
        // It makes an empty answer, an error in a stream, or nothing at all of what it cannot read.
        ("openai", "by-openai", "EMPTY_RESPONSE"),
        ("openai", "by-anthropic", "EMPTY_RESPONSE"),
        ("anthropic", "by-openai", "SERVER"),
        ("anthropic", "by-anthropic", "INVALID_RESPONSE"),
    ] {
        let route = Route { kind, url: &proxy.url, model, system: BRIEF };
        assert_eq!(said(&route.two_steps("What time is it?")), "It is noon, and all is well.");
        every_switch(&mock, &route, ["SERVER", malformed, "SERVER", "RATE_LIMIT"]).await;
    }
    let wrong = Route { kind: "openai", url: &proxy.url, model: "by-nobody", system: BRIEF };
    let code = wrong.failure("time")["code"].clone();
    assert!(["INVALID_REQUEST", "HTTP_404"].contains(&code.as_str().unwrap()), "{code}");
}

/// Three turns, as the template `tiny.jinja` writes them: a model of 135 million parameters calls a tool when it has
/// seen that done.
fn examples() -> String {
    let call = "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";
    let turn = |(question, time, answer): (&str, &str, &str)| {
        format!(
            "<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{call}<|im_end|>\n\
             <|im_start|>user\n<tool_response>\n{time}\n</tool_response><|im_end|>\n<|im_start|>assistant\n{answer}"
        )
    };
    let turns = [
        ("What time is it?", "2024-05-01T08:30:00+00:00", "The time is 08:30."),
        ("Tell me the time.", "2023-11-17T16:05:12+00:00", "The time is 16:05."),
        ("What is the time now?", "2025-02-03T10:45:59+00:00", "The time is 10:45."),
    ];
    format!("You tell the time.{}", turns.map(turn).concat())
}

/// A model that thinks for itself, on a llama.cpp server: `EVERTURN_LLAMA=http://127.0.0.1:8080`, as
/// docs/PROVIDERS.md says.
#[test]
#[ignore = "needs a llama.cpp server with a model; docs/PROVIDERS.md has the command"]
fn a_real_model() {
    let url = std::env::var("EVERTURN_LLAMA").expect("EVERTURN_LLAMA is the address of a llama.cpp server");
    let system = examples();
    for kind in ["openai", "anthropic"] {
        let route = Route { kind, url: &url, model: "local", system: &system };
        let events = route.two_steps("What time is it?");
        println!("{kind}: {}", said(&events));
        assert!(!said(&events).is_empty());
        route.place().run(&["providers", "check", "peer"]).exits(0);
    }
}
