use super::*;
use everturn_storage::event::Target;

struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

fn some_item(stage: &Stage, random: &mut Random) -> ItemId {
    let known = stage.desk.pending_items();
    let all: Vec<ItemId> = known.next_turn.iter().chain(&known.next_step).map(|item| item.item.id.clone()).collect();
    if all.is_empty() || random.next(8) == 0 { id("nobody") } else { all[random.next(all.len())].clone() }
}

fn random_op(stage: &mut Stage, random: &mut Random, round: usize) {
    let kinds = [SubmitKind::Send, SubmitKind::Steer, SubmitKind::Inject];
    let kept = [KeptItems::Clear, KeptItems::Park, KeptItems::Continue];
    match random.next(12) {
        0..5 => {
            // Sometimes an id comes again.
            let name = format!("m{}", if random.next(6) == 0 { random.next(round + 1) } else { round });
            stage.submit(kinds[random.next(3)], &name);
        }
        5 => drop(stage.op(Op::Cancel { cause: Cause::User, kept: kept[random.next(3)] })),
        6 => drop(stage.op(Op::Edit { item: some_item(stage, random), content: vec![Block::text("e")] })),
        7 => drop(stage.op(Op::Remove { items: vec![some_item(stage, random)] })),
        8 => {
            let target = [Target::NextTurn, Target::NextStep][random.next(2)];
            stage.op(Op::Move { item: some_item(stage, random), target });
        }
        9 => {
            let mut items: Vec<ItemId> =
                stage.desk.pending_items().next_turn.iter().map(|item| item.item.id.clone()).collect();
            items.reverse();
            stage.op(Op::Reorder { list: Target::NextTurn, items });
        }
        10 => drop(stage.op(Op::Wake)),
        _ => drop(stage.idle()),
    }
}

/// What the driver, the journal and the clock do.
fn random_world(stage: &mut Stage, random: &mut Random) {
    match random.next(8) {
        0 if stage.turn.is_some() && stage.log.open_turn().is_some() && !stage.hold => stage.more(random.next(2) == 0),
        1 | 2 if stage.turn.is_some() && stage.log.open_turn().is_some() && !stage.hold => {
            let reasons = [TurnReason::Completed, aborted(), failed()];
            stage.end(reasons[random.next(3)].clone());
        }
        3 | 4 if stage.turn.is_some() && stage.log.open_turn().is_none() && !stage.hold => stage.settle(),
        5 => {
            stage.down = !stage.down;
            stage.feed(if stage.down { Input::StoreDown } else { Input::StoreUp });
        }
        6 if stage.hold => stage.release(),
        6 => stage.hold = true,
        7 if !stage.timers.is_empty() => {
            stage.ring();
        }
        _ => {}
    }
}

/// Lets everything work and come to rest.
fn rest(stage: &mut Stage) {
    stage.down = false;
    stage.release();
    stage.feed(Input::StoreUp);
    for _ in 0..200 {
        if stage.turn.is_some() {
            if stage.log.open_turn().is_some() {
                stage.end(TurnReason::Completed);
            }
            stage.settle();
        } else if !stage.timers.is_empty() {
            stage.ring();
        } else {
            return;
        }
    }
    panic!("it does not come to rest");
}

/// Scenarios 255 and 256, C-4: whatever callers, driver, journal and clock do, every question is answered once, no
/// receipt is early (the stage checks that), no rule of the log is broken (the stage stages every append), and at
/// rest nothing that may run still waits.
#[test]
#[expect(clippy::print_stderr, reason = "a failing run is repeated by its seed")]
fn random_programs_come_to_rest() {
    for seed in 1..1_500_u64 {
        eprintln!("seed {seed}");
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut stage = stage();
        for round in 0..120 {
            if random.next(2) == 0 {
                random_op(&mut stage, &mut random, round);
            } else {
                random_world(&mut stage, &mut random);
            }
        }
        rest(&mut stage);
        let waiter = stage.idle();
        assert_eq!(stage.answers.get(&waiter), Some(&Answer::Idle(None)), "seed {seed}: not quiescent");
        let status = stage.desk.status();
        let waking = stage.desk.pending().any(|pending| pending.item.wake);
        assert!(!waking || status.parked, "seed {seed}: something that may run was left behind");
        assert_eq!(status.visible, Visible::Idle);
        let mode = [DisposeMode::Discard, DisposeMode::Suspend][random.next(2)];
        let disposed = stage.op(Op::Dispose { mode });
        assert_eq!(stage.answers.get(&disposed), Some(&Answer::Done), "seed {seed}");
        assert_eq!(stage.durable, Some(Seq(stage.log.next_seq().0 - 1)), "seed {seed}: CP-D");
        let unanswered: Vec<_> = stage.callers.iter().filter(|reply| !stage.answers.contains_key(reply)).collect();
        assert!(unanswered.is_empty(), "seed {seed}: {unanswered:?} were not answered");
    }
}
