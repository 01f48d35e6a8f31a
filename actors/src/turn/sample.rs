//! One attempt: dispatch, settlement, recovery, and the tools that a message asks for (S10 to S13).

use super::{
    Machine,
    effect::Effect,
    input::{FailedBy, Outcome, Settlement},
    propose::extension,
    records,
    retry::{Retry, decide},
    state::{Ask, Burial, State, Work, Written},
};
use crate::{
    handle::Frame,
    limits::OVERFLOW_RETRIES_MAX,
    ports::{ExtensionError, RecoveryVerdict, extension::Failed},
    protocol::Phase,
};
use everturn_storage::{
    RawJson,
    event::{RetryStarted, TurnReason},
    ids::{RetryId, Seq},
    log::{LogState, request::ModelRequest},
    message::{Failure, code},
};
use std::sync::Arc;

/// What the recovery chain brought.
pub(super) struct Recovered {
    pub verdict: Result<RecoveryVerdict, ExtensionError>,
    pub random: u64,
    pub retry_id: RetryId,
    pub view: Option<Arc<LogState>>,
}

impl Machine {
    /// S10: the cause of the request is durable, so it may leave.
    pub(super) fn start_attempt(&mut self, work: Box<Work>, request: ModelRequest) {
        let attempt = work.attempt_id();
        self.publish(Frame::Started { turn: attempt.turn, step: attempt.step, attempt: attempt.attempt });
        let token = self.fresh_token();
        self.out.push(Effect::Dispatch { token, attempt, request });
        self.state = State::Sampling(work);
    }

    /// S11: the stream is over. A cancel wins until the settlement is logged (P10).
    pub(super) fn stream_over(&mut self, work: Box<Work>, mut settlement: Box<Settlement>) {
        if work.cancel.is_some() {
            settlement.outcome = Outcome::Cancelled;
        } else if settlement.outcome == Outcome::Cancelled {
            // Our signal did not fire: the provider ended the stream by itself (L-22).
            let failure = Failure::new(code::ABORTED, "the provider ended the stream although nobody cancelled it");
            settlement.outcome = Outcome::Failed { failure, by: FailedBy::Provider };
        }
        let events = vec![records::settlement(&work, &settlement)];
        self.append(work, Written::Settlement(settlement), events);
    }

    /// The settlement is a fact (T-12): goes on behind it.
    pub(super) fn settled(&mut self, mut work: Box<Work>, settlement: &Settlement, seq: Seq) {
        match &settlement.outcome {
            Outcome::Finished { .. } => {
                self.publish_settled(&work, seq);
                self.act_on_message(work, seq);
            }
            Outcome::Cancelled => {
                if self.is_message(&work) {
                    self.publish_settled(&work, seq);
                } else {
                    self.discard(&work, "cancelled");
                }
                self.close_cancelled(work);
            }
            Outcome::Failed { failure, by } => {
                self.discard(&work, &failure.code);
                work.failure = Some(failure.clone());
                match by {
                    FailedBy::Consumer => self.close_failed(work, failure.clone()),
                    FailedBy::Provider | FailedBy::Stream => self.recover(work, failure),
                }
            }
        }
    }

    fn is_message(&self, work: &Work) -> bool {
        work.view.open_turn().and_then(|turn| turn.step.as_ref()).is_some_and(|step| step.settled.is_some())
    }

    /// S12, or S13 when there is no call. Calls of a cancelled turn go to the pool too: it records the pairs (P11).
    fn act_on_message(&mut self, work: Box<Work>, message: Seq) {
        let calls = records::calls(&work);
        if !calls.is_empty() {
            self.phase(&work, Phase::Tools);
            let token = self.fresh_token();
            self.out.push(Effect::RunBatch { token, turn: work.turn, step: work.step(), calls, message });
            self.state = State::Tools(work);
        } else if work.cancel.is_some() {
            self.close_cancelled(work);
        } else {
            self.end_step(work);
        }
    }

    /// S13.
    fn end_step(&mut self, work: Box<Work>) {
        let events = vec![records::step_end(&work)];
        self.append(work, Written::StepEnd, events);
    }

    /// S12 is through.
    pub(super) fn batch_done(&mut self, mut work: Box<Work>, concluded: bool, view: Arc<LogState>) {
        work.see(view);
        work.concluded = concluded;
        if work.cancel.is_some() { self.close_cancelled(work) } else { self.end_step(work) }
    }

    /// The pool died (6.10).
    pub(super) fn pool_died(&mut self, mut work: Box<Work>, view: Arc<LogState>, fresh: String) {
        work.see(view);
        let logged = records::calls(&work).iter().filter(|call| call.called.is_some()).count();
        let failure = Failure::new(code::EXTENSION, "the tool pool died while it ran the calls of this step");
        let reason = match work.cancel.clone() {
            Some(cause) => TurnReason::Aborted { cause },
            None => TurnReason::Error { failure },
        };
        self.bury(work, Burial { logged, fresh, reason });
    }

