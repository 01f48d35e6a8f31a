//! One request and its answer: from the first byte sent to the last chunk, under the signal and the clocks.
//!
//! Nothing runs in the background. The exchange moves only while its stream is polled, so dropping the stream closes
//! the connection at once, and a slow consumer slows the provider instead of filling memory.

use super::{
    blocks::Blocks,
    classify::{http_failure, request_id, snippet},
    client::transport_failure,
    gate::Permit,
    limits::{BODY_MAX_BYTES, ERROR_BODY_MAX_MS, FINISH_GRACE_MS, RESPONSE_MAX_BYTES},
    secret::{Secret, scrub},
    sse::{SseEvent, SseParser},
};
use everturn_actors::ports::{ChunkStream, Signal};
use everturn_storage::{
    chunk::{Chunk, Finish},
    message::{Failure, code},
};
use futures::{StreamExt as _, future::BoxFuture, stream};
use reqwest::{Request, Response};
use std::{
    collections::VecDeque,
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

/// Reads the events of one answer. Pure: it is given events and gives chunks.
pub(super) trait Mapper: Send {
    /// Takes the next event, or a whole answer that came without a stream.
    fn event(&mut self, event: &SseEvent);
    /// Takes the clean end of the stream.
    fn eof(&mut self);
    /// Ends the answer from outside.
    fn stop(&mut self, finish: Finish);
    /// Whether the provider has said how the answer ends; only counts can follow.
    fn labelled(&self) -> bool;
    /// The chunks.
    fn blocks(&mut self) -> &mut Blocks;
}

/// The clocks of a route.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Clocks {
    /// From dispatch to the end.
    pub(super) total: Option<Duration>,
    /// Between two chunks, while the next one is waited for (L-21).
    pub(super) idle: Option<Duration>,
}

/// A request that is ready to be sent.
pub(super) struct Outgoing {
    pub(super) client: reqwest::Client,
    pub(super) request: Request,
    pub(super) mapper: Box<dyn Mapper>,
    pub(super) secret: Option<Secret>,
    pub(super) permit: Permit,
    pub(super) clocks: Clocks,
}

/// Sends the request and gives the chunks of its answer.
pub(super) fn run(outgoing: Outgoing, signal: Signal) -> ChunkStream {
    let Outgoing { client, request, mapper, secret, permit, clocks } = outgoing;
    let exchange = Exchange {
        phase: Phase::Sending(Box::pin(send(client, request))),
        queue: VecDeque::new(),
        parser: SseParser::default(),
        mapper,
        secret,
        permit: Some(permit),
        request_id: None,
        bytes: 0,
        total_at: clocks.total.map(|total| Instant::now() + total),
        idle: clocks.idle,
        grace_at: None,
        signal,
    };
    stream::unfold(exchange, |mut exchange| async move { exchange.next().await.map(|chunk| (chunk, exchange)) }).boxed()
}

/// What the provider said first.
enum Answer {
    Accepted(Response),
    Refused(Failure),
    Lost(reqwest::Error),
}

