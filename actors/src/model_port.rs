//! The way to the models: one task for each prepare and for each attempt (5).
//!
//! The port holds nothing between its tasks. The adapter generation is in the prepared call (L-6), and a task ends
//! with the driver that asked: dropping it drops the stream, which releases the connection.

use crate::{
    fault,
    handle::Frame,
    limits::ABORT_GRACE_MS,
    ports::{ChunkStream, Dispatch, PrepareRequest, Prepared, Profiles, Signal, World},
    protocol::FrameSink,
    turn::{FailedBy, Outcome, Settlement},
};
use everturn_storage::{
    assemble::Assembler,
    chunk::{Chunk, Finish, StreamRecord},
    event::{AttemptId, FinishLabel, RequestConfig},
    ids::{CallId, MessageId, SessionId},
    limits::FAILURE_MESSAGE_MAX_BYTES,
    log::request::ModelRequest,
    message::{Failure, code, truncate_utf8},
};
use futures::{FutureExt, StreamExt};
use std::{panic::AssertUnwindSafe, time::Duration};
use tokio::{
    task::coop::consume_budget,
    time::{Instant, timeout, timeout_at},
};

/// Asks the present adapter of the proposed provider (S6). Every refusal is a route error (L-5).
///
/// Dropping the future gives the question up; the adapter has had no effect on the session then (L-3).
pub async fn prepare(profiles: &dyn Profiles, request: PrepareRequest, signal: Signal) -> Result<Prepared, Failure> {
    let asked = request.config.clone();
    if asked.provider.is_empty() || asked.model.is_empty() {
        let why = "no model is selected; set provider and model for the agent";
        return Err(Failure::new(code::NO_MODEL_SELECTED, why));
    }
    let Some(adapter) = profiles.adapter(&asked.provider) else {
        let why = format!("no provider {:?} is configured; add it, or choose another", asked.provider);
        return Err(Failure::new(code::NO_ADAPTER, why));
    };
    let session = request.session.clone();
    let answer = AssertUnwindSafe(async {
        match fault::failure("port.prepare", &session) {
            Some(why) => Err(Failure::new(code::UNKNOWN_MODEL, why)),
            None => adapter.prepare(request, signal).await,
        }
    });
    let answer = answer.catch_unwind().await;
    let Ok(answer) = answer else {
        return Err(Failure::new(code::UNKNOWN, format!("the adapter of {:?} panicked in prepare", asked.provider)));
    };
    let prepared = answer.map_err(bounded)?;
    keeps_explicit(&asked, &prepared.config)?;
    Ok(prepared)
}

/// L-2: what was asked for explicitly is what was prepared.
fn keeps_explicit(asked: &RequestConfig, got: &RequestConfig) -> Result<(), Failure> {
    fn kept<T: PartialEq>(asked: &Option<T>, got: &Option<T>) -> bool {
        asked.is_none() || asked == got
    }
    let changed = [
        ("provider", asked.provider == got.provider),
        ("model", asked.model == got.model),
        ("reasoning_effort", kept(&asked.reasoning_effort, &got.reasoning_effort)),
        ("temperature", kept(&asked.temperature, &got.temperature)),
        ("max_tokens", kept(&asked.max_tokens, &got.max_tokens)),
        ("stop", kept(&asked.stop, &got.stop)),
    ];
    match changed.iter().find(|(_, same)| !same) {
        None => Ok(()),
        Some((field, _)) => {
            let why = format!("the adapter of {:?} changed {field}, which was set explicitly", asked.provider);
            Err(Failure::new(code::INVALID_PREPARED_CALL, why))
        }
    }
}

/// What one attempt needs beside its call.
#[derive(Debug, Clone)]
pub struct AttemptContext {
    /// Whose.
    pub session: SessionId,
    /// Which attempt.
    pub id: AttemptId,
    /// The signal of the turn.
    pub signal: Signal,
    /// How long the provider may be silent (L-21).
    pub idle_timeout_ms: u64,
    /// Who watches.
    pub frames: FrameSink,
}

/// Sends the request, consumes the stream and says what is left of it (S10, S11).
///
/// It returns once the stream has finished, broke its grammar, fell silent, or did not end within
/// [`ABORT_GRACE_MS`] after the signal fired. The stream is dropped then, whatever it still holds (L-10).
pub async fn attempt(
    call: Box<dyn Dispatch>,
    request: ModelRequest,
    context: AttemptContext,
    world: &dyn World,
) -> Settlement {
    let mut taken = Taken { assembler: Assembler::new(), record: StreamRecord::default(), started: Instant::now() };
    let consumed = AssertUnwindSafe(async {
        if let Some(why) = fault::failure("port.dispatch", &context.session) {
            return End::Broken(Failure::new(code::SERVER, why));
        }
        let mut stream = call.dispatch(request, context.signal.clone());
        consume(&mut stream, &context, &mut taken).await
    });
    let end = consumed.catch_unwind().await.unwrap_or(End::Died);
    fault::reach("port.finished", &context.session);
    let outcome = if context.signal.fired() { Outcome::Cancelled } else { judge(&taken.assembler, end, world) };
    let message_id = MessageId::trusted(world.fresh_id());
    Settlement { outcome, usage: taken.assembler.usage(), stream: taken.record, message_id }
}

/// What has been taken of a stream. It outlives a panic of the code that consumes.
struct Taken {
    assembler: Assembler,
    record: StreamRecord,
    started: Instant,
}

