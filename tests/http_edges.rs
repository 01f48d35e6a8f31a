//! The HTTP interface where things go wrong or slow: damage, quiet streams, readers that do not read.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod common;

use common::Place;
use serde_json::{Value, json};

const HELLO: &str = r#"{"text":"Hello.","usage":{"input":3,"output":2}}"#;

#[track_caller]
fn is_error((status, body): (u16, Value), wanted: u16, code: &str) {
    assert_eq!((status, body["error"]["code"].as_str()), (wanted, Some(code)), "{body}");
    assert!(!body["error"]["message"].as_str().unwrap().is_empty());
}

/// SURFACE 7: a damaged session is answered 503 `CORRUPT` with its place wherever it is needed whole; it can be read
/// up to there, and the others run.
#[tokio::test]
async fn a_damaged_session_is_answered_with_its_place() {
    let place = Place::new(&[HELLO]);
    let daemon = place.serve();
    daemon.create("sound").await;
    daemon.stop();
    common::damage(&place.data_dir(), "bad");
    let daemon = place.serve();
    let send = daemon.post("/v1/sessions/bad/messages", json!({"kind": "send", "content": "x"})).await;
    assert_eq!(send.1["error"]["detail"]["seq"], 1);
    is_error(send, 503, "CORRUPT");
    is_error(daemon.get("/v1/sessions/bad/history").await, 503, "CORRUPT");
    is_error(daemon.get("/v1/sessions/bad/stream").await, 503, "CORRUPT");
    is_error(daemon.post("/v1/sessions/bad/cancel", json!({})).await, 503, "CORRUPT");
    assert_eq!(daemon.turn("sound", "hi").await["answer"], "Hello.");
    assert_eq!(daemon.get("/v1/ready").await.0, 200);
    assert_eq!(daemon.stop(), Some(0));
}

/// SURFACE 4: a quiet stream is kept alive by comments, which are no events.
#[tokio::test]
async fn a_quiet_stream_is_kept_alive() {
    let place = Place::new(&[HELLO]);
    let daemon = place.serve();
    daemon.create("s1").await;
    let mut stream = daemon.stream("s1", None).await;
    stream.comment().await;
    daemon.turn("s1", "hi").await;
    assert_eq!(stream.until("turn/end").await.first().map(|sent| sent.event.clone()), Some("inbox/queued".to_owned()));
}

/// SURFACE 4 and 7: a reader that does not read is told where it lags, holds nobody up, and goes on from there.
#[tokio::test]
async fn a_slow_reader_is_told_where_to_read_on() {
    let padding = "x".repeat(4_000);
    let calls: Vec<Value> = (0..900).map(|_| json!({"name": "time", "arguments": {"padding": padding}})).collect();
    let busy = json!({"text": "Busy.", "calls": calls, "chunk_chars": 100_000}).to_string();
    let script = [busy.as_str(), &busy, &busy, &busy, HELLO];
    let place = Place::new(&script);
    let daemon = place.serve();
    daemon.create("s1").await;
    let mut slow = daemon.stream("s1", None).await;
    assert_eq!(daemon.turn("s1", "go").await["answer"], "Hello.");
    let (mut last, mut lagged) = (0, None);
    while let Some(sent) = slow.next().await {
        match sent.id {
            Some(id) => {
                assert_eq!(id, last + 1, "a gap");
                last = id;
            }
            None if sent.event == "lagged" => lagged = sent.data["from"].as_u64(),
            None => assert_eq!(sent.event, "frame"),
        }
    }
    assert_eq!(lagged, Some(last + 1));
    let mut resumed = daemon.stream("s1", Some(last)).await;
    let rest = resumed.until("turn/end").await;
    let ids: Vec<u64> = rest.iter().map(|sent| sent.id.unwrap()).collect();
    assert_eq!(ids, (last + 1..=last + ids.len() as u64).collect::<Vec<_>>());
}
