//! Children, and what the tests beside the store on disk share.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(unreachable_pub, clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "test code")]

use everturn_storage::{
    codec::decode_commit,
    ids::{Seq, SessionId},
    segment_store::SegmentStore,
    store::Store,
};
use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

const PART: &str = "EVERTURN_TEST_CHILD";
const DIR: &str = "EVERTURN_TEST_DIR";

/// The part that this process plays, and its directory; `None` in the parent.
pub fn part() -> Option<(String, PathBuf)> {
    let part = std::env::var(PART).ok()?;
    Some((part, PathBuf::from(std::env::var_os(DIR).unwrap())))
}

pub fn open(dir: &Path) -> SegmentStore {
    let (store, opened) = SegmentStore::open(dir).unwrap();
    assert!(!opened.behind_acknowledged, "{:?}", opened.reports);
    store
}

/// This binary again, playing `part`. With a tracer in front where one is given.
pub fn child(part: &str, dir: &Path, tracer: &[&str]) -> Command {
    let exe = std::env::current_exe().unwrap();
    let mut command = match tracer.split_first() {
        Some((tracer, args)) => {
            let mut command = Command::new(tracer);
            command.args(args).arg(exe);
            command
        }
        None => Command::new(exe),
    };
    command.args(["plays_a_part", "--exact", "--nocapture", "--test-threads=1"]).env(PART, part).env(DIR, dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn say(line: &str) {
    println!("\n> {line}");
    std::io::stdout().flush().unwrap();
}

/// The next line that a child said.
pub fn heard(child: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    while child.read_line(&mut line).unwrap() > 0 {
        if let Some(said) = line.trim_end().strip_prefix("> ") {
            return Some(said.to_owned());
        }
        line.clear();
    }
    None
}

pub fn spawn(mut command: Command) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

pub fn skip(why: &str) {
    assert!(std::env::var_os("EVERTURN_REQUIRE_TOOLS").is_none(), "a tool that must be there is missing: {why}");
    eprintln!("\n!!!! SKIPPED, nothing was proved: {why}\n");
}

/// How many events of a session are whole, without a gap.
pub fn whole_prefix(store: &dyn Store, session: &SessionId) -> Result<u64, String> {
    let mut next = 0;
    loop {
        let page = store.read(session, Seq(next), 100, 1 << 22).map_err(|e| e.to_string())?;
        if page.is_empty() {
            store.last_seq(session).map_err(|e| e.to_string())?;
            return Ok(next);
        }
        for stored in page {
            if stored.first != Seq(next) {
                return Err(format!("event {next} is missing"));
            }
            let decoded = decode_commit(session, stored.first, &stored.bytes).map_err(|e| e.to_string())?;
            next += decoded.events.len() as u64;
        }
    }
}
