//! The configuration: where it is found, what it may say, and what is made of it (SURFACE 1 and 2).
//!
//! Order of authority, strongest first: flags, `EVERTURN__SECTION__KEY`, the file, the defaults. Relative paths in
//! the file are relative to the file.

mod check;
mod introspect;
mod locate;
mod model;
mod overrides;
mod profiles;

#[cfg(test)]
mod tests;

pub use locate::{Locations, data_dir};
pub use model::{AgentConfig, Config, DaemonConfig, Engine, JournalConfig, McpConfig, Switch, ToolsConfig};
pub use profiles::{ConfiguredProfiles, build_profiles};

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Why a configuration is refused: one sentence that names the place and the way out. Exit code 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// A configuration that was read and checked.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// What counts.
    pub config: Config,
    /// The file that it was read from, when there was one.
    pub file: Option<PathBuf>,
    /// Where a file would have been read from, best first.
    pub candidates: Vec<PathBuf>,
    /// Whether the built-in demonstration stands in because no agent and no provider is configured.
    pub demo: bool,
}

impl Loaded {
    /// A path of the configuration, made absolute with the directory of its file.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        match self.file.as_deref().and_then(Path::parent) {
            Some(dir) if path.is_relative() => dir.join(path),
            _ => path.to_owned(),
        }
    }

    /// An error of the file, which it names.
    fn wrong(&self, what: &str) -> ConfigError {
        ConfigError(match &self.file {
            Some(file) => format!("{}: {what}", file.display()),
            None => what.to_owned(),
        })
    }

    /// The effective configuration as TOML, secrets masked.
    pub fn show(&self) -> Result<String, ConfigError> {
        let mut shown = self.config.clone();
        shown.mask();
        let text = toml::to_string(&shown)
            .map_err(|error| ConfigError(format!("the configuration cannot be shown ({error}); this is a bug")))?;
        let origin = match &self.file {
            Some(file) => format!("# from {}\n", file.display()),
            None => "# no configuration file; defaults\n".to_owned(),
        };
        Ok(origin + &text)
    }
}

/// Finds, reads and checks the configuration. `env` is the process's environment.
pub fn load(locations: &Locations, env: &BTreeMap<String, String>) -> Result<Loaded, ConfigError> {
    let (file, candidates) = locations.config_file(env)?;
    let text = match &file {
        Some(path) => std::fs::read_to_string(path).map_err(|error| {
            ConfigError(format!("{} cannot be read ({error}); make it readable or name another file", path.display()))
        })?,
        None => String::new(),
    };
    let shown = file.as_deref().unwrap_or(Path::new("everturn.toml"));
    let table = check::parse(shown, &text)?;
    let mut config = overrides::apply(table, env)?;
    let demo = config.agents.is_empty() && config.providers.is_empty();
    if demo {
        config.install_demo();
    }
    let loaded = Loaded { config, file, candidates, demo };
    let has_token = env.get("EVERTURN_TOKEN").is_some_and(|token| !token.trim().is_empty());
    loaded.config.check_whole(&loaded, has_token)?;
    Ok(loaded)
}
