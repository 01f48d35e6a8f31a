//! Where the configuration file and the data directory are (SURFACE 1).

use super::{ConfigError, Loaded};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// What the command line says of places.
#[derive(Debug, Clone, Default)]
pub struct Locations {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--data-dir`.
    pub data_dir: Option<PathBuf>,
    /// The working directory, where `everturn.toml` is looked for.
    pub working_dir: PathBuf,
}

impl Locations {
    /// The file to read, if there is one, and the places where one would have been found.
    ///
    /// A file that was named must exist; one that was only looked for need not.
    pub(super) fn config_file(
        &self,
        env: &BTreeMap<String, String>,
    ) -> Result<(Option<PathBuf>, Vec<PathBuf>), ConfigError> {
        let named = match (&self.config, env.get("EVERTURN_CONFIG").filter(|path| !path.is_empty())) {
            (Some(path), _) => Some((path.clone(), "--config")),
            (None, Some(path)) => Some((PathBuf::from(path), "EVERTURN_CONFIG")),
            (None, None) => None,
        };
        if let Some((path, by)) = named {
            let path = self.working_dir.join(path);
            return if path.is_file() {
                Ok((Some(path.clone()), vec![path]))
            } else {
                Err(ConfigError(format!("{}, named by {by}, is no file; correct the path or write it", path.display())))
            };
        }
        let mut candidates = vec![self.working_dir.join("everturn.toml")];
        if let Some(dirs) = directories::ProjectDirs::from("", "", "everturn") {
            candidates.push(dirs.config_dir().join("everturn.toml"));
        }
        Ok((candidates.iter().find(|path| path.is_file()).cloned(), candidates))
    }
}

/// The data directory: `--data-dir`, `EVERTURN_DATA_DIR`, `[daemon] data_dir`, the platform's.
pub fn data_dir(
    locations: &Locations,
    env: &BTreeMap<String, String>,
    loaded: &Loaded,
) -> Result<PathBuf, ConfigError> {
    let here = |path: &Path| locations.working_dir.join(path);
    if let Some(path) = &locations.data_dir {
        return Ok(here(path));
    }
    if let Some(path) = env.get("EVERTURN_DATA_DIR").filter(|path| !path.is_empty()) {
        return Ok(here(Path::new(path)));
    }
    if let Some(path) = &loaded.config.daemon.data_dir {
        return Ok(here(&loaded.resolve(path)));
    }
    directories::ProjectDirs::from("", "", "everturn").map(|dirs| dirs.data_dir().to_owned()).ok_or_else(|| {
        ConfigError("this user has no home directory to keep sessions in; name one with --data-dir".to_owned())
    })
}
