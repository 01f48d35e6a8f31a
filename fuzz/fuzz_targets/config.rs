//! Any configuration is accepted or refused with a sentence; none panics, and what is shown can be read again.
#![no_main]

use everturn::config::{self, Locations};
use libfuzzer_sys::fuzz_target;
use std::{collections::BTreeMap, path::PathBuf};

fuzz_target!(|text: &str| {
    let dir: PathBuf = std::env::temp_dir();
    let file = dir.join(format!("everturn-fuzz-{}.toml", std::process::id()));
    std::fs::write(&file, text).expect("the temporary directory can be written");
    let at = Locations { config: Some(file), data_dir: Some(dir.clone()), working_dir: dir };
    match config::load(&at, &BTreeMap::new()) {
        Ok(loaded) => drop(loaded.show()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
