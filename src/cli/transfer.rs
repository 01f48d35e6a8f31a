//! `everturn export` and `everturn import`: a session as a file of JSON Lines, the header first.

use super::{
    Context,
    error::{CliError, exit},
    out,
    source::{self, Source, session_id, unknown},
};
use crate::embed;
use everturn_storage::{
    codec,
    event::{Event, FORMAT_VERSION, SessionHeader},
    ids::{Epoch, Seq},
    json,
    log::verify::Verifier,
    store::{Commit, Store},
};
use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::Path,
    sync::Arc,
};

/// From how many events on a commit of an import ends at the next place where it may.
const COMMIT_EVENTS: usize = 1_000;

/// The same in bytes of lines; no event is so large that a commit would exceed what a store takes.
const COMMIT_BYTES: usize = 8 * 1024 * 1024;

/// Writes the header and every event. The text of events is that of the log, so that exports are byte-stable.
pub(super) async fn export(context: &Context, session: &str, file: &Path) -> Result<u8, CliError> {
    let id = session_id(session)?;
    let store = match Source::open(context).await? {
        Source::Store(store) => store,
        Source::Nothing => return Err(unknown(&id)),
        Source::Daemon(_) => {
            return Err(CliError::new(
                exit::BUSY,
                "STORE_BUSY",
                "export reads the store itself; stop the daemon first",
            ));
        }
    };
    let header = store.header(&id)?.ok_or_else(|| unknown(&id))?;
    let failed = |error: io::Error| {
        CliError::internal(format!("{} cannot be written ({error}); choose another file", file.display()))
    };
    let mut sink: Box<dyn Write> = if file == Path::new("-") {
        Box::new(io::stdout().lock())
    } else {
        Box::new(BufWriter::new(File::create(file).map_err(failed)?))
    };
    writeln!(sink, "{}", json::header_line(&header)).map_err(failed)?;
    source::commits(store.as_ref(), &id, Seq(0), |events| {
        events.iter().try_for_each(|event| writeln!(sink, "{}", json::event_line(&id, event))).map_err(failed)
    })?;
    sink.flush().map_err(failed)?;
    Ok(exit::COMPLETED)
}

/// Takes a session from a file, under the id that it has there. Every rule is checked before anything is written.
pub(super) async fn import(context: &Context, file: &Path) -> Result<u8, CliError> {
    let Taken { header, events, sizes } = read(file)?;
    let id = header.session_id.clone();
    let mut verifier = Verifier::new(id.clone(), None);
    let mut cuts = Cuts::default();
    for (event, bytes) in events.iter().zip(sizes) {
        verifier.event(event);
        cuts.event(bytes, verifier.state().at_border());
    }
    let state = verifier.state().clone();
    if let Some(finding) = verifier.finish().first() {
        return Err(refused(file, &finding.to_string()));
    }
    let loaded = context.load()?;
    let (store, opened) = embed::open_store(context.data_dir(&loaded)?).await?;
    opened.reports.iter().for_each(|line| out::note(line));
    if store.header(&id)?.is_some() {
        return Err(everturn_actors::system::SessionError::Exists(id).into());
    }
    let epoch = state.opened().map_or(Epoch(1), |opened| opened.epoch);
    if let Err(error) = write(store.as_ref(), &header, epoch, (&events, cuts), state.summary(&header)) {
        // A part of a session is no session.
        drop(store.delete(&id));
        return Err(error);
    }
    store.close()?;
    out::line(&format!("session {id} with {} events", events.len()));
    Ok(exit::COMPLETED)
}

fn refused(file: &Path, why: &str) -> CliError {
    CliError::new(
        exit::CORRUPT,
        "CORRUPT",
        format!("{} holds no valid session ({why}); nothing was taken", file.display()),
    )
}

/// What a file holds.
struct Taken {
    header: SessionHeader,
    events: Vec<Arc<Event>>,
    /// The size of each event's line.
    sizes: Vec<usize>,
}

fn read(file: &Path) -> Result<Taken, CliError> {
    let cannot = |error: io::Error| CliError::bad_usage(format!("{} cannot be read ({error})", file.display()));
    let mut lines = BufReader::new(File::open(file).map_err(cannot)?).lines().enumerate();
    let Some((_, first)) = lines.next() else { return Err(refused(file, "it is empty")) };
    let header =
        json::parse_header_line(&first.map_err(cannot)?).map_err(|error| refused(file, &format!("line 1: {error}")))?;
    if header.version != FORMAT_VERSION {
        return Err(refused(file, &format!("it has version {}, this build knows {FORMAT_VERSION}", header.version)));
    }
    let (mut events, mut sizes) = (Vec::new(), Vec::new());
    for (at, line) in lines {
        let wrong = |why: String| refused(file, &format!("line {}: {why}", at + 1));
        let line = line.map_err(cannot)?;
        let (session, event) = json::parse_event_line(&line).map_err(|error| wrong(error.to_string()))?;
        if session != header.session_id {
            return Err(wrong(format!("an event of session {session} among those of {}", header.session_id)));
        }
        events.push(Arc::new(event));
        sizes.push(line.len());
    }
    if events.is_empty() {
        return Err(refused(file, "it has no events"));
    }
    Ok(Taken { header, events, sizes })
}

