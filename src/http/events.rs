//! Reading: events, the stream, the derived history.

use super::{
    App,
    errors::ApiError,
    extract::{Asked, session_id},
    sessions::page_limit,
};
use crate::{
    follow::{Followed, Follower},
    wire,
};
use axum::{
    Json,
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, header},
    response::{
        IntoResponse, Response, Sse,
        sse::{self, KeepAlive},
    },
};
use everturn_actors::handle::Frame;
use everturn_storage::{
    ids::{Seq, SessionId},
    limits::READ_MAX_EVENTS,
    log::request::derive_messages,
};
use futures::Stream;
use serde::Deserialize;
use serde_json::json;
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// Bytes of one page of events, about; one event may exceed it.
const PAGE_BYTES: usize = 8 * 1024 * 1024;

/// No log is this long; larger numbers of a request count as this one.
const SEQ_MAX: u64 = 1 << 53;

/// How often a quiet stream says that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Range {
    #[serde(default)]
    from: u64,
    limit: Option<usize>,
}

/// Durable events. The text of an event is that of its export, byte for byte.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Asked(range): Asked<Range>,
) -> Result<Response, ApiError> {
    let id = session_id(&id)?;
    let limit = page_limit(range.limit, READ_MAX_EVENTS, READ_MAX_EVENTS)?;
    // A session that is not live has no event that is not durable.
    let durable = match app.system.live(&id) {
        Some(handle) => *handle.durable().await.borrow(),
        None => Some(Seq(SEQ_MAX)),
    };
    let events = app.system.events(&id, Seq(range.from.min(SEQ_MAX)), limit).await?;
    let full = events.len() == limit;
    let mut body = String::from("{\"events\":[");
    let mut next = None;
    let mut last = None;
    for event in events {
        if durable.is_none_or(|durable| durable < event.seq) {
            last = None;
            break;
        }
        if body.len() > PAGE_BYTES {
            next = Some(event.seq);
            break;
        }
        if last.is_some() {
            body.push(',');
        }
        body.push_str(&wire::event(&id, &event));
        last = Some(event.seq);
    }
    if let (true, None, Some(last)) = (full, next, last)
        && !app.system.events(&id, last.next(), 1).await?.is_empty()
    {
        next = Some(last.next());
    }
    body.push(']');
    if let Some(next) = next {
        body.push_str(&format!(",\"next\":{next}"));
    }
    body.push('}');
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from(body)).into_response())
}

pub(super) async fn history(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let snapshot = app.open(&id).await?.snapshot().await?;
    let messages: Vec<_> = derive_messages(snapshot.view.surface()).iter().filter_map(wire::message).collect();
    Ok(Json(json!({"messages": messages})).into_response())
}

/// Where a client was: a number that this session has given out, or 400 (BR-148).
fn last_event_id(headers: &HeaderMap) -> Result<Option<Seq>, ApiError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    match value.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok()) {
        Some(seq) => Ok(Some(Seq(seq.min(SEQ_MAX)))),
        None => {
            Err(ApiError::malformed("Last-Event-ID is the seq of an event; leave it out to begin with the next one"))
        }
    }
}

pub(super) async fn stream(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let last = last_event_id(&headers)?;
    let id = session_id(&id)?;
    let handle = app.system.open(&id).await?;
    let frames = handle.frames().await;
    let follower = Follower::new(app.system.clone(), handle, last.map(Seq::next)).await;
    if last.is_some_and(|last| last >= follower.live_from()) {
        return Err(ApiError::malformed(format!(
            "Last-Event-ID is from the future: the next event of this session is {}",
            follower.live_from()
        )));
    }
    let state = Streaming { app, id, follower, frames: Some(frames) };
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive");
    let mut response = Sse::new(events(state)).keep_alive(keep_alive).into_response();
    // Buffering proxies would hold events back.
    response.headers_mut().insert("x-accel-buffering", header::HeaderValue::from_static("no"));
    Ok(response)
}

struct Streaming {
    app: Arc<App>,
    id: SessionId,
    follower: Follower,
    frames: Option<mpsc::Receiver<Frame>>,
}

/// The stream is pulled by its reader: a slow one is told that it lags, and holds nobody up.
fn events(state: Streaming) -> impl Stream<Item = Result<sse::Event, Infallible>> + Send {
    futures::stream::unfold(Some(state), |state| async move {
        let mut state = state?;
        let (event, go_on) = state.next().await?;
        Some((Ok(event), go_on.then_some(state)))
    })
}

impl Streaming {
    /// The next event and whether more may follow; `None` at the end.
    async fn next(&mut self) -> Option<(sse::Event, bool)> {
        loop {
            let frames = &mut self.frames;
            let frame = async {
                match frames {
                    Some(receiver) => receiver.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                followed = self.follower.next() => {
                    return match followed {
                        Ok(Some(Followed::Event(event))) => {
                            let data = wire::event(&self.id, &event);
                            let named = sse::Event::default().event(event.body.data.type_name());
                            Some((named.id(event.seq.to_string()).data(data), true))
                        }
                        Ok(Some(Followed::Lagged(from))) => {
                            Some((sse::Event::default().event("lagged").data(json!({"from": from}).to_string()), false))
                        }
                        Ok(None) => None,
                        Err(error) => {
                            tracing::warn!(session = %self.id, %error, "a stream ended early");
                            None
                        }
                    };
                }
                frame = frame => match frame {
                    Some(frame) => {
                        let data = serde_json::to_string(&frame).ok()?;
                        return Some((sse::Event::default().event("frame").data(data), true));
                    }
                    // The actors were restarted or are gone; frames are a courtesy, the events go on.
                    None => *frames = None,
                },
                () = self.app.closing.cancelled() => return None,
            }
        }
    }
}
