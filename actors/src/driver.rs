//! The driver of one session: a thin shell around [`Machine`].
//!
//! A handler feeds one input and hands out the effects, as casts to other actors and as one task beside; it waits
//! for nothing. The machine asks one question at a time, so there is one task at a time: the next question, the
//! end of the question, or the death of the driver drops it.

mod chains;
#[cfg(test)]
mod tests;

use crate::{
    fault,
    model_port::{self, AttemptContext},
    own_work,
    ports::{
        AgentProfile, Dispatch, ExtensionError, PrepareRequest, Prepared, Profiles, Proposed, Signal, World,
        extension::Failed,
    },
    protocol::{
        AgentLink, AgentRequest, AppendClass, BatchDone, BatchFault, CheckpointKind, DriverCommand, FrameSink,
        JournalLink, JournalRequest, OpenTurnAnswer, RunBatch, ToolPoolLink,
    },
    reply::Reply,
    turn::{Effect, FailedBy, Input, Machine, Outcome, RouteFacts, Settlement, Token},
};
use everturn_storage::{
    chunk::StreamRecord,
    event::{AttemptId, EventBody, RequestConfig},
    ids::{Attempt, Epoch, MessageId, RetryId, Seq, SessionId, Step, Turn},
    log::{CallRow, LogState, request::ModelRequest},
    message::{Failure, code},
};
use futures::FutureExt;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr};
use std::{collections::VecDeque, panic::AssertUnwindSafe, sync::Arc, time::Duration};
use tokio_util::task::AbortOnDropHandle;

/// What a driver works with.
#[derive(Clone)]
pub struct DriverArgs {
    /// Whose.
    pub session: SessionId,
    /// The opening that it writes under.
    pub epoch: Epoch,
    /// Where records go.
    pub journal: JournalLink,
    /// Who owns the inbox.
    pub agent: AgentLink,
    /// Where the profile and the adapters come from; read anew for every step.
    pub profiles: Arc<dyn Profiles>,
    /// Which agent of the configuration.
    pub agent_name: String,
    /// Chance and ids.
    pub world: Arc<dyn World>,
    /// Who runs tools.
    pub pool: ToolPoolLink,
    /// Who watches.
    pub frames: FrameSink,
}

impl std::fmt::Debug for DriverArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DriverArgs").field("session", &self.session).finish_non_exhaustive()
    }
}

/// What a driver is told.
#[derive(Debug)]
pub enum DriverMsg {
    /// By the agent.
    Command(DriverCommand),
    /// The agent answered about the next turn.
    Opened {
        /// Which question.
        token: Token,
        /// Its answer.
        answer: OpenTurnAnswer,
    },
    /// The route accepted.
    Prepared {
        /// Which question.
        token: Token,
        /// The call, usable once.
        prepared: Box<Prepared>,
    },
    /// The pool let its answer drop: it is dead (6.10).
    PoolLost {
        /// Which batch.
        token: Token,
    },
    /// The task that ran for a question panicked.
    TaskDied,
    /// A task or another actor reports.
    Happened(Input),
}

/// Starts the driver of a session, under `supervisor` when there is one.
///
/// It begins idle: the agent wakes it. When it stops or dies, its task goes with it, and with the task the stream
/// of the provider; what it had opened is closed by repair.
pub async fn spawn(args: DriverArgs, supervisor: Option<ActorCell>) -> Result<ActorRef<DriverMsg>, SpawnErr> {
    let (actor, _) = match supervisor {
        Some(supervisor) => Actor::spawn_linked(None, Driver, args, supervisor).await?,
        None => Actor::spawn(None, Driver, args).await?,
    };
    Ok(actor)
}

/// The actor. It has no state of its own; see [`DriverState`].
struct Driver;

struct DriverState {
    args: DriverArgs,
    myself: ActorRef<DriverMsg>,
    machine: Machine,
    /// The signal of the open turn, and whether the machine knows that it has fired.
    signal: Signal,
    told: bool,
    turn: Turn,
    /// The profile of the step, as assembled (T-9).
    profile: Arc<AgentProfile>,
    /// The prepared call of the attempt, until it is used (L-4).
    call: Option<Box<dyn Dispatch>>,
    /// What runs for the question that is asked.
    task: Option<AbortOnDropHandle<()>>,
    /// Answers that came at once.
    ready: VecDeque<Input>,
}

