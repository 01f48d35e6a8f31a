//! `fetch` against real servers on loopback.

use super::*;
use everturn_actors::ports::Signal;
use everturn_storage::{
    event::Cause,
    ids::{CallId, SessionId, Step, Turn},
    message::plain_text,
};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

/// A context for a call outside any session.
pub(in crate::tools) fn context() -> ToolContext {
    ToolContext::new(SessionId::trusted("s"), Turn(1), Step(1), CallId::trusted("c"), Signal::new())
}

/// A server that answers each request with what `answer` makes of its head, in pieces of `piece` bytes.
struct Server {
    at: SocketAddr,
    asked: Arc<AtomicUsize>,
}

impl Server {
    async fn start(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::piecewise(usize::MAX, answer).await
    }

    async fn piecewise(piece: usize, answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, asked) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let (count, answer) = (Arc::clone(&asked), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let answer = Arc::clone(&answer);
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        match stream.read_u8().await {
                            Ok(byte) => head.push(byte),
                            Err(_) => return,
                        }
                    }
                    let answer = answer(&String::from_utf8(head).unwrap());
                    for piece in answer.chunks(piece.min(answer.len().max(1))) {
                        // The client may have had enough.
                        if stream.write_all(piece).await.is_err() || stream.flush().await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { at, asked }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at)
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn reply(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn text(body: &[u8]) -> Vec<u8> {
    reply("200 OK", "content-type: text/plain; charset=utf-8\r\n", body)
}

fn fetch(allow: &[SocketAddr], max_bytes: u64) -> Fetch {
    let allow = allow.iter().map(ToString::to_string).collect();
    Fetch::new(&FetchConfig { allow, max_bytes, ..FetchConfig::default() }).unwrap()
}

async fn run(tool: &Fetch, url: &str) -> Result<ToolOutput, ToolFailure> {
    tool.run(json!({ "url": url }), context()).await
}

/// The code and the text of a failure.
async fn fails(tool: &Fetch, url: &str) -> (String, String) {
    let failure = run(tool, url).await.unwrap_err();
    (failure.code.unwrap(), plain_text(&failure.content))
}

/// SURFACE 7: the body as text; status, type and size in `meta`; a GET without a body and without a referer.
#[tokio::test]
async fn gets_text_with_meta() {
    let server = Server::start(|head| {
        assert!(head.starts_with("GET /a?b=c HTTP/1.1\r\n"), "{head}");
        assert!(!head.to_lowercase().contains("referer"), "{head}");
        text("hé\0llo".as_bytes())
    })
    .await;
    let tool = fetch(&[server.at], 1_000);
    let got = run(&tool, &server.url("/a?b=c#frag")).await.unwrap();
    assert_eq!(plain_text(&got.content), "hé\0llo");
    let meta = got.meta.unwrap().to_value();
    assert_eq!((&meta["status"], &meta["type"], &meta["size"]), (&json!(200), &json!("text/plain"), &json!(7)));
    assert!(tool.parallel_safe(&json!({})) && tool.abandonable() && tool.timeout_ms() == Some(30_000));
}

/// A character that arrives in two packets is one character.
#[tokio::test]
async fn characters_survive_packets() {
    let server = Server::piecewise(1, |_| text("中🦀é".repeat(20).as_bytes())).await;
    let got = run(&fetch(&[server.at], 1_000), &server.url("/")).await.unwrap();
    assert_eq!(plain_text(&got.content), "中🦀é".repeat(20));
}

/// SURFACE 7: a status of 400 and above is an error result that still shows the body.
#[tokio::test]
async fn an_error_status_is_an_error() {
    let server = Server::start(|_| reply("404 Not Found", "content-type: text/plain\r\n", b"no such page")).await;
    let failure = run(&fetch(&[server.at], 1_000), &server.url("/")).await.unwrap_err();
    assert_eq!(failure.code.as_deref(), Some("FETCH_STATUS"));
    assert_eq!(plain_text(&failure.content), "HTTP 404 Not Found\n\nno such page");
    assert_eq!(failure.meta.unwrap().to_value()["status"], 404);
}

/// `max_bytes` bounds what is read, also of a body without an end.
#[tokio::test]
async fn a_long_body_is_cut() {
    let server = Server::start(|_| {
        let endless = "é".repeat(100_000);
        [b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n", endless.as_bytes()].concat()
    })
    .await;
    let got = run(&fetch(&[server.at], 101), &server.url("/")).await.unwrap();
    assert_eq!(plain_text(&got.content), format!("{}\n[cut: only the first 101 bytes were read]", "é".repeat(50)));
    let exact = Server::start(|_| text(&[b'x'; 101])).await;
    let got = run(&fetch(&[exact.at], 101), &exact.url("/")).await.unwrap();
    assert_eq!(got.meta.unwrap().to_value()["cut"], false);
}

/// A body that is no text is described.
#[tokio::test]
async fn no_text_is_described() {
    let server = Server::start(|_| reply("200 OK", "content-type: image/png\r\n", &[0; 64])).await;
    let got = run(&fetch(&[server.at], 1_000), &server.url("/")).await.unwrap();
    assert_eq!(plain_text(&got.content), "[a body of image/png, 64 bytes, is no text and is left out]");
}

/// Without a word in `allow` nothing private is even connected to, however it is named.
#[tokio::test]
async fn private_addresses_are_not_asked() {
    let server = Server::start(|_| text(b"secret")).await;
    let port = server.at.port();
    let tool = fetch(&[], 1_000);
    for host in ["127.0.0.1", "localhost", "127.1", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0", "169.254.169.254"] {
        let (code, said) = fails(&tool, &format!("http://{host}:{port}/")).await;
        assert_eq!(code, "FETCH_REFUSED", "{host}: {said}");
        assert!(said.contains("[tools.fetch] allow"), "{said}");
    }
    // Another port of the same host is another address.
    let other = fetch(&["127.0.0.1:1".parse().unwrap()], 1_000);
    assert_eq!(fails(&other, &server.url("/")).await.0, "FETCH_REFUSED");
    assert_eq!(server.asked(), 0);
}

/// What is no plain web address is refused with a reason.
#[tokio::test]
async fn odd_addresses_are_refused() {
    let tool = fetch(&[], 1_000);
    for (url, code) in [
        ("", "FETCH_URL"),
        ("example.com", "FETCH_URL"),
        ("file:///etc/passwd", "FETCH_REFUSED"),
        ("http://u:p@example.com/", "FETCH_REFUSED"),
        ("data:text/plain,x", "FETCH_REFUSED"),
    ] {
        let (got, said) = fails(&tool, url).await;
        assert_eq!(got, code, "{url}: {said}");
        assert!(!said.contains("u:p"), "{said}");
    }
}

/// Every hop of a redirect is checked as the first one is, and there are at most five.
#[tokio::test]
async fn redirects_are_checked_and_bounded() {
    let secret = Server::start(|_| text(b"secret")).await;
    let target = secret.url("/");
    let server = Server::start(move |head| {
        let path = head.split(' ').nth(1).unwrap_or_default();
        let to = match path.strip_prefix("/hop") {
            Some("0") => return text(b"there"),
            Some(left) => format!("hop{}", left.parse::<u32>().unwrap() - 1),
            None if path == "/out" => target.clone(),
            None if path == "/file" => "file:///etc/passwd".to_owned(),
            None if path == "/user" => "http://u:p@127.0.0.1/".to_owned(),
            None => "/loop".to_owned(),
        };
        reply("302 Found", &format!("location: {to}\r\n"), b"")
    })
    .await;
    let tool = fetch(&[server.at], 1_000);
    let got = run(&tool, &server.url("/hop5")).await.unwrap();
    assert_eq!(plain_text(&got.content), "there");
    assert_eq!(got.meta.unwrap().to_value()["url"], server.url("/hop0"));
    let (code, said) = fails(&tool, &server.url("/hop6")).await;
    assert!(code == "FETCH_FAILED" && said.contains("more than 5"), "{said}");
    assert_eq!(fails(&tool, &server.url("/loop")).await.0, "FETCH_FAILED");
    for path in ["/out", "/file", "/user"] {
        assert_eq!(fails(&tool, &server.url(path)).await.0, "FETCH_REFUSED", "{path}");
    }
    assert_eq!(secret.asked(), 0);
}

/// Scenario 111: the signal ends a fetch that nobody answers, at once.
#[tokio::test]
async fn the_signal_ends_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (tool, ctx) = (Arc::new(fetch(&[at], 1_000)), context());
    let signal = ctx.signal.clone();
    let fetching = tokio::spawn(async move { tool.run(json!({ "url": format!("http://{at}/") }), ctx).await });
    let (mut stream, _) = listener.accept().await.unwrap();
    signal.fire(Cause::User);
    assert!(fetching.await.unwrap().is_err());
    // The connection is given up too: what was sent ends.
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.ok();
}

/// A connection that breaks off is an error with its cause, without the address.
#[tokio::test]
async fn a_broken_answer_is_an_error() {
    let server = Server::start(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort".to_vec()).await;
    let (code, said) = fails(&fetch(&[server.at], 1_000), &server.url("/?key=secret")).await;
    assert!(code == "FETCH_FAILED" && said.contains("broke off") && !said.contains("secret"), "{said}");
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (code, said) = fails(&fetch(&[closed], 1_000), &format!("http://{closed}/?key=secret")).await;
    assert!(code == "FETCH_FAILED" && said.contains("refused") && !said.contains("secret"), "{said}");
}
