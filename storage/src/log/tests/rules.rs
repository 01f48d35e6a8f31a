//! One minimal violation for each rule of 2.5, against a valid base log; each names its rule.

use super::one_tool_turn;
use crate::{
    RawJson,
    event::*,
    ids::*,
    log::LogState,
    message::{Failure, Role},
    testing::sample::*,
};
use std::sync::Arc;

/// The rule, the log before, the append that breaks it.
type Row = (&'static str, fn() -> Sample, Vec<EventBody>);

pub(super) fn extend(mut log: Sample, batches: Vec<Vec<EventBody>>) -> Sample {
    for batch in batches {
        log.push(batch).unwrap();
    }
    log
}

/// m1 and m2 wait for turns, s1 (steer) and i1 (inject) for steps.
fn waiting() -> Sample {
    extend(
        Sample::fresh(),
        vec![
            vec![queued("m1", Origin::Send)],
            vec![queued("m2", Origin::Send)],
            vec![queued("s1", Origin::Steer)],
            vec![queued("i1", Origin::Inject)],
        ],
    )
}

fn claimed_turn() -> Sample {
    extend(waiting(), vec![vec![turn_start(1), claimed(1, 1, 1, &["s1", "i1", "m1"])]])
}

fn in_step() -> Sample {
    extend(claimed_turn(), vec![vec![step_start(1, 1)]])
}

fn admission() -> Vec<EventBody> {
    vec![
        system("sys", "Be kind.", SurfaceOp::Append),
        user("s1", Origin::Steer),
        user("i1", Origin::Inject),
        user("m1", Origin::Send),
        header(HeaderReason::Initial),
        context(1000),
    ]
}

fn admitted() -> Sample {
    extend(in_step(), vec![admission()])
}

fn failed_once() -> Sample {
    extend(admitted(), vec![vec![attempt(1, 1, 1, AttemptOutcome::Failed)]])
}

/// The response asks for a and b; both are logged, a first. Their seqs are 12 and 13.
fn called() -> Sample {
    extend(admitted(), vec![vec![answered(1, 1, 1, "", &["a", "b"])], vec![call(1, 1, "a")], vec![call(1, 1, "b")]])
}

const A: u64 = 15;
const B: u64 = 16;

pub(super) fn results_owed() -> Sample {
    extend(called(), vec![vec![result(1, 1, "a", A, None)], vec![result(1, 1, "b", B, None)], vec![step_end(1, 1)]])
}

fn cut() -> Sample {
    extend(admitted(), vec![vec![cut_answer(1, 1, 1, "Hel")]])
}

/// A closed turn; m2 waits. The surface is system, s1, i1, m1, answer, results a and b, answer.
pub(super) fn closed() -> Sample {
    extend(
        results_owed(),
        vec![
            vec![step_start(1, 2)],
            vec![answered(1, 2, 1, "Noon.", &[])],
            vec![step_end(1, 2)],
            vec![turn_end(1, TurnReason::Completed, 2, &[])],
        ],
    )
}

fn aborted() -> TurnReason {
    TurnReason::Aborted { cause: Cause::User }
}

fn failed() -> TurnReason {
    TurnReason::Error { failure: Failure::new("SERVER", "overloaded") }
}

fn rejected() -> TurnReason {
    TurnReason::Rejected { reason: "policy".into() }
}

fn op(body: EventBody, surface: SurfaceOp) -> EventBody {
    EventBody { surface: Some(surface), ..body }
}

pub(super) fn plugin(name: &str, ignorable: bool) -> EventBody {
    let data = RawJson::parse("{}").unwrap();
    EventBody { ignorable, ..EventData::Plugin(PluginEvent { type_name: name.into(), data }).into() }
}

fn moved(ids: &[&str]) -> EventBody {
    InboxMoved { ids: ids.iter().map(|id| item_id(id)).collect() }.into()
}

fn requeued(id: &str, said: &str, target: Target) -> EventBody {
    let message = message(id, Role::User, said);
    InboxQueued { item: Item { target, message, ..item(id, Origin::Send) }, position: None }.into()
}

fn hot_header() -> EventBody {
    let mut body = header(HeaderReason::Initial);
    if let EventData::RequestHeader(data) = &mut body.data {
        data.config.temperature = Some(f64::NAN);
    }
    body
}

fn pruned(call: &str, at: (u32, u32), cites: &[u64]) -> EventBody {
    let body = result(1, 1, call, 0, None).citing(cites.iter().map(|seq| Seq(*seq)).collect());
    op(body, SurfaceOp::Replace { start: at.0, end: at.1 })
}

/// What must be refused.
fn table() -> Vec<Row> {
    let mut rows = boundary_rows();
    rows.extend(inbox_rows());
    rows.extend(request_rows());
    rows.extend(surface_rows());
    rows.extend(tool_rows());
    rows
}

fn boundary_rows() -> Vec<Row> {
    let rows: Vec<Row> = vec![
        ("grammar", closed, vec![]),
        ("I-2", claimed_turn, vec![turn_start(2), claimed(2, 1, 1, &["m2"])]),
        ("I-2", in_step, vec![step_start(1, 2)]),
        ("I-2", closed, vec![step_start(2, 1)]),
        ("I-3", closed, vec![turn_start(3), claimed(3, 1, 1, &["m2"])]),
        ("I-3", claimed_turn, vec![step_start(1, 2)]),
        ("I-3", admitted, vec![answered(1, 1, 2, "x", &[])]),
        ("I-3", waiting, vec![turn_start(1), claimed(1, 2, 1, &["s1"])]),
        ("I-3", waiting, vec![turn_start(1), claimed(1, 1, 2, &["s1"])]),
        ("I-4", admitted, vec![turn_end(1, aborted(), 1, &[])]),
        ("I-4", admitted, vec![step_end(1, 2)]),
        ("I-4", claimed_turn, vec![step_end(1, 1)]),
        ("I-4", claimed_turn, vec![turn_end(2, aborted(), 0, &["s1", "i1", "m1"])]),
        ("I-5", claimed_turn, vec![turn_end(1, aborted(), 1, &["s1", "i1", "m1"])]),
        ("I-6", claimed_turn, vec![turn_end(1, TurnReason::Interrupted, 0, &["s1", "i1", "m1"])]),
        ("I-6", claimed_turn, vec![restored(&["s1"], 1)]),
        ("I-6", claimed_turn, vec![opened(OpenReason::Repair, 2), turn_end(1, aborted(), 0, &["s1", "i1", "m1"])]),
        ("I-11", claimed_turn, vec![turn_end(1, aborted(), 0, &["s1", "i1"])]),
        ("I-11", admitted, vec![step_end(1, 1), turn_end(1, aborted(), 1, &["m1"])]),
        ("I-13", claimed_turn, vec![turn_end(1, rejected(), 0, &["s1", "i1", "m1"])]),
        ("I-13", claimed_turn, vec![blocked(1, &["m1"]), turn_end(1, aborted(), 0, &["s1", "i1", "m1"])]),
        ("I-13", in_step, vec![blocked(1, &["m1"]), turn_end(1, rejected(), 0, &["s1", "i1", "m1"])]),
        ("I-11", claimed_turn, vec![blocked(1, &["m2"]), turn_end(1, rejected(), 0, &["s1", "i1", "m1"])]),
        ("I-33", claimed_turn, vec![opened(OpenReason::Resume, 2)]),
        ("W-2", closed, vec![opened(OpenReason::Resume, 1)]),
        ("Y-1", claimed_turn, vec![opened(OpenReason::Fork, 2)]),
        ("grammar", closed, vec![opened(OpenReason::Fresh, 2)]),
        ("grammar", closed, vec![opened(OpenReason::Repair, 2)]),
        ("grammar", waiting, vec![turn_start(1)]),
        ("grammar", waiting, vec![turn_start(1), queued("m9", Origin::Send), claimed(1, 1, 1, &["m1"])]),
        ("grammar", claimed_turn, vec![blocked(1, &["m1"])]),
        ("grammar", claimed_turn, vec![opened(OpenReason::Repair, 2)]),
        (
            "grammar",
            claimed_turn,
            vec![opened(OpenReason::Repair, 2), turn_end(1, TurnReason::Interrupted, 0, &["s1", "i1", "m1"])],
        ),
        ("I-11", claimed_turn, repaired(&["s1", "i1"], 1)),
        ("I-11", claimed_turn, repaired(&["i1", "s1", "m1"], 1)),
        ("I-7", claimed_turn, repaired(&["s1", "i1", "m1"], 2)),
        ("2.3", failed_once, vec![step_end(1, 1), turn_end(1, TurnReason::Completed, 1, &[])]),
    ];
    rows
}

fn repaired(ids: &[&str], count: u32) -> Vec<EventBody> {
    vec![
        opened(OpenReason::Repair, 2),
        turn_end(1, TurnReason::Interrupted, 0, &["s1", "i1", "m1"]),
        restored(ids, count),
    ]
}

fn inbox_rows() -> Vec<Row> {
    let all = |cause| removed(&["m1"], cause);
    let rows: Vec<Row> = vec![
        ("I-7", waiting, vec![queued("m1", Origin::Send)]),
        ("I-7", claimed_turn, vec![queued("m1", Origin::Send)]),
        ("I-7", claimed_turn, vec![all(RemoveCause::Removed)]),
        ("I-7", waiting, vec![turn_start(1), claimed(1, 1, 1, &["nobody"])]),
        ("I-7", waiting, vec![turn_start(1), claimed(1, 1, 1, &["s1", "s1"])]),
        ("I-7", waiting, vec![removed(&["m1", "m1"], RemoveCause::Canceled)]),
        ("I-7", waiting, vec![InboxEdited { id: item_id("x"), message: message("x", Role::User, "x") }.into()]),
        ("I-7", waiting, vec![InboxEdited { id: item_id("m1"), message: message("m2", Role::User, "x") }.into()]),
        ("I-7", waiting, vec![moved(&["m2"])]),
        ("I-7", waiting, vec![moved(&["m2", "s1"])]),
        ("I-7", waiting, vec![all(RemoveCause::Canceled), requeued("m1", "m1", Target::NextStep)]),
        ("I-7", waiting, vec![all(RemoveCause::Removed), requeued("m1", "other", Target::NextStep)]),
        ("I-7", waiting, vec![InboxQueued { item: item("m3", Origin::Send), position: Some(9) }.into()]),
        ("I-7", waiting, vec![same_message(requeued("new", "x", Target::NextTurn), "m1")]),
        ("I-8", waiting, vec![turn_start(1), claimed(1, 1, 1, &["s1", "i1", "m1", "m2"])]),
        ("I-8", results_owed, vec![claimed(1, 2, 2, &["m2"])]),
        ("I-9", waiting, vec![turn_start(1), claimed(1, 1, 1, &["s1", "i1", "m2"])]),
        ("I-9", waiting, vec![turn_start(1), claimed(1, 1, 1, &["i1", "m1"])]),
        ("I-9", waiting, vec![turn_start(1), claimed(1, 1, 1, &["i1", "s1"])]),
        ("grammar", waiting, vec![turn_start(1), claimed(1, 1, 1, &["m1", "s1"])]),
        ("grammar", waiting, vec![turn_start(1), claimed(1, 1, 1, &[])]),
        ("T-1", only_injected, vec![turn_start(1), claimed(1, 1, 1, &["i1"])]),
        ("I-2", waiting, vec![claimed(1, 1, 1, &["s1"])]),
        ("grammar", waiting, vec![assistant_item("x")]),
    ];
    rows
}

fn only_injected() -> Sample {
    extend(Sample::fresh(), vec![vec![queued("i1", Origin::Inject)]])
}

fn same_message(mut body: EventBody, id: &str) -> EventBody {
    if let EventData::InboxQueued(data) = &mut body.data {
        data.item.message.id = MessageId::trusted(id);
    }
    body
}

fn assistant_item(id: &str) -> EventBody {
    let message = message(id, Role::Assistant, "I said");
    InboxQueued { item: Item { message, ..item(id, Origin::Send) }, position: None }.into()
}

fn request_rows() -> Vec<Row> {
    let max = |calls: &[&str]| {
        let data = AssistantMessage { finish: FinishLabel::MaxTokens, ..answer(1, 1, 1, "x", calls) };
        EventBody::appended(data.into())
    };
    let other_route = |provider: &str, model: &str| {
        let data = AssistantMessage { provider: provider.into(), model: model.into(), ..answer(1, 1, 1, "x", &[]) };
        EventBody::appended(data.into())
    };
    let whole_cut = AssistantMessage { interrupted: Some(true), ..answer(1, 1, 1, "x", &[]) };
    let cut_calls =
        AssistantMessage { finish: FinishLabel::Aborted, interrupted: Some(true), ..answer(1, 1, 1, "x", &["a"]) };
    let rows: Vec<Row> = vec![
        ("I-12", failed_once, vec![user("m1", Origin::Send)]),
        ("grammar", admitted, vec![user("m1", Origin::Send)]),
        ("I-2", claimed_turn, vec![user("m1", Origin::Send)]),
        ("grammar", in_step, vec![user("m1", Origin::Send), system("sys", "x", SurfaceOp::Append)]),
        ("grammar", in_step, vec![header(HeaderReason::Initial), user("m1", Origin::Send)]),
        ("grammar", in_step, vec![user("m1", Origin::Send), plugin("session/title", true), user("s1", Origin::Steer)]),
        ("I-11", in_step, vec![user("m2", Origin::Send)]),
        ("I-11", in_step, vec![user("m1", Origin::Send), user("m1", Origin::Send)]),
        ("I-25", in_step, vec![answered(1, 1, 1, "x", &[])]),
        ("I-25", in_step, vec![header(HeaderReason::Resume)]),
        ("I-25", failed_once, vec![header(HeaderReason::Change)]),
        ("I-25", failed_once, vec![header(HeaderReason::Initial)]),
        ("M-32", failed_once, vec![context(1000)]),
        ("2.1", in_step, vec![hot_header()]),
        ("I-26", admitted, vec![EventBody::appended(whole_cut.into())]),
        ("I-26", admitted, vec![EventBody::appended(cut_calls.into())]),
        ("I-26", admitted, vec![cut_answer(1, 1, 1, " \n")]),
        ("I-26", cut, vec![step_end(1, 1), turn_end(1, failed(), 1, &[])]),
        ("I-14", cut, vec![call(1, 1, "a")]),
        ("I-14", failed_once, vec![call(1, 1, "a")]),
        ("I-29", failed_once, vec![retry_started("r1")]),
        ("I-29", failed_once, vec![retry("r1", 1, 1, 1, 2, 5)]),
        ("I-29", failed_once, vec![retry("r1", 1, 1, 1, 1, 0)]),
        ("I-29", failed_once, vec![retry("r1", 1, 1, 2, 1, 5)]),
        ("I-29", failed_once, vec![retry("r1", 1, 1, 1, 1, 5), retry("r1", 1, 1, 1, 2, 5)]),
        ("I-29", failed_once, vec![retry("r1", 1, 1, 1, 1, 5), answered(1, 1, 2, "x", &[])]),
        ("I-29", failed_once, vec![retry("r1", 1, 1, 1, 1, 5), retry_started("r1"), retry_started("r1")]),
        ("grammar", admitted, vec![retry("r1", 1, 1, 1, 1, 5)]),
        ("I-30", admitted, vec![other_route("script", "other")]),
        ("I-30", admitted, vec![other_route("other", "m")]),
        ("I-32", admitted, vec![max(&["a"])]),
        ("I-32", admitted, vec![max(&[]), step_end(1, 1), turn_end(1, TurnReason::Completed, 1, &[])]),
        ("I-32", closed_step, vec![turn_end(1, TurnReason::MaxTokens, 1, &[])]),
        ("grammar", cut, vec![answered(1, 1, 2, "x", &[])]),
        ("I-34", waiting, vec![plugin("nobody/knows", true)]),
        ("I-34", waiting, vec![plugin("session/title", false)]),
        ("2.1", waiting, vec![queued("m9", Origin::Send).citing(vec![Seq(99)])]),
        ("2.1", waiting, vec![queued("m9", Origin::Send).citing(vec![Seq(1), Seq(1)])]),
        ("2.1", waiting, vec![EventBody { ignorable: true, ..queued("m9", Origin::Send) }]),
        ("2.3", admitted, vec![no_reason()]),
    ];
    rows
}

fn no_reason() -> EventBody {
    let mut body = attempt(1, 1, 1, AttemptOutcome::Failed);
    if let EventData::AssistantAttempt(data) = &mut body.data {
        data.failure = None;
    }
    body
}

fn closed_step() -> Sample {
    extend(admitted(), vec![vec![answered(1, 1, 1, "x", &[])], vec![step_end(1, 1)]])
}

fn surface_rows() -> Vec<Row> {
    let replace = |start, end| SurfaceOp::Replace { start, end };
    let rows: Vec<Row> = vec![
        ("I-21", waiting, vec![EventBody { surface: Some(SurfaceOp::Append), ..queued("m9", Origin::Send) }]),
        ("I-21", in_step, vec![EventBody { surface: None, ..user("m1", Origin::Send) }]),
        ("I-21", in_step, vec![op(user("m1", Origin::Send), SurfaceOp::Prepend)]),
        ("I-21", admitted, vec![op(answered(1, 1, 1, "x", &[]), replace(1, 1))]),
        ("I-21", closed, vec![summary_of(1, 99, &[])]),
        ("I-21", closed, vec![summary_of(3, 2, &[])]),
        // Nodes: 0 system 8, 1 to 3 users 9 10 11, 4 answer 14, 5 and 6 results 17 18, 7 answer.
        ("I-21", closed, vec![summary_of(1, 2, &[9])]),
        ("I-21", closed, vec![summary_of(1, 4, &[9, 10, 11, 14])]),
        ("I-21", closed, vec![summary_of(1, 5, &[9, 10, 11, 14, 17])]),
        ("I-21", closed, vec![summary_of(5, 6, &[17, 18])]),
        ("I-22", closed, vec![summary_of(0, 1, &[8, 9])]),
        ("I-22", failed_once, vec![system("sys2", "New.", SurfaceOp::Append)]),
        ("I-22", failed_once, vec![system("sys2", "New.", SurfaceOp::Prepend)]),
        ("I-22", failed_once, vec![system("sys2", "New.", replace(1, 1)).citing(vec![Seq(9)])]),
        ("I-21", failed_once, vec![system("sys2", "New.", replace(0, 0))]),
        ("M-20", results_owed, vec![summary_of(1, 3, &[9, 10, 11])]),
        ("grammar", admitted, vec![summary_of(1, 1, &[9])]),
        ("I-23", closed, vec![pruned("a", (6, 6), &[18])]),
        ("I-23", closed, vec![pruned("a", (5, 6), &[17, 18])]),
        ("I-23", closed, vec![pruned("a", (4, 4), &[14])]),
        ("I-21", closed, vec![pruned("a", (5, 5), &[])]),
    ];
    rows
}

fn tool_rows() -> Vec<Row> {
    let mut other_arguments = call(1, 1, "a");
    if let EventData::ToolCall(data) = &mut other_arguments.data {
        data.arguments = "{\"x\":1}".into();
    }
    let twice = AssistantMessage { ..answer(1, 1, 1, "", &["a", "a"]) };
    let rows: Vec<Row> = vec![
        ("I-14", one_tool_turn, vec![call(1, 1, "z")]),
        ("I-14", one_tool_turn, vec![other_arguments]),
        ("I-15", one_tool_turn, vec![call(1, 1, "b")]),
        ("I-15", called, vec![call(1, 1, "a")]),
        ("I-15", called, vec![result(1, 1, "b", B, None)]),
        ("I-15", called, vec![result(1, 1, "a", B, None)]),
        ("I-16", called, vec![result(1, 1, "a", A, None), result(1, 1, "a", A, None)]),
        ("I-16", called, vec![result(1, 1, "a", A, None), step_end(1, 1)]),
        ("I-17", one_tool_turn, vec![result(1, 1, "a", 9, None)]),
        ("I-17", one_tool_turn, vec![result(1, 1, "a", 9, Some("TOOL_NOT_STARTED"))]),
        (
            "I-17",
            one_tool_turn,
            vec![opened(OpenReason::Repair, 2), result(1, 1, "a", 9, Some("TOOL_OUTCOME_UNKNOWN"))],
        ),
        ("I-17", called, vec![opened(OpenReason::Repair, 2), result(1, 1, "a", A, None)]),
        ("I-4", called, vec![result(1, 2, "a", A, None)]),
        ("I-18", admitted, vec![EventBody::appended(twice.into())]),
    ];
    rows
}

/// Scenario 218 among others: every ◆ rule refuses its minimal violation, changes nothing, and is named.
#[test]
fn each_rule_refuses_its_violation() {
    for (index, (rule, base, batch)) in table().into_iter().enumerate() {
        let mut log = base();
        let before = format!("{:?}", log.state);
        let refused = log.push(batch.clone()).expect_err(&format!("row {index}, {rule}: {batch:#?}"));
        assert_eq!(refused.rule, rule, "row {index}: {refused}\n{batch:#?}");
        assert_eq!(format!("{:?}", log.state), before, "row {index}");
    }
}

/// The table speaks of every rule that is checked before appends.
#[test]
fn no_rule_is_left_out() {
    let rows: std::collections::BTreeSet<_> = table().into_iter().map(|(rule, _, _)| rule).collect();
    for number in [2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 21, 22, 23, 25, 26, 29, 30, 32, 33, 34] {
        let rule = format!("I-{number}");
        assert!(rows.contains(rule.as_str()), "{rule} has no row");
    }
}

/// I-1; the first event of a log.
#[test]
fn places_are_checked_when_read() {
    let log = closed();
    let mut events = log.events();
    events.remove(3);
    let refused = LogState::replay(SessionId::trusted("s"), &events).unwrap_err();
    assert_eq!((refused.rule, refused.seq), ("I-1", Seq(4)));
    let empty = LogState::empty(SessionId::trusted("s"));
    assert_eq!(empty.stage(vec![queued("m", Origin::Send)], 0).unwrap_err().rule, "grammar");
    assert_eq!(empty.stage(vec![opened(OpenReason::Resume, 1)], 0).unwrap_err().rule, "grammar");
}

/// I-20, where the cap is known.
#[test]
fn too_many_open_calls() {
    let mut log = one_tool_turn();
    log.state = log.state.with_max_parallel(1);
    log.push(vec![call(1, 1, "a")]).unwrap();
    assert_eq!(log.push(vec![call(1, 1, "b")]).unwrap_err().rule, "I-20");
}

/// I-34, V-4: a reader skips what it may skip, and only that.
#[test]
fn unknown_types_when_read() {
    let log = closed();
    let read = |body: EventBody| log.state.apply(&[Arc::new(Event { seq: log.state.next_seq(), time_ms: 0, body })]);
    assert!(read(plugin("nobody/knows", true)).is_ok());
    assert_eq!(read(plugin("nobody/knows", false)).unwrap_err().rule, "I-34");
    assert_eq!(read(plugin("turn/start", true)).unwrap_err().rule, "I-34");
}

/// Z2: a move is one append and keeps the id; behind the append the id is gone for good.
#[test]
fn moves_and_withdrawn_ids() {
    let mut log = waiting();
    log.push(vec![removed(&["m1"], RemoveCause::Removed), requeued("m1", "m1", Target::NextStep)]).unwrap();
    assert_eq!(log.state.next_step().last().map(|p| p.item.id.clone()), Some(item_id("m1")));
    log.push(vec![removed(&["m2"], RemoveCause::Removed)]).unwrap();
    assert_eq!(log.push(vec![requeued("m2", "m2", Target::NextTurn)]).unwrap_err().rule, "I-7");
    // The message may come again as another item.
    log.push(vec![same_message(requeued("m2.2", "m2", Target::NextTurn), "m2")]).unwrap();
    assert_eq!(log.state.item_of_message(&MessageId::trusted("m2")), Some(&item_id("m2.2")));
}

/// Y-3: a fork forgets what waited in its parent, goes on counting turns, and logs a header{resume}.
#[test]
fn forks_begin_without_input() {
    let mut log = closed();
    log.push(vec![opened(OpenReason::Fork, 2)]).unwrap();
    assert!(log.state.next_turn().is_empty() && log.state.next_step().is_empty());
    log.push(vec![queued("n1", Origin::Send)]).unwrap();
    log.push(vec![turn_start(2), claimed(2, 1, 1, &["n1"])]).unwrap();
    log.push(vec![step_start(2, 1)]).unwrap();
    log.push(vec![user("n1", Origin::Send), header(HeaderReason::Resume)]).unwrap();
}
