//! What the calls of one batch may name, and whether their arguments fit (steps 1 and 2, X-10).

use super::types::{Shape, code};
use crate::ports::{AgentProfile, Tool};
use everturn_storage::{
    RawJson,
    log::{CallRow, LogState},
};
use jsonschema::Validator;
use serde_json::Value;
use std::{collections::BTreeMap, panic::AssertUnwindSafe, sync::Arc};

/// Most errors of one call that the model is told of; the first ones are what it has to fix anyway.
const ERRORS_MAX: usize = 5;

/// A schema ready for use, or why it is not.
type Schema = Result<Validator, String>;

/// Compiled schemas by tool, kept over batches; compiled again only when the schema is another one.
#[derive(Default)]
pub(super) struct Schemas(BTreeMap<String, (RawJson, Arc<Schema>)>);

impl Schemas {
    fn of(&mut self, tool: &dyn Tool) -> Arc<Schema> {
        let spec = tool.spec();
        match self.0.get(&spec.name) {
            Some((schema, compiled)) if *schema == spec.schema => Arc::clone(compiled),
            Some(_) | None => {
                let compiled = jsonschema::validator_for(&spec.schema.to_value()).map_err(|error| error.to_string());
                let compiled = Arc::new(compiled);
                self.0.insert(spec.name.clone(), (spec.schema.clone(), Arc::clone(&compiled)));
                compiled
            }
        }
    }
}

/// A tool with the arguments of a call, as they were when its start was last considered.
#[derive(Clone)]
pub(super) struct Prepared {
    pub(super) tool: Arc<dyn Tool>,
    pub(super) args: Value,
}

/// A tool and the schema of its arguments.
type Entry = (Arc<dyn Tool>, Arc<Schema>);

/// The tools that the header of the step shows to the model and that the profile still has.
pub(super) struct Toolbox {
    tools: BTreeMap<String, Entry>,
    visible: Vec<String>,
}

impl Toolbox {
    pub(super) fn new(view: &LogState, profile: &AgentProfile, schemas: &mut Schemas) -> Self {
        let visible: Vec<String> =
            view.header().map(|header| header.tools.iter().map(|spec| spec.name.clone()).collect()).unwrap_or_default();
        let tools = profile
            .tools
            .iter()
            .filter(|tool| visible.contains(&tool.spec().name))
            .map(|tool| (tool.spec().name.clone(), (Arc::clone(tool), schemas.of(&**tool))))
            .collect();
        Self { tools, visible }
    }

    /// Looks at a call. The tool's own code runs here, so a panic of it is caught and makes the call exclusive.
    pub(super) fn classify(&self, call: &CallRow) -> (Shape, Option<Prepared>) {
        let Some((tool, schema)) = self.tools.get(&call.name) else {
            return (Shape::Refused { code: code::UNKNOWN_TOOL, text: self.unknown(&call.name) }, None);
        };
        let args = match arguments(&call.arguments, schema) {
            Ok(args) => args,
            Err(text) => return (Shape::Refused { code: code::INVALID_ARGS, text }, None),
        };
        let asked = std::panic::catch_unwind(AssertUnwindSafe(|| tool.parallel_safe(&args)));
        let shape = Shape::Runnable {
            parallel: asked.unwrap_or(false),
            timeout_ms: tool.timeout_ms(),
            abandonable: tool.abandonable(),
        };
        (shape, Some(Prepared { tool: Arc::clone(tool), args }))
    }

    fn unknown(&self, name: &str) -> String {
        if self.visible.iter().any(|visible| visible == name) {
            format!("The tool {name:?} is not available any more. Go on without it.")
        } else if self.visible.is_empty() {
            format!("There is no tool {name:?}; this agent has no tools.")
        } else {
            format!("There is no tool {name:?}. The tools are: {}.", self.visible.join(", "))
        }
    }
}

/// The arguments of a call; no text means no arguments. The error is for the model.
fn arguments(text: &str, schema: &Schema) -> Result<Value, String> {
    let args = if text.trim().is_empty() {
        Value::Object(serde_json::Map::new())
    } else {
        serde_json::from_str(text)
            .map_err(|error| format!("The arguments are no JSON: {error}. Send a JSON object."))?
    };
    let schema = match schema {
        Ok(schema) => schema,
        Err(why) => {
            return Err(format!(
                "The schema of this tool cannot be used, so no arguments fit: {why}. Go on without it."
            ));
        }
    };
    let errors: Vec<String> = schema
        .iter_errors(&args)
        .take(ERRORS_MAX)
        .map(|error| match error.instance_path().as_str() {
            "" => format!("the arguments: {error}"),
            path => format!("{path}: {error}"),
        })
        .collect();
    if errors.is_empty() {
        Ok(args)
    } else {
        Err(format!("The arguments do not fit the schema: {}", errors.join("; ")))
    }
}
