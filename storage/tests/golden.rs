//! Bytes on disk are public API (V-3): what version 1 wrote is read for ever, and written the same way (265).
//!
//! A new format gets a new directory beside `v1`; this file only ever grows. With `EVERTURN_BLESS=1` a fixture that
//! is missing is written.
#![allow(clippy::unwrap_used, reason = "test code")]

use everturn_storage::{
    RawJson,
    chunk::{BlockKind, Chunk, Finish, StreamRecord},
    codec::{decode_commit, encode_commit},
    event::*,
    ids::*,
    message::*,
};
use proptest::prelude::*;
use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

fn raw(text: &str) -> RawJson {
    RawJson::parse(text).unwrap()
}

fn replay() -> Option<Replay> {
    Some(Replay { provider: "p".into(), data: "sig\u{0}".into() })
}

fn call_id() -> CallId {
    CallId::trusted("call 1")
}

fn blocks() -> Vec<Block> {
    vec![
        Block::Text { text: "héllo 🦀".into(), replay: replay() },
        Block::Reasoning { text: String::new(), replay: replay() },
        Block::ToolCall { call_id: call_id(), name: "t".into(), arguments: "{\"a\":1".into(), replay: None },
        Block::Image { media_type: "image/png".into(), data: Some("AA==".into()), url: Some("u".into()) },
    ]
}

fn message(role: Role) -> Message {
    Message { id: MessageId::trusted("m"), role, content: blocks(), source: Some("cli".into()) }
}

fn failure() -> Failure {
    Failure {
        status: Some(429),
        retry_after_ms: Some(1_500),
        request_id: Some("r".into()),
        detail: Some(raw("[1.50,null]")),
        ..Failure::new("RATE_LIMIT", "slow down")
    }
}

fn usage() -> Option<Usage> {
    Some(Usage { input: 1, cache_read: 300, cache_write: 70_000, output: 1 << 40, reasoning: u64::MAX })
}

fn stream() -> StreamRecord {
    let mut stream = StreamRecord::default();
    for (t_ms, chunk) in [
        (0, Chunk::BlockStart { index: 0, kind: BlockKind::Text }),
        (1, Chunk::TextDelta { index: 0, text: "hé".into() }),
        (300, Chunk::TextDelta { index: 0, text: "llo".into() }),
        (300, Chunk::BlockEnd { index: 0 }),
        (301, Chunk::BlockStart { index: 1, kind: BlockKind::Reasoning }),
        (301, Chunk::ReasoningDelta { index: 1, text: "r".into() }),
        (302, Chunk::ReplayState { index: 1, provider: "p".into(), data: "d".into() }),
        (303, Chunk::BlockStart { index: 2, kind: BlockKind::ToolCall { call_id: call_id(), name: "t".into() } }),
        (304, Chunk::CallFragment { index: 2, text: "{}".into() }),
        (70_000, Chunk::Usage { usage: usage().unwrap() }),
    ] {
        stream.push(t_ms, chunk);
    }
    for finish in
        [Finish::Stop, Finish::ToolUse, Finish::MaxTokens, Finish::Aborted, Finish::Error { failure: failure() }]
    {
        stream.push(70_001, Chunk::Finish { finish });
    }
    stream
}

const TURN: Turn = Turn(1);
const STEP: Step = Step(300);
const ATTEMPT: Attempt = Attempt(2);
const DIGEST: Digest = Digest([7; 32]);

fn ids() -> Vec<ItemId> {
    ["i1", "i2"].map(ItemId::trusted).to_vec()
}

fn inbox() -> Vec<EventBody> {
    let item =
        |target, origin, wake| Item { id: ItemId::trusted("i1"), target, wake, origin, message: message(Role::User) };
    let queued = |target, origin, wake, position| InboxQueued { item: item(target, origin, wake), position }.into();
    let mut out = vec![
        queued(Target::NextTurn, Origin::Send, true, None),
        queued(Target::NextStep, Origin::Steer, true, Some(3)),
        queued(Target::NextStep, Origin::Inject, false, Some(0)),
        queued(Target::NextStep, Origin::Context, false, None),
        InboxEdited { id: ItemId::trusted("i1"), message: message(Role::User) }.into(),
        InboxMoved { ids: ids() }.into(),
        InboxClaimed { turn: TURN, proposal: Proposal(2), step: STEP, ids: ids() }.into(),
        InboxRestored { ids: ids(), counts: BTreeMap::from([(ItemId::trusted("i1"), 2)]) }.into(),
    ];
    for cause in [RemoveCause::Canceled, RemoveCause::Removed, RemoveCause::Disposed] {
        out.push(InboxRemoved { ids: ids(), cause }.into());
    }
    out
}

