//! One batch that runs: the window, and the tasks that do what it says.

use super::{
    PoolArgs, PoolMessage, policy,
    result::keep_contexts,
    toolbox::{Prepared, Toolbox},
    types::{BodyEnd, Effect, Input, Timer, Verdict},
    window::Window,
};
use crate::{
    fault,
    handle::Frame,
    own_work,
    ports::{
        AgentProfile, Signal, Tool, ToolContext,
        tool::{CallView, ToolFailure, ToolNotes, ToolOutput},
    },
    protocol::{
        AppendClass, AppendError, Appended, BatchDone, BatchFault, CheckpointFailed, CheckpointKind, JournalRequest,
        RunBatch,
    },
    reply::Reply,
};
use everturn_storage::{event::EventBody, ids::Seq, log::LogState, message::Block};
use futures::FutureExt;
use ractor::ActorRef;
use std::{collections::VecDeque, panic::AssertUnwindSafe, sync::Arc, time::Duration};
use tokio::task::{AbortHandle, JoinSet};

/// The answer to a batch.
pub(super) type Answer = Result<BatchDone, BatchFault>;

/// Should the window ever ask for a call that it had not looked at: an answer is better than a wait for ever.
const UNPREPARED: &str = "the call was not looked at before it was to run; this is a fault of the tool pool";

/// A body that was started.
struct Body {
    signal: Signal,
    task: AbortHandle,
}

/// What is shared by the batches of one pool.
pub(super) struct Shared {
    pub(super) args: Arc<PoolArgs>,
    pub(super) myself: ActorRef<PoolMessage>,
    /// Every body of the session; dropping it ends them all.
    pub(super) bodies: JoinSet<()>,
    /// Bodies that were let go, oldest first.
    pub(super) detached: VecDeque<AbortHandle>,
}

pub(super) struct Batch {
    number: u64,
    run: RunBatch,
    profile: Arc<AgentProfile>,
    toolbox: Toolbox,
    window: Window,
    prepared: Vec<Option<Prepared>>,
    bodies: Vec<Option<Body>>,
    /// Policies, timers and the watch on the signal; they end with the batch.
    tasks: JoinSet<()>,
    view: Arc<LogState>,
    reply: Option<Reply<Answer>>,
}

impl Drop for Batch {
    /// A body that still runs when its batch is gone has nobody to answer to (6.10).
    fn drop(&mut self) {
        for body in self.bodies.iter().flatten() {
            body.signal.token().cancel();
        }
    }
}

impl Batch {
    pub(super) fn new(
        number: u64,
        run: RunBatch,
        reply: Reply<Answer>,
        profile: Arc<AgentProfile>,
        toolbox: Toolbox,
        window: Window,
        view: Arc<LogState>,
    ) -> Self {
        let calls = run.calls.len();
        Self {
            number,
            run,
            profile,
            toolbox,
            window,
            prepared: vec![None; calls],
            bodies: (0..calls).map(|_| None).collect(),
            tasks: JoinSet::new(),
            view,
            reply: Some(reply),
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Whether the answer was given.
    pub(super) fn ended(&self) -> bool {
        self.window.ended()
    }

    pub(super) fn start(&mut self, shared: &mut Shared) {
        let signal = self.run.signal.clone();
        let tell = self.teller(shared);
        let cancelled = signal.fired();
        self.tasks.spawn(async move {
            signal.wait().await;
            tell(Input::Cancel);
        });
        self.take(Input::Start { cancelled }, shared);
    }

    /// What the journal said to an append.
    pub(super) fn appended(&mut self, answer: Result<Appended, AppendError>, shared: &mut Shared) {
        let input = match answer {
            Ok(Appended { first, view, .. }) => {
                self.view = view;
                Input::Appended { first }
            }
            Err(error) => Input::AppendFailed { error },
        };
        self.take(input, shared);
    }

    /// Feeds the window, and what it can be told at once, until it waits.
    pub(super) fn take(&mut self, input: Input, shared: &mut Shared) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let world = Arc::clone(&shared.args.world);
            for effect in self.window.step(input, &mut || world.fresh_id()) {
                inputs.extend(self.perform(effect, shared));
            }
        }
        while self.tasks.try_join_next().is_some() {}
    }

