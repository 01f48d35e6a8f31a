use super::*;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

async fn soon(gate: &Arc<Gate>, max: usize) -> Option<Permit> {
    tokio::time::timeout(Duration::from_millis(1), gate.enter(max)).await.ok()
}

fn left(gate: &Gate) -> (usize, usize) {
    let state = gate.lock();
    (state.running, state.queue.len())
}

/// The limit holds, waiters are served in order, and one that goes away leaves no trace.
#[tokio::test(start_paused = true)]
async fn places_are_limited_and_given_back() {
    let gate = Gate::new();
    let (a, b) = (gate.enter(2).await, gate.enter(2).await);
    assert!(soon(&gate, 2).await.is_none());
    drop(a);
    let c = soon(&gate, 2).await.unwrap();
    drop((b, c));
    assert_eq!(left(&gate), (0, 0));
    // A waiter that is dropped right after it was granted gives the place back.
    let a = gate.enter(1).await;
    let mut waiting = Box::pin(gate.enter(1));
    assert!(futures::poll!(&mut waiting).is_pending());
    drop(a);
    drop(waiting);
    assert!(soon(&gate, 1).await.is_some());
}

/// BR-100: a refusal closes the gate for as long as was asked; then one goes, then two, up to half of what was too
/// much, and one more for each round from there.
#[tokio::test(start_paused = true)]
async fn refusals_close_and_successes_open() {
    let gate = Gate::new();
    let mut crowd = Vec::new();
    for _ in 0..8 {
        crowd.push(gate.enter(9).await);
    }
    // The refusals of one crowd count as one.
    crowd.iter().for_each(|permit| permit.refused(Some(2_000), 0.0));
    drop(crowd);
    let from = Instant::now();
    let first = gate.enter(9).await;
    assert_eq!(from.elapsed(), Duration::from_secs(2));
    assert!(soon(&gate, 9).await.is_none());
    let mut sizes = Vec::new();
    for _ in 0..11 {
        first.accepted();
        sizes.push(gate.lock().window.unwrap().size);
    }
    assert_eq!(sizes, [2, 4, 4, 4, 4, 5, 5, 5, 5, 5, 6]);
    let second = soon(&gate, 9).await.unwrap();
    // A success from before a refusal proves nothing.
    second.refused(Some(1_000), 0.0);
    first.accepted();
    assert_eq!(gate.lock().window.unwrap().size, 1);
    drop((first, second));
    let from = Instant::now();
    drop(gate.enter(9).await);
    assert_eq!(from.elapsed(), Duration::from_secs(1));
}

/// Callers that already wait for a place learn that the gate closed.
#[tokio::test(start_paused = true)]
async fn waiting_callers_learn_of_a_refusal() {
    let gate = Gate::new();
    let first = gate.enter(1).await;
    let waiting = tokio::spawn({
        let gate = Arc::clone(&gate);
        async move { gate.enter(1).await }
    });
    tokio::task::yield_now().await;
    let from = Instant::now();
    first.refused(Some(3_000), 0.0);
    drop(first);
    drop(waiting.await.unwrap());
    assert_eq!(from.elapsed(), Duration::from_secs(3));
}

/// Never before the time that was asked for, at most a tenth later, and never longer than the bound.
#[test]
fn closings_are_bounded() {
    for lot in [0.0, 0.5, 0.999] {
        for asked_ms in [0, 50, 1_000, 60_000] {
            let wait_ms = closing_ms(1, Some(asked_ms), lot);
            assert!((asked_ms..=asked_ms + asked_ms / 10).contains(&wait_ms));
        }
        assert!(closing_ms(1, Some(u64::MAX), lot) <= GATE_MAX_MS + GATE_MAX_MS / 10);
        for in_row in [0, 1, 5, 63, 64, u32::MAX] {
            assert!(closing_ms(in_row, None, lot) <= GATE_BACKOFF_MAX_MS);
        }
    }
}

/// BR-100: 200 callers on an account that takes 10 requests a second. All finish, the server sees few in vain.
#[tokio::test(start_paused = true)]
async fn two_hundred_callers_do_not_storm() {
    let gate = Gate::new();
    let (sent, taken) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new((Instant::now(), 0))));
    let callers = (0..200).map(|_| {
        let (gate, sent, taken) = (Arc::clone(&gate), Arc::clone(&sent), Arc::clone(&taken));
        tokio::spawn(async move {
            loop {
                let permit = gate.enter(16).await;
                sent.fetch_add(1, SeqCst);
                tokio::time::sleep(Duration::from_millis(30)).await;
                let ok = {
                    let mut window = taken.lock().unwrap();
                    if window.0.elapsed() >= Duration::from_secs(1) {
                        *window = (Instant::now(), 0);
                    }
                    window.1 += 1;
                    window.1 <= 10
                };
                if ok {
                    return permit.accepted();
                }
                permit.refused(Some(1_000), 0.5);
            }
        })
    });
    let from = Instant::now();
    for caller in futures::future::join_all(callers).await {
        caller.unwrap();
    }
    assert!(from.elapsed() < Duration::from_secs(45), "{:?}", from.elapsed());
    assert!(sent.load(SeqCst) < 350, "{} requests", sent.load(SeqCst));
    assert_eq!(left(&gate), (0, 0));
}
