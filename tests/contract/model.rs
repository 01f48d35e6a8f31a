//! A model that says what the test has written down, and remembers what it was asked.

use async_trait::async_trait;
use everturn_actors::ports::{ChunkStream, Dispatch, ModelAdapter, PrepareRequest, Prepared, Signal};
use everturn_storage::{
    chunk::{BlockKind, Chunk, Finish},
    event::SystemUpdate,
    ids::CallId,
    log::request::{MessageView, ModelRequest},
    message::{Failure, plain_text},
};
use futures::{StreamExt, stream};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};
use tokio::sync::{Semaphore, watch};

type Hook = Box<dyn FnOnce() + Send>;

/// One answer.
#[derive(Default)]
pub(crate) struct Say {
    /// Said at once.
    pub(crate) now: Vec<Chunk>,
    /// Said after [`Model::go`]; a signal that fires before ends the stream.
    pub(crate) then: Option<Vec<Chunk>>,
    /// Called when the request comes in.
    pub(crate) hook: Option<Hook>,
}

impl Say {
    /// Exactly these chunks.
    pub(crate) fn chunks(now: Vec<Chunk>) -> Self {
        Self { now, ..Self::default() }
    }

    /// A complete answer.
    pub(crate) fn text(text: &str) -> Self {
        let mut now = spoken(0, text);
        now.extend([Chunk::BlockEnd { index: 0 }, finish(Finish::Stop)]);
        Self::chunks(now)
    }

    /// Calls of tools: (call id, tool, arguments).
    pub(crate) fn calls(calls: &[(&str, &str, &str)]) -> Self {
        let mut now: Vec<_> = (0..).zip(calls).flat_map(|(index, call)| called(index, call)).collect();
        now.push(finish(Finish::ToolUse));
        Self::chunks(now)
    }

    /// A failure of the provider.
    pub(crate) fn fails(code: &str) -> Self {
        Self::chunks(vec![finish(Finish::Error { failure: Failure::new(code, "scripted") })])
    }

    /// The beginning of a text, and the rest after [`Model::go`].
    pub(crate) fn halves(first: &str, second: &str) -> Self {
        let rest = Chunk::TextDelta { index: 0, text: second.to_owned() };
        let then = vec![rest, Chunk::BlockEnd { index: 0 }, finish(Finish::Stop)];
        Self { now: spoken(0, first), then: Some(then), hook: None }
    }

    /// Says all of this only after [`Model::go`].
    pub(crate) fn gated(mut self) -> Self {
        self.then = Some(std::mem::take(&mut self.now));
        self
    }

    /// Calls `hook` when the request comes in.
    pub(crate) fn hook(mut self, hook: impl FnOnce() + Send + 'static) -> Self {
        self.hook = Some(Box::new(hook));
        self
    }
}

pub(crate) fn finish(finish: Finish) -> Chunk {
    Chunk::Finish { finish }
}

/// An open text block.
pub(crate) fn spoken(index: u64, text: &str) -> Vec<Chunk> {
    vec![Chunk::BlockStart { index, kind: BlockKind::Text }, Chunk::TextDelta { index, text: text.to_owned() }]
}

/// A closed call block.
pub(crate) fn called(index: u64, (id, name, arguments): &(&str, &str, &str)) -> Vec<Chunk> {
    let kind = BlockKind::ToolCall { call_id: CallId::trusted(*id), name: (*name).to_owned() };
    let text = (*arguments).to_owned();
    vec![Chunk::BlockStart { index, kind }, Chunk::CallFragment { index, text }, Chunk::BlockEnd { index }]
}

/// What the model was sent.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Which generation of which adapter was asked.
    pub(crate) route: String,
    /// The frozen request.
    pub(crate) request: ModelRequest,
}

