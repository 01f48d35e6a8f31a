//! Opening a session: read, check, repair, CP-B, and only then an agent (7.5).

use super::{ActorKind, KeeperArgs, Live, Message, Shared, Slot};
use crate::{
    agent::{self, Agent, AgentArgs},
    driver::{self, DriverArgs, DriverMsg},
    fault,
    handle::Frame,
    limits::Limits,
    protocol::{
        AppendClass, AppendError, Appended, CheckpointKind, FrameSink, JournalLink, JournalRequest, ToolPoolLink,
    },
    reply::Reply,
    session_journal::{self, SessionJournal, SessionJournalArgs},
    system::SessionError,
    tool_pool::{self, PoolArgs},
};
use everturn_storage::{
    event::{EventBody, SessionHeader, TurnReason},
    ids::{Epoch, ItemId, Seq, SessionId},
    load::{self, LoadError, Loaded},
    log::{LogState, repair},
    store,
};
use futures::FutureExt;
use ractor::{Actor, ActorCell, ActorRef};
use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::watch;

/// What to open.
pub(super) struct Order {
    pub(super) attempt: u64,
    pub(super) session: SessionId,
    pub(super) create: Option<SessionHeader>,
    /// The highest epoch that this process has used for it.
    pub(super) used_epoch: Epoch,
    /// How many openings may run beside this one, each under an epoch of its own.
    pub(super) beside: u64,
    pub(super) slot: Arc<Slot>,
    pub(super) shared: Arc<Shared>,
    pub(super) keeper: ActorRef<Message>,
    pub(super) old: Vec<ActorCell>,
    pub(super) delay_ms: u64,
}

/// An open session.
pub(crate) struct Built {
    pub(super) live: Live,
    pub(super) cells: Vec<(ActorKind, ActorCell)>,
    pub(super) pool: Arc<Mutex<ToolPoolLink>>,
    /// Turns that ended by themselves.
    pub(super) turns: usize,
    /// Lets what waits run.
    pub(super) start: Box<dyn FnOnce() + Send>,
}

/// Opens it and tells the keeper.
pub(super) async fn run(mut order: Order) {
    for cell in std::mem::take(&mut order.old) {
        // What is dead already needs no end.
        drop(cell.kill_and_wait(None).await);
    }
    tokio::time::sleep(Duration::from_millis(order.delay_ms)).await;
    let (attempt, keeper) = (order.attempt, order.keeper.clone());
    let mut cells = Vec::new();
    // Opening runs code of others, such as the profiles. The keeper must hear of its end, or the session waits for ever.
    let built = AssertUnwindSafe(open(order, &mut cells)).catch_unwind().await;
    let built = built.unwrap_or_else(|_| {
        Err(SessionError::Storage("what opens the session panicked; the report of the panic says where".to_owned()))
    });
    if built.is_err() {
        super::kill(&cells);
    }
    drop(keeper.cast(Message::Built { attempt, built }));
}

async fn open(order: Order, cells: &mut Vec<(ActorKind, ActorCell)>) -> Result<Built, SessionError> {
    fault::reach("keeper.open", &order.session);
    let (header, state, durable) = match &order.create {
        Some(header) => create(&order, header).await?,
        None => read(&order).await?,
    };
    super::known_agent(&order.shared, &header.agent)?;
    let limits = order.shared.profiles.profile(&header.agent).map(|profile| profile.limits.clone()).unwrap_or_default();
    let state = state.with_max_parallel(u32::try_from(limits.max_parallel_tool_calls).unwrap_or(u32::MAX));
    let logged = state.opened().map_or(Epoch(0), |opened| opened.epoch);
    let epoch = Epoch(logged.max(order.used_epoch).next().0 + order.beside);
    let header = Arc::new(header);
    let (shown, durable) = watch::channel(durable);
    let args = SessionJournalArgs {
        epoch,
        header: Arc::clone(&header),
        view: state.clone(),
        durable: shown,
        store: order.shared.store.clone(),
        world: Arc::clone(&order.shared.world),
    };
    let died = |error: ractor::SpawnErr| SessionError::Storage(format!("an actor did not start: {error}"));
    let (journal, _) = Actor::spawn_linked(None, SessionJournal, args, order.keeper.get_cell()).await.map_err(died)?;
    cells.push((ActorKind::Journal, journal.get_cell()));
    fault::reach("keeper.mark", &order.session);
    let repaired = mark(&order, &journal, &state, epoch, &limits).await?;
    fault::reach("keeper.checkpoint", &order.session);
    let view = checkpoint(&order, &journal).await?;
    fault::reach("keeper.start", &order.session);
    let turns = view.turns().iter().filter(|row| row.reason != TurnReason::Interrupted).count();
    start(&order, cells, Opened { journal, header, epoch, view, durable, limits, repaired, turns }).await.map_err(died)
}

