//! The store on disk: an append-only log of checksummed frames in preallocated segments, and an index over it.
//!
//! A commit is one frame: all or nothing. A checkpoint is one fdatasync of a file that does not grow. The index is
//! filled behind the writers, never on the path of an acknowledgement, and can be built again from the segments. The
//! last acknowledged frame is kept beside both, so that a loss is loud.

mod disk;
mod doubt;
mod engine;
mod frame;
mod home;
mod index;
mod keys;
mod log;
#[cfg(test)]
mod lossy;
mod map;
mod read;
mod recover;
mod segment;
mod sweep;
mod worker;
mod write;

use crate::{
    event::SessionHeader,
    fence::{self, Tail},
    ids::{Seq, SessionId},
    store::{Commit, Error, Opened, Result, SessionSummary, SmallKey, Stats, Store, Stored},
};
use disk::Disk;
use engine::{Engine, Found, Left};
use home::{Home, Mark};
use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// A store in a directory of this machine. See [`Store`] for what it promises.
#[derive(Debug)]
pub struct SegmentStore {
    /// `None` once closed.
    home: Mutex<Option<Home>>,
    /// `None` after a failed reopening, and once closed. Calls hold it for reading, a reopening for writing.
    engine: RwLock<Option<Engine>>,
    /// Why nothing can be written any more.
    poisoned: Mutex<Option<String>>,
    writer: Mutex<Writer>,
    /// Held while a sync or a reopening runs.
    syncing: Mutex<()>,
    commits: AtomicU64,
    syncs: AtomicU64,
}

/// What the one writer at a time knows.
#[derive(Debug, Default)]
struct Writer {
    /// The last frame that was acknowledged, in this opening or before.
    acked: u64,
    /// Ends of logs, bounded; `None` for a session that has no commits.
    tails: HashMap<SessionId, Option<Tail>>,
    /// Sessions whose deletion is under way.
    deleting: BTreeSet<SessionId>,
}

impl SegmentStore {
    /// Opens the store in `dir`, and makes it when there is none.
    ///
    /// The directory is private to its owner when this makes it. Errors: `Busy` at once when another opening holds
    /// the directory, `Format` when a newer build made it (nothing is touched), `Full` and `Io`. What can be read
    /// afterwards is durable. A store that ends before what it had acknowledged opens with
    /// [`Opened::behind_acknowledged`], once: the caller decides how loud that is.
    pub fn open(dir: &Path) -> Result<(Self, Opened)> {
        Self::open_on(&Disk::Real, dir)
    }

    fn open_on(disk: &Disk, dir: &Path) -> Result<(Self, Opened)> {
        let (home, mark) = Home::open(disk, dir)?;
        let mut opened = Opened::default();
        let acked = match mark {
            Mark::New => 0,
            Mark::Upto(acked) => acked,
            Mark::Unreadable => {
                opened.reports.push(
                    "the mark of acknowledged commits (ACKED) cannot be read, so it is not known whether the store \
                     is complete"
                        .to_owned(),
                );
                0
            }
        };
        let (engine, found) = Engine::open(disk, home.dir(), home.id(), acked, Left::Ended)?;
        let store = Self {
            home: Mutex::new(Some(home)),
            engine: RwLock::new(None),
            poisoned: Mutex::new(None),
            writer: Mutex::new(Writer { acked, ..Writer::default() }),
            syncing: Mutex::new(()),
            commits: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        };
        store.take_engine(engine, found, &mut opened)?;
        Ok((store, opened))
    }

    /// Puts a fresh engine to work, and ends deletions that were cut short.
    fn take_engine(&self, engine: Engine, found: Found, opened: &mut Opened) -> Result<()> {
        {
            let mut writer = lock(&self.writer);
            opened.reports.extend(found.reports);
            if found.lost || found.last < writer.acked {
                opened.behind_acknowledged = true;
                opened.reports.push(format!(
                    "the store ends at frame {}, frame {} was acknowledged, and something of it is lost: restore a \
                     backup, or go on without what is missing",
                    found.last, writer.acked
                ));
            }
            // What was read is durable; what is lost is said once.
            writer.acked = found.last;
            writer.tails.clear();
        }
        let unfinished = engine.deletions()?;
        *self.engine.write().unwrap_or_else(PoisonError::into_inner) = Some(engine);
        self.acknowledge(found.last);
        for session in unfinished {
            self.delete(&session)?;
            opened.reports.push(format!("the deletion of session {session} was finished"));
        }
        Ok(())
    }

    /// Runs a call that only reads.
    fn reading<T>(&self, call: impl FnOnce(&Engine) -> Result<T>) -> Result<T> {
        let engine = self.engine.read().unwrap_or_else(PoisonError::into_inner);
        match engine.as_ref() {
            Some(engine) => self.noting(call(engine)),
            None => Err(self.poisoned_error()),
        }
    }

    /// Runs a call that writes or syncs, unless an earlier failure was final.
    fn writing<T>(&self, call: impl FnOnce(&Engine) -> Result<T>) -> Result<T> {
        if lock(&self.poisoned).is_some() {
            return Err(self.poisoned_error());
        }
        self.reading(call)
    }

