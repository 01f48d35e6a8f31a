//! Asks the policies around a body. They see the call and cannot change it.

use super::types::Verdict;
use crate::ports::{
    ExtensionError, Signal, ToolPolicy, ToolVerdict,
    tool::{CallView, PostVerdict},
};
use everturn_storage::message::Block;
use futures::FutureExt;
use std::{any::Any, panic::AssertUnwindSafe, sync::Arc};

/// Steps 3 to 5: the strictest of all members counts, and a member that fails refuses.
pub(super) async fn before(policies: &[Arc<dyn ToolPolicy>], call: &CallView, signal: &Signal) -> Verdict {
    let mut strictest = Verdict::Allow;
    for policy in policies {
        let said = AssertUnwindSafe(async { policy.before(call, signal).await }).catch_unwind().await;
        match contained(said) {
            Ok(ToolVerdict::Allow) => {}
            // Nobody can be asked yet. A later member may still deny with a reason, so the chain goes on.
            Ok(ToolVerdict::Ask) => strictest = Verdict::Unavailable,
            Ok(ToolVerdict::Deny { reason }) => return Verdict::Deny { reason },
            Err(why) => return Verdict::Failed { why },
        }
    }
    strictest
}

/// Step 10: each member sees what the one in front of it left.
pub(super) async fn after(
    policies: &[Arc<dyn ToolPolicy>],
    call: &CallView,
    content: Vec<Block>,
    is_error: bool,
) -> Result<PostVerdict, String> {
    let mut replaced = None;
    for policy in policies {
        let seen = replaced.as_ref().unwrap_or(&content);
        let said = AssertUnwindSafe(async { policy.after(call, seen, is_error).await }).catch_unwind().await;
        match contained(said)? {
            PostVerdict::Accept => {}
            PostVerdict::Replace { content } => replaced = Some(content),
            PostVerdict::Block { reason } => return Ok(PostVerdict::Block { reason }),
        }
    }
    Ok(replaced.map_or(PostVerdict::Accept, |content| PostVerdict::Replace { content }))
}

fn contained<T>(said: Result<Result<T, ExtensionError>, Box<dyn Any + Send>>) -> Result<T, String> {
    match said {
        Ok(Ok(said)) => Ok(said),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it panicked".to_owned()),
    }
}
