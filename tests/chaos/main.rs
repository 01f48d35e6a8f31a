//! Actors that die in the middle of a step, inside one process: the session heals without a restart, nothing that was
//! acknowledged is lost or done twice, and the others do not notice (scenarios 30, 183, 238, 239; BR-152, BR-154,
//! BR-155).
//!
//! A moment is the nth event that a session commits, and some turns of the scheduler behind it. A failing case prints
//! itself; everything but the order of tasks follows from it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::wildcard_enum_match_arm,
    reason = "a test may panic, prints its seed, and looks at the variants it is about"
)]

mod judge;
mod town;

use everturn_actors::system::ActorKind;
use everturn_storage::memory::MemoryStore;
use std::sync::Arc;
use town::{Death, Strike, Town};

/// Sessions that work at the same time; the first one is struck.
const SESSIONS: usize = 3;

/// Messages of each, sent one behind the other: all but the first wait in the queue.
const MESSAGES: usize = 3;

/// Every event of the queue and of the first two turns, at least, is a moment.
const MOMENTS: u64 = 40;

/// One death at each moment in turn; the scheduler's part of the moment changes with it.
async fn die_at_every_moment(death: Death) {
    for moment in 1..=MOMENTS {
        let yields = moment * 7 % 5;
        let case = format!("{death:?} at event {moment} and {yields} yields");
        let town = Town::start(Arc::new(MemoryStore::new()), SESSIONS, &case).await;
        town.live(MESSAGES, &[Strike { session: 0, moment, yields, death }]).await;
        town.judge(death).await;
    }
}

/// Scenario 238. The driver is killed at its await points (BR-155); no orderly stop runs (BR-152).
#[tokio::test(start_paused = true)]
async fn a_killed_driver() {
    die_at_every_moment(Death::Kill(ActorKind::Driver)).await;
}

/// Scenario 239, BR-154: what waits in the mailbox of a dead journal was not acknowledged, or is in the log.
#[tokio::test(start_paused = true)]
async fn a_killed_session_journal() {
    die_at_every_moment(Death::Kill(ActorKind::Journal)).await;
}

/// BR-154, BR-155: no acknowledged input lives only in the agent.
#[tokio::test(start_paused = true)]
async fn a_killed_agent() {
    die_at_every_moment(Death::Kill(ActorKind::Agent)).await;
}

/// Scenario 183: only the pool is replaced; its step closes and the next item runs.
#[tokio::test(start_paused = true)]
async fn a_killed_tool_pool() {
    die_at_every_moment(Death::Kill(ActorKind::Pool)).await;
}

/// Scenario 30: the store dies with commits and checkpoints in hand; every session is opened again.
#[tokio::test(start_paused = true)]
async fn a_panic_in_the_journal_store() {
    die_at_every_moment(Death::Store).await;
}

/// Scenarios 238, 239: a panic in the middle of a handler of agent, driver or tool pool, wherever it reads the profile.
#[tokio::test(start_paused = true)]
async fn a_panic_where_the_profile_is_read() {
    die_at_every_moment(Death::ProfilePanic).await;
}

/// Scenario 239: a panic in the append of the session journal, before anything of it is written.
#[tokio::test(start_paused = true)]
async fn a_panic_where_the_journal_reads_the_clock() {
    die_at_every_moment(Death::ClockPanic).await;
}

/// Deaths in the storms of the test run; `EVERTURN_DEATHS` for more.
const DEATHS: u64 = 2_000;

/// Many deaths of all kinds in all sessions, from a seed. Returns how many struck.
async fn storm(seed: u64, store: Arc<dyn everturn_storage::store::Store>) -> u64 {
    let mut chance = town::Chance(seed);
    let deaths = [
        Death::Kill(ActorKind::Driver),
        Death::Kill(ActorKind::Journal),
        Death::Kill(ActorKind::Agent),
        Death::Kill(ActorKind::Pool),
        Death::ProfilePanic,
        Death::Store,
    ];
    let strikes: Vec<Strike> = (0..6)
        .map(|_| Strike {
            session: chance.below(SESSIONS as u64) as usize,
            moment: 1 + chance.below(60),
            yields: chance.below(12),
            death: deaths[chance.below(deaths.len() as u64) as usize],
        })
        .collect();
    let town = Town::start(store, SESSIONS, &format!("storm {seed}: {strikes:?}")).await;
    town.live(MESSAGES, &strikes).await;
    town.judge_storm(strikes.len()).await;
    town.struck()
}

/// Scenarios 183, 238, 239 in any mixture.
#[tokio::test(start_paused = true)]
async fn storms() {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (wanted, mut seed) = (number("EVERTURN_DEATHS", DEATHS), number("EVERTURN_STORM_SEED", 1));
    let mut struck = 0;
    while struck < wanted {
        struck += storm(seed, Arc::new(MemoryStore::new())).await;
        seed += 1;
    }
    println!("{struck} deaths of actors in {seed} storms");
}

/// Scenarios 183, 238, 239 on a disk, with threads of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storms_on_disk() {
    for seed in 101..=106 {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = everturn_storage::segment_store::SegmentStore::open(dir.path()).unwrap();
        storm(seed, Arc::new(store)).await;
    }
}