impl Asked {
    /// The messages as `role: text`.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.request.messages.iter().map(|message| said(message.view().unwrap())).collect()
    }

    /// Names of the visible tools.
    pub(crate) fn tools(&self) -> Vec<String> {
        self.request.header.tools.iter().map(|tool| tool.name.clone()).collect()
    }
}

fn said(view: MessageView<'_>) -> String {
    match view {
        MessageView::System(said) => format!("system: {}", plain_text(&said.content)),
        MessageView::User(said) => format!("user: {}", plain_text(&said.content)),
        MessageView::Assistant(said) => format!("assistant: {}", plain_text(&said.content)),
        MessageView::Tool(said) => format!("tool: {}", plain_text(&said.content)),
    }
}

/// See the module.
pub(crate) struct Model {
    says: Mutex<VecDeque<Say>>,
    asked: Mutex<Vec<Asked>>,
    count: watch::Sender<usize>,
    gate: Semaphore,
}

impl Model {
    pub(crate) fn new(says: Vec<Say>) -> Arc<Self> {
        Arc::new(Self {
            says: Mutex::new(says.into()),
            asked: Mutex::default(),
            count: watch::Sender::new(0),
            gate: Semaphore::new(0),
        })
    }

    /// Adds an answer.
    pub(crate) fn say(&self, say: Say) {
        self.says.lock().unwrap().push_back(say);
    }

    /// Lets one gated answer go on, now or when it comes.
    pub(crate) fn go(&self) {
        self.gate.add_permits(1);
    }

    /// What it was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// The messages of each request so far, as `role: text`.
    pub(crate) fn requests(&self) -> Vec<Vec<String>> {
        self.asked().iter().map(Asked::texts).collect()
    }

    /// Ends when it has been asked `n` times in all.
    pub(crate) async fn was_asked(&self, n: usize) {
        self.count.subscribe().wait_for(|count| *count >= n).await.unwrap();
    }

    fn answer(self: Arc<Self>, route: String, request: ModelRequest, signal: Signal) -> ChunkStream {
        let say = self.says.lock().unwrap().pop_front().unwrap_or_else(|| Say::text("Fine."));
        self.asked.lock().unwrap().push(Asked { route, request });
        self.count.send_modify(|count| *count += 1);
        if let Some(hook) = say.hook {
            hook();
        }
        let head = stream::iter(say.now);
        let Some(then) = say.then else { return Box::pin(head) };
        let tail = stream::once(async move {
            tokio::select! {
                permit = self.gate.acquire() => {
                    permit.unwrap().forget();
                    stream::iter(then)
                }
                () = signal.wait() => stream::iter(vec![finish(Finish::Aborted)]),
            }
        });
        Box::pin(head.chain(tail.flatten()))
    }
}

/// One generation of an adapter.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) name: String,
    pub(crate) model: Arc<Model>,
    pub(crate) system_update: SystemUpdate,
    pub(crate) context_window: Option<u64>,
    /// How many requests were prepared.
    pub(crate) prepared: Arc<Mutex<u32>>,
}

impl Route {
    pub(crate) fn new(name: &str, model: &Arc<Model>) -> Self {
        Self {
            name: name.to_owned(),
            model: Arc::clone(model),
            system_update: SystemUpdate::Replace,
            context_window: None,
            prepared: Arc::default(),
        }
    }
}

struct Call(Route);

impl Dispatch for Call {
    fn dispatch(self: Box<Self>, request: ModelRequest, signal: Signal) -> ChunkStream {
        self.0.model.answer(self.0.name, request, signal)
    }
}

#[async_trait]
impl ModelAdapter for Route {
    async fn prepare(&self, request: PrepareRequest, _signal: Signal) -> Result<Prepared, Failure> {
        *self.prepared.lock().unwrap() += 1;
        Ok(Prepared {
            config: request.config,
            defaulted: vec![],
            context_window: self.context_window,
            input_modalities: None,
            system_update: self.system_update,
            retry: None,
            call: Box::new(Call(self.clone())),
        })
    }
}
