use super::*;
use crate::providers::samples::{
    Sample, any_history, assistant, call, image, reasoning, result, results, system, user, users, views,
};
use everturn_storage::message::Block;
use proptest::prelude::*;

const RULES: HistoryRules<'_> = HistoryRules { provider: "p", images: true, ids: IdRule::Visible(40) };

/// A history in short form.
fn short(samples: &[Sample], rules: HistoryRules<'_>) -> Vec<String> {
    let views = views(samples);
    let history = normalize(&views, rules, &ToolNames::of(["time"]), &|_, state| state.is_some());
    let piece = |piece: &Piece<'_>| match piece {
        Piece::Text(text) => text.to_string(),
        Piece::Image { source, .. } => format!("{source:?}"),
    };
    let mut out: Vec<String> = history.system.iter().map(|text| format!("system {text}")).collect();
    out.extend(history.turns.iter().map(|turn| match turn {
        WireTurn::User(pieces) => format!("user {}", pieces.iter().map(piece).collect::<Vec<_>>().join("+")),
        WireTurn::Assistant(said) => {
            let said = said.iter().map(|said| match said {
                Said::Text(text) => (*text).to_owned(),
                Said::Reasoning { text, .. } => format!("({text})"),
                Said::Call { id, name, arguments, .. } => format!("{id}:{name}{arguments}"),
                Said::Seam => "/".to_owned(),
            });
            format!("assistant {}", said.collect::<Vec<_>>().join("+"))
        }
        WireTurn::Results(results) => {
            let results = results.iter().map(|result| {
                let mark = if result.is_error { "!" } else { "" };
                format!("{}{mark}={}", result.id, result.content.iter().map(piece).collect::<Vec<_>>().join("+"))
            });
            format!("results {}", results.collect::<Vec<_>>().join(" "))
        }
    }));
    out
}

#[track_caller]
fn check(samples: &[Sample], wanted: &[&str]) {
    assert_eq!(short(samples, RULES), wanted);
}

/// M-4, I-22, M-2: users stand together, the newest system prompt is the live one, nothing empty is sent.
#[test]
fn users_and_systems() {
    check(&[system("old"), user("a"), user("b"), system("new")], &["system new", "user a+b"]);
    check(&[user("a"), assistant(vec![]), user("b")], &["user a+b"]);
    check(&[user("a"), assistant(vec![Block::text(" \n")]), user("b")], &["user a+b"]);
    check(&[user("a"), assistant(vec![reasoning("hm", "q", "{}")])], &["user a"]);
    check(&[user(""), user("  ")], &["user (no input)"]);
    check(&[], &["user (no input)"]);
    check(&[assistant(vec![Block::text("a")]), assistant(vec![Block::text("b")])], &["assistant a+/+b"]);
}

/// BR-052, BR-053: results stand directly behind their calls, in call order, whatever was said between.
#[test]
fn results_follow_their_calls() {
    let calls = || assistant(vec![call("a", "time", "{}"), call("b", "time", "{}"), call("c", "time", "{}")]);
    let wanted = ["user x", "assistant a:time{}+b:time{}+c:time{}", "results a=1 b=2 c=3", "user notice+next"];
    check(
        &[user("x"), calls(), result("a", "1"), user("notice"), result("b", "2"), result("c", "3"), user("next")],
        &wanted,
    );
    check(
        &[user("x"), calls(), result("c", "3"), result("b", "2"), result("a", "1"), user("notice"), user("next")],
        &wanted,
    );
    // A missing result and one without its call.
    check(
        &[calls(), result("a", "1"), result("z", "?"), result("b", "2"), user("u")],
        &[
            "assistant a:time{}+b:time{}+c:time{}",
            "results a=1 b=2 c!=(the result of this call is not known)",
            "user [result of the tool call \"z\", which is not in this history]+?+u",
        ],
    );
    check(
        &[calls(), results("a", vec![], true), result("b", " "), result("c", "3")],
        &["assistant a:time{}+b:time{}+c:time{}", "results a!=(no output) b=(no output) c=3"],
    );
    check(&[users(vec![call("a", "time", "{}")])], &["user [tool call time {}]"]);
}

/// BR-092, BR-094: one id twice is two calls, paired by position, with two ids on the wire.
#[test]
fn ids_are_paired_by_position() {
    let samples = [
        assistant(vec![call("a", "time", "{}"), call("a", "time", "{\"z\":1}")]),
        result("a", "first"),
        result("a", "second"),
        assistant(vec![call("a", "time", "{}")]),
        result("a", "third"),
    ];
    let got = short(&samples, RULES);
    let ids: Vec<&str> =
        got.iter().filter(|line| line.starts_with("results")).flat_map(|line| line.split(' ').skip(1)).collect();
    assert_eq!(ids.len(), 3);
    assert_eq!(ids[0], "a=first");
    assert!(ids[1].ends_with("=second") && ids[2].ends_with("=third"), "{ids:?}");
    let names: std::collections::BTreeSet<&str> = ids.iter().filter_map(|id| id.split('=').next()).collect();
    assert_eq!(names.len(), 3);
}

