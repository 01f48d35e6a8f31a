//! Scenario 249: random programs of what callers, the model and the tools do, each act at a moment of rest, run by the real
//! machines and by the reference model; the logs must be equal. Some run under a second schedule, which must give the
//! same log whatever order the messages between the machines have (259).

use super::{
    chance::Chance,
    life::{Life, Task},
    number,
    outside::{self, Mood},
    plants::Plant,
    reference::{List, Model},
    run::{Program, chance_of, shorten},
};
use everturn_actors::{
    desk::Op,
    handle::{KeptItems, Submit, SubmitKind},
    ports::tool::{ToolFailure, ToolNotes, ToolOutput},
    tool_pool::{self, types::BodyEnd},
};
use everturn_storage::{
    event::{AttemptOutcome, Cause, EventData, FinishLabel, OpenReason, RemoveCause, Target, TurnReason},
    ids::{ItemId, MessageId},
    message::Block,
};

/// Programs in the test run; `EVERTURN_SIM_PROGRAMS=1000000` runs for long.
const PROGRAMS: u64 = 10_000;

/// Most acts of a program.
const ACTS: u32 = 60;

/// One program in so many runs under a second schedule too.
const SECOND_SCHEDULE: u64 = 4;

/// How often a process may die in one program: repair never gives an item back more often than is allowed.
const CRASHES: usize = 3;

/// What a program can do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Act {
    Submit(SubmitKind),
    Cancel(KeptItems),
    Wake,
    Edit(usize),
    Remove(usize),
    Reverse(List),
    Move(usize),
    /// What is under way outside comes to an end.
    Happen(u64),
    Crash,
}

/// What the model says.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Said {
    Answer,
    TooLong,
    Calls(usize),
    Refused,
    Busy,
    Cut { prefix: bool },
}

impl Said {
    pub(crate) fn of(roll: u64) -> Self {
        match roll % 100 {
            0..45 => Self::Answer,
            45..52 => Self::TooLong,
            52..82 => Self::Calls(1 + usize::try_from(roll / 100 % 3).unwrap()),
            82..86 => Self::Refused,
            _ => Self::Busy,
        }
    }
}

/// What an act comes to: the same for the model and for the machines.
#[derive(Debug)]
pub(crate) enum Deed {
    Nothing,
    Submit(SubmitKind, String),
    Cancel(KeptItems),
    Wake,
    Edit(String),
    Remove(String),
    Reorder(List, Vec<String>),
    Move(String, List),
    Say(Said),
    Body { works: bool, concludes: bool },
    Crash,
}

fn act(chance: &mut Chance) -> Act {
    match chance.below(100) {
        0..16 => Act::Submit(SubmitKind::Send),
        16..26 => Act::Submit(SubmitKind::Steer),
        26..33 => Act::Submit(SubmitKind::Inject),
        33..41 => Act::Cancel(*chance.pick(&[KeptItems::Clear, KeptItems::Park, KeptItems::Continue])),
        41..43 => Act::Wake,
        43..46 => Act::Edit(chance.below(8)),
        46..49 => Act::Remove(chance.below(8)),
        49..52 => Act::Reverse(*chance.pick(&[List::Turn, List::Step])),
        52..55 => Act::Move(chance.below(8)),
        55..58 => Act::Crash,
        _ => Act::Happen(chance.next()),
    }
}

/// Everything that the seed says: a place each, so that a failing program can be made shorter.
fn whole(seed: u64) -> Program {
    (0..1 + u32::try_from(seed % u64::from(ACTS)).unwrap()).collect()
}

fn item(id: &str) -> ItemId {
    ItemId::trusted(id)
}

fn target(list: List) -> Target {
    match list {
        List::Turn => Target::NextTurn,
        List::Step => Target::NextStep,
    }
}

fn content(text: &str) -> Vec<Block> {
    vec![Block::text(text)]
}

impl Life {
    /// Until only the model or a tool is waited for.
    fn rest(&mut self) -> Result<(), String> {
        let outside = |task: &Task| matches!(task, Task::Attempt { .. } | Task::Body { .. });
        let timer = |task: &Task| matches!(task, Task::MachineTimer(_) | Task::PoolTimer { .. } | Task::DeskTimer(_));
        for _ in 0..20_000 {
            if self.deliver().map_err(|broken| format!("{broken:?}"))? {
                continue;
            }
            let waits = self.tasks.iter().any(outside);
            let next = self.tasks.iter().position(|task| !outside(task) && !timer(task));
            // Only a wait between attempts ends by itself: nothing else is under way then.
            let next = next.or_else(|| self.tasks.iter().position(timer).filter(|_| !waits));
            if let Some(at) = next {
                self.finish(at).map_err(|broken| format!("{broken:?}"))?;
            } else if !self.waiters.is_empty() {
                self.sync(true);
            } else {
                return Ok(());
            }
        }
        Err("it never came to rest".to_owned())
    }

