//! Connections that break, and providers that fall silent.

use crate::{
    server::Server,
    world::{OPENAI, OPENAI_BEGINNING, adapter, ask, config, dispatch, outcome, prepare},
};
use everturn::{
    actors::ports::Signal,
    providers::ProviderConfig,
    storage::{
        chunk::Chunk,
        message::{Failure, code},
    },
};
use futures::StreamExt;
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket},
    time::Instant,
};

fn code_of(got: Result<String, Failure>) -> String {
    got.map_or_else(|failure| failure.code, |text| format!("answer {text}"))
}

/// BR-067, Z14: a clean end is judged by what was seen; a broken connection is a transport failure.
#[tokio::test]
async fn ends_and_breaks() {
    let chunked = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let piece = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let plain = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let short = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n";
    for (sent, wanted) in [
        (format!("{plain}{OPENAI}"), "answer hello"),
        (format!("{chunked}{}0\r\n\r\n", piece(OPENAI)), "answer hello"),
        (format!("{plain}{OPENAI_BEGINNING}"), "STREAM_CLOSED"),
        (format!("{chunked}{}0\r\n\r\n", piece(OPENAI_BEGINNING)), "STREAM_CLOSED"),
        (plain.to_owned(), "TRANSPORT"),
        (format!("{chunked}{}", piece(OPENAI_BEGINNING)), "TRANSPORT"),
        (format!("{chunked}ff\r\n{OPENAI_BEGINNING}"), "TRANSPORT"),
        (format!("{short}{OPENAI_BEGINNING}"), "TRANSPORT"),
        // The answer was complete when the connection broke.
        (format!("{chunked}{}", piece(OPENAI)), "answer hello"),
        (format!("{short}{}", OPENAI.replace("data: [DONE]\n\n", "")), "answer hello"),
        ("HTTP/1.1 200".to_owned(), "TRANSPORT"),
        ("nonsense\r\n\r\n".to_owned(), "TRANSPORT"),
        (String::new(), "TRANSPORT"),
    ] {
        let answer = sent.clone();
        let server = Server::start(move |_, _, mut connection| {
            let answer = answer.clone();
            async move { connection.send(&answer).await }
        })
        .await;
        assert_eq!(code_of(ask(adapter(&config("openai", &server.url)).as_ref()).await), wanted, "{sent:?}");
    }
}

/// Nobody listens, or somebody who speaks otherwise.
#[tokio::test]
async fn nobody_there() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    drop(listener);
    let failure = ask(adapter(&config("openai", &url)).as_ref()).await.unwrap_err();
    assert_eq!(failure.code, code::TRANSPORT);
    assert!(failure.message.contains("cannot be reached"), "{}", failure.message);
    // Plain text where TLS is expected: servers answer what they cannot read.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/v1", listener.local_addr().unwrap());
    let answering = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n").await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.ok();
    });
    let failure = ask(adapter(&config("openai", &url)).as_ref()).await.unwrap_err();
    assert_eq!(failure.code, code::TRANSPORT, "{failure:?}");
    answering.await.unwrap();
}

/// 5.5: a connection that is not made in time.
#[tokio::test]
async fn connecting_is_limited() {
    // A full backlog takes no more connections.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    for _ in 0..8 {
        waiting.push(tokio::spawn(tokio::net::TcpStream::connect(address)));
        tokio::task::yield_now().await;
    }
    let config = ProviderConfig { connect_timeout_ms: Some(200), ..config("openai", &format!("http://{address}/v1")) };
    let failure = ask(adapter(&config).as_ref()).await.unwrap_err();
    assert_eq!(failure.code, code::TIMEOUT, "{failure:?}");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Begins an answer, then stops the clock of the test, so that only timers can go on.
