//! A disk in memory that delays, tears and loses what was not synced, fails, and dies at any operation.

use super::{
    super::disk::Sizes,
    chance::Chance,
    inode::Inode,
    plants::{self, Plant},
    tree::{Kept, Tree},
};
use crate::store::{Error, Result};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What the store is doing, for plants that forget a step in one place only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is being opened, by a new process or again by this one.
    Opening,
    /// A writer writes.
    Writing,
    /// A writer waits for its sync.
    Syncing,
    /// The thread behind the writers works.
    House,
}

/// What is done to the disk. Looking cannot fail, but a dead disk answers nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Look,
    Write,
    Sync,
    Name,
    SetKey,
}

/// How often a thing fails, in a thousand.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) sync: u64,
    pub(super) write: u64,
    pub(super) full: u64,
}

/// A change of a directory that was not synced.
#[derive(Debug, Clone)]
enum Change {
    Set(PathBuf, u64),
    Remove(PathBuf),
    Move(PathBuf, PathBuf),
}

type Names = BTreeMap<PathBuf, u64>;

impl Change {
    fn dir(&self) -> Option<&Path> {
        match self {
            Self::Set(path, _) | Self::Remove(path) | Self::Move(path, _) => path.parent(),
        }
    }

    fn apply(self, names: &mut Names) {
        match self {
            Self::Set(path, inode) => drop(names.insert(path, inode)),
            Self::Remove(path) => drop(names.remove(&path)),
            Self::Move(from, to) => {
                if let Some(inode) = names.remove(&from) {
                    names.insert(to, inode);
                }
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) chance: Chance,
    pub(super) plant: Plant,
    pub(super) phase: Phase,
    pub(super) faults: Faults,
    pub(super) files: BTreeMap<u64, Inode>,
    pub(super) names: Names,
    durable: Names,
    changes: Vec<Change>,
    /// Directories, which are durable at once.
    dirs: BTreeSet<PathBuf>,
    pub(super) trees: BTreeMap<u64, Kept>,
    next: u64,
    /// Operations that change something.
    pub(super) ops: u64,
    /// The operation at which the disk dies.
    fuse: Option<u64>,
    pub(super) dead: bool,
    works: bool,
    /// Failures that were given.
    pub(super) failed: u64,
}

/// The disk, shared by its files.
#[derive(Debug, Clone)]
pub(in super::super) struct Handle(Arc<Mutex<State>>);

/// An open file of it.
#[derive(Debug)]
pub(in super::super) struct File {
    disk: Handle,
    inode: u64,
    path: PathBuf,
}

fn gone() -> io::Error {
    io::Error::other("the power is gone")
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl State {
    /// Takes one step; whether it is still carried out before the disk dies of it.
    fn step(&mut self, op: Op) -> io::Result<bool> {
        if self.dead {
            return Err(gone());
        }
        if op == Op::Look {
            return Ok(true);
        }
        self.ops += 1;
        if self.fuse.is_some_and(|fuse| self.ops >= fuse) {
            self.dead = true;
            return if self.chance.permille(500) { Ok(false) } else { Err(gone()) };
        }
        Ok(true)
    }

    fn inode(&self, path: &Path) -> io::Result<u64> {
        self.names.get(path).copied().ok_or_else(missing)
    }

    fn change(&mut self, change: Change) {
        change.clone().apply(&mut self.names);
        self.changes.push(change);
    }

    fn fails(&mut self, permille: u64) -> bool {
        let fails = self.chance.permille(permille);
        self.failed += u64::from(fails);
        fails
    }

    /// The power goes. Of each directory a first part of its changes stays, of each file any part.
    fn lose(&mut self) {
        let changes = std::mem::take(&mut self.changes);
        let mut dirs: BTreeMap<PathBuf, usize> = BTreeMap::new();
        for change in &changes {
            *dirs.entry(change.dir().unwrap().to_owned()).or_default() += 1;
        }
        for count in dirs.values_mut() {
            *count = self.chance.below(*count + 1);
        }
        for change in changes {
            let left = dirs.get_mut(change.dir().unwrap()).unwrap();
            if let Some(less) = left.checked_sub(1) {
                *left = less;
                change.apply(&mut self.durable);
            }
        }
        self.names.clone_from(&self.durable);
        for inode in self.files.values_mut() {
            inode.lose(&mut self.chance);
        }
        let named: Vec<u64> = self.names.values().copied().collect();
        self.files.retain(|inode, _| named.contains(inode));
        for tree in self.trees.values_mut() {
            tree.lose(&mut self.chance);
        }
    }
}

impl Handle {
    pub(super) fn new(seed: u64, plant: Plant) -> Self {
        Self(Arc::new(Mutex::new(State {
            chance: Chance::new(seed),
            plant,
            phase: Phase::Opening,
            faults: Faults::default(),
            files: BTreeMap::new(),
            names: Names::new(),
            durable: Names::new(),
            changes: Vec::new(),
            dirs: BTreeSet::new(),
            trees: BTreeMap::new(),
            next: 0,
            ops: 0,
            fuse: None,
            dead: false,
            works: false,
            failed: 0,
        })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Dies at the operation that is so many further on.
    pub(super) fn arm(&self, after: Option<u64>) {
        let mut state = self.state();
        state.fuse = after.map(|after| state.ops + after + 1);
    }

    pub(super) fn let_work(&self, works: bool) {
        self.state().works = works;
    }

    /// The process is gone, and so is the power when `power`. Afterwards the disk answers again.
    pub(super) fn crash(&self, power: bool) {
        let mut state = self.state();
        if power {
            state.lose();
        }
        (state.dead, state.fuse, state.works) = (false, None, false);
    }

    fn run<T>(&self, op: Op, call: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state();
        let lives = state.step(op)?;
        let done = call(&mut state);
        if lives { done } else { Err(gone()) }
    }

    pub(in super::super) fn sizes(&self) -> Sizes {
        Sizes {
            small_segment: 4 * 1024,
            segment: 8 * 1024,
            checkpoint_bytes: 3 * 1024,
            checkpoint_keys: 60,
            clean_batch: 700,
        }
    }

    pub(in super::super) fn lets_work(&self) -> bool {
        self.state().works
    }

    pub(in super::super) fn open(&self, path: &Path) -> io::Result<File> {
        let inode = self.run(Op::Look, |state| state.inode(path))?;
        Ok(File { disk: self.clone(), inode, path: path.to_owned() })
    }

    pub(in super::super) fn create(&self, path: &Path, truncate: bool) -> io::Result<File> {
        let inode = self.run(Op::Name, |state| {
            if let Some(inode) = state.names.get(path).copied() {
                if truncate && let Some(file) = state.files.get_mut(&inode) {
                    file.truncate();
                }
                return Ok(inode);
            }
            if state.fails(state.faults.full) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            state.next += 1;
            let inode = state.next;
            state.files.insert(inode, Inode::default());
            state.change(Change::Set(path.to_owned(), inode));
            Ok(inode)
        })?;
        Ok(File { disk: self.clone(), inode, path: path.to_owned() })
    }

    pub(in super::super) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.run(Op::Look, |state| {
            let inode = state.inode(path)?;
            state.files.get(&inode).map(|file| file.now.clone()).ok_or_else(missing)
        })
    }

    pub(in super::super) fn len(&self, path: &Path) -> io::Result<u64> {
        self.read(path).map(|bytes| bytes.len() as u64)
    }

    pub(in super::super) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.run(Op::Name, |state| {
            state.inode(from)?;
            state.change(Change::Move(from.to_owned(), to.to_owned()));
            Ok(())
        })
    }

    pub(in super::super) fn remove(&self, path: &Path) -> io::Result<()> {
        self.run(Op::Name, |state| {
            state.inode(path)?;
            state.change(Change::Remove(path.to_owned()));
            Ok(())
        })
    }

    pub(in super::super) fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        self.run(Op::Look, |state| match state.dirs.contains(dir) {
            true => Ok(state.names.keys().filter(|path| path.parent() == Some(dir)).cloned().collect()),
            false => Err(missing()),
        })
    }

    pub(in super::super) fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.run(Op::Name, |state| {
            state.dirs.insert(dir.to_owned());
            Ok(())
        })
    }

    pub(in super::super) fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.run(Op::Sync, |state| {
            if plants::forgets_dir(state, dir) {
                return Ok(());
            }
            let (synced, later): (Vec<Change>, Vec<Change>) =
                std::mem::take(&mut state.changes).into_iter().partition(|change| change.dir() == Some(dir));
            state.changes = later;
            for change in synced {
                change.apply(&mut state.durable);
            }
            Ok(())
        })
    }

    fn sync(&self, inode: u64, path: &Path) -> io::Result<()> {
        self.run(Op::Sync, |state| {
            if plants::forgets_sync(state, path) {
                return Ok(());
            }
            let fails = state.fails(state.faults.sync);
            let State { files, chance, .. } = state;
            let Some(file) = files.get_mut(&inode) else { return Ok(()) };
            if !fails {
                file.sync();
                return Ok(());
            }
            file.sync_badly(chance);
            // What a second call would answer: the kernel has forgotten (BR-040).
            if state.plant == Plant::RetryFailedSync { Ok(()) } else { Err(io::Error::other("the sync failed")) }
        })
    }

    fn write(&self, inode: u64, path: &Path, bytes: &[u8], at: u64) -> io::Result<()> {
        self.run(Op::Write, |state| {
            let mut bytes = bytes.to_vec();
            plants::change_write(state, path, &mut bytes);
            let (short, full) = (state.fails(state.faults.write), state.fails(state.faults.full));
            let part = if short || full { state.chance.below(bytes.len() + 1) } else { bytes.len() };
            let quiet = plants::forgets_write(state, path, inode, &bytes, at as usize);
            if let Some(file) = state.files.get_mut(&inode).filter(|_| !quiet) {
                let longer = at as usize + bytes.len() > file.now.len();
                if full && !longer {
                    file.write(&bytes, at as usize);
                    return Ok(());
                }
                file.write(&bytes[..part], at as usize);
            }
            match (short, full) {
                (true, _) => Err(io::Error::other("the write failed")),
                (false, true) => Err(io::ErrorKind::StorageFull.into()),
                (false, false) => Ok(()),
            }
        })
    }

    pub(in super::super) fn open_tree(&self, generation: u64) -> Result<Tree> {
        let mut state = self.state();
        state.step(Op::Name).map_err(|e| Error::Io(e.to_string()))?;
        state.trees.entry(generation).or_default();
        drop(state);
        Ok(Tree { disk: self.clone(), generation })
    }

    pub(in super::super) fn has_tree(&self, generation: u64) -> bool {
        self.state().trees.contains_key(&generation)
    }

    pub(in super::super) fn sweep_trees(&self, keep: Option<u64>) -> Result<()> {
        let mut state = self.state();
        state.step(Op::Name).map_err(|e| Error::Io(e.to_string()))?;
        state.trees.retain(|generation, _| Some(*generation) == keep);
        Ok(())
    }

    pub(in super::super) fn sum_of_tree(&self, generation: u64) -> u32 {
        self.state().trees.get(&generation).map_or(0, Kept::sum)
    }

    pub(in super::super) fn write_tree_again(&self, generation: u64) -> Result<()> {
        self.with_tree(generation, Op::Sync, Kept::sync)
    }

    pub(super) fn with_tree<T>(&self, generation: u64, op: Op, call: impl FnOnce(&mut Kept) -> T) -> Result<T> {
        let mut state = self.state();
        let lives = state.step(op).map_err(|e| Error::Io(e.to_string()))?;
        let done = state.trees.get_mut(&generation).map(call);
        done.filter(|_| lives).ok_or_else(|| Error::Io("the index is gone".to_owned()))
    }

    pub(super) fn sync_tree(&self, generation: u64) -> Result<()> {
        if self.state().plant == Plant::IndexUnsynced {
            return Ok(());
        }
        let mut state = self.state();
        let permille = state.faults.sync;
        let fails = state.fails(permille);
        drop(state);
        self.with_tree(generation, Op::Sync, |kept| if fails { kept.sync_badly() } else { kept.sync() })?;
        if fails { Err(Error::Io("the sync of the index failed".to_owned())) } else { Ok(()) }
    }
}

impl File {
    pub(in super::super) fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        self.disk.run(Op::Look, |state| {
            let Some(file) = state.files.get(&self.inode) else { return Ok(0) };
            let rest = file.now.get(at as usize..).unwrap_or_default();
            let n = rest.len().min(out.len());
            out[..n].copy_from_slice(&rest[..n]);
            Ok(n)
        })
    }

    pub(in super::super) fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.disk.write(self.inode, &self.path, bytes, at)
    }

    pub(in super::super) fn sync(&self) -> io::Result<()> {
        self.disk.sync(self.inode, &self.path)
    }

    pub(in super::super) fn len(&self) -> io::Result<u64> {
        self.disk.run(Op::Look, |state| Ok(state.files.get(&self.inode).map_or(0, |file| file.now.len() as u64)))
    }
}