    fn obey(&mut self, deed: Deed) -> Result<(), String> {
        let op = match deed {
            Deed::Nothing => return Ok(()),
            Deed::Submit(kind, id) => {
                let submit =
                    Submit { kind, id: Some(MessageId::trusted(id.as_str())), content: content("hi"), source: None };
                Op::Submit { submit, fresh: format!("fresh-{id}") }
            }
            Deed::Cancel(kept) => Op::Cancel { cause: Cause::User, kept },
            Deed::Wake => Op::Wake,
            Deed::Edit(id) => Op::Edit { item: item(&id), content: content("rather this") },
            Deed::Remove(id) => Op::Remove { items: vec![item(&id)] },
            Deed::Reorder(list, ids) => {
                Op::Reorder { list: target(list), items: ids.iter().map(|id| item(id)).collect() }
            }
            Deed::Move(id, list) => Op::Move { item: item(&id), target: target(list) },
            Deed::Say(said) => return self.say(said),
            Deed::Body { works, concludes } => return self.body_ends(works, concludes),
            Deed::Crash => {
                self.disk.sync();
                return self.reborn().map_err(|broken| format!("{broken:?}"));
            }
        };
        self.op(op);
        Ok(())
    }

    fn say(&mut self, said: Said) -> Result<(), String> {
        let at = self.tasks.iter().position(|task| matches!(task, Task::Attempt { .. }));
        let Some(Task::Attempt { token, aborted }) = at.map(|at| self.tasks.swap_remove(at)) else {
            return Err(format!("{said:?}, and nothing was asked"));
        };
        if aborted != matches!(said, Said::Cut { .. }) {
            return Err(format!("{said:?}, and the attempt is {}", if aborted { "aborted" } else { "not aborted" }));
        }
        let id = self.fresh();
        self.settled(token, outside::told(said, id)).map_err(|broken| format!("{broken:?}"))
    }

    fn body_ends(&mut self, works: bool, concludes: bool) -> Result<(), String> {
        let at = self.tasks.iter().position(|task| matches!(task, Task::Body { .. }));
        let Some(Task::Body { batch, index, signalled }) = at.map(|at| self.tasks.swap_remove(at)) else {
            return Err("a tool ends, and none runs".to_owned());
        };
        let notes = ToolNotes { conclude: concludes, ..ToolNotes::default() };
        let end = if works {
            BodyEnd::Ok(ToolOutput::text("done"), notes)
        } else {
            BodyEnd::Failed(ToolFailure::text("it did not work"), ToolNotes::default())
        };
        let input = tool_pool::Input::BodyDone { index, end, signalled };
        self.feed_pool(batch, input).map_err(|broken| format!("{broken:?}"))
    }
}

