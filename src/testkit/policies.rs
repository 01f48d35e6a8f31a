//! Policies and tools of a test build that do what the fault script says. One is added only where a rule names its
//! point, because a chain that is not empty changes what is checkpointed.

use super::{act::Told, speaks_of};
use crate::config::ConfiguredProfiles;
use async_trait::async_trait;
use everturn_actors::{
    fault::{failure, failure_anywhere},
    ports::{
        Decision, ExtensionError, PreStep, Proposed, Recovery, RecoveryVerdict, RequestPolicy, Signal, Stopping, Tool,
        ToolContext, ToolPolicy,
        extension::Failed,
        tool::{CallView, PostVerdict, ToolFailure, ToolOutput, ToolVerdict},
    },
};
use everturn_storage::{
    event::{RequestConfig, ToolSpec},
    ids::{Attempt, SessionId, Step, Turn},
    message::Block,
};
use std::sync::Arc;

/// Adds what the script speaks of to every agent.
pub(crate) fn equip(profiles: &mut ConfiguredProfiles) {
    for profile in profiles.agents.values_mut() {
        let profile = Arc::make_mut(profile);
        if speaks_of("policy.pre_step") {
            profile.pre_step.push(Arc::new(Obedient));
        }
        if speaks_of("policy.request") {
            profile.request.push(Arc::new(Obedient));
        }
        if speaks_of("policy.recovery") {
            profile.recovery.push(Arc::new(Obedient));
        }
        if speaks_of("policy.stopping") {
            profile.stopping.push(Arc::new(Obedient));
        }
        if speaks_of("policy.before_tool") || speaks_of("policy.after_tool") {
            profile.tool_policies.push(Arc::new(Obedient));
        }
        if speaks_of("tool.notes") {
            let noting = |tool: &Arc<dyn Tool>| -> Arc<dyn Tool> { Arc::new(Noting(Arc::clone(tool))) };
            profile.tools = profile.tools.iter().map(noting).collect();
        }
    }
}

/// A member of every chain.
struct Obedient;

fn obeyed(point: &'static str, session: &SessionId) -> Result<Told, ExtensionError> {
    match Told::by(failure(point, session)) {
        Told::Error(why) => Err(ExtensionError(why)),
        told @ (Told::Nothing | Told::Reject(_) | Told::Empty | Told::Context(_) | Told::Conclude) => Ok(told),
    }
}

#[async_trait]
impl PreStep for Obedient {
    async fn decide(&self, proposal: &Proposed, _: &Signal) -> Result<Decision, ExtensionError> {
        Ok(match obeyed("policy.pre_step", &proposal.session)? {
            Told::Reject(reason) => Decision::Reject { reason },
            Told::Empty => Decision::Enter(Vec::new()),
            Told::Nothing | Told::Error(_) | Told::Context(_) | Told::Conclude => Decision::Pass,
        })
    }
}

#[async_trait]
impl RequestPolicy for Obedient {
    async fn propose(
        &self,
        config: RequestConfig,
        _: Turn,
        _: Step,
        _: Attempt,
    ) -> Result<RequestConfig, ExtensionError> {
        // This chain is not told of its session.
        match Told::by(failure_anywhere("policy.request")) {
            Told::Error(why) => Err(ExtensionError(why)),
            Told::Nothing | Told::Reject(_) | Told::Empty | Told::Context(_) | Told::Conclude => Ok(config),
        }
    }
}

#[async_trait]
impl Recovery for Obedient {
    async fn recover(&self, failed: &Failed, _: &Signal) -> Result<RecoveryVerdict, ExtensionError> {
        obeyed("policy.recovery", &failed.session)?;
        Ok(RecoveryVerdict::Pass)
    }
}

#[async_trait]
impl Stopping for Obedient {
    async fn stopping(&self, session: &SessionId, _: Turn, _: &Signal) -> Result<(), ExtensionError> {
        obeyed("policy.stopping", session)?;
        Ok(())
    }
}

#[async_trait]
impl ToolPolicy for Obedient {
    async fn before(&self, call: &CallView, _: &Signal) -> Result<ToolVerdict, ExtensionError> {
        obeyed("policy.before_tool", &call.session)?;
        Ok(ToolVerdict::Allow)
    }

    async fn after(&self, call: &CallView, _: &[Block], _: bool) -> Result<PostVerdict, ExtensionError> {
        obeyed("policy.after_tool", &call.session)?;
        Ok(PostVerdict::Accept)
    }
}

/// A tool that leaves the notes that the script orders.
struct Noting(Arc<dyn Tool>);

#[async_trait]
impl Tool for Noting {
    fn spec(&self) -> &ToolSpec {
        self.0.spec()
    }

    fn parallel_safe(&self, args: &serde_json::Value) -> bool {
        self.0.parallel_safe(args)
    }

    fn timeout_ms(&self) -> Option<u64> {
        self.0.timeout_ms()
    }

    fn abandonable(&self) -> bool {
        self.0.abandonable()
    }

    fn idempotency(&self) -> everturn_actors::ports::tool::Idempotency {
        self.0.idempotency()
    }

    async fn run(&self, args: serde_json::Value, ctx: ToolContext) -> Result<ToolOutput, ToolFailure> {
        match Told::by(failure("tool.notes", &ctx.session)) {
            Told::Context(text) => ctx.add_context(text),
            Told::Conclude => ctx.conclude_turn(),
            Told::Nothing | Told::Error(_) | Told::Reject(_) | Told::Empty => {}
        }
        self.0.run(args, ctx).await
    }
}
