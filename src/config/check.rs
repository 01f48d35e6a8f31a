//! Reads the file and says exactly what is wrong with it: file, line, key, and what was probably meant.

use super::{
    AgentConfig, Config, ConfigError, DaemonConfig, JournalConfig, McpConfig, ToolsConfig, introspect::fields_of,
};
use crate::{providers::ProviderConfig, tools::FetchConfig};
use everturn_actors::limits::{Limits, RetryLimits};
use std::{ops::Range, path::Path};
use toml::de::{DeTable, DeValue};

/// What may stand in a table.
pub(super) enum Keys {
    /// Names that the user chooses.
    Any,
    /// These.
    These(&'static [&'static str]),
    /// It is a value, and serde judges it.
    Value,
}

/// What may stand in the table at `path`.
pub(super) fn keys_at(path: &[&str]) -> Keys {
    match path {
        [] => Keys::These(fields_of::<Config>()),
        ["daemon"] => Keys::These(fields_of::<DaemonConfig>()),
        ["journal"] => Keys::These(fields_of::<JournalConfig>()),
        ["limits"] => Keys::These(fields_of::<Limits>()),
        ["limits", "retry"] | ["providers", _, "retry"] => Keys::These(fields_of::<RetryLimits>()),
        ["tools"] => Keys::These(fields_of::<ToolsConfig>()),
        ["tools", "fetch"] => Keys::These(fields_of::<FetchConfig>()),
        ["providers" | "agents" | "mcp"] => Keys::Any,
        ["providers", _] => Keys::These(fields_of::<ProviderConfig>()),
        ["agents", _] => Keys::These(fields_of::<AgentConfig>()),
        ["mcp", _] => Keys::These(fields_of::<McpConfig>()),
        _ => Keys::Value,
    }
}

/// The known key that `key` was probably meant to be.
fn nearest(key: &str, known: &[&'static str]) -> Option<&'static str> {
    let near = |name: &&str| strsim::damerau_levenshtein(key, name);
    known.iter().min_by_key(|name| near(name)).copied()
}

/// `; did you mean "…"?`, or the known keys when there is no near one.
pub(super) fn suggestion(key: &str, known: &[&'static str]) -> String {
    match nearest(key, known) {
        Some(name) => format!("the nearest known key is {name:?}"),
        None => "no key is known there".to_owned(),
    }
}

/// Whether a key looks like a secret written into the file, which is refused wherever it stands.
pub(super) fn is_secret(path: &[&str], key: &str) -> bool {
    matches!(path, ["providers", _])
        && matches!(key.to_ascii_lowercase().as_str(), "api_key" | "apikey" | "key" | "token")
}

/// The file as a plain table, every key known and every value of its type.
pub(super) fn parse(file: &Path, text: &str) -> Result<toml::Table, ConfigError> {
    let source = Source { file, text };
    let document = DeTable::parse(text).map_err(|error| source.syntax(&error))?;
    source.known(document.get_ref(), &mut Vec::new())?;
    toml::from_str::<Config>(text).map_err(|error| source.wrong(document.get_ref(), &error))?;
    toml::from_str::<toml::Table>(text).map_err(|error| source.syntax(&error))
}

struct Source<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn place(&self, span: Option<Range<usize>>) -> String {
        let end = span.map_or(0, |span| span.start).min(self.text.len());
        let line = 1 + self.text.as_bytes()[..end].iter().filter(|byte| **byte == b'\n').count();
        format!("{}, line {line}", self.file.display())
    }

    fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        let what = error.message().trim().replace('\n', "; ");
        ConfigError(format!("{} is no TOML ({what}); correct the line", self.place(error.span())))
    }

    fn known<'t>(&self, table: &'t DeTable<'_>, path: &mut Vec<&'t str>) -> Result<(), ConfigError> {
        let allowed = keys_at(path);
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let place = || self.place(Some(key.span()));
            let dotted = || [path.as_slice(), &[name]].concat().join(".");
            if is_secret(path, name) {
                return Err(ConfigError(format!(
                    "{}: {} would put a secret into the file; name where it is with api_key_env or api_key_file",
                    place(),
                    dotted()
                )));
            }
            match allowed {
                Keys::These(known) if !known.contains(&name) => {
                    let suggestion = suggestion(name, known);
                    return Err(ConfigError(format!("{}: unknown key {:?}; {suggestion}", place(), dotted())));
                }
                Keys::These(_) | Keys::Any => {
                    if let DeValue::Table(inner) = value.get_ref() {
                        path.push(name);
                        self.known(inner, path)?;
                        path.pop();
                    }
                }
                Keys::Value => {}
            }
        }
        Ok(())
    }

    /// Names the key whose value holds the place of the error.
    fn wrong(&self, document: &DeTable<'_>, error: &toml::de::Error) -> ConfigError {
        let mut path = Vec::new();
        if let Some(span) = error.span() {
            find(document, &span, &mut path);
        }
        let what = error.message().trim().replace('\n', "; ");
        let key = path.join(".");
        ConfigError(format!("{}: {key:?} has a wrong value ({what}); correct it", self.place(error.span())))
    }
}

/// Writes the path of the key whose value holds `wanted` into `path`. The span of a table is that of its header
/// only, so every table is searched.
fn find(table: &DeTable<'_>, wanted: &Range<usize>, path: &mut Vec<String>) -> bool {
    for (key, value) in table {
        path.push(key.get_ref().to_string());
        if let DeValue::Table(inner) = value.get_ref()
            && find(inner, wanted, path)
        {
            return true;
        }
        if value.span().start <= wanted.start && wanted.end <= value.span().end {
            return true;
        }
        path.pop();
    }
    false
}
