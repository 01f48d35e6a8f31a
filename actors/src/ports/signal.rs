//! The cancellation of one turn or of one piece of work.

use everturn_storage::event::Cause;
use std::sync::{Arc, OnceLock};
use tokio_util::sync::CancellationToken;

/// Fires once, and knows why. Clones share it; a child fires with its parent and can fire alone.
#[derive(Debug, Clone, Default)]
pub struct Signal {
    token: CancellationToken,
    cause: Arc<OnceLock<Cause>>,
}

impl Signal {
    /// One that has not fired.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fires it. The first cause stands (3.3).
    pub fn fire(&self, cause: Cause) {
        // A later cause changes nothing.
        let _ = self.cause.set(cause);
        self.token.cancel();
    }

    /// Whether it has fired.
    pub fn fired(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Why it fired, when a cause was given.
    pub fn cause(&self) -> Option<&Cause> {
        self.cause.get()
    }

    /// Ends when it fires.
    pub async fn wait(&self) {
        self.token.cancelled().await;
    }

    /// The token, for code that wants one.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// A signal that fires with this one, and alone.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { token: self.token.child_token(), cause: Arc::clone(&self.cause) }
    }
}
