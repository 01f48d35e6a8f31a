//! Whether and when a failed attempt is tried again (5.6): a pure function.

use crate::limits::{RetryLimits, RetryModeSetting};
use everturn_storage::{
    event::RetryMode,
    message::{Failure, code},
};

/// What the built-in retry says of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Wait, then try again.
    Wait {
        /// How long.
        delay_ms: u64,
        /// Which retry it is, from 1.
        retry: u32,
        /// How it is allowed.
        mode: RetryMode,
        /// The budget, where there is one.
        max_retries: Option<u32>,
    },
    /// The failure stands.
    GiveUp,
}

/// Judges `failure` after `scheduled` retries of the same step, provider and policy (L-41). `random` moves the wait.
pub fn decide(limits: &RetryLimits, failure: &Failure, scheduled: u32, random: u64) -> Retry {
    let (mode, max_retries) = match limits.mode {
        RetryModeSetting::Normal => (RetryMode::Normal, Some(limits.max_retries)),
        RetryModeSetting::Always => (RetryMode::Always, None),
    };
    let allowed = match mode {
        RetryMode::Normal => limits.codes.contains(&failure.code),
        RetryMode::Always => limits.always_permanent || !is_permanent(&failure.code),
    };
    if !allowed || is_never(&failure.code) || max_retries.is_some_and(|max| scheduled >= max) {
        return Retry::GiveUp;
    }
    let retry = scheduled.saturating_add(1);
    let delay_ms = match (failure.retry_after_ms, mode) {
        (Some(asked_ms), RetryMode::Normal | RetryMode::Always) if asked_ms <= limits.max_delay_ms => asked_ms,
        (Some(_), RetryMode::Normal) => return Retry::GiveUp,
        (Some(_), RetryMode::Always) | (None, RetryMode::Normal | RetryMode::Always) => {
            local_delay_ms(limits, retry, random)
        }
    };
    Retry::Wait { delay_ms, retry, mode, max_retries }
}

/// Trying again cannot help, whatever the mode: a signal, or a context that is as long as before (L-22, L-47).
fn is_never(failure_code: &str) -> bool {
    matches!(failure_code, code::ABORTED | code::CONTEXT_WINDOW_EXCEEDED)
}

/// Somebody has to change something first (L-45).
fn is_permanent(failure_code: &str) -> bool {
    matches!(failure_code, code::AUTH | code::QUOTA | code::INVALID_REQUEST)
}

