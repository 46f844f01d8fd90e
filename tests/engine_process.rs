//! The process engine and the sandbox's init where it is not the first process. Needs nothing but Linux and Python.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::too_many_lines)]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod sandbox;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gleaner::engine::{Engine, EngineConfig, EngineError, ExecResult, Process, SandboxEnd};
use gleaner::harness::helper;
use sandbox::{LONG, Options, Sandbox, ended, exec, exec_spec};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// An engine, and where its helper is.
fn engine() -> (Process, TempDir) {
    let cache = tempfile::tempdir().unwrap();
    let helper = helper::install(cache.path()).unwrap();
    let config = EngineConfig { base_image: sandbox::image(), ..EngineConfig::default() };
    (Process::new(&config, helper, "test", Arc::new(|_| true)).unwrap(), cache)
}

/// The folder that a sandbox has.
fn folder(one: &Sandbox) -> PathBuf {
    Path::new(&one.places.home).parent().unwrap().to_owned()
}

/// The programs that live of a sandbox, its init left out.
fn processes(folder: &Path) -> Vec<String> {
    let mark = format!("GLEANER_SANDBOX={}", folder.display());
    let read = |pid: &str, what: &str| std::fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let marked = pids.filter(|pid| read(pid, "environ").split(|&byte| byte == 0).any(|one| one == mark.as_bytes()));
    let program = |pid: String| String::from_utf8_lossy(&read(&pid, "cmdline")).replace('\0', " ");
    let mut programs: Vec<String> = marked.map(program).filter(|program| !program.contains(" run --control ")).collect();
    programs.retain(|program| !program.is_empty());
    programs
}

async fn no_processes(folder: &Path) {
    let wait = async {
        while !processes(folder).is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(timeout(LONG, wait).await.is_ok(), "these live on: {:?}", processes(folder));
}

/// The life of a sandbox, through every verb.
#[tokio::test]
async fn a_sandbox_lives_and_ends() {
    let (engine, _cache) = engine();
    engine.ready().await.unwrap();
    assert!(engine.describe().ends_with("WITHOUT ISOLATION") && !engine.isolates());
    let script = "cat task.txt; pwd; echo $HOME $TMPDIR; echo $SECRET; echo out >made.txt; echo err >&2; exit 3";
    let mut one = Sandbox::start(&engine, &["sh", "-c", script], Options::default()).await;
    let work = one.places.workdir.clone();
    engine.copy_in(&one.id, &work, tar(&[("task.txt", "do it\n")])).await.unwrap();
    let path = format!("{}/deep/config.toml", one.places.home);
    one.write(&path, "600", b"a = 1\n").await;
    assert_eq!(exec(&engine, &one.id, &["cat", &path]).await.stdout, "a = 1\n");

    one.go().await;
    assert_eq!(one.exited().await, "exited code=3 signal=0 timed_out=0");
    assert_eq!(engine.ended(&one.id).await.unwrap(), None, "it stays for what comes after the harness");
    assert_eq!(exec(&engine, &one.id, &["cat", "made.txt"]).await.stdout, "out\n");
    let out = engine.copy_out(&one.id, &format!("{work}/made.txt")).await.unwrap();
    let mut archive = tar::Archive::new(&out[..]);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut archive.entries().unwrap().next().unwrap().unwrap(), &mut text).unwrap();
    assert_eq!(text, "out\n");

    let (id, folder, places) = (one.id.clone(), folder(&one), one.places.clone());
    assert_eq!(one.hang_up(&engine).await, SandboxEnd { exit_code: 0, out_of_memory: false });
    let printed = format!("do it\n{work}\n{} {}\n\n", places.home, places.temp);
    assert_eq!(engine.logs(&id).await.unwrap(), (Bytes::from(printed), Bytes::from("err\n")));
    engine.remove(&id).await.unwrap();
    engine.remove(&id).await.expect("removing twice is fine");
    assert!(engine.ended(&id).await.is_err());
    assert!(!folder.exists());
}

