//! Everturn runs long-lived LLM agents that never lose a turn.
//!
//! The program of the same name is one user of this library; another program can embed the system: give it a store,
//! providers, tools and agents, send messages, and read the log.
//!
//! ```
//! use everturn::{
//!     Builder,
//!     actors::{handle::{Submit, SubmitKind}, ports::{AgentProfile, ModelAdapter, Tool}, system::CreateSession},
//!     storage::{event::RequestConfig, ids::Seq, message::Block},
//! };
//! use std::{path::Path, sync::Arc};
//!
//! async fn ask(
//!     dir: &Path,
//!     my_provider: Arc<dyn ModelAdapter>,
//!     my_tool: Arc<dyn Tool>,
//! ) -> Result<Option<String>, Box<dyn std::error::Error>> {
//!     let agent = AgentProfile {
//!         tools: vec![my_tool],
//!         config: RequestConfig { provider: "mine".into(), model: "small".into(), ..RequestConfig::default() },
//!         steering: true,
//!         ..AgentProfile::default()
//!     };
//!     let system = Builder::new()
//!         .provider("mine", my_provider)
//!         .agent("helper", agent)
//!         .open(dir)
//!         .await?;
//!     let session = system.create(CreateSession { agent: "helper".into(), ..CreateSession::default() }).await?;
//!
//!     // A receipt says that the message is durable. What became of it is another question.
//!     let content = vec![Block::text("What time is it?")];
//!     let receipt =
//!         session.submit(Submit { kind: SubmitKind::Send, id: None, content, source: None }).await?;
//!     session.await_item(&receipt.item_id).await?;
//!     let answer = session.item(receipt.item_id.as_str()).await?.answer;
//!
//!     for event in system.events(session.session(), Seq(0), 1_000).await? {
//!         println!("{} {}", event.seq, event.body.data.type_name());
//!     }
//!     system.shutdown(std::time::Duration::from_secs(5)).await;
//!     Ok(answer)
//! }
//! ```
#![cfg_attr(
    test,
    allow(
        clippy::wildcard_enum_match_arm,
        clippy::print_stderr,
        clippy::print_stdout,
        reason = "tests look at one variant and print the seed that they ran with"
    )
)]

#[cfg(all(feature = "testkit", not(debug_assertions)))]
compile_error!("the feature testkit lets a fault script break the program; it never goes into a release build");

pub use everturn_actors as actors;
pub use everturn_storage as storage;

pub mod cli;
pub mod config;
pub mod providers;
pub mod tools;

mod daemon;
mod embed;
mod follow;
mod http;
mod telemetry;
#[cfg(feature = "testkit")]
mod testkit;
mod wire;

pub use embed::{BuildError, Builder, MachineWorld};
