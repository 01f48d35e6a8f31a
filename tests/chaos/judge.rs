//! What must hold once everything is quiet.

use super::{
    MESSAGES,
    town::{Death, Town},
};
use everturn_actors::system::{ActorKind, AgentHandle};
use everturn_storage::{
    event::{Event, EventData, TurnReason},
    ids::{CallId, MessageId, Seq, Step, Turn},
    log::{ItemFate, LogState, verify::Verifier},
    message::code,
};
use std::{collections::BTreeSet, sync::Arc};

/// A log and its fold.
struct Log {
    events: Vec<Arc<Event>>,
    state: LogState,
}

impl Town {
    /// One death of the first session; the others were not disturbed, unless the store died, which is everybody's.
    pub(crate) async fn judge(&self, death: Death) {
        for (n, handle) in self.handles.iter().enumerate() {
            let log = self.sound(handle).await;
            let openings = log.openings();
            let failed = log.failed();
            assert!(failed.len() <= 1, "{}: {n}: {failed:?}", self.case);
            match death {
                Death::Store | Death::ClockPanic => assert!(openings <= 2, "{}: {n}", self.case),
                Death::Kill(ActorKind::Pool) => {
                    assert_eq!(openings, 1, "{}: {n}: the pool alone is replaced", self.case)
                }
                Death::Kill(_) | Death::ProfilePanic if n == 0 => assert!(openings <= 2, "{}", self.case),
                Death::Kill(_) | Death::ProfilePanic => {}
            }
            if n > 0 && matches!(death, Death::Kill(_) | Death::ProfilePanic) {
                assert_eq!((openings, failed), (1, vec![]), "{}: session {n} was disturbed", self.case);
            }
        }
        self.system.shutdown(std::time::Duration::from_secs(1)).await;
    }

    /// Many deaths anywhere.
    pub(crate) async fn judge_storm(&self, deaths: usize) {
        for handle in &self.handles {
            let log = self.sound(handle).await;
            assert!(log.openings() <= 1 + deaths, "{}", self.case);
            assert!(log.failed().len() <= deaths, "{}", self.case);
        }
        self.system.shutdown(std::time::Duration::from_secs(1)).await;
    }

    /// Scenario 213 and every rule of 2.5; each message once and in order; each body once; the last turn completed.
    async fn sound(&self, handle: &AgentHandle) -> Log {
        let case = &self.case;
        let log = self.read(handle).await;
        let sent: Vec<MessageId> = (0..MESSAGES)
            .map(|n| format!("m{n}"))
            .chain(["last".to_owned()])
            .map(|text| MessageId::trusted(format!("{}-{text}", handle.session())))
            .collect();
        assert_eq!(log.queued(), sent, "{case}: accepted");
        assert_eq!(log.admitted(), sent, "{case}: what the model read");
        assert!(log.state.open_turn().is_none(), "{case}: a turn is open");
        assert!(log.state.next_turn().is_empty() && log.state.next_step().is_empty(), "{case}: something waits");
        for id in &sent {
            let fate = log.state.item_of_message(id).and_then(|item| log.state.fate(item));
            assert!(matches!(fate, Some(ItemFate::Admitted(_))), "{case}: {id}: {fate:?}");
        }
        let last = log.state.turns().last().map(|row| row.reason.clone());
        assert_eq!(last, Some(TurnReason::Completed), "{case}: the next send completes");
        let called = log.called();
        for (key, times) in self.bodies() {
            if key.0 == *handle.session() {
                assert_eq!(times, 1, "{case}: body {key:?}");
                assert!(called.contains(&(key.1, key.2, key.3.clone())), "{case}: {key:?} ran without its record");
            }
        }
        log
    }

    async fn read(&self, handle: &AgentHandle) -> Log {
        let session = handle.session();
        let mut events: Vec<Arc<Event>> = Vec::new();
        loop {
            let page = self.system.events(session, Seq(events.len() as u64), 500).await.unwrap();
            if page.is_empty() {
                break;
            }
            events.extend(page);
        }
        let mut verifier = Verifier::new(session.clone(), None);
        events.iter().for_each(|event| verifier.event(event));
        let state = verifier.state().clone();
        assert_eq!(verifier.finish(), [], "{}", self.case);
        let (header, live) = self.system.session(session).await.unwrap();
        assert_eq!(state.summary(&header), live, "{}: the fold from zero is the live view", self.case);
        Log { events, state }
    }
}

impl Log {
    fn openings(&self) -> usize {
        self.events.iter().filter(|event| matches!(event.body.data, EventData::SessionOpened(_))).count()
    }

    /// Turns that did not complete: interrupted, or ended by the death of the pool.
    fn failed(&self) -> Vec<TurnReason> {
        let reasons = self.state.turns().iter().map(|row| row.reason.clone());
        let failed: Vec<_> = reasons.filter(|reason| *reason != TurnReason::Completed).collect();
        for reason in &failed {
            let expected = match reason {
                TurnReason::Interrupted => true,
                // 6.10.
                TurnReason::Error { failure } => failure.code == code::EXTENSION,
                _ => false,
            };
            assert!(expected, "{reason:?}");
        }
        failed
    }

    fn queued(&self) -> Vec<MessageId> {
        let queued = self.events.iter().filter_map(|event| match &event.body.data {
            EventData::InboxQueued(queued) => Some(queued.item.message.id.clone()),
            _ => None,
        });
        queued.collect()
    }

    fn admitted(&self) -> Vec<MessageId> {
        let users = self.events.iter().filter_map(|event| match &event.body.data {
            EventData::UserMessage(user) => Some(user.message.id.clone()),
            _ => None,
        });
        users.collect()
    }

    fn called(&self) -> BTreeSet<(Turn, Step, CallId)> {
        let calls = self.events.iter().filter_map(|event| match &event.body.data {
            EventData::ToolCall(call) => Some((call.turn, call.step, call.call_id.clone())),
            _ => None,
        });
        calls.collect()
    }
}
