//! What members of chains may hand out.

use super::super::chains::{assemble, check_batch, settings};
use crate::ports::{AgentProfile, BatchMessage, ExtensionError, RequestPolicy, Section};
use async_trait::async_trait;
use everturn_storage::{
    event::{Origin, RequestConfig},
    ids::{Attempt, CallId, ItemId, MessageId, Step, Turn},
    message::{Block, Role, code},
    testing::sample,
};
use std::{collections::BTreeSet, sync::Arc};

fn said(id: &str, items: &[&str]) -> BatchMessage {
    let items = items.iter().map(|id| sample::item_id(id)).collect();
    BatchMessage { message: sample::message(id, Role::User, "hello"), origin: Origin::Send, items }
}

fn check(batch: &[BatchMessage]) -> bool {
    let claimed: BTreeSet<ItemId> = [sample::item_id("m1"), sample::item_id("m2")].into();
    check_batch(batch, &claimed).is_ok()
}

/// T-5: edits, drops, reorders, merges and additions are fine; what no user could say is not.
#[test]
fn batches_are_checked() {
    assert!(check(&[]));
    assert!(check(&[said("m2", &["m2"]), said("m1", &["m1"])]));
    assert!(check(&[said("both", &["m1", "m2"]), said("note", &[])]));
    let change = |act: fn(&mut BatchMessage)| {
        let mut one = said("m1", &["m1"]);
        act(&mut one);
        check(&[one])
    };
    assert!(!change(|one| one.message.role = Role::System));
    assert!(!change(|one| one.message.content.clear()));
    assert!(!change(|one| one.message.content = vec![Block::text("  ")]));
    assert!(!change(|one| one.message.id = MessageId::trusted("no spaces here")));
    assert!(!change(|one| one.items.push(sample::item_id("m9"))));
    assert!(!change(|one| one.items.push(sample::item_id("m1"))));
    assert!(!change(|one| one.message.content.push(Block::ToolCall {
        call_id: CallId::trusted("a"),
        name: "time".into(),
        arguments: "{}".into(),
        replay: None,
    })));
    assert!(!check(&[said("m1", &["m1"]), said("m1", &["m2"])]), "one id twice");
    assert!(!check(&[said("m1", &["m1"]), said("x", &["m1"])]), "one item twice");
}

/// T-4, Z11: sections in order, empty ones left out, names unique; the fold follows from the chains.
#[test]
fn assembly() {
    let section = |name: &str, text: &str| Section { name: name.into(), text: text.into() };
    let sections = vec![section("role", "Be kind."), section("empty", ""), section("style", "Be brief.")];
    let mut profile = AgentProfile { sections, ..AgentProfile::default() };
    let assembled = assemble(&profile).unwrap();
    assert_eq!(assembled.assembly.system, "Be kind.\n\nBe brief.");
    assert!(assembled.rules.fold_step_checkpoint);
    profile.sections.push(section("role", "Be rude."));
    assert!(assemble(&profile).is_err());
    profile.sections.pop();
    profile.pre_step.push(Arc::new(super::world::Fails));
    assert!(!assemble(&profile).unwrap().rules.fold_step_checkpoint);
}

struct Proposes(fn(RequestConfig) -> Result<RequestConfig, ExtensionError>);

#[async_trait]
impl RequestPolicy for Proposes {
    async fn propose(
        &self,
        config: RequestConfig,
        _turn: Turn,
        _step: Step,
        _attempt: Attempt,
    ) -> Result<RequestConfig, ExtensionError> {
        (self.0)(config)
    }
}

async fn proposed(act: fn(RequestConfig) -> Result<RequestConfig, ExtensionError>) -> String {
    let mut profile = AgentProfile::default();
    profile.request.push(Arc::new(Proposes(act)));
    match settings(&profile, Turn(1), Step(1), Attempt(1)).await {
        Ok(config) => config.model,
        Err(failure) => failure.code,
    }
}

/// T-7, scenario 54.
#[tokio::test(start_paused = true)]
async fn proposals_of_settings_are_checked() {
    assert_eq!(proposed(|config| Ok(RequestConfig { model: "m2".into(), ..config })).await, "m2");
    assert_eq!(proposed(|_| Err(ExtensionError("no".into()))).await, code::EXTENSION);
    assert_eq!(proposed(|_| panic!("scripted")).await, code::EXTENSION);
    let odd = proposed(|config| Ok(RequestConfig { temperature: Some(f64::NAN), ..config })).await;
    assert_eq!(odd, code::INVALID_REQUEST_PROPOSAL);
    let none = proposed(|config| Ok(RequestConfig { max_tokens: Some(0), ..config })).await;
    assert_eq!(none, code::INVALID_REQUEST_PROPOSAL);
}
