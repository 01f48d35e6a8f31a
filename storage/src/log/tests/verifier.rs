//! What only the offline verifier sees (I-10, I-19, I-24, I-27, I-31), and how it goes on behind a finding.

use super::rules::{closed, extend, plugin, results_owed};
use crate::{RawJson, event::*, ids::*, log::verify::Verifier, testing::sample::*};
use std::sync::Arc;

/// Checks the events of `log`, changed by `change`, with the offline rules.
fn verified(log: &Sample, change: impl Fn(&mut EventBody)) -> Vec<&'static str> {
    let mut verifier = Verifier::new(SessionId::trusted("s"), Some(10));
    for event in log.events() {
        let mut event = (*event).clone();
        change(&mut event.body);
        verifier.event(&Arc::new(event));
    }
    verifier.finish().into_iter().map(|finding| finding.rule).collect()
}

/// I-19, with the class of Z13.
#[test]
fn an_exclusive_call_is_alone() {
    let log = results_owed();
    assert_eq!(verified(&log, |_| {}), Vec::<&str>::new());
    let class = |class: &str| {
        let meta = RawJson::parse(&format!("{{\"class\":{class:?}}}")).unwrap();
        move |body: &mut EventBody| {
            if let EventData::ToolResult(data) = &mut body.data {
                data.meta = Some(meta.clone());
            }
        }
    };
    assert_eq!(verified(&log, class("parallel")), Vec::<&str>::new());
    assert_eq!(verified(&log, class("exclusive")), ["I-19", "I-19"]);
}

/// I-24.
#[test]
fn compaction_brackets() {
    let base = closed();
    let start = || vec![plugin("compaction/start", false)];
    let end = || vec![plugin("compaction/end", false)];
    let check = |batches: Vec<Vec<EventBody>>| verified(&extend(base.clone(), batches), |_| {});
    assert_eq!(check(vec![start(), end(), start()]), Vec::<&str>::new());
    assert_eq!(check(vec![end()]), ["I-24"]);
    assert_eq!(check(vec![start(), start()]), ["I-24"]);
    assert_eq!(check(vec![start(), vec![opened(OpenReason::Resume, 2)], start(), end()]), Vec::<&str>::new());
    let summaries = vec![start(), vec![summary_of(1, 1, &[9])], vec![summary_of(2, 2, &[10])], end()];
    assert_eq!(check(summaries), ["I-24"]);
}

/// I-27: an attempt keeps the digest of what was asked.
#[test]
fn digests_are_recomputed() {
    let wrong = verified(&closed(), |body| {
        if let EventData::AssistantMessage(data) = &mut body.data {
            data.request_digest = Digest([7; 32]);
        }
    });
    assert_eq!(wrong, ["I-27", "I-27"]);
    // What the model read is part of it.
    let edited = verified(&closed(), |body| {
        if let EventData::ToolResult(data) = &mut body.data {
            data.message.content.clear();
        }
    });
    assert_eq!(edited, ["I-27"]);
}

/// I-31.
#[test]
fn records_fold_to_their_messages() {
    use crate::chunk::{BlockKind, Chunk, Finish};
    let recorded = |text: &str, finish: Option<Finish>| {
        let text = text.to_owned();
        move |body: &mut EventBody| {
            if let EventData::AssistantMessage(data) = &mut body.data
                && data.step == Step(2)
            {
                data.stream.push(0, Chunk::BlockStart { index: 0, kind: BlockKind::Text });
                data.stream.push(1, Chunk::TextDelta { index: 0, text: text.clone() });
                data.stream.push(2, Chunk::BlockEnd { index: 0 });
                if let Some(finish) = finish.clone() {
                    data.stream.push(3, Chunk::Finish { finish });
                }
            }
        }
    };
    assert_eq!(verified(&closed(), recorded("Noon.", Some(Finish::Stop))), Vec::<&str>::new());
    assert_eq!(verified(&closed(), recorded("Night.", Some(Finish::Stop))), ["I-31"]);
    assert_eq!(verified(&closed(), recorded("Noon.", None)), ["I-31"]);
}

/// One bad event is one finding; the verifier goes on.
#[test]
fn the_verifier_goes_on() {
    let log = closed();
    let mut verifier = Verifier::new(SessionId::trusted("s"), None);
    let mut seen = 0;
    for event in log.events() {
        verifier.event(&event);
        seen += 1;
        if seen == 5 {
            let body = plugin("nobody/knows", false);
            let bad = Event { seq: verifier.state().next_seq(), time_ms: 0, body };
            verifier.event(&Arc::new(bad));
        }
    }
    let findings = verifier.finish();
    assert_eq!(findings[0].rule, "I-34");
    assert!(findings[0].to_string().contains("session s: event 5 breaks I-34"));
}

/// B-3: a file that ends inside of an append is no log, wherever in it the end lies.
#[test]
fn a_cut_append_is_found() {
    let mut log = extend(Sample::fresh(), vec![vec![queued("m1", Origin::Send)]]);
    log.push(vec![turn_start(1), claimed(1, 1, 1, &["m1"])]).unwrap();
    let plan = crate::log::repair::plan(&log.state, Epoch(2), 3).unwrap();
    log.push(plan.events).unwrap();
    let events = log.events();
    let borders: Vec<usize> = log
        .batches
        .iter()
        .scan(0, |at, batch| {
            *at += batch.len();
            Some(*at)
        })
        .collect();
    for cut in 1..=events.len() {
        let mut verifier = Verifier::new(SessionId::trusted("s"), None);
        events[..cut].iter().for_each(|event| verifier.event(event));
        assert_eq!(verifier.finish().is_empty(), borders.contains(&cut), "cut behind {cut} events");
    }
}
