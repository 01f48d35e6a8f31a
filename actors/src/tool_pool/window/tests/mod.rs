//! The order, cancel and failure rules of the window, one scenario each; random batches in `property`.

#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks for the few events that it is about")]

mod property;
mod rig;

use super::*;
use crate::{
    ports::tool::{ToolFailure, ToolNotes, ToolOutput},
    tool_pool::types::BatchConfig,
};
use everturn_storage::{
    event::{Origin, Target},
    log::Violation,
    message::Block,
};
use rig::{Rig, Script, shape};

fn plain(_: &mut BatchConfig) {}

fn policies(config: &mut BatchConfig) {
    config.policies = true;
}

fn parallel(works_ms: &[u64]) -> Vec<Script> {
    works_ms.iter().map(|&works_ms| Script::works(true, works_ms)).collect()
}

fn with_notes(mut script: Script, contexts: &[&str], conclude: bool) -> Script {
    let notes = ToolNotes { contexts: contexts.iter().map(|&text| text.to_owned()).collect(), conclude };
    script.end = BodyEnd::Ok(ToolOutput::text("ok"), notes);
    script
}

fn runnable(mut script: Script, timeout_ms: Option<u64>, abandonable: bool) -> Script {
    script.shapes = vec![Shape::Runnable { parallel: true, timeout_ms, abandonable }];
    script
}

fn deaf(mut script: Script) -> Script {
    script.stops_in_ms = None;
    script
}

/// Scenario 156, X-14, K-5: calls are logged together and share one CP-X; results keep the order of the model.
#[test]
fn results_keep_model_order() {
    let rig = Rig::new(parallel(&[30, 10, 20]), plain).run();
    assert_eq!(rig.picture(), "c0 c1 c2 | r0 | r1 | r2");
    assert_eq!(rig.checkpoints_asked, [Seq(rig::BASE + 2)]);
    assert_eq!((rig.peak, rig.now_ms, rig.done()), (3, 30, (false, false)));
}

/// Scenario 157, 162, X-4, X-13: an exclusive call is a barrier in both directions.
#[test]
fn an_exclusive_call_runs_alone() {
    let mut scripts = parallel(&[10, 20, 5, 5]);
    scripts[2] = Script::works(false, 5);
    let rig = Rig::new(scripts, plain).run();
    assert_eq!(rig.picture(), "c0 c1 | r0 | r1 | c2 | r2 | c3 | r3");
    assert_eq!(rig.started, [(0, 0), (0, 1), (20, 2), (25, 3)]);
}

/// Scenario 158, X-12: a logged result lets the next one start while the other still runs.
#[test]
fn the_window_rolls() {
    let rig = Rig::new(parallel(&[10, 30, 10, 10]), |config| config.max_parallel = 2).run();
    assert_eq!(rig.started, [(0, 0), (0, 1), (10, 2), (30, 3)]);
    assert_eq!(rig.peak, 2);
}

/// Scenario 159, X-15: a cap of 1 is serial and gives the same results.
#[test]
fn a_cap_of_one_is_serial() {
    for cap in [0, 1] {
        let rig = Rig::new(parallel(&[3, 2, 1]), |config| config.max_parallel = cap).run();
        assert_eq!(rig.picture(), "c0 | r0 | c1 | r1 | c2 | r2");
        assert_eq!(rig.peak, 1);
    }
}

/// Scenario 161, X-11: a call that waited is looked at again when a sibling has finished.
#[test]
fn a_waiting_call_is_classified_again() {
    let mut scripts = parallel(&[10, 30, 5]);
    scripts[2].shapes = vec![shape(false), shape(true)];
    let rig = Rig::new(scripts, plain).run();
    assert_eq!(rig.started, [(0, 0), (0, 1), (10, 2)]);
}

