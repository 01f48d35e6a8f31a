//! Power losses: a file system that is shut down without writing what was not synced (BR-038, BR-040), a device that
//! turns read-only, and damaged files. Root only; otherwise the memory twin of the store stands for it.

use super::{
    disk::skipped,
    herd::{Chance, Herd, copy, number, seed, tool},
};
use std::{
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

/// Power losses in the test run, for each file system there is; `EVERTURN_POWER_LOSSES=300` for a longer one.
const LOSSES: u64 = 40;

/// Shuts a file system down without flushing its log: FS_IOC_SHUTDOWN with NOLOGFLUSH.
const SHUT_DOWN: &str =
    "open(my $dir, '<', $ARGV[0]) or die; my $flags = pack('L', 2); ioctl($dir, 0x8004587d, $flags) or die \"$!\"";

/// A file system in a file, mounted; unmounted when dropped.
struct Disk {
    kind: String,
    image: PathBuf,
    at: PathBuf,
}

impl Disk {
    /// Makes and mounts one; an error says what is missing.
    fn make(kind: &str, at: &Path) -> Result<Self, String> {
        let image = at.with_extension("image");
        std::fs::create_dir_all(at).unwrap();
        // What xfs takes at least.
        std::fs::File::create(&image).unwrap().set_len(320 << 20).unwrap();
        let force = if kind == "xfs" { "-f" } else { "-F" };
        let path = image.to_str().unwrap();
        if !tool(&format!("mkfs.{kind}"), &["-q", force, path]) {
            return Err(format!("mkfs.{kind} is not there, or fails"));
        }
        let disk = Self { kind: kind.to_owned(), image, at: at.to_owned() };
        if disk.mount() { Ok(disk) } else { Err("mounting a loop device is not possible".to_owned()) }
    }

    fn mount(&self) -> bool {
        let options = if self.kind == "xfs" { "loop" } else { "loop,errors=remount-ro" };
        tool("mount", &["-o", options, self.image.to_str().unwrap(), self.at.to_str().unwrap()])
    }

    /// The power goes.
    fn lose_power(&self) -> bool {
        tool("perl", &["-e", SHUT_DOWN, self.at.to_str().unwrap()])
    }

    /// The power comes back.
    fn restore(&self) {
        assert!(tool("umount", &[self.at.to_str().unwrap()]), "it cannot be unmounted");
        assert!(self.mount(), "it cannot be mounted again");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).output();
    }
}

async fn losses(kind: &str) {
    let seed = seed("EVERTURN_POWER_SEED");
    let mut herd = Herd::new();
    let disk = match Disk::make(kind, &herd.place.data_dir()) {
        Ok(disk) => disk,
        // xfs is not everywhere; ext4 and root are what the check of this project has.
        Err(why) if kind == "xfs" => return eprintln!("SKIPPED: {why}"),
        Err(why) => return skipped(&why),
    };
    let mut chance = Chance(seed);
    let wanted = number("EVERTURN_POWER_LOSSES", LOSSES);
    let began = std::time::Instant::now();
    for loss in 0..wanted {
        let case = format!("{kind}, seed {seed}, loss {loss}");
        let (daemon, _heard) = herd.serve();
        herd.judge(&daemon, &case).await;
        let (messages, polls) = (1 + chance.below(4), chance.below(60));
        let cut = async {
            for _ in 0..polls {
                drop(daemon.try_ask("GET", "/v1/health", None).await);
            }
            disk.lose_power()
        };
        let ((), cut) = tokio::join!(herd.load(&daemon, usize::try_from(messages).unwrap()), cut);
        if !cut {
            return skipped("the file system cannot be shut down");
        }
        daemon.kill();
        disk.restore();
    }
    let (daemon, _heard) = herd.serve();
    herd.judge(&daemon, &format!("{kind}, seed {seed}, at the end")).await;
    assert_eq!(daemon.stop(), Some(0));
    herd.verify(&format!("{kind}, seed {seed}"));
    println!("{wanted} power losses on {kind}, {} receipts, {:.1} s", herd.receipts, began.elapsed().as_secs_f64());
}

