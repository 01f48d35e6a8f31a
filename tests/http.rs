//! The HTTP interface of the shipped binary (SURFACE 4 and 7), with the scripted provider.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod common;

use common::{Daemon, Place, read};
use serde_json::{Value, json};

const HELLO: &str = r#"{"text":"Hello.","usage":{"input":3,"output":2}}"#;
const TOOL: &str = r#"{"text":"Let me look.","calls":[{"name":"time","arguments":{}}]}"#;
const NOON: &str = r#"{"text":"It is noon.","chunk_chars":4}"#;
const HANG: &str = r#"{"hang":true}"#;

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[track_caller]
fn is_error((status, body): (u16, Value), wanted: u16, code: &str) {
    assert_eq!((status, body["error"]["code"].as_str()), (wanted, Some(code)), "{body}");
    assert!(!body["error"]["message"].as_str().unwrap().is_empty());
}

/// Scenario 1 and the interval protocol of CONTRACT 9, from outside.
#[tokio::test]
async fn a_message_runs_to_its_answer() {
    let place = Place::new(&[TOOL, NOON]);
    let daemon = place.serve();
    assert_eq!(daemon.get("/v1/health").await.0, 200);
    let (status, session) =
        daemon.post("/v1/sessions", json!({"id": "s1", "agent": "default", "labels": {"a": "b"}})).await;
    assert_eq!((status, session["id"].as_str(), session["agent"].as_str()), (201, Some("s1"), Some("default")));
    assert!(session["created_at"].is_i64());

    let receipt = daemon.submit("s1", "send", "What time is it?").await;
    assert_eq!(receipt["list"], "next-turn");
    assert_eq!(receipt["position"], 0);
    assert_eq!(receipt["durable"], true);
    assert_eq!(receipt["woke"], true);
    let report = daemon.settled("s1", receipt["item_id"].as_str().unwrap()).await;
    assert_eq!(report["state"], "admitted");
    assert_eq!(report["turn"], 1);
    assert_eq!(report["reason"], json!({"kind": "completed"}));
    assert_eq!(report["answer"], "It is noon.");

    let events = daemon.events("s1").await;
    let wanted = [
        "session/opened",
        "inbox/queued",
        "turn/start",
        "inbox/claimed",
        "step/start",
        "system/message",
        "user/message",
        "request/header",
        "request/context",
        "assistant/message",
        "tool/call",
        "tool/result",
        "step/end",
        "step/start",
        "assistant/message",
        "step/end",
        "turn/end",
    ];
    assert_eq!(kinds(&events), wanted);
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["seq"], at);
        assert_eq!(event["session"], "s1");
    }
    assert_eq!(receipt["seq"], 1);

    let (_, page) = daemon.get("/v1/sessions/s1/events?from=2&limit=3").await;
    assert_eq!(kinds(page["events"].as_array().unwrap()), &wanted[2..5]);
    assert_eq!(page["next"], 5);

    let (status, history) = daemon.get("/v1/sessions/s1/history").await;
    let roles: Vec<_> = history["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!((status, roles), (200, vec!["system", "user", "assistant", "tool", "assistant"]));

    let (status, record) = daemon.get("/v1/sessions/s1").await;
    assert_eq!(status, 200);
    for (field, value) in [
        ("id", json!("s1")),
        ("agent", json!("default")),
        ("visible", json!("idle")),
        ("phase", json!("idle")),
        ("pending", json!({"next_turn": 0, "next_step": 0})),
        ("parked", json!(false)),
        ("turns", json!(1)),
        ("last_seq", json!(16)),
        ("labels", json!({"a": "b"})),
        ("last_reason", json!({"kind": "completed"})),
    ] {
        assert_eq!(record[field], value, "{field} of {record}");
    }
    assert_eq!(daemon.get("/v1/sessions/s1/idle?wait=5").await.0, 200);
    assert_eq!(daemon.stop(), Some(0));
}

