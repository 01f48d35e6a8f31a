//! The built-in tools, by the names that a configuration gives them.

mod fetch;
mod time;

use crate::config::ToolsConfig;
use everturn_actors::ports::Tool;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

pub use self::{fetch::Fetch, time::Time};

/// `[tools.fetch]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FetchConfig {
    /// Private addresses that may be asked, `host:port`, written as in the address that the model gives.
    pub allow: Vec<String>,
    /// Longest wait for a whole answer, redirects included.
    pub timeout_ms: u64,
    /// Most bytes of a body that are read.
    pub max_bytes: u64,
}

impl Default for FetchConfig {
    fn default() -> Self {
        Self { allow: Vec::new(), timeout_ms: 30_000, max_bytes: 1_048_576 }
    }
}

/// The names that an agent's `tools` may hold.
pub const NAMES: &[&str] = &["fetch", "time"];

/// Names of tools that a later build will have; said plainly, so that nobody looks for a typing mistake.
const LATER: &[&str] = &["fs", "shell"];

/// The tool of that name; an error is a sentence that says what to change.
pub fn build(name: &str, config: &ToolsConfig) -> Result<Arc<dyn Tool>, String> {
    match name {
        "time" => Ok(Arc::new(Time::new())),
        "fetch" => Ok(Arc::new(Fetch::new(&config.fetch)?)),
        later if LATER.contains(&later) || later.starts_with("mcp:") => {
            Err(format!("this build does not have the tool {later:?} yet; remove it from the list"))
        }
        other => Err(format!("there is no tool {other:?}; the tools are {}", NAMES.join(", "))),
    }
}

/// What [`everturn_storage::event::ToolSpec`] holds, from text that is known to be right.
fn spec(name: &str, description: &str, schema: &serde_json::Value) -> everturn_storage::event::ToolSpec {
    everturn_storage::event::ToolSpec {
        name: name.to_owned(),
        description: description.to_owned(),
        schema: everturn_storage::RawJson::from_value(schema),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing is enabled that is not named, and every name that is offered can be built.
    #[test]
    fn names_are_built() {
        for name in NAMES {
            assert_eq!(build(name, &ToolsConfig::default()).unwrap().spec().name, *name);
        }
        for (name, says) in [("shell", "yet"), ("fs", "yet"), ("mcp:files", "yet"), ("tiem", "fetch, time")] {
            let error = build(name, &ToolsConfig::default()).err().unwrap();
            assert!(error.contains(says) && error.contains(name), "{error}");
        }
    }
}