#[tokio::test(flavor = "multi_thread")]
async fn power_losses_on_ext4() {
    losses("ext4").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn power_losses_on_xfs() {
    losses("xfs").await;
}

/// The device turns read-only under load: no false receipt, and everything acknowledged is there when it is writable again.
#[tokio::test(flavor = "multi_thread")]
async fn read_only_remount() {
    let mut herd = Herd::new();
    let disk = match Disk::make("ext4", &herd.place.data_dir()) {
        Ok(disk) => disk,
        Err(why) => return skipped(&why),
    };
    let (daemon, _heard) = herd.serve();
    herd.load(&daemon, 3).await;
    // What is open for writing stays writable unless an error of the device forces the remount.
    let forced = Command::new("sh")
        .args(["-c", "echo 1 > /sys/fs/ext4/$(basename $(findmnt -n -o SOURCE --target \"$0\"))/trigger_fs_error"])
        .arg(&disk.at)
        .output()
        .is_ok_and(|output| output.status.success());
    if !forced || std::fs::write(disk.at.join("probe"), "x").is_ok() {
        return skipped("the file system cannot be made read-only");
    }
    let before = herd.receipts;
    herd.load(&daemon, 2).await;
    assert_eq!(herd.receipts, before, "a receipt was given while nothing could be written");
    let (status, body) = daemon.get("/v1/ready").await;
    assert_eq!(status, 503, "ready although nothing can be written: {body}");
    daemon.kill();
    disk.restore();
    let (daemon, _heard) = herd.serve();
    herd.judge(&daemon, "read-only").await;
    assert_eq!(daemon.stop(), Some(0));
    herd.verify("read-only");
}

/// A damaged copy of a data directory.
enum Damage {
    Flip(u64),
    Cut(u64),
    Zeros(u64),
}

/// Places of every class: the ends, the heads of records and pages, the middle.
fn damages(len: u64) -> Vec<Damage> {
    let places =
        [0, 1, 7, 16, 512, 4_096, len / 4, len / 2, len * 3 / 4, len.saturating_sub(16), len.saturating_sub(1)];
    let inside = places.into_iter().filter(|at| *at < len).collect::<std::collections::BTreeSet<_>>();
    let mut all: Vec<Damage> = inside.iter().map(|at| Damage::Flip(*at)).collect();
    all.extend([0, len / 2, len.saturating_sub(1)].into_iter().filter(|at| *at < len).map(Damage::Cut));
    all.extend([len / 2].into_iter().filter(|at| at + 500 < len).map(Damage::Zeros));
    all
}

fn damage(file: &Path, what: &Damage) {
    let mut opened = std::fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    match what {
        Damage::Cut(at) => opened.set_len(*at).unwrap(),
        Damage::Zeros(at) => {
            opened.seek(SeekFrom::Start(*at)).unwrap();
            opened.write_all(&[0; 500]).unwrap();
        }
        Damage::Flip(at) => {
            let mut byte = [0];
            opened.seek(SeekFrom::Start(*at)).unwrap();
            opened.read_exact(&mut byte).unwrap();
            opened.seek(SeekFrom::Start(*at)).unwrap();
            opened.write_all(&[byte[0] ^ 0x10]).unwrap();
        }
    }
}

fn files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, out) } else { out.push(path) }
    }
}

/// What the program tells of each session, offline.
fn logs(herd: &Herd, sessions: &[String]) -> Vec<(Option<i32>, String, String)> {
    let log = |session: &String| {
        let ran = herd.place.run(&["log", session, "--json"]);
        (ran.code, ran.stdout, ran.stderr)
    };
    sessions.iter().map(log).collect()
}

