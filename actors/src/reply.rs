//! Answers between actors, without a handler that waits.

/// Where an answer goes: usually a cast into the asker's mailbox, for callers outside a oneshot channel.
pub struct Reply<T>(Box<dyn FnOnce(T) + Send>);

impl<T> Reply<T> {
    /// An answer goes through `deliver`, which must not block.
    pub fn new(deliver: impl FnOnce(T) + Send + 'static) -> Self {
        Self(Box::new(deliver))
    }

    /// Gives the answer.
    pub fn send(self, answer: T) {
        (self.0)(answer);
    }
}

impl<T: Send + 'static> Reply<T> {
    /// A reply and the future that it completes; it fails when the reply was dropped unanswered.
    pub fn channel() -> (Self, tokio::sync::oneshot::Receiver<T>) {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        // The asker may be gone; then nobody wants the answer.
        (Self::new(move |answer| drop(sender.send(answer))), receiver)
    }
}

impl<T> std::fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reply")
    }
}
