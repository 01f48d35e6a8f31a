//! Names on the wire: providers limit the form of tool names and call ids, the log does not.
//!
//! Both maps are functions of the history in order, so that an unchanged history gives unchanged names (M-34).

use std::collections::{BTreeMap, BTreeSet};

/// Longest tool name that all providers take.
const TOOL_NAME_MAX: usize = 64;

/// Which call ids a route takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdRule {
    /// Visible ASCII up to this length.
    Visible(usize),
    /// Letters, digits, `_` and `-` up to this length.
    Word(usize),
    /// Exactly this many letters and digits.
    Exactly(usize),
}

impl IdRule {
    fn takes(self, id: &str) -> bool {
        let within = |max: usize| !id.is_empty() && id.len() <= max;
        match self {
            Self::Visible(max) => within(max) && id.bytes().all(|byte| byte.is_ascii_graphic()),
            Self::Word(max) => within(max) && id.bytes().all(is_word),
            Self::Exactly(len) => id.len() == len && id.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        }
    }

    /// An id in the place of `id`, another one for each `salt`.
    fn make(self, id: &str, salt: u64) -> String {
        let hash = fnv1a(id.bytes().chain(salt.to_le_bytes()));
        match self {
            Self::Visible(_) | Self::Word(_) => {
                let head: String = id.bytes().filter(|byte| is_word(*byte)).take(20).map(char::from).collect();
                let head = if head.is_empty() { "call".to_owned() } else { head };
                format!("{head}_{hash:016x}")
            }
            Self::Exactly(len) => {
                let mut out = String::with_capacity(len);
                let mut rest = hash;
                while out.len() < len {
                    let digit = u32::try_from(rest % 36).unwrap_or(0);
                    out.push(char::from_digit(digit, 36).unwrap_or('0'));
                    rest = if rest < 36 { fnv1a(out.bytes()) } else { rest / 36 };
                }
                out
            }
        }
    }
}

/// Gives each call of a history an id that is legal on the wire and unique in the request (BR-092, BR-094, BR-095).
#[derive(Debug)]
pub(super) struct WireIds {
    rule: IdRule,
    used: BTreeSet<String>,
}

impl WireIds {
    pub(super) fn new(rule: IdRule) -> Self {
        Self { rule, used: BTreeSet::new() }
    }

    /// The id of the next call, which the log calls `id`.
    pub(super) fn next(&mut self, id: &str) -> String {
        let mut wire = id.to_owned();
        let mut salt = 0;
        while !self.rule.takes(&wire) || self.used.contains(&wire) {
            wire = self.rule.make(id, salt);
            salt += 1;
        }
        self.used.insert(wire.clone());
        wire
    }
}

/// Tool names on the wire, and back (BR-115).
#[derive(Debug, Clone, Default)]
pub(super) struct ToolNames {
    wire: BTreeMap<String, String>,
    back: BTreeMap<String, String>,
}

impl ToolNames {
    /// The map of the declared tools, in their order. Names that are equal once cleaned get a number.
    pub(super) fn of<'a>(declared: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Vec<&str> = declared.into_iter().collect();
        let mut map = Self::default();
        // Names that need no cleaning keep theirs, whatever stands before them.
        let (plain, odd): (Vec<&str>, Vec<&str>) = names.into_iter().partition(|name| clean(name) == **name);
        for name in plain.into_iter().chain(odd) {
            let base = clean(name);
            let mut wire = base.clone();
            let mut number = 2;
            while map.back.contains_key(&wire) {
                let tail = format!("_{number}");
                wire = format!("{}{tail}", &base[..base.len().min(TOOL_NAME_MAX - tail.len())]);
                number += 1;
            }
            map.back.insert(wire.clone(), name.to_owned());
            map.wire.insert(name.to_owned(), wire);
        }
        map
    }

    /// The name on the wire; also of tools that are no longer declared or never existed.
    pub(super) fn to_wire(&self, name: &str) -> String {
        self.wire.get(name).cloned().unwrap_or_else(|| clean(name))
    }

    /// The tool that the model means.
    pub(super) fn declared<'a>(&'a self, wire: &'a str) -> &'a str {
        self.back.get(wire).map_or(wire, String::as_str)
    }
}

fn clean(name: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    let out: String = name.chars().take(TOOL_NAME_MAX).map(legal).collect();
    if out.is_empty() { "unnamed".to_owned() } else { out }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Legal ids stay as they are; the same one again, an empty one and an illegal one are replaced.
    #[test]
    fn ids() {
        let mut ids = WireIds::new(IdRule::Word(64));
        let wire: Vec<String> = ["call_1", "call_1", "", "", "x|1", "x|2"].map(|id| ids.next(id)).into();
        assert_eq!(wire[0], "call_1");
        assert!(wire[1].starts_with("call_1_") && wire[2].starts_with("call_") && wire[4].starts_with("x1_"));
        let mut again = WireIds::new(IdRule::Word(64));
        assert_eq!(wire, ["call_1", "call_1", "", "", "x|1", "x|2"].map(|id| again.next(id)));
        assert_eq!(WireIds::new(IdRule::Visible(40)).next("x|1"), "x|1");
        assert_eq!(WireIds::new(IdRule::Exactly(9)).next("abc123XYZ"), "abc123XYZ");
    }

    /// BR-115: equal names after cleaning stay apart, and come back.
    #[test]
    fn names() {
        let long = "n".repeat(80);
        let names = ToolNames::of(["a.b", "a_b", "a/b", long.as_str(), "时间"]);
        assert_eq!(
            ["a.b", "a_b", "a/b", "gone.tool", ""].map(|name| names.to_wire(name)),
            ["a_b_2", "a_b", "a_b_3", "gone_tool", "unnamed"]
        );
        for name in ["a.b", "a_b", "a/b", long.as_str(), "时间"] {
            assert_eq!(names.declared(&names.to_wire(name)), name);
            assert!(names.to_wire(name).len() <= TOOL_NAME_MAX);
        }
        assert_eq!(names.declared("invented"), "invented");
    }

    proptest! {
        /// Whatever the ids, those on the wire are legal and unique.
        #[test]
        fn ids_are_legal_and_unique(originals in prop::collection::vec("[a-z|]{0,3}|.{0,100}", 0..40), which in 0_usize..3) {
            let rule = [IdRule::Visible(40), IdRule::Word(64), IdRule::Exactly(9)][which];
            let mut ids = WireIds::new(rule);
            let wire: Vec<String> = originals.iter().map(|id| ids.next(id)).collect();
            prop_assert!(wire.iter().all(|id| rule.takes(id)), "{:?}", wire);
            prop_assert_eq!(wire.iter().collect::<BTreeSet<_>>().len(), wire.len());
        }
    }
}
