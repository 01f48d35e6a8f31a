use super::*;
use crate::{
    contract::{header, session, summary},
    event::{EventBody, OpenReason, Origin, PluginEvent, TurnReason},
    ids::Epoch,
    memory::MemoryStore,
    store::{Commit, SessionSummary},
    testing::sample,
};

/// A journal in short: one commit per append.
struct Writer {
    store: MemoryStore,
    session: SessionId,
    state: LogState,
    acked: Option<Seq>,
}

impl Writer {
    fn new() -> Self {
        let session = session("s");
        let state = LogState::empty(session.clone());
        let mut writer = Self { store: MemoryStore::new(), session, state, acked: None };
        writer.append(vec![sample::opened(OpenReason::Fresh, 1)]);
        writer
    }

    fn append(&mut self, bodies: Vec<EventBody>) {
        let (state, events) = self.state.stage(bodies, 5).unwrap();
        self.write(&events);
        self.state = state;
    }

    fn write(&self, events: &[Arc<Event>]) {
        let first = events[0].seq;
        let bytes = codec::encode_commit(&self.session, Epoch(1), first, self.acked, events).unwrap();
        let commit = Commit {
            session: self.session.clone(),
            epoch: Epoch(1),
            first,
            count: events.len() as u32,
            bytes: bytes.into(),
            header: (first == Seq(0)).then(|| Arc::new(header(&self.session))),
            summary: None,
        };
        self.store.commit(&[commit]).unwrap();
    }

    fn queue(&mut self, id: &str) {
        self.append(vec![sample::queued(id, Origin::Send)]);
    }

    fn sync(&mut self) {
        self.store.sync().unwrap();
        self.acked = self.state.next_seq().0.checked_sub(1).map(Seq);
    }

    fn load(&self) -> Result<Loaded, LoadError> {
        load(&self.store, &self.session)
    }

    fn inspect(&self) -> Inspected {
        inspect(&self.store, &self.session).unwrap()
    }

    fn flip(&self, first: u64) {
        assert!(self.store.flip_bit(&self.session, Seq(first), 200));
    }
}

fn corrupt_at(result: Result<Loaded, LoadError>) -> u64 {
    match result {
        Err(LoadError::Corrupt { seq, .. }) => seq.0,
        other => panic!("{other:?}"),
    }
}

fn cut(result: Result<Loaded, LoadError>) -> (Option<Seq>, Seq) {
    let torn = result.unwrap().cut.unwrap();
    (torn.keep, torn.first)
}

/// The state that was written is the state that is read, over many pages.
#[test]
fn a_whole_log_opens() {
    let mut writer = Writer::new();
    for n in 0..2_500 {
        writer.queue(&format!("m{n}"));
    }
    writer.sync();
    writer.queue("last");
    let loaded = writer.load().unwrap();
    assert_eq!((loaded.durable, loaded.cut), (Some(Seq(2_500)), None));
    assert_eq!(loaded.state.next_seq(), writer.state.next_seq());
    assert_eq!(loaded.state.next_turn(), writer.state.next_turn());
    let events = read_events(&writer.store, &writer.session, Seq(3), 2_000).unwrap();
    assert_eq!((events.len(), events[0].seq, events[1_999].seq), (2_000, Seq(3), Seq(2_002)));
    assert_eq!(read_events(&writer.store, &writer.session, Seq(2_501), 9).unwrap().len(), 1);
}

#[test]
fn what_is_not_there_is_not_found() {
    let found = load(&MemoryStore::new(), &session("s"));
    assert!(matches!(found, Err(LoadError::NotFound(_))));
}

/// Scenario 196, B-1, BR-013: a torn tail is cut, and the log goes on behind the cut.
#[test]
fn a_torn_tail_is_cut() {
    let mut writer = Writer::new();
    writer.queue("a");
    writer.sync();
    writer.queue("b");
    writer.flip(2);
    assert_eq!(cut(writer.load()), (Some(Seq(1)), Seq(2)));
    writer.store.truncate(&writer.session, Some(Seq(1))).unwrap();
    let loaded = writer.load().unwrap();
    assert_eq!((loaded.cut, loaded.state.next_seq()), (None, Seq(2)));
    writer.state = loaded.state;
    writer.queue("c");
    assert_eq!(writer.load().unwrap().state.next_seq(), Seq(3));
}

