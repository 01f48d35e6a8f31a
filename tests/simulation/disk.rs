//! The journal of the simulated session: the real checker and folds over a disk that delays, fails, and loses what
//! was not synced.

use super::{
    chance::Chance,
    judge::{Broken, Verdict},
    plants::Plant,
};
use everturn_actors::protocol::{AppendClass, AppendError, Appended};
use everturn_storage::{
    event::{Event, EventBody},
    ids::{Epoch, Seq, SessionId},
    log::{LogState, repair},
};
use std::sync::Arc;

/// One atomic batch, as it lies in the log.
pub(crate) type Batch = Vec<Arc<Event>>;

pub(crate) struct Disk {
    pub(crate) state: LogState,
    pub(crate) batches: Vec<Batch>,
    /// How many batches are on stable storage.
    pub(crate) durable: usize,
    pub(crate) epoch: Epoch,
    pub(crate) now_ms: i64,
    /// Whether the store is down: openings are refused, checkpoints fail.
    pub(crate) down: bool,
    /// In a fleet: the last event that the store has on stable storage.
    pub(crate) truth: Option<Option<Seq>>,
}

/// How often repair gives an item back.
pub(crate) const RESTORE_LIMIT: u32 = 3;

impl Disk {
    pub(crate) fn new() -> Self {
        let state = LogState::empty(SessionId::trusted("sim"));
        let mut disk =
            Self { state, batches: Vec::new(), durable: 0, epoch: Epoch(0), now_ms: 1_000, down: false, truth: None };
        disk.open(Plant::None).expect("an empty log opens");
        disk
    }

    /// Seq of the first event that is not durable.
    pub(crate) fn durable_next(&self) -> Seq {
        if let Some(truth) = self.truth {
            return truth.map_or(Seq(0), Seq::next);
        }
        match self.durable.checked_sub(1) {
            Some(last) => self.batches[last].last().unwrap().seq.next(),
            None => Seq(0),
        }
    }

    pub(crate) fn append(
        &mut self,
        epoch: Epoch,
        class: AppendClass,
        events: Vec<EventBody>,
        fail: bool,
    ) -> Result<Appended, AppendError> {
        if epoch != self.epoch {
            return Err(AppendError::Fenced);
        }
        if fail || (self.down && class == AppendClass::Opening) {
            return Err(AppendError::Io("simulated".to_owned()));
        }
        self.now_ms += 1;
        let (state, batch) = self.state.stage(events, self.now_ms)?;
        self.state = state;
        let (first, last) = (batch.first().unwrap().seq, batch.last().unwrap().seq);
        self.batches.push(batch);
        Ok(Appended { first, last, view: Arc::new(self.state.clone()) })
    }

    pub(crate) fn sync(&mut self) {
        self.durable = self.batches.len();
    }

    /// The process dies: some prefix of what was not synced survives. Returns how many batches were lost.
    pub(crate) fn crash(&mut self, chance: &mut Chance, plant: Plant) -> usize {
        if plant == Plant::DiskLies {
            self.durable -= self.durable.min(1 + chance.below(3)).min(self.durable - 1);
        }
        let kept = self.durable + chance.below(self.batches.len() - self.durable + 1);
        let lost = self.batches.len() - kept;
        self.batches.truncate(kept);
        self.durable = kept;
        self.down = false;
        lost
    }

    /// A process takes the session: folds from zero, repairs, marks.
    pub(crate) fn open(&mut self, plant: Plant) -> Verdict {
        self.state = self.fold();
        let epoch = self.state.opened().map_or(Epoch(1), |row| row.epoch.next());
        let events = match repair::plan(&self.state, epoch, RESTORE_LIMIT) {
            Some(plan) => plant.repair(plan.events, &self.state),
            None => repair::opening(&self.state, epoch).into_iter().collect(),
        };
        if !events.is_empty() {
            let time_ms = if self.state.next_seq() == Seq(0) { self.now_ms } else { self.state.last_time_ms() };
            let staged = self.state.stage(events, time_ms);
            let (state, batch) = staged.map_err(|violation| Broken::new(violation.rule, violation.to_string()))?;
            self.state = state;
            self.batches.push(batch);
        }
        // CP-B.
        self.sync();
        let Some(row) = self.state.opened() else { return Err(Broken::new("A-1", "no opening marker")) };
        self.epoch = row.epoch;
        // Scenario 192, I-35: what was repaired needs no repair, and the next boot adds nothing (Z10).
        let next = self.epoch.next();
        if repair::plan(&self.state, next, RESTORE_LIMIT).is_some() {
            return Err(Broken::new("I-35", "repair is not idempotent"));
        }
        Ok(())
    }

    /// The fold of what lies in the log.
    pub(crate) fn fold(&self) -> LogState {
        let mut state = LogState::empty(SessionId::trusted("sim"));
        for batch in &self.batches {
            state = state.apply(batch).unwrap_or_else(|violation| panic!("a stored log is not valid: {violation}"));
        }
        state
    }
}
