//! G. Retry and recovery.

use super::{
    bench::{Bench, ends, picked},
    model::Say,
};
use async_trait::async_trait;
use everturn_actors::ports::{ExtensionError, Recovery, RecoveryVerdict, Signal, extension::Failed};
use everturn_storage::{
    event::{AttemptOutcome, EventData},
    message::code,
};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

/// Wants everything tried again, and counts.
#[derive(Default)]
struct Eager(AtomicU32);

#[async_trait]
impl Recovery for Eager {
    async fn recover(&self, _: &Failed, _: &Signal) -> Result<RecoveryVerdict, ExtensionError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(RecoveryVerdict::Retry)
    }
}

/// Scenario 145.
#[tokio::test(start_paused = true)]
async fn an_extension_that_dies_on_the_stream_is_not_tried_again() {
    let eager = Arc::new(Eager::default());
    let member = Arc::<Eager>::clone(&eager);
    let says = vec![Say::text("A1").hook(|| panic!("scripted")), Say::text("A2")];
    let bench = Bench::with(says, |profile| profile.recovery = vec![member]).await;
    bench.send("one").await;
    bench.send("two").await;
    bench.idle().await;
    assert_eq!(eager.0.load(Ordering::SeqCst), 0, "recovery was consulted");
    let log = bench.finish().await;
    let attempts = picked(&log, |data| match data {
        EventData::AssistantAttempt(attempt) => Some((attempt.outcome, attempt.failure.clone().unwrap().code)),
        _ => None,
    });
    assert_eq!(attempts, [(AttemptOutcome::StreamError, code::EXTENSION.to_owned())]);
    assert_eq!(ends(&log), ["error EXTENSION", "completed"]);
}

/// Scenario 153.
#[tokio::test(start_paused = true)]
async fn a_retry_wait_does_not_outlive_the_process() {
    let mut bench = Bench::start(vec![Say::fails(code::RATE_LIMIT), Say::text("A2")]).await;
    bench.disk.watch_for("retry/scheduled");
    bench.send("one").await;
    bench.disk.wrote().await;
    bench.die(false).await;
    bench.idle().await;
    assert_eq!(bench.model.asked().len(), 1, "the wait went on behind the boot");
    bench.send("two").await;
    bench.idle().await;
    assert_eq!(bench.model.requests()[1], ["user: one", "user: two"]);
    let log = bench.finish().await;
    let count = |name: &str| log.iter().filter(|event| event.body.data.type_name() == name).count();
    assert_eq!((count("retry/scheduled"), count("retry/started")), (1, 0));
    assert_eq!(ends(&log), ["interrupted", "completed"]);
}
