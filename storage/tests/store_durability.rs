//! What the store on disk promises, against real files, processes and system calls.
//!
//! The test binary runs itself again as a child: `plays_a_part` plays the part that `EVERTURN_TEST_CHILD` names. Tests that
//! need a tool or root say loudly when they are skipped; with `EVERTURN_REQUIRE_TOOLS=1` they fail instead.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "test code; it talks to its parent"
)]

mod common;

use common::{child, heard, open, part, say, skip, spawn, whole_prefix};
use everturn_storage::{
    contract::{commit, header, padded, session, summary},
    ids::{Seq, SessionId},
    segment_store::SegmentStore,
    store::{Commit, Error, Store},
};
use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

fn first_commit(session: &SessionId) -> Commit {
    let commit = commit(session, 1, 0, 1);
    let (header, summary) = (Some(Arc::new(header(session))), Some(Arc::new(summary(session, 0, 1))));
    Commit { header, summary, ..commit }
}

/// Not a test by itself: the parts that children play.
#[test]
fn plays_a_part() {
    let Some((part, dir)) = part() else { return };
    match &*part {
        "hold" => hold(&dir),
        "open" => match SegmentStore::open(&dir) {
            Ok(_) => say("opened"),
            Err(error) => say(&format!("{error:?}")),
        },
        "write" => write_for_ever(&dir),
        "checkpoints" => checkpoints(&dir),
        "damaged" => say(&format!("verdict {}", verdict(&dir))),
        other => panic!("no part {other}"),
    }
}

fn said_once(part: &str, dir: &Path) -> String {
    let (mut process, mut out) = spawn(child(part, dir, &[]));
    let said = heard(&mut out).unwrap();
    process.wait().unwrap();
    said
}

fn hold(dir: &Path) {
    let _store = open(dir);
    say("holding");
    let _ = std::io::stdin().read(&mut [0]);
}

/// W-1, W-4, BR-023, BR-026: the kernel holds the lock, the text is for people, and death gives it free.
#[test]
fn one_process_owns_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("LOCK"), "1\n").unwrap();
    let (mut holder, mut out) = spawn(child("hold", dir.path(), &[]));
    assert_eq!(heard(&mut out).as_deref(), Some("holding"));
    let busy = Error::Busy { holder: format!("process {}", holder.id()) };
    assert_eq!(SegmentStore::open(dir.path()).unwrap_err(), busy);
    assert_eq!(said_once("open", dir.path()), format!("{busy:?}"));
    holder.kill().unwrap();
    holder.wait().unwrap();
    let store = open(dir.path());
    let me = Error::Busy { holder: format!("process {}", std::process::id()) };
    assert_eq!(SegmentStore::open(dir.path()).unwrap_err(), me, "also in one process");
    store.close().unwrap();
    assert_eq!(said_once("open", dir.path()), "opened");
}

/// BR-025: reading the files beside the engine does not lose the lock.
#[test]
fn reading_the_files_keeps_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for name in ["LOCK", "FORMAT", "ACKED", "index/1/db", "segments/0000000001.seg"] {
        fs::read(dir.path().join(name)).unwrap();
    }
    store.stats();
    assert!(said_once("open", dir.path()).starts_with("Busy"));
}

/// The files belong to their owner alone.
#[test]
fn the_directory_is_private() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("a/b");
    let _store = open(&data);
    let mode = |path: &str| fs::metadata(data.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(["", "segments", "index", "index/1"].map(mode), [0o700; 4]);
    let files = ["LOCK", "FORMAT", "ACKED", "segments/0000000001.seg", "index/COVERED", "index/1/db"];
    assert_eq!(files.map(mode), [0o600; 6]);
}

/// BR-029, V-1: another format is refused and not one byte changes. Format 1 was never released.
#[test]
fn another_format_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).close().unwrap();
    let format = fs::read_to_string(dir.path().join("FORMAT")).unwrap();
    for found in [1, 7] {
        fs::write(dir.path().join("FORMAT"), format.replacen(" 2 ", &format!(" {found} "), 1)).unwrap();
        let before = snapshot(dir.path());
        assert_eq!(SegmentStore::open(dir.path()).unwrap_err(), Error::Format { found, supported: 2 });
        assert!(before == snapshot(dir.path()));
    }
    fs::remove_file(dir.path().join("FORMAT")).unwrap();
    assert!(matches!(SegmentStore::open(dir.path()), Err(Error::Io(_))), "data without a format is not overwritten");
}

