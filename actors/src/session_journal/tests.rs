use super::*;
use crate::{
    journal_store::{JournalStore, JournalStoreArgs},
    protocol::{CheckpointFailed, CheckpointKind},
    testing::TestWorld,
};
use everturn_storage::{
    event::{InboxQueued, InboxRemoved, Item, OpenReason, Origin, RemoveCause, SessionOpened, Target},
    ids::{ItemId, MessageId, SessionId},
    log::Violation,
    memory::{Fault, MemoryStore},
    message::{Block, Message as Said, Role},
    store::Store,
};
use std::collections::BTreeMap;

struct Bench {
    store: MemoryStore,
    link: StoreLink,
    health: tokio::sync::watch::Receiver<Option<String>>,
    durable: watch::Sender<Option<Seq>>,
}

async fn bench() -> Bench {
    let store = MemoryStore::new();
    let link = StoreLink::empty();
    let (sender, health) = tokio::sync::watch::channel(None);
    let tell = Arc::new(move |why| drop(sender.send(why)));
    let args = JournalStoreArgs { store: Arc::new(store.clone()), incarnation: 0, gate: Arc::default(), health: tell };
    let (actor, _) = Actor::spawn(None, JournalStore, args).await.expect("starts");
    link.point_at(actor);
    Bench { store, link, health, durable: watch::Sender::new(None) }
}

fn header(session: &str) -> SessionHeader {
    SessionHeader {
        version: everturn_storage::event::FORMAT_VERSION,
        session_id: SessionId::trusted(session),
        agent: "default".to_owned(),
        created_at_ms: 1,
        cwd: None,
        parent: None,
        seed_length: None,
        origin: None,
        delegation_depth: None,
        preset: None,
        labels: BTreeMap::new(),
    }
}

impl Bench {
    async fn journal(&self, session: &str) -> (ActorRef<Message>, tokio::task::JoinHandle<()>) {
        let args = SessionJournalArgs {
            epoch: Epoch(1),
            header: Arc::new(header(session)),
            view: LogState::empty(SessionId::trusted(session)),
            durable: self.durable.clone(),
            store: self.link.clone(),
            world: Arc::new(TestWorld::new("w")),
        };
        Actor::spawn(None, SessionJournal, args).await.expect("starts")
    }

    async fn until_down(&mut self) {
        self.health.wait_for(Option::is_some).await.expect("the store lives");
    }

    async fn until_up(&mut self) {
        self.health.wait_for(Option::is_none).await.expect("the store lives");
    }
}

fn opened() -> EventBody {
    SessionOpened { reason: OpenReason::Fresh, epoch: Epoch(1) }.into()
}

fn queued(id: &str) -> EventBody {
    let message =
        Said { id: MessageId::trusted(id), role: Role::User, content: vec![Block::text("hello")], source: None };
    let item = Item { id: ItemId::trusted(id), target: Target::NextTurn, wake: true, origin: Origin::Send, message };
    InboxQueued { item, position: None }.into()
}

fn removed(id: &str) -> EventBody {
    InboxRemoved { ids: vec![ItemId::trusted(id)], cause: RemoveCause::Removed }.into()
}

async fn append(
    journal: &ActorRef<Message>,
    epoch: u64,
    events: Vec<EventBody>,
    class: AppendClass,
) -> Result<Appended, AppendError> {
    let (reply, answer) = Reply::channel();
    link(journal).ask(JournalRequest::Append { epoch: Epoch(epoch), events, class, reply });
    answer.await.expect("answered")
}

fn checkpoint(journal: &ActorRef<Message>, upto: u64) -> tokio::sync::oneshot::Receiver<Durable> {
    let (reply, answer) = Reply::channel();
    link(journal).ask(JournalRequest::Checkpoint { kind: CheckpointKind::Accept, upto: Seq(upto), reply });
    answer
}

async fn settled(journal: &ActorRef<Message>, upto: u64) -> Durable {
    checkpoint(journal, upto).await.expect("answered")
}

