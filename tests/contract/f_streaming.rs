//! F. Streaming and settlement.

use super::{
    bench::{Bench, ends, picked, results, streaming, types},
    model::{Say, called, finish, spoken},
    parts::Scripted,
};
use everturn_actors::{handle::Frame, limits::FRAME_BUFFER};
use everturn_storage::{
    chunk::{Chunk, Finish},
    event::EventData,
};

/// Scenario 130.
#[tokio::test(start_paused = true)]
async fn a_call_id_may_come_again_in_another_step() {
    let call = [("c1", "hammer", "{}")];
    let says = vec![Say::calls(&call), Say::calls(&call), Say::text("A1")];
    let bench = Bench::with(says, |profile| profile.tools = vec![Scripted::done("hammer").share()]).await;
    bench.send("one").await;
    let log = bench.finish().await;
    let pairs = picked(&log, |data| match data {
        EventData::ToolCall(call) => Some((call.step.0, call.call_id.to_string(), "call")),
        EventData::ToolResult(result) => Some((result.step.0, result.message.call_id.to_string(), "result")),
        _ => None,
    });
    let pair = |step, what| (step, "c1".to_owned(), what);
    assert_eq!(pairs, [pair(1, "call"), pair(1, "result"), pair(2, "call"), pair(2, "result")]);
    let done = ("c1".to_owned(), None, "done hammer".to_owned());
    assert_eq!(results(&log), [done.clone(), done]);
    assert_eq!(ends(&log), ["completed"]);
}

/// Scenario 131.
#[tokio::test(start_paused = true)]
async fn a_slow_watcher_stops_nobody() {
    let mut chunks = spoken(0, "x");
    chunks.extend((0..3 * FRAME_BUFFER).map(|_| Chunk::TextDelta { index: 0, text: "y".to_owned() }));
    chunks.extend([Chunk::BlockEnd { index: 0 }, finish(Finish::Stop)]);
    let bench = Bench::start(vec![Say::chunks(chunks)]).await;
    let mut slow = bench.agent.frames().await;
    bench.send("one").await;
    bench.idle().await;
    let log = bench.finish().await;
    let mut seen = Vec::new();
    while let Ok(frame) = slow.try_recv() {
        seen.push(frame);
    }
    let message = log.iter().find(|event| event.body.data.type_name() == "assistant/message").unwrap();
    assert!(seen.contains(&Frame::Gap), "the watcher was not told of the gap");
    let settled = seen.iter().find_map(|frame| match frame {
        Frame::Settled { seq, .. } => Some(*seq),
        _ => None,
    });
    assert_eq!(settled, Some(message.seq));
    let text = picked(&log, |data| match data {
        EventData::AssistantMessage(said) => Some(everturn_storage::message::plain_text(&said.message.content)),
        _ => None,
    });
    assert_eq!(text, [format!("x{}", "y".repeat(3 * FRAME_BUFFER))]);
}

/// Scenario 132.
#[tokio::test(start_paused = true)]
async fn a_stream_that_dies_with_the_process_leaves_nothing() {
    let mut bench = Bench::start(vec![Say::halves("never kept", "")]).await;
    let mut frames = bench.agent.frames().await;
    bench.send("one").await;
    streaming(&mut frames).await;
    bench.die(false).await;
    let log = bench.finish().await;
    let expected = [
        "inbox/queued",
        "turn/start",
        "inbox/claimed",
        "step/start",
        "user/message",
        "request/header",
        "request/context",
        "session/opened",
        "step/end",
        "turn/end",
    ];
    assert_eq!(types(&log), expected);
    assert_eq!(ends(&log), ["interrupted"]);
    assert!(!format!("{log:?}").contains("never kept"), "a live frame was kept");
}

/// Scenario 126, M-2: an answer that was cut before its calls were whole is empty. It stands in the log; no request
/// shows it, and it is nobody's answer.
#[tokio::test(start_paused = true)]
async fn an_answer_without_a_word_is_no_answer() {
    let mut cut = called(0, &("c1", "hammer", "{\"n\":"));
    cut.push(finish(Finish::MaxTokens));
    let says = vec![Say::chunks(cut), Say::text("A2")];
    let bench = Bench::with(says, |profile| profile.tools = vec![Scripted::done("hammer").share()]).await;
    bench.send("one").await;
    bench.idle().await;
    assert_eq!(bench.agent.item("one").await.unwrap().answer, None);
    bench.send("two").await;
    bench.idle().await;
    assert_eq!(bench.agent.item("two").await.unwrap().answer.as_deref(), Some("A2"));
    assert_eq!(bench.model.requests()[1], ["user: one", "user: two"]);
    let log = bench.finish().await;
    let said = picked(&log, |data| match data {
        EventData::AssistantMessage(said) => Some(said.message.content.len()),
        _ => None,
    });
    assert_eq!(said, [0, 1]);
    assert_eq!((results(&log).len(), ends(&log)), (0, vec!["max-tokens".to_owned(), "completed".to_owned()]));
}
