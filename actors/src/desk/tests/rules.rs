use super::*;
use crate::handle::CancelReport;
use everturn_storage::event::{InboxClaimed, InboxQueued, InboxRestored, Item, Origin, Target, TurnStart};
use everturn_storage::message::{Message, Role};

/// C-4: the driver is woken when the item is logged, the receipt is given when it is durable.
#[test]
fn a_receipt_waits_for_the_disk() {
    let mut stage = stage();
    stage.hold = true;
    let reply = stage.send("a");
    assert!(stage.answers.is_empty());
    let appended = stage.held.pop_front().expect("the append");
    stage.feed(appended);
    assert!(stage.awake && stage.answers.is_empty());
    stage.release();
    let receipt = stage.receipt(reply);
    assert_eq!((receipt.seq, receipt.position, receipt.woke), (Seq(1), 0, true));
    assert_eq!(stage.ids(), ["a"]);
}

/// C-4, BR-020: an item that could not be made durable is withdrawn, and its message may be submitted again.
#[test]
fn what_is_not_durable_is_withdrawn() {
    let mut stage = stage();
    stage.eager = false;
    stage.hold = true;
    let reply = stage.send("a");
    let appended = stage.held.pop_front().expect("the append");
    stage.down = true;
    stage.feed(appended);
    stage.release();
    assert_eq!(stage.refusal(reply), "STORAGE");
    assert!(stage.desk.view().pending(&id("a")).is_none());
    stage.down = false;
    stage.eager = true;
    let again = stage.send("a");
    let receipt = stage.receipt(again).clone();
    assert!(receipt.item_id.as_str().starts_with("fresh-"), "an item id is used once (I-7)");
    assert_eq!(stage.claimed, [receipt.item_id]);
    // What was removed on purpose stays removed.
    let b = stage.send("b");
    stage.receipt(b);
    stage.op(Op::Remove { items: vec![id("b")] });
    let repeat = stage.send("b");
    assert_eq!(stage.answers[&repeat], Answer::Duplicate { item: id("b"), kind: Duplicate::Consumed });
}

/// C-4: a turn that has the item keeps it when its acceptance fails.
#[test]
fn what_a_turn_has_is_not_withdrawn() {
    let mut stage = stage();
    stage.hold = true;
    let reply = stage.send("a");
    let appended = stage.held.pop_front().expect("the append");
    stage.feed(appended);
    let Some(Input::Settled { token, .. }) = stage.held.pop_front() else { panic!("a checkpoint") };
    stage.hold = false;
    stage.feed(Input::Phase { phase: Phase::Idle, view: Arc::new(stage.log.clone()) });
    assert_eq!(stage.turn, Some(Turn(1)));
    stage.feed(Input::Settled { token, outcome: Err(CheckpointFailed("x".into())) });
    assert_eq!(stage.refusal(reply), "STORAGE");
    assert_eq!(stage.ids(), ["a"]);
}

/// R14, scenario 205: a refused opening is tried a few times, then the driver stops until the journal is back. Its
/// wake is latched meanwhile, so the agent is not quiescent (section 1).
#[test]
fn a_refused_opening_is_parked_on_the_journal() {
    for by_news in [true, false] {
        let mut stage = stage();
        stage.eager = false;
        stage.send("a");
        stage.down = true;
        stage.eager = true;
        let waiter = stage.idle();
        assert_eq!([stage.ring(), stage.ring()], [50, 150]);
        assert_eq!(stage.notes, ["notice JOURNAL", "idle"]);
        assert!(!stage.answers.contains_key(&waiter), "it goes on by itself");
        assert!(!stage.awake);
        stage.down = false;
        if by_news {
            stage.feed(Input::StoreUp);
        } else {
            assert_eq!(stage.ring(), 5_000);
        }
        assert_eq!(stage.ids(), ["a"]);
    }
}