/// `min(initial * 2^(retry - 1), max)`, moved by up to the ratio, within 0 and max (L-42).
fn local_delay_ms(limits: &RetryLimits, retry: u32, random: u64) -> u64 {
    let factor = 1_u64.checked_shl(retry.saturating_sub(1)).unwrap_or(u64::MAX);
    let base_ms = limits.initial_delay_ms.saturating_mul(factor).min(limits.max_delay_ms);
    let ratio = if limits.jitter_ratio.is_finite() { limits.jitter_ratio.clamp(0.0, 1.0) } else { 0.0 };
    // 53 bits are what a float holds exactly: a number from -1 to 1.
    let moved = (random >> 11) as f64 / (1_u64 << 52) as f64 - 1.0;
    let delay_ms = (base_ms as f64 * (1.0 + ratio * moved)).round();
    (delay_ms.max(0.0) as u64).min(limits.max_delay_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: &str, retry_after_ms: Option<u64>) -> Failure {
        Failure { retry_after_ms, ..Failure::new(code, "no") }
    }

    fn always() -> RetryLimits {
        RetryLimits { mode: RetryModeSetting::Always, ..RetryLimits::default() }
    }

    fn delay(limits: &RetryLimits, failure: &Failure, scheduled: u32, random: u64) -> Option<u64> {
        match decide(limits, failure, scheduled, random) {
            Retry::Wait { delay_ms, .. } => Some(delay_ms),
            Retry::GiveUp => None,
        }
    }

    /// L-40, L-45, scenarios 144 and 154.
    #[test]
    fn only_listed_codes_are_tried_again() {
        let normal = RetryLimits::default();
        for listed in [code::RATE_LIMIT, code::SERVER, code::TIMEOUT, code::TRANSPORT, code::EMPTY_RESPONSE] {
            assert!(delay(&normal, &failure(listed, None), 0, 0).is_some(), "{listed}");
        }
        for other in [code::AUTH, code::INVALID_REQUEST, code::CONTENT_FILTER, "HTTP_418", code::STREAM_CLOSED] {
            assert_eq!(delay(&normal, &failure(other, None), 0, 0), None, "{other}");
        }
        for permanent in [code::AUTH, code::QUOTA, code::INVALID_REQUEST] {
            assert_eq!(delay(&always(), &failure(permanent, None), 0, 0), None, "{permanent}");
            let stubborn = RetryLimits { always_permanent: true, ..always() };
            assert!(delay(&stubborn, &failure(permanent, None), 0, 0).is_some(), "{permanent}");
        }
        assert!(delay(&always(), &failure("HTTP_418", None), 1_000, 0).is_some());
    }

    /// L-22, L-47.
    #[test]
    fn a_signal_and_an_overflow_are_never_tried_again() {
        for never in [code::ABORTED, code::CONTEXT_WINDOW_EXCEEDED] {
            let listed = RetryLimits { codes: vec![never.to_owned()], ..RetryLimits::default() };
            assert_eq!(delay(&listed, &failure(never, None), 0, 0), None);
            let stubborn = RetryLimits { always_permanent: true, ..always() };
            assert_eq!(delay(&stubborn, &failure(never, None), 0, 0), None);
        }
    }

    /// L-41, scenario 140.
    #[test]
    fn the_budget_ends() {
        let limits = RetryLimits { max_retries: 2, ..RetryLimits::default() };
        let failure = failure(code::SERVER, None);
        assert_eq!(
            decide(&RetryLimits { jitter_ratio: 0.0, ..limits.clone() }, &failure, 1, 7),
            Retry::Wait { delay_ms: 1_000, retry: 2, mode: RetryMode::Normal, max_retries: Some(2) }
        );
        assert_eq!(decide(&limits, &failure, 2, 7), Retry::GiveUp);
    }

    /// L-42, scenario 143.
    #[test]
    fn waits_double_up_to_the_longest_within_the_jitter() {
        let limits = RetryLimits::default();
        let failure = failure(code::SERVER, None);
        for (scheduled, base_ms) in [(0, 500), (1, 1_000), (2, 2_000), (3, 4_000), (4, 8_000)] {
            for random in [0, 1, u64::MAX / 3, u64::MAX / 2, u64::MAX] {
                let got = delay(&limits, &failure, scheduled, random).unwrap();
                assert!((base_ms * 9 / 10..=base_ms * 11 / 10).contains(&got), "{base_ms} {random}: {got}");
            }
        }
        let long = RetryLimits { max_retries: 200, ..limits };
        for scheduled in [5, 30, 63, 64, 150] {
            assert_eq!(delay(&long, &failure, scheduled, u64::MAX), Some(10_000));
            assert_eq!(delay(&long, &failure, scheduled, 0), Some(9_000));
        }
        let odd = RetryLimits { jitter_ratio: f64::NAN, initial_delay_ms: u64::MAX, ..RetryLimits::default() };
        assert_eq!(delay(&odd, &failure, 0, u64::MAX), Some(10_000));
    }

    proptest::proptest! {
        /// Property 264: whatever the policy, waits stay within the bounds of the formula, and without jitter they never
        /// become shorter from one retry to the next.
        #[test]
        fn waits_stay_within_the_bounds_of_the_formula(
            (initial_delay_ms, max_delay_ms) in (0_u64..=1 << 40, 0_u64..=1 << 40),
            jitter_ratio in 0.0_f64..=1.0,
            scheduled in 0_u32..80,
            random: u64,
        ) {
            let limits =
                RetryLimits { max_retries: 100, initial_delay_ms, max_delay_ms, jitter_ratio, ..RetryLimits::default() };
            let failure = failure(code::SERVER, None);
            let calm = RetryLimits { jitter_ratio: 0.0, ..limits.clone() };
            let exact = |scheduled| delay(&calm, &failure, scheduled, random).unwrap();
            let doubled = u128::from(initial_delay_ms) << scheduled;
            assert_eq!(u128::from(exact(scheduled)), doubled.min(u128::from(max_delay_ms)));
            assert!(exact(scheduled) <= exact(scheduled + 1));
            let (base, got) = (exact(scheduled) as f64, delay(&limits, &failure, scheduled, random).unwrap());
            assert!(got <= max_delay_ms);
            // Rounded to whole milliseconds.
            assert!((base * (1.0 - jitter_ratio) - 0.5..=base * (1.0 + jitter_ratio) + 0.5).contains(&(got as f64)));
        }
    }

    /// L-43, scenarios 141 and 142.
    #[test]
    fn the_providers_wait_is_used_exactly_or_not_at_all() {
        let limits = RetryLimits::default();
        assert_eq!(delay(&limits, &failure(code::RATE_LIMIT, Some(1_234)), 0, u64::MAX), Some(1_234));
        assert_eq!(delay(&limits, &failure(code::RATE_LIMIT, Some(10_000)), 0, u64::MAX), Some(10_000));
        assert_eq!(delay(&limits, &failure(code::RATE_LIMIT, Some(10_001)), 0, u64::MAX), None);
        let local = RetryLimits { jitter_ratio: 0.0, ..always() };
        assert_eq!(delay(&local, &failure(code::RATE_LIMIT, Some(10_001)), 0, 0), Some(500));
    }
}
