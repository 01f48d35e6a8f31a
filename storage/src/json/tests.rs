//! The export form to the letter, and that nothing is lost in it.

use super::*;
use crate::{
    event::*,
    ids::*,
    message::{Failure, Usage},
    testing::{sample, strategies},
};
use proptest::prelude::*;

fn line(body: EventBody) -> String {
    event_line(&SessionId::trusted("s"), &Event { seq: Seq(7), time_ms: 42, body })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// SURFACE 5: what is exported comes back, and is exported to the same bytes (BR-034, V-6).
    #[test]
    fn events_come_back(event in strategies::event()) {
        let session = SessionId::trusted("a:b");
        let line = event_line(&session, &event);
        prop_assert!(!line.contains('\n'), "{line}");
        let back = parse_event_line(&line);
        prop_assert_eq!(&back, &Ok((session.clone(), event)), "{}", line);
        prop_assert_eq!(event_line(&session, &back.unwrap().1), line);
    }

    /// CONTRACT 2.2.
    #[test]
    fn headers_come_back(header in strategies::session_header()) {
        prop_assert_eq!(parse_header_line(&header_line(&header)), Ok(header));
    }

    /// A line of another form is refused and never a panic.
    #[test]
    fn any_text_is_refused_quietly(text in "\\PC{0,64}") {
        prop_assert!(parse_event_line(&text).is_err());
    }
}

/// SURFACE 5 and 7: names, order and forms.
#[test]
fn golden_lines() {
    let failure = Failure { retry_after_ms: Some(50), ..Failure::new("RATE_LIMIT", "slow") };
    let cases = [
        (
            sample::turn_end(1, TurnReason::Completed, 2, &[]),
            r#"{"session":"s","seq":7,"time":42,"type":"turn/end","data":{"turn":1,"reason":{"kind":"completed"},"steps":2}}"#,
        ),
        (
            sample::turn_end(1, TurnReason::Error { failure }, 0, &["m"]),
            r#"{"session":"s","seq":7,"time":42,"type":"turn/end","data":{"turn":1,"reason":{"kind":"error","failure":{"code":"RATE_LIMIT","message":"slow","retry_after_ms":50}},"steps":0,"unadmitted":["m"]}}"#,
        ),
        (
            sample::turn_end(1, TurnReason::Aborted { cause: Cause::Hook { reason: "r".into() } }, 0, &[]),
            r#"{"session":"s","seq":7,"time":42,"type":"turn/end","data":{"turn":1,"reason":{"kind":"aborted","cause":{"kind":"hook","reason":"r"}},"steps":0}}"#,
        ),
        (
            sample::queued("m", Origin::Send),
            r#"{"session":"s","seq":7,"time":42,"type":"inbox/queued","data":{"item":{"id":"m","target":"next-turn","wake":true,"origin":"send","message":{"id":"m","role":"user","content":[{"type":"text","text":"m"}]}}}}"#,
        ),
        (
            sample::result(1, 2, "c", 3, Some("DENIED")),
            r#"{"session":"s","seq":7,"time":42,"type":"tool/result","data":{"turn":1,"step":2,"message":{"id":"r1.2.c","role":"tool","call_id":"c","content":[{"type":"text","text":"noon"}],"is_error":true},"error":{"name":"time","code":"DENIED"}},"surface":"append","cites":[3]}"#,
        ),
        (
            sample::summary_of(1, 2, &[3, 4]),
            r#"{"session":"s","seq":7,"time":42,"type":"user/message","data":{"message":{"id":"summary","role":"user","content":[{"type":"text","text":"before"}]},"origin":"context","items":[]},"surface":{"kind":"replace","start":1,"end":2},"cites":[3,4]}"#,
        ),
    ];
    for (body, expected) in cases {
        assert_eq!(line(body), expected);
    }
}

/// SURFACE 7: `stream` is a list of `[t_ms, chunk]`; the digest is hex.
#[test]
fn golden_settlement() {
    use crate::chunk::{BlockKind, Chunk, Finish};
    let mut answer = sample::answer(1, 1, 1, "hi", &[]);
    answer.usage = Some(Usage { input: 1, ..Usage::default() });
    answer.stream.push(5, Chunk::BlockStart { index: 0, kind: BlockKind::Text });
    answer.stream.push(6, Chunk::TextDelta { index: 0, text: "h".into() });
    answer.stream.push(8, Chunk::TextDelta { index: 0, text: "i".into() });
    answer.stream.push(9, Chunk::Finish { finish: Finish::Stop });
    let text = line(EventBody::appended(answer.into()));
    let stream = concat!(
        r#""stream":[[5,{"type":"block_start","index":0,"kind":{"type":"text"}}],"#,
        r#"[6,{"type":"text_delta","index":0,"text":"h"}],[8,{"type":"text_delta","index":0,"text":"i"}],"#,
        r#"[9,{"type":"finish","finish":{"kind":"stop"}}]],"provider":"script","model":"m","request_digest":"000"#,
    );
    assert!(text.contains(stream), "{text}");
    assert!(!text.contains("null"), "{text}");
}

/// V-6: a plugin's data is the plugin's text.
#[test]
fn plugin_data_is_not_touched() {
    let text = r#"{"a": null, "b":1.50e1,"a":2}"#;
    let data = EventData::Plugin(PluginEvent { type_name: "x/y".into(), data: RawJson::parse(text).unwrap() });
    let out = line(EventBody { ignorable: true, ..data.into() });
    assert!(out.contains(text) && out.ends_with(r#","ignorable":true}"#), "{out}");
    let (_, back) = parse_event_line(&out).unwrap();
    assert!(matches!(back.body.data, EventData::Plugin(plugin) if plugin.data.as_str() == text));
}

/// 2.1: unknown and repeated fields, wrong types and bad names are refused with a sentence.
#[test]
fn foreign_lines_are_refused() {
    let good = r#"{"session":"s","seq":1,"time":2,"type":"turn/start","data":{"turn":1}}"#;
    parse_event_line(good).unwrap();
    let bad = [
        (good.replace(r#""turn":1"#, r#""turn":1,"extra":1"#), "unknown field `extra`"),
        (good.replace(r#""turn":1"#, r#""turn":1,"turn":1"#), "duplicate field"),
        (good.replace(r#""turn":1"#, r#""turn":"1""#), "invalid type"),
        (good.replace(r#"{"turn":1}"#, "{}"), "missing field `turn`"),
        (good.replace(r#""seq":1"#, r#""seq":-1"#), "invalid value"),
        (good.replace(r#""seq":1,"#, ""), "missing field `seq`"),
        (good.replace(r#""time":2"#, r#""time":2,"when":2"#), "unknown field `when`"),
        (good.replace(r#""time":2"#, r#""time":2,"time":2"#), "duplicate field"),
        (good.replace(r#""s""#, r#""s/t""#), "letters, digits"),
        (good.replace(r#"{"turn":1}}"#, r#"{"turn":1},"surface":"behind"}"#), "append, prepend or replace"),
        (format!("{good} x"), "trailing characters"),
    ];
    for (line, why) in bad {
        let error = parse_event_line(&line).unwrap_err().to_string();
        assert!(error.starts_with("this is no ") && error.contains(why), "{line}: {error}");
    }
}

/// V-1: a newer header is named as newer, whatever else it holds.
#[test]
fn newer_headers_are_refused_by_version() {
    let error = parse_header_line(r#"{"version":99,"news":true}"#).unwrap_err().to_string();
    assert!(error.contains("99 is newer than 1"), "{error}");
}