/// BR-014: flipped bits, cut ends and runs of zeros at every class of offset in every file of the data directory. What
/// can be read is what was written; where something is missing, it is said; never a panic, never a hang.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_files() {
    let mut herd = Herd::new();
    let (daemon, _heard) = herd.serve();
    herd.load(&daemon, 3).await;
    herd.judge(&daemon, "whole").await;
    let (_, listed) = daemon.get("/v1/sessions").await;
    let sessions: Vec<String> =
        listed["sessions"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(daemon.stop(), Some(0));
    let whole = logs(&herd, &sessions);
    assert!(whole.iter().all(|(code, text, _)| *code == Some(0) && !text.is_empty()), "{whole:?}");
    let data = herd.place.data_dir();
    let kept = herd.place.path().join("kept");
    copy(&data, &kept);
    let mut all = Vec::new();
    files(&kept, &mut all);
    let (mut cases, mut loud, mut silent) = (0, 0, Vec::new());
    for file in all {
        let name = file.strip_prefix(&kept).unwrap().to_owned();
        for what in damages(std::fs::metadata(&file).unwrap().len()) {
            std::fs::remove_dir_all(&data).unwrap();
            copy(&kept, &data);
            damage(&data.join(&name), &what);
            let case = match what {
                Damage::Flip(at) => format!("{}: bit flipped at {at}", name.display()),
                Damage::Cut(at) => format!("{}: cut at {at}", name.display()),
                Damage::Zeros(at) => format!("{}: zeros at {at}", name.display()),
            };
            cases += 1;
            let verify = herd.place.run(&["verify"]);
            let code = verify.code.unwrap_or_else(|| panic!("{case}: verify was ended by a signal: {}", verify.stderr));
            assert_ne!(code, 101, "{case}: {}", verify.stderr);
            let told = code != 0 || !verify.stderr.trim().is_empty();
            let mut lost = false;
            for ((code, text, errors), (_, before, _)) in logs(&herd, &sessions).iter().zip(&whole) {
                assert!(code.is_some_and(|code| code != 101), "{case}: {errors}");
                assert!(before.starts_with(text.as_str()), "{case}: something is read that was never written");
                lost |= text != before && *code == Some(0) && errors.trim().is_empty();
            }
            loud += u32::from(told);
            if lost && !told {
                silent.push(case);
            }
        }
    }
    println!("{cases} damages, {loud} of them reported, the others without effect");
    assert!(silent.is_empty(), "acknowledged events are gone without a word:\n{}", silent.join("\n"));
}

/// BR-020, BR-022, BR-040: errors of the disk at the nth write or sync, once or again and again. No false receipt; the
/// program goes on by itself; what was acknowledged is there for the next process.
#[tokio::test(flavor = "multi_thread")]
async fn failing_system_calls() {
    if !tool("strace", &["-V"]) {
        return skipped("strace is not installed");
    }
    let faults = [
        "pwrite64:error=EIO:when=6",
        "pwrite64:error=ENOSPC:when=15",
        "pwrite64:error=EIO:when=9+11",
        "fdatasync:error=EIO:when=5+6",
        "fsync:error=EIO:when=3",
        "fdatasync:error=ENOSPC:when=8",
    ];
    for fault in faults {
        let mut herd = Herd::new();
        let serve = herd.place.command(&["serve"]);
        let mut traced = Command::new("strace");
        let call = fault.split(':').next().unwrap();
        traced.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &format!("inject={fault}")]);
        traced.arg(serve.get_program()).args(serve.get_args()).current_dir(herd.place.path()).env_clear();
        traced.envs(serve.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let (daemon, _heard) = super::common::Daemon::start_heard(traced);
        // A fault while the store is made is an error of the start, which is loud.
        if let Some(daemon) = daemon {
            for _ in 0..3 {
                herd.load(&daemon, 3).await;
            }
            super::disk::kill_traced(daemon);
        }
        let (daemon, _heard) = herd.serve();
        herd.judge(&daemon, fault).await;
        let before = herd.receipts;
        herd.load(&daemon, 1).await;
        assert!(herd.receipts > before, "{fault}: nothing is taken behind it");
        assert_eq!(daemon.stop(), Some(0));
        herd.verify(fault);
        println!("{fault}: {before} receipts under it");
    }
}
