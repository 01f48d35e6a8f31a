//! The command line (SURFACE 3).

mod chaos;
mod client;
mod config;
mod error;
mod inspect;
mod offline;
mod out;
mod providers;
mod run;
mod salvage;
mod serve;
mod session;
mod source;
mod transfer;

use crate::{config as settings, daemon, telemetry};
use clap::{Args, Parser, Subcommand, ValueEnum};
use error::CliError;
use std::{collections::BTreeMap, ffi::OsString, path::PathBuf, process::ExitCode, sync::Arc};

/// Runs long-lived LLM agents that never lose a turn.
#[derive(Debug, Parser)]
#[command(name = "everturn", version, propagate_version = true)]
struct Cli {
    /// Configuration file [default: ./everturn.toml, then the user's].
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory that holds the sessions [default: the user's data directory].
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print JSON, errors too.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send one message, print the answer as it comes, and exit as its turn ended.
    Run(RunArgs),
    /// Run the daemon.
    Serve,
    /// Send a message: it gets a turn of its own.
    Send {
        #[command(flatten)]
        message: MessageArgs,
        /// Wait for the end of its turn and print the answer.
        #[arg(long)]
        wait: bool,
    },
    /// Send a message that joins the open turn at its next step.
    Steer {
        #[command(flatten)]
        message: MessageArgs,
    },
    /// Leave a message for the next step or turn, whenever there is one.
    Inject {
        #[command(flatten)]
        message: MessageArgs,
    },
    /// Cancel the running turn and what waits.
    Cancel {
        /// Which session.
        session: String,
        /// Keep what waits.
        #[arg(long)]
        keep_inbox: bool,
        /// What kept items do.
        #[arg(long, value_enum, requires = "keep_inbox")]
        then: Option<Then>,
    },
    /// List the sessions.
    Sessions {
        /// Only those that are idle, running or interrupted.
        #[arg(long)]
        state: Option<String>,
    },
    /// Show one session: state, turns, usage.
    Show {
        /// Which session.
        session: String,
    },
    /// Print the durable events of a session.
    Log {
        /// Which session.
        session: String,
        /// First event.
        #[arg(long, value_name = "SEQ", default_value_t = 0)]
        from: u64,
        /// Go on with what comes; needs the daemon.
        #[arg(long)]
        follow: bool,
    },
    /// Print what the model is shown of a session.
    Messages {
        /// Which session.
        session: String,
    },
    /// Delete a session and everything that belongs to it.
    Delete {
        /// Which session.
        session: String,
    },
    /// Write a session to a file of JSON Lines.
    Export {
        /// Which session.
        session: String,
        /// Which file; - is stdout.
        file: PathBuf,
    },
    /// Take a session from a file that export wrote.
    Import {
        /// Which file.
        file: PathBuf,
    },
    /// Save what is readable of a damaged store, a file for each session; no daemon may run.
    Salvage {
        /// Directory for the files.
        into: PathBuf,
    },
    /// Run a workload on a store of its own, kill it again and again, and say whether anything acknowledged was lost.
    Chaos(chaos::ChaosArgs),
    /// Check every rule of the log over the whole store; no daemon may run.
    Verify {
        /// Only this session.
        session: Option<String>,
    },
    /// Say or do what opening would do to sessions that a dead process left open; no daemon may run.
    #[command(group(clap::ArgGroup::new("what").required(true).args(["plan", "apply"])))]
    Repair {
        /// Only say it.
        #[arg(long)]
        plan: bool,
        /// Do it.
        #[arg(long)]
        apply: bool,
    },
    /// Check or show the configuration.
    Config {
        #[command(subcommand)]
        what: ConfigCommand,
    },
    /// Ask the configured providers.
    Providers {
        #[command(subcommand)]
        what: ProvidersCommand,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Which agent of the configuration.
    #[arg(long)]
    agent: Option<String>,
    /// Which session; it is made when there is none of that name.
    #[arg(long)]
    session: Option<String>,
    /// Take lines from stdin as steers while the turn runs.
    #[arg(long)]
    steer_stdin: bool,
    /// What to say; - reads it from stdin.
    prompt: String,
}

#[derive(Debug, Args)]
struct MessageArgs {
    /// Which session.
    session: String,
    /// What to say; - reads it from stdin.
    text: String,
    /// Id of the message: sent twice under one id, it is taken once.
    #[arg(long)]
    id: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Then {
    Park,
    Continue,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Say whether the configuration holds, without starting anything.
    Check,
    /// Print the effective configuration, secrets masked.
    Show,
}

#[derive(Debug, Subcommand)]
enum ProvidersCommand {
    /// Ask a provider three small questions and say what it can do; it may charge for some tokens.
    Check {
        /// Which of `[providers.*]`.
        name: String,
        /// Which model of it [default: that of the first agent that uses the provider].
        #[arg(long)]
        model: Option<String>,
        /// How long all of it may take, in seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 120)]
        timeout_s: u64,
    },
}

/// What every command knows.
struct Context {
    locations: settings::Locations,
    env: BTreeMap<String, String>,
    json: bool,
}

impl Context {
    fn load(&self) -> Result<settings::Loaded, CliError> {
        Ok(settings::load(&self.locations, &self.env)?)
    }

    fn data_dir(&self, loaded: &settings::Loaded) -> Result<PathBuf, CliError> {
        Ok(settings::data_dir(&self.locations, &self.env, loaded)?)
    }

    fn token(&self, loaded: &settings::Loaded) -> Result<Option<Arc<str>>, CliError> {
        Ok(daemon::token(loaded, &self.env)?)
    }
}

/// Runs the command of `arguments`, the program's name first, and says with which code to exit.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let wants_json = arguments.iter().any(|argument| argument == "--json");
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => return out::fail(&CliError::usage(&error), wants_json),
        Err(help) => {
            out::text(&help.render().to_string());
            return ExitCode::SUCCESS;
        }
    };
    telemetry::start(!matches!(cli.command, Command::Serve));
    let json = cli.json;
    match start(cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => out::fail(&error, json),
    }
}

fn start(cli: Cli) -> Result<u8, CliError> {
    let working_dir = std::env::current_dir().map_err(|error| {
        CliError::internal(format!("the working directory cannot be found ({error}); change to one"))
    })?;
    let context = Context {
        locations: settings::Locations { config: cli.config, data_dir: cli.data_dir, working_dir },
        // What is no text can be no setting of ours.
        env: std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect(),
        json: cli.json,
    };
    #[cfg(feature = "testkit")]
    crate::testkit::install(&context.env).map_err(CliError::bad_usage)?;
    crate::embed::install_tls();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::internal(format!("the runtime cannot be started ({error})")))?;
    let result = runtime.block_on(execute(&context, cli.command));
    // Nothing that still runs may hold the exit: what counts is durable or was not acknowledged.
    runtime.shutdown_background();
    result
}

