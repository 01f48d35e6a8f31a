//! A store in memory that holds or fails the sync that would make an event of a chosen type durable.

use everturn_storage::{
    codec,
    event::SessionHeader,
    ids::{Seq, SessionId},
    memory::MemoryStore,
    store::{Commit, Error, Opened, Result, SessionSummary, SmallKey, Stats, Store, Stored},
};
use std::sync::{Condvar, Mutex, MutexGuard};
use tokio::sync::watch;

#[derive(Default)]
struct Plan {
    /// Types that were committed since the last sync.
    fresh: Vec<String>,
    hold: Option<String>,
    fail: Option<(String, u32)>,
    watched: Option<String>,
}

/// See the module.
pub(crate) struct Disk {
    pub(crate) memory: MemoryStore,
    plan: Mutex<Plan>,
    released: Condvar,
    held: watch::Sender<bool>,
    wrote: watch::Sender<bool>,
}

impl Disk {
    pub(crate) fn new(memory: MemoryStore) -> Self {
        Self {
            memory,
            plan: Mutex::default(),
            released: Condvar::new(),
            held: watch::Sender::new(false),
            wrote: watch::Sender::new(false),
        }
    }

    /// See [`Disk::wrote`].
    pub(crate) fn watch_for(&self, type_name: &str) {
        self.plan().watched = Some(type_name.to_owned());
    }

    /// Ends when an event of the watched type was written; it need not be durable.
    pub(crate) async fn wrote(&self) {
        self.wrote.subscribe().wait_for(|wrote| *wrote).await.unwrap();
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap()
    }

    /// The next sync that covers an event of this type waits for [`Disk::release`].
    pub(crate) fn hold(&self, type_name: &str) {
        self.plan().hold = Some(type_name.to_owned());
        self.held.send_replace(false);
    }

    /// Ends when a sync stands at the hold.
    pub(crate) async fn held(&self) {
        self.held.subscribe().wait_for(|held| *held).await.unwrap();
    }

    /// Lets the held sync go on; nothing is held from now on.
    pub(crate) fn release(&self) {
        self.plan().hold = None;
        self.held.send_replace(false);
        self.released.notify_all();
    }

    /// The next `times` syncs that cover an event of this type fail.
    pub(crate) fn fail(&self, type_name: &str, times: u32) {
        self.plan().fail = Some((type_name.to_owned(), times));
    }
}

impl Store for Disk {
    fn commit(&self, group: &[Commit]) -> Result<()> {
        self.memory.commit(group)?;
        for commit in group {
            let decoded = codec::decode_commit(&commit.session, commit.first, &commit.bytes).unwrap();
            let types = decoded.events.iter().map(|event| event.body.data.type_name().to_owned());
            let mut plan = self.plan();
            plan.fresh.extend(types);
            if plan.watched.as_ref().is_some_and(|wanted| plan.fresh.contains(wanted)) {
                self.wrote.send_replace(true);
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut plan = self.plan();
        let fresh = std::mem::take(&mut plan.fresh);
        if let Some((wanted, left)) = &mut plan.fail
            && *left > 0
            && fresh.contains(wanted)
        {
            *left -= 1;
            drop(plan);
            self.memory.fail_sync(1, everturn_storage::memory::Fault::Io);
            return self.memory.sync();
        }
        while plan.hold.as_ref().is_some_and(|wanted| fresh.contains(wanted)) {
            self.held.send_replace(true);
            plan = self.released.wait(plan).unwrap();
        }
        drop(plan);
        self.memory.sync()
    }

    fn reopen(&self) -> Result<Opened> {
        self.memory.reopen()
    }

    fn header(&self, session: &SessionId) -> Result<Option<SessionHeader>> {
        self.memory.header(session)
    }

    fn summary(&self, session: &SessionId) -> Result<Option<SessionSummary>> {
        self.memory.summary(session)
    }

    fn last_seq(&self, session: &SessionId) -> Result<Option<Seq>> {
        self.memory.last_seq(session)
    }

    fn read(&self, session: &SessionId, from: Seq, max_events: usize, max_bytes: usize) -> Result<Vec<Stored>> {
        self.memory.read(session, from, max_events, max_bytes)
    }

    fn list(&self, after: Option<&SessionId>, limit: usize) -> Result<Vec<SessionSummary>> {
        self.memory.list(after, limit)
    }

    fn attention(&self) -> Result<Vec<SessionId>> {
        self.memory.attention()
    }

    fn truncate(&self, session: &SessionId, last: Option<Seq>) -> Result<u64> {
        self.memory.truncate(session, last)
    }

    fn put_summary(&self, summary: &SessionSummary) -> Result<()> {
        self.memory.put_summary(summary)
    }

    fn put(&self, key: &SmallKey, value: &[u8]) -> Result<()> {
        self.memory.put(key, value)
    }

    fn get(&self, key: &SmallKey) -> Result<Option<Vec<u8>>> {
        self.memory.get(key)
    }

    fn delete(&self, session: &SessionId) -> Result<()> {
        self.memory.delete(session)
    }

    fn stats(&self) -> Stats {
        self.memory.stats()
    }

    fn close(&self) -> Result<()> {
        match self.memory.close() {
            // A store that a test crashed is not there any more.
            Err(Error::Poisoned(_)) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
