//! The rows of the table that no fault takes part in.

use super::bench::*;
use crate::{
    handle::Frame,
    ports::{BatchMessage, Decision},
    protocol::ClaimStepAnswer,
    turn::*,
};
use everturn_storage::{
    event::*,
    ids::*,
    message::{Block, Role, code},
    testing::sample,
};

const TEXT_TURN: [&str; 10] = [
    "turn/start",
    "inbox/claimed",
    "step/start",
    "system/message",
    "user/message",
    "request/header",
    "request/context",
    "assistant/message",
    "step/end",
    "turn/end",
];

/// Rows 1 and 2: a wake that finds nothing leaves no trace.
#[test]
fn nothing_to_open() {
    let mut bench = Bench::new(&[]);
    bench.drain();
    assert_eq!(bench.trace, ["open"]);
    assert!(bench.machine.is_idle());
}

/// Rows 3, 4, 6, 10 to 12, 14, 15, 17, 19, 33, 35, 37 to 39, 43, 44; scenario 39: the order of one plain turn.
#[test]
fn one_text_turn() {
    let mut bench = Bench::new(&["m1"]);
    bench.drain();
    assert_eq!(bench.types(), TEXT_TURN);
    assert_eq!(bench.reason(), TurnReason::Completed);
    let order = [
        "open",
        "phase PreAdmission",
        "assemble",
        "pre-step",
        "step/start",
        "settings",
        "prepare",
        "system/message user/message request/header request/context",
        "phase Streaming",
        "CP-R",
        "dispatch",
        "assistant/message",
        "step/end",
        "phase Boundary",
        "CP-S",
        "claim",
        "stopping",
        "claim",
        "turn/end",
        "turn ended",
        "phase Checkpoint",
        "CP-T",
        "turn settled true",
        "open",
    ];
    assert_eq!(bench.trace, order);
    assert!(matches!(bench.frames[..], [Frame::Started { .. }, Frame::Settled { seq: Seq(9), .. }]));
    assert_eq!(bench.machine.stale(), 0);
}

/// Rows 18, 29, 36; CONTRACT 12.1, scenario 31: the checkpoints of a tool turn.
#[test]
fn one_tool_turn() {
    let mut bench = Bench::new(&["m1"]);
    bench.answers.extend([calls(&["a", "b"]), says("Noon.")]);
    bench.drain();
    let tools = ["tool/call", "tool/result", "tool/call", "tool/result"];
    let mut types: Vec<&str> = TEXT_TURN[..8].to_vec();
    types.extend(tools);
    types.extend(["step/end", "step/start", "assistant/message", "step/end", "turn/end"]);
    assert_eq!(bench.types(), types);
    let gates = [
        "open", "pre-step", "CP-R", "dispatch", "batch", "CP-S", "pre-step", "CP-R", "dispatch", "CP-S", "CP-T", "open",
    ];
    assert_eq!(bench.gates(), gates);
    let phases =
        ["PreAdmission", "Streaming", "Tools", "Boundary", "PreAdmission", "Streaming", "Boundary", "Checkpoint"];
    assert_eq!(bench.phases(), phases);
}

/// Row 34, Z11: a later acknowledgement covers `step/end` when nobody can act outside in between.
#[test]
fn the_step_checkpoint_folds() {
    let mut bench = Bench::new(&["m1"]);
    bench.rules.fold_step_checkpoint = true;
    bench.answers.extend([calls(&["a"]), says("Noon.")]);
    bench.drain();
    let gates = ["open", "pre-step", "CP-R", "dispatch", "batch", "pre-step", "CP-R", "dispatch", "CP-T", "open"];
    assert_eq!(bench.gates(), gates);
}

/// Row 34, K-4, scenario 37: policy `turn` keeps CP-T.
#[test]
fn policy_turn_keeps_the_turn_checkpoint() {
    let mut bench = Bench::new(&["m1"]).turn_policy();
    bench.answers.extend([calls(&["a"]), says("Noon.")]);
    bench.drain();
    assert_eq!(bench.gates(), ["open", "pre-step", "dispatch", "batch", "pre-step", "dispatch", "CP-T", "open"]);
}

/// R1, T-17, scenario 23: nothing of the next turn is asked before CP-T has settled.
#[test]
fn the_next_turn_waits_for_the_checkpoint() {
    let mut bench = Bench::new(&["m1", "m2"]);
    bench.wake();
    let token = bench.until("CP-T");
    bench.wake();
    assert!(bench.open.is_empty());
    assert_eq!(bench.log.last_turn(), Turn(1));
    bench.feed(Input::Durable { token, seq: Seq(0) });
    bench.run();
    assert_eq!(bench.log.turns().len(), 2);
}

/// Row 15, scenario 32: no dispatch before CP-R.
#[test]
fn dispatch_waits_for_the_request_checkpoint() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let token = bench.until("CP-R");
    assert!(bench.open.is_empty());
    bench.feed(Input::Durable { token, seq: Seq(9) });
    assert_eq!(name_of(&bench.open[0]), "dispatch");
}