    fn perform(&mut self, effect: Effect, shared: &mut Shared) -> Option<Input> {
        fault::reach(effect.point(), &shared.args.session);
        match effect {
            Effect::Classify { index } => {
                let (shape, prepared) = self.toolbox.classify(&self.run.calls[index]);
                self.prepared[index] = prepared;
                return Some(Input::Classified { index, shape });
            }
            Effect::Append { events } => self.append(events, shared),
            Effect::Checkpoint { upto } => self.checkpoint(upto, shared),
            Effect::AskPolicy { index } => self.ask_before(index, shared),
            Effect::AskPost { index, content, is_error } => self.ask_after(index, content, is_error, shared),
            Effect::RunBody { index } => self.run_body(index, shared),
            Effect::FireSignal { index } => {
                if let Some(body) = &self.bodies[index] {
                    // The token alone: a cause would count as the cause of the whole turn.
                    body.signal.token().cancel();
                }
            }
            Effect::ArmTimer { timer, after_ms } => self.arm(timer, after_ms, shared),
            Effect::Abandon { index } => {
                if let Some(body) = self.bodies[index].take() {
                    shared.let_go(body.task);
                }
            }
            Effect::Notice { code, message } => {
                (shared.args.notices)(Frame::Notice { code: code.to_owned(), message });
            }
            Effect::Done { concluded, aborted } => {
                let RunBatch { turn, step, .. } = self.run;
                self.answer(Ok(BatchDone { turn, step, concluded, aborted, view: Arc::clone(&self.view) }));
            }
            Effect::Fault { error } => self.answer(Err(BatchFault { error })),
        }
        None
    }

    fn answer(&mut self, answer: Answer) {
        if let Some(reply) = self.reply.take() {
            reply.send(answer);
        }
    }

