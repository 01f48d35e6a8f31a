//! Cancelling, and letting go.

use crate::{
    server::Server,
    world::{OPENAI_BEGINNING, adapter, asks, config, dispatch, prepare},
};
use everturn::{
    actors::ports::Signal,
    providers::ProviderConfig,
    storage::{
        chunk::{Chunk, Finish},
        event::Cause,
        message::code,
    },
};
use futures::StreamExt;

/// What the server has done before it holds its breath.
async fn holding(stage: usize) -> Server {
    Server::start(move |_, _, mut connection| async move {
        if stage > 0 {
            connection.stream().await;
        }
        if stage > 1 {
            connection.send(OPENAI_BEGINNING).await;
        }
        connection.closed().await;
    })
    .await
}

/// L-20: the signal ends the stream with `aborted` and closes the connection, at every stage of an answer.
#[tokio::test]
async fn a_cancel_closes_the_connection() {
    for stage in 0..3 {
        let mut server = holding(stage).await;
        let signal = Signal::new();
        let mut stream = dispatch(prepare(adapter(&config("openai", &server.url)).as_ref()).await, &signal);
        let collecting = tokio::spawn(async move {
            let chunks: Vec<Chunk> = stream.by_ref().collect().await;
            (chunks, stream)
        });
        server.open.wait_for(|open| *open == 1).await.unwrap();
        signal.fire(Cause::User);
        let (chunks, stream) = collecting.await.unwrap();
        assert_eq!(chunks.last(), Some(&Chunk::Finish { finish: Finish::Aborted }), "stage {stage}");
        // The stream still lives; the connection does not.
        server.quiet().await;
        drop(stream);
    }
}

/// Dropping the stream releases everything.
#[tokio::test]
async fn a_dropped_stream_closes_the_connection() {
    let mut server = holding(2).await;
    let config = ProviderConfig { max_concurrent: Some(1), ..config("openai", &server.url) };
    let adapter = adapter(&config);
    let mut stream = dispatch(prepare(adapter.as_ref()).await, &Signal::new());
    stream.next().await.unwrap();
    assert_eq!(*server.open.borrow(), 1);
    drop(stream);
    server.quiet().await;
    // Its place is free again, and so is that of a call that is never sent.
    drop(prepare(adapter.as_ref()).await);
    drop(prepare(adapter.as_ref()).await);
}

/// A signal that fired before, or while waiting for a place: nothing is sent.
#[tokio::test]
async fn a_cancel_before_the_request() {
    let server = holding(0).await;
    let config = ProviderConfig { max_concurrent: Some(1), ..config("openai", &server.url) };
    let adapter = adapter(&config);
    let fired = Signal::new();
    fired.fire(Cause::User);
    let held = prepare(adapter.as_ref()).await;
    assert_eq!(adapter.prepare(asks(), fired.clone()).await.unwrap_err().code, code::ABORTED);
    let signal = Signal::new();
    let (refused, ()) = tokio::join!(adapter.prepare(asks(), signal.clone()), async { signal.fire(Cause::User) });
    assert_eq!(refused.unwrap_err().code, code::ABORTED);
    let chunks: Vec<Chunk> = dispatch(held, &fired).collect().await;
    assert_eq!(chunks, [Chunk::Finish { finish: Finish::Aborted }]);
    assert_eq!(server.requests(), 0);
}