async fn send(client: reqwest::Client, request: Request) -> Answer {
    let mut response = match client.execute(request).await {
        Ok(response) => response,
        Err(error) => return Answer::Lost(error),
    };
    let status = response.status();
    if status.is_success() {
        return Answer::Accepted(response);
    }
    let mut body = Vec::new();
    let read = async {
        // The status decides already; of the body counts what comes.
        while let Ok(Some(bytes)) = response.chunk().await {
            body.extend_from_slice(&bytes);
            if body.len() >= BODY_MAX_BYTES {
                body.truncate(BODY_MAX_BYTES);
                return;
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(ERROR_BODY_MAX_MS), read).await;
    Answer::Refused(http_failure(status.as_u16(), response.headers(), &body, SystemTime::now()))
}

enum Phase {
    Sending(BoxFuture<'static, Answer>),
    /// Until the first byte shows whether this is a stream.
    Opening(Response),
    Streaming(Response),
    /// A body that is no stream.
    Whole(Response, Vec<u8>),
    Done,
}

/// What an await came to.
enum Came {
    Answer(Answer),
    Bytes(Result<Option<bytes::Bytes>, reqwest::Error>),
    Aborted,
    Expired(&'static str),
    /// The answer was complete, and nothing more came.
    Quiet,
}

struct Exchange {
    phase: Phase,
    queue: VecDeque<Chunk>,
    parser: SseParser,
    mapper: Box<dyn Mapper>,
    secret: Option<Secret>,
    permit: Option<Permit>,
    request_id: Option<String>,
    bytes: usize,
    total_at: Option<Instant>,
    idle: Option<Duration>,
    grace_at: Option<Instant>,
    signal: Signal,
}

impl Exchange {
    async fn next(&mut self) -> Option<Chunk> {
        let idle_at = self.idle.map(|idle| Instant::now() + idle);
        loop {
            if let Some(chunk) = self.queue.pop_front() {
                return Some(self.deliver(chunk));
            }
            if matches!(self.phase, Phase::Done) {
                self.permit = None;
                return None;
            }
            let came = self.wait(idle_at).await;
            self.take(came);
            self.queue.extend(self.mapper.blocks().take());
            if self.mapper.blocks().finished() {
                // The connection is closed before anybody is told.
                self.phase = Phase::Done;
            }
        }
    }

    /// Waits for whatever comes first.
    async fn wait(&mut self, idle_at: Option<Instant>) -> Came {
        let clocks = [
            (self.grace_at, Came::Quiet),
            (self.total_at, Came::Expired("the answer took longer than total_timeout_ms")),
            (idle_at, Came::Expired("the provider was silent for longer than idle_timeout_ms")),
        ];
        let first = clocks.into_iter().filter_map(|(at, came)| Some((at?, came))).min_by_key(|(at, _)| *at);
        let expiry = async {
            match first {
                Some((at, came)) => {
                    tokio::time::sleep_until(at).await;
                    came
                }
                None => std::future::pending().await,
            }
        };
        let progress = async {
            match &mut self.phase {
                Phase::Sending(answer) => Came::Answer(answer.await),
                Phase::Opening(response) | Phase::Streaming(response) | Phase::Whole(response, _) => {
                    Came::Bytes(response.chunk().await)
                }
                Phase::Done => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.signal.wait() => Came::Aborted,
            came = progress => came,
            came = expiry => came,
        }
    }

    fn take(&mut self, came: Came) {
        match came {
            Came::Answer(Answer::Accepted(response)) => {
                if let Some(permit) = &self.permit {
                    permit.accepted();
                }
                self.request_id = request_id(response.headers());
                self.phase = Phase::Opening(response);
            }
            Came::Answer(Answer::Refused(failure)) => self.fail(failure),
            Came::Answer(Answer::Lost(error)) => self.fail(transport_failure(&error)),
            Came::Bytes(Ok(Some(bytes))) => self.read(&bytes),
            Came::Bytes(Ok(None)) => self.end(),
            // The provider had said how the answer ends; only counts are lost.
            Came::Bytes(Err(_)) if self.mapper.labelled() => self.mapper.eof(),
            Came::Bytes(Err(error)) => self.fail(transport_failure(&error)),
            Came::Aborted => self.mapper.stop(Finish::Aborted),
            Came::Expired(why) => self.fail(Failure::new(code::TIMEOUT, why)),
            Came::Quiet => self.mapper.eof(),
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.mapper.stop(Finish::Error { failure });
    }

    fn read(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len());
        match std::mem::replace(&mut self.phase, Phase::Done) {
            Phase::Opening(response) => {
                let whole = is_whole(bytes);
                if whole == Some(true) {
                    self.phase = Phase::Whole(response, bytes.to_vec());
                } else {
                    self.phase = if whole.is_some() { Phase::Streaming(response) } else { Phase::Opening(response) };
                    self.feed(bytes);
                }
            }
            Phase::Streaming(response) => {
                self.phase = Phase::Streaming(response);
                if self.bytes > RESPONSE_MAX_BYTES {
                    let why = format!("the answer is larger than {RESPONSE_MAX_BYTES} bytes; ask for less");
                    return self.fail(Failure::new(code::MALFORMED_RESPONSE, why));
                }
                self.feed(bytes);
            }
            Phase::Whole(response, mut body) => {
                if body.len() + bytes.len() > BODY_MAX_BYTES {
                    return self.fail(no_stream(&body));
                }
                body.extend_from_slice(bytes);
                self.phase = Phase::Whole(response, body);
            }
            phase @ (Phase::Sending(_) | Phase::Done) => self.phase = phase,
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        let mut events = Vec::new();
        let fed = self.parser.feed(bytes, &mut events);
        for event in &events {
            self.mapper.event(event);
        }
        if let Err(error) = fed {
            self.fail(Failure::new(code::MALFORMED_RESPONSE, error.to_string()));
        }
        if self.mapper.labelled() && self.grace_at.is_none() {
            self.grace_at = Some(Instant::now() + Duration::from_millis(FINISH_GRACE_MS));
        }
    }

    /// The provider closed the stream in order.
    fn end(&mut self) {
        if let Phase::Whole(_, body) = std::mem::replace(&mut self.phase, Phase::Done) {
            return self.whole(&body);
        }
        if let Some(event) = std::mem::take(&mut self.parser).finish() {
            last_event(self.mapper.as_mut(), &event);
        }
        self.mapper.eof();
    }

    fn whole(&mut self, body: &[u8]) {
        whole_body(self.mapper.as_mut(), body);
    }

    /// Hands a chunk out; what it says of a failure holds no secret.
    fn deliver(&mut self, mut chunk: Chunk) -> Chunk {
        if let Chunk::Finish { finish } = &mut chunk {
            if let Finish::Error { failure } = finish {
                if failure.request_id.is_none() {
                    failure.request_id = self.request_id.take();
                }
                let crowded = failure.code == code::RATE_LIMIT
                    || (matches!(failure.status, Some(503 | 529)) && failure.retry_after_ms.is_some());
                if let Some(permit) = self.permit.as_ref().filter(|_| crowded) {
                    permit.refused(failure.retry_after_ms, rand::random());
                }
                scrub(self.secret.as_ref(), failure);
            }
            self.phase = Phase::Done;
            self.permit = None;
        }
        chunk
    }
}

/// What a recorded answer comes to, whole or cut; the same as when it comes over the network.
pub(super) fn replay(mapper: &mut dyn Mapper, bytes: &[u8]) -> Vec<Chunk> {
    if is_whole(bytes) == Some(true) {
        whole_body(mapper, bytes);
        return mapper.blocks().take().collect();
    }
    let (mut parser, mut events) = (SseParser::default(), Vec::new());
    let fed = parser.feed(bytes, &mut events);
    for event in &events {
        mapper.event(event);
    }
    match fed {
        Ok(()) => {
            if let Some(event) = parser.finish() {
                last_event(mapper, &event);
            }
            mapper.eof();
        }
        Err(error) => {
            let failure = Failure::new(code::MALFORMED_RESPONSE, error.to_string());
            mapper.stop(Finish::Error { failure });
        }
    }
    mapper.blocks().take().collect()
}

/// Whether a body is no event stream; unknown while it is blank.
///
/// No line of an event stream begins with these; a body that does is something else, whatever its content type says.
/// Some servers stream under a wrong type, so the type alone decides nothing.
fn is_whole(bytes: &[u8]) -> Option<bool> {
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace())?;
    Some(matches!(first, b'{' | b'[' | b'<'))
}

/// Takes what stood at the end without a blank line. A cut event is no JSON and says nothing.
pub(super) fn last_event(mapper: &mut dyn Mapper, event: &SseEvent) {
    let data = event.data.trim();
    if data == "[DONE]" || serde_json::from_str::<serde::de::IgnoredAny>(data).is_ok() {
        mapper.event(event);
    }
}

/// Reads an answer that came in one piece: an error, a whole answer, or something else altogether.
pub(super) fn whole_body(mapper: &mut dyn Mapper, body: &[u8]) {
    let Some(data) =
        std::str::from_utf8(body).ok().filter(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok())
    else {
        return mapper.stop(Finish::Error { failure: no_stream(body) });
    };
    mapper.event(&SseEvent { name: String::new(), data: data.to_owned() });
    if mapper.labelled() {
        mapper.eof();
    }
    if !mapper.blocks().finished() {
        mapper.stop(Finish::Error { failure: no_stream(body) });
    }
}

fn no_stream(body: &[u8]) -> Failure {
    let message =
        format!("the provider answered with something that is no stream of events; check base_url: {}", snippet(body));
    Failure::new(code::INVALID_RESPONSE, message)
}