/// Row 12, M-31, scenario 55: a second turn with nothing new admits its user alone.
#[test]
fn an_unchanged_route_is_not_recorded_twice() {
    let mut bench = Bench::new(&["m1", "m2"]);
    bench.drain();
    let admissions: Vec<_> = bench.trace.iter().filter(|entry| entry.ends_with("user/message")).collect();
    assert_eq!(admissions, ["user/message"]);
}

/// Row 7, R5, scenario 40: a refusal leaves no step and nothing that the model sees.
#[test]
fn a_first_batch_is_refused() {
    let mut bench = Bench::new(&["m1", "m2"]);
    bench.decisions.push_back(Ok(Decision::Reject { reason: "rude".into() }));
    bench.drain();
    let EventData::PromptBlocked(blocked) = bench.last("prompt/blocked") else { panic!() };
    assert_eq!(blocked.ids, [sample::item_id("m1")]);
    assert_eq!(blocked.content, [Block::text("m1")]);
    assert_eq!(bench.ended[0].1, TurnReason::Rejected { reason: "rude".into() });
    assert_eq!(bench.ended[1].1, TurnReason::Completed);
    assert_eq!(bench.log.turns()[0].steps, 0);
}

/// Row 7, scenario 46: a refusal between steps keeps the earlier step and blocks the steer alone.
#[test]
fn a_later_batch_is_refused() {
    for steered in [true, false] {
        let mut bench = Bench::new(&["m1"]);
        bench.answers.push_back(calls(&["a"]));
        bench.decisions.extend([Ok(Decision::Pass), Ok(Decision::Reject { reason: "rude".into() })]);
        bench.wake();
        let token = bench.until("dispatch");
        if steered {
            bench.queue("s1", Origin::Steer);
        }
        let answer = bench.answers.pop_front().unwrap();
        let input = bench.settled(token, answer);
        bench.feed(input);
        bench.run();
        let EventData::PromptBlocked(blocked) = bench.last("prompt/blocked") else { panic!() };
        assert_eq!(blocked.ids.len(), usize::from(steered));
        assert_eq!(bench.unadmitted(), blocked.ids);
        assert_eq!(bench.log.turns()[0].steps, 1);
    }
}

/// Row 8, P4, scenario 44.
#[test]
fn an_emptied_first_batch_completes_the_turn() {
    let mut bench = Bench::new(&["m1"]);
    bench.decisions.push_back(Ok(Decision::Enter(Vec::new())));
    bench.drain();
    assert_eq!(bench.types(), ["turn/start", "inbox/claimed", "turn/end"]);
    assert_eq!(bench.reason(), TurnReason::Completed);
    assert_eq!(bench.unadmitted(), [sample::item_id("m1")]);
}

/// Row 9: an emptied later batch looks for more and then stops.
#[test]
fn an_emptied_later_batch_goes_back_to_the_boundary() {
    let mut bench = Bench::new(&["m1"]);
    bench.steers.push_back("s1");
    bench.decisions.extend([Ok(Decision::Pass), Ok(Decision::Enter(Vec::new()))]);
    bench.drain();
    assert_eq!(bench.reason(), TurnReason::Completed);
    assert_eq!(bench.log.turns()[0].steps, 1);
    assert_eq!(bench.unadmitted(), [sample::item_id("s1")]);
}

/// Row 6, scenarios 43 and 45: what the decision says is what is admitted.
#[test]
fn a_rewritten_batch_is_admitted() {
    let mut bench = Bench::new(&["m1"]);
    let message = sample::message("m1", Role::User, "politely: m1");
    let added = sample::message("x1", Role::User, "it is noon");
    bench.decisions.push_back(Ok(Decision::Enter(vec![
        BatchMessage { message, origin: Origin::Send, items: vec![sample::item_id("m1")] },
        BatchMessage { message: added, origin: Origin::Context, items: Vec::new() },
    ])));
    bench.drain();
    assert!(bench.trace.iter().any(|entry| entry.contains("user/message user/message")));
    assert!(bench.unadmitted().is_empty());
}

/// Row 6, T-15: owed results force a step although nothing is claimed and the batch is empty.
#[test]
fn owed_results_force_a_step() {
    let mut bench = Bench::new(&["m1"]);
    bench.answers.push_back(calls(&["a"]));
    bench.decisions.extend([Ok(Decision::Pass), Ok(Decision::Enter(Vec::new()))]);
    bench.drain();
    assert_eq!(bench.log.turns()[0].steps, 2);
}

/// Row 39, X-41, scenarios 81 and 82: a concluded turn goes on for a steer only.
#[test]
fn a_tool_concludes_the_turn() {
    for steered in [false, true] {
        let mut bench = Bench::new(&["m1"]);
        bench.concludes = true;
        bench.answers.push_back(calls(&["a"]));
        bench.wake();
        let token = bench.until("batch");
        if steered {
            bench.queue("s1", Origin::Steer);
        }
        let calls = bench.log.open_turn().unwrap().step.as_ref().unwrap().settled.as_ref().unwrap().calls.clone();
        let seq = bench.log_call(Turn(1), Step(1), &calls[0]);
        bench.commit(vec![sample::result(1, 1, "a", seq.0, None)]);
        bench.feed(Input::BatchDone { token, concluded: true, aborted: false, view: bench.view() });
        bench.run();
        assert_eq!(bench.reason(), TurnReason::Completed);
        assert_eq!(bench.log.turns()[0].steps, if steered { 2 } else { 1 });
    }
}

