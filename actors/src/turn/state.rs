//! Where a turn stands, and what the machine keeps of it between two inputs.

use super::input::{RouteFacts, Rules, Settlement};
use crate::ports::{Assembly, BatchMessage};
use everturn_storage::{
    event::{AttemptId, Cause, Digest, EventBody, Item, PromptBlocked, RequestConfig, TurnReason},
    ids::{Attempt, ItemId, Proposal, RetryId, Seq, Step, Turn},
    log::{LogState, OpenTurn},
    message::Failure,
};
use std::sync::Arc;

/// Where the machine stands. Each state but the first two and the last waits for exactly one answer.
#[derive(Debug, Default)]
pub(super) enum State {
    /// No turn, nothing asked.
    #[default]
    Idle,
    /// The agent was asked for a turn.
    Opening,
    /// Somebody was asked something for the open turn.
    Asking(Ask, Box<Work>),
    /// An append is under way, or waits to be tried again.
    Appending(Box<Write>, Box<Work>),
    /// A checkpoint is under way, or waits to be tried again.
    Syncing(Sync, Box<Work>),
    /// A provider streams.
    Sampling(Box<Work>),
    /// A retry waits.
    BackingOff(RetryId, Box<Work>),
    /// The tool pool has the calls of the step.
    Tools(Box<Work>),
    /// The turn could not be closed. Only a restart through repair leaves this.
    Faulted,
}

/// Who was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// S1.
    Assembly,
    /// S2.
    PreStep,
    /// S5.
    Settings,
    /// S6.
    Route,
    /// 5.6.
    Recovery,
    /// S14.
    Claim {
        /// Whether the stopping chain has just run.
        stopping: bool,
        /// How often the claim was tried before.
        tries: u32,
        /// Whether a timer runs, and not the claim.
        waiting: bool,
    },
    /// S15.
    Stopping,
}

/// An append under way.
#[derive(Debug)]
pub(super) struct Write {
    /// What it is for.
    pub what: Written,
    /// The batch, kept for another try.
    pub events: Vec<EventBody>,
    /// How often it has failed.
    pub tries: u32,
    /// Whether a timer runs, and not the append.
    pub waiting: bool,
}

/// What an append is for, and so what follows it.
#[derive(Debug)]
pub(super) enum Written {
    /// S4.
    StepStart,
    /// S7.
    Admission,
    /// S11.
    Settlement(Box<Settlement>),
    /// L-44, before the wait.
    RetryScheduled {
        /// The wait.
        delay_ms: u64,
        /// Which retry.
        retry_id: RetryId,
    },
    /// L-44, behind the wait.
    RetryStarted,
    /// S13.
    StepEnd,
    /// Results of a batch whose pool died (6.10).
    Bury(Burial),
    /// D5.
    TurnEnd(Ending),
}

/// How far the calls of a dead pool are recorded.
#[derive(Debug, Clone)]
pub(super) struct Burial {
    /// How many calls the pool had logged; their outcome is unknown.
    pub logged: usize,
    /// A fresh id that the ids of the results are made from.
    pub fresh: String,
    /// How the turn ends afterwards.
    pub reason: TurnReason,
}

/// How a turn ends.
#[derive(Debug, Clone)]
pub(super) struct Ending {
    /// The reason.
    pub reason: TurnReason,
    /// The refused batch, exactly with reason `rejected`.
    pub blocked: Option<PromptBlocked>,
}

/// A checkpoint under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sync {
    /// Which.
    pub what: Synced,
    /// The last event that must be durable.
    pub upto: Seq,
    /// How often it has failed.
    pub tries: u32,
    /// Whether a timer runs, and not the checkpoint.
    pub waiting: bool,
}

/// Which checkpoint is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Synced {
    /// CP-R.
    Request,
    /// CP-S.
    Step,
    /// CP-T.
    Turn,
}

