//! What the machines want done, and how the outside answers.

use super::{
    desk_port::DeskIn,
    judge::{Broken, Verdict},
    life::{Lane, Life, Parcel, Pool, Task, Who},
    outside::{self, Mood},
    plants::Plant,
};
use everturn_actors::{
    ports::{Assembly, Decision, ExtensionError, RecoveryVerdict, tool::PostVerdict},
    protocol::AppendClass,
    tool_pool::{self, BatchConfig, Verdict as PolicyVerdict, Window},
    turn::{self, Assembled, Effect, RouteFacts, Token},
};
use everturn_storage::{
    RawJson,
    event::{RequestConfig, ToolSpec},
    ids::{MessageId, RetryId},
    message::{Failure, code},
};
use std::sync::Arc;

impl Life {
    pub(crate) fn feed_machine(&mut self, input: turn::Input) -> Verdict {
        let Some(input) = self.plant.machine_input(input) else { return Ok(()) };
        for effect in self.machine.step(input) {
            self.obey_machine(effect)?;
        }
        Ok(())
    }

    fn obey_machine(&mut self, effect: Effect) -> Verdict {
        match effect {
            Effect::AskOpenTurn { token } if self.stopped => {
                // A planted bug: the driver stops and the desk believes that it runs.
                self.post(Lane::DeskToMachine, Parcel::Machine(turn::Input::NothingToOpen { token }));
            }
            Effect::AskOpenTurn { token } => {
                self.post(Lane::MachineToDesk, Parcel::Desk(DeskIn::OpenTurn { token }));
            }
            Effect::Assemble { token, .. } => self.tasks.push(Task::Assemble(token)),
            Effect::AskPreStep { token, proposed } => self.tasks.push(Task::PreStep(token, proposed)),
            Effect::AskRequest { token, .. } => self.tasks.push(Task::Request(token)),
            Effect::Prepare { token, config, .. } => self.tasks.push(Task::Prepare(token, config)),
            Effect::Append { token, events } => {
                let parcel = Parcel::Append { who: Who::Machine, tag: token.0, class: AppendClass::Closing, events };
                self.post(Lane::MachineToJournal, parcel);
            }
            Effect::Checkpoint { token, kind, upto } => {
                let parcel = Parcel::Checkpoint { who: Who::Machine, tag: token.0, kind, upto };
                self.post(Lane::MachineToJournal, parcel);
            }
            Effect::Dispatch { token, attempt, request } => {
                self.judge.dispatched(attempt, self.semantic, &self.disk)?;
                // Judging a whole request costs more than making it: every third run is enough.
                if self.seed.is_multiple_of(3) {
                    self.wire.sent(&request)?;
                }
                self.tasks.push(Task::Attempt { token, aborted: false });
            }
            Effect::AbortAttempt { token } => {
                for task in &mut self.tasks {
                    if let Task::Attempt { token: asked, aborted } = task
                        && *asked == token
                    {
                        *aborted = true;
                    }
                }
            }
            // The task goes on and answers; the machine has to drop the answer.
            Effect::Abandon { .. } => {}
            Effect::AskRecovery { token, .. } => {
                self.judge.recovery_asked(self.last_truth)?;
                self.tasks.push(Task::Recovery(token));
            }
            Effect::ArmTimer { token, .. } => self.tasks.push(Task::MachineTimer(token)),
            Effect::RunBatch { token, turn, step, calls, .. } => self.run_batch(token, turn, step, calls)?,
            Effect::AskClaimStep { token, turn, proposal, step, owed, view } => {
                let ask = DeskIn::ClaimStep { token, turn, proposal, step, owed, view };
                self.post(Lane::MachineToDesk, Parcel::Desk(ask));
            }
            Effect::AskStopping { token, .. } => self.tasks.push(Task::Stopping(token)),
            Effect::Publish(_) => {}
            Effect::TellPhase { phase, view } => {
                self.post(Lane::MachineToDesk, Parcel::Desk(DeskIn::Phase { phase, view }));
            }
            Effect::TurnEnded { turn, reason, view } => {
                self.closing = Some(turn);
                self.post(Lane::MachineToDesk, Parcel::Desk(DeskIn::TurnEnded { turn, reason, view }));
            }
            Effect::TurnSettled { turn, outcome } => {
                self.behind(turn);
                self.post(Lane::MachineToDesk, Parcel::Desk(DeskIn::TurnSettled { turn, outcome }));
            }
            // Only a restart through repair helps (F-4).
            Effect::Fault { .. } => self.reborn()?,
        }
        Ok(())
    }

    fn behind(&mut self, turn: everturn_storage::ids::Turn) {
        let rows = self.disk.state.turns();
        self.stopped = rows.last().is_some_and(|row| row.turn == turn && self.plant.stops_behind(&row.reason));
    }

