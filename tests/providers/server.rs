//! A server that answers as it is told, and counts its connections.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: serde_json::Value,
}

/// The connection of one request.
pub(crate) struct Connection {
    stream: TcpStream,
}

impl Connection {
    /// Sends bytes; the peer may be gone.
    pub(crate) async fn send(&mut self, text: &str) {
        let _ = self.stream.write_all(text.as_bytes()).await;
        let _ = self.stream.flush().await;
    }

    /// Sends the head of an event stream that ends with the connection.
    pub(crate) async fn stream(&mut self) {
        self.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n").await;
    }

    /// Sends a whole answer.
    pub(crate) async fn answer(&mut self, status: &str, headers: &str, body: &str) {
        let length = body.len();
        self.send(&format!(
            "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        ))
        .await;
    }

    /// Waits until the peer closes.
    pub(crate) async fn closed(&mut self) {
        let mut buffer = [0; 1_024];
        while self.stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
    }
}

type Handler = dyn Fn(usize, Asked, Connection) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// The server.
pub(crate) struct Server {
    pub(crate) url: String,
    /// Open connections.
    pub(crate) open: watch::Receiver<usize>,
    /// Everything that was asked, in order.
    pub(crate) asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// A server that hands each request, with its number from 0, to `handler`.
    pub(crate) async fn start<F, R>(handler: F) -> Self
    where
        F: Fn(usize, Asked, Connection) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let handler: Arc<Handler> =
            Arc::new(move |number, asked, connection| Box::pin(handler(number, asked, connection)));
        let (count, open) = watch::channel(0);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (numbers, log) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&asked));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (handler, count, numbers, log) =
                    (Arc::clone(&handler), count.clone(), Arc::clone(&numbers), Arc::clone(&log));
                tokio::spawn(async move {
                    count.send_modify(|count| *count += 1);
                    let mut connection = Connection { stream };
                    if let Some(asked) = read(&mut connection.stream).await {
                        log.lock().unwrap().push(asked.clone());
                        handler(numbers.fetch_add(1, SeqCst), asked, connection).await;
                    }
                    count.send_modify(|count| *count -= 1);
                });
            }
        });
        Self { url, open, asked }
    }

    /// A server that answers every request with these events.
    pub(crate) async fn events(events: &'static str) -> Self {
        Self::start(move |_, _, mut connection| async move {
            connection.stream().await;
            connection.send(events).await;
        })
        .await
    }

    /// Waits until no connection is open.
    pub(crate) async fn quiet(&mut self) {
        self.open.wait_for(|open| *open == 0).await.unwrap();
    }

    pub(crate) fn requests(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

async fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        let mut buffer = [0; 4_096];
        let read = stream.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&buffer[..read]);
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    while bytes.len() < end + length {
        let mut buffer = [0; 4_096];
        let read = stream.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&buffer[..read]);
    }
    let body = serde_json::from_slice(&bytes[end..]).unwrap_or_default();
    Some(Asked { path, headers, body })
}
