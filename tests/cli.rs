//! The command line as the shipped binary has it (SURFACE 1 to 3).

mod common;

use common::Place;
use serde_json::Value;

/// SURFACE 1: `config check` names file, line, key and nearest key; SURFACE 3: exit code 2, one sentence.
#[test]
fn config_check_says_what_is_wrong() {
    let place = Place::with(&[], "[limits]\nmax_paralel_tool_calls = 3\n");
    let ran = place.run(&["config", "check"]).exits(2);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    for part in ["everturn.toml, line 13", "limits.max_paralel_tool_calls", "max_parallel_tool_calls"] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    let ran = place.run(&["--json", "config", "check"]).exits(2);
    let error: Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!(error["error"]["code"], "CONFIG");
}

/// SURFACE 3: usage is exit code 2 and one sentence.
#[test]
fn wrong_usage_is_one_sentence() {
    let place = Place::new(&[]);
    for args in [&["frob"][..], &["log"], &["repair"], &["show", "no/id"], &["cancel", "s", "--then", "park"]] {
        let ran = place.run(args).exits(2);
        assert_eq!(ran.stderr.lines().count(), 1, "{args:?}: {}", ran.stderr);
    }
    let ran = place.run(&["frob", "--json"]).exits(2);
    assert_eq!(serde_json::from_str::<Value>(&ran.stderr).unwrap()["error"]["code"], "USAGE");
    place.run(&["--help"]).exits(0);
    place.run(&["--version"]).exits(0);
}

/// Looking makes no store.
#[test]
fn looking_changes_nothing() {
    let place = Place::new(&[]);
    place.run(&["sessions"]).exits(0);
    place.run(&["verify"]).exits(0);
    place.run(&["show", "s1"]).exits(2);
    place.run(&["log", "s1"]).exits(2);
    place.run(&["send", "s1", "hello"]).exits(1);
    assert!(!place.data_dir().exists());
}

const TOOL: &str = r#"{"text":"Let me look.","calls":[{"name":"time","arguments":{}}],"chunk_chars":3}"#;
const NOON: &str = r#"{"text":"It is noon.","chunk_chars":4}"#;
const HANG: &str = r#"{"hang":true}"#;

/// SURFACE 3: text on stdout, activity and the session's id on stderr, exit code 0; the log is there afterwards.
#[test]
fn run_prints_the_answer_and_journals() {
    let place = Place::new(&[TOOL, NOON]);
    let ran = place.run(&["run", "--session", "s1", "What time is it?"]).exits(0);
    assert_eq!(ran.stdout, "Let me look.\nIt is noon.\n");
    assert!(ran.stderr.contains("session: s1"), "{}", ran.stderr);
    assert!(ran.stderr.contains("time"), "{}", ran.stderr);

    let rows = place.run(&["sessions", "--json"]).exits(0).lines();
    assert_eq!((rows.len(), rows[0]["id"].as_str()), (1, Some("s1")));
    let events = place.run(&["log", "s1", "--json"]).exits(0).lines();
    assert_eq!(events.last().unwrap()["type"], "turn/end");
    let tail = place.run(&["log", "s1", "--json", "--from", "15"]).exits(0).lines();
    assert_eq!(tail, events[15..]);
    let messages = place.run(&["messages", "s1", "--json"]).exits(0).lines();
    let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
    let record = place.run(&["show", "s1", "--json"]).exits(0).lines().remove(0);
    assert_eq!((&record["turns"], &record["visible"]), (&1.into(), &"idle".into()));
    place.run(&["verify"]).exits(0);
    assert_eq!(place.run(&["repair", "--plan"]).exits(0).stdout, "");
    // The session goes on, also with events as output.
    let ran = place.run(&["run", "--json", "--session", "s1", "And now?"]).exits(0);
    let more = ran.lines();
    assert_eq!(more.first().unwrap()["type"], "session/opened");
    assert_eq!(more.last().unwrap()["data"]["reason"]["kind"], "completed");
    place.run(&["run", "--session", "s1", "--agent", "other", "x"]).exits(2);
    place.run(&["delete", "s1"]).exits(0);
    place.run(&["show", "s1"]).exits(2);
}

