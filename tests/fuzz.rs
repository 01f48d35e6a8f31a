//! A bounded run of what the fuzz targets do, on the stable compiler: records, imports, configurations and bodies of
//! requests. `PROPTEST_CASES` makes it longer.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may panic, and prints what it did"
)]

#[path = "common/mod.rs"]
mod common;

use common::Place;
use everturn::{
    config::{self, Locations},
    storage::{
        codec,
        ids::{Epoch, Seq, SessionId},
        json,
        log::verify::Verifier,
        testing::{logs, strategies},
    },
};
use proptest::{prelude::*, sample::Index, strategy::ValueTree as _, test_runner::TestRunner};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// A text with some bytes changed, left out or put in.
fn mangle(text: &[u8], changes: &[(Index, u8, u8)]) -> Vec<u8> {
    let mut bytes = text.to_vec();
    for (at, how, byte) in changes {
        if bytes.is_empty() {
            break;
        }
        let at = at.index(bytes.len());
        match how % 4 {
            0 => bytes[at] = *byte,
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, *byte),
            _ => bytes.truncate(at),
        }
    }
    bytes
}

fn changes(most: usize) -> impl Strategy<Value = Vec<(Index, u8, u8)>> {
    proptest::collection::vec(any::<(Index, u8, u8)>(), 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// 265, BR-041: a record is read as it was written, or refused; never a panic.
    #[test]
    fn records(events in proptest::collection::vec(strategies::event(), 1..6), changes in changes(4)) {
        let session = SessionId::trusted("s");
        let events: Vec<_> = events
            .into_iter()
            .enumerate()
            .map(|(at, event)| {
                let mut event = event;
                event.seq = Seq(at as u64);
                Arc::new(event)
            })
            .collect();
        let Ok(bytes) = codec::encode_commit(&session, Epoch(1), Seq(0), None, &events) else { return Ok(()) };
        let mangled = mangle(&bytes, &changes);
        match codec::decode_commit(&session, Seq(0), &mangled) {
            Ok(decoded) => prop_assert!(mangled == bytes && decoded.events == events),
            Err(_) => prop_assert!(mangled != bytes),
        }
    }

    /// An export with some bytes changed is refused or holds every rule; never a panic.
    #[test]
    fn imports(seed in any::<u64>(), changes in changes(6)) {
        let log = logs::random_log(seed % 64, 30).batches;
        let session = SessionId::trusted("s");
        let text: String = log.iter().flatten().map(|event| json::event_line(&session, event) + "\n").collect();
        let mangled = String::from_utf8_lossy(&mangle(text.as_bytes(), &changes)).into_owned();
        let mut verifier = Verifier::new(session, None);
        for line in mangled.lines() {
            let Ok((session, event)) = json::parse_event_line(line) else { break };
            let again = json::event_line(&session, &event);
            prop_assert_eq!(json::parse_event_line(&again).map(|(_, event)| event), Ok(event.clone()));
            verifier.event(&Arc::new(event));
        }
        drop(verifier.finish());
    }

    /// A configuration with some bytes changed is taken or refused with a sentence.
    #[test]
    fn configurations(changes in changes(8)) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("everturn.toml");
        std::fs::write(&file, mangle(include_bytes!("../fuzz/seeds/config/everturn.toml"), &changes)).unwrap();
        let at = Locations {
            config: Some(file),
            data_dir: Some(dir.path().to_owned()),
            working_dir: dir.path().to_owned(),
        };
        match config::load(&at, &BTreeMap::new()) {
            Ok(loaded) => prop_assert!(loaded.show().is_ok()),
            Err(error) => prop_assert!(!error.to_string().trim().is_empty()),
        }
    }
}

/// JSON that is near what the interface takes.
fn body() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z\\PC]{0,12}".prop_map(Value::from),
        prop_oneof![Just("send"), Just("steer"), Just("inject"), Just("text"), Just("reasoning"), Just("image")]
            .prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("kind"),
        Just("content"),
        Just("id"),
        Just("type"),
        Just("text"),
        Just("source"),
        Just("agent"),
        Just("keep_inbox"),
        Just("then"),
        Just("cause"),
        Just("media_type"),
        Just("data"),
        Just("x"),
    ];
    leaf.prop_recursive(3, 24, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((key.clone(), inner), 0..5)
                .prop_map(|fields| fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

/// Whatever is posted is answered: taken, or refused with a code; never 500, and the daemon lives.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_requests() {
    let place = Place::new(&[r#"{"text":"fine"}"#]);
    let daemon = place.serve();
    daemon.create("s").await;
    let mut runner = TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() });
    let (mut taken, mut refused) = (0, 0);
    for round in 0..600 {
        let body = body().new_tree(&mut runner).unwrap().current();
        let path = match round % 5 {
            0 => "/v1/sessions",
            1 => "/v1/sessions/s/cancel",
            _ => "/v1/sessions/s/messages",
        };
        // Half of them have what a message must have, so that the rest is looked at.
        let body = if round % 2 == 0 { body } else { json!({"kind": "send", "content": body}) };
        let (status, answer) = daemon.post(path, body.clone()).await;
        match status {
            200..300 => taken += 1,
            400..500 => {
                refused += 1;
                assert!(answer["error"]["code"].is_string(), "{body}: {answer}");
            }
            other => panic!("{path} {body}: {other} {answer}"),
        }
    }
    println!("{taken} taken, {refused} refused");
    assert_eq!(daemon.turn("s", "still there?").await["state"], "admitted");
    assert_eq!(daemon.stop(), Some(0));
    place.run(&["verify"]).exits(0);
}
