//! A system with some sessions, a model that wants two tools and then answers, and the hand that strikes.

use async_trait::async_trait;
use everturn_actors::{
    handle::{Committed, OpError, Submit, SubmitKind},
    limits::Limits,
    ports::*,
    system::{ActorKind, AgentHandle, CreateSession, System, SystemOptions},
    testing::TestWorld,
};
use everturn_storage::{
    RawJson,
    chunk::{BlockKind, Chunk, Finish},
    event::{RequestConfig, SystemUpdate, ToolSpec},
    ids::{CallId, MessageId, SessionId, Step, Turn},
    log::request::{MessageView, ModelRequest},
    message::{Block, Failure},
    store::Store,
};
use futures::{StreamExt, stream};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use tokio::sync::mpsc;

/// How often a message is sent again while the store is replaced.
const STORAGE_TRIES: usize = 50;

/// Numbers from a seed.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// How an actor dies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Death {
    /// It is killed, at its next await.
    Kill(ActorKind),
    /// The journal store panics.
    Store,
    /// Whichever actor next reads the profile of the session panics.
    ProfilePanic,
    /// Whichever journal next looks at the clock panics.
    ClockPanic,
}

/// One death at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strike {
    pub(crate) session: usize,
    /// How many events the session commits before.
    pub(crate) moment: u64,
    /// How often the scheduler goes round behind that event.
    pub(crate) yields: u64,
    pub(crate) death: Death,
}

/// How often each tool body ran, by session, turn, step and call.
pub(crate) type Bodies = BTreeMap<(SessionId, Turn, Step, CallId), u32>;

/// The world outside, with its traps.
pub(crate) struct Outside {
    world: TestWorld,
    tools: Vec<Arc<dyn Tool>>,
    bodies: Arc<Mutex<Bodies>>,
    clock_trap: AtomicBool,
    struck: AtomicU64,
    profile_traps: Mutex<Vec<String>>,
}

impl World for Outside {
    fn now_ms(&self) -> i64 {
        // Who creates a session looks at the clock too; then no trap is set yet.
        assert!(!self.clock_trap.swap(false, Ordering::SeqCst), "a clock that breaks");
        self.world.now_ms()
    }

    fn random_u64(&self) -> u64 {
        self.world.random_u64()
    }

    fn fresh_id(&self) -> String {
        self.world.fresh_id()
    }
}

impl Profiles for Outside {
    fn profile(&self, agent: &str) -> Option<Arc<AgentProfile>> {
        let trapped = {
            let mut traps = self.profile_traps.lock().unwrap();
            let at = traps.iter().position(|name| name == agent);
            at.map(|at| traps.swap_remove(at)).is_some()
        };
        assert!(!trapped, "a profile that breaks");
        Some(Arc::new(AgentProfile {
            sections: vec![Section { name: "who".to_owned(), text: "Be kind.".to_owned() }],
            tools: self.tools.clone(),
            config: RequestConfig { provider: "p".to_owned(), model: "m".to_owned(), ..RequestConfig::default() },
            ..AgentProfile::default()
        }))
    }

    fn adapter(&self, _provider: &str) -> Option<Arc<dyn ModelAdapter>> {
        Some(Arc::new(Model))
    }
}

struct Model;

#[async_trait]
impl ModelAdapter for Model {
    async fn prepare(&self, request: PrepareRequest, _signal: Signal) -> Result<Prepared, Failure> {
        tokio::task::yield_now().await;
        Ok(Prepared {
            config: request.config,
            defaulted: vec![],
            context_window: None,
            input_modalities: None,
            system_update: SystemUpdate::Replace,
            retry: None,
            call: Box::new(Call),
        })
    }
}

struct Call;

impl Dispatch for Call {
    /// Behind a user two calls, behind results an answer; ids repeat in each turn, as those of providers do (BR-004).
    fn dispatch(self: Box<Self>, request: ModelRequest, _signal: Signal) -> ChunkStream {
        let asked = matches!(request.messages.last().and_then(|last| last.view()), Some(MessageView::User(_)));
        let mut chunks = Vec::new();
        let finish = if asked {
            for (index, name) in [(0, "read"), (1, "write")] {
                let kind = BlockKind::ToolCall { call_id: CallId::trusted(name), name: name.to_owned() };
                chunks.extend([
                    Chunk::BlockStart { index, kind },
                    Chunk::CallFragment { index, text: "{}".to_owned() },
                    Chunk::BlockEnd { index },
                ]);
            }
            Finish::ToolUse
        } else {
            chunks.extend([
                Chunk::BlockStart { index: 0, kind: BlockKind::Text },
                Chunk::TextDelta { index: 0, text: "Done.".to_owned() },
                Chunk::BlockEnd { index: 0 },
            ]);
            Finish::Stop
        };
        chunks.push(Chunk::Finish { finish });
        Box::pin(stream::iter(chunks).then(|chunk| async {
            tokio::task::yield_now().await;
            chunk
        }))
    }
}

struct Counted {
    spec: ToolSpec,
    bodies: Arc<Mutex<Bodies>>,
}

#[async_trait]
impl Tool for Counted {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn parallel_safe(&self, _args: &serde_json::Value) -> bool {
        self.spec.name == "read"
    }

