//! A session's durable events in order, from a place on, without a gap or a repeat.

use everturn_actors::{
    handle::{Committed, Visible},
    system::{AgentHandle, SessionError, System},
};
use everturn_storage::{event::Event, ids::Seq};
use std::{collections::VecDeque, sync::Arc};
use tokio::sync::{mpsc, watch};

/// Events that are read from the log at once.
const PAGE: usize = 100;

/// One thing that a follower gets.
#[derive(Debug, Clone)]
pub(crate) enum Followed {
    /// The next durable event.
    Event(Arc<Event>),
    /// The follower was too slow: it reads the log from here and then follows again.
    Lagged(Seq),
}

/// Follows a session. Dropping a call of [`Follower::next`] loses nothing.
pub(crate) struct Follower {
    system: System,
    handle: AgentHandle,
    /// What comes next.
    next: Seq,
    /// What the subscription begins with; everything before it is read from the log.
    live_from: Seq,
    live: mpsc::Receiver<Committed>,
    durable: watch::Receiver<Option<Seq>>,
    ready: VecDeque<Arc<Event>>,
    ended: bool,
}

impl Follower {
    /// Follows from `from` on, or from the next event.
    ///
    /// The subscription comes first and the log is read up to it: nothing can fall between the two.
    pub(crate) async fn new(system: System, handle: AgentHandle, from: Option<Seq>) -> Self {
        let (live_from, live) = handle.subscribe().await;
        let durable = handle.durable().await;
        Self {
            system,
            handle,
            next: from.unwrap_or(live_from),
            live_from,
            live,
            durable,
            ready: VecDeque::new(),
            ended: false,
        }
    }

    /// The first seq that was not given when this one began to follow.
    pub(crate) fn live_from(&self) -> Seq {
        self.live_from
    }

    /// The next event, once it is durable; `None` when there will be no more.
    pub(crate) async fn next(&mut self) -> Result<Option<Followed>, SessionError> {
        while !self.ended {
            if let Some(event) = self.ready.front() {
                let seq = event.seq;
                if !self.until_durable(seq).await {
                    self.again().await;
                    continue;
                }
                self.next = seq.next();
                return Ok(self.ready.pop_front().map(Followed::Event));
            }
            if self.next < self.live_from {
                self.read_page().await?;
                continue;
            }
            match self.live.recv().await {
                Some(Committed::Event(event)) if event.seq < self.next => {}
                Some(Committed::Event(event)) if event.seq == self.next => self.ready.push_back(event),
                Some(Committed::Event(_)) => return Ok(Some(self.lagged())),
                Some(Committed::Lagged { .. }) => return Ok(Some(self.lagged())),
                None => self.again().await,
            }
        }
        Ok(None)
    }

    fn lagged(&mut self) -> Followed {
        self.ended = true;
        Followed::Lagged(self.next)
    }

    async fn read_page(&mut self) -> Result<(), SessionError> {
        let page = self.system.events(self.handle.session(), self.next, PAGE).await?;
        if page.is_empty() {
            // The log ends before what was announced: its writer was restarted. What comes is what counts.
            self.live_from = self.next;
        }
        self.ready.extend(page.into_iter().filter(|event| event.seq < self.live_from));
        Ok(())
    }

    /// Waits until `seq` is durable; false when the journal went away before.
    async fn until_durable(&mut self, seq: Seq) -> bool {
        self.durable.wait_for(|durable| durable.is_some_and(|durable| durable >= seq)).await.is_ok()
    }

    /// The actors behind the handle were restarted, or are gone. Events that were not durable may have been taken
    /// back: they are read again.
    async fn again(&mut self) {
        if self.handle.status().await.visible == Visible::Disposed {
            self.ended = true;
            return;
        }
        let (live_from, live) = self.handle.subscribe().await;
        let durable = self.handle.durable().await;
        if live.is_closed() || durable.has_changed().is_err() {
            self.ended = true;
            return;
        }
        self.ready.clear();
        (self.live_from, self.live, self.durable) = (live_from, live, durable);
    }
}