    /// 5.6: asked of the chain first, then of the built-in retry.
    fn recover(&mut self, work: Box<Work>, failure: &Failure) {
        self.phase(&work, Phase::RetryWait);
        if work.cancel.is_some() {
            return self.close_cancelled(work);
        }
        if failure.code == code::ABORTED {
            return self.give_up(work);
        }
        let token = self.fresh_token();
        let failed = Box::new(Failed {
            session: work.view.session().clone(),
            turn: work.turn,
            step: work.step(),
            attempt: work.attempt,
            failure: failure.clone(),
            generation: work.generation,
        });
        self.out.push(Effect::AskRecovery { token, failed });
        self.state = State::Asking(Ask::Recovery, work);
    }

    /// The chain answered.
    pub(super) fn recovered(&mut self, mut work: Box<Work>, answer: Recovered) {
        let Recovered { verdict, random, retry_id, view } = answer;
        view.into_iter().for_each(|view| work.see(view));
        match verdict {
            Err(error) => self.recovery_failed(work, &error),
            Ok(RecoveryVerdict::Retry) => self.retry_now(work),
            Ok(RecoveryVerdict::Pass) => self.schedule(work, random, retry_id),
        }
    }

    /// The original failure stands, the member's error beside it (P18).
    fn recovery_failed(&mut self, work: Box<Work>, error: &ExtensionError) {
        let mut failure = last_failure(&work);
        let detail = failure.detail.as_ref().map(RawJson::to_value);
        let both = serde_json::json!({ "recovery_error": extension(error).message, "detail": detail });
        failure.detail = Some(RawJson::from_value(&both));
        self.close_failed(work, failure);
    }

    /// A member wants another attempt at once. After an overflow that needs a shorter history (L-47).
    fn retry_now(&mut self, mut work: Box<Work>) {
        if last_failure(&work).code == code::CONTEXT_WINDOW_EXCEEDED {
            if work.view.generation() <= work.generation || work.overflows >= OVERFLOW_RETRIES_MAX {
                return self.give_up(work);
            }
            work.overflows += 1;
        }
        self.retry(work);
    }

    fn schedule(&mut self, work: Box<Work>, random: u64, retry_id: RetryId) {
        let failure = last_failure(&work);
        let (limits, policy_key) = match &work.facts.retry {
            Some(own) => (own, "provider"),
            None => (&work.rules.retry, "default"),
        };
        let scheduled = scheduled_so_far(&work, policy_key);
        match decide(limits, &failure, scheduled, random) {
            Retry::GiveUp => self.give_up(work),
            Retry::Wait { delay_ms, retry, mode, max_retries } => {
                let schedule = records::Schedule {
                    retry_id: retry_id.clone(),
                    policy_key,
                    retry,
                    mode,
                    max_retries,
                    delay_ms,
                    failure,
                };
                let events = vec![records::retry_scheduled(&work, schedule)];
                self.append(work, Written::RetryScheduled { delay_ms, retry_id }, events);
            }
        }
    }

    /// The wait is on record: it begins (L-44).
    pub(super) fn back_off(&mut self, work: Box<Work>, delay_ms: u64, retry_id: RetryId) {
        if work.cancel.is_some() {
            return self.close_cancelled(work);
        }
        let failure = last_failure(&work);
        let message = format!("attempt {} failed: {}; trying again in {delay_ms} ms", work.attempt, failure.message);
        self.publish(Frame::Notice { code: failure.code, message });
        self.arm(delay_ms);
        self.state = State::BackingOff(retry_id, work);
    }

    /// The wait is over.
    pub(super) fn waited(&mut self, work: Box<Work>, retry_id: RetryId) {
        let events = vec![RetryStarted { retry_id }.into()];
        self.append(work, Written::RetryStarted, events);
    }

    /// The same step once more (R9), with settings and route asked anew (L-46).
    pub(super) fn retry(&mut self, mut work: Box<Work>) {
        if work.cancel.is_some() {
            return self.close_cancelled(work);
        }
        work.attempt = work.attempt.next();
        self.ask_settings(work);
    }

    /// The last failure ends the turn (L-48).
    pub(super) fn give_up(&mut self, work: Box<Work>) {
        let failure = last_failure(&work);
        self.close_failed(work, failure);
    }

    fn publish_settled(&mut self, work: &Work, seq: Seq) {
        let id = work.attempt_id();
        self.publish(Frame::Settled { turn: id.turn, step: id.step, attempt: id.attempt, seq });
    }

    /// Tells watchers that what they saw is not history.
    pub(super) fn discard(&mut self, work: &Work, reason: &str) {
        let id = work.attempt_id();
        let reason = reason.to_owned();
        self.publish(Frame::Discarded { turn: id.turn, step: id.step, attempt: id.attempt, reason });
    }
}

fn last_failure(work: &Work) -> Failure {
    work.failure.clone().unwrap_or_else(|| Failure::new(code::UNKNOWN, "the attempt failed and nobody said why"))
}

/// Retries of the open step with this provider and policy, from the log (L-41).
fn scheduled_so_far(work: &Work, policy_key: &str) -> u32 {
    let open = work.view.open_turn().and_then(|turn| turn.step.as_ref());
    let key = (work.config().provider.clone(), policy_key.to_owned());
    open.and_then(|step| step.retries.get(&key)).copied().unwrap_or(0)
}
