//! What the tests of the shipped binary share: a data directory, the program, a daemon, and its HTTP interface.
//!
//! Nothing here sleeps: a daemon is ready when it has printed its address, and everything else is a long poll.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper that fails is a test that fails")]

use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

/// The longest that anything in these tests may wait, in seconds.
pub(crate) const WAIT_S: u64 = 60;

/// A directory with a configuration, a script and a data directory.
pub(crate) struct Place {
    dir: tempfile::TempDir,
}

/// A configuration with one scripted agent. `{extra}` goes to the end.
fn config(extra: &str) -> String {
    format!(
        "[daemon]\nlisten = \"127.0.0.1:0\"\ndrain_s = 5\n\
         [providers.script]\nkind = \"script\"\nfile = \"script.jsonl\"\n\
         [agents.default]\nprovider = \"script\"\nmodel = \"script\"\nsystem = \"Be brief.\"\ntools = [\"time\"]\n{extra}"
    )
}

impl Place {
    /// With these lines as the script of its provider.
    pub(crate) fn new(script: &[&str]) -> Self {
        Self::with(script, "")
    }

    /// The same with more configuration.
    pub(crate) fn with(script: &[&str], extra: &str) -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        place.script(script);
        std::fs::write(place.path().join("everturn.toml"), config(extra)).unwrap();
        place
    }

    /// Another script, for the next process. It goes on behind as many lines as a session has answers.
    pub(crate) fn script(&self, script: &[&str]) {
        std::fs::write(self.path().join("script.jsonl"), script.join("\n")).unwrap();
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Where its sessions are.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.path().join("data")
    }

    /// The program, at work in this place, with a clean environment.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_everturn"));
        command.args(args).current_dir(self.path()).env_clear().env("EVERTURN_DATA_DIR", self.data_dir());
        command.env("HOME", self.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran::of(self.command(args).output().unwrap())
    }

    /// Starts a daemon.
    pub(crate) fn serve(&self) -> Daemon {
        Daemon::start(self.command(&["serve"]))
    }
}

/// Puts a session into a store that has a whole event 0, and an open turn at event 1 that no writer could have begun.
pub(crate) fn damage(data_dir: &Path, session: &str) {
    use everturn_storage::{
        codec, contract,
        event::{Event, OpenReason},
        ids::{Epoch, Seq, SessionId},
        segment_store::SegmentStore,
        store::{Commit, Store},
        testing::sample,
    };
    use std::sync::Arc;
    let id = SessionId::trusted(session);
    let header = everturn_storage::event::SessionHeader { agent: "default".to_owned(), ..contract::header(&id) };
    let (store, _) = SegmentStore::open(data_dir).unwrap();
    for (seq, body) in (0..).zip([sample::opened(OpenReason::Fresh, 1), sample::turn_start(7)]) {
        let first = Seq(seq);
        let event = Arc::new(Event { seq: first, time_ms: 5, body });
        let bytes = codec::encode_commit(&id, Epoch(1), first, None, &[event]).unwrap().into();
        let beside = (seq == 0).then(|| Arc::new(header.clone()));
        let summary = Some(Arc::new(everturn_storage::store::SessionSummary {
            open_turn: Some(everturn_storage::ids::Turn(7)),
            ..contract::summary(&id, seq, 1)
        }));
        let commit = Commit { session: id.clone(), epoch: Epoch(1), first, count: 1, bytes, header: beside, summary };
        store.commit(&[commit]).unwrap();
    }
    store.sync().unwrap();
    store.close().unwrap();
}

/// What a run of the program left.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Exit code; none when a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Each line of stdout as JSON.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
    }

    /// Panics unless it ended with this code.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }
}

/// A daemon in its own process; killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    /// `http://127.0.0.1:PORT`.
    pub(crate) url: String,
    /// Sent as bearer with every request of [`Daemon::request`].
    pub(crate) token: Option<String>,
    http: reqwest::Client,
}

