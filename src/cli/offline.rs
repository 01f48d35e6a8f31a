//! `everturn verify` and `everturn repair`: on the store itself, while nobody else owns it.

use super::{
    Context,
    error::{CliError, exit},
    out,
    source::{self, open_store, session_id, unknown},
};
use crate::{config::build_profiles, embed::Builder};
use everturn_actors::limits::{BootPending, Limits};
use everturn_storage::{
    event::FORMAT_VERSION,
    ids::{Epoch, Seq, SessionId},
    json,
    load::Loaded,
    log::{
        repair,
        verify::{Finding, Verifier},
    },
    store::Store,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::time::Duration;

async fn must_open(context: &Context) -> Result<Option<std::sync::Arc<dyn Store>>, CliError> {
    let loaded = context.load()?;
    open_store(&context.data_dir(&loaded)?).await
}

/// The sessions that a command is about.
fn chosen(store: &dyn Store, session: Option<&str>) -> Result<Vec<SessionId>, CliError> {
    if let Some(text) = session {
        let id = session_id(text)?;
        return if store.header(&id)?.is_some() { Ok(vec![id]) } else { Err(unknown(&id)) };
    }
    let mut all = Vec::new();
    source::summaries(store, |summary| {
        all.push(summary.session);
        Ok(())
    })?;
    Ok(all)
}

/// Every rule of CONTRACT 2.5 over every log, a session at a time.
pub(super) async fn verify(context: &Context, session: Option<&str>) -> Result<u8, CliError> {
    let Some(store) = must_open(context).await? else {
        return match session {
            Some(text) => Err(unknown(&session_id(text)?)),
            None => Ok(exit::COMPLETED),
        };
    };
    let sessions = chosen(store.as_ref(), session)?;
    // Hidden by itself when stderr is no terminal.
    let bar = ProgressBar::new(sessions.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} sessions, {elapsed}, {msg}") {
        bar.set_style(style);
    }
    let mut violations = 0_u64;
    let mut events = 0_u64;
    for id in &sessions {
        bar.set_message(id.to_string());
        let found = verify_one(store.as_ref(), id, &mut events)?;
        for Finding { session: _, seq, rule, why } in found {
            violations += 1;
            bar.suspend(|| {
                out::line(&if context.json {
                    json!({"session": id, "seq": seq, "rule": rule, "why": why}).to_string()
                } else {
                    format!("{id}  event {seq}  {rule}  {why}")
                });
            });
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let count = sessions.len();
    if violations > 0 {
        let what = format!(
            "{violations} violations in {count} sessions; restore the named sessions from a backup, the others are whole"
        );
        return Err(CliError::new(exit::CORRUPT, "CORRUPT", what));
    }
    if context.json {
        out::line(&json!({"sessions": count, "events": events, "violations": 0}).to_string());
    } else {
        out::line(&format!("{count} sessions with {events} events: every rule holds"));
    }
    Ok(exit::COMPLETED)
}

/// What is wrong with one log. A tail that was never acknowledged is no violation: opening cuts it, and says so.
fn verify_one(store: &dyn Store, id: &SessionId, events: &mut u64) -> Result<Vec<Finding>, CliError> {
    let broken = |rule, why: String| Ok(vec![Finding { session: id.clone(), seq: Seq(0), rule, why }]);
    match store.header(id)? {
        None => return broken("record", "the header beside the log is missing".to_owned()),
        Some(header) if header.version != FORMAT_VERSION => {
            return broken("V-1", format!("version {} is not known to this build; use another one", header.version));
        }
        Some(_) => {}
    }
    let mut verifier = Verifier::new(id.clone(), None);
    let read = source::commits(store, id, Seq(0), |commit| {
        *events += commit.len() as u64;
        verifier.commit(&commit);
        Ok(())
    });
    let damage = match read {
        Err(error) if error.exit == exit::CORRUPT => match source::loaded(store, id) {
            Ok(Loaded { cut: Some(torn), .. }) => {
                out::note(&format!(
                    "session {id}: a torn tail at event {} ({}); opening will cut it",
                    torn.first, torn.why
                ));
                None
            }
            Ok(Loaded { cut: None, .. }) | Err(_) => Some(error.message),
        },
        Err(error) => return Err(error),
        Ok(()) => None,
    };
    let seq = verifier.state().next_seq();
    let mut found = verifier.finish();
    found.extend(damage.map(|why| Finding { session: id.clone(), seq, rule: "record", why }));
    Ok(found)
}

/// What opening would append to sessions that a dead process left open; with `apply` it is appended.
pub(super) async fn repair(context: &Context, apply: bool) -> Result<u8, CliError> {
    let loaded = context.load()?;
    let Some(store) = open_store(&context.data_dir(&loaded)?).await? else { return Ok(exit::COMPLETED) };
    let mut corrupt = 0_u32;
    for id in store.attention()? {
        match plan_one(context, store.as_ref(), &id, loaded.config.limits.claim_restore_limit) {
            Ok(()) => {}
            Err(error) if error.exit == exit::CORRUPT => {
                corrupt += 1;
                out::note(&error.message);
            }
            Err(error) => return Err(error),
        }
    }
    if apply {
        // The same code that boot runs; what waits stays waiting.
        let limits = Limits { boot_pending: BootPending::Park, ..loaded.config.limits.clone() };
        let system = Builder::new().profiles(build_profiles(&loaded)?).limits(limits).start(store).await?;
        let boot = system.booted().await;
        boot.reports.iter().for_each(|line| out::note(line));
        boot.refused.iter().for_each(|(_, error)| out::note(&error.to_string()));
        system.shutdown(Duration::ZERO).await;
        if !context.json {
            out::line(&format!("{} sessions repaired", boot.repaired.len()));
        }
    }
    if corrupt > 0 {
        let what = format!("{corrupt} sessions are damaged and were not touched; restore them from a backup");
        return Err(CliError::new(exit::CORRUPT, "CORRUPT", what));
    }
    Ok(exit::COMPLETED)
}

/// Prints the closers of one session, as the events that they will be.
fn plan_one(context: &Context, store: &dyn Store, id: &SessionId, restore_limit: u32) -> Result<(), CliError> {
    let Loaded { state, cut, .. } = source::loaded(store, id)?;
    if let Some(torn) = cut {
        out::note(&format!("session {id}: a torn tail at event {} ({}) is cut", torn.first, torn.why));
    }
    let epoch = state.opened().map_or(Epoch(1), |opened| opened.epoch.next());
    let Some(plan) = repair::plan(&state, epoch, restore_limit) else { return Ok(()) };
    let (_, events) = state
        .stage(plan.events, state.last_time_ms())
        .map_err(|violation| CliError::internal(format!("the repair of {id} would break a rule ({violation})")))?;
    for event in events {
        out::line(&if context.json {
            json::event_line(id, &event)
        } else {
            format!("{id}  event {}  {}", event.seq, event.body.data.type_name())
        });
    }
    for item in plan.poisoned {
        out::note(&format!("{id}: item {item} was given back too often; it waits until somebody wakes or edits it"));
    }
    Ok(())
}
