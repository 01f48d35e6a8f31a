//! Any lines are safe to import: they are refused, or they hold every rule and are written the same way again.
#![no_main]

use everturn::storage::{json, log::verify::Verifier};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut lines = text.lines();
    let Some(Ok(header)) = lines.next().map(json::parse_header_line) else { return };
    let mut verifier = Verifier::new(header.session_id.clone(), None);
    for line in lines {
        let Ok((session, event)) = json::parse_event_line(line) else { return };
        let again = json::event_line(&session, &event);
        let (_, same) = json::parse_event_line(&again).expect("what was written can be read");
        assert_eq!(same, event);
        verifier.event(&std::sync::Arc::new(event));
    }
    drop(verifier.finish());
});