impl Daemon {
    /// Starts it and waits for the line with its address.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let url =
            line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("no address: {line:?}")).to_owned();
        // The choice stands for the process; another test may have made it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let timeout = std::time::Duration::from_secs(WAIT_S);
        let http = reqwest::Client::builder().no_proxy().timeout(timeout).build().unwrap();
        Self { child, url, token: None, http }
    }

    /// The same, or none when it dies before it is ready; its stderr can be heard.
    pub(crate) fn start_heard(mut command: Command) -> (Option<Self>, Heard) {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let heard = Heard::of(child.stderr.take().unwrap());
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let Some(url) = line.trim().strip_prefix("listening on ") else {
            child.wait().unwrap();
            return (None, heard);
        };
        let _ = rustls::crypto::ring::default_provider().install_default();
        let timeout = std::time::Duration::from_secs(WAIT_S);
        let http = reqwest::Client::builder().no_proxy().timeout(timeout).build().unwrap();
        (Some(Self { url: url.to_owned(), child, token: None, http }), heard)
    }

    /// As [`Daemon::ask`]; none when the process died before it answered.
    pub(crate) async fn try_ask(&self, method: &str, path: &str, body: Option<Value>) -> Option<(u16, Value)> {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        let text = response.text().await.ok()?;
        Some((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// Whether it ended by itself.
    pub(crate) fn is_dead(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A signal, by name: `TERM`, `INT`, `KILL`.
    pub(crate) fn signal(&self, name: &str) {
        assert!(Command::new("kill").args(["-s", name, &self.pid().to_string()]).status().unwrap().success());
    }

    /// Waits for its end: exit code, and what it printed on stdout after the address.
    pub(crate) fn wait(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        let mut rest = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        (code, rest)
    }

    /// Stops it as a service manager does.
    pub(crate) fn stop(self) -> Option<i32> {
        self.signal("TERM");
        self.wait().0
    }

    /// Kills it, as a crash does, and waits until the kernel is done with it.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// A request to be finished by the caller.
    pub(crate) fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method.parse().unwrap(), format!("{}{path}", self.url));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends and gives status and JSON; `null` for an empty body.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        read(request.send().await.unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        self.ask("GET", path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.ask("POST", path, Some(body)).await
    }

    /// A fresh session of the default agent, with this id.
    pub(crate) async fn create(&self, id: &str) {
        assert_eq!(self.post("/v1/sessions", json!({"id": id})).await.0, 201);
    }

    /// Submits a message and gives its receipt.
    pub(crate) async fn submit(&self, session: &str, kind: &str, text: &str) -> Value {
        let body = json!({"kind": kind, "content": text});
        let (status, receipt) = self.post(&format!("/v1/sessions/{session}/messages"), body).await;
        assert_eq!(status, 202, "{receipt}");
        receipt
    }

    /// Waits for the end of a message's turn.
    pub(crate) async fn settled(&self, session: &str, item: &str) -> Value {
        let (status, report) = self.get(&format!("/v1/sessions/{session}/messages/{item}?wait={WAIT_S}")).await;
        assert_eq!(status, 200, "{report}");
        report
    }

    /// Sends and waits: what became of it.
    pub(crate) async fn turn(&self, session: &str, text: &str) -> Value {
        let receipt = self.submit(session, "send", text).await;
        self.settled(session, receipt["item_id"].as_str().unwrap()).await
    }

    /// Every durable event.
    pub(crate) async fn events(&self, session: &str) -> Vec<Value> {
        let mut all: Vec<Value> = Vec::new();
        loop {
            let path = format!("/v1/sessions/{session}/events?from={}", all.len());
            let (status, page) = self.get(&path).await;
            assert_eq!(status, 200, "{page}");
            all.extend(page["events"].as_array().unwrap().iter().cloned());
            if page.get("next").is_none() {
                return all;
            }
        }
    }

    /// The stream of a session, behind the event `last`.
    pub(crate) async fn stream(&self, session: &str, last: Option<u64>) -> Stream {
        let mut request = self.request("GET", &format!("/v1/sessions/{session}/stream"));
        if let Some(last) = last {
            request = request.header("Last-Event-ID", last.to_string());
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        Stream { response, buffer: String::new() }
    }
}

/// What a daemon says on stderr, line by line. Everything is shown too when a test fails.
pub(crate) struct Heard {
    lines: tokio::sync::mpsc::UnboundedReceiver<String>,
    all: Vec<String>,
}

impl Heard {
    fn of(stderr: std::process::ChildStderr) -> Self {
        let (said, lines) = tokio::sync::mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = said.send(line);
            }
        });
        Self { lines, all: Vec::new() }
    }

    /// Waits for a line with these words; false when the process ended without it.
    pub(crate) async fn hear(&mut self, words: &str) -> bool {
        let limit = tokio::time::Instant::now() + std::time::Duration::from_secs(WAIT_S);
        loop {
            match tokio::time::timeout_at(limit, self.lines.recv()).await {
                Ok(Some(line)) => {
                    let found = line.contains(words);
                    self.all.push(line);
                    if found {
                        return true;
                    }
                }
                Ok(None) => return false,
                Err(_) => panic!("{words:?} was never heard, but {:#?}", self.all),
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Status and JSON of an answer.
pub(crate) async fn read(response: reqwest::Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    let value = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap_or(Value::String(text)) };
    (status, value)
}

/// A stream of server-sent events.
pub(crate) struct Stream {
    response: reqwest::Response,
    buffer: String,
}

/// One of them.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) event: String,
    pub(crate) id: Option<u64>,
    pub(crate) data: Value,
}

impl Stream {
    /// The next one that is no comment; none at the end.
    pub(crate) async fn next(&mut self) -> Option<Sent> {
        loop {
            while let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.buffer = rest;
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                if let Some(data) = field("data:") {
                    return Some(Sent {
                        event: field("event:").unwrap_or("message").to_owned(),
                        id: field("id:").map(|id| id.parse().unwrap()),
                        data: serde_json::from_str(data).unwrap(),
                    });
                }
            }
            let chunk = self.response.chunk().await.ok()??;
            self.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// Ends when a comment was sent.
    pub(crate) async fn comment(&mut self) {
        while !self.buffer.lines().any(|line| line.starts_with(':')) {
            let chunk = self.response.chunk().await.unwrap().unwrap();
            self.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// Durable events up to the first of this type, which is the last.
    pub(crate) async fn until(&mut self, event: &str) -> Vec<Sent> {
        let mut all = Vec::new();
        while let Some(sent) = self.next().await {
            if sent.id.is_some() {
                let last = sent.event == event;
                all.push(sent);
                if last {
                    break;
                }
            }
        }
        all
    }
}
