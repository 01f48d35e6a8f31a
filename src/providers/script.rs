//! `kind = "script"`: answers from a file of JSON Lines, for tests, demonstrations and dry runs.
//!
//! Each line is one attempt. The lines are taken in order for each session, and the last one repeats. The place of a
//! session is kept in memory. A session that this process has not seen before starts behind as many lines as its
//! history has answers, so that a script goes on where it was after a restart; attempts that left no answer are not
//! counted then.

mod line;

use super::limits::{SCRIPT_FILE_MAX_BYTES, SCRIPT_SESSIONS_MAX};
use async_trait::async_trait;
use everturn_actors::{
    limits::RetryLimits,
    ports::{ChunkStream, Dispatch, ModelAdapter, PrepareRequest, Prepared, Signal},
};
use everturn_storage::{
    chunk::{BlockKind, Chunk, Finish},
    event::SystemUpdate,
    ids::{CallId, SessionId},
    log::request::{MessageView, ModelRequest},
    message::{Block, Failure, code},
};
use futures::{StreamExt as _, stream};
use line::Line;
use std::{
    collections::{BTreeMap, VecDeque},
    io::Read as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

#[cfg(test)]
mod tests;

/// The demonstration: one tool call, then the answer.
const DEMONSTRATION: &str = r#"{"text":"Let me look at the clock.","calls":[{"name":"time","arguments":{}}],"chunk_chars":6,"delay_ms":20,"usage":{"input":21,"output":14}}
{"text":"That was the demonstration: I asked for the time, a tool told me, and every step of it is in the journal.","chunk_chars":6,"delay_ms":20,"usage":{"input":48,"output":26}}
"#;

/// A scripted provider.
#[derive(Debug)]
pub struct ScriptAdapter {
    lines: Arc<[Line]>,
    places: Arc<Mutex<Places>>,
    retry: Option<RetryLimits>,
}

impl ScriptAdapter {
    /// The built-in demonstration: two steps, one call of the tool `time`.
    pub fn demonstration() -> Result<Self, String> {
        Self::from_text("the built-in demonstration", DEMONSTRATION)
    }

    /// The script in `file`. Errors name the file and the line.
    pub fn from_file(file: &Path) -> Result<Self, String> {
        let name = file.display();
        let wrong = |error| format!("the script {name} cannot be read ({error}); correct `file`");
        let mut text = String::new();
        let opened = std::fs::File::open(file).map_err(wrong)?;
        opened.take(SCRIPT_FILE_MAX_BYTES + 1).read_to_string(&mut text).map_err(wrong)?;
        if text.len() as u64 > SCRIPT_FILE_MAX_BYTES {
            return Err(format!("the script {name} is larger than {SCRIPT_FILE_MAX_BYTES} bytes; make it smaller"));
        }
        Self::from_text(&name.to_string(), &text)
    }

    /// A script of JSON Lines; `name` stands for it in errors. Blank lines are skipped.
    pub fn from_text(name: &str, text: &str) -> Result<Self, String> {
        let mut lines = Vec::new();
        for (at, line) in text.lines().enumerate() {
            if !line.trim().is_empty() {
                lines.push(line::parse(line).map_err(|what| format!("{name}, line {}: {what}", at + 1))?);
            }
        }
        if lines.is_empty() {
            return Err(format!("{name} has no line; write at least one, such as {{\"text\":\"Hello.\"}}"));
        }
        Ok(Self { lines: lines.into(), places: Arc::default(), retry: None })
    }

    /// The same with a retry policy of its own.
    #[must_use]
    pub fn with_retry(mut self, retry: Option<RetryLimits>) -> Self {
        self.retry = retry;
        self
    }
}

#[async_trait]
impl ModelAdapter for ScriptAdapter {
    async fn prepare(&self, request: PrepareRequest, _: Signal) -> Result<Prepared, Failure> {
        let PrepareRequest { session, mut config, modalities: _ } = request;
        let mut defaulted = Vec::new();
        if config.model.is_empty() {
            config.model = "script".to_owned();
            defaulted.push("model".to_owned());
        }
        Ok(Prepared {
            config,
            defaulted,
            context_window: None,
            input_modalities: None,
            system_update: SystemUpdate::Replace,
            retry: self.retry.clone(),
            call: Box::new(Call { session, lines: Arc::clone(&self.lines), places: Arc::clone(&self.places) }),
        })
    }
}

/// The next line of each session.
#[derive(Debug, Default)]
struct Places {
    by_session: BTreeMap<SessionId, (usize, u64)>,
    uses: u64,
}

impl Places {
    /// Takes the place of `session` and moves it on.
    fn take(&mut self, session: &SessionId, answers: usize) -> usize {
        self.uses += 1;
        if self.by_session.len() >= SCRIPT_SESSIONS_MAX && !self.by_session.contains_key(session) {
            self.forget_half();
        }
        let entry = self.by_session.entry(session.clone()).or_insert((answers, 0));
        entry.1 = self.uses;
        let place = entry.0;
        entry.0 = place.saturating_add(1);
        place
    }

    /// Forgets the half that was used longest ago, so that a full map costs little on average.
    fn forget_half(&mut self) {
        let mut uses: Vec<u64> = self.by_session.values().map(|entry| entry.1).collect();
        uses.sort_unstable();
        let Some(middle) = uses.get(uses.len() / 2).copied() else { return };
        self.by_session.retain(|_, entry| entry.1 > middle);
    }
}

struct Call {
    session: SessionId,
    lines: Arc<[Line]>,
    places: Arc<Mutex<Places>>,
}

impl Dispatch for Call {
    fn dispatch(self: Box<Self>, request: ModelRequest, signal: Signal) -> ChunkStream {
        let views: Vec<MessageView<'_>> = request.messages.iter().filter_map(|message| message.view()).collect();
        let answers = views.iter().filter(|view| matches!(view, MessageView::Assistant(_))).count();
        let place = self.places.lock().unwrap_or_else(PoisonError::into_inner).take(&self.session, answers);
        // A script is never empty, so the last line exists.
        let Some(line) = self.lines.get(place).or_else(|| self.lines.last()) else { return stream::empty().boxed() };
        let play = match line.expect.as_deref().filter(|wanted| !last_input(&views).contains(wanted)) {
            Some(wanted) => Play::failing(format!(
                "line {} of the script expects {wanted:?} in the last user or tool message, which is not there",
                place.min(self.lines.len() - 1) + 1
            )),
            None => Play::of(line, place),
        };
        stream::unfold((play, signal), |(mut play, signal)| async move {
            play.next(&signal).await.map(|chunk| (chunk, (play, signal)))
        })
        .boxed()
    }
}

/// The text of the last user or tool message.
fn last_input(views: &[MessageView<'_>]) -> String {
    let content = views.iter().rev().find_map(|view| match view {
        MessageView::User(message) => Some(&message.content),
        MessageView::Tool(message) => Some(&message.content),
        MessageView::System(_) | MessageView::Assistant(_) => None,
    });
    content.map_or_else(String::new, |content: &Vec<Block>| everturn_storage::message::plain_text(content))
}

/// What is left of one answer.
struct Play {
    chunks: VecDeque<Chunk>,
    end: Option<End>,
    delay_ms: u64,
    /// Whether no delta has been delayed yet; then the end is.
    undelayed: bool,
}

enum End {
    Finish(Finish),
    Hang,
    Cut,
}

impl Play {
    fn failing(message: String) -> Self {
        let failure = Failure::new(code::INVALID_REQUEST, message);
        Self {
            chunks: VecDeque::new(),
            end: Some(End::Finish(Finish::Error { failure })),
            delay_ms: 0,
            undelayed: false,
        }
    }

    fn of(line: &Line, place: usize) -> Self {
        let mut chunks = VecDeque::new();
        let mut index = 0;
        let mut block = |kind: BlockKind, text: &str, delta: fn(u64, String) -> Chunk| {
            chunks.push_back(Chunk::BlockStart { index, kind });
            chunks.extend(pieces(text, line.chunk_chars).into_iter().map(|piece| delta(index, piece)));
            chunks.push_back(Chunk::BlockEnd { index });
            index += 1;
        };
        if let Some(text) = &line.reasoning {
            block(BlockKind::Reasoning, text, |index, text| Chunk::ReasoningDelta { index, text });
        }
        if let Some(text) = &line.text {
            block(BlockKind::Text, text, |index, text| Chunk::TextDelta { index, text });
        }
        for (at, call) in line.calls.iter().enumerate() {
            let id = call.id.clone().unwrap_or_else(|| format!("call_{}_{}", place + 1, at + 1));
            let kind = BlockKind::ToolCall { call_id: CallId::trusted(id), name: call.name.clone() };
            block(kind, &call.arguments, |index, text| Chunk::CallFragment { index, text });
        }
        chunks.extend(line.usage.map(|usage| Chunk::Usage { usage }));
        let end = if let Some(failure) = &line.fail {
            End::Finish(Finish::Error { failure: failure.clone() })
        } else if line.hang {
            End::Hang
        } else if line.cut {
            End::Cut
        } else {
            End::Finish(if line.calls.is_empty() { Finish::Stop } else { Finish::ToolUse })
        };
        Self { chunks, end: Some(end), delay_ms: line.delay_ms, undelayed: true }
    }

    async fn next(&mut self, signal: &Signal) -> Option<Chunk> {
        let end = self.end.as_ref()?;
        let is_delta = matches!(
            self.chunks.front(),
            Some(Chunk::TextDelta { .. } | Chunk::ReasoningDelta { .. } | Chunk::CallFragment { .. })
        );
        let waits_ms = if is_delta || (self.chunks.is_empty() && self.undelayed) { self.delay_ms } else { 0 };
        let hangs = self.chunks.is_empty() && matches!(end, End::Hang);
        if !elapsed(waits_ms, signal).await {
            return self.abort();
        }
        self.undelayed &= !is_delta;
        if let Some(chunk) = self.chunks.pop_front() {
            return Some(chunk);
        }
        if hangs {
            signal.wait().await;
        }
        match self.end.take()? {
            End::Finish(finish) => Some(Chunk::Finish { finish }),
            End::Hang => Some(Chunk::Finish { finish: Finish::Aborted }),
            End::Cut => None,
        }
    }

    fn abort(&mut self) -> Option<Chunk> {
        self.end = None;
        Some(Chunk::Finish { finish: Finish::Aborted })
    }
}

/// Waits; `false` when the signal fired instead.
async fn elapsed(wait_ms: u64, signal: &Signal) -> bool {
    if signal.fired() {
        return false;
    }
    if wait_ms == 0 {
        return true;
    }
    tokio::select! {
        biased;
        () = signal.wait() => false,
        () = tokio::time::sleep(Duration::from_millis(wait_ms)) => true,
    }
}

/// `text` in pieces of `chars` characters; in one piece when `chars` is not given, in none when it is empty.
fn pieces(text: &str, chars: Option<usize>) -> Vec<String> {
    if text.is_empty() {
        return Vec::new();
    }
    let Some(chars) = chars else { return vec![text.to_owned()] };
    let all: Vec<char> = text.chars().collect();
    all.chunks(chars).map(|piece| piece.iter().collect()).collect()
}
