use super::*;
use everturn_actors::ports::Signal;
use everturn_storage::{
    event::{Cause, Digest, Event, EventData, HeaderReason, Origin, RequestConfig, RequestHeader, UserMessage},
    ids::{ItemId, MessageId, Seq},
    log::{Node, request::derive_messages},
    message::{Message, Role, Usage},
};

fn session(name: &str) -> SessionId {
    name.parse().unwrap()
}

/// A request whose history is one message of a user.
fn request(text: &str) -> ModelRequest {
    let message =
        Message { id: MessageId::trusted("m"), role: Role::User, content: vec![Block::text(text)], source: None };
    let data = user_message(message);
    let event = Event { seq: Seq(0), time_ms: 0, body: everturn_storage::event::EventBody::appended(data) };
    let surface = [Node { event: Arc::new(event), role: Role::User }].into_iter().collect();
    ModelRequest {
        header: Arc::new(RequestHeader {
            config: RequestConfig::default(),
            defaulted: Vec::new(),
            tools: Vec::new(),
            system_update: SystemUpdate::Replace,
            reason: HeaderReason::Initial,
        }),
        messages: derive_messages(&surface).into(),
        digest: Digest([0; 32]),
    }
}

fn user_message(message: Message) -> EventData {
    EventData::UserMessage(UserMessage { message, origin: Origin::Send, items: vec![ItemId::trusted("m")] })
}

async fn open(adapter: &ScriptAdapter, who: &str, text: &str, signal: &Signal) -> ChunkStream {
    let ask = PrepareRequest { session: session(who), config: RequestConfig::default(), modalities: Vec::new() };
    let prepared = adapter.prepare(ask, signal.clone()).await.unwrap();
    assert_eq!((prepared.config.model.as_str(), prepared.defaulted), ("script", vec!["model".to_owned()]));
    prepared.call.dispatch(request(text), signal.clone())
}

async fn answer(adapter: &ScriptAdapter, who: &str, text: &str) -> Vec<Chunk> {
    open(adapter, who, text, &Signal::new()).await.collect().await
}

fn text_of(chunks: &[Chunk]) -> String {
    chunks
        .iter()
        .filter_map(|chunk| if let Chunk::TextDelta { text, .. } = chunk { Some(text.as_str()) } else { None })
        .collect()
}

fn script(text: &str) -> ScriptAdapter {
    ScriptAdapter::from_text("test.jsonl", text).unwrap()
}

fn finish(finish: Finish) -> Chunk {
    Chunk::Finish { finish }
}

fn failed(failure: Failure) -> Chunk {
    finish(Finish::Error { failure })
}

/// SURFACE 6: lines in order for each session, one an attempt; the last one repeats; blank lines do not count.
#[tokio::test]
async fn each_session_has_its_place() {
    let adapter = script("{\"text\":\"1\"}\n\n{\"text\":\"2\"}\n{\"text\":\"3\"}\n");
    for (who, wanted) in [("a", "1"), ("a", "2"), ("b", "1"), ("a", "3"), ("a", "3"), ("b", "2"), ("a", "3")] {
        assert_eq!(text_of(&answer(&adapter, who, "x").await), wanted);
    }
}