#[tokio::test]
async fn commands_are_bounded_in_time_and_output() {
    let (engine, _cache) = engine();
    let one = Sandbox::start(&engine, &["true"], Options::default()).await;
    let mut spec = exec_spec(&["sh", "-c", "wc -c; echo $A; pwd; echo e >&2; exit 9"]);
    (spec.env, spec.workdir, spec.stdin) =
        (vec![("A".into(), "b c".into())], Some("/etc".into()), Bytes::from(vec![b'x'; 3 << 20]));
    let expected = ExecResult { exit_code: 9, stdout: "3145728\nb c\n/etc\n".into(), stderr: "e\n".into(), timed_out: false };
    assert_eq!(engine.exec(&one.id, &spec).await.unwrap(), expected);

    let mut spec = exec_spec(&["sh", "-c", "yes | head -c 3000000; echo done >&2"]);
    (spec.output_limit, spec.stdin) = (10, Bytes::from(vec![b'x'; 3 << 20]));
    let result = engine.exec(&one.id, &spec).await.unwrap();
    assert_eq!((result.exit_code, &result.stdout[..]), (0, &b"y\ny\ny\ny\ny\n"[..]), "what is not read is no failure");
    assert_eq!(result.stderr, "done\n\n[gleaner: 2999990 more bytes of standard output dropped]\n");

    let started = Instant::now();
    let mut spec = exec_spec(&["sh", "-c", "echo first; (setsid sleep 1000 &); sleep 1000; true"]);
    spec.timeout = Duration::from_secs(1);
    let expected = ExecResult { exit_code: -1, stdout: "first\n".into(), stderr: Bytes::new(), timed_out: true };
    assert_eq!(engine.exec(&one.id, &spec).await.unwrap(), expected);
    assert!(started.elapsed() < LONG);
    assert_eq!(processes(&folder(&one)), [""; 0], "all that it has started is gone");

    let background = exec(&engine, &one.id, &["sh", "-c", "sleep 1000 & echo started"]).await;
    let expected = ExecResult { exit_code: 0, stdout: "started\n".into(), stderr: Bytes::new(), timed_out: false };
    assert_eq!(background, expected, "a child left behind is not waited for");
    let missing = exec(&engine, &one.id, &["/no/such/program"]).await;
    assert_eq!((missing.exit_code, missing.stdout), (127, Bytes::new()));
    assert!(String::from_utf8_lossy(&missing.stderr).starts_with("cannot start /no/such/program: "), "{:?}", missing.stderr);
    let folder = folder(&one);
    assert_eq!(processes(&folder), ["sleep 1000 "]);
    engine.remove(&one.id).await.unwrap();
    no_processes(&folder).await;
}

/// A tree that ignores TERM, a part of it in a session of its own and an orphan, ends with the deadline.
#[tokio::test]
async fn the_deadline_ends_everything() {
    let (engine, _cache) = engine();
    let options = Options { deadline: Duration::from_secs(1), grace: Duration::from_millis(300), ..Options::default() };
    let stubborn = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' &); while :; do sleep 1; done";
    let mut one = Sandbox::start(&engine, &["sh", "-c", stubborn], options).await;
    one.go().await;
    assert_eq!(one.exited().await, "exited code=137 signal=9 timed_out=1");
    assert_eq!(processes(&folder(&one)), [""; 0]);
    engine.remove(&one.id).await.unwrap();
}

/// Each generation forks the next one, loses its parent, its session and its environment; no signal but KILL ends it.
const HYDRA: &str = "import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def head(age):
    os.setsid()
    if age > 0 and os.fork() == 0:
        head(age - 1)
    if age % 5 == 0:
        os.execve('/bin/sleep', ['sleep', '1000'], {})
    time.sleep(1000)
for _ in range(4):
    if os.fork() == 0:
        head(20)
print('grown', flush=True)
time.sleep(float(sys.argv[1]))";

#[tokio::test]
async fn what_forks_and_hides_ends_with_its_harness() {
    let (engine, _cache) = engine();
    let waiting = "until test -e enough; do sleep 0.05; done; exit 5";
    let mut neighbour = Sandbox::start(&engine, &["sh", "-c", waiting], Options::default()).await;
    neighbour.go().await;
    let mut one = Sandbox::start(&engine, &["python3", "-c", HYDRA, "0.5"], Options::default()).await;
    let path = folder(&one);
    one.go().await;
    assert_eq!(one.exited().await, "exited code=0 signal=0 timed_out=0");
    assert_eq!((processes(&path), sleepers(&path)), (Vec::new(), 0));
    engine.remove(&one.id).await.unwrap();
    assert!(!path.exists());
    engine.copy_in(&neighbour.id, &neighbour.places.workdir, tar(&[("enough", "")])).await.unwrap();
    assert_eq!(neighbour.exited().await, "exited code=5 signal=0 timed_out=0", "the neighbour goes on untouched");
    engine.remove(&neighbour.id).await.unwrap();
}