    /// A way to tell this batch of something; when the pool is gone nobody wants to know.
    fn teller(&self, shared: &Shared) -> impl Fn(Input) + Send + 'static {
        let (number, myself) = (self.number, shared.myself.clone());
        move |input| drop(myself.cast(PoolMessage::Happened { batch: number, input }))
    }

    fn append(&self, mut events: Vec<EventBody>, shared: &Shared) {
        let waiting = self.view.next_turn().len() + self.view.next_step().len();
        let capacity = self.profile.limits.inbox_capacity;
        let left_out = keep_contexts(&mut events, capacity.saturating_sub(waiting));
        if left_out > 0 {
            let message = format!(
                "{left_out} contexts of tools were left out: the inbox takes {capacity} items; raise inbox_capacity"
            );
            (shared.args.notices)(Frame::Notice { code: "INBOX_FULL".to_owned(), message });
        }
        let (number, myself) = (self.number, shared.myself.clone());
        let reply = Reply::new(move |answer| drop(myself.cast(PoolMessage::Appended { batch: number, answer })));
        let epoch = shared.args.epoch;
        shared.args.journal.ask(JournalRequest::Append { epoch, events, class: AppendClass::Closing, reply });
    }

    fn checkpoint(&self, upto: Seq, shared: &Shared) {
        let tell = self.teller(shared);
        let reply = Reply::new(move |answer: Result<Seq, CheckpointFailed>| {
            tell(answer.map_or(Input::CheckpointFailed, |upto| Input::Durable { upto }));
        });
        shared.args.journal.ask(JournalRequest::Checkpoint { kind: CheckpointKind::Execute, upto, reply });
    }

    fn call_view(&self, index: usize, shared: &Shared) -> Option<CallView> {
        let call = &self.run.calls[index];
        self.prepared[index].as_ref().map(|prepared| CallView {
            session: shared.args.session.clone(),
            turn: self.run.turn,
            step: self.run.step,
            call_id: call.call_id.clone(),
            name: call.name.clone(),
            args: prepared.args.clone(),
        })
    }

    fn ask_before(&mut self, index: usize, shared: &Shared) {
        let (profile, signal, tell) = (Arc::clone(&self.profile), self.run.signal.clone(), self.teller(shared));
        let Some(call) = self.call_view(index, shared) else {
            return tell(Input::Decided { index, verdict: Verdict::Failed { why: UNPREPARED.to_owned() } });
        };
        self.tasks.spawn(async move {
            let before = policy::before(&profile.tool_policies, &call, &signal);
            let verdict = own_work::of(call.session.clone(), before).await;
            tell(Input::Decided { index, verdict });
        });
    }

    fn ask_after(&mut self, index: usize, content: Vec<Block>, is_error: bool, shared: &Shared) {
        let (profile, tell) = (Arc::clone(&self.profile), self.teller(shared));
        let Some(call) = self.call_view(index, shared) else {
            return tell(Input::Posted { index, verdict: Err(UNPREPARED.to_owned()) });
        };
        self.tasks.spawn(async move {
            let after = policy::after(&profile.tool_policies, &call, content, is_error);
            let verdict = own_work::of(call.session.clone(), after).await;
            tell(Input::Posted { index, verdict });
        });
    }

    fn run_body(&mut self, index: usize, shared: &mut Shared) {
        let Some(Prepared { tool, args }) = self.prepared[index].clone() else {
            let end = BodyEnd::Failed(ToolFailure::text(UNPREPARED), ToolNotes::default());
            return self.teller(shared)(Input::BodyDone { index, end, signalled: false });
        };
        let signal = self.run.signal.child();
        let RunBatch { turn, step, .. } = self.run;
        let call_id = self.run.calls[index].call_id.clone();
        let ctx = ToolContext::new(shared.args.session.clone(), turn, step, call_id, signal.clone());
        let (watch, tell) = (signal.clone(), self.teller(shared));
        let task = shared.bodies.spawn(async move {
            let body = own_work::of(ctx.session.clone(), body(tool, args, ctx.clone()));
            let ended = AssertUnwindSafe(body).catch_unwind().await;
            let end = match ended {
                Ok(Ok(output)) => BodyEnd::Ok(output, ctx.notes()),
                Ok(Err(failure)) => BodyEnd::Failed(failure, ctx.notes()),
                Err(_) => BodyEnd::Panicked,
            };
            tell(Input::BodyDone { index, end, signalled: watch.fired() });
        });
        self.bodies[index] = Some(Body { signal, task });
    }

    fn arm(&mut self, timer: Timer, after_ms: u64, shared: &Shared) {
        let tell = self.teller(shared);
        self.tasks.spawn(async move {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            tell(Input::Timer(timer));
        });
    }
}

async fn body(tool: Arc<dyn Tool>, args: serde_json::Value, ctx: ToolContext) -> Result<ToolOutput, ToolFailure> {
    let session = ctx.session.clone();
    if let Some(why) = fault::failure("tool.body", &session) {
        return Err(ToolFailure::text(why));
    }
    let ended = tool.run(args, ctx).await;
    match fault::failure("tool.body_done", &session) {
        Some(why) => Err(ToolFailure::text(why)),
        None => ended,
    }
}

impl Shared {
    /// Lets a body run on without anybody who waits for it. Only so many may.
    fn let_go(&mut self, task: AbortHandle) {
        self.detached.retain(|task| !task.is_finished());
        self.detached.push_back(task);
        if self.detached.len() > crate::limits::DETACHED_BODIES_MAX
            && let Some(oldest) = self.detached.pop_front()
        {
            oldest.abort();
        }
    }
}