/// A header and an empty log; nothing is written yet.
async fn create(order: &Order, header: &SessionHeader) -> Result<(SessionHeader, LogState, Option<Seq>), SessionError> {
    let session = order.session.clone();
    let known = order
        .shared
        .store
        .run(move |store| Ok(store.header(&session)?.is_some() || store.last_seq(&session)?.is_some()))
        .await
        .map_err(|error| SessionError::Storage(error.to_string()))?;
    if known {
        return Err(SessionError::Exists(order.session.clone()));
    }
    Ok((header.clone(), LogState::empty(order.session.clone()), None))
}

/// Reads the log; cuts and reports a torn tail (B-1).
async fn read(order: &Order) -> Result<(SessionHeader, LogState, Option<Seq>), SessionError> {
    let session = order.session.clone();
    if let Some(why) = fault::failure("keeper.read", &session) {
        return Err(SessionError::Storage(why));
    }
    let loaded = order.shared.store.run(move |store| Ok(load::load(store, &session))).await;
    let Loaded { header, state, durable, cut } = match loaded {
        Ok(Ok(loaded)) => loaded,
        Ok(Err(error)) => return Err(refusal(&order.session, error)),
        Err(error) => return Err(refusal(&order.session, LoadError::Store(error))),
    };
    if let Some(torn) = cut {
        if let Some(why) = fault::failure("keeper.cut", &order.session) {
            return Err(SessionError::Storage(why));
        }
        let (session, keep, summary) = (order.session.clone(), torn.keep, state.summary(&header));
        let cut = order.shared.store.run(move |store| {
            let bytes = store.truncate(&session, keep)?;
            // The index may speak of what was cut; left alone, the next opening would take that for damage.
            store.put_summary(&summary)?;
            store.sync()?;
            Ok(bytes)
        });
        let cut = cut.await;
        let bytes = cut.map_err(|error| refusal(&order.session, LoadError::Store(error)))?;
        let report = format!(
            "session {}: the log was cut at event {} ({}); {bytes} bytes that were never acknowledged are kept aside",
            order.session, torn.first, torn.why
        );
        tracing::warn!(report, "a torn tail");
        order.slot.report(report);
    }
    Ok((header, state, durable))
}

/// What a failed load means to whoever wanted the session.
pub(crate) fn refusal(session: &SessionId, error: LoadError) -> SessionError {
    let why = error.to_string();
    let session = session.clone();
    match error {
        LoadError::NotFound(_) => SessionError::Unknown(session),
        LoadError::TooNew { .. } => SessionError::Unsupported { session, code: "TOO_NEW", why },
        LoadError::TooOld { .. } => SessionError::Unsupported { session, code: "TOO_OLD", why },
        LoadError::UnknownEvent { .. } => SessionError::Unsupported { session, code: "UNKNOWN_EVENT", why },
        LoadError::Corrupt { seq, why } => SessionError::Corrupt { session, seq, why },
        LoadError::Store(store::Error::Corrupt { seq, why, .. }) => SessionError::Corrupt { session, seq, why },
        LoadError::Store(_) => SessionError::Storage(why),
    }
}