/// Processes that are in the sandbox's working folder, whatever their environment says.
fn sleepers(folder: &Path) -> usize {
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    pids.filter(|pid| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(folder))).count()
        - inits(folder)
}

fn inits(folder: &Path) -> usize {
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let is_init = |pid: &String| {
        let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_run = String::from_utf8_lossy(&cmdline).contains("\0run\0--control\0");
        is_run && std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(folder))
    };
    pids.filter(is_init).count()
}

/// Here a harness can end its init. It ends with it, and so does all that has the sandbox's mark.
#[tokio::test]
async fn a_harness_that_kills_its_init_is_gone_too() {
    let (engine, _cache) = engine();
    let script = "(setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' &); kill -9 $PPID; sleep 1000";
    let mut one = Sandbox::start(&engine, &["sh", "-c", script], Options::default()).await;
    one.go().await;
    assert_eq!(one.line().await, None, "the line ends without a report");
    assert_eq!(ended(&engine, &one.id).await, SandboxEnd { exit_code: 137, out_of_memory: false });
    assert_eq!(processes(&folder(&one)), [""; 0]);
    engine.remove(&one.id).await.unwrap();
}

/// A Gleaner that dies hangs up: all ends by itself, before and while the harness runs.
#[tokio::test]
async fn a_hang_up_ends_the_sandbox() {
    let (engine, _cache) = engine();
    let one = Sandbox::start(&engine, &["true"], Options::default()).await;
    let mut two = Sandbox::start(&engine, &["sh", "-c", "(setsid sleep 1000 &); sleep 1000"], Options::default()).await;
    two.go().await;
    for one in [one, two] {
        let (id, folder) = (one.id.clone(), folder(&one));
        assert_eq!(one.hang_up(&engine).await, SandboxEnd { exit_code: 0, out_of_memory: false });
        assert_eq!(processes(&folder), [""; 0]);
        engine.remove(&id).await.unwrap();
    }
}

#[tokio::test]
async fn a_harness_is_stopped_when_the_host_says_so() {
    let (engine, _cache) = engine();
    let options = || Options { grace: Duration::from_millis(300), ..Options::default() };
    let script = "trap 'echo asked; exit 4' TERM; echo ready; while :; do sleep 0.05; done";
    let mut gentle = Sandbox::start(&engine, &["sh", "-c", script], options()).await;
    let mut stubborn = Sandbox::start(&engine, &["sh", "-c", "trap '' TERM; while :; do sleep 1; done"], options()).await;
    gentle.go().await;
    printed(&engine, &gentle, b"ready\n").await;
    gentle.say("stop").await;
    assert_eq!(gentle.exited().await, "exited code=4 signal=0 timed_out=0");
    printed(&engine, &gentle, b"ready\nasked\n").await;
    // At once with its start, and twice: it is no less stopped.
    stubborn.say("hold\ngo\nstop\nstop").await;
    assert!(stubborn.line().await.unwrap().starts_with("started "));
    let end = stubborn.exited().await;
    // Before its trap stands, TERM ends it.
    assert!(["exited code=137 signal=9 timed_out=0", "exited code=143 signal=15 timed_out=0"].contains(&&*end), "{end}");
    for one in [gentle, stubborn] {
        engine.remove(&one.id).await.unwrap();
    }
}

