//! `EVERTURN__SECTION__KEY`: every key from the environment.

use super::{
    Config, ConfigError,
    check::{Keys, is_secret, keys_at, suggestion},
};
use std::collections::BTreeMap;

const PREFIX: &str = "EVERTURN__";

/// The configuration of the file with the overrides of the environment.
///
/// They are taken one by one, so that an error names the variable that caused it.
pub(super) fn apply(mut table: toml::Table, env: &BTreeMap<String, String>) -> Result<Config, ConfigError> {
    let mut config = read(&table).map_err(|what| ConfigError(format!("the configuration does not hold: {what}")))?;
    for (name, text) in env {
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let parts: Vec<String> = rest.split("__").map(str::to_ascii_lowercase).collect();
        insert(&mut table, &mut Vec::new(), &parts, value_of(text))
            .map_err(|what| ConfigError(format!("environment variable {name}: {what}")))?;
        config = read(&table).map_err(|what| {
            ConfigError(format!("environment variable {name} has a wrong value ({what}); correct it or unset it"))
        })?;
    }
    Ok(config)
}

fn read(table: &toml::Table) -> Result<Config, String> {
    table.clone().try_into::<Config>().map_err(|error| error.message().trim().replace('\n', "; "))
}

/// A value as TOML, and as a string when it is none.
fn value_of(text: &str) -> toml::Value {
    match format!("value = {text}").parse::<toml::Table>() {
        Ok(mut table) if table.len() == 1 => {
            table.remove("value").unwrap_or_else(|| toml::Value::String(text.to_owned()))
        }
        Ok(_) | Err(_) => toml::Value::String(text.to_owned()),
    }
}

fn insert(table: &mut toml::Table, path: &mut Vec<String>, parts: &[String], value: toml::Value) -> Result<(), String> {
    let [part, rest @ ..] = parts else { return Err("it names no key".to_owned()) };
    let at: Vec<&str> = path.iter().map(String::as_str).collect();
    if is_secret(&at, part) {
        return Err("a secret is not taken from here; use api_key_env or api_key_file".to_owned());
    }
    let key = match keys_at(&at) {
        Keys::These(known) if !known.contains(&part.as_str()) => {
            let dotted = [at.as_slice(), &[part.as_str()]].concat().join(".");
            return Err(format!("unknown key {dotted:?}; {}", suggestion(part, known)));
        }
        Keys::Value => return Err(format!("{:?} is a value and has no keys", at.join("."))),
        Keys::These(_) => part.clone(),
        // A name that the user chose may hold what a variable cannot: capitals and hyphens.
        Keys::Any => {
            let plain = |name: &str| name.to_ascii_lowercase().replace('-', "_");
            table.keys().find(|name| plain(name) == *part).cloned().unwrap_or_else(|| part.clone())
        }
    };
    if rest.is_empty() {
        table.insert(key, value);
        return Ok(());
    }
    path.push(key.clone());
    match table.entry(key).or_insert_with(|| toml::Value::Table(toml::Table::new())) {
        toml::Value::Table(inner) => insert(inner, path, rest, value),
        toml::Value::String(_)
        | toml::Value::Integer(_)
        | toml::Value::Float(_)
        | toml::Value::Boolean(_)
        | toml::Value::Datetime(_)
        | toml::Value::Array(_) => Err(format!("{:?} is a value and has no keys", path.join("."))),
    }
}