#[ractor::async_trait]
impl Actor for Driver {
    type Msg = DriverMsg;
    type State = DriverState;
    type Arguments = DriverArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<DriverMsg>,
        args: DriverArgs,
    ) -> Result<DriverState, ActorProcessingErr> {
        Ok(DriverState {
            args,
            myself,
            machine: Machine::new(),
            signal: Signal::new(),
            told: false,
            turn: Turn(0),
            profile: Arc::default(),
            call: None,
            task: None,
            ready: VecDeque::new(),
        })
    }

    async fn handle(
        &self,
        _myself: ActorRef<DriverMsg>,
        message: DriverMsg,
        state: &mut DriverState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            DriverMsg::Command(DriverCommand::Wake) => state.feed(Input::Wake),
            DriverMsg::Command(DriverCommand::Cancel { turn, cause }) => {
                if turn == state.turn {
                    state.signal.fire(cause);
                }
                state.settle();
            }
            DriverMsg::Opened { token, answer } => state.opened(token, answer),
            DriverMsg::Prepared { token, prepared } => state.prepared(token, *prepared),
            DriverMsg::PoolLost { token } => state.pool_lost(token),
            // Nobody else would answer the question: only repair helps.
            DriverMsg::TaskDied => return Err("a task of the driver panicked".into()),
            DriverMsg::Happened(input) => state.feed(input),
        }
        Ok(())
    }
}

impl DriverState {
    /// Feeds one input, then what was answered at once.
    fn feed(&mut self, input: Input) {
        self.ready.push_back(input);
        self.settle();
    }

    /// Feeds until nothing is ready. A signal that has fired comes first: whoever saw it before us may have
    /// answered already, and the machine must not take that for another outcome (F-1).
    fn settle(&mut self) {
        loop {
            if self.signal.fired() && !self.told {
                self.told = true;
                let cause = self.signal.cause().cloned().unwrap_or(everturn_storage::event::Cause::User);
                self.step(Input::Cancel { turn: self.turn, cause });
            }
            let Some(input) = self.ready.pop_front() else { return };
            self.step(input);
        }
    }

    fn step(&mut self, input: Input) {
        let stale = self.machine.stale();
        for effect in self.machine.step(input) {
            self.perform(effect);
        }
        if self.machine.stale() > stale {
            tracing::debug!(session = %self.args.session, stale = self.machine.stale(), "a stale answer was dropped");
        }
    }

    fn opened(&mut self, token: Token, answer: OpenTurnAnswer) {
        match answer {
            OpenTurnAnswer::Idle => self.feed(Input::NothingToOpen { token }),
            OpenTurnAnswer::Opened { turn, signal, batch } => {
                // The new signal must not be taken for one of the turn before.
                self.step(Input::TurnOpened { token, turn, items: batch.items, view: batch.view });
                (self.turn, self.signal, self.told) = (turn, signal, false);
                self.settle();
            }
        }
    }

    fn prepared(&mut self, token: Token, prepared: Prepared) {
        let Prepared { config, defaulted, context_window, input_modalities, system_update, retry, call } = prepared;
        let facts = RouteFacts { config, defaulted, context_window, input_modalities, system_update, retry };
        self.call = Some(call);
        let system_id = MessageId::trusted(self.args.world.fresh_id());
        self.feed(Input::Prepared { token, facts: Box::new(facts), system_id });
    }

    /// What the dead pool had recorded is in the journal.
    fn pool_lost(&mut self, token: Token) {
        let (myself, fresh) = (self.myself.clone(), self.args.world.fresh_id());
        let reply = Reply::new(move |(view, _): (Arc<LogState>, Option<Seq>)| {
            tell(&myself, Input::PoolDied { token, view, fresh });
        });
        self.args.journal.ask(JournalRequest::View { reply });
    }

