//! Looking: sessions, show, log, messages.

use super::{
    Context,
    client::Client,
    error::CliError,
    out,
    source::{self, Source, session_id, unknown},
};
use crate::wire::{self, SessionState};
use everturn_storage::{
    ids::{Seq, SessionId},
    json,
};
use serde_json::Value;
use std::time::{Duration, SystemTime};

fn time_of(ms: &Value) -> String {
    let ms = ms.as_i64().and_then(|ms| u64::try_from(ms).ok()).unwrap_or_default();
    httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_millis(ms))
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

pub(super) async fn sessions(context: &Context, state: Option<String>) -> Result<u8, CliError> {
    let wanted = state.as_deref().map(SessionState::parse).transpose().map_err(CliError::bad_usage)?;
    let print = |row: &Value| {
        if context.json {
            out::line(&row.to_string());
        } else {
            out::line(&format!(
                "{}  {}  {}  {} turns  {}",
                plain(&row["id"]),
                plain(&row["agent"]),
                plain(&row["state"]),
                row["turns"],
                time_of(&row["updated_at"])
            ));
        }
    };
    match Source::open(context).await? {
        Source::Daemon(client) => {
            let filter = state.map_or_else(String::new, |state| format!("&state={state}"));
            let mut after = String::new();
            loop {
                let page = client.get(&format!("/v1/sessions?limit=1000{filter}{after}")).await?;
                page["sessions"].as_array().into_iter().flatten().for_each(print);
                match page["next"].as_str() {
                    Some(next) => after = format!("&after={next}"),
                    None => break,
                }
            }
        }
        Source::Store(store) => source::summaries(store.as_ref(), |summary| {
            let state = SessionState::of(&summary, false);
            if wanted.is_none_or(|wanted| wanted == state) {
                print(&wire::session_row(&summary, state));
            }
            Ok(())
        })?,
        Source::Nothing => {}
    }
    Ok(0)
}

pub(super) async fn show(context: &Context, session: &str) -> Result<u8, CliError> {
    let id = session_id(session)?;
    let record = match Source::open(context).await? {
        Source::Daemon(client) => client.get(&format!("/v1/sessions/{id}")).await?,
        Source::Store(store) => match (store.header(&id)?, store.summary(&id)?) {
            (Some(header), Some(summary)) => wire::session_record(&header, &summary, None),
            (None, _) | (_, None) => return Err(unknown(&id)),
        },
        Source::Nothing => return Err(unknown(&id)),
    };
    if context.json {
        out::line(&record.to_string());
        return Ok(0);
    }
    for (name, value) in record.as_object().into_iter().flatten() {
        let text = match name.as_str() {
            "created_at" | "updated_at" => time_of(value),
            _ => plain(value),
        };
        out::line(&format!("{name}: {text}"));
    }
    Ok(0)
}

fn print_event(context: &Context, line: &str) {
    if context.json {
        out::line(line);
        return;
    }
    let event: Value = serde_json::from_str(line).unwrap_or_default();
    let mut data = event["data"].to_string();
    if data.len() > 160 {
        everturn_storage::message::truncate_utf8(&mut data, 160);
        data.push('…');
    }
    out::line(&format!("{:>6}  {}  {data}", event["seq"], plain(&event["type"])));
}

pub(super) async fn log(context: &Context, session: &str, from: u64, follow: bool) -> Result<u8, CliError> {
    let id = session_id(session)?;
    match Source::open(context).await? {
        Source::Daemon(client) => {
            let next = remote_events(&client, &id, from, |event| print_event(context, &event.to_string())).await?;
            if follow {
                self::follow(context, &client, &id, next).await?;
            }
        }
        Source::Store(_) | Source::Nothing if follow => {
            return Err(CliError::bad_usage("--follow needs a daemon, and none runs; start everturn serve"));
        }
        Source::Store(store) => {
            if store.header(&id)?.is_none() {
                return Err(unknown(&id));
            }
            source::commits(store.as_ref(), &id, Seq(from), |events| {
                for event in events.iter().filter(|event| event.seq.0 >= from) {
                    print_event(context, &json::event_line(&id, event));
                }
                Ok(())
            })?;
        }
        Source::Nothing => return Err(unknown(&id)),
    }
    Ok(0)
}

/// Every durable event from `from` on; returns the first seq that was not there.
pub(super) async fn remote_events(
    client: &Client,
    id: &SessionId,
    from: u64,
    mut each: impl FnMut(&Value),
) -> Result<u64, CliError> {
    let mut next = from;
    loop {
        let page = client.get(&format!("/v1/sessions/{id}/events?from={next}&limit=1000")).await?;
        for event in page["events"].as_array().into_iter().flatten() {
            each(event);
            next = event["seq"].as_u64().unwrap_or(next) + 1;
        }
        if page["next"].is_null() {
            return Ok(next);
        }
    }
}

/// Goes on for ever; a lagging or broken stream is taken up where it was.
async fn follow(context: &Context, client: &Client, id: &SessionId, mut next: u64) -> Result<(), CliError> {
    loop {
        let mut stream = client.stream(id.as_str(), next.checked_sub(1)).await?;
        while let Some(event) = stream.next().await {
            if let Some(seq) = event.id {
                print_event(context, &event.data);
                next = seq + 1;
            }
        }
    }
}

pub(super) async fn messages(context: &Context, session: &str) -> Result<u8, CliError> {
    let id = session_id(session)?;
    let (messages, defect) = match Source::open(context).await? {
        Source::Daemon(client) => {
            let mut answer = client.get(&format!("/v1/sessions/{id}/history")).await?;
            (answer["messages"].as_array_mut().map(std::mem::take).unwrap_or_default(), None)
        }
        Source::Store(store) => source::history(store.as_ref(), &id)?,
        Source::Nothing => return Err(unknown(&id)),
    };
    for message in messages {
        if context.json {
            out::line(&message.to_string());
            continue;
        }
        for block in message["content"].as_array().into_iter().flatten() {
            let text = match block["type"].as_str() {
                Some("text" | "reasoning") => plain(&block["text"]),
                Some("tool_call") => format!("[calls {} with {}]", plain(&block["name"]), plain(&block["arguments"])),
                _ => block.to_string(),
            };
            out::line(&format!("{}: {text}", plain(&message["role"])));
        }
    }
    defect.map_or(Ok(0), Err)
}
