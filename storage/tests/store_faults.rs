//! Disks that fail under the store: full ones, and ones that cannot sync.
//!
//! See `store_durability` for children and for what is skipped.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

mod common;

use common::{child, open, part, say, skip, whole_prefix};
use everturn_storage::{
    contract::{commit, padded, session},
    ids::Seq,
    store::{Error, Store},
};
use std::{fs, path::Path, process::Command};

/// Not a test by itself: the parts that children play.
#[test]
fn plays_a_part() {
    let Some((part, dir)) = part() else { return };
    match &*part {
        "sync until it fails" => sync_until_it_fails(&dir),
        other => panic!("no part {other}"),
    }
}

fn sync_until_it_fails(dir: &Path) {
    let (store, session) = (open(dir), session("s"));
    let mut acked = 0;
    let error = loop {
        store.commit(&[commit(&session, 1, acked, 1)]).unwrap();
        match store.sync() {
            Ok(()) => acked += 1,
            Err(error) => break error,
        }
        assert!(acked < 1_000, "no sync failed");
    };
    assert!(matches!(error, Error::Io(_)), "{error:?}");
    assert!(matches!(store.sync(), Err(Error::Poisoned(_))), "a failed sync must not be retried as if it were clean");
    assert!(matches!(store.commit(&[commit(&session, 1, acked + 1, 1)]), Err(Error::Poisoned(_))));
    assert!(acked > 0);
    let opened = store.reopen().unwrap();
    assert!(!opened.behind_acknowledged, "{:?}", opened.reports);
    let found = whole_prefix(&store, &session).unwrap();
    assert!(found >= acked);
    store.commit(&[commit(&session, 1, found, 1)]).unwrap();
    store.sync().unwrap();
    say("survived");
}

/// BR-040: an error of fdatasync is final for the opening, and the reopening writes everything once more.
#[test]
fn a_failed_sync_is_survived() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, data) = (dir.path().join("trace"), dir.path().join("data"));
    let inject = "inject=fdatasync:error=EIO:when=24";
    let strace = ["strace", "-f", "-y", "-e", "trace=fdatasync,pwrite64", "-e", inject, "-o", trace.to_str().unwrap()];
    let output = match child("sync until it fails", &data, &strace).output() {
        Ok(output) => output,
        Err(e) => return skip(&format!("strace does not run: {e}")),
    };
    let trace = fs::read_to_string(&trace).unwrap();
    if trace.is_empty() {
        return skip("strace may not trace here");
    }
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("> survived"),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let (_, after) = trace.split_once("(INJECTED)").unwrap();
    let count = |what: &str| after.lines().filter(|line| line.contains(what) && line.contains(".seg>")).count();
    assert!(count("pwrite64") >= 2, "the segment was not written again");
    assert!(count("fdatasync") >= 2, "once over what was written again, once for the new commit");
}

/// A small file system that goes away with it.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn mount(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(dir.path()).output();
        status.ok().filter(|output| output.status.success()).map(|_| Self(dir))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// BR-020: a full disk is final for an opening, and a reopening goes on when there is space again.
#[test]
fn a_full_disk_is_survived() {
    let Some(tmpfs) = Tmpfs::mount("24m") else { return skip("mounting a small tmpfs needs root") };
    let dir = tmpfs.0.path().join("data");
    let ballast = tmpfs.0.path().join("ballast");
    fs::write(&ballast, vec![1; 8 << 20]).unwrap();
    let (store, session) = (open(&dir), session("s"));
    let (mut next, mut acked) = (0, 0);
    let error = loop {
        let written = store.commit(&[padded(&session, 1, next, 1, 100_000)]).and_then(|()| store.sync());
        next += 1;
        match written {
            Ok(()) => acked = next,
            Err(error) => break error,
        }
        assert!(next < 1_000, "the disk never filled up");
    };
    assert!(matches!(error, Error::Full(_)), "{error:?}");
    assert!(matches!(store.sync(), Err(Error::Poisoned(_))));
    assert!(matches!(store.commit(&[commit(&session, 1, next, 1)]), Err(Error::Poisoned(_))));
    fs::remove_file(&ballast).unwrap();
    let opened = store.reopen().unwrap();
    assert!(!opened.behind_acknowledged, "{:?}", opened.reports);
    let found = whole_prefix(&store, &session).unwrap();
    assert!(found >= acked, "{acked} were acknowledged, {found} are there");
    store.commit(&[commit(&session, 1, found, 1)]).unwrap();
    store.sync().unwrap();
    assert_eq!(store.last_seq(&session), Ok(Some(Seq(found))));
}
