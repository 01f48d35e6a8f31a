//! Whole logs of every version of the format (scenario 200, V-3): they open, and project as recorded, for ever.
//!
//! With `EVERTURN_BLESS=1` the files of the present version are written when they are missing; files that are there
//! are never changed. The log has every kind of turn that the generator of test logs makes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use everturn_storage::{
    codec,
    event::FORMAT_VERSION,
    ids::{Epoch, Seq, SessionId},
    json, load,
    log::request::{derive_messages, messages_json},
    memory::MemoryStore,
    store::{Commit, Store},
    testing::logs::random_log,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

fn session() -> SessionId {
    SessionId::trusted("s")
}

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The commits of a log, each as `seq of its first event, hex`.
fn commits() -> String {
    let mut acked = None;
    let mut text = String::new();
    for batch in random_log(20_261_201, 260).batches {
        let first = batch[0].seq;
        let bytes = codec::encode_commit(&session(), Epoch(1), first, acked, &batch).unwrap();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        text.push_str(&format!("{first} {hex}\n"));
        acked = batch.last().map(|event| event.seq);
    }
    text
}

/// A store with these commits, under a header of this version.
fn stored(text: &str, version: u32) -> MemoryStore {
    let store = MemoryStore::new();
    let header = everturn_storage::event::SessionHeader { version, ..everturn_storage::contract::header(&session()) };
    for line in text.lines() {
        let (first, hex) = line.split_once(' ').unwrap();
        let first = Seq(first.parse().unwrap());
        let digits: Vec<char> = hex.chars().collect();
        let bytes: Vec<u8> =
            digits.chunks(2).map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap()).collect();
        let count = codec::decode_commit(&session(), first, &bytes).unwrap().events.len();
        let beside = (first == Seq(0)).then(|| Arc::new(header.clone()));
        let commit = Commit {
            session: session(),
            epoch: Epoch(1),
            first,
            count: u32::try_from(count).unwrap(),
            bytes: bytes.into(),
            header: beside,
            summary: None,
        };
        store.commit(&[commit]).unwrap();
    }
    store.sync().unwrap();
    store
}

/// The export and the derived history of a store.
fn projected(store: &MemoryStore) -> (String, String) {
    let loaded = load::load(store, &session()).unwrap();
    assert_eq!(loaded.cut, None);
    let events = load::read_events(store, &session(), Seq(0), 100_000).unwrap();
    let lines = events.iter().map(|event| json::event_line(&session(), event) + "\n").collect();
    (lines, messages_json(&derive_messages(loaded.state.surface())).to_string() + "\n")
}

fn bless(dir: &Path) {
    let text = commits();
    let (lines, history) = projected(&stored(&text, FORMAT_VERSION));
    for (name, content) in [("log.hex", text), ("log.jsonl", lines), ("history.json", history)] {
        std::fs::write(dir.join(name), content).unwrap();
    }
}

/// Scenario 200.
#[test]
fn logs_of_every_version_open_and_project_as_recorded() {
    for version in 1..=FORMAT_VERSION {
        let dir = golden().join(format!("v{version}"));
        if version == FORMAT_VERSION && !dir.join("log.hex").exists() && std::env::var_os("EVERTURN_BLESS").is_some() {
            bless(&dir);
        }
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        let (lines, history) = projected(&stored(&read("log.hex"), version));
        assert_eq!(lines, read("log.jsonl"), "version {version}: the events");
        assert_eq!(history, read("history.json"), "version {version}: the history");
    }
}
