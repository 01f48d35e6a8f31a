//! The process dies at every fail-point, and at every point of opening and repair, also twice in a row. Outside stands
//! the memory of what was acknowledged; the verdict is over all sessions (scenarios 187 to 190).

use super::rig::{Rig, idle};
use everturn_actors::fault::POINTS;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt::Write as _};

/// Sessions by agent: together they pass most points.
const SESSIONS: [&str; 6] = ["plain", "tool", "pair", "hang", "prefix", "server"];

/// Points that an ordinary life of a daemon does not pass.
const RARE: &[&str] = &[
    "agent.arm_timer",
    "agent.disposed",
    "agent.fault",
    "agent.fire_maintenance",
    "boot.session",
    "driver.abandon",
    "driver.fault",
    "keeper.cut",
    "keeper.pool",
    "keeper.read",
    "keeper.restart",
    "pool.abandon",
    "pool.arm_timer",
    "pool.fault",
    "pool.fire_signal",
    "pool.notice",
    "store.reopen",
];

/// Receipts by session, in order: the ledger outside.
type Ledger = BTreeMap<String, Vec<String>>;

/// Works until it is done or the process dies: sends, steers, injects, a cancel of what hangs.
async fn work(daemon: &super::common::Daemon, round: &str, ledger: &mut Ledger) -> Option<()> {
    for agent in SESSIONS {
        let session = format!("{round}-{agent}");
        let created = daemon.try_ask("POST", "/v1/sessions", Some(json!({"id": session, "agent": agent}))).await?;
        if created.0 != 201 {
            continue;
        }
        for (kind, text) in [("send", "one"), ("steer", "two"), ("inject", "three"), ("send", "four")] {
            let path = format!("/v1/sessions/{session}/messages");
            let (status, receipt) = daemon.try_ask("POST", &path, Some(json!({"kind": kind, "content": text}))).await?;
            if status == 202 {
                assert_eq!(receipt["durable"], true, "{receipt}");
                let item = receipt["item_id"].as_str().unwrap().to_owned();
                ledger.entry(session.clone()).or_default().push(item);
            }
        }
        if agent == "hang" || agent == "prefix" {
            let path = format!("/v1/sessions/{session}/cancel");
            daemon.try_ask("POST", &path, Some(json!({"keep_inbox": true, "then": "continue"}))).await?;
        }
    }
    for session in ledger.keys().filter(|session| session.starts_with(round)) {
        daemon.try_ask("GET", &format!("/v1/sessions/{session}/idle?wait=5"), None).await?;
    }
    Some(())
}

/// Nothing acknowledged is lost or doubled; every turn and step is closed; no body ran twice.
async fn verdict(daemon: &super::common::Daemon, ledger: &Ledger, point: &str) {
    for (session, acknowledged) in ledger {
        // What hangs in a restarted script is ended.
        if session.ends_with("-hang") || session.ends_with("-prefix") {
            daemon
                .post(&format!("/v1/sessions/{session}/cancel"), json!({"keep_inbox": true, "then": "continue"}))
                .await;
            daemon.post(&format!("/v1/sessions/{session}/cancel"), json!({"keep_inbox": true})).await;
        }
        idle(daemon, session).await;
        let events = daemon.events(session).await;
        for item in acknowledged {
            let path = format!("/v1/sessions/{session}/messages/{item}");
            let (status, report) = daemon.get(&path).await;
            assert_eq!(status, 200, "{point}, {session}: {item} was acknowledged and is gone: {report}");
        }
        let mut seen: Vec<&Value> = Vec::new();
        for (at, event) in events.iter().enumerate() {
            assert_eq!(event["seq"], at, "{point}, {session}: a gap");
            if event["type"] == "user/message" {
                for item in event["data"]["items"].as_array().unwrap() {
                    assert!(!seen.contains(&item), "{point}, {session}: {item} became history twice");
                    seen.push(item);
                }
            }
        }
        let count = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
        assert_eq!(count("turn/start"), count("turn/end"), "{point}, {session}");
        assert_eq!(count("step/start"), count("step/end"), "{point}, {session}");
    }
}