/// A cancel while an opening waits for its next try removes the item, and no turn is opened (P1).
#[test]
fn a_cancel_between_two_tries() {
    let mut stage = stage();
    stage.eager = false;
    stage.send("a");
    stage.down = true;
    stage.eager = true;
    stage.idle();
    let cancelled = stage.op(Op::Cancel { cause: Cause::User, kept: KeptItems::Clear });
    let report = CancelReport { cancelled: None, removed: vec![id("a")] };
    assert_eq!(stage.answers[&cancelled], Answer::Cancelled(report));
    stage.down = false;
    stage.ring();
    assert_eq!((stage.turn, stage.awake), (None, false));
}

fn item(id: &str) -> Item {
    let message =
        Message { id: MessageId::trusted(id), role: Role::User, content: vec![Block::text("x")], source: None };
    Item { id: ItemId::trusted(id), target: Target::NextTurn, wake: true, origin: Origin::Send, message }
}

/// A log in which repair gave item `bad` back `times` times, with `good` behind it.
fn restored(times: u32) -> LogState {
    let queue = |id| InboxQueued { item: item(id), position: None }.into();
    let mut log = empty_log().stage(vec![queue("bad"), queue("good")], 1).expect("valid").0;
    for round in 1..=times {
        let turn = Turn(round);
        let ids = vec![id("bad")];
        let open = InboxClaimed { turn, proposal: Proposal(1), step: Step(1), ids: ids.clone() };
        log = log.stage(vec![TurnStart { turn }.into(), open.into()], 1).expect("valid").0;
        let opened = SessionOpened { reason: OpenReason::Repair, epoch: Epoch(u64::from(round) + 1) };
        let end = TurnEnd { turn, reason: TurnReason::Interrupted, steps: 0, unadmitted: ids.clone() };
        let counts = BTreeMap::from([(id("bad"), round)]);
        let back = InboxRestored { ids, counts };
        log = log.stage(vec![opened.into(), end.into(), back.into()], 1).expect("valid").0;
    }
    log
}

/// Scenarios 189 and 190, B-16: an item goes back to the head and runs, until it was given back too often; then it
/// waits for a wake or an edit while others run.
#[test]
fn poison_waits_for_a_person() {
    let stage = stage_on(restored(1), RULES, BootPending::Auto);
    assert_eq!(stage.ids(), ["bad"]);
    for edit in [true, false] {
        let mut stage = stage_on(restored(2), RULES, BootPending::Auto);
        assert_eq!(stage.ids(), ["good"]);
        stage.run(TurnReason::Completed);
        assert_eq!(stage.turn, None);
        let op = if edit { Op::Edit { item: id("bad"), content: vec![Block::text("y")] } } else { Op::Wake };
        stage.op(op);
        assert_eq!(stage.ids(), ["bad"]);
    }
}

/// R17, scenario 195: what waits at boot runs, or waits for the first wake.
#[test]
fn what_waits_at_boot_follows_the_policy() {
    let mut stage = stage_on(restored(0), RULES, BootPending::Park);
    assert_eq!((stage.turn, stage.desk.status().parked), (None, true));
    stage.send("new");
    assert_eq!(stage.ids(), ["bad"], "a send makes the whole queue eligible, in order");
}

/// `turn_error_policy`, scenario 85: the next item runs, or the queue waits for the next wake.
#[test]
fn behind_an_error() {
    for policy in [TurnErrorPolicy::Continue, TurnErrorPolicy::Park] {
        let rules = Rules { turn_error_policy: policy, ..RULES };
        let mut stage = stage_on(empty_log(), rules, BootPending::Auto);
        stage.send("a");
        stage.send("b");
        stage.submit(SubmitKind::Steer, "c");
        stage.run(failed());
        let park = policy == TurnErrorPolicy::Park;
        assert_eq!(stage.turn, (!park).then_some(Turn(2)));
        if park {
            stage.op(Op::Wake);
        }
        assert_eq!(stage.ids(), ["c", "b"], "T-18: steers that were left behind come first");
    }
}