    fn run_batch(
        &mut self,
        token: Token,
        turn: everturn_storage::ids::Turn,
        step: everturn_storage::ids::Step,
        calls: Vec<everturn_storage::log::CallRow>,
    ) -> Verdict {
        self.batches += 1;
        let limits = everturn_actors::limits::Limits {
            max_parallel_tool_calls: 1 + self.chance.below(3),
            ..everturn_actors::limits::Limits::default()
        };
        let mut config = BatchConfig::new(turn, step, calls.clone(), &limits);
        config.policies = self.chance.permille(300);
        config.checkpoint = self.semantic;
        let window = Window::new(config);
        self.pool = Some(Pool { batch: self.batches, token, turn, step, calls, window });
        let cancelled = self.fired == Some(turn);
        self.feed_pool(self.batches, tool_pool::Input::Start { cancelled })
    }

    pub(crate) fn feed_pool(&mut self, batch: u64, input: tool_pool::Input) -> Verdict {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let Some(pool) = self.pool.as_mut().filter(|pool| pool.batch == batch) else { return Ok(()) };
            let mut fresh = self.fresh;
            let effects = pool.window.step(input, &mut || {
                fresh += 1;
                format!("f{fresh}")
            });
            self.fresh = fresh;
            for effect in effects {
                self.obey_pool(batch, effect, &mut inputs)?;
            }
        }
        Ok(())
    }

    fn obey_pool(&mut self, batch: u64, effect: tool_pool::Effect, inputs: &mut Vec<tool_pool::Input>) -> Verdict {
        use tool_pool::Effect as Do;
        let Some(pool) = self.pool.as_ref() else { return Ok(()) };
        let (token, turn, step) = (pool.token, pool.turn, pool.step);
        match effect {
            Do::Classify { index } => {
                let call = &pool.calls[index];
                inputs.push(tool_pool::Input::Classified { index, shape: outside::shape(&call.name, &call.arguments) });
            }
            Do::Append { events } => {
                let parcel = Parcel::Append { who: Who::Pool(batch), tag: 0, class: AppendClass::Closing, events };
                self.post(Lane::PoolToJournal, parcel);
            }
            Do::Checkpoint { upto } => {
                let kind = everturn_actors::protocol::CheckpointKind::Execute;
                self.post(Lane::PoolToJournal, Parcel::Checkpoint { who: Who::Pool(batch), tag: 0, kind, upto });
            }
            Do::AskPolicy { index } => self.tasks.push(Task::Policy { batch, index }),
            Do::AskPost { index, .. } => self.tasks.push(Task::Post { batch, index }),
            Do::RunBody { index } => {
                let call = pool.calls[index].call_id.clone();
                self.judge.body_ran(turn, step, &call, self.semantic, &self.disk)?;
                if self.plant == Plant::BodyTwice && index > 0 {
                    self.judge.body_ran(turn, step, &call, self.semantic, &self.disk)?;
                }
                self.tasks.push(Task::Body { batch, index, signalled: false });
            }
            Do::FireSignal { index } => {
                for task in &mut self.tasks {
                    if let Task::Body { batch: b, index: i, signalled } = task
                        && (*b, *i) == (batch, index)
                    {
                        *signalled = true;
                    }
                }
            }
            Do::ArmTimer { timer, .. } => self.tasks.push(Task::PoolTimer { batch, timer }),
            Do::Abandon { .. } | Do::Notice { .. } => {}
            Do::Done { concluded, aborted } => {
                self.pool = None;
                let view = Arc::new(self.disk.state.clone());
                let input = turn::Input::BatchDone { token, concluded, aborted, view };
                self.post(Lane::JournalToPool, Parcel::Machine(input));
            }
            Do::Fault { error } => {
                self.pool = None;
                self.post(Lane::JournalToPool, Parcel::Machine(turn::Input::BatchFault { token, error }));
            }
        }
        Ok(())
    }

    /// One task comes to its end.
    pub(crate) fn finish(&mut self, at: usize) -> Verdict {
        self.inputs += 1;
        let calm = self.mood != Mood::Free;
        let trouble = !calm && self.chance.permille(40);
        let fault = |what: &str| ExtensionError(format!("{what} failed"));
        let input = match self.tasks.swap_remove(at) {
            Task::Assemble(token) => {
                let assembly = Assembly { system: self.system(), tools: tools() };
                let assembled = Assembled { assembly, rules: self.rules() };
                let result = if trouble { Err(fault("assembly")) } else { Ok(Box::new(assembled)) };
                turn::Input::Assembled { token, result }
            }
            Task::PreStep(token, proposed) => {
                turn::Input::Decided { token, result: self.decide(*proposed, trouble), view: None }
            }
            Task::Request(token) => {
                let config = RequestConfig {
                    provider: "sim".to_owned(),
                    model: if !calm && self.chance.permille(50) { "other" } else { "one" }.to_owned(),
                    ..RequestConfig::default()
                };
                let failure = Failure::new(code::INVALID_REQUEST_PROPOSAL, "simulated");
                turn::Input::RequestProposed { token, result: if trouble { Err(failure) } else { Ok(config) } }
            }
            Task::Prepare(token, config) if !trouble => {
                let facts = Box::new(RouteFacts { config, ..RouteFacts::default() });
                let system_id = MessageId::trusted(format!("s{}", self.fresh()));
                turn::Input::Prepared { token, facts, system_id }
            }
            Task::Prepare(token, _) => {
                turn::Input::Refused { token, failure: Failure::new(code::UNKNOWN_MODEL, "simulated") }
            }
            Task::Attempt { token, aborted } => return self.settle(token, aborted),
            Task::Recovery(token) => {
                let result = if trouble { Err(fault("recovery")) } else { Ok(RecoveryVerdict::Pass) };
                let retry_id = RetryId::trusted(format!("r{}", self.fresh()));
                turn::Input::Recovered { token, result, random: self.chance.next(), retry_id, view: None }
            }
            Task::MachineTimer(token) => turn::Input::Timer { token },
            Task::Stopping(token) => {
                if !calm && self.chance.permille(60) {
                    self.submit_from_inside();
                }
                let result = if trouble { Err(fault("stopping")) } else { Ok(()) };
                turn::Input::StoppingDone { token, result, view: None }
            }
            Task::Policy { batch, index } => {
                let verdict = match (trouble, if calm { 7 } else { self.chance.below(8) }) {
                    (true, _) => PolicyVerdict::Failed { why: "simulated".to_owned() },
                    (false, 0) => PolicyVerdict::Deny { reason: "no".to_owned() },
                    (false, 1) => PolicyVerdict::Unavailable,
                    (false, _) => PolicyVerdict::Allow,
                };
                return self.feed_pool(batch, tool_pool::Input::Decided { index, verdict });
            }
            Task::Post { batch, index } => {
                let verdict = if trouble { Err("simulated".to_owned()) } else { Ok(PostVerdict::Accept) };
                return self.feed_pool(batch, tool_pool::Input::Posted { index, verdict });
            }
            Task::Body { batch, index, signalled } => {
                let end = if calm { outside::good_body() } else { outside::body(&mut self.chance) };
                return self.feed_pool(batch, tool_pool::Input::BodyDone { index, end, signalled });
            }
            Task::PoolTimer { batch, timer } => return self.feed_pool(batch, tool_pool::Input::Timer(timer)),
            Task::DeskTimer(tag) => return self.feed_desk(DeskIn::Timer { tag }),
        };
        self.feed_machine(input)
    }

    fn settle(&mut self, token: Token, aborted: bool) -> Verdict {
        let id = if self.mood == Mood::Script { self.answers } else { self.fresh() };
        self.answers += 1;
        let settlement = outside::answer(&mut self.chance, self.mood, aborted, id);
        self.settled(token, settlement)
    }

    /// The model was heard to its end.
    pub(crate) fn settled(&mut self, token: Token, settlement: turn::Settlement) -> Verdict {
        let truth = outside::truth(&settlement.outcome);
        self.last_truth = Some(truth);
        self.judge.settled_as(settlement.message_id.clone(), truth);
        self.feed_machine(turn::Input::Settled { token, settlement: Box::new(settlement) })
    }

    fn system(&mut self) -> String {
        if self.mood != Mood::Told && self.chance.permille(20) {
            "be brief".to_owned()
        } else {
            "be careful".to_owned()
        }
    }

    fn decide(
        &mut self,
        proposed: everturn_actors::ports::Proposed,
        trouble: bool,
    ) -> Result<Decision, ExtensionError> {
        if trouble {
            return Err(ExtensionError("pre-step failed".to_owned()));
        }
        if self.mood != Mood::Free {
            return Ok(Decision::Pass);
        }
        Ok(match self.chance.below(40) {
            0 => Decision::Reject { reason: "not now".to_owned() },
            1 => Decision::Enter(Vec::new()),
            2 => {
                let mut batch = proposed.batch;
                batch.truncate(1);
                Decision::Enter(batch)
            }
            _ => Decision::Pass,
        })
    }

    /// The next thing that happens by itself, if anything does: messages, then work, then a sync.
    pub(crate) fn tick(&mut self) -> Result<bool, Broken> {
        if self.disk.down && self.chance.permille(100) {
            self.store_up();
            return Ok(true);
        }
        if self.deliver()? {
            return Ok(true);
        }
        if !self.tasks.is_empty() {
            let at = self.chance.below(self.tasks.len());
            self.finish(at)?;
        } else if !self.waiters.is_empty() {
            let good = !std::mem::take(&mut self.fail_sync);
            self.sync(good);
        } else if self.disk.down {
            self.store_up();
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Runs until nothing is under way, without faults. Fails when it never ends.
    pub(crate) fn settle_down(&mut self) -> Verdict {
        if self.disk.down {
            self.store_up();
        }
        for _ in 0..20_000 {
            if !self.tick()? {
                return Ok(());
            }
        }
        let rest = (&self.tasks, self.waiters.len(), self.disk.down, self.lanes.values().flatten().collect::<Vec<_>>());
        let mut why = format!("the session never came to rest: {rest:?}");
        why.truncate(why.floor_char_boundary(2_000));
        Err(Broken::new("F-3", why))
    }
}

fn tools() -> Vec<ToolSpec> {
    ["read", "write"]
        .into_iter()
        .map(|name| ToolSpec {
            name: name.to_owned(),
            description: String::new(),
            schema: RawJson::parse("{}").expect("an object is JSON"),
        })
        .collect()
}