/// SURFACE 2: with no configuration the demonstration runs, says so, and journals for real.
#[test]
fn run_works_without_configuration() {
    let place = Place::new(&[]);
    std::fs::remove_file(place.path().join("everturn.toml")).unwrap();
    let ran = place.run(&["run", "--json", "What time is it?"]).exits(0);
    assert!(ran.stderr.contains("no model is configured") && ran.stderr.contains("everturn.toml"), "{}", ran.stderr);
    let events = ran.lines();
    assert_eq!(events[0]["seq"], 0);
    let count = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
    assert_eq!((count("step/start"), count("tool/result"), count("turn/end")), (2, 1, 1));
    place.run(&["verify"]).exits(0);
}

/// SURFACE 3: exit codes of turns.
#[test]
fn run_exits_as_its_turn_ended() {
    let fail = r#"{"fail":{"code":"AUTH"}}"#;
    let place = Place::new(&[fail]);
    let ran = place.run(&["run", "--json", "x"]).exits(3);
    let error: Value = serde_json::from_str(ran.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "AUTH");
}

/// SURFACE 3: stdin as prompt.
#[test]
fn the_prompt_may_come_from_stdin() {
    let place = Place::new(&[r#"{"text":"Yes.","expect":"from a pipe"}"#]);
    std::fs::write(place.path().join("prompt"), "from a pipe").unwrap();
    let mut command = place.command(&["run", "-"]);
    command.stdin(std::fs::File::open(place.path().join("prompt")).unwrap());
    let ran = common::Ran::of(command.output().unwrap()).exits(0);
    assert_eq!(ran.stdout, "Yes.\n");
}

/// SURFACE 7: SIGINT to `run` cancels, exit code 4; the log is whole.
#[test]
fn an_interrupted_run_cancels() {
    use std::io::{BufRead, BufReader};
    let place = Place::new(&[HANG]);
    let mut child = place.command(&["run", "--json", "--session", "s1", "x"]).spawn().unwrap();
    // The claim and the admission are durable before the provider is asked: then it hangs.
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("\"user/message\"")));
    let kill = std::process::Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(4));
    let last: Value = serde_json::from_str(rest.last().unwrap()).unwrap();
    assert_eq!(last["data"]["reason"]["kind"], "aborted");
    place.run(&["verify"]).exits(0);
}

