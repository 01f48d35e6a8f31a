//! From a claim to a frozen request: assembly, decision, settings, route, admission (S1 to S9).

use super::{
    Machine,
    effect::Effect,
    input::{Assembled, RouteFacts},
    records,
    state::{Ask, Ending, State, Work, Written},
};
use crate::{
    limits::STOP_OVERRIDES_MAX,
    ports::{BatchMessage, Decision, ExtensionError, Proposed},
    protocol::{ClaimStepAnswer, Phase},
};
use everturn_storage::{
    event::{Item, RequestConfig, TurnReason},
    ids::{Attempt, MessageId},
    log::{LogState, request::derive_request},
    message::{Block, Failure, code},
};
use std::sync::Arc;

impl Machine {
    /// A turn is open (D3, D4).
    pub(super) fn opened(&mut self, work: Box<Work>) {
        self.propose(work);
    }

    /// S1.
    fn propose(&mut self, work: Box<Work>) {
        self.phase(&work, Phase::PreAdmission);
        let token = self.fresh_token();
        self.out.push(Effect::Assemble { token, turn: work.turn, step: work.step() });
        self.state = State::Asking(Ask::Assembly, work);
    }

    /// S1 is through.
    pub(super) fn assembled(&mut self, mut work: Box<Work>, result: Result<Box<Assembled>, ExtensionError>) {
        let assembled = match result {
            Ok(assembled) => *assembled,
            Err(error) => return self.close_failed(work, extension(&error)),
        };
        work.assembly = assembled.assembly;
        work.rules = assembled.rules;
        work.batch = work.items.iter().map(|item| message_of(item)).collect();
        let token = self.fresh_token();
        let proposed = Box::new(Proposed {
            session: work.view.session().clone(),
            turn: work.turn,
            step: work.step(),
            batch: work.batch.clone(),
            assembly: work.assembly.clone(),
        });
        self.out.push(Effect::AskPreStep { token, proposed });
        self.state = State::Asking(Ask::PreStep, work);
    }

    /// S2 is through, S3 follows.
    pub(super) fn decided(
        &mut self,
        mut work: Box<Work>,
        result: Result<Decision, ExtensionError>,
        view: Option<Arc<LogState>>,
    ) {
        view.into_iter().for_each(|view| work.see(view));
        match result {
            Err(error) => return self.close_failed(work, extension(&error)),
            Ok(Decision::Reject { reason }) => {
                let blocked = Some(records::blocked(&work, reason.clone()));
                return self.close(work, Ending { reason: TurnReason::Rejected { reason }, blocked });
            }
            Ok(Decision::Enter(batch)) => work.batch = batch,
            Ok(Decision::Pass) => {}
        }
        if !work.batch.is_empty() || work.owed {
            return self.enter(work);
        }
        if work.first { self.close(work, Ending::of(TurnReason::Completed)) } else { self.boundary(work) }
    }

    /// S4.
    fn enter(&mut self, mut work: Box<Work>) {
        work.attempt = Attempt(1);
        work.failure = None;
        work.overflows = 0;
        work.concluded = false;
        let events = vec![records::step_start(&work)];
        self.append(work, Written::StepStart, events);
    }

    /// S4 is committed.
    pub(super) fn step_started(&mut self, work: Box<Work>) {
        if work.cancel.is_some() {
            return self.close_cancelled(work);
        }
        self.ask_settings(work);
    }

    /// S5; also for each retry (L-46).
    pub(super) fn ask_settings(&mut self, work: Box<Work>) {
        let token = self.fresh_token();
        self.out.push(Effect::AskRequest { token, turn: work.turn, step: work.step(), attempt: work.attempt });
        self.state = State::Asking(Ask::Settings, work);
    }

    /// S5 is through, S6 follows.
    pub(super) fn proposed(&mut self, work: Box<Work>, result: Result<RequestConfig, Failure>) {
        let config = match result {
            Ok(config) => config,
            Err(failure) => return self.close_failed(work, failure),
        };
        let token = self.fresh_token();
        self.out.push(Effect::Prepare { token, config, modalities: modalities(&work.batch) });
        self.state = State::Asking(Ask::Route, work);
    }

    /// S6 is through, S7 follows. An admission that changes nothing needs no append.
    pub(super) fn prepared(&mut self, mut work: Box<Work>, facts: RouteFacts, system_id: MessageId) {
        work.facts = facts;
        let events = records::admission(&work, system_id);
        if events.is_empty() { self.admitted(work) } else { self.append(work, Written::Admission, events) }
    }

    /// S7 is committed: S8 and S9.
    pub(super) fn admitted(&mut self, work: Box<Work>) {
        self.phase(&work, Phase::Streaming);
        if work.cancel.is_some() {
            return self.close_cancelled(work);
        }
        self.sync_request(work);
    }

