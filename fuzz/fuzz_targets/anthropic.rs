//! Whatever a server of kind `anthropic` answers: no panic, at most one end, no more than came in.
#![no_main]

use everturn::{providers::Preview, storage::log::request::ModelRequest};
use everturn_fuzz::{judge, preview, request};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static ADAPTER: LazyLock<(Preview, ModelRequest)> = LazyLock::new(|| (preview("anthropic"), request()));

fuzz_target!(|answer: &[u8]| judge(answer, &ADAPTER.0.chunks(&ADAPTER.1, answer)));
