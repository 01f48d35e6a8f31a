//! Who watches a log, and how far each of them is behind.

use crate::{handle::Committed, limits::SUBSCRIPTION_BUFFER};
use everturn_storage::event::Event;
use std::sync::Arc;
use tokio::sync::mpsc::{self, error::TrySendError};

struct Subscriber {
    sender: mpsc::Sender<Committed>,
    /// Whether the last thing that it was sent is word of where to read on.
    lagging: bool,
}

/// Every subscriber gets every event in order, or is told from where to read the log.
#[derive(Default)]
pub(super) struct Subscribers(Vec<Subscriber>);

impl Subscribers {
    /// One more, from the next event on.
    pub(super) fn add(&mut self) -> mpsc::Receiver<Committed> {
        let (sender, receiver) = mpsc::channel(SUBSCRIPTION_BUFFER);
        self.0.push(Subscriber { sender, lagging: false });
        receiver
    }

    /// Gives everybody these events. Never waits.
    pub(super) fn publish(&mut self, events: &[Arc<Event>]) {
        self.0.retain_mut(|subscriber| events.iter().all(|event| subscriber.offer(event)));
    }
}

impl Subscriber {
    /// Whether it is still there.
    ///
    /// The last free place is for word of the lag, so that it is told even when nothing is committed any more. From
    /// then on it is sent nothing until it took that word: what it reads from the log afterwards holds all that was
    /// left out.
    fn offer(&mut self, event: &Arc<Event>) -> bool {
        if self.lagging && self.sender.capacity() < self.sender.max_capacity() {
            return !self.sender.is_closed();
        }
        self.lagging = self.sender.capacity() == 1;
        let message =
            if self.lagging { Committed::Lagged { from: event.seq } } else { Committed::Event(Arc::clone(event)) };
        match self.sender.try_send(message) {
            Ok(()) | Err(TrySendError::Full(_)) => true,
            Err(TrySendError::Closed(_)) => false,
        }
    }
}
