//! Derivation, digest and reconciliation (8.2 to 8.5).
#![allow(clippy::wildcard_enum_match_arm, reason = "looks for one type of event")]

use super::{Admission, canon::write_canonical, derive_messages, derive_request, messages_json, reconcile};
use crate::{
    RawJson,
    event::{
        Digest, EventBody, EventData, HeaderReason, RequestConfig, RequestHeader, SurfaceOp, SystemUpdate, ToolSpec,
        UserMessage,
    },
    ids::{MessageId, SessionId},
    message::{Block, Role},
    testing::{logs::Dice, sample::*},
};
use proptest::prelude::*;
use sha2::Digest as _;

fn spec(name: &str, schema: &str) -> ToolSpec {
    ToolSpec { name: name.into(), description: "does".into(), schema: RawJson::parse(schema).unwrap() }
}

fn wish(system: &str, tools: Vec<ToolSpec>, users: Vec<&str>) -> Admission {
    let user = |id: &str| UserMessage {
        message: message(id, Role::User, id),
        origin: crate::event::Origin::Send,
        items: vec![item_id(id)],
    };
    Admission {
        system: system.into(),
        system_id: MessageId::trusted("sys"),
        users: users.into_iter().map(user).collect(),
        config: config(),
        defaulted: vec![],
        tools,
        system_update: SystemUpdate::Replace,
        context_window: None,
        input_modalities: None,
    }
}

/// A log whose first step waits for its admission; m1 is claimed.
fn entered() -> Sample {
    let mut log = Sample::fresh();
    log.push(vec![queued("m1", crate::event::Origin::Send)]).unwrap();
    log.push(vec![turn_start(1), claimed(1, 1, 1, &["m1"])]).unwrap();
    log.push(vec![step_start(1, 1)]).unwrap();
    log
}

/// The same behind an admission and a failed attempt.
fn asked(admission: &Admission) -> Sample {
    let mut log = entered();
    log.push(reconcile(&log.state, admission)).unwrap();
    log.push(vec![attempt(1, 1, 1, crate::event::AttemptOutcome::Failed)]).unwrap();
    log
}

fn types(events: &[EventBody]) -> Vec<&str> {
    events.iter().map(|event| event.data.type_name()).collect()
}

fn header_of(events: &[EventBody]) -> Option<&RequestHeader> {
    events.iter().find_map(|event| match &event.data {
        EventData::RequestHeader(header) => Some(header),
        _ => None,
    })
}

/// Z12: the canonical text, and its hash.
#[test]
fn golden_digest() {
    let schema = r#"{"type":"object","properties":{"b":{"z":1,"a":2.50}}}"#;
    let mut admission = wish("Be kind.", vec![spec("time", schema)], vec!["m1"]);
    admission.config.temperature = Some(0.5);
    admission.config.stop = Some(vec!["\n".into()]);
    let mut log = entered();
    log.push(reconcile(&log.state, &admission)).unwrap();
    log.push(vec![answered(1, 1, 1, "", &["a"])]).unwrap();
    let call = log.push(vec![call(1, 1, "a")]).unwrap();
    log.push(vec![result(1, 1, "a", call, Some("DENIED"))]).unwrap();
    let request = derive_request(&log.state).unwrap();
    let mut text = Vec::new();
    write_canonical(&mut text, &request.header.config, &request.messages, &request.header.tools).unwrap();
    let expected = concat!(
        r#"{"config":{"model":"m","provider":"script","stop":["\n"],"temperature":0.5},"messages":["#,
        r#"{"content":[{"text":"Be kind.","type":"text"}],"role":"system"},"#,
        r#"{"content":[{"text":"m1","type":"text"}],"role":"user"},"#,
        r#"{"content":[{"arguments":"{}","call_id":"a","name":"time","type":"tool_call"}],"role":"assistant"},"#,
        r#"{"call_id":"a","content":[{"text":"noon","type":"text"}],"is_error":true,"role":"tool"}],"tools":["#,
        r#"{"description":"does","name":"time","schema":{"properties":{"b":{"a":2.5,"z":1}},"type":"object"}}]}"#,
    );
    assert_eq!(String::from_utf8(text).unwrap(), expected);
    assert_eq!(request.digest, Digest(sha2::Sha256::digest(expected).into()));
}

/// GET history: names and order; ids and sources are not in it.
#[test]
fn golden_history() {
    let log = crate::log::tests::one_tool_turn();
    let expected = concat!(
        r#"[{"role":"system","content":[{"type":"text","text":"Be kind."}]},"#,
        r#"{"role":"user","content":[{"type":"text","text":"m1"}]},"#,
        r#"{"role":"assistant","content":[{"type":"tool_call","call_id":"a","name":"time","arguments":"{}"},"#,
        r#"{"type":"tool_call","call_id":"b","name":"time","arguments":"{}"}]}]"#,
    );
    assert_eq!(messages_json(&derive_messages(log.state.surface())).to_string(), expected);
}

/// Z12: ids and sources are no part of a request.
#[test]
fn ids_do_not_change_the_digest() {
    let mut other = wish("Be kind.", vec![], vec!["m1"]);
    let first = derive_request(&asked(&other).state).unwrap().digest;
    other.system_id = MessageId::trusted("another");
    other.users[0].message.source = Some("somewhere".into());
    assert_eq!(derive_request(&asked(&other).state).unwrap().digest, first);
    other.users[0].message.content = vec![Block::text("m2")];
    assert_ne!(derive_request(&asked(&other).state).unwrap().digest, first);
}