/// Every file with its bytes and its time.
fn snapshot(dir: &Path) -> Vec<(PathBuf, Vec<u8>, std::time::SystemTime)> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            out.extend(snapshot(&path));
        } else {
            out.push((path.clone(), fs::read(&path).unwrap(), fs::metadata(&path).unwrap().modified().unwrap()));
        }
    }
    out.sort();
    out
}

const CHECKPOINTS: u64 = 6;

fn checkpoints(dir: &Path) {
    let (store, session) = (open(dir), session("s"));
    for n in 0..CHECKPOINTS {
        say(&format!("mark {n}"));
        let with_index = n % 2 == 0;
        let summary = with_index.then(|| Arc::new(summary(&session, n, 1)));
        let size = if n == 3 { 400_000 } else { 100 };
        store.commit(&[Commit { summary, ..padded(&session, 1, n, 1, size) }]).unwrap();
        store.sync().unwrap();
    }
    say(&format!("mark {CHECKPOINTS}"));
    // A killed process syncs nothing more on its way out.
    std::process::abort();
}

/// BR-040: between a write and its acknowledgement an fdatasync of the segment has returned 0.
#[test]
fn a_checkpoint_is_a_real_sync() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, data) = (dir.path().join("trace"), dir.path().join("data"));
    let strace = ["strace", "-f", "-y", "-e", "trace=fdatasync,fsync,write", "-o", trace.to_str().unwrap()];
    match child("checkpoints", &data, &strace).output() {
        Ok(_) => {}
        Err(e) => return skip(&format!("strace does not run: {e}")),
    }
    let trace = fs::read_to_string(&trace).unwrap();
    if trace.is_empty() {
        return skip("strace may not trace here");
    }
    let (mut syncs, mut mark, mut entered) = (0, None, false);
    for line in trace.lines() {
        entered |= line.contains("fdatasync(") && line.contains(".seg>");
        if entered && line.ends_with("= 0") && line.contains("fdatasync") {
            (syncs, entered) = (syncs + 1, false);
        }
        if let Some(at) = line.find("> mark ") {
            let n: u64 = line[at + 7..].chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap();
            assert!(mark.is_none() || syncs > 0, "checkpoint {n} was acknowledged without a sync");
            (mark, syncs) = (Some(n), 0);
        }
    }
    assert_eq!(mark, Some(CHECKPOINTS), "the child did not get to its end");
    let store = open(&data);
    assert_eq!(store.last_seq(&session("s")), Ok(Some(Seq(CHECKPOINTS - 1))));
}

fn write_for_ever(dir: &Path) {
    let (store, session) = (open(dir), session("s"));
    let mut next = store.last_seq(&session).unwrap().map_or(0, |last| last.0 + 1);
    loop {
        let group = [commit(&session, 1, next, 1), padded(&session, 1, next + 1, 2, (next as usize * 997) % 60_000)];
        store.commit(&group).unwrap();
        store.sync().unwrap();
        next += 3;
        say(&format!("{next}"));
    }
}

/// A killed process loses nothing that it had acknowledged.
#[test]
fn killed_processes_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let session = session("s");
    for round in 1..=8 {
        let (mut writer, mut out) = spawn(child("write", dir.path(), &[]));
        let mut acked = 0;
        for _ in 0..round * 3 {
            acked = heard(&mut out).unwrap().parse::<u64>().unwrap();
        }
        writer.kill().unwrap();
        while let Some(line) = heard(&mut out) {
            // A line may be cut by the kill.
            acked = line.parse::<u64>().unwrap_or(acked).max(acked);
        }
        writer.wait().unwrap();
        let store = open(dir.path());
        let found = whole_prefix(&store, &session).unwrap();
        assert!(found >= acked, "round {round}: {acked} events were acknowledged, {found} are there");
        assert_eq!(Some(Seq(found - 1)), store.last_seq(&session).unwrap());
    }
}

const SESSIONS: u64 = 3;
const COMMITS: u64 = 120;

/// A store with some sessions, all of it acknowledged.
fn fill(dir: &Path) {
    let store = open(dir);
    for n in 0..COMMITS {
        for s in 0..SESSIONS {
            let session = session(&format!("s{s}"));
            let next = match n {
                0 => first_commit(&session),
                _ => padded(&session, 1, n, 1, (n as usize * 9_973) % 90_000),
            };
            store.commit(&[next]).unwrap();
        }
        store.sync().unwrap();
    }
    store.close().unwrap();
}

