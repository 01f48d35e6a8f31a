//! Wall clock and randomness.

/// Wall clock and randomness. Waiting and durations use the runtime's monotonic clock, not this one.
pub trait World: Send + Sync + 'static {
    /// Milliseconds since 1970. May jump in both directions; nothing is ordered by it.
    fn now_ms(&self) -> i64;

    /// Sixty-four random bits, for jitter.
    fn random_u64(&self) -> u64;

    /// A fresh id of at least 122 random bits, within `[A-Za-z0-9._:-]`.
    fn fresh_id(&self) -> String;
}
