//! Small actors around the driver: closures over one shared log.

use super::super::{DriverMsg, spawn};
use crate::{
    handle::Frame,
    ports::{extension::ExtensionError, *},
    protocol::*,
    testing::TestWorld,
};
use async_trait::async_trait;
use everturn_storage::{
    chunk::{BlockKind, Chunk, Finish},
    event::*,
    ids::*,
    log::{
        LogState,
        request::{MessageView, ModelRequest},
    },
    message::{Failure, plain_text},
    testing::sample,
};
use futures::{StreamExt, stream};
use ractor::ActorRef;
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

pub(super) use super::super::DriverArgs;

/// What the model does next.
#[derive(Clone, Copy)]
pub(super) enum Say {
    Text(&'static str),
    Calls(&'static [&'static str]),
    Fails(&'static str),
    /// Says this and then nothing until the signal fires.
    Hang(&'static str),
}

pub(super) struct Setup {
    pub(super) answers: Vec<Say>,
    pub(super) config: RequestConfig,
    pub(super) pre_step: Vec<Arc<dyn PreStep>>,
    pub(super) pool_dies: bool,
    /// Checkpoints of this kind wait for [`Town::release`].
    pub(super) hold: Option<CheckpointKind>,
}

impl Default for Setup {
    fn default() -> Self {
        let config = sample::config();
        Self { answers: Vec::new(), config, pre_step: Vec::new(), pool_dies: false, hold: None }
    }
}

pub(super) struct Adapter {
    answers: Mutex<VecDeque<Say>>,
    requests: Mutex<Vec<Vec<String>>>,
    pub(super) dropped: AtomicBool,
}

struct Call(Arc<Adapter>);

struct OnDrop(Arc<Adapter>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.dropped.store(true, Ordering::SeqCst);
    }
}

impl Dispatch for Call {
    fn dispatch(self: Box<Self>, request: ModelRequest, signal: Signal) -> ChunkStream {
        let text = |message: &everturn_storage::log::request::ModelMessage| match message.view() {
            Some(MessageView::System(said) | MessageView::User(said) | MessageView::Assistant(said)) => {
                plain_text(&said.content)
            }
            Some(MessageView::Tool(said)) => plain_text(&said.content),
            None => String::new(),
        };
        self.0.requests.lock().unwrap().push(request.messages.iter().map(text).collect());
        let say = self.0.answers.lock().unwrap().pop_front().unwrap_or(Say::Text("Fine."));
        let guard = OnDrop(Arc::clone(&self.0));
        let (chunks, hangs) = chunks(say);
        let tail = stream::once(async move {
            let _guard = guard;
            signal.wait().await;
            Chunk::Finish { finish: Finish::Aborted }
        });
        let head = stream::iter(chunks);
        if hangs { Box::pin(head.chain(tail)) } else { Box::pin(head) }
    }
}

fn chunks(say: Say) -> (Vec<Chunk>, bool) {
    let said = |text: &str| {
        let text = text.to_owned();
        vec![Chunk::BlockStart { index: 0, kind: BlockKind::Text }, Chunk::TextDelta { index: 0, text }]
    };
    let finish = |finish| Chunk::Finish { finish };
    match say {
        Say::Text(text) => {
            let mut chunks = said(text);
            chunks.extend([Chunk::BlockEnd { index: 0 }, finish(Finish::Stop)]);
            (chunks, false)
        }
        Say::Calls(ids) => {
            let mut chunks = Vec::new();
            for (index, id) in (0..).zip(ids) {
                let kind = BlockKind::ToolCall { call_id: CallId::trusted(*id), name: "time".into() };
                let text = "{}".to_owned();
                chunks.extend([
                    Chunk::BlockStart { index, kind },
                    Chunk::CallFragment { index, text },
                    Chunk::BlockEnd { index },
                ]);
            }
            chunks.push(finish(Finish::ToolUse));
            (chunks, false)
        }
        Say::Fails(code) => (vec![finish(Finish::Error { failure: Failure::new(code, "no") })], false),
        Say::Hang(text) => (said(text), true),
    }
}

struct Route(Arc<Adapter>);

#[async_trait]
impl ModelAdapter for Route {
    async fn prepare(&self, request: PrepareRequest, _signal: Signal) -> Result<Prepared, Failure> {
        Ok(Prepared {
            config: request.config,
            defaulted: vec![],
            context_window: None,
            input_modalities: None,
            system_update: SystemUpdate::Replace,
            retry: None,
            call: Box::new(Call(Arc::clone(&self.0))),
        })
    }
}

struct Configured(Arc<AgentProfile>, Arc<Adapter>);

impl Profiles for Configured {
    fn profile(&self, _agent: &str) -> Option<Arc<AgentProfile>> {
        Some(Arc::clone(&self.0))
    }