/// What a damaged store says of itself.
fn verdict(dir: &Path) -> String {
    let (store, opened) = match SegmentStore::open(dir) {
        Ok(opened) => opened,
        Err(error) => return format!("loud: {error}"),
    };
    if opened.behind_acknowledged {
        return format!("loud: {:?}", opened.reports);
    }
    for s in 0..SESSIONS {
        match whole_prefix(&store, &session(&format!("s{s}"))) {
            Err(error) => return format!("loud: {error}"),
            Ok(COMMITS) => {}
            Ok(found) => return format!("SILENT: session s{s} has {found} events"),
        }
    }
    "whole".to_owned()
}

/// Runs the case in a child, so that an abort, a hang or a flood of memory is seen as what it is.
fn judge(dir: &Path) -> String {
    let (mut process, mut out) = spawn(child("damaged", dir, &[]));
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(heard(&mut out)));
    let said = receiver.recv_timeout(std::time::Duration::from_secs(60));
    process.kill().unwrap();
    process.wait().unwrap();
    match said {
        Ok(Some(line)) => line,
        Ok(None) => "DIED".to_owned(),
        Err(_) => "HUNG".to_owned(),
    }
}

/// Damages one file after another, `cases` times each, at places spread over what is used of it.
fn damage(name: &str, cases: u64, break_it: impl Fn(&File, u64, u64)) {
    let source = tempfile::tempdir().unwrap();
    fill(source.path());
    let untouched = tempfile::tempdir().unwrap();
    copy(source.path(), untouched.path());
    assert_eq!(judge(untouched.path()), "verdict whole");
    let (mut whole, mut loud) = (0, 0);
    let files: Vec<PathBuf> = snapshot(source.path()).into_iter().map(|(path, ..)| path).collect();
    for (file, n) in files.iter().flat_map(|file| (0..cases).map(move |n| (file, n))) {
        let used = used_bytes(file);
        let file = file.strip_prefix(source.path()).unwrap();
        let target = tempfile::tempdir().unwrap();
        copy(source.path(), target.path());
        let broken = File::options().read(true).write(true).open(target.path().join(file)).unwrap();
        break_it(&broken, n * used / cases, n);
        let said = judge(target.path());
        match said.strip_prefix("verdict ") {
            Some("whole") => whole += 1,
            Some(text) if text.starts_with("loud") => loud += 1,
            Some(_) | None => panic!("{name}, case {n} of {cases} in {}: {said}", file.display()),
        }
    }
    eprintln!("{name}: {} files, {whole} whole, {loud} loud", files.len());
    assert!(loud > 0, "no case did any harm, so nothing was tested");
}

fn used_bytes(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1)
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            fs::create_dir_all(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// BR-014, BR-038: a flipped bit harms nobody or is said; never a panic, a hang or a silent loss.
#[test]
fn flipped_bits_are_harmless_or_loud() {
    damage("flipped bits", 8, |file, at, case| {
        let mut byte = [0];
        if file.read_at(&mut byte, at).unwrap() > 0 {
            file.write_all_at(&[byte[0] ^ (1 << (case % 8))], at).unwrap();
        }
    });
}

/// BR-014: so does a run of zeros.
#[test]
fn zeroed_runs_are_harmless_or_loud() {
    damage("zeroed runs", 5, |file, at, _| file.write_all_at(&[0; 500], at).unwrap());
}

/// BR-013: so does a cut tail.
#[test]
fn cut_tails_are_harmless_or_loud() {
    damage("cut tails", 5, |file, at, _| file.set_len(at).unwrap());
}

/// Losing the whole log is loud, once. Losing the index is harmless.
#[test]
fn a_lost_log_is_loud() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path());
    fs::remove_dir_all(dir.path().join("index")).unwrap();
    assert_eq!(verdict(dir.path()), "whole");
    fs::remove_dir_all(dir.path().join("segments")).unwrap();
    let (_, opened) = SegmentStore::open(dir.path()).unwrap();
    assert!(opened.behind_acknowledged, "{:?}", opened.reports);
}

/// Commits larger than a segment have one of their own.
#[test]
fn large_commits_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let (store, session) = (open(dir.path()), session("s"));
    let mut next = 0;
    for size in [300_000, 3 << 20, 8 << 20] {
        for _ in 0..20_usize.min((32 << 20) / size) {
            store.commit(&[padded(&session, 1, next, 1, size)]).unwrap();
            next += 1;
        }
        store.sync().unwrap();
    }
    store.close().unwrap();
    assert_eq!(whole_prefix(&open(dir.path()), &session), Ok(next));
}
