//! Exclusive work that is no turn (P20), which nothing else in the product starts from outside.

use everturn_actors::{fault::failure, handle::OpError, system::AgentHandle};

/// Runs maintenance that passes the point `maintenance` and does nothing else.
pub(crate) async fn maintain(handle: &AgentHandle) -> Result<Result<(), String>, OpError> {
    let session = handle.session().clone();
    handle
        .maintain(async |_signal| match failure("maintenance", &session) {
            Some(why) => Err(why),
            None => Ok(()),
        })
        .await
}
