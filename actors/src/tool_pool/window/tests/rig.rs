//! A world for one window: a journal, bodies and time, all in plain data.

use super::super::Window;
use crate::{
    limits::Limits,
    ports::tool::{PostVerdict, ToolFailure, ToolNotes, ToolOutput},
    protocol::AppendError,
    tool_pool::types::{BatchConfig, BodyEnd, Effect, Input, Shape, Timer, Verdict},
};
use everturn_storage::{
    event::{EventBody, EventData, Item, ToolResult},
    ids::{CallId, Seq, Step, Turn},
    log::CallRow,
    message::plain_text,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Seq of the first event that a batch logs.
pub(super) const BASE: u64 = 100;

/// What one call is like.
#[derive(Clone)]
pub(super) struct Script {
    /// What it is at its first, second, … classification; the last one stays.
    pub(super) shapes: Vec<Shape>,
    /// How long its body works.
    pub(super) works_ms: u64,
    /// How long its body works on after its signal, and then fails; `None` ignores the signal.
    pub(super) stops_in_ms: Option<u64>,
    pub(super) end: BodyEnd,
    pub(super) verdict: (u64, Verdict),
    pub(super) post: (u64, Result<PostVerdict, String>),
}

pub(super) fn shape(parallel: bool) -> Shape {
    Shape::Runnable { parallel, timeout_ms: None, abandonable: false }
}

impl Script {
    pub(super) fn works(parallel: bool, works_ms: u64) -> Self {
        Self {
            shapes: vec![shape(parallel)],
            works_ms,
            stops_in_ms: Some(1),
            end: BodyEnd::Ok(ToolOutput::text("ok"), ToolNotes::default()),
            verdict: (0, Verdict::Allow),
            post: (0, Ok(PostVerdict::Accept)),
        }
    }
}

/// The world of one window.
pub(super) struct Rig {
    pub(super) window: Window,
    pub(super) config: BatchConfig,
    scripts: Vec<Script>,
    classified: Vec<usize>,
    pub(super) now_ms: u64,
    queue: BTreeMap<(u64, u64), Input>,
    order: u64,
    /// Committed events, from [`BASE`] on, in the batches that they came in.
    pub(super) log: Vec<EventBody>,
    pub(super) appends: Vec<usize>,
    /// Answers of the journal to come: how long each takes, and whether it fails.
    pub(super) journal: VecDeque<(u64, Option<AppendError>)>,
    pub(super) checkpoints: VecDeque<(u64, bool)>,
    pub(super) checkpoints_asked: Vec<Seq>,
    pub(super) durable: Option<Seq>,
    pub(super) running: BTreeSet<usize>,
    signalled: BTreeSet<usize>,
    pub(super) let_go: Vec<usize>,
    pub(super) peak: usize,
    pub(super) started: Vec<(u64, usize)>,
    pub(super) notices: Vec<(u64, &'static str)>,
    pub(super) cancelled: bool,
    /// Whether an append is under way, its waits between two tries included.
    appending: bool,
    retrying: bool,
    pub(super) end: Option<Effect>,
    ids: u64,
}

impl Rig {
    pub(super) fn new(scripts: Vec<Script>, tune: impl FnOnce(&mut BatchConfig)) -> Self {
        let calls = (0..scripts.len()).map(row).collect();
        let mut config = BatchConfig::new(Turn(1), Step(1), calls, &Limits::default());
        tune(&mut config);
        Self {
            window: Window::new(config.clone()),
            config,
            classified: vec![0; scripts.len()],
            scripts,
            now_ms: 0,
            queue: BTreeMap::new(),
            order: 0,
            log: Vec::new(),
            appends: Vec::new(),
            journal: VecDeque::new(),
            checkpoints: VecDeque::new(),
            checkpoints_asked: Vec::new(),
            durable: None,
            running: BTreeSet::new(),
            signalled: BTreeSet::new(),
            let_go: Vec::new(),
            peak: 0,
            started: Vec::new(),
            notices: Vec::new(),
            cancelled: false,
            appending: false,
            retrying: false,
            end: None,
            ids: 0,
        }
    }

    /// Fires the signal of the turn at that time.
    pub(super) fn cancel_at(mut self, at_ms: u64) -> Self {
        self.at(at_ms, Input::Cancel);
        self
    }

    /// Runs to the last effect.
    pub(super) fn run(mut self) -> Self {
        self.feed(Input::Start { cancelled: false });
        self.go_on();
        assert!(self.end.is_some(), "the window waits for nothing that could come: {:?}", self.window);
        self
    }

    /// Runs until nothing more happens.
    pub(super) fn go_on(&mut self) {
        while let Some(((at_ms, _), input)) = self.queue.pop_first() {
            self.now_ms = at_ms;
            self.feed(input);
        }
    }

    pub(super) fn at(&mut self, at_ms: u64, input: Input) {
        self.order += 1;
        self.queue.insert((at_ms, self.order), input);
    }

    fn after(&mut self, after_ms: u64, input: Input) {
        self.at(self.now_ms + after_ms, input);
    }

    pub(super) fn feed(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(mut input) = inputs.pop_front() {
            match &mut input {
                Input::Cancel => self.cancelled = true,
                Input::Appended { .. } => self.appending = false,
                Input::AppendFailed { .. } => self.retrying = true,
                Input::BodyDone { index, signalled, .. } => {
                    self.running.remove(index);
                    *signalled = self.signalled.contains(index);
                }
                Input::Durable { upto } => self.durable = self.durable.max(Some(*upto)),
                _ => {}
            }
            let mut ids = self.ids;
            let effects = self.window.step(input, &mut || {
                ids += 1;
                format!("id{ids}")
            });
            self.ids = ids;
            for effect in effects {
                assert!(self.end.is_none() || matches!(effect, Effect::Notice { .. }), "{effect:?} behind the end");
                inputs.extend(self.perform(effect));
            }
            if inputs.is_empty() && self.end.is_none() {
                self.check_work_conserving();
            }
        }
    }

    fn perform(&mut self, effect: Effect) -> Option<Input> {
        match effect {
            Effect::Classify { index } => {
                let shapes = &self.scripts[index].shapes;
                let shape = shapes[self.classified[index].min(shapes.len() - 1)].clone();
                self.classified[index] += 1;
                return Some(Input::Classified { index, shape });
            }
            Effect::Append { events } => self.append(events),
            Effect::Checkpoint { upto } => {
                let (delay_ms, ok) = self.checkpoints.pop_front().unwrap_or((0, true));
                self.checkpoints_asked.push(upto);
                self.after(delay_ms, if ok { Input::Durable { upto } } else { Input::CheckpointFailed });
            }
            Effect::AskPolicy { index } => {
                let (delay_ms, verdict) = self.scripts[index].verdict.clone();
                self.after(delay_ms, Input::Decided { index, verdict });
            }
            Effect::AskPost { index, .. } => {
                let (delay_ms, verdict) = self.scripts[index].post.clone();
                self.after(delay_ms, Input::Posted { index, verdict });
            }
            Effect::RunBody { index } => self.run_body(index),
            Effect::FireSignal { index } => self.signal(index),
            Effect::ArmTimer { timer, after_ms } => {
                // A report about a body that never returns would go on for ever.
                if !matches!(timer, Timer::Warning(_)) || self.running.len() > self.let_go.len() {
                    self.after(after_ms, Input::Timer(timer));
                }
            }
            Effect::Abandon { index } => self.let_go.push(index),
            Effect::Notice { code, .. } => self.notices.push((self.now_ms, code)),
            end @ (Effect::Done { .. } | Effect::Fault { .. }) => {
                let left: Vec<_> = self.running.iter().filter(|index| !self.let_go.contains(index)).collect();
                assert!(left.is_empty(), "bodies {left:?} run behind the end");
                self.end = Some(end);
            }
        }
        None
    }

    fn append(&mut self, events: Vec<EventBody>) {
        let busy = std::mem::replace(&mut self.appending, true);
        assert!(!busy || std::mem::take(&mut self.retrying), "two appends at once");
        let (delay_ms, error) = self.journal.pop_front().unwrap_or((0, None));
        let input = match error {
            Some(error) => Input::AppendFailed { error },
            None => {
                let first = Seq(BASE + self.log.len() as u64);
                self.appends.push(events.len());
                self.log.extend(events);
                Input::Appended { first }
            }
        };
        self.after(delay_ms, input);
    }

    fn run_body(&mut self, index: usize) {
        if self.config.checkpoint {
            // Disk before world (258).
            assert!(self.called(index) <= self.durable, "body {index} runs before CP-X");
        }
        assert!(self.called(index).is_some(), "body {index} runs before it is logged (162)");
        assert!(self.running.insert(index), "body {index} runs twice");
        self.peak = self.peak.max(self.running.len());
        self.started.push((self.now_ms, index));
        let Script { works_ms, end, .. } = self.scripts[index].clone();
        self.after(works_ms, Input::BodyDone { index, end, signalled: false });
    }

    fn signal(&mut self, index: usize) {
        if !self.signalled.insert(index) || !self.running.contains(&index) {
            return;
        }
        if let Some(stops_in_ms) = self.scripts[index].stops_in_ms {
            let of_this = |input: &Input| matches!(input, Input::BodyDone { index: of, .. } if *of == index);
            let due = self.queue.iter().find(|(_, input)| of_this(input)).map(|(key, _)| *key);
            if let Some(due) = due.filter(|due| due.0 > self.now_ms + stops_in_ms) {
                self.queue.remove(&due);
                let end = BodyEnd::Failed(ToolFailure::text("stopped"), ToolNotes::default());
                self.after(stops_in_ms, Input::BodyDone { index, end, signalled: true });
            }
        }
    }

    /// 260: whenever the window waits, it has started all that it may.
    fn check_work_conserving(&self) {
        let (calls, results) = (self.calls().len(), self.results().len());
        let cap = self.config.max_parallel.max(1);
        let barrier = (results..calls).any(|index| !self.parallel(index));
        let asks = self.config.policies;
        if calls < self.scripts.len()
            && calls - results < cap
            && !self.cancelled
            && !self.appending
            && !barrier
            && !asks
        {
            assert!(!self.parallel(calls), "call {calls} may start and does not");
        }
    }

    fn parallel(&self, index: usize) -> bool {
        let shapes = &self.scripts[index].shapes;
        let seen = self.classified[index].saturating_sub(1).min(shapes.len() - 1);
        matches!(shapes[seen], Shape::Runnable { parallel: true, .. })
    }

    /// Where a call is logged.
    pub(super) fn called(&self, index: usize) -> Option<Seq> {
        let id = row(index).call_id;
        let at = self.log.iter().position(|body| matches!(&body.data, EventData::ToolCall(c) if c.call_id == id));
        at.map(|at| Seq(BASE + at as u64))
    }

    pub(super) fn calls(&self) -> Vec<CallId> {
        let call = |body: &EventBody| match &body.data {
            EventData::ToolCall(call) => Some(call.call_id.clone()),
            _ => None,
        };
        self.log.iter().filter_map(call).collect()
    }

    pub(super) fn results(&self) -> Vec<&ToolResult> {
        let result = |body: &'_ EventBody| matches!(body.data, EventData::ToolResult(_));
        self.log
            .iter()
            .filter(|body| result(body))
            .map(|body| match &body.data {
                EventData::ToolResult(result) => result,
                _ => unreachable!("filtered"),
            })
            .collect()
    }

    pub(super) fn contexts(&self) -> Vec<&Item> {
        let item = |body: &'_ EventBody| matches!(body.data, EventData::InboxQueued(_));
        self.log
            .iter()
            .filter(|body| item(body))
            .map(|body| match &body.data {
                EventData::InboxQueued(queued) => &queued.item,
                _ => unreachable!("filtered"),
            })
            .collect()
    }

    /// The code of each result, or `ok`, or `error` for an error without a code.
    pub(super) fn codes(&self) -> Vec<&str> {
        self.results()
            .into_iter()
            .map(|result| match (&result.error, result.message.is_error) {
                (Some(error), _) => error.code.as_str(),
                (None, true) => "error",
                (None, false) => "ok",
            })
            .collect()
    }

    pub(super) fn text(&self, index: usize) -> String {
        plain_text(&self.results()[index].message.content)
    }

    /// The log in short: `c0` a call, `r0` a result, `+` a context; `|` between appends.
    pub(super) fn picture(&self) -> String {
        let mut out = String::new();
        let mut events = self.log.iter();
        for (nth, size) in self.appends.iter().enumerate() {
            out.push_str(if nth == 0 { "" } else { " | " });
            let names: Vec<String> = events
                .by_ref()
                .take(*size)
                .map(|body| match &body.data {
                    EventData::ToolCall(call) => format!("c{}", call.call_id),
                    EventData::ToolResult(result) => format!("r{}", result.message.call_id),
                    _ => "+".to_owned(),
                })
                .collect();
            out.push_str(&names.join(" "));
        }
        out
    }

    pub(super) fn done(&self) -> (bool, bool) {
        match self.end {
            Some(Effect::Done { concluded, aborted }) => (concluded, aborted),
            ref other => panic!("the batch ended with {other:?}"),
        }
    }
}

/// The call at a place.
pub(super) fn row(index: usize) -> CallRow {
    CallRow {
        call_id: CallId::trusted(index.to_string()),
        name: format!("tool{index}"),
        arguments: format!("{{\"n\":{index}}}"),
        called: None,
        resulted: None,
    }
}
