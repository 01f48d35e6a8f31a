//! Parts of an agent made of closures: tools, policies and members of the chains.

use async_trait::async_trait;
use everturn_actors::ports::{
    Decision, ExtensionError, PreStep, Proposed, Section, Signal, Stopping, Tool, ToolContext, ToolOutput,
    tool::ToolFailure,
};
use everturn_storage::{
    RawJson,
    event::ToolSpec,
    ids::{SessionId, Turn},
};
use futures::future::BoxFuture;
use serde_json::Value;
use std::sync::Arc;

type Body = dyn Fn(Value, ToolContext) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> + Send + Sync;

/// A tool whose body is a closure.
pub(crate) struct Scripted {
    spec: ToolSpec,
    parallel: bool,
    body: Box<Body>,
}

impl Scripted {
    /// An exclusive tool that takes any object.
    pub(crate) fn new<F>(name: &str, body: impl Fn(Value, ToolContext) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<ToolOutput, ToolFailure>> + Send + 'static,
    {
        let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
        let spec = ToolSpec { name: name.to_owned(), description: format!("Tool {name}."), schema };
        Self { spec, parallel: false, body: Box::new(move |args, ctx| Box::pin(body(args, ctx))) }
    }

    /// One that says `done NAME`.
    pub(crate) fn done(name: &str) -> Self {
        let text = format!("done {name}");
        Self::new(name, move |_, _| std::future::ready(Ok(ToolOutput::text(text.clone()))))
    }

    /// The same, beside others.
    pub(crate) fn parallel(mut self) -> Self {
        self.parallel = true;
        self
    }

    /// As profiles want it.
    pub(crate) fn share(self) -> Arc<dyn Tool> {
        Arc::new(self)
    }
}

#[async_trait]
impl Tool for Scripted {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn parallel_safe(&self, _args: &Value) -> bool {
        self.parallel
    }

    async fn run(&self, args: Value, ctx: ToolContext) -> Result<ToolOutput, ToolFailure> {
        (self.body)(args, ctx).await
    }
}

/// A section of a system prompt.
pub(crate) fn section(name: &str, text: &str) -> Section {
    Section { name: name.to_owned(), text: text.to_owned() }
}

struct Before<F>(F);

#[async_trait]
impl<F> PreStep for Before<F>
where
    F: Fn(&Proposed) -> Result<Decision, ExtensionError> + Send + Sync + 'static,
{
    async fn decide(&self, proposal: &Proposed, _: &Signal) -> Result<Decision, ExtensionError> {
        (self.0)(proposal)
    }
}

/// A member of the pre-step chain.
pub(crate) fn pre_step(
    decide: impl Fn(&Proposed) -> Result<Decision, ExtensionError> + Send + Sync + 'static,
) -> Arc<dyn PreStep> {
    Arc::new(Before(decide))
}

struct AtStop<F>(F);

#[async_trait]
impl<F, R> Stopping for AtStop<F>
where
    F: Fn(Turn, Signal) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), ExtensionError>> + Send,
{
    async fn stopping(&self, _: &SessionId, turn: Turn, signal: &Signal) -> Result<(), ExtensionError> {
        (self.0)(turn, signal.clone()).await
    }
}

/// A member of the stopping chain.
#[allow(dead_code, reason = "for the sections that steer from the chain")]
pub(crate) fn stopping<F, R>(member: F) -> Arc<dyn Stopping>
where
    F: Fn(Turn, Signal) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), ExtensionError>> + Send + 'static,
{
    Arc::new(AtStop(member))
}
