//! The tool pool: runs the calls of one settled message and gives each its one result (6).
//!
//! What happens when is decided by a pure machine, [`Window`]. The actor feeds it and does what it says: bodies,
//! policies and timers are tasks that report back, and every record goes through the journal. The death of a body
//! never kills the pool; the death of the pool ends all bodies and drops the answer, which the driver takes as
//! "outcome unknown" (6.10).

mod batch;
mod output;
mod policy;
mod result;
mod toolbox;
pub mod types;
pub mod window;

pub use types::{BatchConfig, BodyEnd, Class, Effect, Input, Shape, Timer, Verdict, code};
pub use window::Window;

use crate::{
    handle::Frame,
    limits::CheckpointPolicy,
    ports::{AgentProfile, Profiles, World},
    protocol::{AppendError, Appended, BatchFault, JournalLink, JournalRequest, RunBatch, ToolPoolLink},
    reply::Reply,
};
use batch::{Answer, Batch, Shared};
use everturn_storage::{
    ids::{Epoch, SessionId},
    log::LogState,
};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr};
use std::{collections::VecDeque, sync::Arc};
use tokio::task::JoinSet;
use toolbox::{Schemas, Toolbox};

/// What a pool works with.
pub struct PoolArgs {
    /// Whose.
    pub session: SessionId,
    /// The opening that it writes under.
    pub epoch: Epoch,
    /// Where records go.
    pub journal: JournalLink,
    /// Where tools, policies and limits come from; the profile is read when a batch begins.
    pub profiles: Arc<dyn Profiles>,
    /// Which agent of the configuration.
    pub agent_name: String,
    /// Where ids come from.
    pub world: Arc<dyn World>,
    /// Where [`Frame::Notice`] goes; must not block.
    pub notices: Arc<dyn Fn(Frame) + Send + Sync>,
}

impl std::fmt::Debug for PoolArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolArgs").field("session", &self.session).finish_non_exhaustive()
    }
}

/// Starts the pool of a session, under `supervisor` when there is one.
///
/// Stopping or killing the actor fires the signals of its bodies and drops them.
pub async fn spawn(args: PoolArgs, supervisor: Option<ActorCell>) -> Result<(ToolPoolLink, ActorCell), SpawnErr> {
    let (actor, _) = match supervisor {
        Some(supervisor) => Actor::spawn_linked(None, Pool, args, supervisor).await?,
        None => Actor::spawn(None, Pool, args).await?,
    };
    let cell = actor.get_cell();
    // When the pool is gone the reply is dropped, which tells the asker.
    let link = ToolPoolLink::new(move |batch, reply| drop(actor.cast(PoolMessage::Run { batch, reply })));
    Ok((link, cell))
}

/// What the pool is told.
pub(crate) enum PoolMessage {
    /// Run a batch.
    Run {
        /// Which.
        batch: RunBatch,
        /// The answer.
        reply: Reply<Answer>,
    },
    /// The journal showed its fold.
    Viewed {
        /// For which batch.
        batch: u64,
        /// The fold.
        view: Arc<LogState>,
    },
    /// The journal answered an append.
    Appended {
        /// Of which batch.
        batch: u64,
        /// What it said.
        answer: Result<Appended, AppendError>,
    },
    /// A task reports.
    Happened {
        /// Of which batch.
        batch: u64,
        /// What.
        input: Input,
    },
}

/// The actor. It has no state of its own; see [`PoolState`].
struct Pool;

struct PoolState {
    shared: Shared,
    schemas: Schemas,
    /// How many batches there were: the fence for late answers.
    number: u64,
    /// A batch that waits for the fold.
    opening: Option<(RunBatch, Reply<Answer>)>,
    batch: Option<Batch>,
    /// Answers for batches that are over.
    stale: u64,
}

#[ractor::async_trait]
impl Actor for Pool {
    type Msg = PoolMessage;
    type State = PoolState;
    type Arguments = PoolArgs;

