//! The daemon that is killed, the messages that it is sent, and the memory outside of it.

use crate::cli::error::CliError;
use rand::{RngExt as _, SeedableRng, rngs::StdRng};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

/// The longest that anything may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// How long a session may take to come to rest, in seconds.
const REST_S: u32 = 60;

/// Messages to a session in one round.
const A_ROUND: usize = 4;

/// A daemon in a process of its own. It ends with this value.
pub(super) struct Child {
    process: std::process::Child,
    url: String,
    http: reqwest::Client,
}

fn command(dir: &Path, what: &str) -> Result<Command, CliError> {
    let program = std::env::current_exe()
        .map_err(|error| CliError::internal(format!("this program cannot be found on disk ({error})")))?;
    let mut command = Command::new(program);
    command.arg("--config").arg(dir.join("everturn.toml")).arg("--data-dir").arg(dir.join("data")).arg(what);
    command.current_dir(dir).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    Ok(command)
}

/// Whether the offline checker is content.
pub(super) fn verify(dir: &Path) -> Result<bool, CliError> {
    let output = command(dir, "verify")?.output();
    output.map(|output| output.status.success()).map_err(|error| CliError::internal(format!("verify: {error}")))
}

impl Child {
    /// Starts it and waits for its address.
    pub(super) async fn start(dir: &Path) -> Result<Self, CliError> {
        let mut process = command(dir, "serve")?
            .spawn()
            .map_err(|error| CliError::internal(format!("the daemon cannot be started ({error})")))?;
        let out = process.stdout.take();
        let line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            // An end without a line is an empty one.
            drop(out.map(|out| BufReader::new(out).read_line(&mut line)));
            line
        });
        let line = line.await.unwrap_or_default();
        let Some(url) = line.trim().strip_prefix("listening on ").map(str::to_owned) else {
            let status = process.wait().map(|status| status.to_string()).unwrap_or_default();
            return Err(CliError::internal(format!(
                "the daemon does not start behind a kill ({status}); run everturn --data-dir {} verify",
                dir.join("data").display()
            )));
        };
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build();
        let http = http.map_err(|error| CliError::internal(format!("no HTTP client can be made ({error})")))?;
        Ok(Self { process, url, http })
    }

    /// Ends it as a crash does.
    pub(super) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // It may be dead already.
        drop(self.process.kill());
        drop(self.process.wait());
    }

    /// Status and answer; none when it died before it answered.
    async fn ask(&self, method: reqwest::Method, path: &str, body: Option<Value>) -> Option<(u16, Value)> {
        let mut request = self.http.request(method, format!("{}/v1/{path}", self.url));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.ok()?;
        let status = answer.status().as_u16();
        Some((status, answer.json().await.unwrap_or_default()))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) acknowledged: usize,
    pub(super) refused: usize,
    pub(super) sessions: usize,
    /// Broken promises, a sentence each.
    pub(super) wrong: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    session: String,
    kind: String,
    content: Value,
}

/// Messages to send, and what was acknowledged.
pub(super) struct Work {
    chance: StdRng,
    /// What is left of a recorded workload, by session; made-up work has no end.
    recorded: Option<BTreeMap<String, VecDeque<Value>>>,
    sessions: Vec<String>,
    acknowledged: BTreeMap<String, BTreeSet<String>>,
    sent: u64,
}

impl Work {
    pub(super) fn made_up(sessions: u32, seed: u64) -> Self {
        let sessions = (0..sessions.max(1)).map(|n| format!("chaos-{n}")).collect();
        Self { chance: StdRng::seed_from_u64(seed), recorded: None, sessions, acknowledged: BTreeMap::new(), sent: 0 }
    }

