//! The commands for users who want to see it on their own disk, and for those whose disk is damaged.

use super::{
    common::Place,
    herd::{Herd, copy},
};
use std::path::PathBuf;

/// `everturn chaos` kills itself, judges itself, and cleans up.
#[test]
fn chaos_of_ones_own() {
    let place = Place::new(&[r#"{"text":"fine"}"#]);
    let dir = place.path().join("chaos");
    let ran = place.run(&[
        "chaos",
        "--rounds",
        "5",
        "--sessions",
        "2",
        "--seed",
        "7",
        "--dir",
        dir.to_str().unwrap(),
        "--json",
    ]);
    let ran = ran.exits(0);
    let told = &ran.lines()[0];
    assert_eq!((&told["kills"], &told["wrong"]), (&5.into(), &serde_json::json!([])), "{told}");
    assert!(told["acknowledged"].as_u64().unwrap() > 0, "{told}");
    assert!(!dir.exists(), "it leaves nothing behind when all is well");
}

/// A recorded workload is played; a wrong line is named.
#[test]
fn chaos_from_a_recording() {
    let place = Place::new(&[r#"{"text":"fine"}"#]);
    let file = place.path().join("workload.jsonl");
    let lines: Vec<String> =
        (0..6).map(|n| format!(r#"{{"session":"mine-{}","kind":"send","content":"message {n}"}}"#, n % 2)).collect();
    std::fs::write(&file, lines.join("\n")).unwrap();
    let dir = place.path().join("chaos");
    let args = ["chaos", "--rounds", "2", "--workload", "workload.jsonl", "--dir", dir.to_str().unwrap()];
    let ran = place.run(&args).exits(0);
    assert!(ran.stdout.contains("0 promises broken"), "{ran:?}");
    std::fs::write(&file, "{\"session\":1}").unwrap();
    assert!(place.run(&args).exits(2).stderr.contains("line 1"));
}

/// BR-014: a whole store is saved whole; of a damaged one everything in front of the damage, each session in a file that
/// an import takes; the damage is said.
#[tokio::test(flavor = "multi_thread")]
async fn salvage() {
    let mut herd = Herd::new();
    let (daemon, _heard) = herd.serve();
    herd.load(&daemon, 4).await;
    herd.judge(&daemon, "whole").await;
    assert_eq!(daemon.stop(), Some(0));
    let place = &herd.place;
    let whole = place.run(&["salvage", "whole"]).exits(0);
    assert!(whole.stdout.contains("all whole"), "{whole:?}");
    let kept = place.path().join("kept");
    copy(&place.data_dir(), &kept);
    let mut files: Vec<PathBuf> = Vec::new();
    collect(&kept, &mut files);
    files.sort_by_key(|file| std::cmp::Reverse(std::fs::metadata(file).unwrap().len()));
    let biggest = files[0].strip_prefix(&kept).unwrap().to_owned();
    let (mut saved, mut loud) = (0, 0);
    for part in 1..8 {
        std::fs::remove_dir_all(place.data_dir()).unwrap();
        copy(&kept, &place.data_dir());
        let file = place.data_dir().join(&biggest);
        let mut bytes = std::fs::read(&file).unwrap();
        // The written part is in front; what is behind is zeros that nobody reads.
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        let at = end * part / 8;
        bytes[at] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let into = place.path().join(format!("saved-{part}"));
        let ran = place.run(&["salvage", into.to_str().unwrap()]);
        assert!(matches!(ran.code, Some(0 | 7)), "part {part}: {ran:?}");
        loud += u32::from(ran.code == Some(7));
        let Ok(entries) = std::fs::read_dir(&into) else { continue };
        let other = Place::new(&[r#"{"text":"fine"}"#]);
        for entry in entries {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let before = std::fs::read_to_string(place.path().join("whole").join(path.file_name().unwrap())).unwrap();
            assert!(before.starts_with(&text), "part {part}: what is saved is not what was written");
            if text.lines().count() > 1 {
                other.run(&["import", path.to_str().unwrap()]).exits(0);
                saved += 1;
            }
        }
        other.run(&["verify"]).exits(0);
    }
    println!("{saved} sessions saved out of damaged stores, {loud} of 7 damages found");
}

fn collect(dir: &std::path::Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { collect(&path, out) } else { out.push(path) }
    }
}
