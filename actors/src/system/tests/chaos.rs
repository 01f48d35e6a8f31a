//! Real actors, killed by lot while callers go on.

use super::*;
use everturn_storage::memory::Fault;

struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

async fn yields(count: u64) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

/// Sends, steers and cancels; gives the items that were accepted.
async fn caller(agent: AgentHandle, seed: u64) -> Vec<ItemId> {
    let mut random = Random(seed);
    let mut accepted = Vec::new();
    for number in 0..8 {
        yields(random.next(60)).await;
        if random.next(5) == 0 {
            // A cancel may hit a moment in which nobody is there to take it.
            drop(agent.cancel(Cause::User, [KeptItems::Clear, KeptItems::Continue][random.next(2) as usize]).await);
        }
        let kind = [SubmitKind::Send, SubmitKind::Send, SubmitKind::Steer][random.next(3) as usize];
        match agent.submit(submit(kind, &format!("{seed}.{number}"))).await {
            Ok(receipt) => accepted.push(receipt.item_id),
            Err(OpError::Storage(_) | OpError::Faulted(_)) => {}
            Err(other) => panic!("refused: {other}"),
        }
    }
    accepted
}

/// Kills actors and fails disks.
async fn fate(bench: &Bench, random: &mut Random) {
    yields(random.next(150)).await;
    match random.next(6) {
        0 => bench.system.testing_kill(&session(), ActorKind::Agent),
        1 => bench.system.testing_kill(&session(), ActorKind::Driver),
        2 => bench.system.testing_kill(&session(), ActorKind::Journal),
        3 => bench.system.testing_kill_store(),
        4 => bench.store.fail_sync(random.next(2) + 1, Fault::Io),
        _ => {
            bench.store.fail_commit(random.next(2) + 1, 0, Fault::Full);
            bench.store.lose_on_reopen(Some(random.next(1_000) + 1));
        }
    }
}

/// Scenarios 21, 30, 238, 239, 256: whatever dies, every accepted message ends in exactly one way, none is admitted
/// twice, the log is valid, and the agent comes to rest. Run with another seed by changing the range.
#[tokio::test(start_paused = true)]
#[expect(clippy::print_stderr, reason = "a failing run is repeated by its seed")]
async fn accepted_messages_survive_everything() {
    for seed in 1..60_u64 {
        eprintln!("seed {seed}");
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let bench = bench().await;
        bench.profiles.change(|profile| profile.limits.claim_restore_limit = 100);
        let agent = bench.agent().await;
        let callers: Vec<_> =
            (0..3).map(|number| tokio::spawn(caller(agent.clone(), seed * 100 + number + 1))).collect();
        for _ in 0..4 {
            fate(&bench, &mut random).await;
        }
        let mut accepted = Vec::new();
        for caller in callers {
            accepted.extend(caller.await.expect("no panic"));
        }
        for item in &accepted {
            let waited = tokio::time::timeout(Duration::from_secs(600), agent.await_item(item)).await;
            waited.unwrap_or_else(|_| panic!("seed {seed}: {item} never ends")).expect("known");
        }
        while agent.when_idle().await.is_some() {}
        let log = bench.log().await;
        for item in &accepted {
            let text = format!("user/message say {item}");
            let admitted = log.iter().filter(|line| **line == text).count();
            assert!(admitted <= 1, "seed {seed}: {item} was admitted {admitted} times");
        }
    }
}
