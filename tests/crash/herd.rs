//! Several sessions under load, and what was acknowledged to each: small rounds, many of them.

use super::common::{Daemon, Heard, Place, WAIT_S};
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::Path, process::Command};

/// Sessions that live at the same time.
const SESSIONS: usize = 3;

/// Rounds that one set of sessions lives; then fresh ones begin, so that logs stay short.
const ROUNDS_A_SET: usize = 20;

/// A seed of today's run, or of a run that is to be seen again.
pub(crate) fn seed(name: &str) -> u64 {
    let seed = number(name, u64::from(std::process::id()) ^ 0x5EED_0000);
    println!("{name}={seed}");
    seed
}

pub(crate) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Numbers from a seed.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// The memory outside the program.
pub(crate) struct Herd {
    pub(crate) place: Place,
    set: usize,
    round: usize,
    /// Receipts of the present set, by session, in order.
    acknowledged: BTreeMap<String, Vec<String>>,
    pub(crate) receipts: usize,
}

impl Herd {
    pub(crate) fn new() -> Self {
        let call = r#"{"text":"let me look","calls":[{"name":"time","arguments":{}},{"name":"time","arguments":{}}]}"#;
        // Answers and calls take turns for a long while; the last line repeats.
        let lines: Vec<&str> =
            (0..400).map(|n| if n % 2 == 0 { call } else { r#"{"text":"fine","chunk_chars":2}"# }).collect();
        let place = Place::new(&lines);
        Self { place, set: 0, round: 0, acknowledged: BTreeMap::new(), receipts: 0 }
    }

    fn session(&self, n: usize) -> String {
        format!("set{}-{n}", self.set)
    }

    pub(crate) fn serve(&self) -> (Daemon, Heard) {
        let (daemon, heard) = Daemon::start_heard(self.place.command(&["serve"]));
        (daemon.expect("the daemon starts"), heard)
    }

    /// Messages to every session at once, until all have their receipts, or the program is gone.
    pub(crate) async fn load(&mut self, daemon: &Daemon, messages: usize) {
        if self.round.is_multiple_of(ROUNDS_A_SET) {
            self.set += 1;
        }
        self.round += 1;
        let kinds = ["send", "send", "inject", "steer"];
        let round = self.round;
        let sends = (0..SESSIONS).map(|n| {
            let session = self.session(n);
            async move {
                let mut got = Vec::new();
                daemon.try_ask("POST", "/v1/sessions", Some(json!({"id": session}))).await;
                for m in 0..messages {
                    let body = json!({"kind": kinds[(n + m + round) % kinds.len()], "content": format!("{round}-{m}")});
                    let path = format!("/v1/sessions/{session}/messages");
                    match daemon.try_ask("POST", &path, Some(body)).await {
                        Some((202, receipt)) => got.push(receipt["item_id"].as_str().unwrap().to_owned()),
                        Some((503, _)) => {}
                        Some((404, _)) | None => break,
                        Some(other) => panic!("{session}: {other:?}"),
                    }
                }
                (session, got)
            }
        });
        for (session, got) in futures::future::join_all(sends).await {
            self.receipts += got.len();
            self.acknowledged.entry(session).or_default().extend(got);
        }
    }

    /// Nothing acknowledged is lost, doubled or out of order; everything is closed and its records whole.
    pub(crate) async fn judge(&mut self, daemon: &Daemon, case: &str) {
        for (session, acknowledged) in &self.acknowledged {
            if acknowledged.is_empty() {
                continue;
            }
            for _ in 0..20 {
                let (status, body) = daemon.get(&format!("/v1/sessions/{session}/idle?wait={WAIT_S}")).await;
                assert_eq!(status, 200, "{case}, {session}: never idle: {body}");
                if body.get("fault").is_none() {
                    break;
                }
            }
            judge_events(&daemon.events(session).await, acknowledged, &format!("{case}, {session}"));
        }
        // Sets that are over need no second verdict; the offline checker sees them at the end.
        let present = format!("set{}-", self.set);
        self.acknowledged.retain(|session, _| session.starts_with(&present));
    }

    /// The offline checker over everything that ever was.
    pub(crate) fn verify(&self, case: &str) {
        let ran = self.place.run(&["verify"]);
        assert_eq!(ran.code, Some(0), "{case}: {ran:?}");
    }
}

/// The verdict over one log.
fn judge_events(events: &[Value], acknowledged: &[String], case: &str) {
    let mut fate: BTreeMap<&str, &str> = BTreeMap::new();
    let mut admitted = Vec::new();
    let mut bodies = 0;
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["seq"], at, "{case}: a gap");
        match event["type"].as_str().unwrap() {
            "inbox/queued" => drop(fate.insert(event["data"]["item"]["id"].as_str().unwrap(), "pending")),
            "user/message" => {
                for item in event["data"]["items"].as_array().unwrap() {
                    let before = fate.insert(item.as_str().unwrap(), "admitted");
                    assert_ne!(before, Some("admitted"), "{case}: {item} became history twice");
                    admitted.push(item.as_str().unwrap());
                }
            }
            "tool/result" => bodies += 1,
            _ => {}
        }
    }
    for item in acknowledged {
        assert!(fate.contains_key(item.as_str()), "{case}: {item} was acknowledged and is gone");
    }
    let count = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
    assert_eq!(count("turn/start"), count("turn/end"), "{case}");
    assert_eq!(count("step/start"), count("step/end"), "{case}");
    assert!(count("tool/call") <= bodies, "{case}: a call without a result");
}

/// Runs a tool of the system and says whether it went well.
pub(crate) fn tool(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

/// Copies a directory with everything in it.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target)
        } else {
            assert!(std::fs::copy(entry.path(), target).is_ok())
        }
    }
}