    async fn pre_start(&self, myself: ActorRef<PoolMessage>, args: PoolArgs) -> Result<PoolState, ActorProcessingErr> {
        let shared = Shared { args: Arc::new(args), myself, bodies: JoinSet::new(), detached: VecDeque::new() };
        Ok(PoolState { shared, schemas: Schemas::default(), number: 0, opening: None, batch: None, stale: 0 })
    }

    async fn handle(
        &self,
        _myself: ActorRef<PoolMessage>,
        message: PoolMessage,
        state: &mut PoolState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PoolMessage::Run { batch, reply } => state.run(batch, reply),
            PoolMessage::Viewed { batch, view } => state.open(batch, view),
            PoolMessage::Appended { batch, answer } => {
                state.with(batch, |batch, shared| batch.appended(answer, shared));
            }
            PoolMessage::Happened { batch, input } => state.happened(batch, input),
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<PoolMessage>, state: &mut PoolState) -> Result<(), ActorProcessingErr> {
        // Signals first, so that bodies with threads of their own hear of it too.
        state.batch = None;
        state.shared.bodies.abort_all();
        Ok(())
    }
}

impl PoolState {
    fn run(&mut self, batch: RunBatch, reply: Reply<Answer>) {
        if self.opening.is_some() || self.batch.is_some() {
            let why = "the tool pool was given a second batch while one runs; the session has to be opened again";
            reply.send(Err(BatchFault { error: AppendError::Io(why.to_owned()) }));
            return;
        }
        self.number += 1;
        self.opening = Some((batch, reply));
        let (number, myself) = (self.number, self.shared.myself.clone());
        let reply = Reply::new(move |(view, _)| drop(myself.cast(PoolMessage::Viewed { batch: number, view })));
        self.shared.args.journal.ask(JournalRequest::View { reply });
    }

    /// The fold is here: the header of the step says what is visible, the profile what it is made of.
    fn open(&mut self, number: u64, view: Arc<LogState>) {
        if number != self.number {
            self.stale += 1;
            return;
        }
        let Some((run, reply)) = self.opening.take() else {
            self.stale += 1;
            return;
        };
        let args = &self.shared.args;
        let profile = args.profiles.profile(&args.agent_name).unwrap_or_else(|| Arc::new(AgentProfile::default()));
        let toolbox = Toolbox::new(&view, &profile, &mut self.schemas);
        let mut config = BatchConfig::new(run.turn, run.step, run.calls.clone(), &profile.limits);
        config.policies = !profile.tool_policies.is_empty();
        config.checkpoint = profile.checkpoint == CheckpointPolicy::Semantic;
        let mut batch = Batch::new(number, run, reply, profile, toolbox, Window::new(config), view);
        batch.start(&mut self.shared);
        self.keep(batch);
    }

    fn happened(&mut self, number: u64, input: Input) {
        let of_old_body = matches!(input, Input::BodyDone { .. });
        if of_old_body && self.batch.as_ref().is_none_or(|batch| batch.number() != number) {
            let message = "a tool returned after it was let go and its batch was over; what it said is dropped";
            (self.shared.args.notices)(Frame::Notice { code: "TOOL_LATE".to_owned(), message: message.to_owned() });
        }
        self.with(number, |batch, shared| batch.take(input, shared));
    }

    fn with(&mut self, number: u64, act: impl FnOnce(&mut Batch, &mut Shared)) {
        match self.batch.take() {
            Some(mut batch) if batch.number() == number => {
                act(&mut batch, &mut self.shared);
                self.keep(batch);
            }
            other @ (Some(_) | None) => {
                self.stale += 1;
                tracing::debug!(stale = self.stale, "an answer for a batch that is over was dropped");
                self.batch = other;
            }
        }
    }

    fn keep(&mut self, batch: Batch) {
        if !batch.ended() {
            self.batch = Some(batch);
        }
        while self.shared.bodies.try_join_next().is_some() {}
    }
}

#[cfg(test)]
mod tests;
