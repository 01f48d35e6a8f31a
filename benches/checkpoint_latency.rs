//! What a durable checkpoint costs, asked and answered through the journal actors over sled, beside a raw append and
//! fdatasync of the same bytes to a preallocated file in the same run: the limit of this disk (power-loss safe, both).
//!
//! A checkpoint is one commit of 20 events of about 400 bytes. Criterion gives the time of one checkpoint; behind each
//! row stand the percentiles of the latency that one session sees, and checkpoints a second over all sessions.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::wildcard_enum_match_arm,
    reason = "a measurement that cannot be made ends with a panic, and its figures are printed"
)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use everturn_actors::{
    journals::{Journal, Journals},
    ports::World,
};
use everturn_storage::{
    RawJson,
    codec::encode_commit,
    event::{Event, EventBody, EventData, PluginEvent},
    ids::{Epoch, Seq, SessionId},
    segment_store::SegmentStore,
};
use futures::future::join_all;
use std::{
    fs::File,
    hint::black_box,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const EVENTS: usize = 20;
const EVENT_BYTES: usize = 400;
const SESSIONS: [usize; 3] = [1, 64, 1_000];
/// Size of the raw file; it is written from the start again when it is full, as recycled segments are.
const RAW_BYTES: u64 = 64 * 1024 * 1024;

struct Counter(AtomicU64);

impl World for Counter {
    fn now_ms(&self) -> i64 {
        1_700_000_000_000
    }

    fn random_u64(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    fn fresh_id(&self) -> String {
        format!("id-{}", self.random_u64())
    }
}

fn events() -> Vec<EventBody> {
    let data = RawJson::from_value(&serde_json::json!({"text": "x".repeat(EVENT_BYTES - 20)}));
    let event = PluginEvent { type_name: "todo/write".to_owned(), data };
    let body = EventBody { ignorable: true, ..EventBody::from(EventData::Plugin(event)) };
    vec![body; EVENTS]
}

/// One commit, encoded: what the raw file gets.
fn encoded() -> Vec<u8> {
    let events: Vec<Arc<Event>> = events()
        .into_iter()
        .zip(1_000..)
        .map(|(body, seq)| Arc::new(Event { seq: Seq(seq), time_ms: 1_700_000_000_000, body }))
        .collect();
    encode_commit(&SessionId::trusted("session-1"), Epoch(1), Seq(1_000), Some(Seq(999)), &events).expect("it encodes")
}

fn directory(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("checkpoint-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the target directory can be written");
    dir
}

/// Latencies as one session sees them.
#[derive(Default)]
struct Seen(Vec<Duration>);

impl Seen {
    fn report(&mut self, name: &str, total: Duration) {
        self.0.sort_unstable();
        if self.0.is_empty() {
            return;
        }
        let at = |part: usize| self.0[(self.0.len() - 1) * part / 100];
        let rate = self.0.len() as f64 / total.as_secs_f64();
        println!("{name}: p50 {:?}  p99 {:?}  {rate:.0} checkpoints/s  ({} measured)", at(50), at(99), self.0.len());
    }
}

fn raw(c: &mut Criterion) {
    let dir = directory("raw");
    let bytes = encoded();
    let mut group = c.benchmark_group("raw append + fdatasync");
    group.throughput(Throughput::Elements(1));
    for sessions in SESSIONS {
        let file = File::create(dir.join(format!("raw-{sessions}"))).expect("the file can be made");
        let zeroes = vec![0; 1 << 20];
        for block in 0..RAW_BYTES >> 20 {
            file.write_all_at(&zeroes, block << 20).expect("the file can be filled");
        }
        file.sync_all().expect("the file can be synced");
        let block = bytes.repeat(sessions);
        let (mut at, mut seen, mut total) = (0, Seen::default(), Duration::ZERO);
        group.bench_function(BenchmarkId::from_parameter(sessions), |bench| {
            bench.iter_custom(|iters| {
                let groups = iters.div_ceil(sessions as u64);
                let began = Instant::now();
                for _ in 0..groups {
                    let asked = Instant::now();
                    if at + block.len() as u64 > RAW_BYTES {
                        at = 0;
                    }
                    file.write_all_at(black_box(&block), at).expect("the file can be written");
                    file.sync_data().expect("the file can be synced");
                    at += block.len() as u64;
                    seen.0.extend(std::iter::repeat_n(asked.elapsed(), sessions));
                }
                let spent = began.elapsed();
                total += spent;
                spent.mul_f64(iters as f64 / (groups * sessions as u64) as f64)
            });
        });
        seen.report(&format!("raw, {sessions} sessions"), total);
    }
    group.finish();
    let _ = std::fs::remove_dir_all(dir);
}

async fn checkpoints(journal: Arc<Journal>, times: u64) -> Vec<Duration> {
    let events = events();
    let mut seen = Vec::with_capacity(times as usize);
    for _ in 0..times {
        let asked = Instant::now();
        let appended = journal.append(events.clone()).await.expect("the journal takes it");
        journal.checkpoint(appended.last).await.expect("the disk takes it");
        seen.push(asked.elapsed());
    }
    seen
}

fn journal(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let mut group = c.benchmark_group("journal actors over sled");
    group.throughput(Throughput::Elements(1));
    for sessions in SESSIONS {
        let dir = directory(&format!("sled-{sessions}"));
        let (store, _) = SegmentStore::open(&dir).expect("the store opens");
        let (journals, all) = runtime.block_on(async {
            let world = Arc::new(Counter(AtomicU64::new(0)));
            let journals = Journals::start(Arc::new(store), world).await.expect("the actors start");
            let create = |n| journals.create(SessionId::trusted(format!("session-{n}")));
            let all = join_all((0..sessions).map(create)).await;
            let all: Vec<_> = all.into_iter().map(|journal| Arc::new(journal.expect("a session is made"))).collect();
            (journals, all)
        });
        let (mut seen, mut total) = (Seen::default(), Duration::ZERO);
        group.bench_function(BenchmarkId::from_parameter(sessions), |bench| {
            bench.iter_custom(|iters| {
                let times = iters.div_ceil(sessions as u64);
                let began = Instant::now();
                // A task each, as drivers are.
                let tasks = all.iter().map(|journal| runtime.spawn(checkpoints(Arc::clone(journal), times)));
                let latencies = runtime.block_on(join_all(tasks.collect::<Vec<_>>()));
                let spent = began.elapsed();
                total += spent;
                seen.0.extend(latencies.into_iter().flat_map(|task| task.expect("no checkpoint panics")));
                spent.mul_f64(iters as f64 / (times * sessions as u64) as f64)
            });
        });
        seen.report(&format!("journal, {sessions} sessions"), total);
        drop(all);
        runtime.block_on(journals.close()).expect("the store closes");
        let _ = std::fs::remove_dir_all(dir);
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(4));
    targets = raw, journal
}
criterion_main!(benches);