/// An event of the machines, in the words of the model. What every first admission brings (system text, header, context)
/// is left out.
fn told(data: &EventData) -> Option<String> {
    let join = |ids: &[ItemId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    Some(match data {
        EventData::SessionOpened(data) => match data.reason {
            OpenReason::Fresh => "opened fresh".to_owned(),
            OpenReason::Resume => "opened resume".to_owned(),
            OpenReason::Repair => "opened repair".to_owned(),
            OpenReason::Fork => "opened fork".to_owned(),
        },
        EventData::InboxQueued(data) => {
            let list = if data.item.target == Target::NextTurn { List::Turn } else { List::Step };
            let wake = if data.item.wake { "wake" } else { "wait" };
            format!("queued {} {} {wake}", data.item.id, list.name())
        }
        EventData::InboxEdited(data) => format!("edited {}", data.id),
        EventData::InboxMoved(data) => format!("moved {}", join(&data.ids)),
        EventData::InboxRemoved(data) => {
            let cause = match data.cause {
                RemoveCause::Canceled => "canceled",
                RemoveCause::Removed => "removed",
                RemoveCause::Disposed => "disposed",
            };
            format!("removed {} {cause}", join(&data.ids))
        }
        EventData::InboxClaimed(data) => {
            format!("claimed {}.{} p{} {}", data.turn, data.step, data.proposal, join(&data.ids))
        }
        EventData::InboxRestored(data) => format!("restored {}", join(&data.ids)),
        EventData::TurnStart(data) => format!("turn {}", data.turn),
        EventData::TurnEnd(data) => {
            let reason = match &data.reason {
                TurnReason::Completed => "completed".to_owned(),
                TurnReason::MaxTokens => "max-tokens".to_owned(),
                TurnReason::Aborted { .. } => "aborted".to_owned(),
                TurnReason::Interrupted => "interrupted".to_owned(),
                TurnReason::Error { failure } => format!("error {}", failure.code),
                other => format!("{other:?}"),
            };
            format!("turn-end {} {reason} {}", data.turn, data.steps)
        }
        EventData::StepStart(data) => format!("step {}.{}", data.turn, data.step),
        EventData::StepEnd(data) => format!("step-end {}.{}", data.turn, data.step),
        EventData::UserMessage(data) => format!("user {}", join(&data.items)),
        EventData::AssistantMessage(data) => {
            let end = match data.finish {
                _ if data.interrupted == Some(true) => "cut",
                FinishLabel::Stop => "stop",
                FinishLabel::ToolUse => "tool-use",
                FinishLabel::MaxTokens => "max-tokens",
                FinishLabel::Aborted => "aborted",
            };
            format!("assistant {}.{}.{} {end}", data.turn, data.step, data.attempt)
        }
        EventData::AssistantAttempt(data) => {
            let outcome = match data.outcome {
                AttemptOutcome::Failed => "failed",
                AttemptOutcome::Cancelled => "cancelled",
                AttemptOutcome::StreamError => "stream-error",
            };
            format!("attempt {}.{}.{} {outcome}", data.turn, data.step, data.attempt)
        }
        EventData::ToolCall(data) => format!("call {}.{} {}", data.turn, data.step, data.call_id),
        EventData::ToolResult(data) => {
            let code = data.error.as_ref().map_or("-", |error| error.code.as_str());
            format!("result {}.{} {} {code}", data.turn, data.step, data.message.call_id)
        }
        EventData::RetryScheduled(data) => format!("retry {}", data.retry),
        EventData::RetryStarted(_) => "retrying".to_owned(),
        EventData::SystemMessage(_) | EventData::RequestHeader(_) | EventData::RequestContext(_) => return None,
        other => other.type_name().to_owned(),
    })
}

/// Runs a program in both; an error says where they differ. `slip` is a bug planted in the model.
fn compare(seed: u64, schedule: u64, program: &[u32], slip: Option<&str>) -> Result<usize, String> {
    let mut model = Model::new();
    let mut life = Life::new(seed.wrapping_add(schedule << 32), Plant::None);
    (life.faults, life.mood) = (false, Mood::Told);
    life.start_desk().map_err(|broken| format!("{broken:?}"))?;
    life.rest()?;
    let (mut crashes, mut lines, mut events) = (0, 0, 0);
    let mut acts: Vec<Act> = program.iter().map(|step| act(&mut chance_of(seed, *step))).collect();
    // At the end the model answers until nothing is owed.
    acts.push(Act::Wake);
    let mut left = acts.into_iter();
    loop {
        let act = match left.next() {
            Some(Act::Crash) if crashes == CRASHES => continue,
            Some(act) => act,
            None if model.is_busy() => Act::Happen(0),
            None => break,
        };
        crashes += usize::from(matches!(act, Act::Crash));
        let deed = model.act(act);
        let about = format!("{act:?}, {deed:?}");
        life.obey(deed).and_then(|()| life.rest()).map_err(|why| format!("{about}: {why}"))?;
        let slips = |line: &&String| slip.is_none_or(|slip| !line.starts_with(slip));
        let wanted: Vec<&String> = model.log[lines..].iter().filter(slips).collect();
        let fresh = life.disk.batches.iter().flatten().skip(events);
        let found: Vec<String> = fresh.filter_map(|event| told(&event.body.data)).collect();
        if !wanted.iter().copied().eq(&found) {
            return Err(format!("behind {about}: the log goes on with {found:?}, the model says {wanted:?}"));
        }
        (lines, events) = (model.log.len(), life.disk.batches.iter().map(Vec::len).sum());
    }
    life.judge.finally(&life.disk).map_err(|broken| format!("{broken:?}"))?;
    Ok(model.log.len())
}

/// How many events were compared.
fn check(seed: u64, program: &[u32]) -> Result<usize, String> {
    let schedules = 1 + u64::from(seed.is_multiple_of(SECOND_SCHEDULE));
    (0..schedules).try_fold(0, |lines, schedule| Ok(lines + compare(seed, schedule, program, None)?))
}

/// Scenarios 249 and 259.
#[test]
fn programs_do_what_the_model_says() {
    let wanted = number("EVERTURN_SIM_PROGRAMS", PROGRAMS);
    let first = number("EVERTURN_SIM_FIRST_SEED", 1);
    let mut lines = 0;
    for seed in first..first + wanted {
        match check(seed, &whole(seed)) {
            Ok(more) => lines += more,
            Err(why) => {
                let program = shorten(whole(seed), |program| check(seed, program).is_err());
                let shorter = check(seed, &program).expect_err("it still fails");
                let acts: Vec<Act> = program.iter().map(|step| act(&mut chance_of(seed, *step))).collect();
                panic!(
                    "seed {seed}: {why}\nshorter: {acts:?}: {shorter}\nagain: EVERTURN_SIM_FIRST_SEED={seed} \
                     EVERTURN_SIM_PROGRAMS=1 cargo test --test simulation programs"
                );
            }
        }
    }
    println!("{wanted} programs from seed {first}, {lines} events compared");
}

/// A model that forgets one kind of event is told so, and the program that shows it is short.
#[test]
fn programs_see_a_difference_and_shrink() {
    for slip in ["queued", "claimed", "user", "removed", "retry", "call", "result", "opened repair", "turn-end"] {
        let fails = |seed: u64, program: &[u32]| compare(seed, 0, program, Some(slip)).is_err();
        let seed =
            (1..1_000).find(|seed| fails(*seed, &whole(*seed))).unwrap_or_else(|| panic!("{slip} is never missed"));
        let program = shorten(whole(seed), |program| fails(seed, program));
        assert!(program.len() <= 8, "{slip}: {} acts are left", program.len());
    }
}
