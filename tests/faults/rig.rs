//! One row of the table, cell by cell: a fault script, what a caller does, and the records that must follow.

use super::common::{Daemon, Heard, Place, WAIT_S};
use serde_json::{Value, json};
use std::{fmt::Write as _, path::PathBuf};

/// Agents, each with its script.
const AGENTS: &[(&str, &[&str])] = &[
    ("plain", &[r#"{"text":"fine"}"#]),
    ("tool", &[r#"{"text":"let me look","calls":[{"name":"time","arguments":{}}]}"#, r#"{"text":"fine"}"#]),
    (
        "pair",
        &[
            r#"{"text":"let me look","calls":[{"name":"time","arguments":{}},{"name":"time","arguments":{}}]}"#,
            r#"{"text":"fine"}"#,
        ],
    ),
    ("hang", &[r#"{"hang":true}"#, r#"{"text":"fine"}"#]),
    ("prefix", &[r#"{"text":"half a word","chunk_chars":4,"hang":true}"#, r#"{"text":"fine"}"#]),
    ("server", &[r#"{"fail":{"code":"SERVER"}}"#, r#"{"text":"fine"}"#]),
    ("refuses", &[r#"{"fail":{"code":"INVALID_REQUEST"}}"#, r#"{"text":"fine"}"#]),
    ("later", &[r#"{"fail":{"code":"RATE_LIMIT","retry_after_ms":9000}}"#, r#"{"text":"fine"}"#]),
];

/// What the caller does behind the first message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Act {
    /// Nothing.
    Wait,
    /// Cancels once a point is held, then lets the point go on.
    CancelHeld,
    /// Cancels once this event is in the log.
    CancelAt(&'static str),
    /// The fault script ends the process; the next one repairs.
    Crash,
    /// The process is killed once a point is held and another session's receipt proves that what was logged before is
    /// on disk.
    KillHeld,
}

/// One cell.
pub(crate) struct Cell {
    pub(crate) name: &'static str,
    pub(crate) agent: &'static str,
    /// Rules; `@` stands for the session, `HOLD` for a hold that the rig ends.
    pub(crate) faults: &'static str,
    pub(crate) act: Act,
    /// What turn 1 leaves, from `turn/start` up to the next turn, in the short form of [`short`].
    pub(crate) leaves: &'static str,
}

pub(crate) fn cell(
    name: &'static str,
    agent: &'static str,
    faults: &'static str,
    act: Act,
    leaves: &'static str,
) -> Cell {
    Cell { name, agent, faults, act, leaves }
}

impl Cell {
    fn crashes(&self) -> bool {
        matches!(self.act, Act::Crash | Act::KillHeld)
    }
}

pub(crate) struct Rig {
    pub(crate) place: Place,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let place = Place::new(&[]);
        let mut config =
            "[daemon]\nlisten = \"127.0.0.1:0\"\ndrain_s = 5\n[limits.retry]\ninitial_delay_ms = 1\n".to_owned();
        for (name, script) in AGENTS {
            std::fs::write(place.path().join(format!("{name}.jsonl")), script.join("\n")).unwrap();
            write!(
                config,
                "[providers.{name}]\nkind = \"script\"\nfile = \"{name}.jsonl\"\n\
                 [agents.{name}]\nprovider = \"{name}\"\nmodel = \"script\"\nsystem = \"Be brief.\"\ntools = [\"time\"]\n"
            )
            .unwrap();
        }
        std::fs::write(place.path().join("everturn.toml"), config).unwrap();
        Self { place }
    }

    fn gate(&self, cell: &str) -> PathBuf {
        self.place.path().join(format!("go-{cell}"))
    }

    pub(crate) fn open_gate(&self, cell: &str) {
        std::fs::write(self.gate(cell), "").unwrap();
    }

    /// The rules of a cell for its session.
    pub(crate) fn rules(&self, cell: &str, faults: &str) -> String {
        let hold = format!("hold({})", self.gate(cell).display());
        faults.replace('@', &format!("@{cell}")).replace("HOLD", &hold)
    }

    pub(crate) fn serve(&self, faults: &str) -> (Daemon, Heard) {
        let (daemon, heard) = self.try_serve(faults);
        (daemon.unwrap_or_else(|| panic!("{faults}: the daemon does not start")), heard)
    }

    pub(crate) fn try_serve(&self, faults: &str) -> (Option<Daemon>, Heard) {
        let mut command = self.place.command(&["serve"]);
        command.env("EVERTURN_FAULTS", faults);
        Daemon::start_heard(command)
    }

    /// Runs the cells of a row and judges each: what turn 1 leaves, that the next message runs without outside help
    /// (F-3), and the offline checker over everything.
    pub(crate) async fn row(&self, cells: &[Cell]) {
        let calm: Vec<&Cell> = cells.iter().filter(|cell| !cell.crashes()).collect();
        let faults: Vec<String> = calm.iter().map(|cell| self.rules(cell.name, cell.faults)).collect();
        let (daemon, mut heard) = self.serve(&faults.join("\n"));
        for cell in &calm {
            self.act(&daemon, &mut heard, cell).await;
            judge(&daemon, cell).await;
        }
        assert_eq!(daemon.stop(), Some(0));
        for cell in cells.iter().filter(|cell| cell.crashes()) {
            let (daemon, mut heard) = self.serve(&self.rules(cell.name, cell.faults));
            self.act(&daemon, &mut heard, cell).await;
            drop(daemon);
            let (daemon, _heard) = self.serve("");
            judge(&daemon, cell).await;
            assert_eq!(daemon.stop(), Some(0));
        }
        self.place.run(&["verify"]).exits(0);
    }

    async fn act(&self, daemon: &Daemon, heard: &mut Heard, cell: &Cell) {
        let session = cell.name;
        create(daemon, session, cell.agent).await;
        let message = json!({"kind": "send", "content": "one", "id": format!("{session}-1")});
        let path = format!("/v1/sessions/{session}/messages");
        match cell.act {
            Act::Crash => {
                daemon.try_ask("POST", &path, Some(message)).await;
                // Hears of nothing but the end.
                assert!(!heard.hear("never said").await);
            }
            Act::Wait => {
                daemon.try_ask("POST", &path, Some(message)).await;
            }
            Act::CancelHeld => {
                let sent = daemon.try_ask("POST", &path, Some(message));
                let held = async {
                    assert!(heard.hear("is held until").await, "{session}: nothing was held");
                    self.cancel_and_release(daemon, session).await;
                };
                tokio::join!(sent, held);
            }
            Act::CancelAt(event) => {
                let mut stream = daemon.stream(session, Some(0)).await;
                daemon.try_ask("POST", &path, Some(message)).await;
                stream.until(event).await;
                let (status, body) = daemon.post(&format!("/v1/sessions/{session}/cancel"), json!({})).await;
                assert_eq!(status, 200, "{body}");
            }
            Act::KillHeld => {
                let sent = daemon.try_ask("POST", &path, Some(message));
                let held = async {
                    assert!(heard.hear("is held until").await, "{session}: nothing was held");
                    self.on_disk(daemon, session).await;
                    daemon.signal("KILL");
                };
                tokio::join!(sent, held);
                assert!(!heard.hear("never said").await);
            }
        }
    }

    /// Cancels, and ends the hold once the agent must have heard of it. The answer may need the end of the hold.
    async fn cancel_and_release(&self, daemon: &Daemon, session: &str) {
        let path = format!("/v1/sessions/{session}/cancel");
        let cancel = daemon.post(&path, json!({}));
        let release = async {
            for _ in 0..50 {
                daemon.get("/v1/health").await;
            }
            self.open_gate(session);
        };
        let ((status, body), ()) = tokio::join!(cancel, release);
        assert_eq!(status, 200, "{body}");
    }

    /// Commits are written and synced in order of arrival: a later receipt covers what was logged before.
    async fn on_disk(&self, daemon: &Daemon, session: &str) {
        let witness = format!("{session}-witness");
        create(daemon, &witness, "plain").await;
        daemon.submit(&witness, "inject", "am I on disk?").await;
    }
}

pub(crate) async fn create(daemon: &Daemon, session: &str, agent: &str) {
    let (status, body) = daemon.post("/v1/sessions", json!({"id": session, "agent": agent})).await;
    assert_eq!(status, 201, "{session}: {body}");
}

/// What turn 1 left, and that the next message runs.
async fn judge(daemon: &Daemon, cell: &Cell) {
    let session = cell.name;
    idle(daemon, session).await;
    let report = daemon.turn(session, "next").await;
    let reason = &report["reason"]["kind"];
    assert!(report["state"] == "admitted" && reason == "completed", "{session}: the next message: {report}");
    // What a failed checkpoint left behind is shown once the next one has covered it (K-3).
    let left = turn(&daemon.events(session).await, 1);
    let left = left.strip_suffix(" queued(send)").unwrap_or(&left);
    if std::env::var_os("EVERTURN_SHOW").is_some() {
        println!("{session}: {left}");
    } else {
        assert_eq!(left, cell.leaves, "{session} ({})", cell.faults);
    }
}

/// Waits until the session is quiet; a fault on the way is followed by the next incarnation.
pub(crate) async fn idle(daemon: &Daemon, session: &str) {
    for _ in 0..20 {
        let (status, body) = daemon.get(&format!("/v1/sessions/{session}/idle?wait={WAIT_S}")).await;
        assert_eq!(status, 200, "{session} never comes to rest: {body}");
        if body.get("fault").is_none() {
            return;
        }
    }
    panic!("{session} faults again and again");
}

/// The records of one turn and what follows it, in short.
pub(crate) fn turn(events: &[Value], number: u64) -> String {
    let starts = |event: &&Value, number: u64| event["type"] == "turn/start" && event["data"]["turn"] == number;
    let inside = events.iter().skip_while(|event| !starts(event, number));
    let words: Vec<String> = inside.take_while(|event| !starts(event, number + 1)).filter_map(short).collect();
    words.join(" ")
}

fn short(event: &Value) -> Option<String> {
    let data = &event["data"];
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    Some(match event["type"].as_str().unwrap() {
        "turn/start" => "turn".to_owned(),
        "inbox/claimed" => "claimed".to_owned(),
        "inbox/queued" => format!("queued({})", text(&data["item"]["origin"])),
        "inbox/removed" => "removed".to_owned(),
        "inbox/restored" => "restored".to_owned(),
        "step/start" => "step".to_owned(),
        "system/message" => "system".to_owned(),
        "user/message" => "user".to_owned(),
        "request/header" => "header".to_owned(),
        "request/context" => "context".to_owned(),
        "assistant/message" if data["interrupted"] == true => "message(interrupted)".to_owned(),
        "assistant/message" => "message".to_owned(),
        "assistant/attempt" => format!("attempt({})", text(&data["outcome"])),
        "tool/call" => "call".to_owned(),
        "tool/result" if data["message"]["is_error"] == true && data["error"].is_null() => "result(failed)".to_owned(),
        "tool/result" if data["error"].is_null() => "result".to_owned(),
        "tool/result" => format!("result({})", text(&data["error"]["code"])),
        "prompt/blocked" => "blocked".to_owned(),
        "session/opened" => format!("opened({})", text(&data["reason"])),
        "retry/scheduled" => "retry".to_owned(),
        "retry/started" => "again".to_owned(),
        "step/end" => "/step".to_owned(),
        "turn/end" => {
            let reason = &data["reason"];
            let code = reason["failure"]["code"].as_str().map(|code| format!(":{code}")).unwrap_or_default();
            let left = data["unadmitted"].as_array().is_some_and(|left| !left.is_empty());
            format!("/turn({}{code}{})", text(&reason["kind"]), if left { ",U" } else { "" })
        }
        other => other.to_owned(),
    })
}
