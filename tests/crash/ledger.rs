//! What was acknowledged, kept outside the program, and the verdict over what it made of it.

use super::{
    common::{Daemon, Place, WAIT_S},
    world::World,
};
use serde_json::Value;
use std::collections::BTreeMap;

/// Acknowledged messages, in the order of their receipts.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    acknowledged: Vec<String>,
}

impl Ledger {
    /// Sends, and writes down what was acknowledged.
    pub(crate) async fn send(&mut self, daemon: &Daemon, session: &str, text: &str) {
        let receipt = daemon.submit(session, "send", text).await;
        assert_eq!(receipt["durable"], true, "{receipt}");
        self.acknowledged.push(receipt["item_id"].as_str().unwrap().to_owned());
    }

    /// Writes down a receipt that came another way.
    pub(crate) fn note(&mut self, receipt: &Value) {
        assert_eq!(receipt["durable"], true, "{receipt}");
        self.acknowledged.push(receipt["item_id"].as_str().unwrap().to_owned());
    }

    /// As [`Ledger::judge`], where messages that were refused may stand between the acknowledged ones, and a turn may
    /// have failed for the disk's sake.
    pub(crate) async fn judge_lossless(&self, daemon: &Daemon, session: &str, world: &World) {
        let events = self.facts(daemon, session, world).await;
        let admitted = admitted(&events);
        let ours: Vec<_> = admitted.iter().filter(|id| self.acknowledged.contains(id)).cloned().collect();
        assert_eq!(ours, self.acknowledged, "acknowledged messages are not history once and in order");
        let unique: std::collections::BTreeSet<_> = admitted.iter().collect();
        assert_eq!(unique.len(), admitted.len(), "a message became history twice");
    }

    /// Every acknowledged message became history exactly once and in order; every turn is closed; no body ran twice;
    /// the strictest provider accepted every request.
    pub(crate) async fn judge(&self, daemon: &Daemon, session: &str, world: &World) {
        let events = self.facts(daemon, session, world).await;
        let admitted = admitted(&events);
        assert_eq!(admitted, self.acknowledged, "acknowledged messages are not history once and in order");
    }

    /// What holds whatever was acknowledged.
    async fn facts(&self, daemon: &Daemon, session: &str, world: &World) -> Vec<Value> {
        let (status, body) = daemon.get(&format!("/v1/sessions/{session}/idle?wait={WAIT_S}")).await;
        assert_eq!(status, 200, "never idle: {body}");
        let events = daemon.events(session).await;
        for (at, event) in events.iter().enumerate() {
            assert_eq!(event["seq"], at, "a gap in the log");
        }
        assert_eq!(of(&events, "turn/start").count(), of(&events, "turn/end").count());
        assert_eq!(of(&events, "step/start").count(), of(&events, "step/end").count());
        let twice: BTreeMap<_, _> = world.fetched().into_iter().filter(|(_, times)| *times > 1).collect();
        assert!(twice.is_empty(), "tool bodies ran twice: {twice:?}");
        assert_eq!(world.complaints(), Vec::<String>::new());
        let unknown = events.iter().filter(|event| event["data"]["error"]["code"] == "UNKNOWN_TOOL").count();
        assert_eq!(unknown, 0, "scenario 270: the tools are not the ones that the test means");
        events
    }

    /// How the turns ended, in order.
    pub(crate) async fn assert_reasons(&self, daemon: &Daemon, session: &str, expected: &[&str]) {
        let events = daemon.events(session).await;
        let reasons: Vec<_> =
            of(&events, "turn/end").map(|data| data["reason"]["kind"].as_str().unwrap().to_owned()).collect();
        assert_eq!(reasons, expected);
    }
}

/// The items that became history, in order.
fn admitted(events: &[Value]) -> Vec<String> {
    of(events, "user/message")
        .flat_map(|data| data["items"].as_array().unwrap().iter())
        .map(|id| id.as_str().unwrap().to_owned())
        .collect()
}

fn of<'a>(events: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["type"] == kind).map(|event| &event["data"])
}

/// Secrets never reach the journal.
pub(crate) fn assert_no_secret(place: &Place) {
    let mut files = vec![place.data_dir()];
    let needle = b"secret-key-of-the-test";
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            assert!(!bytes.windows(needle.len()).any(|window| window == needle), "the key is in {}", path.display());
        }
    }
}
