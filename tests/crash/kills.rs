//! Many kills of the real process, several sessions in each round, repairs that are killed too (187, 190; BR-038).

use super::herd::{Chance, Herd, number, seed};

/// Kills in the test run; `EVERTURN_KILLS=2000` for a longer one.
const KILLS: u64 = 300;

/// Every acknowledged message survives every kill, in every session, also when the repair behind a kill is killed.
#[tokio::test(flavor = "multi_thread")]
async fn many_kills() {
    let seed = seed("EVERTURN_KILL_SEED");
    let wanted = number("EVERTURN_KILLS", KILLS);
    let mut chance = Chance(seed);
    let mut herd = Herd::new();
    let (mut kills, mut in_repair, mut rounds) = (0, 0, 0);
    let began = std::time::Instant::now();
    while kills < wanted {
        rounds += 1;
        let (daemon, _heard) = herd.serve();
        if !rounds_are_due(rounds) {
            let (messages, polls) = (1 + chance.below(3), chance.below(40));
            let pid = daemon.pid().to_string();
            let watch = async {
                // Somewhere in the middle of the load, or a little behind it.
                for _ in 0..polls {
                    drop(daemon.try_ask("GET", "/v1/health", None).await);
                }
                assert!(super::herd::tool("kill", &["-s", "KILL", &pid]));
            };
            tokio::join!(herd.load(&daemon, usize::try_from(messages).unwrap()), watch);
            kills += 1;
            daemon.kill();
            // Repair begins with the next start; kill that one too, early.
            for _ in 0..chance.below(3) {
                let (daemon, _heard) = herd.serve();
                for _ in 0..chance.below(12) {
                    drop(daemon.try_ask("GET", "/v1/ready", None).await);
                }
                daemon.kill();
                kills += 1;
                in_repair += 1;
            }
            continue;
        }
        herd.judge(&daemon, &format!("seed {seed}, round {rounds}")).await;
        daemon.kill();
        kills += 1;
    }
    let (daemon, _heard) = herd.serve();
    herd.judge(&daemon, &format!("seed {seed}, at the end")).await;
    assert_eq!(daemon.stop(), Some(0));
    herd.verify(&format!("seed {seed}"));
    println!(
        "{kills} process kills, {in_repair} of them in repair, {} receipts, {:.1} s",
        herd.receipts,
        began.elapsed().as_secs_f64()
    );
}

/// The verdict is over all sessions of a set, before the next set begins.
fn rounds_are_due(round: u64) -> bool {
    round.is_multiple_of(7)
}