    /// Remembers a final failure.
    fn noting<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && error.is_final()
        {
            lock(&self.poisoned).get_or_insert_with(|| error.to_string());
        }
        result
    }

    fn poisoned_error(&self) -> Error {
        let why = lock(&self.poisoned).clone();
        Error::Poisoned(why.unwrap_or_else(|| "the store is not open".to_owned()))
    }

    fn sync_engine(&self, engine: &Engine) -> Result<()> {
        let upto = engine.sync()?;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        lock(&self.writer).acked = upto;
        self.acknowledge(upto);
        Ok(())
    }

    fn acknowledge(&self, upto: u64) {
        if let Some(home) = lock(&self.home).as_ref()
            && let Err(error) = home.acknowledge(upto)
        {
            // The data is durable; only a later loss would go unseen.
            tracing::warn!(%error, "the mark of acknowledged frames could not be written");
        }
    }

    fn reopen_engine(&self) -> Result<Opened> {
        let (disk, dir, id) = match lock(&self.home).as_ref() {
            Some(home) => (home.disk().clone(), home.dir().to_owned(), *home.id()),
            None => return Err(Error::Poisoned("the store was closed".to_owned())),
        };
        let old: Option<Engine> = {
            let mut engine = self.engine.write().unwrap_or_else(PoisonError::into_inner);
            lock(&self.poisoned).get_or_insert_with(|| "it is being opened again".to_owned());
            engine.take()
        };
        drop(old);
        let acked = lock(&self.writer).acked;
        let (engine, found) = Engine::open(&disk, &dir, &id, acked, Left::Failed)?;
        let mut opened = Opened::default();
        *lock(&self.poisoned) = None;
        self.take_engine(engine, found, &mut opened)?;
        Ok(opened)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for SegmentStore {
    fn commit(&self, group: &[Commit]) -> Result<()> {
        self.writing(|engine| {
            let (written, result) = write::group(engine, &mut lock(&self.writer), group)?;
            self.commits.fetch_add(written, Ordering::Relaxed);
            result
        })
    }

    fn sync(&self) -> Result<()> {
        let _one_at_a_time = lock(&self.syncing);
        self.writing(|engine| self.sync_engine(engine))
    }

    fn reopen(&self) -> Result<Opened> {
        let _no_sync_runs = lock(&self.syncing);
        match self.reopen_engine() {
            Ok(opened) => Ok(opened),
            Err(error) => {
                *lock(&self.poisoned) = Some(error.to_string());
                Err(error)
            }
        }
    }

    fn header(&self, session: &SessionId) -> Result<Option<SessionHeader>> {
        self.reading(|engine| engine.header(session))
    }

    fn summary(&self, session: &SessionId) -> Result<Option<SessionSummary>> {
        self.reading(|engine| engine.summary(session))
    }

    fn last_seq(&self, session: &SessionId) -> Result<Option<Seq>> {
        self.reading(|engine| engine.tail(session)).map(|tail| tail.map(|tail| tail.last))
    }

    fn read(&self, session: &SessionId, from: Seq, max_events: usize, max_bytes: usize) -> Result<Vec<Stored>> {
        let acked = lock(&self.writer).acked;
        self.reading(|engine| engine.read(session, from, max_events, max_bytes, acked))
    }

    fn list(&self, after: Option<&SessionId>, limit: usize) -> Result<Vec<SessionSummary>> {
        self.reading(|engine| engine.list(after, limit))
    }

    fn attention(&self) -> Result<Vec<SessionId>> {
        self.reading(Engine::attention)
    }

    fn truncate(&self, session: &SessionId, last: Option<Seq>) -> Result<u64> {
        self.writing(|engine| {
            let mut writer = lock(&self.writer);
            writer.tails.remove(session);
            sweep::truncate(engine, session, last)
        })
    }

    fn put_summary(&self, summary: &SessionSummary) -> Result<()> {
        self.writing(|engine| {
            let _writer = lock(&self.writer);
            write::summary(engine, summary)
        })
    }

    fn put(&self, key: &SmallKey, value: &[u8]) -> Result<()> {
        fence::check_small(key, value.len())?;
        self.writing(|engine| {
            let _writer = lock(&self.writer);
            write::small(engine, key, value)
        })
    }

    fn get(&self, key: &SmallKey) -> Result<Option<Vec<u8>>> {
        self.reading(|engine| engine.small(key))
    }

    fn delete(&self, session: &SessionId) -> Result<()> {
        self.writing(|engine| {
            {
                let mut writer = lock(&self.writer);
                writer.deleting.insert(session.clone());
                sweep::begin_deletion(engine, session)?;
            }
            // Between the steps others may write.
            while {
                let _writer = lock(&self.writer);
                sweep::step_of_deletion(engine, session)?
            } {}
            let mut writer = lock(&self.writer);
            writer.deleting.remove(session);
            writer.tails.remove(session);
            sweep::end_deletion(engine, session)
        })
    }

    fn stats(&self) -> Stats {
        let engine = self.engine.read().unwrap_or_else(PoisonError::into_inner);
        Stats {
            commits: self.commits.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
            disk_bytes: engine.as_ref().map_or(0, Engine::disk_bytes),
        }
    }

    fn close(&self) -> Result<()> {
        let result = self.sync();
        let engine = self.engine.write().unwrap_or_else(PoisonError::into_inner).take();
        *lock(&self.poisoned) = Some("the store was closed".to_owned());
        if let Some(engine) = engine
            && let Err(error) = engine.close()
        {
            // The log is durable; the next opening brings the index up to it.
            tracing::warn!(%error, "the index was not closed in order");
        }
        // Last, so that the next owner finds all files free.
        *lock(&self.home) = None;
        result
    }
}

#[cfg(test)]
mod tests;