/// Why nothing more is read.
enum End {
    /// The stream said so.
    Finished,
    /// The stream ended and did not say how.
    Closed,
    /// The provider is said to have failed (test builds).
    Broken(Failure),
    /// The stream broke its grammar.
    Malformed(Failure),
    /// The provider was silent for too long.
    Silent,
    /// The signal fired, and the provider did not end within the grace (L-20).
    Ignored,
    /// The code that consumes, or the adapter, panicked.
    Died,
}

async fn consume(stream: &mut ChunkStream, context: &AttemptContext, taken: &mut Taken) -> End {
    let idle = Duration::from_millis(context.idle_timeout_ms);
    loop {
        // The clock of the watchdog runs only here, while the next chunk is waited for (L-21).
        let next = tokio::select! {
            biased;
            () = context.signal.wait() => return drain(stream, context, taken).await,
            next = timeout(idle, stream.next()) => next,
        };
        match next {
            Err(_) => return End::Silent,
            Ok(None) => return End::Closed,
            Ok(Some(chunk)) => {
                if let Some(end) = take(chunk, context, taken) {
                    return end;
                }
            }
        }
        // A stream that is always ready must not keep everybody else from running.
        consume_budget().await;
    }
}

/// The signal fired: the provider has a moment to end the stream, and to say what it cost.
async fn drain(stream: &mut ChunkStream, context: &AttemptContext, taken: &mut Taken) -> End {
    let deadline = Instant::now() + Duration::from_millis(ABORT_GRACE_MS);
    loop {
        match timeout_at(deadline, stream.next()).await {
            Err(_) => return End::Ignored,
            Ok(None) => return End::Closed,
            Ok(Some(chunk)) => {
                if let Some(end) = take(chunk, context, taken) {
                    return end;
                }
            }
        }
        consume_budget().await;
        // A stream that is always ready must not outlive the grace.
        if Instant::now() >= deadline {
            return End::Ignored;
        }
    }
}

/// What adapters say of failures is kept, within the bounds of 5.5.
fn bounded(mut failure: Failure) -> Failure {
    truncate_utf8(&mut failure.message, FAILURE_MESSAGE_MAX_BYTES);
    failure.detail = failure.detail.filter(|detail| detail.as_str().len() <= FAILURE_MESSAGE_MAX_BYTES);
    failure
}

/// Takes one chunk: checks it, shows it, keeps it. The record holds only chunks that obey the grammar (I-31).
fn take(mut chunk: Chunk, context: &AttemptContext, taken: &mut Taken) -> Option<End> {
    if let Chunk::Finish { finish: Finish::Error { failure } } = chunk {
        chunk = Chunk::Finish { finish: Finish::Error { failure: bounded(failure) } };
    }
    if let Some(why) = fault::failure("port.chunk", &context.session) {
        return Some(End::Broken(Failure::new(code::SERVER, why)));
    }
    if let Err(malformed) = taken.assembler.push(&chunk) {
        return Some(End::Malformed(malformed.into()));
    }
    let t_ms = u32::try_from(taken.started.elapsed().as_millis()).unwrap_or(u32::MAX);
    let AttemptId { turn, step, attempt } = context.id;
    context.frames.send(Frame::Chunk { turn, step, attempt, chunk: chunk.clone() });
    taken.record.push(t_ms, chunk);
    taken.assembler.finish().map(|_| End::Finished)
}

fn judge(assembler: &Assembler, end: End, world: &dyn World) -> Outcome {
    let by = |failure: Failure, by: FailedBy| Outcome::Failed { failure, by };
    match end {
        End::Finished => folded(assembler, world),
        End::Closed => {
            let failure = assembler.closed_early();
            let broken = failure.code == code::STREAM_CLOSED;
            by(failure, if broken { FailedBy::Stream } else { FailedBy::Provider })
        }
        End::Broken(failure) => by(failure, FailedBy::Provider),
        End::Malformed(failure) => by(failure, FailedBy::Stream),
        End::Silent => by(Failure::new(code::TIMEOUT, "the provider was silent for too long"), FailedBy::Provider),
        End::Ignored => by(Failure::new(code::ABORTED, "the stream was cut"), FailedBy::Provider),
        End::Died => {
            let failure = Failure::new(code::EXTENSION, "the code that reads the provider's stream panicked");
            by(failure, FailedBy::Consumer)
        }
    }
}

fn folded(assembler: &Assembler, world: &dyn World) -> Outcome {
    let new_id = || CallId::trusted(world.fresh_id());
    let folded = match assembler.fold(new_id) {
        Some(Ok(folded)) => folded,
        Some(Err(malformed)) => return Outcome::Failed { failure: malformed.into(), by: FailedBy::Stream },
        None => return Outcome::Failed { failure: assembler.closed_early(), by: FailedBy::Provider },
    };
    let blocks = folded.blocks;
    match folded.finish {
        Finish::Stop => Outcome::Finished { blocks, finish: FinishLabel::Stop },
        Finish::ToolUse => Outcome::Finished { blocks, finish: FinishLabel::ToolUse },
        Finish::MaxTokens => Outcome::Finished { blocks, finish: FinishLabel::MaxTokens },
        Finish::Error { failure } => Outcome::Failed { failure, by: FailedBy::Provider },
        // Our signal did not fire (L-22).
        Finish::Aborted => {
            let failure = Failure::new(code::ABORTED, "the provider ended the stream although nobody cancelled it");
            Outcome::Failed { failure, by: FailedBy::Provider }
        }
    }
}

#[cfg(test)]
mod tests;