/// The open turn between two inputs. Numbers and history are in the view; this holds what the log does not.
#[derive(Debug)]
pub(super) struct Work {
    /// Which turn.
    pub turn: Turn,
    /// The newest fold that any answer brought.
    pub view: Arc<LogState>,
    /// The first cancel that was observed.
    pub cancel: Option<Cause>,
    /// The claim of this proposal.
    pub items: Vec<Arc<Item>>,
    /// Whether tool results force the step of this proposal (T-15).
    pub owed: bool,
    /// Whether this is the first proposal of the turn.
    pub first: bool,
    /// What the decision lets in; kept through the attempts of the step for its modalities.
    pub batch: Vec<BatchMessage>,
    /// Instructions and tools of the step (T-9).
    pub assembly: Assembly,
    /// Bounds and policies of the step.
    pub rules: Rules,
    /// The attempt that is being made.
    pub attempt: Attempt,
    /// What the route said of it.
    pub facts: RouteFacts,
    /// Digest of its request.
    pub digest: Digest,
    /// Generation of the surface that it was made from.
    pub generation: u64,
    /// The failure of the last attempt.
    pub failure: Option<Failure>,
    /// Retries of the step that followed an overflow (L-47).
    pub overflows: u32,
    /// Whether a tool concluded the turn in the last batch.
    pub concluded: bool,
    /// How often in a row the turn was kept from stopping (T-16).
    pub stops: u32,
}

impl Work {
    /// A turn that was just opened.
    pub(super) fn new(turn: Turn, items: Vec<Arc<Item>>, view: Arc<LogState>) -> Self {
        Self {
            turn,
            view,
            cancel: None,
            items,
            owed: false,
            first: true,
            batch: Vec::new(),
            assembly: Assembly::default(),
            rules: Rules::default(),
            attempt: Attempt(0),
            facts: RouteFacts::default(),
            digest: Digest([0; 32]),
            generation: 0,
            failure: None,
            overflows: 0,
            concluded: false,
            stops: 0,
        }
    }

    /// Takes a fold if it is newer than the one that is known.
    pub(super) fn see(&mut self, view: Arc<LogState>) {
        if view.next_seq() >= self.view.next_seq() {
            self.view = view;
        }
    }

    /// The turn in the log.
    fn open(&self) -> Option<&OpenTurn> {
        self.view.open_turn()
    }

    /// Steps that the turn has started.
    pub(super) fn steps(&self) -> u32 {
        self.open().map_or(0, |turn| turn.steps)
    }

    /// The step in work: the open one, or the one that the proposal would start.
    pub(super) fn step(&self) -> Step {
        let next = Step(self.steps() + 1);
        self.open().and_then(|turn| turn.step.as_ref()).map_or(next, |step| step.step)
    }

    /// Number of the next proposal that claims something.
    pub(super) fn next_proposal(&self) -> Proposal {
        self.open().map_or(Proposal(1), |turn| turn.proposals.next())
    }

    /// Whether a step is open.
    pub(super) fn in_step(&self) -> bool {
        self.open().is_some_and(|turn| turn.step.is_some())
    }

    /// Claimed items that are not part of history.
    pub(super) fn unadmitted(&self) -> Vec<ItemId> {
        self.open().map_or_else(Vec::new, |turn| {
            turn.claimed.iter().filter(|claimed| !claimed.admitted).map(|claimed| claimed.item.id.clone()).collect()
        })
    }

    /// Whether the model has not seen results of the last closed step and nothing concluded the turn.
    pub(super) fn owes_results(&self) -> bool {
        !self.concluded && self.open().is_some_and(|turn| turn.owed_results)
    }

    /// Whether an item that forces a step waits, as far as the view knows.
    pub(super) fn steered(&self) -> bool {
        self.view.next_step().iter().any(|pending| pending.item.wake)
    }

    /// Whether a response of the turn ended on the output limit (L-18, sticky).
    pub(super) fn hit_max_tokens(&self) -> bool {
        self.open().is_some_and(|turn| turn.max_tokens)
    }

    /// The last event of the view.
    pub(super) fn last_seq(&self) -> Seq {
        Seq(self.view.next_seq().0.saturating_sub(1))
    }

    /// The attempt in work.
    pub(super) fn attempt_id(&self) -> AttemptId {
        AttemptId { turn: self.turn, step: self.step(), attempt: self.attempt }
    }

    /// The settings of the attempt.
    pub(super) fn config(&self) -> &RequestConfig {
        &self.facts.config
    }
}
