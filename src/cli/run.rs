//! `everturn run`: one send, in the daemon that owns the store or in one of its own that lives as long.
//!
//! Both ways go through the HTTP interface, so that there is one behaviour. The text of frames is shown as it comes;
//! the durable events say what was true and fill in what frames left out.

mod view;

use super::{
    Context, RunArgs,
    client::{Client, StreamEvent},
    error::{CliError, exit},
    inspect::remote_events,
    out,
    serve::{Signals, demo_note},
    session::{conclude, text_of, until_settled},
    source::session_id,
};
use crate::daemon::{Daemon, StartError};
use everturn_actors::limits::BootPending;
use everturn_storage::{ids::SessionId, store};
use serde_json::{Value, json};
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use view::{View, Wanted};

pub(super) async fn run(context: &Context, args: RunArgs) -> Result<u8, CliError> {
    if args.steer_stdin && args.prompt == "-" {
        return Err(CliError::bad_usage(
            "stdin cannot hold both the prompt and the steers; give the prompt as argument",
        ));
    }
    let prompt = text_of(args.prompt.clone())?;
    let mut signals = Signals::new()?;
    let (client, daemon, drain) = connect(context).await?;
    let result = Conversation::begin(context, &client, &args, &prompt).await;
    let result = match result {
        Ok(conversation) => conversation.hold(&mut signals).await,
        Err(error) => Err(error),
    };
    if let Some(daemon) = daemon {
        tokio::select! {
            () = daemon.stop(drain) => {}
            () = signals.next() => {}
        }
    }
    result
}

/// The daemon that owns the store, or one of our own on a free port of this machine.
async fn connect(context: &Context) -> Result<(Client, Option<Daemon>, Duration), CliError> {
    let mut loaded = context.load()?;
    let data_dir = context.data_dir(&loaded)?;
    let token = context.token(&loaded)?;
    let drain = Duration::from_secs(loaded.config.daemon.drain_s);
    if let Some(client) = Client::find(&data_dir, token.clone()).await? {
        return Ok((client, None, drain));
    }
    if loaded.demo {
        out::note(&demo_note(&loaded.candidates));
    }
    // Work that waits in other sessions is the daemon's: a process that lives for one turn would only cut it short.
    loaded.config.limits.boot_pending = BootPending::Park;
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    match Daemon::start(&loaded, &data_dir, listen, token.clone(), &out::note).await {
        Ok(daemon) => Ok((Client::at(format!("http://{}", daemon.address), token)?, Some(daemon), drain)),
        // A daemon may have come up in between.
        Err(StartError::Store(store::Error::Busy { holder })) => match Client::find(&data_dir, token).await? {
            Some(client) => Ok((client, None, drain)),
            None => Err(store::Error::Busy { holder }.into()),
        },
        Err(error) => Err(error.into()),
    }
}

/// The session of the arguments, and the last event that it had before.
async fn session_for(client: &Client, args: &RunArgs) -> Result<(SessionId, Option<u64>), CliError> {
    if let Some(text) = &args.session {
        let id = session_id(text)?;
        match client.get(&format!("/v1/sessions/{id}")).await {
            Ok(record) => {
                if let Some(agent) = args.agent.as_deref().filter(|agent| record["agent"] != **agent) {
                    return Err(CliError::bad_usage(format!(
                        "session {id} belongs to agent {}, not to {agent:?}; leave --agent out, or choose another session",
                        record["agent"]
                    )));
                }
                return Ok((id, record["last_seq"].as_u64()));
            }
            Err(error) if error.code == "NO_SESSION" => {}
            Err(error) => return Err(error),
        }
    }
    let mut body = json!({});
    if let Some(id) = &args.session {
        body["id"] = id.as_str().into();
    }
    if let Some(agent) = &args.agent {
        body["agent"] = agent.as_str().into();
    }
    if let Some(cwd) = std::env::current_dir().ok().and_then(|dir| dir.into_os_string().into_string().ok()) {
        body["cwd"] = cwd.into();
    }
    let created = client.post("/v1/sessions", &body).await?;
    Ok((session_id(created["id"].as_str().unwrap_or_default())?, None))
}

/// One message, until its turn and those of its steers are over.
struct Conversation<'a> {
    client: &'a Client,
    session: SessionId,
    view: View,
    stream: super::client::EventStream,
    /// Our message.
    item: String,
    /// Steers that were sent.
    steers: Vec<String>,
    stdin: Option<Lines<BufReader<Stdin>>>,
}