/// SURFACE 6: what a full line becomes; raw arguments and ids are kept as written.
#[tokio::test]
async fn a_full_line() {
    let adapter = script(
        r#"{"reasoning":"hm","text":"你好!","calls":[{"name":"time","arguments":{}},{"name":"x","raw_arguments":"{oops","id":"mine"}],"usage":{"input":12,"output":5},"chunk_chars":2}"#,
    );
    let call = |id: &str, name: &str| BlockKind::ToolCall { call_id: CallId::trusted(id), name: name.to_owned() };
    assert_eq!(
        answer(&adapter, "a", "x").await,
        [
            Chunk::BlockStart { index: 0, kind: BlockKind::Reasoning },
            Chunk::ReasoningDelta { index: 0, text: "hm".into() },
            Chunk::BlockEnd { index: 0 },
            Chunk::BlockStart { index: 1, kind: BlockKind::Text },
            Chunk::TextDelta { index: 1, text: "你好".into() },
            Chunk::TextDelta { index: 1, text: "!".into() },
            Chunk::BlockEnd { index: 1 },
            Chunk::BlockStart { index: 2, kind: call("call_1_1", "time") },
            Chunk::CallFragment { index: 2, text: "{}".into() },
            Chunk::BlockEnd { index: 2 },
            Chunk::BlockStart { index: 3, kind: call("mine", "x") },
            Chunk::CallFragment { index: 3, text: "{o".into() },
            Chunk::CallFragment { index: 3, text: "op".into() },
            Chunk::CallFragment { index: 3, text: "s".into() },
            Chunk::BlockEnd { index: 3 },
            Chunk::Usage { usage: Usage { input: 12, output: 5, ..Usage::default() } },
            finish(Finish::ToolUse),
        ]
    );
    assert_eq!(answer(&script("{}"), "a", "x").await, [finish(Finish::Stop)]);
    let beside = script(r#"{"calls":[{"name":"x"}],"raw_arguments":"no json"}"#);
    assert!(answer(&beside, "a", "x").await.contains(&Chunk::CallFragment { index: 0, text: "no json".into() }));
}

/// SURFACE 6, scenario 119: `fail` ends the attempt with that failure, behind what was said before.
#[tokio::test]
async fn failures_end_the_attempt() {
    let adapter = script(r#"{"text":"vis","fail":{"code":"RATE_LIMIT","message":"slow down","retry_after_ms":50}}"#);
    let chunks = answer(&adapter, "a", "x").await;
    assert_eq!(text_of(&chunks), "vis");
    let wanted = Failure { retry_after_ms: Some(50), ..Failure::new("RATE_LIMIT", "slow down") };
    assert_eq!(chunks.last(), Some(&failed(wanted)));
}

/// SURFACE 6, scenario 120: `cut` ends without a finish.
#[tokio::test]
async fn a_cut_has_no_finish() {
    let chunks = answer(&script(r#"{"text":"cut he","cut":true}"#), "a", "x").await;
    assert_eq!((text_of(&chunks).as_str(), chunks.last()), ("cut he", Some(&Chunk::BlockEnd { index: 0 })));
}

/// SURFACE 6, L-20: `hang` waits for the signal; delays end at once with it.
#[tokio::test(start_paused = true)]
async fn the_signal_ends_waits() {
    for line in [r#"{"text":"a","hang":true}"#, r#"{"text":"ab","chunk_chars":1,"delay_ms":3600000}"#] {
        let (adapter, signal) = (script(line), Signal::new());
        let mut stream = open(&adapter, "a", "x", &signal).await;
        let from = tokio::time::Instant::now();
        let firing = async {
            tokio::time::sleep_until(from + Duration::from_secs(60)).await;
            signal.fire(Cause::User);
        };
        let ((), chunks) = tokio::join!(firing, stream.by_ref().collect::<Vec<_>>());
        assert_eq!(chunks.last(), Some(&finish(Finish::Aborted)), "{line}");
        assert_eq!(from.elapsed(), Duration::from_secs(60), "{line}");
    }
}

/// SURFACE 6: `delay_ms` waits before each delta, and before the end of an answer without any.
#[tokio::test(start_paused = true)]
async fn delays_stand_before_chunks() {
    for (line, wanted_ms) in [
        (r#"{"text":"abcd","chunk_chars":1,"delay_ms":20}"#, 80),
        (r#"{"fail":{"code":"SERVER"},"delay_ms":20}"#, 20),
        (r#"{"calls":[{"name":"a"},{"name":"b"}],"delay_ms":20}"#, 40),
    ] {
        let from = tokio::time::Instant::now();
        answer(&script(line), "a", "x").await;
        assert_eq!(from.elapsed(), Duration::from_millis(wanted_ms), "{line}");
    }
}

/// SURFACE 6: a mismatch of `expect` is an `INVALID_REQUEST` and takes its line.
#[tokio::test]
async fn expectations_are_checked() {
    let adapter = script("{\"text\":\"1\",\"expect\":\"weather\"}\n{\"text\":\"2\"}");
    assert_eq!(text_of(&answer(&adapter, "a", "the weather, please").await), "1");
    let chunks = answer(&adapter, "b", "hello").await;
    let [Chunk::Finish { finish: Finish::Error { failure } }] = &chunks[..] else { panic!("{chunks:?}") };
    assert_eq!(failure.code, code::INVALID_REQUEST);
    assert!(failure.message.contains("line 1") && failure.message.contains("weather"), "{}", failure.message);
    assert_eq!(text_of(&answer(&adapter, "b", "hello").await), "2");
}

/// SURFACE 6: what is wrong is named with file and line.
#[test]
fn wrong_lines_are_named() {
    for (text, wanted) in [
        ("", "test.jsonl has no line"),
        ("{\"text\":\"a\"}\n{\"txet\":\"a\"}", "test.jsonl, line 2: unknown field `txet`"),
        ("\n\n[1", "line 3: this is no JSON"),
        ("[]", "line 1: "),
        ("{\"calls\":[{\"nam\":\"a\"}]}", "line 1: unknown field `nam`"),
        ("{\"calls\":[{}]}", "line 1: missing field `name`"),
        ("{\"fail\":{}}", "line 1: missing field `code`"),
        ("{\"fail\":{\"code\":\"A\",\"why\":1}}", "line 1: unknown field `why`"),
        ("{\"usage\":{\"input\":-1}}", "line 1: "),
        ("{\"usage\":{\"inputs\":1}}", "line 1: unknown field `inputs`"),
        ("{\"chunk_chars\":0}", "line 1: chunk_chars is 0"),
        ("{\"hang\":true,\"cut\":true}", "line 1: an answer ends in one way"),
        ("{\"raw_arguments\":\"x\"}", "line 1: raw_arguments belongs to a call"),
        ("{\"calls\":[{\"name\":\"a\",\"arguments\":{},\"raw_arguments\":\"x\"}]}", "line 1: the call of \"a\""),
    ] {
        let error = ScriptAdapter::from_text("test.jsonl", text).unwrap_err();
        assert!(error.contains(wanted), "{text:?} gave {error:?}");
    }
    let error = ScriptAdapter::from_file(Path::new("/nowhere/script.jsonl")).unwrap_err();
    assert!(error.contains("/nowhere/script.jsonl"), "{error}");
}

/// SURFACE 2: the demonstration has two steps and one call of `time`.
#[tokio::test(start_paused = true)]
async fn the_demonstration() {
    let adapter = ScriptAdapter::demonstration().unwrap();
    let first = answer(&adapter, "a", "x").await;
    assert_eq!(first.last(), Some(&finish(Finish::ToolUse)));
    assert!(first.iter().any(|chunk| matches!(chunk,
        Chunk::BlockStart { kind: BlockKind::ToolCall { name, .. }, .. } if name == "time")));
    assert_eq!(answer(&adapter, "a", "x").await.last(), Some(&finish(Finish::Stop)));
}

/// The map of places is bounded; a session that the process has not seen starts behind the answers of its history.
#[test]
fn places_are_bounded() {
    let mut places = Places::default();
    assert_eq!(places.take(&session("resumed"), 3), 3);
    assert_eq!(places.take(&session("resumed"), 9), 4);
    for at in 0..SCRIPT_SESSIONS_MAX * 2 {
        places.take(&session(&format!("s{at}")), 0);
        places.take(&session("busy"), 0);
    }
    assert!(places.by_session.len() <= SCRIPT_SESSIONS_MAX);
    assert_eq!(places.take(&session("busy"), 0), SCRIPT_SESSIONS_MAX * 2);
    assert_eq!(places.take(&session("s0"), 0), 0);
}
