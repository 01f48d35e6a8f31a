//! The session journal as a pure machine: what is logged, what is durable, and what the store must be given.
//!
//! It checks a batch, gives it places and times, folds it and hands it to the store at once. What is not durable yet
//! stays in memory, so that a store that failed and was opened again can be given what it lost (BR-020). A checkpoint is
//! answered only behind a sync that covers it (K-2), and never by a failed one (K-3, BR-040).
//!
//! | state | append | checkpoint | store down | store up |
//! |---|---|---|---|---|
//! | starting | keep | hold | fail the held, down | hand over all, then the held |
//! | up | keep, write | sync | down | compare, hand over again |
//! | down | keep what closes, refuse what opens | fail | stale | compare, hand over again, sync |

mod memory;

use crate::{
    fault,
    limits::{RECENT_MAX_BYTES, UNDURABLE_MAX_BYTES},
    protocol::{AppendClass, AppendError, Appended, CheckpointFailed, CheckpointKind},
};
use everturn_storage::{
    codec,
    event::{Event, EventBody, EventData, SessionHeader},
    ids::{Epoch, Seq, SessionId},
    log::{LogState, Violation},
    store::{Commit, Error, SessionSummary},
};
use memory::Memory;
use std::sync::Arc;

/// Answer to a checkpoint.
pub type Durable = Result<Seq, CheckpointFailed>;

/// What a writer hears of the store.
#[derive(Debug, Clone)]
pub enum StoreNews {
    /// The answer to enrolling.
    Enrolled {
        /// What commits must carry.
        generation: u64,
        /// Why the store cannot be written now.
        down: Option<String>,
    },
    /// The store failed. What was not acknowledged may be gone from it.
    Down {
        /// Why.
        why: String,
    },
    /// It was opened again; what it holds is durable, what it lacks must be submitted again.
    Up {
        /// What commits must carry from now on.
        generation: u64,
        /// The last event of this writer's log that it holds.
        last: Option<Seq>,
    },
    /// It refused a commit of this writer for itself: the writer was replaced, or is wrong.
    Refused(Error),
}

/// What the machine wants done, in order. `W` is whoever waits for a checkpoint.
#[derive(Debug)]
pub enum Output<W> {
    /// Hand this to the store.
    Write {
        /// The opening of the store that it is meant for.
        generation: u64,
        /// The commit.
        commit: Commit,
    },
    /// Ask the store to sync; what it says comes back through [`Ledger::synced`].
    Sync {
        /// The opening of the store that it is meant for.
        generation: u64,
        /// The last event that must be durable.
        upto: Seq,
        /// Who waits; nobody where the journal itself asks.
        waiter: Option<W>,
    },
    /// Answer a checkpoint.
    Answer {
        /// Who waits.
        waiter: W,
        /// The answer.
        outcome: Durable,
    },
    /// Tell the agent that the store failed.
    Down,
    /// Tell the agent that the store works again.
    Up,
    /// Everything up to here is durable now.
    Durable(Seq),
}

#[derive(Debug)]
enum Mode<W> {
    /// The store has not answered the enrolment yet: commits and checkpoints gather.
    Starting { held: Vec<(Seq, W)> },
    /// It works.
    Up { generation: u64 },
    /// It failed: closing commits gather, everything else is refused.
    Down { why: String },
}

/// The machine of one opening of one session.
pub struct Ledger<W> {
    session: SessionId,
    epoch: Epoch,
    header: Arc<SessionHeader>,
    view: Arc<LogState>,
    durable: Option<Seq>,
    mode: Mode<W>,
    memory: Memory,
}

impl<W> std::fmt::Debug for Ledger<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("session", &self.session).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl<W> Ledger<W> {
    /// One that goes on behind `view`, the fold of the log as the store has it.
    pub fn new(epoch: Epoch, header: Arc<SessionHeader>, view: LogState, durable: Option<Seq>) -> Self {
        Self {
            session: view.session().clone(),
            epoch,
            header,
            view: Arc::new(view),
            durable,
            mode: Mode::Starting { held: Vec::new() },
            memory: Memory::new(RECENT_MAX_BYTES),
        }
    }

