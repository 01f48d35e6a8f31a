//! J. What the model is sent follows from the log alone.

use super::{
    bench::{Bench, boot_in, ends},
    model::Say,
    parts::{Scripted, section},
};
use everturn_actors::ports::World;
use everturn_storage::{event::EventData, log::request::messages_json};
use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64, Ordering},
};

/// A clock that moves by the same step at each look, forwards or backwards.
pub(crate) struct Clock {
    name: String,
    now_ms: AtomicI64,
    step_ms: i64,
    ids: AtomicU64,
}

impl Clock {
    pub(crate) fn new(name: &str, start_ms: i64, step_ms: i64) -> Self {
        Self { name: name.to_owned(), now_ms: AtomicI64::new(start_ms), step_ms, ids: AtomicU64::new(0) }
    }
}

impl World for Clock {
    fn now_ms(&self) -> i64 {
        self.now_ms.fetch_add(self.step_ms, Ordering::Relaxed)
    }

    fn random_u64(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    fn fresh_id(&self) -> String {
        format!("{}-{}", self.name, self.ids.fetch_add(1, Ordering::Relaxed))
    }
}

/// Scenario 212: a clock that goes backwards changes no order: not of the log, of turns, nor of what the model reads.
#[tokio::test(start_paused = true)]
async fn a_clock_that_goes_backwards() {
    let tools = vec![Scripted::done("saw").share()];
    let says = vec![Say::calls(&[("c1", "saw", "{}")]), Say::text("A1"), Say::text("A2")];
    let mut bench = Bench::with(says, |profile| profile.tools = tools).await;
    bench.agent.dispose(everturn_actors::handle::DisposeMode::Suspend).await;
    bench.system.shutdown(std::time::Duration::ZERO).await;
    bench.disk = Arc::new(super::disk::Disk::new(bench.disk.memory.kill()));
    bench.system = boot_in(&bench.disk, &bench.town, Arc::new(Clock::new("back", 1_000_000, -60_000))).await;
    bench.agent = bench.system.open(&everturn_storage::ids::SessionId::trusted("s")).await.unwrap();
    bench.send("one").await;
    bench.send("two").await;
    bench.idle().await;
    let second = ["user: one", "assistant: ", "tool: done saw"];
    let third = [&second[..], &["assistant: A1", "user: two"]].concat();
    assert_eq!(bench.model.requests(), [vec!["user: one"], second.to_vec(), third]);
    let log = bench.finish().await;
    assert_eq!(ends(&log), ["completed", "completed"]);
    let times: Vec<i64> = log.iter().skip(1).map(|event| event.time_ms).collect();
    assert!(times.windows(2).any(|pair| pair[1] < pair[0]), "the clock of the test did not go backwards: {times:?}");
    assert!(log.iter().zip(0..).all(|(event, at)| event.seq.0 == at));
}

/// Scenario 214, I-28, M-34: without a change or a replace each request begins with the former one, byte for byte.
#[tokio::test(start_paused = true)]
async fn requests_extend_each_other() {
    let tools = vec![Scripted::done("saw").share(), Scripted::done("plane").share()];
    let calls = [("c1", "saw", r#"{ "depth" : 1.50 }"#), ("c2", "plane", "{}")];
    let says = vec![
        Say::calls(&calls),
        Say::fails("SERVER"),
        Say::text("A1 \u{1F6E0} \"quoted\""),
        Say::calls(&[("c1", "saw", "")]),
        Say::text("A2"),
    ];
    let bench = Bench::with(says, |profile| {
        profile.tools = tools;
        profile.sections = vec![section("role", "You build.")];
    })
    .await;
    bench.send("one").await;
    bench.inject("by the way").await;
    bench.idle().await;
    bench.send("two").await;
    bench.idle().await;
    let requests: Vec<String> =
        bench.model.asked().iter().map(|asked| messages_json(&asked.request.messages).to_string()).collect();
    assert_eq!(requests.len(), 5);
    for pair in requests.windows(2) {
        let former = pair[0].strip_suffix(']').unwrap();
        assert!(pair[1].starts_with(former), "{}\ndoes not begin with\n{former}", pair[1]);
    }
    let headers = bench.log().await.iter().filter(|e| matches!(e.body.data, EventData::RequestHeader(_))).count();
    assert_eq!(headers, 1, "nothing was changed");
    bench.finish().await;
}