/// Kills at every point of ordinary work, a different life each; one place for all, so that what one left is what the
/// next begins with.
#[tokio::test(flavor = "multi_thread")]
async fn death_at_every_point() {
    let rig = Rig::new();
    let mut ledger = Ledger::new();
    let (mut died, mut missed) = (0, Vec::new());
    let policies = "policy.pre_step#1000=error\npolicy.recovery#1000=error\npolicy.stopping#1000=error\n\
                    policy.request#1000=error\npolicy.before_tool#1000=error\ntool.notes#2=context(x)";
    for (number, (point, _)) in POINTS.iter().enumerate() {
        let mut faults = format!("{point}#1 = kill\n");
        for line in policies.lines().filter(|line| !line.starts_with(&format!("{point}#"))) {
            writeln!(faults, "{line}").unwrap();
        }
        let mut fresh = Ledger::new();
        let (daemon, _heard) = rig.try_serve(&faults);
        let ended = match daemon {
            None => true,
            Some(daemon) => {
                let worked = work(&daemon, &format!("w{number}"), &mut fresh).await;
                if worked.is_some() {
                    daemon.signal("TERM");
                    daemon.wait().0.is_none()
                } else {
                    daemon.wait();
                    true
                }
            }
        };
        if ended {
            died += 1
        } else {
            missed.push(*point)
        }
        let (daemon, _heard) = rig.serve("");
        verdict(&daemon, &fresh, point).await;
        ledger.extend(fresh);
        daemon.kill();
    }
    println!("{died} deaths at {} points; not passed: {missed:?}", POINTS.len());
    let surprising: Vec<_> = missed.iter().filter(|point| !RARE.contains(point)).collect();
    assert!(surprising.is_empty(), "these points were never passed: {surprising:?}");
    let (daemon, _heard) = rig.serve("");
    verdict(&daemon, &ledger, "at the end").await;
    assert_eq!(daemon.stop(), Some(0));
    rig.place.run(&["verify"]).exits(0);
}

/// 190: the process dies again and again while it opens and repairs what the death before left.
#[tokio::test(flavor = "multi_thread")]
async fn death_during_repair() {
    let rig = Rig::new();
    let mut ledger = Ledger::new();
    let mut died = 0;
    let repair = [
        "boot.attention",
        "boot.session",
        "keeper.open",
        "keeper.read",
        "keeper.mark",
        "append",
        "appended:session/opened",
        "keeper.checkpoint",
        "checkpoint:boot",
        "store.commit",
        "store.written",
        "store.sync",
        "store.synced",
        "durable",
        "keeper.start",
        "store.read",
    ];
    for round in 0..3 {
        // Leave turns open in every session.
        let (daemon, _heard) = rig.serve("tool.body#3 = kill");
        work(&daemon, &format!("r{round}"), &mut ledger).await;
        daemon.kill();
        for (at, point) in repair.iter().enumerate() {
            let (daemon, mut heard) = rig.try_serve(&format!("{point}#{} = kill", 1 + (at + round) % 2));
            let Some(daemon) = daemon else {
                died += 1;
                continue;
            };
            // Opens the sessions, unless it is dead already.
            for session in ledger.keys() {
                if daemon.try_ask("GET", &format!("/v1/sessions/{session}/idle?wait=0.1"), None).await.is_none() {
                    died += 1;
                    assert!(!heard.hear("never said").await);
                    break;
                }
            }
            daemon.kill();
        }
        let (daemon, _heard) = rig.serve("");
        verdict(&daemon, &ledger, "repair").await;
        assert_eq!(daemon.stop(), Some(0));
    }
    println!("{died} deaths while opening");
    assert!(died >= 16, "only {died} deaths: the points of repair are not passed");
    rig.place.run(&["verify"]).exits(0);
}
