//! The test build (SURFACE 7): what the fault script in `EVERTURN_FAULTS` says is done at the fail-points of the code.
//!
//! The script is a list of rules, one a line or separated by `;`. A value that begins with `@` names a file that holds
//! it. `#` begins a line of comment.
//!
//! ```text
//! POINT[:WHAT][#HITS][@SESSION] = ACTION
//!
//! driver.dispatch#2       = kill                the second time that a driver is about to send a request
//! append#7                = error               the seventh append of the process
//! append:turn/end@s1      = error(no space)     each append with that event in session s1
//! checkpoint:request#1..3 = error               three checkpoints of that kind
//! store.sync#4+           = error               the fourth sync and all behind it
//! policy.pre_step         = reject(not now)     a policy that is added because the script names it
//! port.chunk#3            = hold(/tmp/go)       until that file appears; stderr tells when it is reached
//! ```
//!
//! Actions: `error`, `error(TEXT)`, `panic`, `kill`, `delay(MS)`, `hold(FILE)`; for `policy.pre_step` also
//! `reject(TEXT)` and `empty`; for `tool.notes` `context(TEXT)` and `conclude`. A name that does not exist, and an error
//! where none means anything, are refused at the start.

mod act;
mod maintain;
mod policies;
mod script;
#[cfg(test)]
mod tests;

pub(crate) use maintain::maintain;
pub(crate) use policies::equip;

use script::Script;
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

/// The variable that holds the fault script.
const VARIABLE: &str = "EVERTURN_FAULTS";

static SCRIPT: OnceLock<Arc<Script>> = OnceLock::new();

/// Reads the fault script and arms its points. An error says which rule is wrong, and why.
pub(crate) fn install(env: &BTreeMap<String, String>) -> Result<(), String> {
    let Some(value) = env.get(VARIABLE).filter(|value| !value.trim().is_empty()) else { return Ok(()) };
    let text = match value.strip_prefix('@') {
        None => value.clone(),
        Some(file) => std::fs::read_to_string(file)
            .map_err(|error| format!("{VARIABLE} names {file}, which cannot be read ({error}); correct the path"))?,
    };
    let script = Arc::new(Script::parse(&text).map_err(|why| format!("{VARIABLE}: {why}"))?);
    for (point, actions) in script.plans() {
        fail::cfg(point.as_str(), &actions).map_err(|why| format!("{VARIABLE}: {point}: {why}"))?;
    }
    let rules = Arc::clone(&script);
    everturn_actors::fault::live::install(Arc::new(move |point, action| {
        let action = rules.action(action)?;
        act::carry_out(point, action)
    }));
    // A second call in one process is another test of this module; the first script stands for the profiles.
    drop(SCRIPT.set(script));
    Ok(())
}

/// Whether some rule of the script speaks of this point.
fn speaks_of(point: &str) -> bool {
    SCRIPT.get().is_some_and(|script| script.speaks_of(point))
}