async fn execute(context: &Context, command: Command) -> Result<u8, CliError> {
    match command {
        Command::Run(args) => run::run(context, args).await,
        Command::Serve => serve::serve(context).await,
        Command::Send { message, wait } => session::submit(context, "send", message, wait).await,
        Command::Steer { message } => session::submit(context, "steer", message, false).await,
        Command::Inject { message } => session::submit(context, "inject", message, false).await,
        Command::Cancel { session, keep_inbox, then } => session::cancel(context, &session, keep_inbox, then).await,
        Command::Sessions { state } => inspect::sessions(context, state).await,
        Command::Show { session } => inspect::show(context, &session).await,
        Command::Log { session, from, follow } => inspect::log(context, &session, from, follow).await,
        Command::Messages { session } => inspect::messages(context, &session).await,
        Command::Delete { session } => session::delete(context, &session).await,
        Command::Export { session, file } => transfer::export(context, &session, &file).await,
        Command::Import { file } => transfer::import(context, &file).await,
        Command::Salvage { into } => salvage::salvage(context, &into).await,
        Command::Chaos(args) => chaos::chaos(context, args).await,
        Command::Verify { session } => offline::verify(context, session.as_deref()).await,
        Command::Repair { plan: _, apply } => offline::repair(context, apply).await,
        Command::Config { what } => config::config(context, &what),
        Command::Providers { what } => providers::providers(context, what).await,
    }
}