/// M-2, M-3, M-7, scenario 223: empty responses and everything log-only are left out, cut ones are not.
#[test]
fn what_is_not_history() {
    let mut log = asked(&wish("", vec![], vec!["m1"]));
    log.push(vec![retry("r1", 1, 1, 1, 1, 5)]).unwrap();
    log.push(vec![retry_started("r1")]).unwrap();
    let mut empty = answer(1, 1, 2, "", &[]);
    empty.finish = crate::event::FinishLabel::MaxTokens;
    log.push(vec![EventBody::appended(empty.into())]).unwrap();
    let roles = |log: &Sample| {
        let messages = derive_messages(log.state.surface());
        messages_json(&messages).as_array().unwrap().iter().map(|m| m["role"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(roles(&log), ["\"user\""]);
    let mut cut = asked(&wish("Be kind.", vec![], vec!["m1"]));
    cut.push(vec![cut_answer(1, 1, 2, "Hel")]).unwrap();
    assert_eq!(roles(&cut), ["\"system\"", "\"user\"", "\"assistant\""]);
}

/// 8.3: nothing, append, prepend, replace, emptied.
#[test]
fn system_reconciliation() {
    let mut log = asked(&wish("", vec![], vec!["m1"]));
    assert!(reconcile(&log.state, &wish("", vec![], vec![])).is_empty());
    let op = |events: &[EventBody]| events[0].surface;
    let first = reconcile(&log.state, &wish("A", vec![], vec![]));
    assert_eq!((types(&first), op(&first)), (vec!["system/message"], Some(SurfaceOp::Prepend)));
    log.push(first).unwrap();
    log.push(vec![attempt(1, 1, 2, crate::event::AttemptOutcome::Failed)]).unwrap();
    assert!(reconcile(&log.state, &wish("A", vec![], vec![])).is_empty());
    let second = reconcile(&log.state, &wish("B", vec![], vec![]));
    assert_eq!(op(&second), Some(SurfaceOp::Replace { start: 0, end: 0 }));
    let generation = log.state.generation();
    log.push(second).unwrap();
    assert_eq!(log.state.generation(), generation, "M-24");
    log.push(vec![attempt(1, 1, 3, crate::event::AttemptOutcome::Failed)]).unwrap();
    let emptied = reconcile(&log.state, &wish("", vec![], vec![]));
    assert_eq!(op(&emptied), Some(SurfaceOp::Replace { start: 0, end: 0 }));
    log.push(emptied).unwrap();
    assert_eq!(derive_messages(log.state.surface()).len(), 1);
    log.push(vec![attempt(1, 1, 4, crate::event::AttemptOutcome::Failed)]).unwrap();
    let adding = Admission { system_update: SystemUpdate::Append, ..wish("C", vec![], vec![]) };
    let added = reconcile(&log.state, &adding);
    assert_eq!((types(&added), op(&added)), (vec!["system/message", "request/header"], Some(SurfaceOp::Append)));
    log.push(added).unwrap();
    log.push(vec![attempt(1, 1, 5, crate::event::AttemptOutcome::Failed)]).unwrap();
    assert!(reconcile(&log.state, &adding).is_empty(), "the newest system message is the live one");
}

/// M-31, M-32, scenarios 215 to 217.
#[test]
fn header_reasons() {
    let plain = || wish("", vec![spec("a", r#"{"x":1,"y":{"p":1,"q":2}}"#), spec("b", "{}")], vec![]);
    let first = reconcile(&entered().state, &plain());
    assert_eq!(types(&first), ["request/header", "request/context"]);
    assert_eq!(header_of(&first).map(|header| header.reason), Some(HeaderReason::Initial));
    let mut log = asked(&Admission { users: wish("", vec![], vec!["m1"]).users, ..plain() });
    let noise = wish("", vec![spec("b", "{}"), spec("a", r#"{"y":{"q":2,"p":1}, "x":1}"#)], vec![]);
    assert!(reconcile(&log.state, &noise).is_empty(), "order is no difference");
    let less = reconcile(&log.state, &wish("", vec![spec("a", "{}")], vec![]));
    assert_eq!(header_of(&less).map(|header| header.reason), Some(HeaderReason::Change));
    let hotter = Admission { config: RequestConfig { temperature: Some(1.0), ..config() }, ..plain() };
    assert_eq!(header_of(&reconcile(&log.state, &hotter)).map(|header| header.reason), Some(HeaderReason::Change));
    let wider = Admission { context_window: Some(5), ..plain() };
    assert_eq!(types(&reconcile(&log.state, &wider)), ["request/context"]);
    log.push(crate::log::repair::plan(&log.state, crate::ids::Epoch(2), 3).unwrap().events).unwrap();
    assert_eq!(header_of(&reconcile(&log.state, &plain())).map(|header| header.reason), Some(HeaderReason::Resume));
    assert_eq!(derive_request(&crate::log::LogState::empty(SessionId::trusted("s"))).map(|r| r.digest), None);
}

proptest! {
    /// Property 263: the order of registration does not reach the header.
    #[test]
    fn headers_are_canonical(seed in any::<u64>(), count in 0..8_usize) {
        let tools: Vec<ToolSpec> = (0..count).map(|i| spec(&format!("t{i}"), "{\"type\":\"object\"}")).collect();
        let mut shuffled = tools.clone();
        let mut dice = Dice::new(seed);
        for i in (1..shuffled.len()).rev() {
            shuffled.swap(i, dice.roll(i as u32 + 1) as usize);
        }
        let mut one = wish("", tools, vec!["m1"]);
        let mut two = wish("", shuffled, vec!["m1"]);
        one.defaulted = vec!["stop".into(), "max_tokens".into()];
        two.defaulted = vec!["max_tokens".into(), "stop".into()];
        let log = entered();
        prop_assert_eq!(reconcile(&log.state, &one), reconcile(&log.state, &two));
        let again = Admission { users: vec![], ..two };
        prop_assert!(reconcile(&asked(&one).state, &again).is_empty());
    }
}
