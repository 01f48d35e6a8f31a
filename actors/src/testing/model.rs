//! A model that plays a script (5.8).

use crate::ports::{ChunkStream, Dispatch, ModelAdapter, PrepareRequest, Prepared, Signal};
use async_trait::async_trait;
use everturn_storage::{
    chunk::{BlockKind, Chunk, Finish},
    event::SystemUpdate,
    ids::CallId,
    log::request::ModelRequest,
    message::{Failure, Usage},
};
use futures::{StreamExt, stream};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::watch;

/// Holds whoever passes until a test opens it, and tells the test who came.
#[derive(Debug, Clone)]
pub struct Gate {
    open: watch::Sender<bool>,
    arrived: watch::Sender<usize>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { open: watch::Sender::new(false), arrived: watch::Sender::new(0) }
    }
}

impl Gate {
    /// Lets everybody pass from now on.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Ends when `count` have come.
    pub async fn reached_by(&self, count: usize) {
        // This gate holds the sender, so the wait can only end well.
        drop(self.arrived.subscribe().wait_for(|arrived| *arrived >= count).await);
    }

    /// Waits until the gate is open.
    pub async fn pass(&self) {
        self.arrived.send_modify(|arrived| *arrived += 1);
        drop(self.open.subscribe().wait_for(|open| *open).await);
    }
}

/// One thing that an attempt does.
#[derive(Clone)]
pub enum Beat {
    /// Sends a chunk, unless the signal has fired: then the stream ends as aborted.
    Chunk(Chunk),
    /// Sends a chunk whatever the signal says.
    Deaf(Chunk),
    /// Calls back into the test, in the middle of the stream.
    Call(Arc<dyn Fn() + Send + Sync>),
    /// Waits at a gate, whatever the signal says.
    Hold(Gate),
    /// Waits for the signal, then ends as aborted.
    Hang,
}

/// What one attempt does, from its preparation on.
#[derive(Clone, Default)]
pub struct Play {
    /// Refuses to prepare.
    pub refuse: Option<Failure>,
    /// Waits here before it is prepared.
    pub hold_prepare: Option<Gate>,
    /// The stream, beat by beat. It ends after the last one.
    pub beats: Vec<Beat>,
}

impl Play {
    /// These chunks, and no end of their own.
    pub fn chunks(chunks: impl IntoIterator<Item = Chunk>) -> Self {
        Self { beats: chunks.into_iter().map(Beat::Chunk).collect(), ..Self::default() }
    }

    /// An answer in text.
    pub fn text(text: &str) -> Self {
        Self::chunks(text_block(0, text).into_iter().chain([usage(), finish(Finish::Stop)]))
    }

    /// Calls of tools: id, name, arguments.
    pub fn calls(calls: &[(&str, &str, &str)]) -> Self {
        let mut chunks = Vec::new();
        for (index, (id, name, arguments)) in (0..).zip(calls) {
            let kind = BlockKind::ToolCall { call_id: CallId::trusted(*id), name: (*name).to_owned() };
            chunks.push(Chunk::BlockStart { index, kind });
            chunks.push(Chunk::CallFragment { index, text: (*arguments).to_owned() });
            chunks.push(Chunk::BlockEnd { index });
        }
        Self::chunks(chunks.into_iter().chain([usage(), finish(Finish::ToolUse)]))
    }

    /// A failure before anything was said.
    pub fn failure(code: &str) -> Self {
        let failure = Failure::new(code, "by the script");
        Self::chunks([finish(Finish::Error { failure })])
    }

    /// A refusal of the route.
    pub fn refusal(code: &str) -> Self {
        Self { refuse: Some(Failure::new(code, "by the script")), ..Self::default() }
    }

    /// Some text, and then nothing until it is aborted.
    pub fn hang(text: &str) -> Self {
        let start = Chunk::BlockStart { index: 0, kind: BlockKind::Text };
        let said = Chunk::TextDelta { index: 0, text: text.to_owned() };
        let beats = if text.is_empty() { vec![] } else { vec![Beat::Chunk(start), Beat::Chunk(said)] };
        Self { beats: beats.into_iter().chain([Beat::Hang]).collect(), ..Self::default() }
    }