/// Scenarios 27, 28, 72, K-1: while CP-T has not settled nothing is cancelled and steers are turns of their own.
#[test]
fn while_the_turn_checkpoint_is_open() {
    let mut stage = stage();
    stage.send("a");
    stage.end(TurnReason::Completed);
    let waiter = stage.idle();
    let steer = stage.submit(SubmitKind::Steer, "s");
    assert_eq!(stage.receipt(steer).list, Target::NextTurn);
    let cancelled = stage.op(Op::Cancel { cause: Cause::User, kept: KeptItems::Clear });
    let report = CancelReport { cancelled: None, removed: vec![id("s")] };
    assert_eq!(stage.answers[&cancelled], Answer::Cancelled(report));
    assert!(!stage.answers.contains_key(&waiter));
    stage.send("b");
    stage.settle();
    assert_eq!(stage.ids(), ["b"]);
    assert!(!stage.answers.contains_key(&waiter), "it follows replacement work");
    stage.run(TurnReason::Completed);
    assert_eq!(stage.answers[&waiter], Answer::Idle(None));
    assert_eq!(stage.notes, ["Running", "idle", "Idle"], "one running interval");
}

/// K-3: two failed CP-T in a row are said aloud.
#[test]
fn a_journal_that_is_degraded() {
    let mut stage = stage();
    stage.send("a");
    stage.send("b");
    for _ in 0..2 {
        stage.end(TurnReason::Completed);
        stage.eager = false;
        stage.down = true;
        stage.settle();
        stage.down = false;
        stage.eager = true;
        stage.feed(Input::StoreUp);
    }
    let notices: Vec<_> = stage.notes.iter().filter(|note| note.starts_with("notice")).collect();
    assert_eq!(notices, ["notice CHECKPOINT", "notice CHECKPOINT", "notice journal/degraded"]);
}

/// S14, T-15, Z15: what a turn gets when it asks for more.
#[test]
fn a_turn_asks_for_more() {
    let mut stage = stage();
    stage.send("a");
    stage.more(false);
    stage.submit(SubmitKind::Inject, "i");
    stage.more(false);
    assert_eq!(stage.notes[1..], ["nothing", "nothing"], "an inject forces no step");
    stage.more(true);
    stage.submit(SubmitKind::Steer, "s");
    stage.feed(Input::Drain);
    stage.more(false);
    assert_eq!(stage.notes[3..], ["claimed [\"i\"]", "fire 1 Disposed", "nothing"]);
    let refused = stage.send("b");
    assert_eq!(stage.refusal(refused), "DISPOSED");
    stage.run(TurnReason::Aborted { cause: Cause::Disposed });
    assert_eq!(stage.turn, None, "what waits stays for the next process");
    assert_eq!(stage.desk.pending_items().next_step.len(), 1);
}

/// C-8: operations wait in order while an append is in flight, and decide on the log as it is then.
#[test]
fn operations_wait_in_order() {
    let mut stage = stage();
    stage.eager = false;
    stage.hold = true;
    let one = stage.send("a");
    let two = stage.send("a");
    let edit = stage.op(Op::Edit { item: id("a"), content: vec![Block::text("z")] });
    let gone = stage.op(Op::Remove { items: vec![id("a")] });
    let late = stage.op(Op::Edit { item: id("a"), content: vec![Block::text("q")] });
    assert_eq!(stage.log.next_seq(), Seq(2), "one append in flight");
    stage.release();
    assert_eq!(stage.receipt(one).seq, Seq(1));
    assert_eq!(stage.answers[&two], Answer::Duplicate { item: id("a"), kind: Duplicate::Pending });
    assert_eq!((&stage.answers[&edit], &stage.answers[&gone]), (&Answer::Done, &Answer::Done));
    assert_eq!(stage.refusal(late), "UNKNOWN_ITEM");
}

