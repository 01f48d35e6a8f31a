//! `time`: what time it is here.

use async_trait::async_trait;
use everturn_actors::ports::{
    Tool, ToolContext, ToolOutput,
    tool::{Idempotency, ToolFailure},
};
use everturn_storage::{RawJson, event::ToolSpec};
use jiff::ZonedDateTime;
use serde_json::{Value, json};

/// Answers the present time as RFC 3339 with the offset of the local zone (`TZ`, else the system's, else UTC). The
/// name of the zone is in `meta.zone` where it has one. Reads only; safe to repeat and to run beside others.
#[derive(Debug)]
pub struct Time {
    spec: ToolSpec,
}

impl Time {
    /// The tool.
    pub fn new() -> Self {
        let schema = json!({"type": "object", "properties": {}, "additionalProperties": false});
        Self { spec: super::spec("time", "Tells the current date and time, in RFC 3339 with the local zone.", &schema) }
    }
}

impl Default for Time {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Tool for Time {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn parallel_safe(&self, _: &Value) -> bool {
        true
    }

    fn idempotency(&self) -> Idempotency {
        Idempotency::Safe
    }

    async fn run(&self, _: Value, _: ToolContext) -> Result<ToolOutput, ToolFailure> {
        Ok(told(&ZonedDateTime::now()))
    }
}

fn told(now: &ZonedDateTime) -> ToolOutput {
    let meta = now.time_zone().iana_name().map(|zone| RawJson::from_value(&json!({ "zone": zone })));
    ToolOutput { meta, ..ToolOutput::text(now.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everturn_storage::message::plain_text;
    use jiff::{
        Timestamp,
        tz::{Offset, TimeZone},
    };

    /// SURFACE 7: RFC 3339 with the zone, at any offset.
    #[test]
    fn tells_rfc_3339() {
        let noon = Timestamp::from_second(1_796_040_000).unwrap();
        let utc = told(&noon.to_zoned_datetime(TimeZone::UTC));
        assert_eq!(plain_text(&utc.content), "2026-11-30T12:00:00+00:00");
        let half_past = TimeZone::fixed(Offset::from_seconds(5 * 3_600 + 1_800).unwrap());
        let east = told(&noon.to_zoned_datetime(half_past));
        assert_eq!(plain_text(&east.content), "2026-11-30T17:30:00+05:30");
        assert!(east.meta.is_none());
    }

    /// The tool tells the present, and what it says can be read back.
    #[tokio::test]
    async fn tells_the_present() {
        let tool = Time::new();
        let ctx = crate::tools::fetch::tests::context();
        let before = Timestamp::now().as_second();
        let said = plain_text(&tool.run(json!({}), ctx).await.unwrap().content);
        let said: Timestamp = said.parse().unwrap();
        assert!((before..=Timestamp::now().as_second()).contains(&said.as_second()));
        assert!(tool.parallel_safe(&json!({})) && tool.idempotency() == Idempotency::Safe);
    }
}