    /// Waits at a gate before anything else.
    #[must_use]
    pub fn held(mut self, gate: &Gate) -> Self {
        self.beats.insert(0, Beat::Hold(gate.clone()));
        self
    }

    /// Calls back before anything else.
    #[must_use]
    pub fn calling(mut self, back: impl Fn() + Send + Sync + 'static) -> Self {
        self.beats.insert(0, Beat::Call(Arc::new(back)));
        self
    }
}

fn text_block(index: u64, text: &str) -> [Chunk; 3] {
    [
        Chunk::BlockStart { index, kind: BlockKind::Text },
        Chunk::TextDelta { index, text: text.to_owned() },
        Chunk::BlockEnd { index },
    ]
}

fn usage() -> Chunk {
    Chunk::Usage { usage: Usage { input: 1, output: 1, ..Usage::default() } }
}

fn finish(finish: Finish) -> Chunk {
    Chunk::Finish { finish }
}

/// Plays scripts in order, whoever asks; when they are spent, it answers `ok`. It keeps every request that it got.
#[derive(Default)]
pub struct ScriptedModel {
    plays: Mutex<VecDeque<Play>>,
    requests: Arc<Mutex<Vec<ModelRequest>>>,
    dispatched: Arc<watch::Sender<usize>>,
}

impl ScriptedModel {
    /// What comes next.
    pub fn script(&self, plays: impl IntoIterator<Item = Play>) {
        self.plays.lock().unwrap_or_else(PoisonError::into_inner).extend(plays);
    }

    /// The requests so far, in order of dispatch.
    pub fn requests(&self) -> Vec<ModelRequest> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends when `count` requests were dispatched.
    pub async fn dispatched(&self, count: usize) {
        // This model holds the sender, so the wait can only end well.
        drop(self.dispatched.subscribe().wait_for(|dispatched| *dispatched >= count).await);
    }
}

#[async_trait]
impl ModelAdapter for ScriptedModel {
    async fn prepare(&self, request: PrepareRequest, _signal: Signal) -> Result<Prepared, Failure> {
        let next = self.plays.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let play = next.unwrap_or_else(|| Play::text("ok"));
        if let Some(gate) = &play.hold_prepare {
            gate.pass().await;
        }
        if let Some(failure) = play.refuse {
            return Err(failure);
        }
        let (requests, dispatched) = (Arc::clone(&self.requests), Arc::clone(&self.dispatched));
        Ok(Prepared {
            config: request.config,
            defaulted: Vec::new(),
            context_window: None,
            input_modalities: None,
            system_update: SystemUpdate::Replace,
            retry: None,
            call: Box::new(Scripted { beats: play.beats, requests, dispatched }),
        })
    }
}

struct Scripted {
    beats: Vec<Beat>,
    requests: Arc<Mutex<Vec<ModelRequest>>>,
    dispatched: Arc<watch::Sender<usize>>,
}

impl Dispatch for Scripted {
    fn dispatch(self: Box<Self>, request: ModelRequest, signal: Signal) -> ChunkStream {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        self.dispatched.send_modify(|dispatched| *dispatched += 1);
        let start = (VecDeque::from(self.beats), signal);
        stream::unfold(start, |(mut beats, signal)| async move {
            loop {
                let aborted = finish(Finish::Aborted);
                match beats.pop_front()? {
                    Beat::Chunk(_) if signal.fired() => return Some((aborted, (VecDeque::new(), signal))),
                    Beat::Chunk(chunk) | Beat::Deaf(chunk) => return Some((chunk, (beats, signal))),
                    Beat::Call(back) => back(),
                    Beat::Hold(gate) => gate.pass().await,
                    Beat::Hang => {
                        signal.wait().await;
                        return Some((aborted, (VecDeque::new(), signal)));
                    }
                }
            }
        })
        .boxed()
    }
}
