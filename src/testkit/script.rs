//! The grammar of fault scripts.

use everturn_actors::fault::{POINTS, kind_name};
use everturn_actors::protocol::CheckpointKind;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What happens at a point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Error(String),
    Panic,
    Kill,
    Delay { ms: u64 },
    Hold { until: PathBuf },
    Reject { reason: String },
    Empty,
    Context { text: String },
    Conclude,
}

/// Which times; both ends count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Hits {
    first: u64,
    last: Option<u64>,
}

#[derive(Debug)]
struct Rule {
    key: String,
    hits: Hits,
    action: Action,
}

/// A whole script.
#[derive(Debug)]
pub(super) struct Script {
    rules: Vec<Rule>,
}

/// Points that only exist because a script names them.
const OWN_POINTS: &[(&str, bool)] = &[("maintenance", true), ("tool.notes", true)];

const KINDS: [CheckpointKind; 8] = [
    CheckpointKind::Accept,
    CheckpointKind::Request,
    CheckpointKind::Execute,
    CheckpointKind::Step,
    CheckpointKind::Turn,
    CheckpointKind::Maintenance,
    CheckpointKind::Boot,
    CheckpointKind::Dispose,
];

impl Script {
    /// An error says which rule is wrong, and why.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut rules = Vec::new();
        for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
            for rule in line.split(';').map(str::trim).filter(|rule| !rule.is_empty()) {
                rules.push(parse_rule(rule).map_err(|why| format!("rule {rule:?}: {why}"))?);
            }
        }
        let script = Self { rules };
        script.check_overlaps()?;
        Ok(script)
    }

    fn check_overlaps(&self) -> Result<(), String> {
        for rules in self.by_key().values() {
            for pair in rules.windows(2) {
                let (a, b) = (&self.rules[pair[0]], &self.rules[pair[1]]);
                if a.hits.last.is_none_or(|last| last >= b.hits.first) {
                    return Err(format!("two rules speak of the same time at {}; give them different times", a.key));
                }
            }
        }
        Ok(())
    }

    /// Places of the rules of each key, in order of their times.
    fn by_key(&self) -> BTreeMap<&str, Vec<usize>> {
        let mut by_key: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, rule) in self.rules.iter().enumerate() {
            by_key.entry(&rule.key).or_default().push(at);
        }
        for places in by_key.values_mut() {
            places.sort_by_key(|at| self.rules[*at].hits);
        }
        by_key
    }

    /// For each key the actions as the `fail` crate reads them; the number in `return(…)` is for [`Script::action`].
    pub(super) fn plans(&self) -> Vec<(String, String)> {
        let mut out = Vec::new();
        for (key, places) in self.by_key() {
            let (mut plan, mut next) = (Vec::new(), 1);
            for at in places {
                let Hits { first, last } = self.rules[at].hits;
                if first > next {
                    plan.push(format!("{}*off", first - next));
                }
                plan.push(match last {
                    Some(last) => format!("{}*return({at})", last + 1 - first),
                    None => format!("return({at})"),
                });
                next = last.map_or(u64::MAX, |last| last + 1);
            }
            out.push((key.to_owned(), plan.join("->")));
        }
        out
    }

    /// The action of a number that [`Script::plans`] gave out.
    pub(super) fn action(&self, number: &str) -> Option<&Action> {
        Some(&self.rules.get(number.parse::<usize>().ok()?)?.action)
    }

    /// Whether a rule speaks of this point, of whatever session.
    pub(super) fn speaks_of(&self, point: &str) -> bool {
        self.rules.iter().any(|rule| rule.key.split(['@', ':']).next() == Some(point))
    }
}

fn parse_rule(rule: &str) -> Result<Rule, String> {
    let (place, action) = rule.split_once('=').ok_or("it has no `=`; write POINT = ACTION")?;
    let (place, session) = match place.trim().split_once('@') {
        Some((place, session)) => (place.trim(), Some(session.trim())),
        None => (place.trim(), None),
    };
    // The times may stand before or behind the session.
    let (place, hits) = match (place.split_once('#'), session.and_then(|session| session.split_once('#'))) {
        (Some((place, hits)), None) => (place, parse_hits(hits)?),
        (None, Some((_, hits))) => (place, parse_hits(hits)?),
        (None, None) => (place, Hits { first: 1, last: None }),
        (Some(_), Some(_)) => return Err("it says twice which time".to_owned()),
    };
    let session = session.map(|session| session.split('#').next().unwrap_or_default());
    let (point, what) = match place.split_once(':') {
        Some((point, what)) => (point, Some(what)),
        None => (place, None),
    };
    let can_fail = known(point, what)?;
    let action = parse_action(action.trim(), point, can_fail)?;
    let key = match session {
        Some(session) => format!("{place}@{session}"),
        None => place.to_owned(),
    };
    Ok(Rule { key, hits, action })
}