    fn adapter(&self, _provider: &str) -> Option<Arc<dyn ModelAdapter>> {
        Some(Arc::new(Route(Arc::clone(&self.1))))
    }
}

/// No profile, no adapter.
pub(super) struct Nothing;

impl Profiles for Nothing {
    fn profile(&self, _agent: &str) -> Option<Arc<AgentProfile>> {
        None
    }

    fn adapter(&self, _provider: &str) -> Option<Arc<dyn ModelAdapter>> {
        None
    }
}

/// What the actors share.
struct Shared {
    log: LogState,
    hold: Option<CheckpointKind>,
    held: Vec<(Seq, crate::reply::Reply<Result<Seq, CheckpointFailed>>)>,
    signal: Signal,
    idle: bool,
    frames: Vec<Frame>,
    pool_dies: bool,
}

impl Shared {
    fn commit(&mut self, bodies: Vec<EventBody>) -> Result<Appended, AppendError> {
        let first = self.log.next_seq();
        self.log = self.log.stage(bodies, 1_000)?.0;
        let last = Seq(self.log.next_seq().0 - 1);
        Ok(Appended { first, last, view: Arc::new(self.log.clone()) })
    }

    fn journal(&mut self, request: JournalRequest) {
        match request {
            JournalRequest::Append { events, reply, .. } => reply.send(self.commit(events)),
            JournalRequest::Checkpoint { kind, upto, reply } => {
                if self.hold == Some(kind) {
                    self.held.push((upto, reply));
                } else {
                    reply.send(Ok(upto));
                }
            }
            JournalRequest::View { reply } => reply.send((Arc::new(self.log.clone()), None)),
            JournalRequest::Tail { reply, .. } => reply.send(Vec::new()),
        }
    }

    fn agent(&mut self, request: AgentRequest) {
        match request {
            AgentRequest::OpenTurn { reply } => {
                let Some(item) = self.log.next_turn().front().map(|pending| Arc::clone(&pending.item)) else {
                    self.idle = true;
                    return reply.send(OpenTurnAnswer::Idle);
                };
                let turn = self.log.last_turn().next();
                let claimed = sample::claimed(turn.0, 1, 1, &[item.id.as_str()]);
                let view = self.commit(vec![sample::turn_start(turn.0), claimed]).unwrap().view;
                self.signal = Signal::new();
                let batch = ClaimedBatch { items: vec![item], view };
                reply.send(OpenTurnAnswer::Opened { turn, signal: self.signal.clone(), batch });
            }
            AgentRequest::ClaimStep { owed: true, reply, .. } => {
                let batch = ClaimedBatch { items: Vec::new(), view: Arc::new(self.log.clone()) };
                reply.send(ClaimStepAnswer::Work(batch));
            }
            AgentRequest::ClaimStep { owed: false, reply, .. } => reply.send(ClaimStepAnswer::Nothing),
            AgentRequest::Fault { why } => panic!("{why}"),
            AgentRequest::Phase { .. } | AgentRequest::TurnEnded { .. } | AgentRequest::TurnSettled { .. } => {}
        }
    }

    fn pool(&mut self, batch: RunBatch, reply: crate::reply::Reply<Result<BatchDone, BatchFault>>) {
        let (turn, step) = (batch.turn, batch.step);
        for call in &batch.calls {
            let called = self.commit(vec![sample::call(turn.0, step.0, call.call_id.as_str())]).unwrap().first;
            if self.pool_dies {
                // The answer is dropped with everything else that a dead pool held.
                return;
            }
            let result = sample::result(turn.0, step.0, call.call_id.as_str(), called.0, None);
            self.commit(vec![result]).unwrap();
        }
        let view = Arc::new(self.log.clone());
        reply.send(Ok(BatchDone { turn, step, concluded: false, aborted: false, view }));
    }
}

/// A driver and everything around it.
pub(super) struct Town {
    shared: Arc<Mutex<Shared>>,
    pub(super) adapter: Arc<Adapter>,
    pub(super) driver: ActorRef<DriverMsg>,
}

impl Town {
    pub(super) async fn start(setup: Setup) -> Self {
        let mut log = sample::Sample::fresh().state;
        log = log.with_max_parallel(10);
        let (hold, pool_dies) = (setup.hold, setup.pool_dies);
        let shared =
            Shared { log, hold, held: Vec::new(), signal: Signal::new(), idle: false, frames: Vec::new(), pool_dies };
        let shared = Arc::new(Mutex::new(shared));
        let adapter = Arc::new(Adapter {
            answers: Mutex::new(setup.answers.into()),
            requests: Mutex::default(),
            dropped: AtomicBool::new(false),
        });
        let profile = AgentProfile {
            sections: vec![Section { name: "role".into(), text: "Be kind.".into() }],
            config: setup.config,
            pre_step: setup.pre_step,
            ..AgentProfile::default()
        };
        let with = |shared: &Arc<Mutex<Shared>>| Arc::clone(shared);
        let (journal, agent, pool, frames) = (with(&shared), with(&shared), with(&shared), with(&shared));
        let args = DriverArgs {
            session: SessionId::trusted("s"),
            epoch: Epoch(1),
            journal: JournalLink::new(move |request| journal.lock().unwrap().journal(request)),
            agent: AgentLink::new(move |request| agent.lock().unwrap().agent(request)),
            profiles: Arc::new(Configured(Arc::new(profile), Arc::clone(&adapter))),
            agent_name: "a".into(),
            world: Arc::new(TestWorld::new("w")),
            pool: ToolPoolLink::new(move |batch, reply| pool.lock().unwrap().pool(batch, reply)),
            frames: FrameSink::new(move |frame| frames.lock().unwrap().frames.push(frame)),
        };
        let driver = spawn(args, None).await.unwrap();
        Self { shared, adapter, driver }
    }

