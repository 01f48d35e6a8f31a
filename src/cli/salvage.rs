//! `everturn salvage`: saves what is readable of a damaged store. It reads and changes nothing in it.

use super::{
    Context,
    error::{CliError, exit},
    out,
    source::{self, open_store},
};
use everturn_storage::{
    event::Event,
    ids::{Seq, SessionId},
    json, load,
    store::Store,
};
use serde_json::json;
use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    sync::Arc,
};

/// What became of one session.
struct Saved {
    events: u64,
    /// Why there are no more.
    defect: Option<String>,
}

/// Writes every session that can be read, as far as its records are whole, into a file of its own that `import` takes.
/// Exit code 7 when something was missing, with a sentence for each session.
pub(super) async fn salvage(context: &Context, into: &Path) -> Result<u8, CliError> {
    let loaded = context.load()?;
    let opened = open_store(&context.data_dir(&loaded)?).await.map_err(|error| match error.exit {
        // The engine under the store gives up: there is nothing that could be read through it.
        exit::INTERNAL => CliError::new(
            exit::CORRUPT,
            "CORRUPT",
            format!("the store is too damaged to be opened ({}); restore a backup of it", error.message),
        ),
        _ => error,
    });
    let Some(store) = opened? else { return Ok(exit::COMPLETED) };
    std::fs::create_dir_all(into).map_err(|error| unwritable(into, &error))?;
    let mut sessions = Vec::new();
    let listed = source::summaries(store.as_ref(), |summary| {
        sessions.push(summary.session);
        Ok(())
    });
    let (mut whole, mut cut) = (0_u64, 0_u64);
    if let Err(error) = listed {
        cut += 1;
        out::note(&format!("the list of sessions cannot be read to its end: {}", error.message));
    }
    for id in &sessions {
        let file = into.join(format!("{id}.jsonl"));
        let saved = save(store.as_ref(), id, &file)?;
        match &saved.defect {
            None => whole += 1,
            Some(_) => cut += 1,
        }
        report(context, id, &file, &saved);
    }
    if cut > 0 {
        let what = format!(
            "{whole} sessions are whole and {cut} are damaged; import what was saved in {} into a fresh data directory",
            into.display()
        );
        return Err(CliError::new(exit::CORRUPT, "CORRUPT", what));
    }
    if !context.json {
        out::line(&format!("{whole} sessions, all whole, saved in {}", into.display()));
    }
    Ok(exit::COMPLETED)
}

fn report(context: &Context, id: &SessionId, file: &Path, saved: &Saved) {
    if context.json {
        out::line(&json!({"session": id, "file": file, "events": saved.events, "defect": saved.defect}).to_string());
    } else if let Some(why) = &saved.defect {
        out::line(&format!("{id}  {} events saved, then: {why}", saved.events));
    } else {
        out::line(&format!("{id}  {} events saved", saved.events));
    }
}

fn unwritable(path: &Path, error: &io::Error) -> CliError {
    CliError::internal(format!("{} cannot be written ({error}); choose another directory", path.display()))
}

fn save(store: &dyn Store, id: &SessionId, file: &Path) -> Result<Saved, CliError> {
    let seen = match load::inspect(store, id) {
        Ok(seen) => seen,
        Err(error) => return Ok(Saved { events: 0, defect: Some(error.to_string()) }),
    };
    let wrong = |error: io::Error| unwritable(file, &error);
    let mut sink = BufWriter::new(File::create(file).map_err(wrong)?);
    writeln!(sink, "{}", json::header_line(&seen.header)).map_err(wrong)?;
    // What the checker took is what an import takes.
    let end = seen.state.next_seq();
    let mut events = 0_u64;
    let mut write = |batch: Vec<Arc<Event>>| -> Result<(), CliError> {
        for event in batch.iter().filter(|event| event.seq < end) {
            writeln!(sink, "{}", json::event_line(id, event)).map_err(wrong)?;
            events += 1;
        }
        Ok(())
    };
    let read = source::commits(store, id, Seq(0), &mut write);
    sink.flush().map_err(wrong)?;
    let unread = match read {
        Err(error) if error.exit != exit::CORRUPT => return Err(error),
        Err(error) => Some(error.message),
        Ok(()) => None,
    };
    Ok(Saved { events, defect: seen.defect.or(unread) })
}
