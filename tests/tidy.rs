//! What can be seen of the house rules by machine: sizes, arrows between packages, purity of the decisions.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::wildcard_enum_match_arm,
    reason = "a test may panic, prints its seed, and looks at the variants it is about"
)]

use std::{
    fs,
    path::{Path, PathBuf},
};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Lines that a source file may have; it aims at 400.
const MAX_LINES: usize = 500;

fn rust_files(dir: &str) -> Vec<PathBuf> {
    fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(dir) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                walk(&path, out);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                out.push(path);
            }
        }
    }
    let mut out = Vec::new();
    walk(&Path::new(ROOT).join(dir), &mut out);
    out.sort();
    assert!(!out.is_empty(), "{dir} has no source files: the path is wrong");
    out
}

fn is_test(path: &Path) -> bool {
    let text = path.to_string_lossy();
    text.contains("/tests/") || text.ends_with("/tests.rs") || text.ends_with("_tests.rs") || text.contains("/testing")
}

/// The text of a file up to its test module, without comments.
fn code_of(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..end].lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn assert_absent(files: &[PathBuf], banned: &[&str], why: &str) {
    let mut found = Vec::new();
    for path in files.iter().filter(|path| !is_test(path)) {
        let code = code_of(path);
        for word in banned {
            if code.contains(word) {
                found.push(format!("{} uses {word}", path.display()));
            }
        }
    }
    assert!(found.is_empty(), "{why}:\n{}", found.join("\n"));
}

/// Files aim at 400 lines and stop at 500.
#[test]
fn files_stay_small() {
    let mut long = Vec::new();
    for dir in ["src", "actors", "storage", "tests", "benches"] {
        for path in rust_files(dir) {
            let lines = fs::read_to_string(&path).unwrap().lines().count();
            if lines > MAX_LINES {
                long.push(format!("{}: {lines}", path.display()));
            }
        }
    }
    assert!(long.is_empty(), "these files are longer than {MAX_LINES} lines; split them:\n{}", long.join("\n"));
}

/// The decisions are pure: no clock, randomness, I/O, async or hash maps.
#[test]
fn decisions_are_pure() {
    let mut files = Vec::new();
    for dir in ["storage/src/log", "actors/src/turn", "actors/src/desk"] {
        files.extend(rust_files(dir));
    }
    files.push(Path::new(ROOT).join("actors/src/tool_pool/window.rs"));
    files.push(Path::new(ROOT).join("actors/src/group_commit.rs"));
    files.push(Path::new(ROOT).join("actors/src/ledger.rs"));
    let banned = [
        "std::time",
        "SystemTime",
        "Instant",
        "std::fs",
        "std::net",
        "std::thread",
        "std::env",
        "HashMap",
        "HashSet",
        "tokio",
        "async ",
        ".await",
        "ractor",
        "rand::",
        "uuid",
    ];
    assert_absent(&files, &banned, "a decision depends on something that cannot be replayed");
}

/// Every arrow points down.
#[test]
fn arrows_point_down() {
    let storage = ["tokio", "ractor", "reqwest", "axum", "everturn_actors", "futures"];
    assert_absent(&rust_files("storage/src"), &storage, "storage knows nothing of what is above it");
    let actors = ["reqwest", "axum", "std::env", "std::fs", "SystemTime", "clap"];
    assert_absent(&rust_files("actors/src"), &actors, "actors know nothing of HTTP, files, clocks or vendors");
}

/// Waiting is event-driven. The tests wait for events too, never for time to pass: where they sleep, time is virtual.
#[test]
fn nobody_sleeps_in_tests() {
    let mut found = Vec::new();
    for dir in ["tests", "actors", "storage", "src"] {
        for path in rust_files(dir).into_iter().filter(|path| is_test(path) && !path.ends_with("tidy.rs")) {
            let text = fs::read_to_string(&path).unwrap();
            let sleeps = |line: &str| line.contains("thread::sleep(") || line.contains("time::sleep(");
            let guilty = text.lines().any(|line| sleeps(line) && !line.trim_start().starts_with("//"));
            if guilty && (text.contains("thread::sleep(") || !time_is_virtual(&path)) {
                found.push(path.display().to_string());
            }
        }
    }
    assert!(found.is_empty(), "these tests sleep:\n{}", found.join("\n"));
}

/// Whether every asynchronous test of the module that `path` belongs to runs on a paused clock.
fn time_is_virtual(path: &Path) -> bool {
    let Some(folder) = path.parent() else { return false };
    let mut module = vec![path.to_owned()];
    if folder.file_name().is_some_and(|name| name == "tests") {
        let siblings = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        module.extend(siblings.filter(|path| path.extension().is_some_and(|ext| ext == "rs")));
        module.push(folder.with_extension("rs"));
    }
    let text: String = module.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
    text.contains("start_paused = true")
        && !text.contains("#[tokio::test]")
        && !text.contains("flavor = \"multi_thread\"")
}

/// The rules of the contract that run before every append are cited where they are proven.
#[test]
fn rules_are_cited() {
    let mut all = String::new();
    for dir in ["tests", "actors", "storage", "src"] {
        for path in rust_files(dir).into_iter().filter(|path| !path.ends_with("tidy.rs")) {
            all.push_str(&fs::read_to_string(path).unwrap());
        }
    }
    let checked = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17, 18, 20, 21, 22, 23, 25, 26, 29, 30, 32, 33, 34];
    let missing: Vec<_> = checked.iter().map(|n| format!("I-{n}")).filter(|rule| !cited(&all, rule)).collect();
    assert!(missing.is_empty(), "no test or code cites {missing:?}");
}

fn cited(text: &str, rule: &str) -> bool {
    text.match_indices(rule).any(|(at, _)| !text[at + rule.len()..].starts_with(|c: char| c.is_ascii_digit()))
}
