//! Acting on one session through the daemon: send, steer, inject, cancel, delete.

use super::{
    Context, MessageArgs, Then,
    client::Client,
    error::{CliError, exit, exit_of},
    out,
    source::{Source, session_id, unknown},
};
use everturn_storage::{event::TurnReason, ids::SessionId};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::Read;

/// Longest single wait for the end of a turn; it is asked for again.
const WAIT_S: u32 = 60;

/// The text of an argument, or of stdin for `-`.
pub(super) fn text_of(argument: String) -> Result<String, CliError> {
    if argument != "-" {
        return Ok(argument);
    }
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| CliError::bad_usage(format!("stdin cannot be read as text ({error})")))?;
    Ok(text)
}

pub(super) async fn submit(context: &Context, kind: &str, args: MessageArgs, wait: bool) -> Result<u8, CliError> {
    let id = session_id(&args.session)?;
    let client = Client::must(context).await?;
    let mut body = json!({"kind": kind, "content": text_of(args.text)?});
    if let Some(id) = args.id {
        body["id"] = id.into();
    }
    let receipt = client.post(&format!("/v1/sessions/{id}/messages"), &body).await?;
    if !wait {
        if context.json {
            out::line(&receipt.to_string());
        } else {
            out::line(&describe(&receipt));
        }
        return Ok(0);
    }
    let item = receipt["item_id"].as_str().unwrap_or_default().to_owned();
    let report = until_settled(&client, &id, &item).await?;
    if context.json {
        out::line(&report.to_string());
    } else if let Some(answer) = report["answer"].as_str() {
        out::line(answer);
    }
    conclude(&report)
}

fn describe(receipt: &Value) -> String {
    let text = |field: &str| receipt[field].as_str().unwrap_or_default().to_owned();
    let state = receipt["state"].as_str().map_or_else(String::new, |state| format!(", sent before, now {state}"));
    format!(
        "{} in {} at {}, durable as event {}{state}",
        text("item_id"),
        text("list"),
        receipt["position"],
        receipt["seq"]
    )
}

/// Waits until nothing more will become of the item, and says what did.
pub(super) async fn until_settled(client: &Client, id: &SessionId, item: &str) -> Result<Value, CliError> {
    loop {
        let report = client.get(&format!("/v1/sessions/{id}/messages/{item}?wait={WAIT_S}")).await?;
        if !report["reason"].is_null() || report["state"] == "removed" {
            return Ok(report);
        }
    }
}

/// The exit code of an item's end; what went wrong goes to stderr, as an error does.
pub(super) fn conclude(report: &Value) -> Result<u8, CliError> {
    if report["state"] == "removed" {
        return Err(CliError::new(exit::ABORTED, "REMOVED", "the message was removed before its turn; send it again"));
    }
    let reason: TurnReason = read_reason(&report["reason"])?;
    let code = exit_of(&reason);
    let (what, message) = match reason {
        TurnReason::Completed => return Ok(code),
        TurnReason::Rejected { reason } => ("REJECTED", format!("a policy refused the message: {reason}")),
        TurnReason::Aborted { .. } => ("ABORTED", "the turn was cancelled; send again to go on".to_owned()),
        TurnReason::Interrupted => {
            ("INTERRUPTED", "the process died in the turn, which was closed; send again to go on".to_owned())
        }
        TurnReason::Error { failure } => {
            return Err(CliError::new(
                code,
                failure.code.clone(),
                format!("the turn failed with {}: {}", failure.code, failure.message),
            ));
        }
        TurnReason::MaxTokens => {
            ("MAX_TOKENS", "the answer reached the output limit; raise max_tokens, or ask for the rest".to_owned())
        }
    };
    Err(CliError::new(code, what, message))
}

/// A reason as the interface gives it, absent fields left out.
fn read_reason(value: &Value) -> Result<TurnReason, CliError> {
    TurnReason::deserialize(value)
        .map_err(|_| CliError::internal("the end of the turn cannot be read; is the daemon of another version?"))
}

pub(super) async fn cancel(
    context: &Context,
    session: &str,
    keep_inbox: bool,
    then: Option<Then>,
) -> Result<u8, CliError> {
    let id = session_id(session)?;
    let client = Client::must(context).await?;
    let mut body = json!({"keep_inbox": keep_inbox});
    if let Some(then) = then {
        body["then"] = match then {
            Then::Park => "park",
            Then::Continue => "continue",
        }
        .into();
    }
    let report = client.post(&format!("/v1/sessions/{id}/cancel"), &body).await?;
    if context.json {
        out::line(&report.to_string());
    } else {
        let turn = match report["cancelled"].as_u64() {
            Some(turn) => format!("turn {turn} is being cancelled"),
            None => "nothing was running".to_owned(),
        };
        let removed = report["removed"].as_array().map_or(0, Vec::len);
        out::line(&format!("{turn}; {removed} waiting messages removed"));
    }
    Ok(0)
}

pub(super) async fn delete(context: &Context, session: &str) -> Result<u8, CliError> {
    let id = session_id(session)?;
    match Source::open(context).await? {
        Source::Daemon(client) => {
            client.delete(&format!("/v1/sessions/{id}")).await?;
        }
        Source::Store(store) => {
            if store.header(&id)?.is_none() {
                return Err(unknown(&id));
            }
            store.delete(&id)?;
            store.sync()?;
            store.close()?;
        }
        Source::Nothing => return Err(unknown(&id)),
    }
    Ok(0)
}