/// Where the commits of an import end: where an append may have ended, so that a commit holds whole ones.
#[derive(Debug, Default)]
struct Cuts {
    ends: Vec<usize>,
    seen: usize,
    events: usize,
    bytes: usize,
}

impl Cuts {
    /// Takes the size of the next event, and whether an append may end behind it.
    fn event(&mut self, bytes: usize, border: bool) {
        self.seen += 1;
        self.events += 1;
        self.bytes += bytes;
        if border && (self.events >= COMMIT_EVENTS || self.bytes >= COMMIT_BYTES) {
            self.ends.push(self.seen);
            (self.events, self.bytes) = (0, 0);
        }
    }
}

/// Everything, in commits that end at `cuts`.
fn write(
    store: &dyn Store,
    header: &SessionHeader,
    epoch: Epoch,
    (events, cuts): (&[Arc<Event>], Cuts),
    summary: everturn_storage::store::SessionSummary,
) -> Result<(), CliError> {
    let id = &header.session_id;
    let (mut begin, mut ends) = (0, cuts.ends.into_iter());
    let mut acked = None;
    while begin < events.len() {
        let end = ends.next().unwrap_or(events.len());
        let (first, part) = (Seq(begin as u64), &events[begin..end]);
        let bytes = codec::encode_commit(id, epoch, first, acked, part)
            .map_err(|error| CliError::internal(format!("the session cannot be kept ({error})")))?;
        store.commit(&[Commit {
            session: id.clone(),
            epoch,
            first,
            count: u32::try_from(part.len()).unwrap_or(u32::MAX),
            bytes: bytes.into(),
            header: (begin == 0).then(|| Arc::new(header.clone())),
            summary: (end == events.len()).then(|| Arc::new(summary.clone())),
        }])?;
        store.sync()?;
        acked = part.last().map(|event| event.seq);
        begin = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use everturn_storage::{
        event::{Origin, TurnReason},
        ids::SessionId,
        load,
        memory::MemoryStore,
        testing::{logs::random_log, sample},
    };

    fn taken(events: &[Arc<Event>], bytes: usize) -> (MemoryStore, Vec<usize>) {
        let header = everturn_storage::contract::header(&SessionId::trusted("s"));
        let mut verifier = Verifier::new(header.session_id.clone(), None);
        let mut cuts = Cuts::default();
        for event in events {
            verifier.event(event);
            cuts.event(bytes, verifier.state().at_border());
        }
        let (ends, summary) = (cuts.ends.clone(), verifier.state().summary(&header));
        let store = MemoryStore::new();
        write(&store, &header, Epoch(1), (events, cuts), summary).expect("written");
        let loaded = load::load(&store, &header.session_id).expect("opens");
        assert_eq!(loaded.state.next_seq().0, events.len() as u64);
        (store, ends)
    }

    /// A turn of any length is imported in commits of a bounded size.
    #[test]
    fn a_long_turn_is_cut_where_appends_end() {
        let mut log = sample::Sample::fresh();
        log.push(vec![sample::queued("m", Origin::Send)]).expect("valid");
        log.push(vec![sample::turn_start(1), sample::claimed(1, 1, 1, &["m"])]).expect("valid");
        for n in 0..3_500 {
            log.push(vec![sample::queued(&format!("i{n}"), Origin::Inject)]).expect("valid");
        }
        log.push(vec![sample::turn_end(1, TurnReason::Completed, 0, &["m"])]).expect("valid");
        let (store, ends) = taken(&log.events(), 100);
        assert_eq!(ends, [1_000, 2_000, 3_000]);
        assert_eq!(store.counts().commits, 4);
    }

    /// Wherever the sizes want a cut, no append is cut in two.
    #[test]
    fn no_append_is_cut_in_two() {
        for seed in 0..50 {
            let log = random_log(seed, 120);
            let mut ends = std::collections::BTreeSet::new();
            let mut end = 0;
            for batch in &log.batches {
                end += batch.len();
                ends.insert(end);
            }
            let (_, cuts) = taken(&log.events(), COMMIT_BYTES);
            // A closed batch may hold records that could have been appends of their own, never the reverse.
            let within = |cut: &&usize| !ends.contains(cut);
            let alone: Vec<_> = cuts.iter().filter(within).collect();
            assert!(cuts.len() > 10 && alone.len() * 2 < cuts.len(), "seed {seed}: {alone:?} of {cuts:?}");
        }
    }
}
