//! Rows P0, P20 and P21 of CONTRACT 4.3, where no turn is open.

use super::rig::{Rig, create, idle, turn};
use serde_json::json;

/// P0: queued and not claimed.
#[tokio::test(flavor = "multi_thread")]
async fn p00_queued() {
    let rig = Rig::new();
    let faults = ["append:inbox/queued#1@refused=error", "checkpoint:accept#1@unsynced=error"].join("\n");
    let (daemon, _heard) = rig.serve(&faults);
    for (session, keep) in [("clear", false), ("park", true)] {
        create(&daemon, session, "hang").await;
        let mut stream = daemon.stream(session, Some(0)).await;
        let first = daemon.submit(session, "send", "one").await;
        let second = daemon.submit(session, "send", "two").await;
        stream.until("request/context").await;
        let body = if keep { json!({"keep_inbox": true}) } else { json!({}) };
        let (status, cancelled) = daemon.post(&format!("/v1/sessions/{session}/cancel"), body).await;
        assert_eq!(status, 200, "{cancelled}");
        idle(&daemon, session).await;
        let state = |report: serde_json::Value| report["state"].as_str().unwrap().to_owned();
        let item = |receipt: &serde_json::Value| receipt["item_id"].as_str().unwrap().to_owned();
        assert_eq!(state(daemon.settled(session, &item(&first)).await), "admitted");
        let path = format!("/v1/sessions/{session}/messages/{}", item(&second));
        let expected = if keep { "pending" } else { "removed" };
        assert_eq!(state(daemon.get(&path).await.1), expected, "no turn was made for it");
        assert_eq!(turn(&daemon.events(session).await, 2), "", "{session}");
    }
    // A refused record: the caller gets the error, nothing is pending.
    for session in ["refused", "unsynced"] {
        create(&daemon, session, "plain").await;
        let path = format!("/v1/sessions/{session}/messages");
        let message = json!({"kind": "send", "content": "one", "id": "m"});
        let (status, body) = daemon.post(&path, message.clone()).await;
        assert_eq!((status, &body["error"]["code"]), (503, &json!("STORAGE")), "{session}: {body}");
        // The same message again is taken once.
        let (status, body) = daemon.post(&path, message).await;
        assert!(status == 202 || status == 200, "{session}: {status} {body}");
        let item = body["item_id"].as_str().unwrap().to_owned();
        assert_eq!(daemon.settled(session, &item).await["state"], "admitted");
        let events = daemon.events(session).await;
        assert_eq!(events.iter().filter(|event| event["type"] == "user/message").count(), 1, "{session}");
    }
    assert_eq!(daemon.stop(), Some(0));
    // Crash: still pending, and it runs at boot.
    let (daemon, mut heard) = rig.serve("agent.wake_driver@crash=kill");
    create(&daemon, "crash", "plain").await;
    let item = daemon.submit("crash", "inject", "one").await["item_id"].as_str().unwrap().to_owned();
    let message = json!({"kind": "send", "content": "two"});
    daemon.try_ask("POST", "/v1/sessions/crash/messages", Some(message)).await;
    assert!(!heard.hear("never said").await);
    drop(daemon);
    let (daemon, _heard) = rig.serve("");
    assert_eq!(daemon.turn("crash", "three").await["state"], "admitted");
    assert_eq!(daemon.settled("crash", &item).await["state"], "admitted");
    assert_eq!(daemon.stop(), Some(0));
    rig.place.run(&["verify"]).exits(0);
}

/// P20: maintenance: a cancel, an error, a journal that fails, a crash.
#[tokio::test(flavor = "multi_thread")]
async fn p20_maintenance() {
    let rig = Rig::new();
    let faults = [
        rig.rules("cancel", "maintenance#1@=HOLD"),
        rig.rules("error", "maintenance#1@=error(no)"),
        rig.rules("journal", "checkpoint:maintenance#1..4@=error"),
        rig.rules("latch", "maintenance#1@=HOLD"),
    ];
    let (daemon, mut heard) = rig.serve(&faults.join("\n"));
    for session in ["cancel", "error", "journal", "latch"] {
        create(&daemon, session, "plain").await;
    }
    let maintain = |session: &'static str| {
        let path = format!("/v1/testkit/sessions/{session}/maintain");
        let daemon = &daemon;
        async move { daemon.post(&path, json!({})).await }
    };
    let (answer, ()) = tokio::join!(maintain("cancel"), async {
        assert!(heard.hear("is held until").await);
        assert_eq!(daemon.post("/v1/sessions/cancel/cancel", json!({})).await.0, 200);
        rig.open_gate("cancel");
    });
    assert_eq!(answer.1["error"]["code"], "CANCELLED", "{answer:?}");
    assert_eq!(maintain("error").await.1["failed"].as_str(), Some("no (at maintenance@error)"));
    let (status, body) = maintain("journal").await;
    println!("journal: {status} {body}");
    // An item that comes meanwhile is latched and runs behind it.
    let (answer, ()) = tokio::join!(maintain("latch"), async {
        assert!(heard.hear("is held until").await);
        daemon.submit("latch", "send", "one").await;
        assert_eq!(turn(&daemon.events("latch").await, 1), "");
        rig.open_gate("latch");
    });
    assert_eq!(answer.1["maintained"], true, "{answer:?}");
    for session in ["cancel", "error", "journal", "latch"] {
        idle(&daemon, session).await;
        assert_eq!(
            daemon.turn(session, "next").await["reason"]["kind"],
            "completed",
            "{session}: the agent is idle again"
        );
    }
    assert_eq!(daemon.stop(), Some(0));
    let (daemon, mut heard) = rig.serve("maintenance@crash=kill");
    create(&daemon, "crash", "plain").await;
    daemon.try_ask("POST", "/v1/testkit/sessions/crash/maintain", Some(json!({}))).await;
    assert!(!heard.hear("never said").await);
    drop(daemon);
    let (daemon, _heard) = rig.serve("");
    assert_eq!(daemon.turn("crash", "next").await["reason"]["kind"], "completed");
    assert_eq!(turn(&daemon.events("crash").await, 2), "", "no turn was involved");
    assert_eq!(daemon.stop(), Some(0));
    rig.place.run(&["verify"]).exits(0);
}

/// P21: disposing. A checkpoint that fails is reported, the disposal completes; what was acknowledged is there.
#[tokio::test(flavor = "multi_thread")]
async fn p21_disposing() {
    let rig = Rig::new();
    let (daemon, _heard) = rig.serve("checkpoint:dispose=error\nstore.close=error");
    create(&daemon, "failing", "plain").await;
    daemon.submit("failing", "inject", "kept").await;
    assert_eq!(daemon.turn("failing", "one").await["reason"]["kind"], "completed");
    assert_eq!(daemon.stop(), Some(0), "disposal completes");
    let (daemon, mut heard) = rig.serve("checkpoint:dispose@crash=kill");
    create(&daemon, "crash", "plain").await;
    assert_eq!(daemon.turn("crash", "one").await["reason"]["kind"], "completed");
    daemon.signal("TERM");
    assert!(!heard.hear("never said").await);
    drop(daemon);
    let (daemon, _heard) = rig.serve("");
    for session in ["failing", "crash"] {
        assert_eq!(daemon.turn(session, "next").await["reason"]["kind"], "completed", "{session}");
    }
    assert_eq!(daemon.stop(), Some(0));
    rig.place.run(&["verify"]).exits(0);
}
