//! Fault scripts that are wrong are refused before anything starts.

use super::common::Place;

/// Exit code 2, and a sentence that names the rule.
#[test]
fn wrong_scripts_are_refused() {
    let place = Place::new(&[r#"{"text":"fine"}"#]);
    for (script, says) in [
        ("driver.dispach=kill", "driver.dispatch"),
        ("driver.dispatch=error", "means nothing"),
        ("@nowhere", "cannot be read"),
        ("append", "no `=`"),
    ] {
        let mut command = place.command(&["sessions"]);
        command.env("EVERTURN_FAULTS", script);
        let ran = super::common::Ran::of(command.output().unwrap()).exits(2);
        assert!(ran.stderr.contains(says), "{script}: {}", ran.stderr);
    }
}

/// A script can stand in a file.
#[test]
fn scripts_come_from_files() {
    let place = Place::new(&[r#"{"text":"fine"}"#]);
    std::fs::write(place.path().join("faults"), "# ends it\ndriver.dispatch = kill\n").unwrap();
    let mut command = place.command(&["run", "hello"]);
    command.env("EVERTURN_FAULTS", "@faults");
    let ran = super::common::Ran::of(command.output().unwrap());
    assert_eq!(ran.code, None, "a signal ended it: {ran:?}");
}