    pub(super) fn send(&mut self, id: &str) {
        self.shared.lock().unwrap().commit(vec![sample::queued(id, Origin::Send)]).unwrap();
    }

    pub(super) fn wake(&mut self) {
        self.shared.lock().unwrap().idle = false;
        self.driver.cast(DriverMsg::Command(DriverCommand::Wake)).unwrap();
    }

    pub(super) fn cancel(&mut self) {
        let turn = self.log().last_turn();
        self.driver.cast(DriverMsg::Command(DriverCommand::Cancel { turn, cause: Cause::User })).unwrap();
    }

    pub(super) fn signal(&self) -> Signal {
        self.shared.lock().unwrap().signal.clone()
    }

    pub(super) fn log(&self) -> LogState {
        self.shared.lock().unwrap().log.clone()
    }

    pub(super) fn frames(&self) -> Vec<Frame> {
        self.shared.lock().unwrap().frames.clone()
    }

    /// What the model was sent, as texts.
    pub(super) fn requests(&self) -> Vec<Vec<String>> {
        self.adapter.requests.lock().unwrap().clone()
    }

    /// Ends when the agent was told that nothing is left.
    pub(super) async fn idle(&self) {
        // Time moves only when everybody waits, so this is no poll of a clock.
        for _ in 0..60_000 {
            if self.shared.lock().unwrap().idle {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        panic!("the driver never came to rest");
    }

    /// Ends when everybody waits.
    pub(super) async fn settled(&self) {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }

    /// Ends when a chunk was shown.
    pub(super) async fn streaming(&self) {
        while !self.frames().iter().any(|frame| matches!(frame, Frame::Chunk { chunk: Chunk::TextDelta { .. }, .. })) {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    pub(super) fn release(&self) {
        let mut shared = self.shared.lock().unwrap();
        shared.hold = None;
        for (upto, reply) in std::mem::take(&mut shared.held) {
            reply.send(Ok(upto));
        }
    }

    pub(super) fn reasons(&self) -> Vec<TurnReason> {
        self.log().turns().iter().map(|row| row.reason.clone()).collect()
    }

    /// Codes of the turns that failed.
    pub(super) fn codes(&self) -> Vec<String> {
        let code = |reason| match reason {
            TurnReason::Error { failure } => Some(failure.code),
            _ => None,
        };
        self.reasons().into_iter().filter_map(code).collect()
    }
}

/// Never decides.
pub(super) struct Hangs;

#[async_trait]
impl PreStep for Hangs {
    async fn decide(&self, _: &Proposed, _: &Signal) -> Result<Decision, ExtensionError> {
        std::future::pending().await
    }
}

/// Fails.
pub(super) struct Fails;

#[async_trait]
impl PreStep for Fails {
    async fn decide(&self, _: &Proposed, _: &Signal) -> Result<Decision, ExtensionError> {
        Err(ExtensionError("scripted".into()))
    }
}

/// Panics.
pub(super) struct Panics;

#[async_trait]
impl PreStep for Panics {
    async fn decide(&self, _: &Proposed, _: &Signal) -> Result<Decision, ExtensionError> {
        panic!("scripted")
    }
}

/// Hands out a batch of the assistant's.
pub(super) struct TalksNonsense;

#[async_trait]
impl PreStep for TalksNonsense {
    async fn decide(&self, proposal: &Proposed, _: &Signal) -> Result<Decision, ExtensionError> {
        let mut batch = proposal.batch.clone();
        batch[0].message.role = everturn_storage::message::Role::Assistant;
        Ok(Decision::Enter(batch))
    }
}
