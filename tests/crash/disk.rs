//! Disks that fail under the real binary: full, and failing to sync (scenario 204, BR-020, BR-022, BR-040; SURFACE 7).

use super::{
    common::Daemon,
    ledger::{self, Ledger},
    place,
    world::World,
};
use serde_json::{Value, json};
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

const SESSION: &str = "s";

/// Says that a test did not run, or fails where the tools must be there.
pub(crate) fn skipped(why: &str) {
    assert!(std::env::var_os("EVERTURN_REQUIRE_TOOLS").is_none(), "cannot run this test: {why}");
    eprintln!("SKIPPED: {why}");
}

/// A small file system of its own; unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=48m,mode=0700", "tmpfs"])
            .arg(at)
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then(|| Self(at.to_owned()))
    }

    /// Fills it to the last byte.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("ballast")).unwrap();
        for size in [1 << 16, 1 << 12, 1] {
            let block = vec![1_u8; size];
            while file.write(&block).is_ok_and(|written| written == size) {}
        }
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

async fn try_send(daemon: &Daemon, text: &str) -> (u16, Value) {
    let body = json!({"kind": "send", "content": text});
    daemon.post(&format!("/v1/sessions/{SESSION}/messages"), body).await
}

/// Long-polls the readiness until it is as expected.
async fn readiness(daemon: &Daemon, expected: bool) -> Value {
    for _ in 0..600 {
        let (status, body) = daemon.get("/v1/ready").await;
        if (status == 200) == expected {
            return body;
        }
        // The daemon needs time of the clock to open its store again; the idle poll spends some of it.
        daemon.get(&format!("/v1/sessions/{SESSION}/idle?wait=1")).await;
        tokio::task::yield_now().await;
    }
    panic!("readiness never became {expected}");
}

/// BR-016, BR-020: a full disk, whose last write is a short one: no false receipt, not ready, and work goes on by itself once there is space.
#[tokio::test(flavor = "multi_thread")]
async fn full_disk() {
    let world = World::start().await;
    let place = place(&world);
    let Some(disk) = SmallDisk::mount(&place.data_dir()) else {
        return skipped("mounting a small file system needs root");
    };
    let daemon = place.serve();
    daemon.create(SESSION).await;
    let mut ledger = Ledger::default();
    ledger.send(&daemon, SESSION, "before").await;
    ledger.judge(&daemon, SESSION, &world).await;

    disk.fill();
    let mut refused = Vec::new();
    // The log has a segment ahead of need: it takes a while until it wants more.
    for n in 0..40 {
        if refused.len() == 3 {
            break;
        }
        let (status, body) = try_send(&daemon, &format!("while full {n} {}", "x".repeat(200_000))).await;
        if status == 202 {
            // There was room for it after all: then it counts.
            ledger.note(&body);
        } else {
            assert_eq!((status, &body["error"]["code"]), (503, &json!("STORAGE")), "{body}");
            refused.push(n);
        }
    }
    assert!(!refused.is_empty(), "the disk was never full");
    let body = readiness(&daemon, false).await;
    assert_eq!(body["ready"], false, "{body}");
    assert!(!body["reasons"].as_array().unwrap().is_empty(), "{body}");

    disk.free();
    assert_eq!(readiness(&daemon, true).await["ready"], true);
    ledger.send(&daemon, SESSION, "after").await;
    ledger.judge_lossless(&daemon, SESSION, &world).await;

    // And what was acknowledged is there for the next process.
    daemon.kill();
    let daemon = place.serve();
    ledger.judge_lossless(&daemon, SESSION, &world).await;
    assert_eq!(daemon.stop(), Some(0));
    place.run(&["verify"]).exits(0);
    ledger::assert_no_secret(&place);
}

/// The disk fails a sync once: what waited for it is refused, the store is opened again and verified, work goes on.
#[tokio::test(flavor = "multi_thread")]
async fn failed_sync() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skipped("strace is not installed");
    }
    for nth in [4, 9, 15] {
        let world = World::start().await;
        let place = place(&world);
        let serve = place.command(&["serve"]);
        let mut traced = Command::new("strace");
        traced.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"]);
        traced.args(["-e", &format!("inject=fdatasync:error=EIO:when={nth}")]);
        traced.arg(serve.get_program()).args(serve.get_args()).current_dir(place.path()).env_clear();
        traced.envs(serve.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let daemon = Daemon::start(traced);
        let (status, body) = daemon.post("/v1/sessions", json!({"id": SESSION})).await;
        if status != 201 {
            assert_eq!((status, &body["error"]["code"]), (503, &json!("STORAGE")), "{body}");
            readiness(&daemon, true).await;
            // What was refused may have reached the disk all the same.
            let (status, body) = daemon.post("/v1/sessions", json!({"id": SESSION})).await;
            assert!(status == 201 || body["error"]["code"] == "SESSION_EXISTS", "{body}");
        }
        let mut ledger = Ledger::default();
        let mut refused = 0;
        for n in 0..12 {
            let (status, body) = try_send(&daemon, &format!("page n{nth}-{n}")).await;
            if status == 202 {
                ledger.note(&body);
            } else {
                assert_eq!((status, &body["error"]["code"]), (503, &json!("STORAGE")), "{body}");
                refused += 1;
                readiness(&daemon, true).await;
            }
        }
        println!("sync {nth} failed: {refused} sends refused");
        // The next checkpoint covers what a failed one left behind (K-3).
        let mut last = try_send(&daemon, "at last").await;
        if last.0 != 202 {
            readiness(&daemon, true).await;
            last = try_send(&daemon, "at last, again").await;
        }
        assert_eq!(last.0, 202, "{}", last.1);
        ledger.note(&last.1);
        ledger.judge_lossless(&daemon, SESSION, &world).await;
        let (status, _) = daemon.get("/v1/ready").await;
        assert_eq!(status, 200);
        kill_traced(daemon);
        let daemon = place.serve();
        ledger.judge_lossless(&daemon, SESSION, &world).await;
        assert_eq!(daemon.stop(), Some(0));
        place.run(&["verify"]).exits(0);
    }
}

/// Kills the program under strace, and strace with it.
pub(crate) fn kill_traced(daemon: Daemon) {
    let pid = daemon.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    for child in children.split_whitespace() {
        assert!(Command::new("kill").args(["-s", "KILL", child]).status().unwrap().success());
    }
    // It ends by itself once its program is gone.
    daemon.wait();
}

/// BR-133, W-1, scenario 201: the second process on one data directory is refused at once, and the first one does not notice.
#[tokio::test(flavor = "multi_thread")]
async fn two_processes_on_one_store() {
    let world = World::start().await;
    let place = place(&world);
    let daemon = place.serve();
    daemon.create(SESSION).await;
    let mut ledger = Ledger::default();
    ledger.send(&daemon, SESSION, "one").await;
    let second = place.run(&["serve"]).exits(6);
    assert_eq!(second.stderr.trim().lines().count(), 1, "one sentence: {}", second.stderr);
    ledger.send(&daemon, SESSION, "two").await;
    ledger.judge(&daemon, SESSION, &world).await;
    // BR-026: a lock that names a dead process blocks nobody.
    daemon.kill();
    let daemon = place.serve();
    ledger.judge(&daemon, SESSION, &world).await;
}