    /// The one place where an effect becomes a deed.
    fn perform(&mut self, effect: Effect) {
        fault::reach(effect.point(), &self.args.session);
        match effect {
            Effect::AskOpenTurn { token } => self.ask_open_turn(token),
            Effect::Assemble { token, .. } => self.assemble(token),
            Effect::AskPreStep { token, proposed } => self.ask_pre_step(token, *proposed),
            Effect::AskRequest { token, turn, step, attempt } => self.ask_settings(token, turn, step, attempt),
            Effect::Prepare { token, config, modalities } => self.prepare(token, config, modalities),
            Effect::Append { token, events } => self.append(token, events),
            Effect::Checkpoint { token, kind, upto } => self.checkpoint(token, kind, upto),
            Effect::Dispatch { token, attempt, request } => self.dispatch(token, attempt, request),
            // The attempt watches the signal of the turn, which has fired.
            Effect::AbortAttempt { .. } => {}
            Effect::Abandon { .. } => self.task = None,
            Effect::AskRecovery { token, failed } => self.ask_recovery(token, *failed),
            Effect::ArmTimer { token, delay_ms } => self.arm(token, delay_ms),
            Effect::RunBatch { token, turn, step, calls, message } => {
                self.run_batch(token, turn, step, calls, message);
            }
            Effect::AskClaimStep { token, turn, proposal, step, owed, view } => {
                let myself = self.myself.clone();
                let reply = Reply::new(move |answer| tell(&myself, Input::ClaimAnswered { token, answer }));
                self.args.agent.tell(AgentRequest::ClaimStep { turn, proposal, step, owed, view, reply });
            }
            Effect::AskStopping { token, turn } => self.ask_stopping(token, turn),
            Effect::Publish(frame) => self.args.frames.send(frame),
            Effect::TellPhase { phase, view } => self.args.agent.tell(AgentRequest::Phase { phase, view }),
            Effect::TurnEnded { turn, reason, view } => {
                (self.call, self.task) = (None, None);
                self.args.agent.tell(AgentRequest::TurnEnded { turn, reason, view });
            }
            Effect::TurnSettled { turn, outcome } => {
                self.args.agent.tell(AgentRequest::TurnSettled { turn, outcome });
            }
            Effect::Fault { why } => {
                tracing::error!(session = %self.args.session, %why, "the turn cannot be closed");
                (self.call, self.task) = (None, None);
                self.args.agent.tell(AgentRequest::Fault { why });
            }
        }
    }

    fn ask_open_turn(&mut self, token: Token) {
        let myself = self.myself.clone();
        let reply = Reply::new(move |answer| drop(myself.cast(DriverMsg::Opened { token, answer })));
        self.args.agent.tell(AgentRequest::OpenTurn { reply });
    }

    fn assemble(&mut self, token: Token) {
        let result = match self.args.profiles.profile(&self.args.agent_name) {
            Some(profile) => {
                self.profile = profile;
                chains::assemble(&self.profile).map(Box::new)
            }
            None => Err(ExtensionError(format!("no agent {:?} is configured any more", self.args.agent_name))),
        };
        self.ready.push_back(Input::Assembled { token, result });
    }

    fn ask_pre_step(&mut self, token: Token, proposed: Proposed) {
        if self.profile.pre_step.is_empty() {
            let result = Ok(crate::ports::Decision::Pass);
            return self.ready.push_back(Input::Decided { token, result, view: None });
        }
        let (profile, signal, journal) = self.for_chain();
        self.spawn(async move {
            let result = chains::pre_step(&profile, proposed, &signal).await;
            Input::Decided { token, result, view: chains::view(&journal).await }
        });
    }

    fn ask_settings(&mut self, token: Token, turn: Turn, step: Step, attempt: Attempt) {
        if self.profile.request.is_empty() {
            let result = Ok(self.profile.config.clone());
            return self.ready.push_back(Input::RequestProposed { token, result });
        }
        let profile = Arc::clone(&self.profile);
        self.spawn(async move {
            Input::RequestProposed { token, result: chains::settings(&profile, turn, step, attempt).await }
        });
    }

