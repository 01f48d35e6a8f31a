//! Data directories that earlier builds wrote are opened by every later one, for ever (V-1 to V-3, BR-029, BR-041).
//!
//! Each `storage/tests/golden/store-*` is one, with the export of its session `golden` beside it. They are never changed;
//! a build with a new format adds one.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test may panic, and prints what it did")]

#[path = "common/mod.rs"]
mod common;

use common::Place;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

fn golden() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("storage/tests/golden");
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = entries
        .filter(|path| path.is_dir() && path.file_name().unwrap().to_string_lossy().starts_with("store-"))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "the golden data directories are gone");
    found
}

/// Format 1 was replaced before anything was released: it is refused, and everything since is opened.
fn never_released(data: &Path) -> bool {
    data.ends_with("store-v1")
}

fn released() -> impl Iterator<Item = PathBuf> {
    golden().into_iter().filter(|data| !never_released(data))
}

/// Every file with its bytes.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { dirs.push(path) } else { drop(all.insert(path.clone(), fs::read(path).unwrap())) }
        }
    }
    all
}

fn place_with(data: &Path) -> Place {
    let place = Place::new(&[r#"{"text":"fine"}"#]);
    for (path, bytes) in contents(data) {
        let to = place.data_dir().join(path.strip_prefix(data).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, bytes).unwrap();
    }
    place
}

/// The events are those that were written, every rule holds, and the session goes on.
#[test]
fn old_data_is_read_and_goes_on() {
    for data in released() {
        let place = place_with(&data);
        let expected = fs::read_to_string(data.with_extension("jsonl")).unwrap();
        let log = place.run(&["log", "golden", "--json"]).exits(0);
        assert_eq!(log.stdout, expected, "{}", data.display());
        place.run(&["verify"]).exits(0);
        place.run(&["run", "--session", "golden", "and now?"]).exits(0);
        let log = place.run(&["log", "golden", "--json"]).exits(0);
        assert!(log.stdout.starts_with(&expected), "{}: history was changed", data.display());
        assert!(log.stdout.len() > expected.len());
        place.run(&["verify"]).exits(0);
    }
}

/// BR-029: what a newer build wrote, or one before the first release, is refused with a sentence, and not a byte of it is touched.
#[test]
fn other_formats_are_refused_untouched() {
    for data in golden() {
        let place = place_with(&data);
        let file = place.data_dir().join("FORMAT");
        let text = fs::read_to_string(&file).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        let newer = text.replacen(&format!(" {} ", words[1]), " 999 ", 1);
        assert_ne!(newer, text);
        if !never_released(&data) {
            fs::write(&file, newer).unwrap();
        }
        let version = if never_released(&data) { "format 1" } else { "format 999" };
        let before = contents(&place.data_dir());
        for command in [&["verify"][..], &["sessions"], &["run", "hello"], &["serve"], &["repair", "--apply"]] {
            let ran = place.run(command).exits(7);
            assert!(ran.stderr.contains(version), "{command:?}: {}", ran.stderr);
        }
        let mut after = contents(&place.data_dir());
        after.retain(|path, _| path.file_name().unwrap() != "LOCK");
        assert_eq!(after, before.into_iter().filter(|(path, _)| path.file_name().unwrap() != "LOCK").collect());
    }
}

/// V-4: events of a type that this build does not know pass through when they may be ignored, and stop it when not.
#[test]
fn unknown_events() {
    let text = fs::read_to_string(golden()[0].with_extension("jsonl")).unwrap();
    let first = text.lines().count();
    let header = r#"{"version":1,"session_id":"golden","agent":"default","created_at":1}"#;
    let unknown = |ignorable: &str| {
        format!(
            r#"{{"session":"golden","seq":{first},"time":99999999999999,"type":"later/thing","data":{{"a":[1]}}{ignorable}}}"#
        )
    };
    for (ignorable, code) in [(r#","ignorable":true"#, 0), ("", 7)] {
        let place = Place::new(&[r#"{"text":"fine"}"#]);
        let file = place.path().join("in.jsonl");
        fs::write(&file, format!("{header}\n{text}{}\n", unknown(ignorable))).unwrap();
        place.run(&["import", file.to_str().unwrap()]).exits(code);
        if code == 0 {
            place.run(&["run", "--session", "golden", "and now?"]).exits(0);
            let log = place.run(&["log", "golden", "--json"]).exits(0);
            assert!(log.stdout.lines().any(|line| line == unknown(ignorable)), "it comes out as it went in");
            place.run(&["verify"]).exits(0);
        }
    }
}