impl<'a> Conversation<'a> {
    async fn begin(context: &Context, client: &'a Client, args: &RunArgs, prompt: &str) -> Result<Self, CliError> {
        let (session, last) = session_for(client, args).await?;
        out::note(&format!("session: {session}"));
        let mut view = View::new(context.json);
        let mut last = last;
        if last.is_none() {
            // A fresh session is shown from its first event.
            last = remote_events(client, &session, 0, |event| view.event(event)).await?.checked_sub(1);
        }
        // Events between the status and the message belong to others; the stream begins behind what is known.
        let stream = client.stream(session.as_str(), last).await?;
        view.skip_to(last.map_or(0, |last| last + 1));
        let body = json!({"kind": "send", "content": prompt});
        let receipt = client.post(&format!("/v1/sessions/{session}/messages"), &body).await?;
        let item = receipt["item_id"].as_str().unwrap_or_default().to_owned();
        view.ours(&item);
        let stdin = args.steer_stdin.then(|| BufReader::new(tokio::io::stdin()).lines());
        Ok(Self { client, session, view, stream, item, steers: Vec::new(), stdin })
    }

    /// Shows what happens until our message has its end; the exit code is that of its turn.
    async fn hold(mut self, signals: &mut Signals) -> Result<u8, CliError> {
        let (client, session, item) = (self.client.clone(), self.session.clone(), self.item.clone());
        let settled = async move { until_settled(&client, &session, &item).await };
        tokio::pin!(settled);
        let mut cancelled = false;
        let report = loop {
            tokio::select! {
                report = &mut settled => break report?,
                event = self.stream.next() => self.take(event).await?,
                line = next_line(&mut self.stdin), if self.view.has_turn() => self.steer(line).await?,
                () = signals.next() => {
                    if cancelled {
                        return Err(CliError::new(exit::ABORTED, "ABORTED", "ended at once; the turn is closed when the session is opened next"));
                    }
                    cancelled = true;
                    out::note("cancelling");
                    let path = format!("/v1/sessions/{}/cancel", self.session);
                    self.client.post(&path, &json!({"cause": "user"})).await?;
                }
            }
        };
        for steer in std::mem::take(&mut self.steers) {
            // One that came too late for the turn has one of its own.
            tokio::select! {
                report = until_settled(self.client, &self.session, &steer) => drop(report?),
                () = signals.next() => break,
            }
        }
        let view = &mut self.view;
        remote_events(self.client, &self.session, view.next(), |event| view.event(event)).await?;
        view.end();
        conclude(&report)
    }

    async fn take(&mut self, event: Option<StreamEvent>) -> Result<(), CliError> {
        let Some(event) = event else {
            // It lagged or broke: the durable events are all there, from where we are.
            self.view.gap();
            self.stream = self.client.stream(self.session.as_str(), self.view.next().checked_sub(1)).await?;
            return Ok(());
        };
        let Ok(data) = serde_json::from_str::<Value>(&event.data) else { return Ok(()) };
        match event.name.as_str() {
            "frame" => {
                if let Wanted::Turn = self.view.frame(&data) {
                    self.ask_turn().await?;
                }
            }
            "lagged" => {}
            _ => self.view.event(&data),
        }
        Ok(())
    }

    /// Frames of a turn came before the word whose turn it is.
    async fn ask_turn(&mut self) -> Result<(), CliError> {
        for item in std::iter::once(&self.item).chain(&self.steers) {
            let report = self.client.get(&format!("/v1/sessions/{}/messages/{item}", self.session)).await?;
            if let Some(turn) = report["turn"].as_u64() {
                self.view.turn(turn);
            }
        }
        Ok(())
    }

    async fn steer(&mut self, line: Option<String>) -> Result<(), CliError> {
        let Some(line) = line else {
            self.stdin = None;
            return Ok(());
        };
        if line.trim().is_empty() {
            return Ok(());
        }
        let body = json!({"kind": "steer", "content": line});
        let receipt = self.client.post(&format!("/v1/sessions/{}/messages", self.session), &body).await?;
        let item = receipt["item_id"].as_str().unwrap_or_default().to_owned();
        self.view.ours(&item);
        self.steers.push(item);
        Ok(())
    }
}

/// The next line, never when nothing is read.
async fn next_line(stdin: &mut Option<Lines<BufReader<Stdin>>>) -> Option<String> {
    match stdin {
        Some(lines) => lines.next_line().await.ok().flatten(),
        None => std::future::pending().await,
    }
}
