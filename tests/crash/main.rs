//! The real binary over its real protocols, killed in the middle of things and started again (scenarios 187, 188, 189, 191,
//! 195, 210 without power loss, 270). Outside stands a world that remembers what really happened.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::wildcard_enum_match_arm,
    reason = "a test may panic, prints its seed, and looks at the variants it is about"
)]

#[path = "../common/mod.rs"]
mod common;
mod disk;
mod herd;
mod kills;
mod ledger;
mod power;
mod save;
mod world;

use common::{Daemon, Place};
use ledger::Ledger;
use world::World;

const SESSION: &str = "s";

fn place(world: &World) -> Place {
    let place = Place::new(&[]);
    let address = world.address;
    let config = format!(
        "[daemon]\nlisten = \"127.0.0.1:0\"\ndrain_s = 5\n\
         [providers.outside]\nkind = \"openai\"\nbase_url = \"http://{address}/v1\"\napi_key_file = \"key\"\n\
         [agents.default]\nprovider = \"outside\"\nmodel = \"m\"\nsystem = \"Be brief.\"\ntools = [\"fetch\"]\n\
         [tools.fetch]\nallow = [\"{address}\"]\n"
    );
    std::fs::write(place.path().join("everturn.toml"), config).unwrap();
    std::fs::write(place.path().join("key"), "secret-key-of-the-test\n").unwrap();
    place
}

/// Starts again behind a kill, lets everything come to rest, and judges.
async fn recovered(place: &Place, world: &World, ledger: &Ledger) -> Daemon {
    world.release();
    let daemon = place.serve();
    ledger.judge(&daemon, SESSION, world).await;
    daemon
}

async fn at_rest(place: &Place, world: &World, mut ledger: Ledger, daemon: Daemon) {
    ledger.send(&daemon, SESSION, "are you well?").await;
    ledger.judge(&daemon, SESSION, world).await;
    assert_eq!(daemon.stop(), Some(0));
    place.run(&["verify"]).exits(0);
    ledger::assert_no_secret(place);
}

/// P8, P9: killed while the model streams. The user stays, nothing is re-sent by itself, the queue goes on.
#[tokio::test(flavor = "multi_thread")]
async fn killed_while_streaming() {
    let mut world = World::start().await;
    let place = place(&world);
    let daemon = place.serve();
    daemon.create(SESSION).await;
    let mut ledger = Ledger::default();
    world.hold();
    let held = world.held_count();
    ledger.send(&daemon, SESSION, "hold on").await;
    for text in ["one", "two", "three"] {
        ledger.send(&daemon, SESSION, text).await;
    }
    world.held_since(held).await;
    daemon.kill();
    let daemon = recovered(&place, &world, &ledger).await;
    ledger.assert_reasons(&daemon, SESSION, &["interrupted", "completed", "completed", "completed"]).await;
    at_rest(&place, &world, ledger, daemon).await;
}

/// P13, scenario 188: killed while a tool body runs. It is never run again; the model reads that its outcome is unknown.
#[tokio::test(flavor = "multi_thread")]
async fn killed_in_a_tool_body() {
    let mut world = World::start().await;
    let place = place(&world);
    let daemon = place.serve();
    daemon.create(SESSION).await;
    let mut ledger = Ledger::default();
    world.hold();
    let held = world.held_count();
    ledger.send(&daemon, SESSION, "page hold-1").await;
    ledger.send(&daemon, SESSION, "page two").await;
    world.held_since(held).await;
    daemon.kill();
    let daemon = recovered(&place, &world, &ledger).await;
    ledger.assert_reasons(&daemon, SESSION, &["interrupted", "completed"]).await;
    let events = daemon.events(SESSION).await;
    let unknown = events.iter().filter(|event| event["data"]["error"]["code"] == "TOOL_OUTCOME_UNKNOWN").count();
    assert_eq!(unknown, 1, "{events:#?}");
    assert_eq!(world.fetched().get("hold-1"), Some(&1));
    at_rest(&place, &world, ledger, daemon).await;
}

/// Scenario 240, Z15: a first signal gives a hanging tool the drain time, a second one ends the process at once, and
/// the log is repaired.
#[tokio::test(flavor = "multi_thread")]
async fn two_signals_during_a_hanging_tool() {
    let mut world = World::start().await;
    let place = place(&world);
    let daemon = place.serve();
    daemon.create(SESSION).await;
    let mut ledger = Ledger::default();
    world.hold();
    let held = world.held_count();
    ledger.send(&daemon, SESSION, "page hold-1").await;
    ledger.send(&daemon, SESSION, "page two").await;
    world.held_since(held).await;
    daemon.signal("TERM");
    // Two signals that arrive together are one: the second is sent when the first was seen.
    while daemon.get("/v1/ready").await.0 == 200 {}
    daemon.signal("TERM");
    assert_eq!(daemon.wait().0, Some(0));
    let planned = place.run(&["repair", "--plan", "--json"]).exits(0);
    assert!(planned.stdout.contains("TOOL_OUTCOME_UNKNOWN"), "the tool did not hang: {}", planned.stdout);
    let daemon = recovered(&place, &world, &ledger).await;
    ledger.assert_reasons(&daemon, SESSION, &["interrupted", "completed"]).await;
    assert_eq!(world.fetched().get("hold-1"), Some(&1));
    at_rest(&place, &world, ledger, daemon).await;
}

/// P17: killed right behind `turn/end`, before its checkpoint is acknowledged; and killed there again and again.
#[tokio::test(flavor = "multi_thread")]
async fn killed_between_turn_end_and_acknowledgement() {
    let world = World::start().await;
    let place = place(&world);
    let mut daemon = place.serve();
    daemon.create(SESSION).await;
    let mut ledger = Ledger::default();
    for round in 0..8 {
        let mut stream = daemon.stream(SESSION, None).await;
        ledger.send(&daemon, SESSION, &format!("page p{round}")).await;
        ledger.send(&daemon, SESSION, &format!("then {round}")).await;
        stream.until("turn/end").await;
        daemon.kill();
        daemon = recovered(&place, &world, &ledger).await;
    }
    at_rest(&place, &world, ledger, daemon).await;
}

/// Scenario 187, BR-128: killed wherever chance says, under load; the seed is printed.
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random() {
    let seed = std::env::var("EVERTURN_CRASH_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_261_130_u64);
    let rounds = std::env::var("EVERTURN_CRASH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(25_u64);
    println!("EVERTURN_CRASH_SEED={seed}");
    let world = World::start().await;
    let place = place(&world);
    let mut daemon = place.serve();
    daemon.create(SESSION).await;
    let mut ledger = Ledger::default();
    for round in 0..rounds {
        let chance = seed.wrapping_add(round).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
        let mut stream = daemon.stream(SESSION, None).await;
        for n in 0..3 {
            ledger.send(&daemon, SESSION, &format!("page r{round}-{n}")).await;
        }
        for _ in 0..chance % 40 {
            if stream.next().await.is_none() {
                break;
            }
        }
        daemon.kill();
        daemon = recovered(&place, &world, &ledger).await;
    }
    at_rest(&place, &world, ledger, daemon).await;
}
