//! The agent actor: a shell around [`Desk`]. A handler feeds one input and hands out the outputs; it waits for nothing.

use crate::{
    desk::{Answer, Desk, Input, Op, Output, ReplyId, Rules, Token},
    fault,
    frames::Frames,
    handle::{Frame, OpError, Pending, Status},
    limits::BootPending,
    ports::{Profiles, Signal},
    protocol::{AgentLink, AgentRequest, ClaimStepAnswer, DriverCommand, JournalLink, JournalRequest, OpenTurnAnswer},
    reply::Reply,
    session_journal::JournalNews,
};
use everturn_storage::{
    event::Cause,
    ids::{Epoch, ItemId, Turn},
    log::LogState,
};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// The mailbox of an agent.
pub(crate) enum Message {
    /// The driver exists; what waits may run.
    Start { driver: Arc<dyn Fn(DriverCommand) + Send + Sync> },
    /// A caller asks.
    Op { op: Op, reply: Reply<Answer> },
    /// A caller begins exclusive work under this signal.
    Maintain { signal: Signal, reply: Reply<Answer> },
    /// That work ended.
    Maintained { reply: Reply<Answer> },
    /// A caller waits for quiescence.
    WhenIdle { reply: Reply<Answer> },
    /// A caller waits for the end of an item.
    AwaitItem { item: ItemId, reply: Reply<Answer> },
    /// A snapshot.
    Status { reply: Reply<Status> },
    /// What waits.
    Pending { reply: Reply<Pending> },
    /// Take nothing new; open steps may end.
    Drain,
    /// What the driver asks and tells.
    Driver(AgentRequest),
    /// What the journal tells.
    Journal(JournalNews),
    /// An answer to the desk.
    Answered(Input),
}

/// What the actor runs on.
pub(crate) struct AgentArgs {
    pub(crate) epoch: Epoch,
    pub(crate) view: Arc<LogState>,
    pub(crate) boot_pending: BootPending,
    pub(crate) journal: JournalLink,
    pub(crate) profiles: Arc<dyn Profiles>,
    pub(crate) agent_name: String,
    pub(crate) frames: Arc<Frames>,
    /// Told once the agent is put away.
    pub(crate) disposed: Arc<dyn Fn() + Send + Sync>,
    /// Told that only a restart through repair helps.
    pub(crate) faulted: Arc<dyn Fn(String) + Send + Sync>,
}

/// Whom an answer of the desk goes to.
enum Asker {
    Caller(Reply<Answer>),
    /// A caller that wants to work under this signal.
    Maintenance(Signal, Reply<Answer>),
    Open(Reply<OpenTurnAnswer>),
    Claim(Reply<ClaimStepAnswer>),
}

pub(crate) struct State {
    args: AgentArgs,
    desk: Desk,
    askers: BTreeMap<ReplyId, Asker>,
    next_reply: u64,
    driver: Option<Arc<dyn Fn(DriverCommand) + Send + Sync>>,
    signal: Option<(Turn, Signal)>,
    maintenance: Option<Signal>,
}

pub(crate) struct Agent;

/// A link to the actor.
pub(crate) fn link(actor: &ActorRef<Message>) -> AgentLink {
    let actor = actor.clone();
    // A dead agent answers nobody; its supervisor ends the driver.
    AgentLink::new(move |request| drop(actor.cast(Message::Driver(request))))
}

#[ractor::async_trait]
impl Actor for Agent {
    type Msg = Message;
    type State = State;
    type Arguments = AgentArgs;

    async fn pre_start(&self, _me: ActorRef<Message>, args: AgentArgs) -> Result<State, ActorProcessingErr> {
        let desk = Desk::new(Arc::clone(&args.view), rules(&args), args.boot_pending);
        Ok(State { args, desk, askers: BTreeMap::new(), next_reply: 0, driver: None, signal: None, maintenance: None })
    }

    async fn handle(
        &self,
        me: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        state.take(&me, message);
        Ok(())
    }
}

fn rules(args: &AgentArgs) -> Rules {
    // An agent whose profile was taken out of the configuration goes on with the defaults until it is put away.
    Rules::of(&args.profiles.profile(&args.agent_name).unwrap_or_default())
}

impl State {
    fn take(&mut self, me: &ActorRef<Message>, message: Message) {
        match message {
            Message::Start { driver } => {
                self.driver = Some(driver);
                self.feed(me, Input::Booted);
            }
            Message::Op { op, reply } => {
                let reply = self.asker(Asker::Caller(reply));
                self.desk.set_rules(rules(&self.args));
                self.feed(me, Input::Op { op, reply });
            }
            Message::Maintain { signal, reply } => {
                let reply = self.asker(Asker::Maintenance(signal, reply));
                self.feed(me, Input::Op { op: Op::Maintain, reply });
            }
            Message::Maintained { reply } => {
                let reply = self.asker(Asker::Caller(reply));
                self.feed(me, Input::Maintained { reply });
            }
            Message::WhenIdle { reply } => {
                let reply = self.asker(Asker::Caller(reply));
                self.feed(me, Input::WhenIdle { reply });
            }
            Message::AwaitItem { item, reply } => {
                let reply = self.asker(Asker::Caller(reply));
                self.feed(me, Input::AwaitItem { item, reply });
            }
            Message::Status { reply } => reply.send(self.desk.status()),
            Message::Pending { reply } => reply.send(self.desk.pending_items()),
            Message::Drain => self.feed(me, Input::Drain),
            Message::Driver(request) => self.driver_asks(me, request),
            Message::Journal(news) => {
                let input = match news {
                    JournalNews::Committed(view) => Input::Committed(view),
                    JournalNews::Down => Input::StoreDown,
                    JournalNews::Up => Input::StoreUp,
                };
                self.feed(me, input);
            }
            Message::Answered(input) => self.feed(me, input),
        }
    }

