//! Carrying out the actions of a fault script.

use super::script::Action;
use std::{io::Write as _, path::Path, time::Duration};

/// How often a held point looks for its file.
const LOOK: Duration = Duration::from_millis(2);

/// Marks what is not an error in the answer of a point.
const REJECT: &str = "\u{1}reject:";
const EMPTY: &str = "\u{1}empty";
const CONTEXT: &str = "\u{1}context:";
const CONCLUDE: &str = "\u{1}conclude";

/// Does it; returns what the point reports.
#[expect(clippy::panic, reason = "this is what the action is for")]
pub(super) fn carry_out(point: &str, action: &Action) -> Option<String> {
    match action {
        Action::Error(why) => Some(format!("{why} (at {point})")),
        Action::Panic => panic!("the fault script lets {point} panic"),
        Action::Kill => kill(),
        Action::Delay { ms } => {
            let ms = *ms;
            aside(move || wait(Duration::from_millis(ms)));
            None
        }
        Action::Hold { until } => {
            say(&format!("fault: {point} is held until {} appears\n", until.display()));
            aside(|| hold(until));
            None
        }
        Action::Reject { reason } => Some(format!("{REJECT}{reason}")),
        Action::Empty => Some(EMPTY.to_owned()),
        Action::Context { text } => Some(format!("{CONTEXT}{text}")),
        Action::Conclude => Some(CONCLUDE.to_owned()),
    }
}

/// What a policy of a test build is told to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Told {
    Nothing,
    Error(String),
    Reject(String),
    Empty,
    Context(String),
    Conclude,
}

impl Told {
    /// Reads the answer of a point.
    pub(super) fn by(answer: Option<String>) -> Self {
        let Some(answer) = answer else { return Self::Nothing };
        if let Some(reason) = answer.strip_prefix(REJECT) {
            return Self::Reject(reason.to_owned());
        }
        if let Some(text) = answer.strip_prefix(CONTEXT) {
            return Self::Context(text.to_owned());
        }
        match answer.as_str() {
            EMPTY => Self::Empty,
            CONCLUDE => Self::Conclude,
            _ => Self::Error(answer),
        }
    }
}

/// Ends this process as a crash does: nothing is flushed, nothing unwinds.
fn kill() -> ! {
    // Should the kernel refuse, the process still must not go on.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    loop {
        std::thread::park();
    }
}

/// A thread of the runtime that waits hands its other work on first.
fn aside(work: impl FnOnce()) {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        Ok(_) | Err(_) => work(),
    }
}

#[expect(clippy::disallowed_methods, reason = "a delay by order is what the action is for")]
fn wait(time: Duration) {
    std::thread::sleep(time);
}

fn hold(until: &Path) {
    while !until.exists() {
        wait(LOOK);
    }
}

fn say(line: &str) {
    // Without stderr nobody waits for the line.
    drop(std::io::stderr().write_all(line.as_bytes()));
}
