//! A journal that keeps every rule of the log, tools made of closures, and a pool between them.

use super::super::{PoolArgs, spawn};
use crate::{
    handle::Frame,
    ports::{
        AgentProfile, ModelAdapter, Profiles, Signal, Tool, ToolContext, ToolOutput, ToolPolicy, World,
        tool::ToolFailure,
    },
    protocol::{
        AppendError, Appended, BatchDone, BatchFault, CheckpointFailed, JournalLink, JournalRequest, RunBatch,
        ToolPoolLink,
    },
    reply::Reply,
};
use async_trait::async_trait;
use everturn_storage::{
    RawJson,
    event::{Event, EventData, HeaderReason, OpenReason, Origin, RequestHeader, ToolResult, ToolSpec},
    ids::{CallId, Epoch, Seq, SessionId, Step, Turn},
    log::{LogState, SettledRow},
    message::{Block, plain_text},
    testing::sample,
};
use futures::future::BoxFuture;
use ractor::ActorCell;
use serde_json::Value;
use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
use tokio::sync::{mpsc, oneshot};

type Run = dyn Fn(Value, ToolContext) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> + Send + Sync;

/// A tool made of closures.
pub(super) struct FnTool {
    spec: ToolSpec,
    pub(super) parallel: Box<dyn Fn(&Value) -> bool + Send + Sync>,
    pub(super) timeout_ms: Option<u64>,
    pub(super) abandonable: bool,
    run: Box<Run>,
}

impl FnTool {
    pub(super) fn new<F>(name: &str, run: impl Fn(Value, ToolContext) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<ToolOutput, ToolFailure>> + Send + 'static,
    {
        Self {
            spec: ToolSpec {
                name: name.to_owned(),
                description: String::new(),
                schema: RawJson::parse(r#"{"type":"object"}"#).unwrap(),
            },
            parallel: Box::new(|_| true),
            timeout_ms: None,
            abandonable: false,
            run: Box::new(move |args, ctx| Box::pin(run(args, ctx))),
        }
    }

    pub(super) fn schema(mut self, schema: &str) -> Self {
        self.spec.schema = RawJson::parse(schema).unwrap();
        self
    }

    pub(super) fn with(mut self, tune: impl FnOnce(&mut Self)) -> Self {
        tune(&mut self);
        self
    }
}

/// Answers its arguments.
pub(super) fn echo(name: &str) -> FnTool {
    FnTool::new(name, |args, _| async move { Ok(ToolOutput::text(args.to_string())) })
}

/// Works until it is told to stop.
pub(super) fn obedient(name: &str) -> FnTool {
    FnTool::new(name, |_, ctx| async move {
        ctx.signal.wait().await;
        Err(ToolFailure::text("stopped"))
    })
}

#[async_trait]
impl Tool for FnTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn parallel_safe(&self, args: &Value) -> bool {
        (self.parallel)(args)
    }

    fn timeout_ms(&self) -> Option<u64> {
        self.timeout_ms
    }

    fn abandonable(&self) -> bool {
        self.abandonable
    }

    async fn run(&self, args: Value, ctx: ToolContext) -> Result<ToolOutput, ToolFailure> {
        (self.run)(args, ctx).await
    }
}

struct OneProfile(Arc<AgentProfile>);

impl Profiles for OneProfile {
    fn profile(&self, _: &str) -> Option<Arc<AgentProfile>> {
        Some(Arc::clone(&self.0))
    }

    fn adapter(&self, _: &str) -> Option<Arc<dyn ModelAdapter>> {
        None
    }
}

struct Counting(AtomicU64);

impl World for Counting {
    fn now_ms(&self) -> i64 {
        0
    }

    fn random_u64(&self) -> u64 {
        4
    }