    async fn run(&self, _args: serde_json::Value, ctx: ToolContext) -> Result<ToolOutput, tool::ToolFailure> {
        *self.bodies.lock().unwrap().entry((ctx.session, ctx.turn, ctx.step, ctx.call_id)).or_default() += 1;
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        Ok(ToolOutput::text("done"))
    }
}

/// The running system and its sessions.
pub(crate) struct Town {
    pub(crate) case: String,
    pub(crate) system: System,
    pub(crate) handles: Vec<AgentHandle>,
    pub(crate) outside: Arc<Outside>,
}

impl Town {
    pub(crate) async fn start(store: Arc<dyn Store>, sessions: usize, case: &str) -> Self {
        let bodies = Arc::<Mutex<Bodies>>::default();
        let tools = ["read", "write"].map(|name| {
            let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
            let spec = ToolSpec { name: name.to_owned(), description: "counts".to_owned(), schema };
            Arc::new(Counted { spec, bodies: Arc::clone(&bodies) }) as Arc<dyn Tool>
        });
        let outside = Arc::new(Outside {
            world: TestWorld::new("w"),
            tools: tools.to_vec(),
            bodies,
            clock_trap: AtomicBool::new(false),
            struck: AtomicU64::new(0),
            profile_traps: Mutex::default(),
        });
        let (profiles, world) = (Arc::clone(&outside), Arc::clone(&outside));
        let system = System::start(SystemOptions { store, profiles, world, limits: Limits::default() }).await.unwrap();
        system.booted().await;
        let mut handles = Vec::new();
        for n in 0..sessions {
            let name = format!("s{n}");
            let create =
                CreateSession { id: Some(SessionId::trusted(name.as_str())), agent: name, ..CreateSession::default() };
            handles.push(system.create(create).await.unwrap());
        }
        Self { case: case.to_owned(), system, handles, outside }
    }

    /// All sessions get their messages at once while deaths strike; ends when everything is quiet.
    pub(crate) async fn live(&self, messages: usize, strikes: &[Strike]) {
        let mut hands = Vec::new();
        for strike in strikes {
            let (_, events) = self.handles[strike.session].subscribe().await;
            hands.push(tokio::spawn(self.hand(*strike, events)));
        }
        let sends = self.handles.iter().map(|handle| async move {
            for n in 0..messages {
                self.send(handle, &format!("m{n}")).await;
            }
        });
        futures::future::join_all(sends).await;
        self.quiet().await;
        // A moment that never came, for example because a death before it ended the subscription, is none.
        hands.iter().for_each(|hand| hand.abort());
        for hand in hands {
            drop(hand.await);
        }
        // What struck at the very end heals too, and a trap that nobody met is taken away.
        self.outside.clock_trap.store(false, Ordering::SeqCst);
        self.outside.profile_traps.lock().unwrap().clear();
        self.quiet().await;
        for handle in &self.handles {
            self.send(handle, "last").await;
        }
        self.quiet().await;
    }

    fn hand(&self, strike: Strike, mut events: mpsc::Receiver<Committed>) -> impl Future<Output = ()> + Send + use<> {
        let (system, outside) = (self.system.clone(), Arc::clone(&self.outside));
        let session = self.handles[strike.session].session().clone();
        async move {
            for _ in 0..strike.moment {
                if events.recv().await.is_none() {
                    return;
                }
            }
            for _ in 0..strike.yields {
                tokio::task::yield_now().await;
            }
            outside.struck.fetch_add(1, Ordering::SeqCst);
            match strike.death {
                Death::Kill(kind) => system.testing_kill(&session, kind),
                Death::Store => system.testing_kill_store(),
                Death::ProfilePanic => outside.profile_traps.lock().unwrap().push(session.to_string()),
                Death::ClockPanic => outside.clock_trap.store(true, Ordering::SeqCst),
            }
        }
    }

    /// Returns once the message is acknowledged.
    async fn send(&self, handle: &AgentHandle, text: &str) {
        let id = MessageId::trusted(format!("{}-{text}", handle.session()));
        let content = vec![Block::text(text)];
        let submit = Submit { kind: SubmitKind::Send, id: Some(id), content, source: None };
        // While the store is replaced the answer may be that it cannot say now; the same id may always be sent again.
        for _ in 0..STORAGE_TRIES {
            match handle.submit(submit.clone()).await {
                Ok(_) => return,
                Err(OpError::Storage(_)) => drop(handle.when_idle().await),
                Err(error) => panic!("{}: {error:?}", self.case),
            }
        }
        panic!("{}: the store never came back", self.case);
    }

    /// Ends when every agent is idle. An answer that tells of a death is followed by the next incarnation.
    async fn quiet(&self) {
        for handle in &self.handles {
            let mut faults = Vec::new();
            while let Some(fault) = handle.when_idle().await {
                faults.push(fault);
                assert!(faults.len() < 50, "{}: it never comes to rest: {faults:?}", self.case);
            }
        }
    }

    /// How many deaths came to their moment.
    pub(crate) fn struck(&self) -> u64 {
        self.outside.struck.load(Ordering::SeqCst)
    }

    pub(crate) fn bodies(&self) -> Bodies {
        self.outside.bodies.lock().unwrap().clone()
    }
}