    fn prepare(&mut self, token: Token, config: RequestConfig, modalities: Vec<String>) {
        self.call = None;
        let request = PrepareRequest { session: self.args.session.clone(), config, modalities };
        let (profiles, signal, myself) = (Arc::clone(&self.args.profiles), self.signal.clone(), self.myself.clone());
        self.task = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let session = request.session.clone();
            match own_work::of(session, model_port::prepare(&*profiles, request, signal)).await {
                Ok(prepared) => {
                    let prepared = Box::new(prepared);
                    drop(myself.cast(DriverMsg::Prepared { token, prepared }));
                }
                Err(failure) => tell(&myself, Input::Refused { token, failure }),
            }
        })));
    }

    fn append(&mut self, token: Token, events: Vec<EventBody>) {
        let myself = self.myself.clone();
        let reply = Reply::new(move |answer| {
            let input = match answer {
                Ok(appended) => Input::Appended { token, appended },
                Err(error) => Input::AppendFailed { token, error },
            };
            tell(&myself, input);
        });
        // The turn is open: whatever it writes goes on with it or closes it.
        let class = AppendClass::Closing;
        self.args.journal.ask(JournalRequest::Append { epoch: self.args.epoch, events, class, reply });
    }

    fn checkpoint(&mut self, token: Token, kind: CheckpointKind, upto: Seq) {
        let myself = self.myself.clone();
        let reply = Reply::new(move |answer| {
            let input = match answer {
                Ok(seq) => Input::Durable { token, seq },
                Err(error) => Input::CheckpointFailed { token, error },
            };
            tell(&myself, input);
        });
        self.args.journal.ask(JournalRequest::Checkpoint { kind, upto, reply });
    }

    fn dispatch(&mut self, token: Token, id: AttemptId, request: ModelRequest) {
        let world = Arc::clone(&self.args.world);
        let Some(call) = self.call.take() else {
            let failure = Failure::new(code::INVALID_PREPARED_CALL, "the prepared call was used before");
            let settlement = Box::new(Settlement {
                outcome: Outcome::Failed { failure, by: FailedBy::Consumer },
                usage: None,
                stream: StreamRecord::default(),
                message_id: MessageId::trusted(world.fresh_id()),
            });
            return self.ready.push_back(Input::Settled { token, settlement });
        };
        let context = AttemptContext {
            session: self.args.session.clone(),
            id,
            signal: self.signal.clone(),
            idle_timeout_ms: self.profile.limits.stream_idle_timeout_ms,
            frames: self.args.frames.clone(),
        };
        self.spawn(async move {
            let settlement = Box::new(model_port::attempt(call, request, context, &*world).await);
            Input::Settled { token, settlement }
        });
    }

    fn ask_recovery(&mut self, token: Token, failed: Failed) {
        let random = self.args.world.random_u64();
        let retry_id = RetryId::trusted(self.args.world.fresh_id());
        if self.profile.recovery.is_empty() {
            let result = Ok(crate::ports::RecoveryVerdict::Pass);
            return self.ready.push_back(Input::Recovered { token, result, random, retry_id, view: None });
        }
        let (profile, signal, journal) = self.for_chain();
        self.spawn(async move {
            let result = chains::recovery(&profile, &failed, &signal).await;
            Input::Recovered { token, result, random, retry_id, view: chains::view(&journal).await }
        });
    }

    fn arm(&mut self, token: Token, delay_ms: u64) {
        self.spawn(async move {
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            Input::Timer { token }
        });
    }

    fn run_batch(&mut self, token: Token, turn: Turn, step: Step, calls: Vec<CallRow>, message: Seq) {
        let mut lost = Lost { myself: self.myself.clone(), token, armed: true };
        let reply = Reply::new(move |answer: Result<BatchDone, BatchFault>| {
            lost.armed = false;
            let input = match answer {
                Ok(BatchDone { concluded, aborted, view, .. }) => Input::BatchDone { token, concluded, aborted, view },
                Err(BatchFault { error }) => Input::BatchFault { token, error },
            };
            tell(&lost.myself, input);
        });
        let signal = self.signal.clone();
        self.args.pool.run(RunBatch { turn, step, calls, message, signal }, reply);
    }

    fn ask_stopping(&mut self, token: Token, turn: Turn) {
        if self.profile.stopping.is_empty() {
            return self.ready.push_back(Input::StoppingDone { token, result: Ok(()), view: None });
        }
        let (profile, signal, journal) = self.for_chain();
        let session = self.args.session.clone();
        self.spawn(async move {
            let result = chains::stopping(&profile, &session, turn, &signal).await;
            Input::StoppingDone { token, result, view: chains::view(&journal).await }
        });
    }

    fn for_chain(&self) -> (Arc<AgentProfile>, Signal, JournalLink) {
        (Arc::clone(&self.profile), self.signal.clone(), self.args.journal.clone())
    }

    /// Runs `work` beside the driver; it takes the place of whatever ran for the question before.
    fn spawn(&mut self, work: impl Future<Output = Input> + Send + 'static) {
        let myself = self.myself.clone();
        let work = AssertUnwindSafe(own_work::of(self.args.session.clone(), work)).catch_unwind();
        self.task = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            match work.await {
                Ok(input) => tell(&myself, input),
                Err(_) => drop(myself.cast(DriverMsg::TaskDied)),
            }
        })));
    }
}

/// Reports to the driver, if it still lives.
fn tell(driver: &ActorRef<DriverMsg>, input: Input) {
    drop(driver.cast(DriverMsg::Happened(input)));
}

/// Reports the death of the pool when its answer is dropped.
struct Lost {
    myself: ActorRef<DriverMsg>,
    token: Token,
    armed: bool,
}

impl Drop for Lost {
    fn drop(&mut self) {
        if self.armed {
            drop(self.myself.cast(DriverMsg::PoolLost { token: self.token }));
        }
    }
}