/// Whether an error means something at a point; an error when there is none of that name.
fn known(point: &str, what: Option<&str>) -> Result<bool, String> {
    let mut names = POINTS.iter().chain(OWN_POINTS);
    let Some((_, can_fail)) = names.find(|(name, _)| *name == point) else {
        let all = POINTS.iter().chain(OWN_POINTS).map(|(name, _)| *name);
        let near = all.max_by(|a, b| strsim::jaro_winkler(a, point).total_cmp(&strsim::jaro_winkler(b, point)));
        return Err(format!("there is no point {point:?}; the nearest is {:?}", near.unwrap_or_default()));
    };
    match (point, what) {
        (_, None) | ("append" | "appended", Some(_)) => {}
        ("checkpoint", Some(kind)) if KINDS.iter().any(|known| kind_name(*known) == kind) => {}
        ("checkpoint", Some(kind)) => {
            let kinds: Vec<_> = KINDS.iter().map(|kind| kind_name(*kind)).collect();
            return Err(format!("there is no checkpoint {kind:?}; there are {}", kinds.join(", ")));
        }
        (_, Some(_)) => return Err(format!("{point} has no kinds; leave out what follows the colon")),
    }
    Ok(*can_fail)
}

fn parse_hits(text: &str) -> Result<Hits, String> {
    let number = |text: &str| {
        let number = text.parse().ok().filter(|number| *number > 0);
        number.ok_or_else(|| format!("{text:?} is no number of a time; they begin with 1"))
    };
    if let Some(first) = text.strip_suffix('+') {
        return Ok(Hits { first: number(first)?, last: None });
    }
    let (first, last) = match text.split_once("..") {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    if last < first {
        return Err(format!("{text:?} ends before it begins"));
    }
    Ok(Hits { first, last: Some(last) })
}

fn parse_action(text: &str, point: &str, can_fail: bool) -> Result<Action, String> {
    let (name, argument) = match text.split_once('(') {
        Some((name, rest)) => {
            let argument = rest.strip_suffix(')').ok_or("the parenthesis of its action is not closed")?;
            (name.trim(), Some(argument))
        }
        None => (text, None),
    };
    let needs = |what: &str| format!("{name} needs {what} in parentheses");
    let action = match (name, argument) {
        ("error", why) => Action::Error(why.unwrap_or("by order of the fault script").to_owned()),
        ("panic", None) => Action::Panic,
        ("kill", None) => Action::Kill,
        ("delay", argument) => {
            let ms = argument.and_then(|ms| ms.parse().ok()).ok_or_else(|| needs("milliseconds"))?;
            Action::Delay { ms }
        }
        ("hold", argument) => Action::Hold { until: argument.ok_or_else(|| needs("a file"))?.into() },
        ("reject", reason) => Action::Reject { reason: reason.unwrap_or("by order of the fault script").to_owned() },
        ("empty", None) => Action::Empty,
        ("context", argument) => Action::Context { text: argument.ok_or_else(|| needs("a text"))?.to_owned() },
        ("conclude", None) => Action::Conclude,
        _ => {
            return Err(format!(
                "there is no action {text:?}; there are error, panic, kill, delay(MS), hold(FILE), reject(TEXT), \
                 empty, context(TEXT), conclude"
            ));
        }
    };
    let fits = match &action {
        Action::Error(_) => can_fail && point != "tool.notes",
        Action::Reject { .. } | Action::Empty => point == "policy.pre_step",
        Action::Context { .. } | Action::Conclude => point == "tool.notes",
        Action::Panic | Action::Kill | Action::Delay { .. } | Action::Hold { .. } => true,
    };
    if fits { Ok(action) } else { Err(format!("{name} means nothing at {point}")) }
}