    /// S10. The request follows from the log and from nothing else (M-33).
    pub(super) fn dispatch(&mut self, mut work: Box<Work>) {
        let Some(request) = derive_request(&work.view) else {
            let why = "the log holds no request header behind an admission";
            return self.close_failed(work, Failure::new(code::JOURNAL, why));
        };
        work.digest = request.digest;
        work.generation = work.view.generation();
        self.start_attempt(work, request);
    }

    /// S14: what forces a step is asked of the agent, which owns the inbox.
    pub(super) fn boundary(&mut self, mut work: Box<Work>) {
        work.owed = work.owes_results();
        if self.at_step_limit(&work) {
            return if work.owed || work.steered() { self.close_at_limit(work) } else { self.ask_stopping(work) };
        }
        self.ask_claim(work, false, 0);
    }

    pub(super) fn ask_claim(&mut self, work: Box<Work>, stopping: bool, tries: u32) {
        let token = self.fresh_token();
        self.out.push(Effect::AskClaimStep {
            token,
            turn: work.turn,
            proposal: work.next_proposal(),
            step: work.step(),
            owed: work.owed,
            view: Arc::clone(&work.view),
        });
        self.state = State::Asking(Ask::Claim { stopping, tries, waiting: false }, work);
    }

    /// The agent said whether there is more.
    pub(super) fn claimed(&mut self, mut work: Box<Work>, stopping: bool, tries: u32, answer: ClaimStepAnswer) {
        let batch = match answer {
            ClaimStepAnswer::Work(batch) => Some(batch),
            ClaimStepAnswer::Nothing => None,
            ClaimStepAnswer::Failed(error) => return self.claim_failed(work, stopping, tries, &error),
        };
        let more = batch.is_some();
        if let Some(batch) = batch {
            if stopping {
                work.stops += 1;
            } else if batch.items.iter().any(|item| item.wake) {
                work.stops = 0;
            }
            work.items = batch.items;
            work.first = false;
            work.see(batch.view);
        }
        if work.cancel.is_some() {
            return self.close_cancelled(work);
        }
        match (more, stopping) {
            (true, true | false) => self.propose(work),
            (false, false) => self.ask_stopping(work),
            (false, true) => self.close_done(work),
        }
    }

    /// S15.
    fn ask_stopping(&mut self, work: Box<Work>) {
        let token = self.fresh_token();
        self.out.push(Effect::AskStopping { token, turn: work.turn });
        self.state = State::Asking(Ask::Stopping, work);
    }

    /// S15 is through.
    pub(super) fn stopped(
        &mut self,
        mut work: Box<Work>,
        result: Result<(), ExtensionError>,
        view: Option<Arc<LogState>>,
    ) {
        view.into_iter().for_each(|view| work.see(view));
        if let Err(error) = result {
            return self.close_failed(work, extension(&error));
        }
        if self.at_step_limit(&work) {
            return if work.steered() { self.close_at_limit(work) } else { self.close_done(work) };
        }
        if work.stops < STOP_OVERRIDES_MAX {
            return self.ask_claim(work, true, 0);
        }
        // Items that would go on with the turn stay pending for the next one.
        if !work.steered() {
            return self.close_done(work);
        }
        let why = format!("the stopping chain kept the turn going {STOP_OVERRIDES_MAX} times in a row");
        self.close_failed(work, Failure::new(code::STOP_LOOP, why));
    }

    /// T-20.
    fn at_step_limit(&self, work: &Work) -> bool {
        work.rules.max_steps.is_some_and(|max| work.steps() >= max)
    }

    fn close_at_limit(&mut self, work: Box<Work>) {
        let why = format!("the turn has had {} steps, which is the limit", work.steps());
        self.close_failed(work, Failure::new(code::STEP_LIMIT, why));
    }
}

/// An extension failure as the reason of a turn (F-5).
pub(super) fn extension(error: &ExtensionError) -> Failure {
    Failure::new(code::EXTENSION, error.to_string())
}

fn message_of(item: &Item) -> BatchMessage {
    BatchMessage { message: item.message.clone(), origin: item.origin, items: vec![item.id.clone()] }
}

/// What new input will use. Images of older history are the route's to describe (5.3).
fn modalities(batch: &[BatchMessage]) -> Vec<String> {
    let is_image = |block: &Block| match block {
        Block::Image { .. } => true,
        Block::Text { .. } | Block::Reasoning { .. } | Block::ToolCall { .. } => false,
    };
    let images = batch.iter().any(|said| said.message.content.iter().any(is_image));
    let mut used = vec!["text".to_owned()];
    if images {
        used.push("image".to_owned());
    }
    used
}
