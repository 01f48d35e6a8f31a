//! Faults that people met in the field, replayed against the binary (sections A to C and K of the collection).

use super::rig::{Rig, create, idle, turn};
use serde_json::{Value, json};

/// An agent with a script of its own.
fn with_agent(rig: &Rig, name: &str, script: &[String]) {
    std::fs::write(rig.place.path().join(format!("{name}.jsonl")), script.join("\n")).unwrap();
    let file = rig.place.path().join("everturn.toml");
    let more = format!(
        "[providers.{name}]\nkind = \"script\"\nfile = \"{name}.jsonl\"\n\
         [agents.{name}]\nprovider = \"{name}\"\nmodel = \"script\"\ntools = [\"time\"]\n"
    );
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + &more).unwrap();
}

fn count(events: &[Value], kind: &str) -> usize {
    events.iter().filter(|event| event["type"] == kind).count()
}

/// BR-001, BR-004, BR-005, BR-007, BR-008, BR-137, BR-139: the provider numbers calls anew in each answer; the process is
/// killed in the body of the second turn, and again right behind its repair. The second turn's call gets its own result,
/// once; a second boot adds nothing; everybody is told `interrupted`; two wakes at once change nothing; the effect whose
/// outcome is unknown is never had again.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_result() {
    let rig = Rig::new();
    let call = r#"{"text":"look","calls":[{"name":"time","arguments":{},"id":"call-1"}]}"#.to_owned();
    let fine = r#"{"text":"fine"}"#.to_owned();
    with_agent(&rig, "again", &[call.clone(), fine.clone(), call, fine]);
    let (daemon, mut heard) = rig.serve("tool.body#2 = kill");
    create(&daemon, "s", "again").await;
    assert_eq!(daemon.turn("s", "one").await["reason"]["kind"], "completed");
    daemon.try_ask("POST", "/v1/sessions/s/messages", Some(json!({"kind": "send", "content": "two"}))).await;
    assert!(!heard.hear("never said").await);
    drop(daemon);
    // The next process dies too, behind the repair and before any new turn.
    let (daemon, _heard) = rig.serve("");
    idle(&daemon, "s").await;
    let repaired = daemon.events("s").await;
    daemon.kill();
    let (daemon, _heard) = rig.serve("");
    let (a, b) = tokio::join!(daemon.get("/v1/sessions/s/idle?wait=30"), daemon.get("/v1/sessions/s/idle?wait=30"));
    assert_eq!((a.0, b.0), (200, 200));
    let events = daemon.events("s").await;
    let closers =
        |events: &[Value]| (count(events, "tool/result"), count(events, "turn/end"), count(events, "step/end"));
    assert_eq!(closers(&events), closers(&repaired), "a second boot repairs nothing");
    assert_eq!(count(&events, "tool/result"), 2, "each call has one result");
    let second = turn(&events, 2);
    assert!(second.contains("call opened(repair) result(TOOL_OUTCOME_UNKNOWN) /step /turn(interrupted)"), "{second}");
    let (a, b) = tokio::join!(daemon.turn("s", "three"), daemon.turn("s", "four"));
    assert_eq!((&a["state"], &b["state"]), (&json!("admitted"), &json!("admitted")));
    assert_eq!(daemon.stop(), Some(0));
    rig.place.run(&["verify"]).exits(0);
}

/// BR-002: killed in a tool; behind the restart another provider takes the session, and its first request is accepted.
#[tokio::test(flavor = "multi_thread")]
async fn another_provider_behind_a_crash() {
    let rig = Rig::new();
    let (daemon, mut heard) = rig.serve("tool.body#1 = kill");
    create(&daemon, "s", "tool").await;
    daemon.try_ask("POST", "/v1/sessions/s/messages", Some(json!({"kind": "send", "content": "one"}))).await;
    assert!(!heard.hear("never said").await);
    drop(daemon);
    let file = rig.place.path().join("everturn.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, config.replace("[agents.tool]\nprovider = \"tool\"", "[agents.tool]\nprovider = \"plain\""))
        .unwrap();
    let (daemon, _heard) = rig.serve("");
    assert_eq!(daemon.turn("s", "two").await["reason"]["kind"], "completed");
    assert_eq!(daemon.stop(), Some(0));
    rig.place.run(&["verify"]).exits(0);
}