/// Appends the closers of a dead process, or the marker of this opening. Tells whether something was repaired.
async fn mark(
    order: &Order,
    journal: &ActorRef<session_journal::Message>,
    state: &LogState,
    epoch: Epoch,
    limits: &Limits,
) -> Result<bool, SessionError> {
    if let Some(plan) = repair::plan(state, epoch, limits.claim_restore_limit) {
        report_poison(order, &plan.poisoned);
        let events = plan.events;
        written(order, ask(journal, |reply| session_journal::Message::Repair { events, reply }).await)?;
        return Ok(true);
    }
    if let Some(marker) = repair::opening(state, epoch) {
        written(order, append(journal, epoch, vec![marker]).await)?;
    }
    Ok(false)
}

/// An item that kills what runs it waits for a person (B-16).
fn report_poison(order: &Order, poisoned: &[ItemId]) {
    for item in poisoned {
        let message = format!("item {item} was given back too often and waits until it is edited or woken");
        tracing::error!(session = %order.session, message, "poison");
        order.slot.report(format!("session {}: {message}", order.session));
        order.slot.frames.publish(&Frame::Notice { code: "POISON".to_owned(), message });
    }
}

fn written(order: &Order, answer: Option<Result<Appended, AppendError>>) -> Result<(), SessionError> {
    match answer {
        Some(Ok(_)) => Ok(()),
        Some(Err(AppendError::Refused(violation))) => Err(SessionError::Corrupt {
            session: order.session.clone(),
            seq: violation.seq,
            why: format!("it cannot be opened: {violation}"),
        }),
        Some(Err(error)) => Err(SessionError::Storage(error.to_string())),
        None => Err(SessionError::Storage("the session journal died while the session was opened".to_owned())),
    }
}

async fn append(
    journal: &ActorRef<session_journal::Message>,
    epoch: Epoch,
    events: Vec<EventBody>,
) -> Option<Result<Appended, AppendError>> {
    let ask_append = |reply| JournalRequest::Append { epoch, events, class: AppendClass::Opening, reply };
    ask(journal, |reply| session_journal::Message::Ask(ask_append(reply))).await
}

/// CP-B. The store may have been opened anew since the log was read, and lack what it had not acknowledged: then the
/// log has to be read again.
async fn checkpoint(
    order: &Order,
    journal: &ActorRef<session_journal::Message>,
) -> Result<Arc<LogState>, SessionError> {
    let gone = || SessionError::Storage("the session journal died while the session was opened".to_owned());
    let view = |reply| session_journal::Message::Ask(JournalRequest::View { reply });
    let (view, _) = ask(journal, view).await.ok_or_else(gone)?;
    let upto = Seq(view.next_seq().0.saturating_sub(1));
    let kind = CheckpointKind::Boot;
    let settled = ask(journal, |reply| session_journal::Message::Ask(JournalRequest::Checkpoint { kind, upto, reply }));
    settled.await.ok_or_else(gone)?.map_err(|failed| SessionError::Storage(failed.to_string()))?;
    let session = order.session.clone();
    let last = order.shared.store.run(move |store| store.last_seq(&session)).await;
    match last.map_err(|error| SessionError::Storage(error.to_string()))? {
        Some(last) if last == upto => Ok(view),
        Some(_) | None => Err(SessionError::Storage("it was opened anew while the session was read".to_owned())),
    }
}

/// The answer, or none when the actor died.
async fn ask<T: Send + 'static>(
    journal: &ActorRef<session_journal::Message>,
    message: impl FnOnce(Reply<T>) -> session_journal::Message,
) -> Option<T> {
    let (reply, answer) = Reply::channel();
    journal.cast(message(reply)).ok()?;
    answer.await.ok()
}

struct Opened {
    journal: ActorRef<session_journal::Message>,
    header: Arc<SessionHeader>,
    epoch: Epoch,
    view: Arc<LogState>,
    durable: watch::Receiver<Option<Seq>>,
    limits: Limits,
    repaired: bool,
    turns: usize,
}