/// Waits until so much was printed.
async fn printed(engine: &Process, one: &Sandbox, text: &[u8]) {
    let wait = async {
        while engine.logs(&one.id).await.unwrap().0 != text {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(LONG, wait).await.is_ok(), "{:?}", engine.logs(&one.id).await);
}

/// While it is held, a harness's time does not pass, however often that is said; then what was left of it does.
#[tokio::test]
async fn time_stands_still_while_it_is_held() {
    let (engine, _cache) = engine();
    let deadline = Duration::from_millis(600);
    let mut one = Sandbox::start(&engine, &["sleep", "1000"], Options { deadline, ..Options::default() }).await;
    one.say("hold").await;
    one.go().await;
    let held = Duration::from_secs(1);
    for word in ["hold", "hold"] {
        tokio::time::sleep(held / 2).await;
        one.say(word).await;
    }
    one.say("pass\npass\nhold\npass").await;
    let line = one.line().await.unwrap();
    let (report, ms) = line.rsplit_once(" ms=").unwrap();
    assert_eq!(report, "exited code=143 signal=15 timed_out=1");
    assert!(Duration::from_millis(ms.parse().unwrap()) >= held + deadline, "{line}");
    engine.remove(&one.id).await.unwrap();
}

/// The port is the sandbox's own, carries to the rollout's socket, and is closed with the harness.
#[tokio::test]
async fn calls_are_carried_from_a_port_of_its_own() {
    let (engine, _cache) = engine();
    let script = "import os, socket, sys
host, port = sys.argv[1].split(':')
s = socket.create_connection((host, int(port))); s.sendall(b'x'); print(s.recv(1), sys.stdin.read().encode(), flush=True)
if os.fork() == 0:
    s.recv(1)
os._exit(7)";
    // Its own address stands in the command only here: harnesses get it in their templates.
    let mut one =
        Sandbox::start(&engine, &["sh", "-c", "exec python3 -c \"$0\" $(cat address)", script], Options::default()).await;
    let address = one.places.listen.clone();
    engine.copy_in(&one.id, &one.places.workdir, tar(&[("address", &address)])).await.unwrap();
    one.go().await;
    let mut call = one.accept().await;
    call.write_all(b"y").await.unwrap();
    assert_eq!(one.exited().await, "exited code=7 signal=0 timed_out=0");
    let mut rest = Vec::new();
    timeout(LONG, call.read_to_end(&mut rest)).await.expect("the call is cut").unwrap();
    assert_eq!(rest, b"x");
    printed(&engine, &one, b"b'y' b''\n").await;
    let refused = tokio::net::TcpStream::connect(&address).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    engine.remove(&one.id).await.unwrap();
}

/// Who prints without end is not stopped by a full pipe, and does not fill the disk; the end is kept.
#[tokio::test]
async fn output_without_end_is_bounded() {
    let (engine, _cache) = engine();
    let mut one = Sandbox::start(&engine, &["sh", "-c", "yes | head -c 100000000; echo the end"], Options::default()).await;
    one.go().await;
    assert_eq!(one.exited().await, "exited code=0 signal=0 timed_out=0");
    one.say("mark 7f").await;
    let logs = async {
        loop {
            let (stdout, _) = engine.logs(&one.id).await.unwrap();
            if stdout.ends_with(b"7f\n") {
                return stdout;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let stdout = timeout(LONG, logs).await.expect("the end comes");
    assert!(stdout.ends_with(b"y\nthe end\n7f\n") && (8 << 20..=16 << 20).contains(&stdout.len()), "{}", stdout.len());
    engine.remove(&one.id).await.unwrap();
}

/// What only a container can have is refused, with what to do.
#[tokio::test]
async fn what_needs_a_container_is_refused() {
    let (engine, _cache) = engine();
    let images = [
        engine.image("other:1").await.unwrap_err(),
        engine.ensure("other:1").await.unwrap_err(),
        engine.build("x", Bytes::new(), &|_| {}).await.unwrap_err(),
    ];
    for error in images {
        assert!(error.to_string().ends_with("the process engine has no images; use Docker (--engine docker)"), "{error}");
    }
    let one = Sandbox::start(&engine, &["true"], Options::default()).await;
    assert!(matches!(engine.snapshot(&one.id).await, Err(EngineError::Failed { .. })));
    let mut spec = exec_spec(&["true"]);
    spec.user = Some("12345:1".into());
    let error = engine.exec(&one.id, &spec).await.unwrap_err().to_string();
    assert!(error.contains("it is to run as user 12345:1; use Docker"), "{error}");
    let error = engine.copy_in(&one.id, "/etc", tar(&[("x", "y")])).await.unwrap_err().to_string();
    assert!(error.contains("files of the host are left alone"), "{error}");
    assert!(engine.copy_out(&one.id, "/etc/passwd").await.is_err());
    engine.remove(&one.id).await.unwrap();
}

fn tar(files: &[(&str, &str)]) -> Bytes {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap().into()
}
