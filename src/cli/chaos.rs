//! `everturn chaos`: this program runs a workload against itself on the user's own disk, kills itself again and again,
//! and says whether anything that it had acknowledged was lost, doubled or left open.

mod herd;

use super::{
    Context,
    error::{CliError, exit},
    out,
};
use herd::{Child, Verdict, Work};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::{
    path::{Path, PathBuf},
    time::Instant,
};

/// The model of the workload: calls and answers take turns.
const SCRIPT: [&str; 2] = [
    r#"{"text":"let me look","calls":[{"name":"time","arguments":{}},{"name":"time","arguments":{}}]}"#,
    r#"{"text":"that is the time","chunk_chars":4}"#,
];

/// Lines of the script; the last one repeats, which is fine.
const SCRIPT_LINES: usize = 2_000;

/// What the command line says.
#[derive(Debug, clap::Args)]
pub(super) struct ChaosArgs {
    /// How many times the daemon is killed.
    #[arg(long, default_value_t = 30)]
    rounds: u32,
    /// How many sessions work at the same time.
    #[arg(long, default_value_t = 4)]
    sessions: u32,
    /// Chance; the same seed chooses the same moments.
    #[arg(long)]
    seed: Option<u64>,
    /// Where to work [default: a fresh directory beside the data directory, on the same disk].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Messages to send, one JSON object a line: {"session","kind","content"} [default: made up].
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
}

/// Runs it. The directory stays when something is wrong.
pub(super) async fn chaos(context: &Context, args: ChaosArgs) -> Result<u8, CliError> {
    let seed = args.seed.unwrap_or_else(rand::random);
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => beside(&context.data_dir(&context.load()?)?, seed),
    };
    let mut work = match &args.workload {
        None => Work::made_up(args.sessions, seed),
        Some(file) => Work::recorded(file)?,
    };
    prepare(&dir)?;
    let began = Instant::now();
    // Hidden by itself when stderr is no terminal.
    let bar = ProgressBar::new(u64::from(args.rounds));
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} kills, {elapsed}") {
        bar.set_style(style);
    }
    let mut verdict = Verdict::default();
    for round in 0..args.rounds {
        let child = Child::start(&dir).await?;
        if round % 8 == 7 {
            work.judge(&child, &mut verdict).await?;
        }
        work.round(&child, &mut verdict).await;
        child.kill();
        bar.inc(1);
    }
    let child = Child::start(&dir).await?;
    work.judge(&child, &mut verdict).await?;
    child.kill();
    bar.finish_and_clear();
    if !herd::verify(&dir)? {
        verdict.wrong.push("everturn verify finds violations".to_owned());
    }
    tell(context, &verdict, args.rounds, seed, began.elapsed().as_secs_f64());
    if verdict.wrong.is_empty() {
        // What stays behind harms nobody.
        drop(std::fs::remove_dir_all(&dir));
        return Ok(exit::COMPLETED);
    }
    let what = format!(
        "{} promises were broken (seed {seed}); everything is kept in {}: please report it",
        verdict.wrong.len(),
        dir.display()
    );
    Err(CliError::new(exit::CORRUPT, "BROKEN_PROMISE", what))
}

fn tell(context: &Context, verdict: &Verdict, kills: u32, seed: u64, seconds: f64) {
    if context.json {
        let told = json!({"kills": kills, "acknowledged": verdict.acknowledged, "refused": verdict.refused,
            "sessions": verdict.sessions, "seed": seed, "seconds": seconds, "wrong": verdict.wrong});
        return out::line(&told.to_string());
    }
    for wrong in &verdict.wrong {
        out::line(wrong);
    }
    out::line(&format!(
        "{kills} kills, {} messages acknowledged in {} sessions, {} promises broken, {seconds:.1} s, seed {seed}",
        verdict.acknowledged,
        verdict.sessions,
        verdict.wrong.len()
    ));
}

/// A name that nobody has.
fn beside(data_dir: &Path, seed: u64) -> PathBuf {
    let mut name = data_dir.file_name().unwrap_or_default().to_owned();
    name.push(format!("-chaos-{}-{seed:016x}", std::process::id()));
    data_dir.with_file_name(name)
}

/// A data directory with a configuration of its own.
fn prepare(dir: &Path) -> Result<(), CliError> {
    let failed = |error: std::io::Error| {
        CliError::internal(format!("{} cannot be made ({error}); choose another with --dir", dir.display()))
    };
    if dir.join("data").exists() {
        return Err(CliError::bad_usage(format!("{} holds data already; choose a fresh directory", dir.display())));
    }
    std::fs::create_dir_all(dir).map_err(failed)?;
    let config = "[daemon]\nlisten = \"127.0.0.1:0\"\n\
                  [providers.script]\nkind = \"script\"\nfile = \"script.jsonl\"\n\
                  [agents.default]\nprovider = \"script\"\nmodel = \"script\"\nsystem = \"Be brief.\"\ntools = [\"time\"]\n";
    std::fs::write(dir.join("everturn.toml"), config).map_err(failed)?;
    let lines: Vec<&str> = SCRIPT.iter().copied().cycle().take(SCRIPT_LINES).collect();
    std::fs::write(dir.join("script.jsonl"), lines.join("\n")).map_err(failed)
}