/// Z1: behind the last acknowledged event everything from the first defect on is cut, intact records too.
#[test]
fn intact_records_behind_an_unacknowledged_defect_are_cut() {
    let mut writer = Writer::new();
    writer.sync();
    ["a", "b", "c"].into_iter().for_each(|id| writer.queue(id));
    writer.flip(2);
    assert_eq!(cut(writer.load()), (Some(Seq(1)), Seq(2)));
    let mut writer = Writer::new();
    writer.sync();
    ["a", "b", "c"].into_iter().for_each(|id| writer.queue(id));
    writer.store.lose_record(&writer.session, Seq(1));
    assert_eq!(cut(writer.load()), (Some(Seq(0)), Seq(1)));
}

/// Scenario 197, B-2: what the store knows to be acknowledged is never a torn tail.
#[test]
fn damage_to_acknowledged_events_is_corruption() {
    for first in 0..4 {
        let mut writer = Writer::new();
        ["a", "b", "c"].into_iter().for_each(|id| writer.queue(id));
        writer.sync();
        writer.flip(first);
        assert_eq!(corrupt_at(writer.load()), first);
    }
    for first in 1..3 {
        let mut writer = Writer::new();
        ["a", "b", "c"].into_iter().for_each(|id| writer.queue(id));
        writer.sync();
        writer.store.lose_record(&writer.session, Seq(first));
        assert_eq!(corrupt_at(writer.load()), first);
    }
}

/// B-1: a record says what was durable when it was written, also one behind the defect.
#[test]
fn a_later_mark_proves_damage() {
    let mut writer = Writer::new();
    ["a", "b"].into_iter().for_each(|id| writer.queue(id));
    writer.acked = Some(Seq(1));
    writer.queue("c");
    writer.flip(1);
    assert_eq!(corrupt_at(writer.load()), 1);
    let mut writer = Writer::new();
    ["a", "b"].into_iter().for_each(|id| writer.queue(id));
    writer.acked = Some(Seq(1));
    writer.queue("c");
    writer.flip(2);
    assert_eq!(cut(writer.load()), (Some(Seq(1)), Seq(2)));
}

/// B-1: where nothing tells what was acknowledged, a whole `turn/end` behind the defect does.
#[test]
fn a_closed_turn_proves_damage_when_no_mark_is_known() {
    let mut writer = Writer::new();
    writer.queue("a");
    writer.append(vec![sample::turn_start(1), sample::claimed(1, 1, 1, &["a"])]);
    writer.append(vec![sample::turn_end(1, TurnReason::Completed, 0, &["a"])]);
    writer.flip(1);
    assert_eq!(corrupt_at(writer.load()), 1);
}

/// The index never speaks of events that were not written.
#[test]
fn a_tail_that_is_gone_without_a_trace_is_seen() {
    let mut writer = Writer::new();
    ["a", "b"].into_iter().for_each(|id| writer.queue(id));
    writer.store.put_summary(&summary(&writer.session, 2, 2)).unwrap();
    assert!(writer.load().is_ok());
    writer.store.lose_record(&writer.session, Seq(2));
    assert_eq!(corrupt_at(writer.load()), 2);
    assert!(writer.inspect().defect.unwrap().contains("event 2"));
}