async fn begun(server: &Server, change: fn(&mut ProviderConfig)) -> (everturn::actors::ports::ChunkStream, Vec<Chunk>) {
    let mut config = config("openai", &server.url);
    change(&mut config);
    let mut stream = dispatch(prepare(adapter(&config).as_ref()).await, &Signal::new());
    let mut chunks = Vec::new();
    while !matches!(chunks.last(), Some(Chunk::TextDelta { .. })) {
        chunks.push(stream.next().await.unwrap());
    }
    tokio::time::pause();
    (stream, chunks)
}

/// BR-068, L-21: silence is limited; keep-alives do not count as content.
#[tokio::test]
async fn silence_is_limited() {
    for keep_alive in ["", ": keep-alive\n\n", "data: {\"choices\":[]}\n\n"] {
        let mut server = Server::start(move |_, _, mut connection| async move {
            connection.stream().await;
            connection.send(OPENAI_BEGINNING).await;
            // The clock stands still by then, so nobody really waits.
            let mut pace = tokio::time::interval(Duration::from_secs(10));
            let talk = async {
                loop {
                    pace.tick().await;
                    connection.send(keep_alive).await;
                }
            };
            let _ = tokio::time::timeout(Duration::from_secs(3_600), talk).await;
        })
        .await;
        let (mut stream, mut chunks) = begun(&server, |config| config.idle_timeout_ms = Some(60_000)).await;
        let from = Instant::now();
        chunks.extend(stream.by_ref().collect::<Vec<_>>().await);
        let failure = outcome(&chunks).unwrap_err();
        assert_eq!(failure.code, code::TIMEOUT);
        assert!((60..62).contains(&from.elapsed().as_secs()), "{keep_alive:?} {:?}", from.elapsed());
        server.quiet().await;
        tokio::time::resume();
    }
}

/// 5.5: an answer that goes on for ever is limited in total.
#[tokio::test]
async fn answers_are_limited_in_total() {
    let server = Server::start(|_, _, mut connection| async move {
        connection.stream().await;
        let mut pace = tokio::time::interval(Duration::from_secs(10));
        for _ in 0..10_000 {
            connection.send(OPENAI_BEGINNING).await;
            pace.tick().await;
        }
    })
    .await;
    let (mut stream, mut chunks) = begun(&server, |config| config.total_timeout_ms = Some(100_000)).await;
    let from = Instant::now();
    chunks.extend(stream.by_ref().collect::<Vec<_>>().await);
    assert_eq!(outcome(&chunks).unwrap_err().code, code::TIMEOUT);
    assert!((90..101).contains(&from.elapsed().as_secs()), "{:?}", from.elapsed());
}

/// A provider that says how the answer ends and then neither closes nor says more does not hold the turn.
#[tokio::test]
async fn a_complete_answer_is_not_held() {
    let server = Server::start(|_, _, mut connection| async move {
        connection.stream().await;
        connection.send(&OPENAI.replace("data: [DONE]\n\n", "")).await;
        connection.closed().await;
    })
    .await;
    let (mut stream, mut chunks) = begun(&server, |_| ()).await;
    let from = Instant::now();
    chunks.extend(stream.by_ref().collect::<Vec<_>>().await);
    assert_eq!(outcome(&chunks).unwrap(), "hello");
    assert!(from.elapsed() <= Duration::from_secs(6), "{:?}", from.elapsed());
}

/// Endless lines, endless bodies: typed errors, and the connection is closed.
#[tokio::test]
async fn floods_are_cut() {
    let block = "x".repeat(1 << 20);
    for (head, wanted) in [("data: ", code::MALFORMED_RESPONSE), ("<html>", code::INVALID_RESPONSE)] {
        let block = block.clone();
        let mut server = Server::start(move |_, _, mut connection| {
            let block = block.clone();
            async move {
                connection.stream().await;
                connection.send(head).await;
                for _ in 0..100 {
                    connection.send(&block).await;
                }
                connection.closed().await;
            }
        })
        .await;
        assert_eq!(ask(adapter(&config("openai", &server.url)).as_ref()).await.unwrap_err().code, wanted);
        server.quiet().await;
    }
}
