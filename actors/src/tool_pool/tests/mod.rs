//! The pool as an actor: real tasks, panics, time-outs and kills, over a journal that keeps every rule of the log.

#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks for the few events that it is about")]

mod stage;

use crate::{
    handle::Frame,
    limits::Limits,
    ports::{
        ExtensionError, Signal, ToolOutput, ToolPolicy, ToolVerdict,
        tool::{CallView, PostVerdict, ToolFailure},
    },
    protocol::AppendError,
};
use async_trait::async_trait;
use everturn_storage::{
    event::{Cause, Origin},
    message::Block,
};
use stage::{Crowd, FnTool, Setting, Stage, echo, obedient};
use std::{sync::Arc, time::Duration};
use tokio::sync::Notify;

/// Scenario 164, X-2, BR-106: no text is `{}`; what is no JSON or does not fit is INVALID_ARGS with the place; the
/// body gets what was validated.
#[tokio::test(start_paused = true)]
async fn arguments_are_checked() {
    let typed = r#"{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":false}"#;
    let stage = Stage::set(Setting {
        tools: vec![echo("echo"), echo("typed").schema(typed)],
        calls: vec![
            ("echo", ""),
            ("echo", " \n"),
            ("echo", r#"{"a":[1,{"b":"é"}]}"#),
            ("echo", r#"{"a":"#),
            ("echo", r#"{"a":"\ud83d"}"#),
            ("echo", "[1]"),
            ("typed", r#"{"n":"one"}"#),
            ("typed", r#"{"n":1}"#),
        ],
        ..Setting::default()
    })
    .await;
    stage.run().await;
    let outcomes = stage.outcomes();
    let codes: Vec<_> = outcomes.iter().map(|outcome| outcome.0.as_str()).collect();
    let bad = "INVALID_ARGS";
    assert_eq!(codes, ["ok", "ok", "ok", bad, bad, bad, bad, "ok"]);
    assert_eq!([&outcomes[0].1, &outcomes[1].1], ["{}", "{}"]);
    assert_eq!(outcomes[2].1, r#"{"a":[1,{"b":"é"}]}"#);
    assert!(outcomes[6].1.contains("/n") && outcomes[6].1.contains("integer"), "{}", outcomes[6].1);
    assert_eq!(stage.results()[3].message.call_id.as_str(), "3");
}

/// Scenario 163, 6.5: only what the header shows can be called, and the names are listed.
#[tokio::test(start_paused = true)]
async fn only_visible_tools_can_be_called() {
    let stage = Stage::set(Setting {
        tools: vec![echo("b"), echo("a")],
        hidden: vec![echo("hidden")],
        calls: vec![("nope", "{}"), ("hidden", "{}"), ("a", "{}")],
        ..Setting::default()
    })
    .await;
    stage.run().await;
    let outcomes = stage.outcomes();
    assert_eq!(stage.codes(), ["UNKNOWN_TOOL", "UNKNOWN_TOOL", "ok"]);
    assert!(outcomes[1].1.contains("a, b"), "{}", outcomes[1].1);
}

/// BR-113: a schema that cannot be used refuses the calls of its tool and of no other.
#[tokio::test(start_paused = true)]
async fn an_odd_schema_hurts_its_own_tool_only() {
    let stage = Stage::set(Setting {
        tools: vec![
            echo("odd").schema(r#"{"type":"nonsense"}"#),
            echo("remote").schema(r#"{"$ref":"http://127.0.0.1:1/schema"}"#),
            echo("any").schema(r#"{"anyOf":[{"required":["a"]},{"required":["b"]}]}"#),
        ],
        calls: vec![("odd", "{}"), ("remote", "{}"), ("any", r#"{"a":1}"#)],
        ..Setting::default()
    })
    .await;
    stage.run().await;
    assert_eq!(stage.codes(), ["INVALID_ARGS", "INVALID_ARGS", "ok"]);
}

/// Scenario 165, 160, X-10: panics of body and classifier stay with their call; the pool takes the next batch.
#[tokio::test(start_paused = true)]
async fn panics_are_contained() {
    let stage = Stage::set(Setting {
        tools: vec![
            FnTool::new("bad", |_, _| async { panic!("body") }),
            echo("odd").with(|tool| tool.parallel = Box::new(|_| panic!("classifier"))),
            echo("fine"),
        ],
        calls: vec![("bad", ""), ("odd", ""), ("fine", "")],
        ..Setting::default()
    })
    .await;
    stage.run().await;
    assert_eq!(stage.codes(), ["TOOL_PANIC", "ok", "ok"]);
    let classes: Vec<_> = stage.results().iter().map(|r| r.meta.as_ref().unwrap().as_str().to_owned()).collect();
    assert_eq!(classes, [r#"{"class":"parallel"}"#, r#"{"class":"exclusive"}"#, r#"{"class":"parallel"}"#]);
    let again = stage.start().await.unwrap();
    assert!(again.is_err(), "the step is closed, and the pool lives to hear it from the journal");
}

/// Scenario 158, X-12: real tasks overlap up to the cap, and the journal's own I-20 agrees.
#[tokio::test(start_paused = true)]
async fn bodies_overlap_up_to_the_cap() {
    let crowd = Arc::new(Crowd::default());
    let inside = Arc::clone(&crowd);
    let work = FnTool::new("work", move |_, _| {
        let inside = Arc::clone(&inside);
        async move {
            inside.enter();
            tokio::time::sleep(Duration::from_millis(10)).await;
            inside.leave();
            Ok(ToolOutput::text("done"))
        }
    });
    let stage = Stage::set(Setting {
        tools: vec![work],
        limits: Limits { max_parallel_tool_calls: 3, ..Limits::default() },
        calls: vec![("work", ""); 10],
        ..Setting::default()
    })
    .await;
    stage.run().await;
    assert_eq!(crowd.peak(), 3);
}

/// Scenario 80, 181, X-40, X-41, Z13: what a body says beside its output.
#[tokio::test(start_paused = true)]
async fn contexts_meta_and_conclusion() {
    let talk = FnTool::new("talk", |_, ctx| async move {
        ctx.add_context("one");
        ctx.add_context("two");
        ctx.conclude_turn();
        let meta = everturn_storage::RawJson::parse(r#"{"status":200,"class":"mine"}"#).unwrap();
        Ok(ToolOutput { content: vec![Block::text("hi")], meta: Some(meta) })
    });
    let stage = Stage::set(Setting { tools: vec![talk], calls: vec![("talk", "")], ..Setting::default() }).await;
    let done = stage.run().await;
    assert!(done.concluded && !done.aborted);
    let waiting = stage.journal().state.next_step().clone();
    let texts: Vec<_> =
        waiting.iter().map(|p| everturn_storage::message::plain_text(&p.item.message.content)).collect();
    assert_eq!(texts, ["one", "two"]);
    assert!(waiting.iter().all(|pending| pending.item.origin == Origin::Context && !pending.item.wake));
    assert_eq!(stage.results()[0].meta.as_ref().unwrap().as_str(), r#"{"class":"parallel","status":200}"#);
}

/// 0.4, C-1: contexts count like every other item; those that the inbox has no room for are left out, and said so.
#[tokio::test(start_paused = true)]
async fn contexts_do_not_overfill_the_inbox() {
    let talk = FnTool::new("talk", |_, ctx| async move {
        ["one", "two", "three"].into_iter().for_each(|text| ctx.add_context(text));
        Ok(ToolOutput::text("hi"))
    });
    let limits = Limits { inbox_capacity: 4, ..Limits::default() };
    let calls = vec![("talk", ""), ("talk", "")];
    let mut stage = Stage::set(Setting { tools: vec![talk], calls, limits, ..Setting::default() }).await;
    stage.run().await;
    let waiting = stage.journal().state.next_step().clone();
    let texts: Vec<_> =
        waiting.iter().map(|p| everturn_storage::message::plain_text(&p.item.message.content)).collect();
    assert_eq!(texts, ["one", "two", "three", "one"]);
    let Ok(Frame::Notice { code, message }) = stage.frames.try_recv() else { panic!("nobody was told") };
    assert!(code == "INBOX_FULL" && message.starts_with("2 contexts"), "{code}: {message}");
}

/// A policy that does to tools named for it what the name says.
struct ByName;

#[async_trait]
impl ToolPolicy for ByName {
    async fn before(&self, call: &CallView, signal: &Signal) -> Result<ToolVerdict, ExtensionError> {
        match call.name.as_str() {
            "deny" => Ok(ToolVerdict::Deny { reason: "because".into() }),
            "ask" => Ok(ToolVerdict::Ask),
            "fail" => Err(ExtensionError("broken".into())),
            "panic" => panic!("policy"),
            "slow" => {
                signal.wait().await;
                Ok(ToolVerdict::Allow)
            }
            _ => Ok(ToolVerdict::Allow),
        }
    }

    async fn after(&self, call: &CallView, content: &[Block], _: bool) -> Result<PostVerdict, ExtensionError> {
        match call.name.as_str() {
            "replace" => Ok(PostVerdict::Replace { content: vec![Block::text(format!("was {}", content.len()))] }),
            "block" => Ok(PostVerdict::Block { reason: "secret".into() }),
            "post-panic" => panic!("policy"),
            _ => Ok(PostVerdict::Accept),
        }
    }
}

/// A policy that allows what it must not decide: later members never loosen (X-53, scenario 169).
struct Lax;

#[async_trait]
impl ToolPolicy for Lax {}

/// Scenario 167 to 170, 172, 6.5: the strictest member counts, whatever fails refuses, the output is withheld.
#[tokio::test(start_paused = true)]
async fn policies_around_bodies() {
    let names = ["deny", "ask", "fail", "panic", "replace", "block", "post-panic", "free"];
    let stage = Stage::set(Setting {
        tools: names.iter().map(|name| echo(name)).collect(),
        policies: vec![Arc::new(Lax), Arc::new(ByName), Arc::new(Lax)],
        calls: names.iter().map(|name| (*name, "{}")).collect(),
        ..Setting::default()
    })
    .await;
    stage.run().await;
    let outcomes = stage.outcomes();
    assert_eq!(
        stage.codes(),
        ["DENIED", "DENIED", "POLICY_ERROR", "POLICY_ERROR", "ok", "BLOCKED", "POLICY_ERROR", "ok"]
    );
    assert!(outcomes[0].1.contains("because") && outcomes[1].1.contains("nobody"), "{outcomes:?}");
    assert_eq!(outcomes[4].1, "was 1");
    assert!(!outcomes[5].1.contains("{}") && !outcomes[6].1.contains("{}"), "{outcomes:?}");
}

/// Scenario 111, 107, 4.4: a cancel ends a body that watches its signal; the rest gets pairs.
#[tokio::test(start_paused = true)]
async fn a_cancel_reaches_bodies() {
    let stage = Stage::set(Setting {
        tools: vec![obedient("wait"), echo("echo")],
        limits: Limits { max_parallel_tool_calls: 1, ..Limits::default() },
        calls: vec![("wait", ""), ("echo", "")],
        ..Setting::default()
    })
    .await;
    let answer = stage.start();
    stage.signal.fire(Cause::User);
    let done = answer.await.unwrap().unwrap();
    assert!(done.aborted);
    let codes = stage.codes();
    // Which of the two windows the cancel hits is up to the scheduler; both are in 6.4.
    assert!(["ABORTED", "ABORTED_BEFORE_DISPATCH"].contains(&&*codes[0]), "{codes:?}");
    assert_eq!(codes[1], "ABORTED_BEFORE_DISPATCH");
}

/// P12, 4.4: a cancel in a pre-policy and in CP-X does not wait for either.
#[tokio::test(start_paused = true)]
async fn a_cancel_does_not_wait_for_policy_or_checkpoint() {
    let stage = Stage::set(Setting {
        tools: vec![echo("slow")],
        policies: vec![Arc::new(ByName)],
        calls: vec![("slow", "")],
        ..Setting::default()
    })
    .await;
    let answer = stage.start();
    tokio::time::advance(Duration::from_millis(10)).await;
    stage.signal.fire(Cause::User);
    assert!(answer.await.unwrap().unwrap().aborted);
    assert_eq!(stage.codes(), ["ABORTED_BEFORE_DISPATCH"]);

    let stage =
        Stage::set(Setting { tools: vec![echo("echo")], calls: vec![("echo", "")], ..Setting::default() }).await;
    stage.journal().hold_checkpoints = true;
    let answer = stage.start();
    tokio::time::advance(Duration::from_millis(10)).await;
    stage.signal.fire(Cause::User);
    assert!(answer.await.unwrap().unwrap().aborted);
    assert_eq!(stage.codes(), ["ABORTED_BEFORE_DISPATCH"]);
}

/// Scenario 176, 6.6: the budget fires the signal of that body alone, and leaves no cause for the turn.
#[tokio::test(start_paused = true)]
async fn a_time_out_is_the_bodys_own() {
    let stage = Stage::set(Setting {
        tools: vec![obedient("wait").with(|tool| tool.timeout_ms = Some(50)), echo("echo")],
        calls: vec![("wait", ""), ("echo", "")],
        ..Setting::default()
    })
    .await;
    let done = stage.run().await;
    assert!(!done.aborted && !stage.signal.fired() && stage.signal.cause().is_none());
    assert_eq!(stage.codes(), ["TOOL_TIMEOUT", "ok"]);
    assert!(stage.outcomes()[0].1.contains("50 ms"));
}

/// Scenario 177, 114: a body that is let go ends unheard, and people who watch are told.
#[tokio::test(start_paused = true)]
async fn a_late_end_is_reported_and_dropped() {
    let gate = Arc::new(Notify::new());
    let wait = Arc::clone(&gate);
    let deaf = FnTool::new("deaf", move |_, _| {
        let wait = Arc::clone(&wait);
        async move {
            wait.notified().await;
            Ok(ToolOutput::text("too late"))
        }
    })
    .with(|tool| {
        tool.timeout_ms = Some(10);
        tool.abandonable = true;
    });
    let mut stage = Stage::set(Setting { tools: vec![deaf], calls: vec![("deaf", "")], ..Setting::default() }).await;
    stage.run().await;
    assert_eq!(stage.codes(), ["TOOL_TIMEOUT"]);
    gate.notify_one();
    let told = stage.frames.recv().await;
    assert!(matches!(&told, Some(Frame::Notice { code, .. }) if code == "TOOL_LATE"), "{told:?}");
    assert_eq!(stage.results().len(), 1);
}

/// Scenario 183, 6.10: killing the pool ends its bodies, fires their signals and drops the answer.
#[tokio::test(start_paused = true)]
async fn a_killed_pool_takes_its_bodies_along() {
    struct Dropped(Arc<Notify>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let (started, dropped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, end) = (Arc::clone(&started), Arc::clone(&dropped));
    let (signals, mut heard) = tokio::sync::mpsc::unbounded_channel::<Signal>();
    let deaf = FnTool::new("deaf", move |_, ctx| {
        let (tell, guard, signals) = (Arc::clone(&tell), Dropped(Arc::clone(&end)), signals.clone());
        async move {
            let _guard = guard;
            signals.send(ctx.signal.clone()).unwrap();
            tell.notify_one();
            std::future::pending().await
        }
    });
    let stage = Stage::set(Setting { tools: vec![deaf], calls: vec![("deaf", "")], ..Setting::default() }).await;
    let answer = stage.start();
    started.notified().await;
    stage.pool.kill();
    dropped.notified().await;
    assert!(answer.await.is_err(), "the reply is dropped");
    heard.recv().await.unwrap().wait().await;
    assert!(stage.results().is_empty() && !stage.signal.fired());
}

/// P12: a failed CP-X is a result; the body does not run.
#[tokio::test(start_paused = true)]
async fn a_failed_checkpoint_runs_nothing() {
    let stage =
        Stage::set(Setting { tools: vec![echo("echo")], calls: vec![("echo", "")], ..Setting::default() }).await;
    stage.journal().fail_checkpoints = true;
    stage.run().await;
    assert_eq!(stage.codes(), ["CHECKPOINT_FAILED"]);
}

/// P13, P11: an append that is refused for a while is tried again; one that stays refused is a fault.
#[tokio::test(start_paused = true)]
async fn the_journal_is_tried_again() {
    let setting =
        || Setting { tools: vec![echo("echo")], calls: vec![("echo", ""), ("echo", "")], ..Setting::default() };
    let stage = Stage::set(setting()).await;
    stage.journal().fail_appends = 2;
    stage.run().await;
    assert_eq!((stage.codes().len(), stage.journal().checkpoints), (2, 1));

    let stage = Stage::set(setting()).await;
    stage.journal().fail_appends = 3;
    let fault = stage.start().await.unwrap().unwrap_err();
    assert_eq!(fault.error, AppendError::Io("full".into()));
}

/// One batch at a time: a second one is a fault of the asker, and the first goes on.
#[tokio::test(start_paused = true)]
async fn a_second_batch_is_refused() {
    let stage =
        Stage::set(Setting { tools: vec![obedient("wait")], calls: vec![("wait", "")], ..Setting::default() }).await;
    let first = stage.start();
    let second = stage.start();
    assert!(second.await.unwrap().is_err());
    stage.signal.fire(Cause::User);
    assert!(first.await.unwrap().is_ok());
}

/// X-30, BR-034, BR-107: the limit of the profile counts, and a NUL stays.
#[tokio::test(start_paused = true)]
async fn output_is_cut_to_the_limit() {
    let long = FnTool::new("long", |_, _| async { Ok(ToolOutput::text("a\0é".repeat(1_000))) });
    let stage = Stage::set(Setting {
        tools: vec![long],
        limits: Limits { tool_inline_limit_bytes: 300, ..Limits::default() },
        calls: vec![("long", "")],
        ..Setting::default()
    })
    .await;
    stage.run().await;
    let text = &stage.outcomes()[0].1;
    assert!(text.len() <= 300 && text.contains("was not kept") && text.contains('\0'), "{text:?}");
}

/// X-1: the tool's own error is a result with its own code; a core code is not its to give.
#[tokio::test(start_paused = true)]
async fn own_errors_are_results() {
    let fail = FnTool::new("fail", |args, _| async move {
        Err(ToolFailure {
            code: args["code"].as_str().map(str::to_owned),
            content: vec![Block::text("no")],
            meta: None,
        })
    });
    let stage = Stage::set(Setting {
        tools: vec![fail],
        calls: vec![("fail", "{}"), ("fail", r#"{"code":"FAIL_X"}"#), ("fail", r#"{"code":"TOOL_NOT_STARTED"}"#)],
        ..Setting::default()
    })
    .await;
    stage.run().await;
    assert_eq!(stage.codes(), ["error", "FAIL_X", "fail:TOOL_NOT_STARTED"]);
}