    /// Whose it is.
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// The opening that may write.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The fold of everything that is logged.
    pub fn view(&self) -> &Arc<LogState> {
        &self.view
    }

    /// The last durable event.
    pub fn durable(&self) -> Option<Seq> {
        self.durable
    }

    /// Events from `from` on, as far as they are still in memory.
    pub fn tail(&self, from: Seq) -> Vec<Arc<Event>> {
        self.memory.events_from(from)
    }

    /// Commits one atomic batch: checked, numbered, logged, handed to the store, not yet durable. Returns it with its
    /// events; on an error nothing of it was logged.
    pub fn append(
        &mut self,
        epoch: Epoch,
        events: Vec<EventBody>,
        class: AppendClass,
        time_ms: i64,
        out: &mut Vec<Output<W>>,
    ) -> Result<(Appended, Vec<Arc<Event>>), AppendError> {
        if epoch != self.epoch {
            return Err(AppendError::Fenced);
        }
        if let (Mode::Down { why }, AppendClass::Opening) = (&self.mode, class) {
            return Err(AppendError::Io(why.clone()));
        }
        if self.memory.undurable_bytes() > UNDURABLE_MAX_BYTES {
            return Err(AppendError::Io(format!(
                "BACKPRESSURE: more than {UNDURABLE_MAX_BYTES} bytes are logged and not yet durable"
            )));
        }
        if let Some(why) = fault::append("append", &self.session, &events) {
            return Err(AppendError::Io(why));
        }
        let (next, staged) = self.view.stage(events, time_ms)?;
        let (Some(first), Some(last)) = (staged.first(), staged.last()) else {
            return Err(refused(self.view.next_seq(), "a batch has at least one event".to_owned()));
        };
        let (first, last) = (first.seq, last.seq);
        let bytes = codec::encode_commit(&self.session, epoch, first, self.durable, &staged)
            .map_err(|error| refused(first, error.to_string()))?;
        let commit = Commit {
            session: self.session.clone(),
            epoch,
            first,
            count: u32::try_from(staged.len()).unwrap_or(u32::MAX),
            bytes: bytes.into(),
            header: (first == Seq(0)).then(|| Arc::clone(&self.header)),
            summary: self.summary(&next, &staged),
        };
        self.view = Arc::new(next);
        if let Mode::Up { generation } = self.mode {
            out.push(Output::Write { generation, commit: commit.clone() });
        }
        self.memory.push(commit, staged.clone());
        Ok((Appended { first, last, view: Arc::clone(&self.view) }, staged))
    }

    /// What the index shall say, when boot or a list would miss it otherwise (7.3).
    fn summary(&self, next: &LogState, staged: &[Arc<Event>]) -> Option<Arc<SessionSummary>> {
        let needs = |view: &LogState| {
            view.open_turn().is_some() || !view.next_turn().is_empty() || !view.next_step().is_empty()
        };
        let fresh = self.view.next_seq() == Seq(0);
        let ended = staged.iter().any(|event| matches!(event.body.data, EventData::TurnEnd(_)));
        let changed = needs(&self.view) != needs(next) || self.view.title() != next.title();
        (fresh || ended || changed).then(|| Arc::new(next.summary(&self.header)))
    }

    /// Answers `waiter` once everything up to `upto` is durable, or that it could not be.
    pub fn checkpoint(&mut self, kind: CheckpointKind, upto: Seq, waiter: W, out: &mut Vec<Output<W>>) {
        let answer = if upto >= self.view.next_seq() {
            Err(CheckpointFailed(format!("event {upto} is not logged")))
        } else if let Some(why) = fault::checkpoint("checkpoint", &self.session, kind) {
            Err(CheckpointFailed(why))
        } else if let Some(durable) = self.durable.filter(|durable| *durable >= upto) {
            Ok(durable)
        } else {
            match &mut self.mode {
                Mode::Starting { held } => return held.push((upto, waiter)),
                Mode::Up { generation } => {
                    return out.push(Output::Sync { generation: *generation, upto, waiter: Some(waiter) });
                }
                Mode::Down { why } => Err(CheckpointFailed(why.clone())),
            }
        };
        out.push(Output::Answer { waiter, outcome: answer });
    }