fn boundaries() -> Vec<EventBody> {
    let mut out: Vec<EventBody> = vec![
        TurnStart { turn: TURN }.into(),
        StepStart { turn: TURN, step: STEP }.into(),
        StepEnd { turn: TURN, step: STEP }.into(),
        PromptBlocked { turn: TURN, ids: ids(), content: blocks(), source: None, reason: "no".into() }.into(),
    ];
    let aborted = |cause| TurnReason::Aborted { cause };
    for reason in [
        TurnReason::Completed,
        TurnReason::Rejected { reason: "no".into() },
        aborted(Cause::User),
        aborted(Cause::Parent),
        aborted(Cause::Hook { reason: "h".into() }),
        aborted(Cause::Disposed),
        TurnReason::Error { failure: failure() },
        TurnReason::MaxTokens,
        TurnReason::Interrupted,
    ] {
        out.push(TurnEnd { turn: TURN, reason, steps: 4, unadmitted: ids() }.into());
    }
    for (reason, epoch) in
        [(OpenReason::Fresh, 1), (OpenReason::Resume, 2), (OpenReason::Fork, 3), (OpenReason::Repair, u64::MAX)]
    {
        out.push(SessionOpened { reason, epoch: Epoch(epoch) }.into());
    }
    out
}

fn surface() -> Vec<EventBody> {
    let system = SystemMessage { message: message(Role::System) };
    let user = UserMessage { message: message(Role::User), origin: Origin::Send, items: ids() };
    let tool = ToolMessage {
        id: MessageId::trusted("m"),
        role: Role::Tool,
        call_id: call_id(),
        content: blocks(),
        is_error: true,
    };
    let result = ToolResult {
        turn: TURN,
        step: STEP,
        message: tool,
        error: Some(ToolError { name: "t".into(), code: "X".into() }),
        meta: Some(raw("{\"class\":\"parallel\"}")),
    };
    let mut out = vec![
        EventBody { surface: Some(SurfaceOp::Prepend), ..system.into() },
        EventBody { surface: Some(SurfaceOp::Replace { start: 1, end: 70_000 }), ..user.into() }
            .citing(vec![Seq(0), Seq(u64::MAX)]),
        EventBody::appended(result.into()).citing(vec![Seq(5)]),
    ];
    for (finish, interrupted) in [
        (FinishLabel::Stop, None),
        (FinishLabel::ToolUse, None),
        (FinishLabel::MaxTokens, None),
        (FinishLabel::Aborted, Some(true)),
    ] {
        let message = AssistantMessage {
            turn: TURN,
            step: STEP,
            attempt: ATTEMPT,
            message: message(Role::Assistant),
            finish,
            usage: usage(),
            stream: stream(),
            interrupted,
            provider: "p".into(),
            model: "m".into(),
            request_digest: DIGEST,
        };
        out.push(EventBody::appended(message.into()));
    }
    out
}

fn requests() -> Vec<EventBody> {
    let config = RequestConfig {
        provider: "p".into(),
        model: "m".into(),
        reasoning_effort: Some("high".into()),
        temperature: Some(0.1),
        max_tokens: Some(70_000),
        stop: Some(vec!["###".into()]),
    };
    let tool = ToolSpec { name: "t".into(), description: "d".into(), schema: raw("{ \"type\": \"object\" }") };
    let mut out = Vec::new();
    for (reason, system_update) in [
        (HeaderReason::Initial, SystemUpdate::Replace),
        (HeaderReason::Resume, SystemUpdate::Append),
        (HeaderReason::Change, SystemUpdate::Replace),
    ] {
        let (config, defaulted, tools) = (config.clone(), vec!["max_tokens".into()], vec![tool.clone()]);
        out.push(RequestHeader { config, defaulted, tools, system_update, reason }.into());
    }
    let (context_window, input_modalities) = (Some(1 << 20), Some(vec!["text".into()]));
    out.push(RequestContext { provider: "p".into(), model: "m".into(), context_window, input_modalities }.into());
    out
}

fn work() -> Vec<EventBody> {
    let mut out: Vec<EventBody> = vec![
        ToolCall { turn: TURN, step: STEP, call_id: call_id(), name: "t".into(), arguments: "{".into() }.into(),
        RetryStarted { retry_id: RetryId::trusted("r") }.into(),
    ];
    for outcome in [AttemptOutcome::Failed, AttemptOutcome::StreamError, AttemptOutcome::Cancelled] {
        let attempt = AssistantAttempt {
            turn: TURN,
            step: STEP,
            attempt: ATTEMPT,
            provider: "p".into(),
            model: "m".into(),
            outcome,
            failure: (outcome != AttemptOutcome::Cancelled).then(failure),
            usage: None,
            stream: stream(),
            request_digest: DIGEST,
        };
        out.push(attempt.into());
    }
    for (mode, max_retries) in [(RetryMode::Normal, Some(5)), (RetryMode::Always, None)] {
        let scheduled = RetryScheduled {
            retry_id: RetryId::trusted("r"),
            turn: TURN,
            step: STEP,
            attempt: ATTEMPT,
            provider: "p".into(),
            policy_key: "k".into(),
            mode,
            retry: 1,
            max_retries,
            delay_ms: 70_000,
            failure: failure(),
        };
        out.push(scheduled.into());
    }
    let plugin = PluginEvent { type_name: "later/thing".into(), data: raw("{ \"b\": 1,  \"a\": [] }") };
    out.push(EventBody { ignorable: true, cites: vec![Seq(1)], ..EventData::Plugin(plugin).into() });
    out
}