/// Z7, K-1: header, first event and index entry are one commit, and a checkpoint means a sync.
#[tokio::test(start_paused = true)]
async fn the_first_commit_brings_header_and_index() {
    let bench = bench().await;
    let (journal, _) = bench.journal("s").await;
    let first = append(&journal, 1, vec![opened(), queued("a")], AppendClass::Opening).await.expect("committed");
    assert_eq!((first.first, first.last), (Seq(0), Seq(1)));
    assert_eq!(settled(&journal, 1).await, Ok(Seq(1)));
    let session = SessionId::trusted("s");
    assert_eq!(bench.store.durable_seq(&session), Some(Seq(1)));
    assert_eq!(bench.store.header(&session), Ok(Some(header("s"))));
    assert_eq!(bench.store.attention(), Ok(vec![session.clone()]));
    // The index follows when nothing waits any more.
    append(&journal, 1, vec![removed("a")], AppendClass::Closing).await.expect("committed");
    settled(&journal, 2).await.expect("durable");
    assert_eq!(bench.store.attention(), Ok(Vec::new()));
    assert_eq!(bench.store.counts().syncs, 2);
}

/// W-2, scenario 203: a stale writer is fenced. I-7: a batch that breaks a rule leaves no trace.
#[tokio::test(start_paused = true)]
async fn stale_and_wrong_appends_are_refused() {
    let bench = bench().await;
    let (journal, _) = bench.journal("s").await;
    append(&journal, 1, vec![opened()], AppendClass::Opening).await.expect("committed");
    let stale = append(&journal, 0, vec![queued("a")], AppendClass::Opening).await;
    assert_eq!(stale.expect_err("fenced"), AppendError::Fenced);
    let wrong = append(&journal, 1, vec![queued("a"), removed("b")], AppendClass::Opening).await;
    assert!(matches!(wrong, Err(AppendError::Refused(Violation { rule: "I-7", .. }))), "{wrong:?}");
    let right = append(&journal, 1, vec![queued("a")], AppendClass::Opening).await.expect("committed");
    assert_eq!(right.first, Seq(1));
    assert!(matches!(settled(&journal, 9).await, Err(CheckpointFailed(_))), "what is not logged cannot be durable");
}

/// Scenario 38: while one session's sync is held, nobody is answered early, and one sync then serves everybody.
#[tokio::test(start_paused = true)]
async fn one_sync_serves_all_that_wait() {
    let bench = bench().await;
    let (one, _) = bench.journal("one").await;
    let (two, _) = bench.journal("two").await;
    let gate = bench.store.gate_syncs();
    append(&one, 1, vec![opened()], AppendClass::Opening).await.expect("committed");
    let mut first = checkpoint(&one, 0);
    append(&two, 1, vec![opened()], AppendClass::Opening).await.expect("committed");
    append(&two, 1, vec![queued("a")], AppendClass::Opening).await.expect("committed");
    let (mut early, mut late) = (checkpoint(&two, 0), checkpoint(&two, 1));
    for waiter in [&mut first, &mut early, &mut late] {
        assert!(waiter.try_recv().is_err(), "answered before any sync");
    }
    gate.open();
    assert_eq!(first.await, Ok(Ok(Seq(0))));
    assert_eq!((early.await, late.await), (Ok(Ok(Seq(1))), Ok(Ok(Seq(1)))));
    assert!(bench.store.counts().syncs <= 2);
}

