//! `everturn providers check`: the probe, and the command of the real binary.

use crate::{
    common::Place,
    server::{Asked, Server},
    world::{ANTHROPIC, OPENAI, config},
};
use everturn::{
    actors::ports::Signal,
    providers::{CheckReport, CheckTarget, ProviderConfig, ToolSupport, check},
    storage::message::code,
};
use serde_json::{Value, json};
use std::{path::Path, time::Duration};

const CALL: &str = "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n\
    data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_abc\",\"function\":\
    {\"name\":\"report_ready\",\"arguments\":\"{\\\"word\\\":\\\"ready\\\"}\"}}]},\"finish_reason\":\"tool_calls\"}]}\n\n\
    data: [DONE]\n\n";

/// A server that calls tools once, and refuses what `wrong` finds a fault with.
async fn picky(wrong: fn(&Value) -> Option<&'static str>) -> Server {
    Server::start(move |_, Asked { body, .. }, mut connection| async move {
        if let Some(why) = wrong(&body) {
            let error = json!({"error": {"type": "invalid_request_error", "message": why}}).to_string();
            return connection.answer("400 Bad Request", "", &error).await;
        }
        let told = body["messages"].as_array().unwrap().iter().any(|message| message["role"] == "tool");
        connection.stream().await;
        connection.send(if body.get("tools").is_some() && !told { CALL } else { OPENAI }).await;
    })
    .await
}

async fn checked(config: &ProviderConfig) -> CheckReport {
    let target = CheckTarget { provider: "p", config, resolve: &Path::to_path_buf, model: "m" };
    check(target, Duration::from_secs(60), &Signal::new()).await.unwrap()
}

/// What a server can do is seen with three questions.
#[tokio::test]
async fn capabilities_are_seen() {
    let server = picky(|_| None).await;
    let report = checked(&config("openai", &server.url)).await;
    assert!(report.works() && report.first_chunk_ms.is_some(), "{report:?}");
    assert_eq!((report.text.as_str(), report.advice), ("hello", None));
    assert_eq!((report.tools, report.reasoning, report.usage), (ToolSupport::Works, true, None));
    assert_eq!((server.requests(), report.quirks.len()), (3, 0));
    let server = Server::events(ANTHROPIC).await;
    let report = checked(&config("anthropic", &server.url)).await;
    assert!(report.works(), "{report:?}");
    assert_eq!((report.tools, report.reasoning), (ToolSupport::NotCalled, false));
}

/// A quirk that makes a refused request work is named; the configuration as it is does not work.
#[tokio::test]
async fn quirks_are_found() {
    type Wrong = fn(&Value) -> Option<&'static str>;
    let cases: [(Wrong, &str, ToolSupport); 5] = [
        (|body| body.get("stream_options").map(|_| "stream_options"), "stream_usage = false", ToolSupport::Works),
        (
            |body| body.get("max_tokens").map(|_| "old"),
            "max_tokens_field = \"max_completion_tokens\"",
            ToolSupport::Works,
        ),
        (|body| long_id(body).then_some("ids"), "short_call_ids = true", ToolSupport::Works),
        (|body| user_after_tool(body).then_some("order"), "bridge_user_after_tool = true", ToolSupport::Works),
        (
            |body| (long_id(body) || user_after_tool(body)).then_some("both"),
            "short_call_ids = true, bridge_user_after_tool = true",
            ToolSupport::Works,
        ),
    ];
    for (wrong, wanted, tools) in cases {
        let server = picky(wrong).await;
        let report = checked(&config("openai", &server.url)).await;
        assert_eq!((report.quirks.as_slice(), report.tools), ([wanted.to_owned()].as_slice(), tools), "{report:?}");
        assert_eq!(report.failure.as_ref().map(|failure| failure.code.as_str()), Some(code::INVALID_REQUEST));
        assert!(report.advice.as_ref().is_some_and(|advice| advice.contains(wanted)), "{report:?}");
    }
    let server = picky(|body| body.get("tools").map(|_| "no tools here")).await;
    let report = checked(&config("openai", &server.url)).await;
    assert_eq!((report.tools, report.quirks.len()), (ToolSupport::Refused, 0));
    assert!(report.failure.unwrap().message.contains("no tools here"));
}

fn messages(body: &Value) -> &[Value] {
    body["messages"].as_array().unwrap()
}

fn long_id(body: &Value) -> bool {
    messages(body).iter().any(|message| {
        message
            .get("tool_call_id")
            .is_some_and(|id| id.as_str().unwrap().len() != 9 || id.as_str().unwrap().contains('_'))
    })
}

fn user_after_tool(body: &Value) -> bool {
    messages(body).windows(2).any(|two| two[0]["role"] == "tool" && two[1]["role"] == "user")
}

fn place(kind: &str, url: &str) -> Place {
    let place = Place::new(&[]);
    let text = format!(
        "[providers.p]\nkind = \"{kind}\"\nbase_url = \"{url}\"\napi_key_file = \"key\"\n\
         [providers.spare]\nkind = \"script\"\n[agents.default]\nprovider = \"p\"\nmodel = \"m\"\n"
    );
    std::fs::write(place.path().join("everturn.toml"), text).unwrap();
    std::fs::write(place.path().join("key"), "sk-12345\n").unwrap();
    place
}

async fn run(place: &Place, args: &[&str]) -> crate::common::Ran {
    let mut command = place.command(args);
    crate::common::Ran::of(tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap())
}

/// SURFACE 3: exit codes 0, 2 and 3; `--json` prints the report, and errors as JSON; nothing shows the key.
#[tokio::test]
async fn the_command() {
    let server = picky(|_| None).await;
    let good = place("openai", &server.url);
    let ran = run(&good, &["providers", "check", "p"]).await.exits(0);
    assert!(ran.stdout.contains("yes, call and result") && ran.stdout.contains("\"hello\""), "{}", ran.stdout);
    let report =
        run(&good, &["providers", "check", "p", "--json", "--model", "other"]).await.exits(0).lines().remove(0);
    assert_eq!(
        (&report["model"], &report["tools"], &report["failure"]),
        (&json!("other"), &json!("works"), &Value::Null)
    );
    assert_eq!(server.asked.lock().unwrap()[3].body["model"], "other");
    assert_eq!(server.asked.lock().unwrap()[0].headers["authorization"], "Bearer sk-12345");
    assert!(!good.data_dir().exists(), "a check needs no store");
    run(&good, &["providers", "check", "nobody"]).await.exits(2);
    run(&good, &["providers", "check", "spare"]).await.exits(2);
    run(&good, &["providers", "check", "spare", "--model", "script"]).await.exits(0);
    std::fs::remove_file(good.path().join("key")).unwrap();
    let ran = run(&good, &["providers", "check", "p", "--json"]).await.exits(3);
    let error: Value = serde_json::from_str(ran.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], code::MISSING_CREDENTIAL);

    let refuses = Server::start(|_, _, mut connection| async move {
        connection.answer("401 Unauthorized", "", "{\"error\":{\"message\":\"sk-12345 is wrong\"}}").await;
    })
    .await;
    let ran = run(&place("anthropic", &refuses.url), &["providers", "check", "p"]).await.exits(3);
    assert!(ran.stderr.contains("*** is wrong") && ran.stderr.contains("check the key"), "{}", ran.stderr);
    assert!(!format!("{ran:?}").contains("sk-12345"), "{ran:?}");
}