    fn fresh_id(&self) -> String {
        format!("fresh-{}", self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// What the journal holds and how it behaves.
pub(super) struct Journal {
    pub(super) state: LogState,
    pub(super) events: Vec<Arc<Event>>,
    /// Refuses this many appends, beginning with the next one.
    pub(super) fail_appends: usize,
    pub(super) fail_checkpoints: bool,
    pub(super) checkpoints: usize,
    /// Keeps checkpoints open instead of answering them.
    pub(super) hold_checkpoints: bool,
    held: Vec<Reply<Result<Seq, CheckpointFailed>>>,
}

impl Journal {
    fn answer(&mut self, request: JournalRequest) {
        match request {
            JournalRequest::Append { epoch, events, reply, .. } => {
                assert_eq!(epoch, Epoch(1));
                reply.send(self.append(events));
            }
            JournalRequest::Checkpoint { upto, reply, .. } => {
                self.checkpoints += 1;
                match (self.hold_checkpoints, self.fail_checkpoints) {
                    (true, _) => self.held.push(reply),
                    (false, true) => reply.send(Err(CheckpointFailed("no disk".into()))),
                    (false, false) => reply.send(Ok(upto)),
                }
            }
            JournalRequest::View { reply } => reply.send((Arc::new(self.state.clone()), None)),
            JournalRequest::Tail { reply, .. } => reply.send(Vec::new()),
        }
    }

    fn append(&mut self, bodies: Vec<everturn_storage::event::EventBody>) -> Result<Appended, AppendError> {
        if self.fail_appends > 0 {
            self.fail_appends -= 1;
            return Err(AppendError::Io("full".into()));
        }
        let first = self.state.next_seq();
        let (state, events) = self.state.stage(bodies, 0)?;
        self.state = state;
        self.events.extend(events);
        let last = self.events.last().map_or(first, |event| event.seq);
        Ok(Appended { first, last, view: Arc::new(self.state.clone()) })
    }
}

/// A step whose response has calls, and a pool for them.
pub(super) struct Stage {
    pub(super) link: ToolPoolLink,
    pub(super) pool: ActorCell,
    pub(super) signal: Signal,
    pub(super) frames: mpsc::UnboundedReceiver<Frame>,
    journal: Arc<Mutex<Journal>>,
    settled: SettledRow,
}

/// How the stage is set.
#[derive(Default)]
pub(super) struct Setting {
    pub(super) tools: Vec<FnTool>,
    /// Tools that the header does not show.
    pub(super) hidden: Vec<FnTool>,
    pub(super) policies: Vec<Arc<dyn ToolPolicy>>,
    pub(super) limits: crate::limits::Limits,
    /// Names and arguments; the ids are the places.
    pub(super) calls: Vec<(&'static str, &'static str)>,
}

impl Stage {
    pub(super) async fn set(setting: Setting) -> Self {
        let Setting { tools, hidden, policies, limits, calls } = setting;
        let specs = tools.iter().map(|tool| tool.spec.clone()).collect();
        let journal = Arc::new(Mutex::new(open_step(specs, &calls, limits.max_parallel_tool_calls)));
        let settled = {
            let journal = journal.lock().unwrap();
            journal.state.open_turn().and_then(|turn| turn.step.as_ref()).and_then(|step| step.settled.clone()).unwrap()
        };
        let tools = tools.into_iter().chain(hidden).map(|tool| Arc::new(tool) as Arc<dyn Tool>).collect();
        let profile = AgentProfile { tools, tool_policies: policies, limits, ..AgentProfile::default() };
        let (sender, frames) = mpsc::unbounded_channel();
        let deliver = Arc::clone(&journal);
        let args = PoolArgs {
            session: SessionId::trusted("s"),
            epoch: Epoch(1),
            journal: JournalLink::new(move |request| deliver.lock().unwrap().answer(request)),
            profiles: Arc::new(OneProfile(Arc::new(profile))),
            agent_name: "default".into(),
            world: Arc::new(Counting(AtomicU64::new(0))),
            notices: Arc::new(move |frame| drop(sender.send(frame))),
        };
        let (link, pool) = spawn(args, None).await.unwrap();
        Self { link, pool, signal: Signal::new(), frames, journal, settled }
    }

    pub(super) fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap()
    }

    pub(super) fn start(&self) -> oneshot::Receiver<Result<BatchDone, BatchFault>> {
        let settled = self.settled.clone();
        let batch = RunBatch {
            turn: Turn(1),
            step: Step(1),
            calls: settled.calls.into_iter().collect(),
            message: settled.seq,
            signal: self.signal.clone(),
        };
        let (reply, answer) = Reply::channel();
        self.link.run(batch, reply);
        answer
    }

    /// Runs the batch to its end, which closes the step.
    pub(super) async fn run(&self) -> BatchDone {
        let done = self.start().await.expect("the pool answers").expect("the journal takes it");
        let at_end = self.journal().append(vec![sample::step_end(1, 1)]);
        at_end.expect("I-16: every call has its result");
        done
    }

    pub(super) fn results(&self) -> Vec<ToolResult> {
        let events = self.journal().events.clone();
        events
            .iter()
            .filter_map(|event| match &event.body.data {
                EventData::ToolResult(result) => Some(result.clone()),
                _ => None,
            })
            .collect()
    }

    /// The code and the text of each result.
    pub(super) fn outcomes(&self) -> Vec<(String, String)> {
        let code = |result: &ToolResult| match (&result.error, result.message.is_error) {
            (Some(error), _) => error.code.clone(),
            (None, true) => "error".to_owned(),
            (None, false) => "ok".to_owned(),
        };
        self.results().iter().map(|result| (code(result), plain_text(&result.message.content))).collect()
    }

    pub(super) fn codes(&self) -> Vec<String> {
        self.outcomes().into_iter().map(|outcome| outcome.0).collect()
    }
}

fn open_step(tools: Vec<ToolSpec>, calls: &[(&str, &str)], cap: usize) -> Journal {
    let mut header = sample::header(HeaderReason::Initial);
    if let EventData::RequestHeader(RequestHeader { tools: shown, .. }) = &mut header.data {
        *shown = tools;
        shown.sort_by(|a, b| a.name.cmp(&b.name));
    }
    let mut answer = sample::answer(1, 1, 1, "", &["0"]);
    answer.message.content = calls
        .iter()
        .enumerate()
        .map(|(at, (name, arguments))| Block::ToolCall {
            call_id: CallId::trusted(at.to_string()),
            name: (*name).to_owned(),
            arguments: (*arguments).to_owned(),
            replay: None,
        })
        .collect();
    let batches = [
        vec![sample::opened(OpenReason::Fresh, 1)],
        vec![sample::queued("m", Origin::Send)],
        vec![sample::turn_start(1), sample::claimed(1, 1, 1, &["m"])],
        vec![sample::step_start(1, 1)],
        vec![sample::user("m", Origin::Send), header, sample::context(1_000)],
        vec![everturn_storage::event::EventBody::appended(answer.into())],
    ];
    let state = LogState::empty(SessionId::trusted("s")).with_max_parallel(cap as u32);
    let mut journal = Journal {
        state,
        events: Vec::new(),
        fail_appends: 0,
        fail_checkpoints: false,
        checkpoints: 0,
        hold_checkpoints: false,
        held: Vec::new(),
    };
    for batch in batches {
        journal.append(batch).unwrap();
    }
    journal
}

/// Counts who is inside, and the most there ever were.
#[derive(Default)]
pub(super) struct Crowd {
    now: AtomicUsize,
    peak: AtomicUsize,
}

impl Crowd {
    pub(super) fn enter(&self) {
        self.peak.fetch_max(self.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    }

    pub(super) fn leave(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn peak(&self) -> usize {
        self.peak.load(Ordering::SeqCst)
    }
}