/// BR-055, BR-056, SURFACE 4: the same id again is answered with the original receipt and the item's state, while
/// it runs, after it ended, and after a restart; another body is a conflict; nothing is logged twice.
#[tokio::test]
async fn a_repeated_message_is_answered_and_runs_once() {
    let place = Place::new(&[HELLO]);
    let daemon = place.serve();
    daemon.create("s1").await;
    let body = json!({"kind": "send", "id": "m1", "content": "Hi"});
    let (status, first) = daemon.post("/v1/sessions/s1/messages", body.clone()).await;
    assert_eq!(status, 202);
    daemon.settled("s1", "m1").await;
    let events = daemon.events("s1").await.len();

    let same = async |daemon: &Daemon| {
        let (status, again) = daemon.post("/v1/sessions/s1/messages", body.clone()).await;
        assert_eq!(status, 200, "{again}");
        for field in ["item_id", "list", "position", "seq", "durable"] {
            assert_eq!(again[field], first[field], "{field}");
        }
        assert_eq!((&again["state"], &again["turn"]), (&json!("admitted"), &json!(1)));
        assert_eq!(again["answer"], "Hello.");
    };
    same(&daemon).await;
    // The header names the message as well as the field does.
    let request = daemon.request("POST", "/v1/sessions/s1/messages").header("Idempotency-Key", "m1");
    let (status, again) = read(request.json(&json!({"kind": "send", "content": "Hi"})).send().await.unwrap()).await;
    assert_eq!((status, &again["item_id"]), (200, &first["item_id"]));
    // A steer may fall back to a send (BR-046).
    let fallback = json!({"kind": "steer", "id": "m1", "content": "Hi"});
    assert_eq!(daemon.post("/v1/sessions/s1/messages", fallback).await.0, 200);

    let other = daemon.post("/v1/sessions/s1/messages", json!({"kind": "send", "id": "m1", "content": "Ho"})).await;
    assert_eq!(other.1["error"]["detail"]["state"], "admitted");
    is_error(other, 409, "DUPLICATE_CONSUMED");
    assert_eq!(daemon.events("s1").await.len(), events);

    daemon.stop();
    let daemon = place.serve();
    same(&daemon).await;
    let logged = daemon.events("s1").await;
    assert_eq!(kinds(&logged).iter().filter(|kind| **kind == "inbox/queued").count(), 1);
}