/// Scenario 160, 163, 164, X-10: what cannot run is exclusive, is logged, gets its result and stops nobody.
#[test]
fn a_refused_call_is_exclusive_and_gets_its_result() {
    let mut scripts = parallel(&[5, 5, 5]);
    scripts[1].shapes = vec![Shape::Refused { code: code::UNKNOWN_TOOL, text: "no such tool".into() }];
    let rig = Rig::new(scripts, plain).run();
    assert_eq!(rig.picture(), "c0 | r0 | c1 | r1 | c2 | r2");
    assert_eq!(rig.codes(), ["ok", "UNKNOWN_TOOL", "ok"]);
    assert_eq!(rig.results()[1].meta.as_ref().unwrap().as_str(), r#"{"class":"exclusive"}"#);
    assert_eq!(rig.checkpoints_asked.len(), 2, "no checkpoint for what does not run");
}

/// Scenario 165, X-1: an error and a panic of a body are results; the batch goes on.
#[test]
fn body_failures_are_results() {
    let mut scripts = parallel(&[1, 1, 1]);
    scripts[0].end = BodyEnd::Failed(ToolFailure::text("no luck"), ToolNotes::default());
    scripts[1].end = BodyEnd::Panicked;
    scripts[2].end = BodyEnd::Failed(
        ToolFailure { code: Some(code::DENIED.into()), content: vec![Block::text("x")], meta: None },
        ToolNotes::default(),
    );
    let rig = Rig::new(scripts, plain).run();
    assert_eq!(rig.codes(), ["error", "TOOL_PANIC", "tool2:DENIED"], "core codes are not for tools");
    assert_eq!(rig.text(0), "no luck");
}

/// Scenario 167, 168, 172, X-3, X-5: refusals keep their place; policies are asked one after the other.
#[test]
fn policies_refuse_in_place() {
    let mut scripts = parallel(&[5, 5, 5, 5]);
    scripts[1].verdict = (0, Verdict::Deny { reason: "not on my watch".into() });
    scripts[2].verdict = (0, Verdict::Failed { why: "it panicked".into() });
    scripts[3].verdict = (0, Verdict::Unavailable);
    let rig = Rig::new(scripts, policies).run();
    assert_eq!(rig.codes(), ["ok", "DENIED", "POLICY_ERROR", "DENIED"]);
    assert!(rig.text(1).contains("not on my watch"), "{}", rig.text(1));
    assert_eq!(rig.started.len(), 1, "no refused body ran");
}

/// Scenario 175, X-51, X-4: while a policy thinks about call 2, the body of call 1 runs and is logged, and call 3
/// is not logged.
#[test]
fn a_slow_policy_blocks_only_what_is_behind_it() {
    let mut scripts = parallel(&[5, 5, 5]);
    scripts[1].verdict = (100, Verdict::Allow);
    let rig = Rig::new(scripts, policies).run();
    assert_eq!(rig.picture(), "c0 | c1 | r0 | c2 | r1 | r2");
    assert_eq!(rig.started, [(0, 0), (100, 1), (100, 2)]);
}

/// Scenario 170: a post-policy replaces, blocks or fails; the first output is nowhere in the log.
#[test]
fn post_policies_have_the_last_word() {
    let mut script = Script::works(true, 1);
    let notes = ToolNotes { contexts: vec!["ctx".into()], conclude: true };
    script.end = BodyEnd::Ok(ToolOutput::text("output of the body"), notes);
    let mut scripts = vec![script; 3];
    scripts[0].post.1 = Ok(PostVerdict::Replace { content: vec![Block::text("clean")] });
    scripts[1].post.1 = Ok(PostVerdict::Block { reason: "secret".into() });
    scripts[2].post.1 = Err("broken".into());
    let rig = Rig::new(scripts, policies).run();
    assert_eq!(rig.codes(), ["ok", "BLOCKED", "POLICY_ERROR"]);
    assert_eq!(rig.text(0), "clean");
    assert!((1..3).all(|index| !rig.text(index).contains("output of the body")));
    assert_eq!(rig.contexts().len(), 1, "contexts of withheld results are gone");
}

/// P12: a failed CP-X fails the calls that it should have covered, and nothing else.
#[test]
fn a_failed_checkpoint_is_a_result() {
    let mut rig = Rig::new(parallel(&[5, 5, 5]), |config| config.max_parallel = 2);
    rig.checkpoints = [(1, false), (1, true)].into();
    let rig = rig.run();
    assert_eq!(rig.codes(), ["CHECKPOINT_FAILED", "CHECKPOINT_FAILED", "ok"]);
    assert_eq!(rig.started.len(), 1);
}

/// K-4: under the policy `turn` bodies wait for no checkpoint.
#[test]
fn the_turn_policy_has_no_cp_x() {
    let rig = Rig::new(parallel(&[5, 5]), |config| config.checkpoint = false).run();
    assert!(rig.checkpoints_asked.is_empty() && rig.codes() == ["ok", "ok"]);
}

/// Scenario 105, P11: the signal had fired already; every call gets a pair and nothing runs.
#[test]
fn a_cancelled_batch_is_all_synthetic_pairs() {
    let mut rig = Rig::new(parallel(&[5, 5]), plain);
    rig.feed(Input::Start { cancelled: true });
    rig.go_on();
    assert_eq!(rig.picture(), "c0 | r0 | c1 | r1");
    assert_eq!(rig.codes(), ["ABORTED_BEFORE_DISPATCH"; 2]);
    assert_eq!((rig.started.len(), rig.done()), (0, (false, true)));
}

/// Scenario 106: between the result of call 1 and the start of the exclusive call 2.
#[test]
fn a_cancel_between_groups_gives_a_pair() {
    let mut rig = Rig::new(vec![Script::works(true, 10), Script::works(false, 10)], plain).cancel_at(10);
    rig.journal = [(0, None), (0, None), (5, None)].into();
    let rig = rig.run();
    assert_eq!(rig.picture(), "c0 | r0 | c1 | r1");
    assert_eq!(rig.codes(), ["ok", "ABORTED_BEFORE_DISPATCH"]);
}

/// Scenario 107, P13: each body keeps its own outcome if it ended by itself; the others are ABORTED, in order.
#[test]
fn a_cancel_keeps_what_ended_by_itself() {
    let mut scripts = parallel(&[1_000, 30, 10, 5]);
    scripts[1].stops_in_ms = None;
    scripts[2].end = BodyEnd::Failed(ToolFailure::text("own error"), ToolNotes::default());
    let rig = Rig::new(scripts, |config| config.max_parallel = 3).cancel_at(20).run();
    assert_eq!(rig.codes(), ["ABORTED", "ok", "error", "ABORTED_BEFORE_DISPATCH"]);
    assert_eq!(rig.done(), (false, true));
}

/// Scenario 105 to 107, P12: a cancel while policy, CP-X or the call's own append is under way.
#[test]
fn a_cancel_before_dispatch_skips_the_body() {
    let mut asked = parallel(&[5, 5]);
    asked[0].verdict.0 = 50;
    let in_policy = Rig::new(asked, policies).cancel_at(10).run();
    assert_eq!(in_policy.codes(), ["ABORTED_BEFORE_DISPATCH"; 2]);

    let mut in_checkpoint = Rig::new(parallel(&[5, 5]), plain).cancel_at(10);
    in_checkpoint.checkpoints = [(50, true)].into();
    assert_eq!(in_checkpoint.run().codes(), ["ABORTED_BEFORE_DISPATCH"; 2]);

    let mut in_append = Rig::new(parallel(&[5, 5]), plain).cancel_at(10);
    in_append.journal = [(50, None)].into();
    let in_append = in_append.run();
    assert_eq!(in_append.codes(), ["ABORTED_BEFORE_DISPATCH"; 2]);
    assert_eq!(in_append.picture(), "c0 c1 | r0 | r1");
    assert!(in_append.started.is_empty());
}

/// P15: a cancel in a post-policy changes nothing for that result.
#[test]
fn a_cancel_in_a_post_policy_waits_for_it() {
    let mut scripts = parallel(&[5, 5]);
    scripts[0].post.0 = 20;
    let rig = Rig::new(scripts, policies).cancel_at(10).run();
    assert_eq!(rig.codes(), ["ok", "ok"]);
    assert_eq!(rig.done(), (false, true));
}

/// Scenario 113, 6.6: a body that ignores the signal is waited for and reported each 30 s.
#[test]
fn a_deaf_body_is_waited_for_and_reported() {
    let rig = Rig::new(vec![deaf(Script::works(true, 100_000))], |config| config.abandon_after_ms = Some(5))
        .cancel_at(10)
        .run();
    let at: Vec<_> = rig.notices.iter().map(|notice| notice.0).collect();
    assert_eq!(at, [30_010, 60_010, 90_010]);
    assert_eq!(rig.codes(), ["ok"], "it ended by itself");
}

/// Scenario 114: an abandonable body is let go; its late end is reported and dropped.
#[test]
fn an_abandonable_deaf_body_is_let_go() {
    let script = runnable(deaf(Script::works(true, 500)), None, true);
    let rig = Rig::new(vec![script], |config| config.abandon_after_ms = Some(5)).cancel_at(10).run();
    assert_eq!(rig.codes(), ["TOOL_OUTCOME_UNKNOWN"]);
    assert_eq!(rig.notices, [(500, "TOOL_LATE")]);
    assert_eq!(rig.results().len(), 1);
}

/// Scenario 176: a passed budget is TOOL_TIMEOUT, and the time before the body does not count.
#[test]
fn a_budget_counts_body_time_only() {
    let mut scripts = vec![runnable(Script::works(true, 1_000), Some(20), false), Script::works(true, 10)];
    scripts[0].verdict.0 = 100;
    let mut rig = Rig::new(scripts, |config| {
        config.policies = true;
        config.default_timeout_ms = Some(15);
    });
    rig.checkpoints = [(100, true)].into();
    let rig = rig.run();
    assert_eq!(rig.started[0], (200, 0));
    assert_eq!(rig.codes(), ["TOOL_TIMEOUT", "ok"]);
    assert_eq!(rig.now_ms, 30_220, "the last timers run out unheard");
}

/// Scenario 177, 6.6: after the grace an abandonable body is let go; another one is waited for.
#[test]
fn a_deaf_body_behind_its_budget() {
    let script = deaf(Script::works(true, 5_000));
    let let_go = Rig::new(vec![runnable(script.clone(), Some(20), true)], plain).run();
    assert_eq!((let_go.codes(), let_go.notices[0]), (vec!["TOOL_TIMEOUT"], (5_000, "TOOL_LATE")));
    assert_eq!(let_go.let_go, [0]);
    let waited = Rig::new(vec![runnable(script, Some(20), false)], plain).run();
    assert_eq!((waited.codes(), waited.let_go.len()), (vec!["TOOL_TIMEOUT"], 0));
}

/// Scenario 181, X-40: contexts stand behind the last result, in model order, in its append, and wake nobody.
#[test]
fn contexts_follow_the_last_result() {
    let scripts = vec![
        with_notes(Script::works(true, 30), &["a1", "a2"], false),
        with_notes(Script::works(true, 10), &["b1"], false),
    ];
    let rig = Rig::new(scripts, plain).run();
    assert_eq!(rig.picture(), "c0 c1 | r0 | r1 + + +");
    let texts: Vec<_> =
        rig.contexts().iter().map(|item| everturn_storage::message::plain_text(&item.message.content)).collect();
    assert_eq!(texts, ["a1", "a2", "b1"]);
    assert!(rig.contexts().iter().all(|i| !i.wake && i.origin == Origin::Context && i.target == Target::NextStep));
}

/// Scenario 181 variant, X-42, P14: contexts of real results survive the abort of a later call; the aborted one's
/// are gone.
#[test]
fn contexts_of_real_results_survive_a_cancel() {
    let mut scripts = vec![with_notes(Script::works(true, 5), &["kept"], false), Script::works(true, 1_000)];
    scripts[1].end = BodyEnd::Ok(ToolOutput::text("never"), ToolNotes::default());
    scripts.push(Script::works(false, 5));
    let rig = Rig::new(scripts, plain).cancel_at(20).run();
    assert_eq!(rig.codes(), ["ok", "ABORTED", "ABORTED_BEFORE_DISPATCH"]);
    assert_eq!(rig.picture(), "c0 c1 | r0 | r1 | c2 | r2 +");
}

/// Scenario 185, X-41: only a successful call concludes; calls behind it still run.
#[test]
fn only_success_concludes() {
    let ok = with_notes(Script::works(true, 1), &[], true);
    let mut error = ok.clone();
    error.end = BodyEnd::Failed(ToolFailure::text("no"), ToolNotes { contexts: vec![], conclude: true });
    let rig = Rig::new(vec![error.clone(), Script::works(true, 1)], plain).run();
    assert_eq!(rig.done(), (false, false));
    let rig = Rig::new(vec![ok, error], plain).run();
    assert_eq!((rig.done(), rig.started.len()), ((true, false), 2));
}

/// P11, P13: an append that fails is tried again, and each wait is one of the limits.
#[test]
fn appends_are_tried_again() {
    let io = || Some(AppendError::Io("full".into()));
    let mut rig = Rig::new(parallel(&[5]), plain);
    rig.journal = [(0, io()), (0, io()), (0, None), (0, io()), (0, None)].into();
    let rig = rig.run();
    assert_eq!(rig.picture(), "c0 | r0");
    assert_eq!(rig.started, [(200, 0)]);
    assert_eq!(rig.now_ms, 255);
}

/// P11, P12, F-4: what cannot be recorded is a fault, after the bodies have been told and have returned.
#[test]
fn a_lost_journal_is_a_fault_behind_the_bodies() {
    let io = || Some(AppendError::Io("full".into()));
    let mut rig = Rig::new(parallel(&[5, 10_000]), plain);
    rig.journal = [(0, None), (0, io()), (0, io()), (0, io())].into();
    let rig = rig.run();
    assert_eq!(rig.end, Some(Effect::Fault { error: AppendError::Io("full".into()) }));
    assert_eq!(rig.started.len(), 2);

    let refused = AppendError::Refused(Violation { rule: "I-15", seq: Seq(1), why: "order".into() });
    for error in [refused, AppendError::Fenced] {
        let mut rig = Rig::new(parallel(&[5]), plain);
        rig.journal = [(0, Some(error.clone()))].into();
        assert_eq!(rig.run().end, Some(Effect::Fault { error }), "trying again cannot help");
    }
}

/// X-30, X-31: what the model gets of a result is bounded, with the marker; also behind a post-policy.
#[test]
fn results_are_bounded() {
    for policies in [false, true] {
        let mut script = Script::works(true, 1);
        script.end = BodyEnd::Ok(ToolOutput::text("é".repeat(10_000)), ToolNotes::default());
        let rig = Rig::new(vec![script], |config| {
            config.inline_limit_bytes = 500;
            config.policies = policies;
        })
        .run();
        assert!(rig.text(0).len() <= 500 && rig.text(0).contains("was not kept"), "{}", rig.text(0));
    }
}

/// Scenario 186: a thousand calls in one message.
#[test]
fn a_thousand_calls() {
    let rig = Rig::new(parallel(&[7; 1_000]), plain).run();
    assert_eq!((rig.peak, rig.results().len()), (10, 1_000));
}

/// BR-112: an empty result is a result.
#[test]
fn an_empty_result_is_a_result() {
    let mut script = Script::works(true, 1);
    script.end = BodyEnd::Ok(ToolOutput::default(), ToolNotes::default());
    let rig = Rig::new(vec![script], plain).run();
    assert_eq!((rig.codes(), rig.results()[0].message.content.len()), (vec!["ok"], 0));
}

/// Late and unasked answers change nothing and are counted.
#[test]
fn stale_answers_are_counted() {
    let mut rig = Rig::new(parallel(&[5]), plain);
    for input in [
        Input::Durable { upto: Seq(5) },
        Input::Decided { index: 0, verdict: Verdict::Allow },
        Input::Posted { index: 9, verdict: Ok(PostVerdict::Accept) },
        Input::Appended { first: Seq(1) },
        Input::Timer(Timer::Retry),
    ] {
        rig.window.take(input, &mut Vec::new());
    }
    assert_eq!(rig.window.stale(), 5);
    assert_eq!(rig.run().codes(), ["ok"]);
}