/// K-3, BR-020, BR-040, scenario 204: after a failed sync closing work is still accepted in memory, opening work is
/// refused, checkpoints fail; once the store works again everything is written without a restart.
#[tokio::test(start_paused = true)]
async fn a_failed_store_gets_back_what_it_lost() {
    let mut bench = bench().await;
    let (journal, _) = bench.journal("s").await;
    append(&journal, 1, vec![opened(), queued("a")], AppendClass::Opening).await.expect("committed");
    settled(&journal, 1).await.expect("durable");
    append(&journal, 1, vec![queued("b")], AppendClass::Opening).await.expect("committed");
    bench.store.fail_sync(1, Fault::Io);
    bench.store.lose_on_reopen(None);
    bench.store.set_full(false);
    settled(&journal, 2).await.expect_err("the sync failed");
    bench.until_down().await;
    let refused = append(&journal, 1, vec![queued("c")], AppendClass::Opening).await;
    assert!(matches!(refused, Err(AppendError::Io(_))), "{refused:?}");
    let closing = append(&journal, 1, vec![removed("a")], AppendClass::Closing).await.expect("kept in memory");
    assert_eq!(closing.last, Seq(3));
    settled(&journal, 3).await.expect_err("down");
    bench.until_up().await;
    // The listener of the journal hears of it a moment later than the watch.
    let durable = loop {
        match settled(&journal, 3).await {
            Ok(durable) => break durable,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert_eq!(durable, Seq(3));
    assert_eq!(bench.store.durable_seq(&SessionId::trusted("s")), Some(Seq(3)));
    let events: Vec<_> = bench.store.read(&SessionId::trusted("s"), Seq(0), 100, 1 << 20).expect("reads");
    assert_eq!(events.iter().map(|stored| stored.first.0).collect::<Vec<_>>(), [0, 2, 3]);
}

/// K-3: once the store works again, the journal makes durable by itself what a failed checkpoint left behind. An idle
/// agent asks for no other checkpoint, and who reads its log is shown durable events only.
#[tokio::test(start_paused = true)]
async fn what_a_failed_checkpoint_left_behind_becomes_durable_unasked() {
    let mut bench = bench().await;
    let (journal, _) = bench.journal("s").await;
    append(&journal, 1, vec![opened(), queued("a")], AppendClass::Opening).await.expect("committed");
    settled(&journal, 1).await.expect("durable");
    let mut durable = bench.durable.subscribe();
    append(&journal, 1, vec![removed("a")], AppendClass::Closing).await.expect("committed");
    bench.store.fail_sync(1, Fault::Io);
    bench.store.lose_on_reopen(None);
    settled(&journal, 2).await.expect_err("the sync failed");
    bench.until_down().await;
    bench.until_up().await;
    let unasked = durable.wait_for(|durable| *durable == Some(Seq(2)));
    let unasked = tokio::time::timeout(std::time::Duration::from_secs(60), unasked).await;
    unasked.expect("it becomes durable").expect("the journal lives");
    assert_eq!(bench.store.durable_seq(&SessionId::trusted("s")), Some(Seq(2)));
}

/// A full disk stays full over several tries to open the store; work goes on by itself when there is space.
#[tokio::test(start_paused = true)]
async fn a_full_disk_is_waited_for() {
    let mut bench = bench().await;
    let (journal, _) = bench.journal("s").await;
    append(&journal, 1, vec![opened()], AppendClass::Opening).await.expect("committed");
    settled(&journal, 0).await.expect("durable");
    bench.store.set_full(true);
    append(&journal, 1, vec![queued("a")], AppendClass::Closing).await.expect("committed");
    bench.until_down().await;
    tokio::time::advance(std::time::Duration::from_secs(60)).await;
    assert!(bench.health.borrow().is_some());
    bench.store.set_full(false);
    bench.until_up().await;
    while settled(&journal, 1).await.is_err() {
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.store.durable_seq(&SessionId::trusted("s")), Some(Seq(1)));
}

/// W-2: a store that refuses a commit ends the writer; nothing is guessed.
#[tokio::test(start_paused = true)]
async fn a_refused_commit_ends_the_journal() {
    let bench = bench().await;
    let (one, ended) = bench.journal("s").await;
    append(&one, 1, vec![opened()], AppendClass::Opening).await.expect("committed");
    settled(&one, 0).await.expect("durable");
    // Another writer of the same log, which believes it is new.
    let (two, other_ended) = bench.journal("s").await;
    append(&two, 1, vec![opened()], AppendClass::Opening).await.expect("in its memory");
    // Both are of the same epoch, so the store tells the one that enrolled last.
    other_ended.await.expect("ended");
    drop((one, ended));
}

/// Every event in order, or word of where to read on; also when nothing is committed afterwards.
#[tokio::test(start_paused = true)]
async fn a_slow_subscriber_is_told_where_to_read_on() {
    let bench = bench().await;
    let (journal, _) = bench.journal("s").await;
    let (reply, answer) = Reply::channel();
    drop(journal.cast(Message::Subscribe { reply }));
    let (next, mut events) = answer.await.expect("subscribed");
    assert_eq!(next, Seq(0));
    append(&journal, 1, vec![opened()], AppendClass::Opening).await.expect("committed");
    for round in 0..crate::limits::SUBSCRIPTION_BUFFER {
        let id = format!("i{round}");
        append(&journal, 1, vec![queued(&id)], AppendClass::Opening).await.expect("committed");
    }
    let mut expected = 0;
    loop {
        match events.recv().await.expect("told of the lag") {
            Committed::Event(event) => {
                assert_eq!(event.seq, Seq(expected));
                expected += 1;
            }
            Committed::Lagged { from } => {
                assert_eq!(from, Seq(expected));
                break;
            }
        }
    }
    append(&journal, 1, vec![queued("last")], AppendClass::Opening).await.expect("committed");
    let Some(Committed::Event(event)) = events.recv().await else { panic!("goes on with the next event") };
    assert_eq!(event.seq.0, crate::limits::SUBSCRIPTION_BUFFER as u64 + 1);
}