/// SURFACE 3: lines of stdin are steers of the running turn.
#[test]
fn lines_of_stdin_steer() {
    use std::io::Write;
    let slow = r#"{"text":"Let me look.","calls":[{"name":"time","arguments":{}}],"chunk_chars":1,"delay_ms":40}"#;
    let place = Place::new(&[slow, r#"{"text":"Fine.","expect":"look twice"}"#]);
    let mut command = place.command(&["run", "--json", "--steer-stdin", "x"]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    writeln!(child.stdin.as_mut().unwrap(), "look twice").unwrap();
    let ran = common::Ran::of(child.wait_with_output().unwrap()).exits(0);
    let steered = ran.lines().into_iter().find(|event| event["data"]["origin"] == "steer").unwrap();
    assert_eq!(steered["type"], "user/message");
}

/// SURFACE 3: with a daemon the commands go through it; its store is busy for those that need it alone (exit 6).
#[test]
fn commands_talk_to_the_daemon() {
    let place = Place::new(&[NOON]);
    let daemon = place.serve();
    let ran = place.run(&["run", "--session", "s1", "x"]).exits(0);
    assert_eq!(ran.stdout, "It is noon.\n");
    let ran = place.run(&["send", "s1", "--wait", "y"]).exits(0);
    assert_eq!(ran.stdout, "It is noon.\n");
    let receipt = place.run(&["inject", "s1", "--json", "--id", "m9", "by the way"]).exits(0).lines().remove(0);
    assert_eq!((&receipt["item_id"], &receipt["durable"]), (&"m9".into(), &true.into()));
    place.run(&["steer", "s1", "z"]).exits(0);
    place.run(&["cancel", "s1", "--keep-inbox"]).exits(0);
    assert_eq!(place.run(&["sessions", "--json"]).exits(0).lines().len(), 1);
    place.run(&["log", "s1", "--json"]).exits(0);
    place.run(&["messages", "s1"]).exits(0);
    place.run(&["show", "s1"]).exits(0);
    for args in [&["verify"][..], &["repair", "--plan"], &["serve"]] {
        let ran = place.run(args).exits(6);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }
    let error = place.run(&["verify", "--json"]).exits(6).stderr;
    assert_eq!(serde_json::from_str::<Value>(&error).unwrap()["error"]["code"], "STORE_BUSY");
    assert_eq!(daemon.stop(), Some(0));
    place.run(&["verify"]).exits(0);
}

/// BR-026: what a dead daemon left behind, its address and its PID, blocks nobody.
#[test]
fn a_dead_daemon_blocks_nobody() {
    let place = Place::new(&[NOON]);
    place.serve().kill();
    assert!(place.data_dir().join("daemon.json").exists());
    std::fs::write(place.data_dir().join("daemon.json"), r#"{"url":"http://127.0.0.1:1","pid":1}"#).unwrap();
    place.run(&["run", "x"]).exits(0);
    assert_eq!(place.serve().stop(), Some(0));
}

/// Scenario I: `repair --plan` says what boot would append, `--apply` appends the same.
#[test]
fn repair_says_and_does_the_same() {
    let place = Place::new(&[HANG]);
    let mut child = place.command(&["run", "--json", "--session", "s1", "x"]).spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.as_mut().unwrap()));
    assert!(lines.map(Result::unwrap).any(|line| line.contains("\"request/context\"")));
    child.kill().unwrap();
    child.wait().unwrap();
    let planned = place.run(&["repair", "--plan", "--json"]).exits(0).lines();
    assert_eq!(planned.last().unwrap()["data"]["reason"]["kind"], "interrupted");
    assert_eq!(place.run(&["repair", "--plan", "--json"]).exits(0).lines(), planned);
    place.run(&["repair", "--apply"]).exits(0);
    let log = place.run(&["log", "s1", "--json"]).exits(0).lines();
    assert_eq!(log[log.len() - planned.len()..], planned);
    assert_eq!(place.run(&["repair", "--plan"]).exits(0).stdout, "");
    place.run(&["verify"]).exits(0);
}

/// SURFACE 7: export and import keep the id and every byte; an existing id and a broken file are refused.
#[test]
fn a_session_is_exported_and_imported() {
    let place = Place::new(&[TOOL, NOON]);
    place.run(&["run", "--session", "s1", "x"]).exits(0);
    place.run(&["export", "s1", "a.jsonl"]).exits(0);
    place.run(&["import", "a.jsonl"]).exits(2);
    let there = Place::new(&[TOOL, NOON]);
    let text = std::fs::read_to_string(place.path().join("a.jsonl")).unwrap();
    std::fs::write(there.path().join("a.jsonl"), &text).unwrap();
    there.run(&["import", "a.jsonl"]).exits(0);
    assert_eq!(there.run(&["export", "s1", "-"]).exits(0).stdout, text);
    there.run(&["verify"]).exits(0);
    assert_eq!(there.run(&["run", "--session", "s1", "y"]).exits(0).stdout, "It is noon.\n");
    // Without its last line the log is still one; without one from its middle it is none.
    let mut lines: Vec<&str> = text.lines().collect();
    lines.remove(5);
    std::fs::write(there.path().join("bad.jsonl"), lines.join("\n")).unwrap();
    there.run(&["delete", "s1"]).exits(0);
    there.run(&["import", "bad.jsonl"]).exits(7);
    there.run(&["show", "s1"]).exits(2);
}

/// SURFACE 3: the service manager is told when the daemon is ready and when it stops.
#[test]
fn the_service_manager_is_told() {
    let place = Place::new(&[NOON]);
    let path = place.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(common::WAIT_S))).unwrap();
    let said = || {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    let mut command = place.command(&["serve"]);
    command.env("NOTIFY_SOCKET", &path);
    let daemon = common::Daemon::start(command);
    assert_eq!(said().trim(), "READY=1");
    daemon.signal("TERM");
    assert_eq!(said().trim(), "STOPPING=1");
    assert_eq!(daemon.wait().0, Some(0));
}

/// SURFACE 2: a token from a file guards the daemon, and the commands of the same configuration show it.
#[test]
fn commands_show_the_token_of_the_file() {
    let place = Place::with(&[NOON], "");
    let config = std::fs::read_to_string(place.path().join("everturn.toml")).unwrap();
    let config = config.replacen("[daemon]\n", "[daemon]\ntoken_file = \"token\"\n", 1);
    std::fs::write(place.path().join("everturn.toml"), config).unwrap();
    place.run(&["config", "check"]).exits(2);
    std::fs::write(place.path().join("token"), "hush\n").unwrap();
    let _daemon = place.serve();
    assert_eq!(place.run(&["run", "--session", "s1", "x"]).exits(0).stdout, "It is noon.\n");
    let mut command = place.command(&["show", "s1"]);
    command.env("EVERTURN_TOKEN", "another");
    let ran = common::Ran::of(command.output().unwrap()).exits(2);
    assert!(ran.stderr.contains("token") && !ran.stderr.contains("hush"), "{}", ran.stderr);
}

/// Scenario 198, V-4, V-6: an event of a type that nobody here knows is kept to the byte when it may be skipped, and
/// the session goes on; otherwise the file is refused.
#[test]
fn unknown_events_are_kept_or_refused() {
    let place = Place::new(&[NOON]);
    place.run(&["run", "--session", "s1", "x"]).exits(0);
    let text = place.run(&["export", "s1", "-"]).exits(0).stdout;
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let seq = last["seq"].as_u64().unwrap() + 1;
    let line = |rest: &str| {
        let data = r#"{ "b" : 1.50,  "a" : [ ] }"#;
        format!(r#"{{"session":"s1","seq":{seq},"time":{},"type":"later/thing","data":{data}{rest}}}"#, last["time"])
    };
    for (rest, code) in [(r#","ignorable":true"#, 0), ("", 7)] {
        let there = Place::new(&[NOON]);
        let file = format!("{text}{}\n", line(rest));
        std::fs::write(there.path().join("a.jsonl"), &file).unwrap();
        let ran = there.run(&["import", "a.jsonl"]).exits(code);
        if code == 7 {
            assert!(ran.stderr.contains("later/thing"), "{}", ran.stderr);
            there.run(&["show", "s1"]).exits(2);
            continue;
        }
        assert_eq!(there.run(&["export", "s1", "-"]).exits(0).stdout, file);
        assert_eq!(there.run(&["run", "--session", "s1", "y"]).exits(0).stdout, "It is noon.\n");
        let more = there.run(&["export", "s1", "-"]).exits(0).stdout;
        assert!(more.starts_with(&file), "{more}");
        there.run(&["verify"]).exits(0);
    }
}

/// SURFACE 3 and 7: a damaged session is exit code 7 for whoever asks for it, with its place; the others are read; a
/// daemon runs as long as any can be.
#[test]
fn damage_is_exit_code_7() {
    let place = Place::new(&[NOON]);
    place.run(&["run", "--session", "sound", "x"]).exits(0);
    common::damage(&place.data_dir(), "bad");
    for args in [&["run", "--session", "bad", "x"][..], &["messages", "bad"], &["verify"], &["repair", "--plan"]] {
        let ran = place.run(args).exits(7);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert!(said.contains("event 1"), "{args:?}: {said}");
    }
    let ran = place.run(&["run", "--json", "--session", "bad", "x"]).exits(7);
    let error: Value = serde_json::from_str(ran.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "CORRUPT");
    assert_eq!(place.run(&["run", "--session", "sound", "y"]).exits(0).stdout, "It is noon.\n");
    assert_eq!(place.serve().stop(), Some(0));
    place.run(&["delete", "sound"]).exits(0);
    let ran = place.run(&["serve"]).exits(7);
    assert!(ran.stderr.contains("bad"), "the damaged session is not named: {}", ran.stderr);
}