/// P21, 3.3: a disposal waits for the turn, removes or keeps what waits, and answers everybody once.
#[test]
fn a_disposal_waits_for_the_turn() {
    for mode in [DisposeMode::Discard, DisposeMode::Suspend] {
        let mut stage = stage();
        stage.send("a");
        stage.send("b");
        let (one, two) = (stage.op(Op::Dispose { mode }), stage.op(Op::Dispose { mode }));
        let cancel = stage.op(Op::Cancel { cause: Cause::User, kept: KeptItems::Clear });
        assert_eq!(stage.answers[&cancel], Answer::Cancelled(CancelReport::default()));
        assert!(!stage.answers.contains_key(&one));
        stage.run(TurnReason::Aborted { cause: Cause::Disposed });
        assert_eq!((&stage.answers[&one], &stage.answers[&two]), (&Answer::Done, &Answer::Done));
        assert_eq!(stage.notes, ["Running", "fire 1 Disposed", "idle", "Idle", "Disposed", "disposed"]);
        assert_eq!(stage.log.next_turn().len(), usize::from(mode == DisposeMode::Suspend));
        assert_eq!(stage.durable, Some(Seq(stage.log.next_seq().0 - 1)), "CP-D");
    }
}

/// F-4, 3.4: a faulted agent answers everything with its fault, and who waits is told.
#[test]
fn a_faulted_agent_says_so() {
    let mut stage = stage();
    stage.send("a");
    let waiter = stage.idle();
    stage.feed(Input::Fault { why: "broken".to_owned() });
    assert_eq!(stage.answers[&waiter], Answer::Idle(Some("broken".to_owned())));
    let (send, cancel) = (stage.send("b"), stage.op(Op::Cancel { cause: Cause::User, kept: KeptItems::Clear }));
    assert_eq!((stage.refusal(send), stage.refusal(cancel)), ("FAULTED", "FAULTED"));
    assert_eq!(stage.desk.status().phase, Phase::Faulted);
    let dispose = stage.op(Op::Dispose { mode: DisposeMode::Discard });
    assert_eq!(stage.answers[&dispose], Answer::Done);
    assert_eq!(stage.log.open_turn().map(|turn| turn.turn), Some(Turn(1)), "no appends");
}

/// Scenario 93: the item of a cancelled turn is not given back.
#[test]
fn a_claimed_item_is_not_given_back() {
    let mut stage = stage();
    stage.send("a");
    let cancelled = stage.op(Op::Cancel { cause: Cause::User, kept: KeptItems::Park });
    assert_eq!(
        stage.answers[&cancelled],
        Answer::Cancelled(CancelReport { cancelled: Some(Turn(1)), removed: vec![] })
    );
    stage.run(aborted());
    assert_eq!((stage.turn, stage.log.next_turn().len()), (None, 0));
}

/// Scenario 235, 3.3: an edit and a claim that race have one winner, in the order in which they reach the desk.
#[test]
fn an_edit_that_races_a_claim() {
    let edit = |said: &str| Op::Edit { item: id("b"), content: vec![Block::text(said)] };
    for edit_first in [true, false] {
        let mut stage = stage();
        stage.submit(SubmitKind::Send, "a");
        stage.submit(SubmitKind::Send, "b");
        stage.end(TurnReason::Completed);
        // The append of whoever comes first is under way when the other comes.
        stage.hold = true;
        stage.eager = false;
        let edited = if edit_first {
            let edited = stage.op(edit("better"));
            stage.settle();
            let reply = stage.reply();
            stage.feed(Input::OpenTurn { reply });
            edited
        } else {
            stage.settle();
            let reply = stage.reply();
            stage.feed(Input::OpenTurn { reply });
            stage.op(edit("better"))
        };
        stage.release();
        assert_eq!(stage.ids(), ["b"], "edit first: {edit_first}");
        let open = stage.log.open_turn().expect("the turn of b");
        let said = everturn_storage::message::plain_text(&open.claimed[0].item.message.content);
        match (edit_first, &stage.answers[&edited]) {
            (true, Answer::Done) => assert_eq!(said, "better"),
            (false, Answer::Refused(OpError::UnknownItem(item))) => {
                assert_eq!((item, said.as_str()), (&id("b"), "say b"));
            }
            (_, other) => panic!("edit first: {edit_first}: {other:?}"),
        }
    }
}