/// BR-130, BR-131: stopped and thawed in a turn; restarted while idle, running, suspended and failed: a send is taken in
/// every state.
#[tokio::test(flavor = "multi_thread")]
async fn a_send_is_taken_in_every_state() {
    let rig = Rig::new();
    let (daemon, _heard) = rig.serve("");
    for (session, agent) in [("idle", "plain"), ("failed", "refuses"), ("running", "later"), ("frozen", "tool")] {
        create(&daemon, session, agent).await;
    }
    daemon.turn("idle", "one").await;
    daemon.turn("failed", "one").await;
    let frozen = daemon.submit("frozen", "send", "one").await;
    daemon.signal("STOP");
    daemon.signal("CONT");
    let item = frozen["item_id"].as_str().unwrap();
    assert_eq!(daemon.settled("frozen", item).await["reason"]["kind"], "completed", "thawed, it goes on");
    daemon.submit("running", "send", "one").await;
    daemon.kill();
    for stop in [false, true] {
        let (daemon, _heard) = rig.serve("");
        for session in ["idle", "failed", "frozen"] {
            assert_eq!(daemon.turn(session, "again").await["state"], "admitted", "{session}");
        }
        daemon.submit("running", "send", "again").await;
        // BR-134: while one drains or works, another one is refused and takes nothing over.
        rig.place.run(&["serve"]).exits(6);
        if stop { assert_eq!(daemon.stop(), Some(0)) } else { daemon.kill() }
    }
    rig.place.run(&["verify"]).exits(0);
}

/// BR-140: nothing that is needed to go on lives outside the data directory: it is moved between a crash and the start.
#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_that_moves() {
    let rig = Rig::new();
    let (daemon, mut heard) = rig.serve("tool.body#1 = kill");
    create(&daemon, "s", "tool").await;
    daemon.submit("s", "inject", "wait for it").await;
    daemon.try_ask("POST", "/v1/sessions/s/messages", Some(json!({"kind": "send", "content": "one"}))).await;
    assert!(!heard.hear("never said").await);
    drop(daemon);
    let moved = rig.place.path().join("elsewhere");
    std::fs::rename(rig.place.data_dir(), &moved).unwrap();
    let mut command = rig.place.command(&["serve"]);
    command.env("EVERTURN_DATA_DIR", &moved);
    let (daemon, _heard) = super::common::Daemon::start_heard(command);
    let daemon = daemon.unwrap();
    assert_eq!(daemon.turn("s", "two").await["reason"]["kind"], "completed");
    let events = daemon.events("s").await;
    assert!(turn(&events, 1).contains("/turn(interrupted)"));
    assert_eq!(daemon.stop(), Some(0));
}

/// BR-031, BR-032: a turn of many steps has no hidden end, and what is written for a step does not grow with history.
#[tokio::test(flavor = "multi_thread")]
async fn many_steps_cost_the_same() {
    const STEPS: usize = 120;
    let rig = Rig::new();
    let call = r#"{"text":"look","calls":[{"name":"time","arguments":{}}]}"#.to_owned();
    let mut script = vec![call; STEPS];
    script.push(r#"{"text":"fine"}"#.to_owned());
    with_agent(&rig, "long", &script);
    let (daemon, _heard) = rig.serve("");
    create(&daemon, "s", "long").await;
    assert_eq!(daemon.turn("s", "go").await["reason"]["kind"], "completed");
    let events = daemon.events("s").await;
    assert_eq!(count(&events, "step/start"), STEPS + 1);
    let bytes = |step: usize| -> usize {
        let of_step = events.iter().filter(|event| event["data"]["step"] == step);
        of_step.map(|event| event.to_string().len()).sum()
    };
    let (early, late) = (bytes(5), bytes(STEPS - 5));
    assert!(late <= early + early / 10, "a step took {early} bytes early and {late} late");
    assert_eq!(daemon.stop(), Some(0));
    rig.place.run(&["verify"]).exits(0);
}
