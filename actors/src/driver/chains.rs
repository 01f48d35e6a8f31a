//! What runs beside the driver: the chains of policies, each member contained and its answer checked (T-4 to T-7).

use crate::{
    ports::{
        AgentProfile, Assembly, BatchMessage, Decision, ExtensionError, Proposed, RecoveryVerdict, Signal,
        extension::Failed,
    },
    protocol::{JournalLink, JournalRequest},
    reply::Reply,
    turn::{Assembled, Rules},
};
use everturn_storage::{
    event::RequestConfig,
    ids::{Attempt, ItemId, SessionId, Step, Turn, check_id},
    log::LogState,
    message::{Block, Failure, Role, code},
};
use futures::FutureExt;
use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

/// Sections and tools of a step, and its rules (S1). A tool or section that breaks is an extension failure (T-4).
pub(super) fn assemble(profile: &AgentProfile) -> Result<Assembled, ExtensionError> {
    let rendered = catch_unwind(AssertUnwindSafe(|| render(profile)));
    let assembly = rendered.unwrap_or_else(|_| Err(panicked("a tool panicked when it was asked what it is")))?;
    let reaches_outside = !(profile.pre_step.is_empty() && profile.stopping.is_empty() && profile.recovery.is_empty());
    let rules = Rules {
        checkpoint: profile.checkpoint,
        fold_step_checkpoint: !reaches_outside,
        max_steps: profile.limits.max_steps_per_turn,
        retry: profile.limits.retry.clone(),
    };
    Ok(Assembled { assembly, rules })
}

fn render(profile: &AgentProfile) -> Result<Assembly, ExtensionError> {
    // A profile may have changed since its session was opened.
    if let Some(why) = profile.sections_wrong() {
        return Err(ExtensionError(why));
    }
    let texts = profile.sections.iter().map(|section| section.text.as_str()).filter(|text| !text.is_empty());
    let system = texts.collect::<Vec<_>>().join("\n\n");
    let mut tools: Vec<_> = profile.tools.iter().map(|tool| tool.spec().clone()).collect();
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    match tools.windows(2).find(|pair| matches!(pair, [a, b] if a.name == b.name)) {
        None => Ok(Assembly { system, tools }),
        Some(pair) => Err(ExtensionError(format!("two tools are called {:?}", pair.first().map(|tool| &tool.name)))),
    }
}

/// S2: members in order; the first refusal ends it.
pub(super) async fn pre_step(
    profile: &AgentProfile,
    mut proposed: Proposed,
    signal: &Signal,
) -> Result<Decision, ExtensionError> {
    let claimed: BTreeSet<ItemId> = proposed.batch.iter().flat_map(|said| said.items.iter().cloned()).collect();
    let mut changed = false;
    for member in &profile.pre_step {
        match contained(member.decide(&proposed, signal)).await? {
            Decision::Pass => {}
            Decision::Enter(batch) => {
                check_batch(&batch, &claimed)?;
                proposed.batch = batch;
                changed = true;
            }
            Decision::Reject { reason } => return Ok(Decision::Reject { reason }),
        }
    }
    Ok(if changed { Decision::Enter(proposed.batch) } else { Decision::Pass })
}

/// T-5: what a member hands out is input that the log can hold, and stands for claimed items once each.
pub(super) fn check_batch(batch: &[BatchMessage], claimed: &BTreeSet<ItemId>) -> Result<(), ExtensionError> {
    let mut items = BTreeSet::new();
    let mut messages = BTreeSet::new();
    for said in batch {
        let message = &said.message;
        let wrong = |why: &str| Err(ExtensionError(format!("the pre-step chain gave message {} {why}", message.id)));
        if message.role != Role::User {
            return wrong("another role than user");
        }
        if check_id(message.id.as_str()).is_err() || !messages.insert(message.id.clone()) {
            return wrong("an id that is not valid, or twice");
        }
        let speaks = message.content.iter().any(Block::is_visible);
        let plain = message.content.iter().all(|block| match block {
            Block::Text { .. } | Block::Image { .. } => true,
            Block::Reasoning { .. } | Block::ToolCall { .. } => false,
        });
        if !speaks || !plain {
            return wrong("no content, or content that users do not have");
        }
        if said.items.iter().any(|item| !claimed.contains(item) || !items.insert(item.clone())) {
            return wrong("items that were not claimed, or an item twice");
        }
    }
    Ok(())
}

/// S5: members in order. The type lets them change settings and nothing else (T-7).
pub(super) async fn settings(
    profile: &AgentProfile,
    turn: Turn,
    step: Step,
    attempt: Attempt,
) -> Result<RequestConfig, Failure> {
    let mut config = profile.config.clone();
    for member in &profile.request {
        let proposed = contained(member.propose(config, turn, step, attempt)).await;
        config = proposed.map_err(|error| Failure::new(code::EXTENSION, error.to_string()))?;
        if config.temperature.is_some_and(|temperature| !temperature.is_finite()) {
            return Err(Failure::new(
                code::INVALID_REQUEST_PROPOSAL,
                "a policy proposed a temperature that is no number",
            ));
        }
        if config.max_tokens == Some(0) {
            return Err(Failure::new(code::INVALID_REQUEST_PROPOSAL, "a policy proposed an output limit of 0 tokens"));
        }
    }
    Ok(config)
}

/// 5.6: the first member that says retry wins.
pub(super) async fn recovery(
    profile: &AgentProfile,
    failed: &Failed,
    signal: &Signal,
) -> Result<RecoveryVerdict, ExtensionError> {
    for member in &profile.recovery {
        match contained(member.recover(failed, signal)).await? {
            RecoveryVerdict::Pass => {}
            RecoveryVerdict::Retry => return Ok(RecoveryVerdict::Retry),
        }
    }
    Ok(RecoveryVerdict::Pass)
}

/// S15: every member looks.
pub(super) async fn stopping(
    profile: &AgentProfile,
    session: &SessionId,
    turn: Turn,
    signal: &Signal,
) -> Result<(), ExtensionError> {
    for member in &profile.stopping {
        contained(member.stopping(session, turn, signal)).await?;
    }
    Ok(())
}

/// The fold as the journal has it now: members may have written. `None` when the journal is gone.
pub(super) async fn view(journal: &JournalLink) -> Option<Arc<LogState>> {
    let (reply, answer) = Reply::channel();
    journal.ask(JournalRequest::View { reply });
    answer.await.ok().map(|(view, _)| view)
}

/// A member that panics has failed, and nothing else (F-5).
async fn contained<T>(member: impl Future<Output = Result<T, ExtensionError>>) -> Result<T, ExtensionError> {
    AssertUnwindSafe(member).catch_unwind().await.unwrap_or_else(|_| Err(panicked("a policy panicked")))
}

fn panicked(what: &str) -> ExtensionError {
    ExtensionError(what.to_owned())
}