    fn asker(&mut self, asker: Asker) -> ReplyId {
        self.next_reply += 1;
        let id = ReplyId(self.next_reply);
        self.askers.insert(id, asker);
        id
    }

    fn driver_asks(&mut self, me: &ActorRef<Message>, request: AgentRequest) {
        let input = match request {
            AgentRequest::OpenTurn { reply } => {
                self.desk.set_rules(rules(&self.args));
                Input::OpenTurn { reply: self.asker(Asker::Open(reply)) }
            }
            AgentRequest::ClaimStep { turn, proposal, step, owed, view, reply } => {
                let reply = self.asker(Asker::Claim(reply));
                Input::ClaimStep { turn, proposal, step, owed, view, reply }
            }
            AgentRequest::Phase { phase, view } => Input::Phase { phase, view },
            AgentRequest::TurnEnded { turn, reason, view } => Input::TurnEnded { turn, reason, view },
            AgentRequest::TurnSettled { turn, outcome } => Input::TurnSettled { turn, outcome },
            AgentRequest::Fault { why } => Input::Fault { why },
        };
        self.feed(me, input);
    }

    fn feed(&mut self, me: &ActorRef<Message>, input: Input) {
        for output in self.desk.step(input) {
            self.perform(me, output);
        }
    }

    fn perform(&mut self, me: &ActorRef<Message>, output: Output) {
        fault::reach(output.point(), self.desk.view().session());
        match output {
            Output::Append { token, events, class } => {
                let reply = answered(me, move |result| Input::Appended { token, result });
                let epoch = self.args.epoch;
                self.args.journal.ask(JournalRequest::Append { epoch, events, class, reply });
            }
            Output::Checkpoint { token, kind, upto } => {
                let reply = answered(me, move |outcome| Input::Settled { token, outcome });
                self.args.journal.ask(JournalRequest::Checkpoint { kind, upto, reply });
            }
            Output::ArmTimer { token, delay_ms } => arm(me, token, delay_ms),
            Output::WakeDriver => self.tell_driver(DriverCommand::Wake),
            Output::FireSignal { turn, cause } => self.fire(turn, cause),
            Output::FireMaintenance { cause } => {
                if let Some(signal) = &self.maintenance {
                    signal.fire(cause);
                }
            }
            Output::Opened { reply, turn, batch } => {
                let signal = Signal::new();
                self.signal = Some((turn, signal.clone()));
                self.answer_open(reply, OpenTurnAnswer::Opened { turn, signal, batch });
            }
            Output::NothingOpened { reply } => self.answer_open(reply, OpenTurnAnswer::Idle),
            Output::Claimed { reply, answer } => {
                if let Some(Asker::Claim(reply)) = self.askers.remove(&reply) {
                    reply.send(answer);
                }
            }
            Output::Answer { reply, answer } => self.answer(reply, answer),
            Output::Notify(frame) => self.notify(&frame),
            Output::Disposed => (self.args.disposed)(),
            Output::Fault { why } => (self.args.faulted)(why),
        }
    }

    fn answer(&mut self, reply: ReplyId, answer: Answer) {
        match self.askers.remove(&reply) {
            Some(Asker::Caller(reply)) => reply.send(answer),
            Some(Asker::Maintenance(signal, reply)) => {
                if answer == Answer::Granted {
                    self.maintenance = Some(signal);
                }
                reply.send(answer);
            }
            Some(Asker::Open(_) | Asker::Claim(_)) | None => {}
        }
    }

    fn notify(&self, frame: &Frame) {
        if let Frame::Notice { code, message } = frame {
            tracing::warn!(session = %self.desk.view().session(), code, message, "notice");
        }
        self.args.frames.publish(frame);
    }

    /// The body of a tool hears of the cancel at once, the driver with its next message.
    fn fire(&self, turn: Turn, cause: Cause) {
        if let Some((_, signal)) = self.signal.as_ref().filter(|(open, _)| *open == turn) {
            signal.fire(cause.clone());
        }
        self.tell_driver(DriverCommand::Cancel { turn, cause });
    }

    fn tell_driver(&self, command: DriverCommand) {
        if let Some(driver) = &self.driver {
            driver(command);
        }
    }

    fn answer_open(&mut self, reply: ReplyId, answer: OpenTurnAnswer) {
        if let Some(Asker::Open(reply)) = self.askers.remove(&reply) {
            reply.send(answer);
        }
    }
}

/// A reply that comes back as an input.
fn answered<T: Send + 'static>(me: &ActorRef<Message>, input: impl FnOnce(T) -> Input + Send + 'static) -> Reply<T> {
    let me = me.clone();
    Reply::new(move |answer| drop(me.cast(Message::Answered(input(answer)))))
}

fn arm(me: &ActorRef<Message>, token: Token, delay_ms: u64) {
    let me = me.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        drop(me.cast(Message::Answered(Input::Timer { token })));
    });
}

/// What an answer means to a caller that wants nothing but success.
pub(crate) fn done(answer: Answer) -> Result<(), OpError> {
    match answer {
        Answer::Refused(error) => Err(error),
        Answer::Done
        | Answer::Granted
        | Answer::Receipt(_)
        | Answer::Duplicate { .. }
        | Answer::Cancelled(_)
        | Answer::Idle(_)
        | Answer::Awaited(_) => Ok(()),
    }
}
