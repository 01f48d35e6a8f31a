//! The servers of others, in processes of their own.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Where `install.sh` puts them.
fn place() -> PathBuf {
    std::env::var_os("EVERTURN_PEERS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/peers"), PathBuf::from)
}

/// A program that was installed. Without it the test says so, or fails where it has to be there.
pub(crate) fn installed(program: &str) -> Option<PathBuf> {
    let path = place().join(program);
    if path.exists() {
        return Some(path);
    }
    let why = format!("{} is not there; tests/peers/install.sh installs it", path.display());
    assert!(std::env::var_os("EVERTURN_REQUIRE_TOOLS").is_none(), "cannot run this test: {why}");
    eprintln!("SKIPPED: {why}");
    None
}

/// A server; it ends when dropped.
pub(crate) struct Peer {
    child: Child,
    /// `http://127.0.0.1:PORT`.
    pub(crate) url: String,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peer {
    /// Starts it and waits until it says that it is ready, in a line with its address behind `ready`.
    fn start(mut command: Command, ready: &str) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = Vec::new();
        let url = loop {
            let Some(Ok(line)) = lines.next() else { panic!("{command:?} ended:\n{}", seen.join("\n")) };
            if let Some((_, rest)) = line.split_once(ready) {
                break rest.split_whitespace().next().unwrap().to_owned();
            }
            seen.push(line);
        };
        // Somebody has to read on, or the server stops with a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url }
    }

    /// The mock of OpenAI and Anthropic.
    pub(crate) fn aimock(program: &Path) -> Self {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/fixtures.json");
        let mut command = Command::new(program);
        command.args(["--port", "0", "--strict", "--chunk-size", "8", "--fixtures"]).arg(fixtures);
        Self::start(command, "server listening on ")
    }

    /// LiteLLM's proxy in front of a mock.
    pub(crate) fn litellm(program: &Path, behind: &Self) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/litellm.yaml");
        let mut command = Command::new("sh");
        command
            // Its log goes to stderr.
            .args(["-c", "exec \"$0\" --config \"$1\" --host 127.0.0.1 --port \"$2\" --telemetry False 2>&1"])
            .args([program, config.as_path()])
            .arg(free.to_string())
            .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
            .env("LITELLM_MASTER_KEY", super::KEY)
            .env("NO_COLOR", "1")
            .env("PEER_OPENAI", format!("{}/v1", behind.url))
            .env("PEER_ANTHROPIC", &behind.url);
        Self::start(command, "Uvicorn running on ")
    }
}