    /// A sync ended.
    pub fn synced(&mut self, outcome: Result<Seq, Error>, waiter: Option<W>, out: &mut Vec<Output<W>>) {
        let outcome = match outcome {
            Ok(upto) => {
                self.now_durable(upto, out);
                fault::reach("durable", &self.session);
                Ok(self.durable.unwrap_or(upto))
            }
            Err(error) => Err(CheckpointFailed(error.to_string())),
        };
        out.extend(waiter.map(|waiter| Output::Answer { waiter, outcome }));
    }

    fn now_durable(&mut self, upto: Seq, out: &mut Vec<Output<W>>) {
        if self.durable < Some(upto) {
            self.durable = Some(upto);
            out.push(Output::Durable(upto));
        }
        self.memory.now_durable(upto);
    }

    /// The store speaks. An error says why this opening must end: what it holds in memory is not what the disk has.
    pub fn store_news(&mut self, news: StoreNews, out: &mut Vec<Output<W>>) -> Result<(), String> {
        match news {
            StoreNews::Enrolled { generation, down } => {
                let held = match &mut self.mode {
                    Mode::Starting { held } => std::mem::take(held),
                    Mode::Up { .. } | Mode::Down { .. } => return Ok(()),
                };
                match down {
                    None => self.resume(generation, held, out),
                    Some(why) => self.go_down(why, held, out),
                }
            }
            StoreNews::Down { why } => {
                let held = match &mut self.mode {
                    Mode::Starting { held } => std::mem::take(held),
                    Mode::Up { .. } | Mode::Down { .. } => Vec::new(),
                };
                self.go_down(why, held, out);
            }
            StoreNews::Up { generation, last } => self.came_back(generation, last, out)?,
            StoreNews::Refused(error) => return Err(format!("the store refused a commit: {error}")),
        }
        Ok(())
    }

    fn go_down(&mut self, why: String, held: Vec<(Seq, W)>, out: &mut Vec<Output<W>>) {
        for (_, waiter) in held {
            out.push(Output::Answer { waiter, outcome: Err(CheckpointFailed(why.clone())) });
        }
        out.push(Output::Down);
        self.mode = Mode::Down { why };
    }

    /// Hands everything that is not durable to the store, then the checkpoints that wait for it.
    fn resume(&mut self, generation: u64, held: Vec<(Seq, W)>, out: &mut Vec<Output<W>>) {
        self.mode = Mode::Up { generation };
        out.extend(self.memory.undurable().map(|commit| Output::Write { generation, commit: commit.clone() }));
        out.extend(held.into_iter().map(|(upto, waiter)| Output::Sync { generation, upto, waiter: Some(waiter) }));
    }

    /// Compares what the reopened store has with what was promised, and submits again what is missing.
    fn came_back(&mut self, generation: u64, last: Option<Seq>, out: &mut Vec<Output<W>>) -> Result<(), String> {
        let durable = self.durable;
        if last < durable {
            // Nobody may go on from a state that the disk does not have. Opening the session again says what is left.
            return Err(format!("the store lost what it acknowledged: it ends at {last:?}, not {durable:?}"));
        }
        if let Some(last) = last {
            self.now_durable(last, out);
        }
        let wanted = self.memory.undurable().next().map_or(self.view.next_seq(), |commit| commit.first);
        if last.map_or(Seq(0), Seq::next) != wanted {
            return Err(format!("the store ends at {last:?}, and what follows up to {wanted} is not in memory"));
        }
        self.resume(generation, Vec::new(), out);
        // Whoever waited for it was told that it failed (K-3), and an idle agent asks for no other checkpoint: without
        // this the end of its last turn would stay unseen until its next one.
        let last = self.memory.undurable().last().map(Commit::last);
        out.extend(last.map(|upto| Output::Sync { generation, upto, waiter: None }));
        out.push(Output::Up);
        Ok(())
    }
}

fn refused(seq: Seq, why: String) -> AppendError {
    AppendError::Refused(Violation { rule: "encoding", seq, why })
}
