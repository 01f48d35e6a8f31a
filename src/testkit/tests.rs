//! The grammar of fault scripts.

use super::script::{Action, Script};

fn plan(text: &str) -> Vec<(String, String)> {
    Script::parse(text).unwrap_or_else(|why| panic!("{text}: {why}")).plans()
}

fn wrong(text: &str) -> String {
    Script::parse(text).expect_err(text)
}

/// Rules of one place become one sequence.
#[test]
fn times_become_a_sequence() {
    let one = |key: &str, plan: &str| (key.to_owned(), plan.to_owned());
    assert_eq!(plan("driver.dispatch = kill"), [one("driver.dispatch", "return(0)")]);
    assert_eq!(plan("append#3=error"), [one("append", "2*off->1*return(0)")]);
    assert_eq!(
        plan("# a comment\nappend:turn/end@s#5+=panic; append:turn/end#2..3@s=error(no space)"),
        [one("append:turn/end@s", "1*off->2*return(1)->1*off->return(0)")]
    );
    let script = Script::parse("store.sync=error(no; no)").err();
    assert!(script.is_some(), "a text cannot hold the separator");
    let script = Script::parse("append#1=error(no space)").unwrap();
    assert_eq!(script.action("0"), Some(&Action::Error("no space".to_owned())));
    assert!(script.speaks_of("append") && !script.speaks_of("appended"));
}

/// What is wrong is refused with the reason, at the start.
#[test]
fn mistakes_are_named() {
    assert!(wrong("driver.dispach=kill").contains("driver.dispatch"));
    assert!(wrong("driver.dispatch=error").contains("means nothing"));
    assert!(wrong("policy.request=reject(no)").contains("means nothing"));
    assert!(wrong("append#0=error").contains("begin with 1"));
    assert!(wrong("append#3..2=error").contains("ends before"));
    assert!(wrong("append=error; append#2=panic").contains("same time"));
    assert!(wrong("checkpoint:never=error").contains("request"));
    assert!(wrong("store.sync:x=error").contains("no kinds"));
    assert!(wrong("append=explode").contains("no action"));
    assert!(wrong("append=hold").contains("needs a file"));
    assert!(wrong("append").contains("no `=`"));
}