/// Agent, pool and driver; the agent begins when the keeper knows them all.
async fn start(
    order: &Order,
    cells: &mut Vec<(ActorKind, ActorCell)>,
    opened: Opened,
) -> Result<Built, ractor::SpawnErr> {
    let Opened { journal, header, epoch, view, durable, limits, repaired, turns } = opened;
    let supervisor = order.keeper.get_cell();
    let frames = super::frames_of(&order.slot);
    let link = session_journal::link(&journal);
    let (attempt, ended, faulted) = (order.attempt, order.keeper.clone(), order.keeper.clone());
    let args = AgentArgs {
        epoch,
        view,
        boot_pending: limits.boot_pending,
        journal: link.clone(),
        profiles: Arc::clone(&order.shared.profiles),
        agent_name: header.agent.clone(),
        frames: Arc::clone(&frames),
        disposed: Arc::new(move || drop(ended.cast(Message::Disposed { attempt }))),
        faulted: Arc::new(move |why| drop(faulted.cast(Message::Faulted { attempt, why }))),
    };
    let (agent, _) = Actor::spawn_linked(None, Agent, args, supervisor.clone()).await?;
    cells.push((ActorKind::Agent, agent.get_cell()));
    let news = agent.clone();
    let listener = Arc::new(move |told| drop(news.cast(agent::Message::Journal(told))));
    drop(journal.cast(session_journal::Message::Listen { listener }));
    let live = Live { agent: agent.clone(), journal, header, epoch, durable, repaired };
    let (pool_link, pool_cell) =
        tool_pool::spawn(pool_args(order, &live, link.clone()), Some(supervisor.clone())).await?;
    cells.push((ActorKind::Pool, pool_cell));
    let pool = Arc::new(Mutex::new(pool_link));
    let present = Arc::clone(&pool);
    let shown = Arc::clone(&frames);
    let args = DriverArgs {
        session: order.session.clone(),
        epoch,
        journal: link,
        agent: agent::link(&agent),
        profiles: Arc::clone(&order.shared.profiles),
        agent_name: live.header.agent.clone(),
        world: Arc::clone(&order.shared.world),
        pool: ToolPoolLink::new(move |batch, reply| {
            present.lock().unwrap_or_else(PoisonError::into_inner).run(batch, reply);
        }),
        frames: FrameSink::new(move |frame| shown.publish(&frame)),
    };
    let driver = driver::spawn(args, Some(supervisor)).await?;
    cells.push((ActorKind::Driver, driver.get_cell()));
    let start = Box::new(move || {
        let commands = Arc::new(move |command| drop(driver.cast(DriverMsg::Command(command))));
        drop(agent.cast(agent::Message::Start { driver: commands }));
    });
    Ok(Built { live, cells: std::mem::take(cells), pool, turns, start })
}

fn pool_args(order: &Order, live: &Live, journal: JournalLink) -> PoolArgs {
    new_pool(&order.session, live, &order.slot, &order.shared, journal)
}

fn new_pool(session: &SessionId, live: &Live, slot: &Slot, shared: &Shared, journal: JournalLink) -> PoolArgs {
    let frames = Arc::clone(&slot.frames);
    PoolArgs {
        session: session.clone(),
        epoch: live.epoch,
        journal,
        profiles: Arc::clone(&shared.profiles),
        agent_name: live.header.agent.clone(),
        world: Arc::clone(&shared.world),
        notices: Arc::new(move |frame| frames.publish(&frame)),
    }
}

/// A pool to put in the place of a dead one.
pub(super) struct PoolOrder {
    pub(super) attempt: u64,
    pub(super) live: Live,
    pub(super) session: SessionId,
    pub(super) slot: Arc<Slot>,
    pub(super) shared: Arc<Shared>,
    pub(super) keeper: ActorRef<Message>,
}

/// Starts it and tells the keeper.
pub(super) async fn replace_pool(order: PoolOrder) {
    fault::reach("keeper.pool", &order.session);
    let journal = session_journal::link(&order.live.journal);
    let args = new_pool(&order.session, &order.live, &order.slot, &order.shared, journal);
    let pool = tool_pool::spawn(args, Some(order.keeper.get_cell())).await.ok();
    drop(order.keeper.cast(Message::PoolBuilt { attempt: order.attempt, pool }));
}

impl KeeperArgs {
    /// For a session that exists.
    pub(crate) fn open(session: SessionId, slot: Arc<Slot>, shared: Arc<Shared>) -> Self {
        Self { session, create: None, slot, shared }
    }
}