/// V-1, scenario 199. Version 1 is the first one: until there is another, no chain of upgrades can be shown.
#[test]
fn versions_are_checked_first() {
    let writer = Writer::new();
    writer.flip(0);
    for (version, expected) in [
        (FORMAT_VERSION + 1, LoadError::TooNew { found: FORMAT_VERSION + 1, supported: FORMAT_VERSION }),
        (0, LoadError::TooOld { found: 0, supported: FORMAT_VERSION }),
    ] {
        let header = SessionHeader { version, ..header(&writer.session) };
        let other = session("other");
        let events = writer.state.stage(vec![sample::queued("a", Origin::Send)], 1).unwrap().1;
        let events = [Arc::new(Event { seq: Seq(0), ..(*events[0]).clone() })];
        let bytes = codec::encode_commit(&other, Epoch(1), Seq(0), None, &events).unwrap().into();
        let header = Some(Arc::new(SessionHeader { session_id: other.clone(), ..header }));
        let commit =
            Commit { session: other.clone(), epoch: Epoch(1), first: Seq(0), count: 1, bytes, header, summary: None };
        let store = MemoryStore::new();
        store.commit(&[commit]).unwrap();
        assert_eq!(load(&store, &other).unwrap_err(), expected);
        assert_eq!(inspect(&store, &other).unwrap_err(), expected);
    }
}

/// Scenario 198, V-4, BR-029: an unknown type refuses the session unless it may be skipped; nothing is cut.
#[test]
fn unknown_events_refuse_unless_ignorable() {
    for ignorable in [false, true] {
        let writer = Writer::new();
        let data = PluginEvent { type_name: "later/thing".into(), data: crate::RawJson::parse("1").unwrap() };
        let body = EventBody { ignorable, ..EventData::Plugin(data).into() };
        writer.write(&[Arc::new(Event { seq: Seq(1), time_ms: 5, body })]);
        match writer.load() {
            Ok(loaded) => assert!(ignorable && loaded.state.next_seq() == Seq(2)),
            Err(error) => {
                assert!(!ignorable);
                assert_eq!(error, LoadError::UnknownEvent { type_name: "later/thing".into(), seq: Seq(1) });
            }
        }
    }
}

/// A record that is whole and breaks a rule was written so: it is no torn tail.
#[test]
fn a_broken_rule_is_corruption() {
    let writer = Writer::new();
    let body = sample::turn_start(7);
    writer.write(&[Arc::new(Event { seq: Seq(1), time_ms: 5, body })]);
    assert_eq!(corrupt_at(writer.load()), 1);
}

/// Scenarios 197, 211, W-3: inspection shows the whole prefix and writes nothing.
#[test]
fn inspection_shows_the_prefix_and_writes_nothing() {
    let mut writer = Writer::new();
    ["a", "b", "c"].into_iter().for_each(|id| writer.queue(id));
    writer.sync();
    assert_eq!(writer.inspect().defect, None);
    writer.flip(2);
    let before = writer.store.counts();
    assert!(writer.load().is_err());
    let shown = writer.inspect();
    assert_eq!(shown.state.next_seq(), Seq(2));
    assert!(shown.defect.unwrap().contains("event 2"));
    assert_eq!(writer.store.counts(), before);
}

/// Power losses at every place leave a prefix that opens and holds all that was acknowledged.
#[test]
fn every_power_loss_leaves_a_log_that_opens() {
    for seed in 0..200 {
        let mut writer = Writer::new();
        writer.sync();
        for n in 0..seed % 13 {
            writer.queue(&format!("m{n}"));
            if n % 5 == 4 {
                writer.sync();
            }
        }
        let acked = writer.acked;
        writer.store = writer.store.crash(Some(seed));
        let loaded = writer.load().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(loaded.cut, None, "seed {seed}");
        assert!(loaded.state.next_seq().0.checked_sub(1).map(Seq) >= acked, "seed {seed}");
    }
}

/// The header's session is not found when its first commit never became durable.
#[test]
fn a_session_that_was_never_durable_is_gone() {
    let mut writer = Writer::new();
    writer.store.put_summary(&SessionSummary { open_turn: None, ..summary(&writer.session, 0, 0) }).unwrap();
    writer.store = writer.store.crash(None);
    assert!(matches!(writer.load(), Err(LoadError::NotFound(_))));
}
