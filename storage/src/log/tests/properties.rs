//! What holds for every log that the small driver can make.

use crate::{
    event::*,
    ids::*,
    log::{LogState, repair, request, verify::Verifier},
    testing::logs::{MAX_PARALLEL, random_log},
};
use proptest::prelude::*;
use std::sync::Arc;

/// Everything of a state that follows from the log.
fn facts(state: &LogState) -> String {
    format!("{state:?}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Property 252, I-27, I-28, I-31, I-35: every prefix of appends is an open log; deriving from it never panics. M-8: equal logs, equal
    /// bytes. Property 262: folding on is folding from zero.
    #[test]
    fn every_prefix_is_a_log(seed in any::<u64>(), appends in 1..120_usize) {
        let log = random_log(seed, appends);
        let mut state = LogState::empty(SessionId::trusted("s"));
        let mut events: Vec<Arc<Event>> = Vec::new();
        let mut verifier = Verifier::new(SessionId::trusted("s"), Some(MAX_PARALLEL));
        for batch in &log.batches {
            state = state.apply(batch).unwrap();
            prop_assert!(state.at_border() || batch.len() == 1 || matches!(batch[0].body.data,
                EventData::SystemMessage(_) | EventData::UserMessage(_) | EventData::RequestHeader(_)));
            events.extend(batch.iter().cloned());
            verifier.commit(batch);
            let messages = request::derive_messages(state.surface());
            prop_assert!(messages.iter().all(|message| message.view().is_some()));
        }
        prop_assert_eq!(verifier.finish(), vec![]);
        prop_assert_eq!(facts(&state.clone().with_max_parallel(MAX_PARALLEL)), facts(&log.state));
        let whole = LogState::replay(SessionId::trusted("s"), &events).unwrap();
        prop_assert_eq!(facts(&whole), facts(&state));
        let bytes = |state: &LogState| request::messages_json(&request::derive_messages(state.surface())).to_string();
        prop_assert_eq!(bytes(&whole), bytes(&state));
    }

    /// Property 254, I-35, B-10, B-11, B-19, Z10: repair closes everything, once, and from the log alone.
    #[test]
    fn repair_laws(seed in any::<u64>(), appends in 1..120_usize) {
        let log = random_log(seed, appends);
        let mut state = LogState::empty(SessionId::trusted("s"));
        for batch in &log.batches {
            state = state.apply(batch).unwrap();
            let epoch = Epoch(1_000);
            let Some(plan) = repair::plan(&state, epoch, 3) else {
                prop_assert!(state.open_turn().is_none());
                continue;
            };
            let again = repair::plan(&state.clone(), epoch, 3);
            prop_assert_eq!(Some(&plan), again.as_ref());
            let (repaired, _) = state.stage(plan.events, state.last_time_ms()).unwrap();
            prop_assert_eq!(repair::plan(&repaired, Epoch(1_001), 3), None);
            prop_assert_eq!(repair::opening(&repaired, Epoch(1_001)), None);
            prop_assert!(repaired.open_turn().is_none());
            prop_assert_eq!(repaired.last_time_ms(), state.last_time_ms());
        }
    }
}

/// The driver reaches what it is there for; a property over a corner that it never enters proves nothing.
#[test]
fn the_driver_gets_around() {
    let mut seen = std::collections::BTreeMap::new();
    for seed in 0..200 {
        let log = random_log(seed, 120);
        for event in log.events() {
            *seen.entry(event.body.data.type_name().to_owned()).or_insert(0_u32) += 1;
            if let Some(SurfaceOp::Replace { .. }) = event.body.surface {
                *seen.entry(format!("replace {}", event.body.data.type_name())).or_insert(0) += 1;
            }
        }
    }
    let wanted = CORE_TYPES.iter().copied().chain([
        "compaction/end",
        "replace user/message",
        "replace tool/result",
        "replace system/message",
    ]);
    for name in wanted {
        assert!(seen.get(name).is_some_and(|count| *count >= 20), "{name} is rare: {seen:#?}");
    }
}