    /// From a file of JSON Lines.
    pub(super) fn recorded(file: &Path) -> Result<Self, CliError> {
        let name = file.display();
        let text = std::fs::read_to_string(file)
            .map_err(|error| CliError::bad_usage(format!("{name} cannot be read ({error}); correct the path")))?;
        let mut by_session: BTreeMap<String, VecDeque<Value>> = BTreeMap::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let Line { session, kind, content } = serde_json::from_str(line)
                .map_err(|error| CliError::bad_usage(format!("{name}, line {}: {error}", at + 1)))?;
            by_session.entry(session).or_default().push_back(json!({"kind": kind, "content": content}));
        }
        let sessions = by_session.keys().cloned().collect();
        Ok(Self { recorded: Some(by_session), ..Self::made_up(1, 0).with(sessions) })
    }

    fn with(mut self, sessions: Vec<String>) -> Self {
        self.sessions = sessions;
        self
    }

    fn next(&mut self, session: &str) -> Option<Value> {
        self.sent += 1;
        if let Some(recorded) = &mut self.recorded {
            return recorded.get_mut(session)?.pop_front();
        }
        let kind = ["send", "send", "steer", "inject"][self.chance.random_range(0..4)];
        Some(json!({"kind": kind, "content": format!("message {}", self.sent)}))
    }

    /// Sends to all sessions at once, until a moment that chance chooses; the caller kills the daemon then.
    pub(super) async fn round(&mut self, child: &Child, verdict: &mut Verdict) {
        let moment = self.chance.random_range(0..80_u32);
        let sessions = self.sessions.clone();
        let batches: Vec<(String, Vec<Value>)> = sessions
            .into_iter()
            .map(|session| {
                let batch = (0..A_ROUND).filter_map(|_| self.next(&session)).collect();
                (session, batch)
            })
            .collect();
        let (receipts, mut got) = tokio::sync::mpsc::unbounded_channel();
        let sends = futures::future::join_all(batches.into_iter().map(|(session, batch)| {
            let receipts = receipts.clone();
            async move {
                drop(child.ask(reqwest::Method::POST, "sessions", Some(json!({"id": session}))).await);
                for body in batch {
                    let path = format!("sessions/{session}/messages");
                    let Some((status, receipt)) = child.ask(reqwest::Method::POST, &path, Some(body)).await else {
                        return;
                    };
                    let item = receipt["item_id"].as_str().filter(|_| status == 202).map(str::to_owned);
                    // The other end outlives this.
                    drop(receipts.send((session.clone(), item)));
                }
            }
        }));
        let clock = async {
            for _ in 0..moment {
                drop(child.ask(reqwest::Method::GET, "health", None).await);
            }
        };
        tokio::select! {
            _ = sends => {}
            () = clock => {}
        }
        drop(receipts);
        while let Ok((session, item)) = got.try_recv() {
            match item {
                Some(item) => {
                    verdict.acknowledged += 1;
                    self.acknowledged.entry(session).or_default().insert(item);
                }
                None => verdict.refused += 1,
            }
        }
    }

    /// Waits until every session rests, and looks for everything that was acknowledged.
    pub(super) async fn judge(&self, child: &Child, verdict: &mut Verdict) -> Result<(), CliError> {
        let gone = || CliError::internal("the daemon died by itself while it was judged; its stderr says why");
        verdict.sessions = self.acknowledged.len();
        for (session, acknowledged) in &self.acknowledged {
            let idle = format!("sessions/{session}/idle?wait={REST_S}");
            let (status, _) = child.ask(reqwest::Method::GET, &idle, None).await.ok_or_else(gone)?;
            if status != 200 {
                verdict.wrong.push(format!("{session} does not come to rest (status {status})"));
            }
            let mut judge = LogJudge::default();
            loop {
                let path = format!("sessions/{session}/events?limit=1000&from={}", judge.next);
                let (_, page) = child.ask(reqwest::Method::GET, &path, None).await.ok_or_else(gone)?;
                let Some(events) = page["events"].as_array() else { break };
                events.iter().for_each(|event| judge.event(event));
                if events.is_empty() || page.get("next").is_none() {
                    break;
                }
            }
            judge.end(session, acknowledged, &mut verdict.wrong);
        }
        Ok(())
    }
}

/// One log, event by event: memory grows with its messages, not with its events.
#[derive(Default)]
struct LogJudge {
    next: u64,
    gap: bool,
    seen: BTreeSet<String>,
    admitted: BTreeSet<String>,
    twice: Vec<String>,
    open: i64,
    calls: i64,
}

impl LogJudge {
    fn event(&mut self, event: &Value) {
        self.gap |= event["seq"].as_u64() != Some(self.next);
        self.next += 1;
        match event["type"].as_str().unwrap_or_default() {
            "inbox/queued" => {
                let id = event["data"]["item"]["id"].as_str().unwrap_or_default();
                self.seen.insert(id.to_owned());
            }
            "user/message" => {
                for item in event["data"]["items"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    if !self.admitted.insert(item.to_owned()) {
                        self.twice.push(item.to_owned());
                    }
                }
            }
            "turn/start" | "step/start" => self.open += 1,
            "turn/end" | "step/end" => self.open -= 1,
            "tool/call" => self.calls += 1,
            "tool/result" => self.calls -= 1,
            _ => {}
        }
    }

    fn end(self, session: &str, acknowledged: &BTreeSet<String>, wrong: &mut Vec<String>) {
        if self.gap {
            wrong.push(format!("{session}: the numbers of its events have a gap"));
        }
        if self.open != 0 {
            wrong.push(format!("{session}: a turn or a step is open although it rests"));
        }
        if self.calls > 0 {
            wrong.push(format!("{session}: a call has no result"));
        }
        let lost = acknowledged.difference(&self.seen);
        wrong.extend(lost.map(|item| format!("{session}: {item} was acknowledged and is gone")));
        wrong.extend(self.twice.iter().map(|item| format!("{session}: {item} became history twice")));
    }
}