/// SURFACE 4 and 7: items that wait can be looked at, edited and removed; others cannot.
#[tokio::test]
async fn waiting_items_can_be_edited_and_removed() {
    let place = Place::new(&[HANG, HELLO]);
    let daemon = place.serve();
    daemon.create("s1").await;
    let mut stream = daemon.stream("s1", Some(0)).await;
    let running = daemon.submit("s1", "send", "hang").await;
    stream.until("request/context").await;
    let waiting = daemon.submit("s1", "send", "one").await["item_id"].as_str().unwrap().to_owned();
    let gone = daemon.submit("s1", "send", "two").await["item_id"].as_str().unwrap().to_owned();
    let path = |item: &str| format!("/v1/sessions/s1/messages/{item}");

    assert_eq!(daemon.get(&path(&waiting)).await.1["state"], "pending");
    let (status, edited) = daemon.ask("PATCH", &path(&waiting), Some(json!({"content": "better"}))).await;
    assert_eq!((status, &edited["state"]), (200, &json!("pending")), "{edited}");
    assert_eq!(daemon.ask("DELETE", &path(&gone), None).await, (204, Value::Null));
    assert_eq!(daemon.get(&path(&gone)).await.1["state"], "removed");
    is_error(daemon.ask("DELETE", &path(&gone), None).await, 409, "UNKNOWN_ITEM");
    let running = running["item_id"].as_str().unwrap();
    is_error(daemon.ask("PATCH", &path(running), Some(json!({"content": "x"}))).await, 409, "UNKNOWN_ITEM");
    is_error(daemon.get(&path("never")).await, 404, "UNKNOWN_ITEM");
    is_error(daemon.ask("DELETE", &path("never"), None).await, 404, "UNKNOWN_ITEM");
    is_error(daemon.get("/v1/sessions/s1/idle").await, 408, "NOT_IDLE");
    is_error(daemon.ask("DELETE", "/v1/sessions/s1", None).await, 409, "SESSION_BUSY");

    let (status, report) = daemon.post("/v1/sessions/s1/cancel", json!({"keep_inbox": true, "then": "continue"})).await;
    assert_eq!((status, report), (200, json!({"cancelled": 1, "removed": []})));
    assert_eq!(daemon.settled("s1", running).await["reason"], json!({"kind": "aborted", "cause": {"kind": "user"}}));
    assert_eq!(daemon.settled("s1", &waiting).await["answer"], "Hello.");
    let events = daemon.events("s1").await;
    let texts: Vec<_> = events
        .iter()
        .filter(|event| event["type"] == "user/message")
        .map(|event| event["data"]["message"]["content"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["hang", "better"]);
    // Nothing runs: a cancel says so, and hits nothing later.
    let (status, report) = daemon.ask("POST", "/v1/sessions/s1/cancel", None).await;
    assert_eq!((status, report), (200, json!({"cancelled": null, "removed": []})));
    assert_eq!(daemon.turn("s1", "again").await["answer"], "Hello.");
}

/// Steer and inject from outside: scenario C in short; both join the running turn at its next step.
#[tokio::test]
async fn steers_and_injections_join_the_turn() {
    let slow = r#"{"text":"Let me look.","calls":[{"name":"time","arguments":{}}],"chunk_chars":1,"delay_ms":30}"#;
    let place = Place::new(&[slow, NOON]);
    let daemon = place.serve();
    daemon.create("s1").await;
    let mut stream = daemon.stream("s1", Some(0)).await;
    let first = daemon.submit("s1", "send", "go").await;
    stream.until("request/context").await;
    let steer = daemon.submit("s1", "steer", "hurry").await;
    let inject = daemon.submit("s1", "inject", "by the way").await;
    assert_eq!((&steer["list"], &inject["list"]), (&json!("next-step"), &json!("next-step")));
    assert_eq!(inject["woke"], false);
    let report = daemon.settled("s1", first["item_id"].as_str().unwrap()).await;
    assert_eq!(report["reason"]["kind"], "completed");
    for item in [&steer, &inject] {
        let report = daemon.settled("s1", item["item_id"].as_str().unwrap()).await;
        assert_eq!((&report["state"], &report["turn"]), (&json!("admitted"), &json!(1)));
    }
}

/// SURFACE 4, BR-148: `Last-Event-ID: n` goes on at exactly n+1; one from the future is refused.
#[tokio::test]
async fn a_stream_resumes_without_gap_or_repeat() {
    let place = Place::new(&[TOOL, NOON]);
    let daemon = place.serve();
    daemon.create("s1").await;
    let mut live = daemon.stream("s1", None).await;
    daemon.turn("s1", "now").await;
    let seen = live.until("turn/end").await;
    let ids: Vec<u64> = seen.iter().map(|sent| sent.id.unwrap()).collect();
    assert_eq!(ids, (1..=16).collect::<Vec<_>>());
    let log = daemon.events("s1").await;
    for sent in &seen {
        let logged = &log[usize::try_from(sent.id.unwrap()).unwrap()];
        assert_eq!((&sent.data, sent.event.as_str()), (logged, logged["type"].as_str().unwrap()));
    }
    for last in [0, 7, 15] {
        let mut resumed = daemon.stream("s1", Some(last)).await;
        let ids: Vec<u64> = resumed.until("turn/end").await.iter().map(|sent| sent.id.unwrap()).collect();
        assert_eq!(ids, (last + 1..=16).collect::<Vec<_>>());
    }
    // At the end of the log the stream waits for what comes.
    let mut waiting = daemon.stream("s1", Some(16)).await;
    daemon.turn("s1", "more").await;
    assert_eq!(waiting.until("inbox/queued").await.last().and_then(|sent| sent.id), Some(17));
    for bad in ["999", "-1", "x", "18446744073709551615"] {
        let request = daemon.request("GET", "/v1/sessions/s1/stream").header("Last-Event-ID", bad);
        is_error(read(request.send().await.unwrap()).await, 400, "MALFORMED");
    }
    let (status, page) = daemon.get("/v1/sessions/s1/events?from=18446744073709551615").await;
    assert_eq!((status, page), (200, json!({"events": []})));
    // A number of another session is nothing here.
    daemon.create("s2").await;
    let request = daemon.request("GET", "/v1/sessions/s2/stream").header("Last-Event-ID", "16");
    is_error(read(request.send().await.unwrap()).await, 400, "MALFORMED");
}

/// SURFACE 4: live frames have no id, and show the text before it is settled.
#[tokio::test]
async fn frames_show_what_is_not_settled() {
    let place = Place::new(&[r#"{"text":"It is noon.","chunk_chars":4,"delay_ms":1}"#]);
    let daemon = place.serve();
    daemon.create("s1").await;
    let mut stream = daemon.stream("s1", None).await;
    daemon.submit("s1", "send", "now").await;
    let mut text = String::new();
    let mut ended = false;
    while let Some(sent) = stream.next().await {
        if sent.event == "frame" {
            assert_eq!(sent.id, None);
            if sent.data["chunk"]["type"] == "text_delta" {
                text.push_str(sent.data["chunk"]["text"].as_str().unwrap());
            }
        }
        ended |= sent.event == "turn/end";
        if ended && text == "It is noon." {
            break;
        }
    }
    assert_eq!(text, "It is noon.");
}

/// Every documented refusal of a request (see `src/http/errors.rs`).
#[tokio::test]
async fn wrong_requests_are_refused_in_one_form() {
    let place = Place::new(&[HELLO]);
    let daemon = place.serve();
    daemon.create("s1").await;
    let messages = "/v1/sessions/s1/messages";
    for (body, status, code) in [
        (json!({"kind": "send"}), 400, "MALFORMED"),
        (json!({"kind": "shout", "content": "x"}), 400, "MALFORMED"),
        (json!({"kind": "send", "content": "x", "extra": 1}), 400, "MALFORMED"),
        (json!({"kind": "send", "content": 3}), 400, "MALFORMED"),
        (json!([]), 400, "MALFORMED"),
        (json!({"kind": "send", "content": "x", "id": "no id"}), 400, "INVALID_ID"),
        (json!({"kind": "send", "content": "x", "id": "x".repeat(129)}), 400, "INVALID_ID"),
        (json!({"kind": "send", "content": ""}), 422, "EMPTY_MESSAGE"),
        (json!({"kind": "send", "content": []}), 422, "EMPTY_MESSAGE"),
        (json!({"kind": "send", "content": [{"type": "text", "text": ""}]}), 422, "EMPTY_MESSAGE"),
        (json!({"kind": "send", "content": [{"type": "film"}]}), 422, "INVALID_MESSAGE"),
        (
            json!({"kind": "send", "content": [{"type": "tool_call", "call_id": "a", "name": "b", "arguments": ""}]}),
            422,
            "INVALID_MESSAGE",
        ),
    ] {
        is_error(daemon.post(messages, body).await, status, code);
    }
    let raw = async |body: &'static str| read(daemon.request("POST", messages).body(body).send().await.unwrap()).await;
    is_error(raw("{").await, 400, "MALFORMED");
    is_error(raw("").await, 400, "MALFORMED");
    is_error(raw(r#"{"kind":"send","kind":"send","content":"x"}"#).await, 400, "MALFORMED");
    let large = json!({"kind": "send", "content": "x".repeat(1024 * 1024)});
    is_error(daemon.post(messages, large).await, 413, "TOO_LARGE");

    for (method, path, status, code) in [
        ("GET", "/v1/sessions/nobody", 404, "NO_SESSION"),
        ("DELETE", "/v1/sessions/nobody", 404, "NO_SESSION"),
        ("GET", "/v1/sessions/nobody/events", 404, "NO_SESSION"),
        ("GET", "/v1/sessions/nobody/stream", 404, "NO_SESSION"),
        ("GET", "/v1/sessions/nobody/history", 404, "NO_SESSION"),
        ("GET", "/v1/sessions/no%20id", 400, "INVALID_ID"),
        ("GET", "/v1/sessions/s1/events?from=x", 400, "MALFORMED"),
        ("GET", "/v1/sessions/s1/events?limit=0", 400, "MALFORMED"),
        ("GET", "/v1/sessions/s1/events?frm=1", 400, "MALFORMED"),
        ("GET", "/v1/sessions?state=tired", 400, "MALFORMED"),
        ("GET", "/v1/sessions/s1/idle?wait=-1", 400, "MALFORMED"),
        ("GET", "/v1/nothing", 404, "NOT_FOUND"),
        ("GET", "/metrics", 404, "NOT_FOUND"),
        ("PUT", "/v1/sessions", 405, "METHOD_NOT_ALLOWED"),
    ] {
        is_error(daemon.ask(method, path, None).await, status, code);
    }
    is_error(daemon.post("/v1/sessions", json!({"id": "s1"})).await, 409, "SESSION_EXISTS");
    is_error(daemon.post("/v1/sessions", json!({"agent": "nobody"})).await, 422, "NO_AGENT");
    is_error(daemon.post("/v1/sessions", json!({"colour": 1})).await, 400, "MALFORMED");
    is_error(daemon.post("/v1/sessions/s1/cancel", json!({"cause": "whim"})).await, 400, "INVALID");
    is_error(daemon.post("/v1/sessions/s1/cancel", json!({"then": "park"})).await, 400, "MALFORMED");
    // Nothing of all that was logged.
    assert_eq!(kinds(&daemon.events("s1").await), ["session/opened"]);
}

/// C-1: a full inbox and a large message are refused, nothing is logged.
#[tokio::test]
async fn bounds_are_kept() {
    let place = Place::with(&[HANG], "[limits]\ninbox_capacity = 1\nmessage_max_bytes = 10\n");
    let daemon = place.serve();
    daemon.create("s1").await;
    let mut stream = daemon.stream("s1", Some(0)).await;
    daemon.submit("s1", "send", "one").await;
    stream.until("request/context").await;
    daemon.submit("s1", "send", "two").await;
    let full = daemon.post("/v1/sessions/s1/messages", json!({"kind": "send", "content": "three"})).await;
    is_error(full, 429, "INBOX_FULL");
    let large = json!({"kind": "send", "content": "more than ten bytes"});
    is_error(daemon.post("/v1/sessions/s1/messages", large).await, 413, "MESSAGE_TOO_LARGE");
}

/// SURFACE 4: with a token every path but health wants it; without one only loopback names and no foreign page.
#[tokio::test]
async fn who_may_ask() {
    let place = Place::new(&[HELLO]);
    let mut command = place.command(&["serve"]);
    command.env("EVERTURN_TOKEN", "secret");
    let mut daemon = Daemon::start(command);
    is_error(daemon.get("/v1/sessions").await, 401, "UNAUTHORIZED");
    is_error(daemon.get("/v1/nothing").await, 401, "UNAUTHORIZED");
    assert_eq!(daemon.get("/v1/health").await.0, 200);
    daemon.token = Some("secreT".to_owned());
    is_error(daemon.get("/v1/ready").await, 401, "UNAUTHORIZED");
    daemon.token = Some("secret".to_owned());
    assert_eq!(daemon.get("/v1/sessions").await.0, 200);
    daemon.stop();

    let daemon = place.serve();
    let with = async |name: &'static str, value: &'static str| {
        read(daemon.request("GET", "/v1/sessions").header(name, value).send().await.unwrap()).await
    };
    is_error(with("Host", "evil.example").await, 403, "FORBIDDEN");
    is_error(with("Origin", "https://evil.example").await, 403, "FORBIDDEN");
    is_error(with("Origin", "null").await, 403, "FORBIDDEN");
    is_error(with("Sec-Fetch-Site", "cross-site").await, 403, "FORBIDDEN");
    assert_eq!(with("Origin", "http://localhost:3000").await.0, 200);
}

/// SURFACE 4: the list has pages and filters, and deleting frees the name.
#[tokio::test]
async fn sessions_are_listed_and_deleted() {
    let place = Place::new(&[HELLO]);
    let daemon = place.serve();
    for id in ["a", "b", "c"] {
        daemon.create(id).await;
    }
    daemon.turn("b", "hi").await;
    let ids = |page: &Value| -> Vec<String> {
        page["sessions"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    };
    let (_, page) = daemon.get("/v1/sessions?limit=2").await;
    assert_eq!((ids(&page), &page["next"]), (vec!["a".to_owned(), "b".to_owned()], &json!("b")));
    assert_eq!(page["sessions"][1]["turns"], 1);
    let (_, page) = daemon.get("/v1/sessions?limit=2&after=b").await;
    assert_eq!((ids(&page), page.get("next")), (vec!["c".to_owned()], None));
    assert_eq!(ids(&daemon.get("/v1/sessions?state=running").await.1).len(), 0);
    assert_eq!(ids(&daemon.get("/v1/sessions?agent=other").await.1).len(), 0);
    assert_eq!(daemon.ask("DELETE", "/v1/sessions/b", None).await.0, 204);
    is_error(daemon.get("/v1/sessions/b").await, 404, "NO_SESSION");
    assert_eq!(ids(&daemon.get("/v1/sessions").await.1), ["a", "c"]);
    daemon.create("b").await;
    assert_eq!(daemon.turn("b", "hi").await["turn"], 1);
}

/// Z15, SURFACE 7: while draining, sends are answered 503 `DISPOSED`; the open step ends, the daemon exits 0, and
/// what waited runs in the next process.
#[tokio::test]
async fn a_stop_drains_and_loses_nothing() {
    let slow = r#"{"text":"Slow.","chunk_chars":1,"delay_ms":200}"#;
    let place = Place::new(&[slow, HELLO]);
    let daemon = place.serve();
    daemon.create("s1").await;
    let mut stream = daemon.stream("s1", Some(0)).await;
    let first = daemon.submit("s1", "send", "one").await["item_id"].as_str().unwrap().to_owned();
    stream.until("request/context").await;
    let second = daemon.submit("s1", "send", "two").await["item_id"].as_str().unwrap().to_owned();
    daemon.signal("TERM");
    let mut refused = None;
    // The signal is on its way: ask until the daemon has seen it.
    while refused.is_none() {
        let answer = daemon.post("/v1/sessions/s1/messages", json!({"kind": "inject", "content": "late"})).await;
        if answer.0 != 202 {
            refused = Some(answer);
        }
    }
    is_error(refused.unwrap(), 503, "DISPOSED");
    let (status, ready) = daemon.get("/v1/ready").await;
    assert_eq!((status, &ready["ready"]), (503, &json!(false)));
    assert_eq!(daemon.wait(), (Some(0), String::new()));
    let daemon = place.serve();
    assert_eq!(daemon.settled("s1", &first).await["answer"], "Slow.");
    assert_eq!(daemon.settled("s1", &second).await["reason"]["kind"], "completed");
}

/// A second signal ends at once, safely; a crash loses nothing that was acknowledged (B-14, R18).
#[tokio::test]
async fn dying_loses_nothing_acknowledged() {
    let place = Place::new(&[HANG, HELLO]);
    let daemon = place.serve();
    daemon.create("s1").await;
    let mut stream = daemon.stream("s1", Some(0)).await;
    let hanging = daemon.submit("s1", "send", "one").await["item_id"].as_str().unwrap().to_owned();
    stream.until("request/context").await;
    let waiting = daemon.submit("s1", "send", "two").await["item_id"].as_str().unwrap().to_owned();
    daemon.signal("TERM");
    // Two signals that arrive together are one: the second is sent when the first was seen.
    while daemon.get("/v1/ready").await.0 == 200 {}
    daemon.signal("TERM");
    assert_eq!(daemon.wait().0, Some(0));
    place.script(&[HELLO]);
    let daemon = place.serve();
    assert_eq!(daemon.settled("s1", &hanging).await["reason"]["kind"], "interrupted");
    let report = daemon.settled("s1", &waiting).await;
    assert_eq!((&report["reason"]["kind"], &report["answer"]), (&json!("completed"), &json!("Hello.")));
    daemon.kill();
    place.run(&["verify"]).exits(0);
}