/// Z3, BR-091: what is no JSON object goes as an empty one; objects go byte for byte.
#[test]
fn arguments_are_objects() {
    for (arguments, wanted) in
        [("{\"a\" : 1.0}", "{\"a\" : 1.0}"), ("", "{}"), ("{oops", "{}"), ("[1]", "{}"), ("null", "{}"), ("{} x", "{}")]
    {
        assert_eq!(wire_arguments(arguments), wanted);
    }
}

/// Scenario 225, 5.3, BR-097: opaque state goes back to its maker only.
#[test]
fn state_goes_back_to_its_maker() {
    let said = |provider: &str| short(&[assistant(vec![reasoning("hm", provider, "{}"), Block::text("x")])], RULES);
    assert_eq!(said("p"), ["assistant (hm)+x"]);
    assert_eq!(said("q"), ["assistant x"]);
    assert_eq!(said(""), ["assistant x"]);
}

/// Scenario 224, 5.3: images become a short text where the route reads none, or where there is nothing to read.
#[test]
fn images() {
    let samples = [users(vec![image(true), image(false)])];
    check(&samples, &["user Base64(\"AAAA\")+Url(\"https://x/y.png\")"]);
    let text_only = HistoryRules { images: false, ..RULES };
    let wanted = "user [image of type image/png, not shown]+[image of type image/png, not shown]";
    assert_eq!(short(&samples, text_only), [wanted]);
    let nowhere = [users(vec![Block::Image { media_type: "image/png".into(), data: None, url: None }])];
    check(&nowhere, &["user [image of type image/png, not shown]"]);
}

/// The rules that every normalized history keeps.
pub(in crate::providers) fn validate(history: &WireHistory<'_>) -> Result<(), String> {
    let mut owed: Vec<String> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    let mut before = "";
    if history.turns.is_empty() {
        return Err("no turn".to_owned());
    }
    for turn in &history.turns {
        let now = match turn {
            WireTurn::User(pieces) => {
                if pieces.is_empty() {
                    return Err("an empty user".to_owned());
                }
                "user"
            }
            WireTurn::Assistant(said) => {
                if !said.iter().any(|said| matches!(said, Said::Text(_) | Said::Call { .. })) {
                    return Err("an assistant that says nothing".to_owned());
                }
                "assistant"
            }
            WireTurn::Results(_) => "results",
        };
        if now == before || (now != "results" && !owed.is_empty()) {
            return Err(format!("{now} behind {before}, {owed:?} owed"));
        }
        match turn {
            WireTurn::Assistant(said) => {
                for said in said {
                    if let Said::Call { id, .. } = said {
                        owed.push(id.clone());
                        if !seen.insert(id.clone()) {
                            return Err(format!("the id {id} twice"));
                        }
                    }
                }
            }
            WireTurn::Results(results) => {
                let ids: Vec<String> = results.iter().map(|result| result.id.clone()).collect();
                if ids != std::mem::take(&mut owed) || results.iter().any(|result| result.content.is_empty()) {
                    return Err(format!("wrong results {ids:?}"));
                }
            }
            WireTurn::User(_) => {}
        }
        before = now;
    }
    if owed.is_empty() { Ok(()) } else { Err(format!("{owed:?} not answered")) }
}

proptest! {
    /// Whatever the log holds, what is sent is legal; and a longer history begins like the shorter one (M-34).
    #[test]
    fn every_history_becomes_legal(samples in any_history()) {
        let views = views(&samples);
        let names = ToolNames::of(["time"]);
        let keeps = |_: &str, state: Option<&str>| state.is_some();
        let history = normalize(&views, RULES, &names, &keeps);
        prop_assert_eq!(validate(&history), Ok(()));
        prop_assert_eq!(&normalize(&views, RULES, &names, &keeps), &history);
        let settled = history.turns.len().saturating_sub(2);
        let mut longer = views.clone();
        let more = [user("more"), assistant(vec![call("a", "time", "{}")])];
        longer.extend(more.iter().map(Sample::view));
        let after = normalize(&longer, RULES, &names, &keeps);
        prop_assert_eq!(&after.turns[..settled], &history.turns[..settled]);
    }
}
