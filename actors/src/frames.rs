//! Live frames: from one session to whoever watches (5.7). A courtesy: bounded, never durable, never waited for.

use crate::{
    handle::{Frame, Visible},
    limits::FRAME_BUFFER,
};
use std::sync::{Mutex, PoisonError};
use tokio::sync::mpsc;

/// Places that chunks leave free, so that the end of an attempt always gets through.
const RESERVED: usize = FRAME_BUFFER / 4;

struct Watcher {
    sender: mpsc::Sender<Frame>,
    /// Whether chunks were left out since it was last told.
    gap: bool,
}

/// The watchers of one session. They outlive restarts of its actors.
#[derive(Default)]
pub(crate) struct Frames(Mutex<Shown>);

#[derive(Default)]
struct Shown {
    watchers: Vec<Watcher>,
    /// What watchers were told last; nothing means idle.
    status: Option<Visible>,
}

impl Frames {
    /// One more watcher, from the next frame on.
    pub(crate) fn watch(&self) -> mpsc::Receiver<Frame> {
        let (sender, receiver) = mpsc::channel(FRAME_BUFFER);
        self.lock().watchers.push(Watcher { sender, gap: false });
        receiver
    }

    /// Shows a frame to everybody. A watcher that is so slow that not even ends of attempts fit is let go: the end of
    /// its channel tells it, and the log holds everything. A status that is no change is not shown (3.1).
    pub(crate) fn publish(&self, frame: &Frame) {
        let mut shown = self.lock();
        if let Frame::Status { status } = frame
            && shown.status.replace(*status).unwrap_or(Visible::Idle) == *status
        {
            return;
        }
        shown.watchers.retain_mut(|watcher| watcher.offer(frame));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    /// Whether it is still there.
    fn offer(&mut self, frame: &Frame) -> bool {
        if self.sender.is_closed() {
            return false;
        }
        if matches!(frame, Frame::Chunk { .. }) && self.sender.capacity() <= RESERVED {
            self.gap = true;
            return true;
        }
        if std::mem::take(&mut self.gap) && self.sender.try_send(Frame::Gap).is_err() {
            return false;
        }
        self.sender.try_send(frame.clone()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everturn_storage::{
        chunk::Chunk,
        ids::{Attempt, Seq, Step, Turn},
    };

    fn chunk() -> Frame {
        let chunk = Chunk::TextDelta { index: 0, text: "x".to_owned() };
        Frame::Chunk { turn: Turn(1), step: Step(1), attempt: Attempt(1), chunk }
    }

    /// 5.7: a slow watcher loses chunks, is told so, and always gets the terminal frame.
    #[tokio::test]
    async fn a_slow_watcher_gets_the_gap_and_the_end() {
        let frames = Frames::default();
        let mut slow = frames.watch();
        for _ in 0..3 * FRAME_BUFFER {
            frames.publish(&chunk());
        }
        let end = Frame::Settled { turn: Turn(1), step: Step(1), attempt: Attempt(1), seq: Seq(9) };
        frames.publish(&end);
        drop(frames);
        let mut seen = Vec::new();
        while let Some(frame) = slow.recv().await {
            seen.push(frame);
        }
        assert_eq!(seen.len(), FRAME_BUFFER - RESERVED + 2);
        assert_eq!(&seen[seen.len() - 2..], &[Frame::Gap, end]);
    }
}
