//! C. Routes that change while a request is under way.

use super::{
    bench::{Bench, ends, picked},
    model::{Route, Say},
};
use everturn_actors::ports::{ExtensionError, RequestPolicy};
use everturn_storage::{
    event::{EventData, HeaderReason, RequestConfig},
    ids::{Attempt, Step, Turn},
    testing::sample,
};
use std::sync::Arc;

/// Scenario 52.
#[tokio::test(start_paused = true)]
async fn a_prepared_call_stays_with_its_generation() {
    let bench = Bench::start(vec![]).await;
    let old = sample::config();
    bench.disk.hold("request/header");
    // The receipt may be covered by the same sync, so it is not waited for first.
    tokio::join!(bench.send("one"), async {
        bench.disk.held().await;
        bench.town.route(&old.provider, Route::new("second", &bench.model));
        bench.change(|profile| profile.config.model = "m2".to_owned());
        bench.disk.release();
    });
    bench.idle().await;
    bench.send("two").await;
    bench.idle().await;
    let routes: Vec<_> = bench.model.asked().into_iter().map(|asked| asked.route).collect();
    assert_eq!(routes, ["first", "second"]);
    let log = bench.finish().await;
    let headers = picked(&log, |data| match data {
        EventData::RequestHeader(header) => Some((header.reason, header.config.model.clone())),
        _ => None,
    });
    assert_eq!(headers, [(HeaderReason::Initial, old.model), (HeaderReason::Change, "m2".to_owned())]);
}

/// Selects a model where none is selected.
struct Selects;

#[async_trait::async_trait]
impl RequestPolicy for Selects {
    async fn propose(
        &self,
        config: RequestConfig,
        _: Turn,
        _: Step,
        _: Attempt,
    ) -> Result<RequestConfig, ExtensionError> {
        let RequestConfig { provider, model, .. } = sample::config();
        Ok(RequestConfig { provider, model, ..config })
    }
}

/// Scenario 53.
#[tokio::test(start_paused = true)]
async fn a_request_needs_a_model_and_an_adapter() {
    let none = RequestConfig::default();
    let bench = Bench::with(vec![Say::text("A1")], |profile| profile.config = none).await;
    bench.send("one").await;
    bench.idle().await;
    bench.change(|profile| profile.request = vec![Arc::new(Selects)]);
    // The adapter goes between prepare and dispatch: the attempt goes on with its generation.
    bench.disk.hold("request/header");
    tokio::join!(bench.send("two"), async {
        bench.disk.held().await;
        bench.town.no_route(&sample::config().provider);
        bench.disk.release();
    });
    bench.idle().await;
    bench.send("three").await;
    bench.idle().await;
    assert_eq!(bench.model.requests(), [["user: two"]]);
    assert_eq!(ends(&bench.finish().await), ["error NO_MODEL_SELECTED", "completed", "error NO_ADAPTER"]);
}
