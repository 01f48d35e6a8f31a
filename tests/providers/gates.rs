//! Many agents on one account (BR-100).

use crate::{
    server::Server,
    world::{OPENAI, adapter, ask, config},
};
use everturn::{providers::ProviderConfig, storage::message::code};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

/// At most `max_concurrent` requests are at the provider at once, over all providers of the account.
#[tokio::test]
async fn requests_at_once_are_limited() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (inside, peak) = (Arc::clone(&now), Arc::clone(&most));
    let server = Server::start(move |_, _, mut connection| {
        let (inside, peak) = (Arc::clone(&inside), Arc::clone(&peak));
        async move {
            peak.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
            connection.stream().await;
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            inside.fetch_sub(1, SeqCst);
            connection.send(OPENAI).await;
        }
    })
    .await;
    let config = ProviderConfig { max_concurrent: Some(4), ..config("openai", &server.url) };
    let adapters = [adapter(&config), adapter(&config)];
    let callers = (0..200).map(|at| {
        let adapter = Arc::clone(&adapters[at % 2]);
        tokio::spawn(async move { ask(adapter.as_ref()).await })
    });
    for answer in futures::future::join_all(callers).await {
        assert_eq!(answer.unwrap().unwrap(), "hello");
    }
    assert_eq!(server.requests(), 200);
    assert!((2..=4).contains(&most.load(SeqCst)), "{} at once", most.load(SeqCst));
}

/// A refusal holds back everybody on the account for as long as was asked; then they go one after the other.
#[tokio::test]
async fn a_refusal_holds_back_the_account() {
    let server = Server::start(|number, _, mut connection| async move {
        if number < 8 {
            let headers = "retry-after-ms: 300\r\n";
            connection.answer("429 Too Many Requests", headers, "{\"error\":{\"message\":\"slow\"}}").await;
        } else {
            connection.stream().await;
            connection.send(OPENAI).await;
        }
    })
    .await;
    let adapter = adapter(&config("openai", &server.url));
    let crowd = |count: usize| {
        let callers = (0..count).map(|_| {
            let adapter = Arc::clone(&adapter);
            tokio::spawn(async move { ask(adapter.as_ref()).await })
        });
        futures::future::join_all(callers)
    };
    let from = Instant::now();
    for answer in crowd(8).await {
        assert_eq!(answer.unwrap().unwrap_err().code, code::RATE_LIMIT);
    }
    for answer in crowd(50).await {
        assert_eq!(answer.unwrap().unwrap(), "hello");
    }
    assert!(from.elapsed() >= Duration::from_millis(300), "{:?}", from.elapsed());
    assert_eq!(server.requests(), 58);
    // Another account is not held back.
    let other = Server::events(OPENAI).await;
    assert_eq!(ask(crate::world::adapter(&config("openai", &other.url)).as_ref()).await.unwrap(), "hello");
}