fn session() -> SessionId {
    SessionId::trusted("golden")
}

/// One event of every type, and of every variant inside.
fn every_type() -> Vec<Arc<Event>> {
    let bodies = [inbox(), boundaries(), surface(), requests(), work()].concat();
    (40_u64..)
        .zip(bodies)
        .map(|(seq, body)| Arc::new(Event { seq: Seq(seq), time_ms: 1_796_000_000_123, body }))
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    let line = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
    bytes.chunks(48).map(line).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn fixture(name: &str, now: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1").join(name);
    if !path.exists() && std::env::var_os("EVERTURN_BLESS").is_some() {
        std::fs::write(&path, hex(now)).unwrap();
    }
    unhex(&std::fs::read_to_string(path).unwrap())
}

#[test]
fn the_fixture_has_every_type() {
    let events = every_type();
    for name in CORE_TYPES {
        assert!(events.iter().any(|event| event.body.data.type_name() == *name), "{name}");
    }
}

#[test]
fn a_commit_with_a_mark() {
    let events = every_type();
    let now = encode_commit(&session(), Epoch(9), Seq(40), Some(Seq(39)), &events).unwrap();
    let golden = fixture("every_type.hex", &now);
    let read = decode_commit(&session(), Seq(40), &golden).unwrap();
    assert_eq!((read.epoch, read.acked), (Epoch(9), Some(Seq(39))));
    assert_eq!(read.events, events);
    assert_eq!(hex(&now), hex(&golden), "the same events must give the same bytes");
}

#[test]
fn a_commit_without_a_mark() {
    let event = Event { seq: Seq(0), time_ms: -1, body: TurnStart { turn: TURN }.into() };
    let now = encode_commit(&session(), Epoch(0), Seq(0), None, &[Arc::new(event.clone())]).unwrap();
    let golden = fixture("no_mark.hex", &now);
    let read = decode_commit(&session(), Seq(0), &golden).unwrap();
    assert_eq!((read.acked, read.events), (None, vec![Arc::new(event)]));
    assert_eq!(hex(&now), hex(&golden));
}

fn any_commit() -> impl Strategy<Value = (u64, Vec<Arc<Event>>)> {
    let events = prop::collection::vec(everturn_storage::testing::strategies::event(), 1..6);
    (0..u64::MAX - 10, events).prop_map(|(first, events)| {
        let place = |(seq, event)| Arc::new(Event { seq: Seq(seq), ..event });
        (first, (first..).zip(events).map(place).collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// 265.
    #[test]
    fn decoding_gives_back_what_was_encoded((first, events) in any_commit(), epoch: u64, acked: Option<u64>) {
        let acked = acked.map(Seq);
        let bytes = encode_commit(&session(), Epoch(epoch), Seq(first), acked, &events).unwrap();
        let read = decode_commit(&session(), Seq(first), &bytes).unwrap();
        prop_assert_eq!((read.epoch, read.acked), (Epoch(epoch), acked));
        prop_assert_eq!(&read.events, &events);
        prop_assert_eq!(encode_commit(&session(), Epoch(epoch), Seq(first), acked, &read.events).unwrap(), bytes);
    }

    /// A flip, a cut, a run of zeros (BR-014) or a shift is always seen.
    #[test]
    fn damage_is_always_seen((first, events) in any_commit(), at: prop::sample::Index, bit in 0..8_u8, len in 1..64_usize) {
        let bytes = encode_commit(&session(), Epoch(1), Seq(first), None, &events).unwrap();
        let at = at.index(bytes.len());
        let mut flipped = bytes.clone();
        flipped[at] ^= 1_u8 << bit;
        let mut zeroed = bytes.clone();
        let end = (at + len).min(bytes.len());
        zeroed[at..end].fill(0);
        let mut longer = bytes.clone();
        longer.insert(at, bit);
        for damaged in [&flipped[..], &bytes[..at], &zeroed, &longer] {
            prop_assert!(damaged == bytes || decode_commit(&session(), Seq(first), damaged).is_err());
        }
    }
}
