//! Bodies of requests: any JSON is a list of blocks or is refused, and blocks keep their form.
#![no_main]

use everturn::storage::message::Block;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(blocks) = serde_json::from_slice::<Vec<Block>>(bytes) else { return };
    let text = serde_json::to_string(&blocks).expect("blocks are JSON");
    assert_eq!(serde_json::from_str::<Vec<Block>>(&text).expect("what was written can be read"), blocks);
});
