//! The port against streams that do what providers do (5.4, 5.8), in virtual time.
#![allow(clippy::wildcard_enum_match_arm, reason = "tests look for one variant and fail on all others")]

use super::*;
use crate::testing::TestWorld;
use async_trait::async_trait;
use everturn_storage::{
    chunk::BlockKind,
    event::{Cause, Digest, HeaderReason, RequestHeader, SystemUpdate},
    ids::{Attempt, Step, Turn},
    message::{Block, Usage},
    testing::sample,
};
use futures::stream;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

/// What a scripted stream does next.
enum Do {
    Say(Chunk),
    Wait(u64),
    Hang,
    Panic,
    /// Fires the signal of the turn.
    Cancel,
    /// Says `aborted` once the signal has fired.
    EndOnSignal,
    /// Says the same for ever.
    Babble(Chunk),
}

struct Script {
    steps: Vec<Do>,
    dropped: Arc<AtomicBool>,
}

struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Dispatch for Script {
    fn dispatch(self: Box<Self>, _request: ModelRequest, signal: Signal) -> ChunkStream {
        let guard = OnDrop(self.dropped);
        let steps = self.steps.into_iter();
        Box::pin(stream::unfold((steps, signal, guard, None), |(mut steps, signal, guard, babble)| async move {
            if let Some(chunk) = babble {
                return Some((Chunk::clone(&chunk), (steps, signal, guard, Some(chunk))));
            }
            loop {
                match steps.next()? {
                    Do::Say(chunk) => return Some((chunk, (steps, signal, guard, None))),
                    Do::Wait(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                    Do::Hang => std::future::pending().await,
                    Do::Panic => panic!("scripted"),
                    Do::Cancel => signal.fire(Cause::User),
                    Do::EndOnSignal => {
                        signal.wait().await;
                        let finish = Finish::Aborted;
                        return Some((Chunk::Finish { finish }, (steps, signal, guard, None)));
                    }
                    Do::Babble(chunk) => return Some((chunk.clone(), (steps, signal, guard, Some(chunk)))),
                }
            }
        }))
    }
}

fn request() -> ModelRequest {
    let header = RequestHeader {
        config: sample::config(),
        defaulted: vec![],
        tools: vec![],
        system_update: SystemUpdate::Replace,
        reason: HeaderReason::Initial,
    };
    ModelRequest { header: Arc::new(header), messages: Vec::new().into(), digest: Digest([0; 32]) }
}

fn start(index: u64, kind: BlockKind) -> Do {
    Do::Say(Chunk::BlockStart { index, kind })
}

fn text(index: u64, text: &str) -> Do {
    Do::Say(Chunk::TextDelta { index, text: text.to_owned() })
}

fn end(index: u64) -> Do {
    Do::Say(Chunk::BlockEnd { index })
}

fn finish(finish: Finish) -> Do {
    Do::Say(Chunk::Finish { finish })
}

fn hello(rest: Vec<Do>) -> Vec<Do> {
    let mut steps = vec![start(0, BlockKind::Text), text(0, "Hel"), text(0, "lo"), end(0)];
    steps.extend(rest);
    steps
}

struct Ran {
    settlement: Settlement,
    frames: Vec<Frame>,
    dropped: bool,
    took_ms: u64,
}

async fn run(steps: Vec<Do>) -> Ran {
    run_with(steps, |_| {}).await
}

async fn run_with(steps: Vec<Do>, watch: impl Fn(&Frame) + Send + Sync + 'static) -> Ran {
    let dropped = Arc::new(AtomicBool::new(false));
    let frames = Arc::new(Mutex::new(Vec::new()));
    let sink = {
        let frames = Arc::clone(&frames);
        FrameSink::new(move |frame| {
            watch(&frame);
            frames.lock().unwrap().push(frame);
        })
    };
    let context = AttemptContext {
        session: everturn_storage::ids::SessionId::trusted("s"),
        id: AttemptId { turn: Turn(1), step: Step(1), attempt: Attempt(1) },
        signal: Signal::new(),
        idle_timeout_ms: 1_000,
        frames: sink,
    };
    let call = Box::new(Script { steps, dropped: Arc::clone(&dropped) });
    let began = Instant::now();
    let settlement = attempt(call, request(), context, &TestWorld::new("w")).await;
    let frames = frames.lock().unwrap().clone();
    let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap();
    Ran { settlement, frames, dropped: dropped.load(Ordering::SeqCst), took_ms }
}

fn failed(ran: &Ran) -> (&str, FailedBy) {
    match &ran.settlement.outcome {
        Outcome::Failed { failure, by } => (&failure.code, *by),
        other => panic!("{other:?}"),
    }
}

/// Scenarios 118 and 133: chunks reach watchers in order, the record has their times, the message is their fold.
#[tokio::test(start_paused = true)]
async fn a_whole_stream() {
    let usage = Usage { input: 5, output: 2, ..Usage::default() };
    let mut steps = vec![Do::Wait(10)];
    steps.extend(hello(vec![Do::Wait(20), Do::Say(Chunk::Usage { usage }), finish(Finish::Stop)]));
    let ran = run(steps).await;
    let blocks = vec![Block::text("Hello")];
    assert_eq!(ran.settlement.outcome, Outcome::Finished { blocks, finish: FinishLabel::Stop });
    assert_eq!(ran.settlement.usage, Some(usage));
    let times: Vec<u32> = ran.settlement.stream.entries().map(|entry| entry.0).collect();
    assert_eq!(times, [10, 10, 10, 10, 30, 30]);
    let shown: Vec<Chunk> = ran
        .frames
        .iter()
        .map(|frame| match frame {
            Frame::Chunk { chunk, .. } => chunk.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(shown, ran.settlement.stream.chunks().collect::<Vec<_>>());
    assert!(ran.dropped);
}

/// L-10, scenario 121: nothing behind the finish is read.
#[tokio::test(start_paused = true)]
async fn nothing_behind_the_finish_is_read() {
    let ran = run(hello(vec![finish(Finish::Stop), text(0, "more"), Do::Panic])).await;
    assert!(matches!(ran.settlement.outcome, Outcome::Finished { .. }));
    assert!(ran.dropped);
}

/// Z14, scenario 120: a clean end without a finish is retried only while nothing was visible.
#[tokio::test(start_paused = true)]
async fn a_stream_that_just_ends() {
    assert_eq!(failed(&run(hello(vec![])).await), (code::STREAM_CLOSED, FailedBy::Stream));
    for nothing in [vec![], vec![start(0, BlockKind::Text), text(0, " \n")]] {
        assert_eq!(failed(&run(nothing).await), (code::TRANSPORT, FailedBy::Provider));
    }
}

/// L-11 to L-14, scenarios 122 and 124: a broken grammar is a stream error; the record keeps what obeyed.
#[tokio::test(start_paused = true)]
async fn a_broken_grammar() {
    let usage = || Do::Say(Chunk::Usage { usage: Usage::default() });
    let broken = [
        vec![text(0, "x")],
        vec![start(0, BlockKind::Text), start(0, BlockKind::Text)],
        vec![start(0, BlockKind::Reasoning), text(0, "x")],
        vec![start(0, BlockKind::Text), end(0), text(0, "x")],
        vec![start(0, BlockKind::Text), text(0, "x"), finish(Finish::Stop)],
        vec![usage(), usage()],
    ];
    for steps in broken {
        let before = steps.len() - 1;
        let ran = run(steps).await;
        assert_eq!(failed(&ran), (code::MALFORMED_RESPONSE, FailedBy::Stream));
        assert_eq!(ran.settlement.stream.entries().count(), before);
    }
}

/// L-17, L-18, scenarios 125 to 128.
#[tokio::test(start_paused = true)]
async fn empty_and_cut_responses() {
    assert_eq!(failed(&run(vec![finish(Finish::Stop)]).await), (code::EMPTY_RESPONSE, FailedBy::Provider));
    let kind = BlockKind::ToolCall { call_id: CallId::trusted("a"), name: "time".into() };
    let ran = run(vec![start(0, kind), end(0), finish(Finish::MaxTokens)]).await;
    let empty = Outcome::Finished { blocks: vec![], finish: FinishLabel::MaxTokens };
    assert_eq!(ran.settlement.outcome, empty);
}

/// L-16, scenario 129: an empty call id is replaced by a fresh one.
#[tokio::test(start_paused = true)]
async fn an_empty_call_id_is_replaced() {
    let kind = BlockKind::ToolCall { call_id: CallId::trusted(""), name: "time".into() };
    let ran = run(vec![start(0, kind), end(0), finish(Finish::ToolUse)]).await;
    let Outcome::Finished { blocks, .. } = ran.settlement.outcome else { panic!() };
    assert!(matches!(&blocks[..], [Block::ToolCall { call_id, .. }] if !call_id.as_str().is_empty()));
}

/// Scenario 119, L-31, 5.5: what the provider says is carried, within its bounds.
#[tokio::test(start_paused = true)]
async fn the_provider_fails() {
    let mut failure = Failure::new("HTTP_418", "short and stout");
    failure.message = "é".repeat(5_000);
    let ran = run(hello(vec![finish(Finish::Error { failure })])).await;
    assert_eq!(failed(&ran), ("HTTP_418", FailedBy::Provider));
    let Outcome::Failed { failure, .. } = &ran.settlement.outcome else { panic!() };
    assert_eq!(failure.message.len(), FAILURE_MESSAGE_MAX_BYTES);
}

/// L-22: `aborted` although nobody cancelled.
#[tokio::test(start_paused = true)]
async fn aborted_by_the_provider() {
    let ran = run(hello(vec![finish(Finish::Aborted)])).await;
    assert_eq!(failed(&ran), (code::ABORTED, FailedBy::Provider));
}

/// L-21, scenario 137: silence is a time-out, but only that of the provider.
#[tokio::test(start_paused = true)]
async fn the_watchdog_counts_silence_only() {
    let ran = run(hello(vec![Do::Hang])).await;
    assert_eq!(failed(&ran), (code::TIMEOUT, FailedBy::Provider));
    assert_eq!(ran.took_ms, 1_000);
    assert!(ran.dropped);
    let steps = hello(vec![Do::Wait(999), start(1, BlockKind::Text), Do::Wait(999), end(1), finish(Finish::Stop)]);
    assert!(matches!(run(steps).await.settlement.outcome, Outcome::Finished { .. }));
}

/// L-20: the provider ends the stream after the signal; what it still says of tokens is kept.
#[tokio::test(start_paused = true)]
async fn the_provider_ends_on_the_signal() {
    let usage = Usage { output: 2, ..Usage::default() };
    let ran = run(hello(vec![Do::Cancel, Do::Say(Chunk::Usage { usage }), Do::EndOnSignal])).await;
    assert_eq!(ran.settlement.outcome, Outcome::Cancelled);
    assert_eq!(ran.settlement.usage, Some(usage));
    assert_eq!(ran.took_ms, 0);
}

/// L-20, scenario 112: a provider that ignores the signal is let go after the grace, whether it is silent or not.
#[tokio::test(start_paused = true)]
async fn the_provider_ignores_the_signal() {
    let ran = run(hello(vec![Do::Cancel, Do::Hang])).await;
    assert_eq!(ran.settlement.outcome, Outcome::Cancelled);
    assert_eq!(ran.took_ms, ABORT_GRACE_MS);
    assert!(ran.dropped);
    let chatty = (0..10).flat_map(|_| [Do::Wait(900), start(9, BlockKind::Text)]).take(3);
    let ran = run(hello([Do::Cancel].into_iter().chain(chatty).chain([Do::Hang]).collect())).await;
    assert_eq!(ran.settlement.outcome, Outcome::Cancelled);
    assert_eq!(ran.took_ms, ABORT_GRACE_MS);
}

/// A stream that is always ready is cut by the bound of a response, and lets others run.
#[tokio::test(start_paused = true)]
async fn an_endless_stream_ends() {
    let others = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&others);
    let other = tokio::spawn(async move {
        loop {
            seen.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    });
    let chunk = Chunk::TextDelta { index: 0, text: "x".repeat(64 * 1024) };
    let ran = run(vec![start(0, BlockKind::Text), Do::Babble(chunk)]).await;
    assert_eq!(failed(&ran), (code::MALFORMED_RESPONSE, FailedBy::Stream));
    assert!(others.load(Ordering::SeqCst) > 0);
    other.abort();
}

/// P8, T-13, scenario 136: a panic on the stream is ours; what came before is kept.
#[tokio::test(start_paused = true)]
async fn a_panic_on_the_stream() {
    let ran = run(hello(vec![Do::Panic])).await;
    assert_eq!(failed(&ran), (code::EXTENSION, FailedBy::Consumer));
    assert_eq!(ran.settlement.stream.entries().count(), 4);
}

/// Scenario 135: a watcher that panics changes nothing.
#[tokio::test(start_paused = true)]
async fn a_watcher_panics() {
    let ran = run_with(hello(vec![finish(Finish::Stop)]), |_| panic!("scripted")).await;
    assert!(matches!(ran.settlement.outcome, Outcome::Finished { .. }));
}

/// An adapter that does one thing.
struct Adapter(fn(PrepareRequest) -> Result<Prepared, Failure>);

#[async_trait]
impl crate::ports::ModelAdapter for Adapter {
    async fn prepare(&self, request: PrepareRequest, _signal: Signal) -> Result<Prepared, Failure> {
        (self.0)(request)
    }
}

struct One(Adapter);

impl Profiles for Arc<One> {
    fn profile(&self, _agent: &str) -> Option<Arc<crate::ports::AgentProfile>> {
        None
    }

    fn adapter(&self, provider: &str) -> Option<Arc<dyn crate::ports::ModelAdapter>> {
        let act = self.0.0;
        (provider == "script").then(|| Arc::new(Adapter(act)) as Arc<dyn crate::ports::ModelAdapter>)
    }
}

fn accepts(request: PrepareRequest) -> Result<Prepared, Failure> {
    Ok(Prepared {
        config: request.config,
        defaulted: vec![],
        context_window: None,
        input_modalities: None,
        system_update: SystemUpdate::Replace,
        retry: None,
        call: Box::new(Script { steps: vec![], dropped: Arc::default() }),
    })
}

async fn prepared(config: RequestConfig, act: fn(PrepareRequest) -> Result<Prepared, Failure>) -> String {
    let session = everturn_storage::ids::SessionId::trusted("s");
    let request = PrepareRequest { session, config, modalities: vec!["text".into()] };
    let profiles = Arc::new(One(Adapter(act)));
    match prepare(&profiles, request, Signal::new()).await {
        Ok(_) => "ok".to_owned(),
        Err(failure) => failure.code,
    }
}

/// L-2, L-5, scenario 53.
#[tokio::test(start_paused = true)]
async fn routes_refuse() {
    assert_eq!(prepared(sample::config(), accepts).await, "ok");
    assert_eq!(prepared(RequestConfig::default(), accepts).await, code::NO_MODEL_SELECTED);
    let other = RequestConfig { provider: "other".into(), ..sample::config() };
    assert_eq!(prepared(other, accepts).await, code::NO_ADAPTER);
    let refuses = |_| Err(Failure::new(code::UNKNOWN_MODEL, "which?"));
    assert_eq!(prepared(sample::config(), refuses).await, code::UNKNOWN_MODEL);
    assert_eq!(prepared(sample::config(), |_| panic!("scripted")).await, code::UNKNOWN);
    let hot = RequestConfig { temperature: Some(2.0), ..sample::config() };
    let clamps = |mut request: PrepareRequest| {
        request.config.temperature = Some(1.0);
        accepts(request)
    };
    assert_eq!(prepared(hot, clamps).await, code::INVALID_PREPARED_CALL);
}