/// Row 36, scenarios 68 and 79: a steer goes on with the turn, an injected item rides along and forces nothing.
#[test]
fn steers_go_on_and_injections_ride_along() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let token = bench.until("dispatch");
    bench.queue("i1", Origin::Inject);
    let input = bench.settled(token, says("One."));
    bench.feed(input);
    bench.run();
    assert_eq!(bench.log.turns()[0].steps, 1);
    assert_eq!(bench.log.next_step().len(), 1);
    bench.queue("s1", Origin::Steer);
    bench.drain();
    assert_eq!(bench.log.turns()[1].steps, 1);
    assert!(bench.log.next_step().is_empty());
}

/// Row 36, scenario 69: the stopping chain may steer, and runs again before the end.
#[test]
fn the_stopping_chain_steers() {
    let mut bench = Bench::new(&["m1"]);
    bench.steers.push_back("s1");
    bench.drain();
    assert_eq!(bench.log.turns()[0].steps, 2);
    assert_eq!(bench.trace.iter().filter(|entry| *entry == "stopping").count(), 2);
}

/// Row 40, T-16, scenario 83.
#[test]
fn the_stopping_chain_steers_for_ever() {
    let mut bench = Bench::new(&["m1"]);
    bench.steers.extend(["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10"]);
    bench.wake();
    bench.until("turn/end");
    assert_eq!(bench.log.open_turn().unwrap().steps, 9);
    assert_eq!(bench.log.next_step().len(), 1, "what cannot go on with the turn stays pending");
}

/// Row 40, T-20, scenario 84.
#[test]
fn the_step_limit_ends_the_turn() {
    let mut bench = Bench::new(&["m1", "m2"]);
    bench.rules.max_steps = Some(3);
    bench.answers.extend([calls(&["a"]), calls(&["a"]), calls(&["a"])]);
    bench.drain();
    assert_eq!(bench.log.turns()[0].steps, 3);
    assert!(matches!(&bench.ended[0].1, TurnReason::Error { failure } if failure.code == code::STEP_LIMIT));
    assert_eq!(bench.ended[1].1, TurnReason::Completed);
}

/// T-20: a turn that ends by itself at the limit is complete.
#[test]
fn the_step_limit_does_not_matter_to_a_turn_that_is_done() {
    let mut bench = Bench::new(&["m1"]);
    bench.rules.max_steps = Some(1);
    bench.drain();
    assert_eq!(bench.reason(), TurnReason::Completed);
}

/// L-18, I-32, scenario 127: the output limit sticks to the turn.
#[test]
fn the_output_limit_sticks() {
    let mut bench = Bench::new(&["m1"]);
    let blocks = vec![Block::text("And then")];
    let outcome = Outcome::Finished { blocks, finish: FinishLabel::MaxTokens };
    bench.answers.push_back((outcome, stream("And then", None)));
    bench.steers.push_back("s1");
    bench.drain();
    assert_eq!(bench.log.turns()[0].steps, 2);
    assert_eq!(bench.reason(), TurnReason::MaxTokens);
}

/// Row 56: whoever is active needs no wake.
#[test]
fn a_wake_of_an_active_machine_does_nothing() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    bench.until("dispatch");
    bench.wake();
    assert!(bench.open.is_empty());
    assert_eq!(bench.machine.stale(), 0);
}

/// Row 57: answers to earlier questions, and answers of another kind, are dropped and counted.
#[test]
fn stale_answers_are_counted() {
    let mut bench = Bench::new(&["m1"]);
    bench.wake();
    let token = bench.until("dispatch");
    bench.feed(Input::Durable { token: Token(token.0 - 1), seq: Seq(0) });
    bench.feed(Input::Timer { token });
    bench.feed(Input::ClaimAnswered { token: Token(999), answer: ClaimStepAnswer::Nothing });
    assert_eq!(bench.machine.stale(), 3);
    assert!(bench.open.is_empty());
    let input = bench.settled(token, says("Fine."));
    bench.feed(input);
    bench.run();
    assert_eq!(bench.reason(), TurnReason::Completed);
}

/// Scenario 51: an image in the batch is a modality of its request.
#[test]
fn images_are_a_modality() {
    let mut bench = Bench::new(&["m1"]);
    let mut message = sample::message("m1", Role::User, "look");
    message.content.push(Block::Image { media_type: "image/png".into(), data: Some("AA==".into()), url: None });
    let batch = vec![BatchMessage { message, origin: Origin::Send, items: vec![sample::item_id("m1")] }];
    bench.decisions.push_back(Ok(Decision::Enter(batch)));
    bench.wake();
    while name_of(&bench.open[0]) != "prepare" {
        bench.answer();
    }
    let Effect::Prepare { modalities, .. } = &bench.open[0] else { panic!() };
    assert_eq!(modalities, &["text", "image"]);
}
