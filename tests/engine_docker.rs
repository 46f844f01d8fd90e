//! The Docker engine and the sandbox's init, on a real engine.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::too_many_lines)]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod sandbox;

use std::time::{Duration, Instant};

use bytes::Bytes;
use gleaner::engine::{Engine, EngineError, ExecResult, Limits, SandboxEnd, SandboxId};
use sandbox::{HELPER, Image, LONG, Options, Sandbox, connect, engine, exec, exec_spec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// The life of a sandbox, through every verb.
#[tokio::test]
async fn a_sandbox_lives_and_ends() {
    let engine = engine().await;
    engine.ready().await.unwrap();
    assert!(engine.describe().starts_with("Docker at unix://"), "{}", engine.describe());
    assert!(engine.image("gleaner-no-such-image:x").await.unwrap().is_none());
    let image = engine.image(&sandbox::image()).await.unwrap().unwrap();
    assert!(image.id.starts_with("sha256:"), "{image:?}");

    let mut one = Sandbox::start(
        &engine,
        &["sh", "-c", "cat /work/task.txt; echo out >/work/made.txt; echo err >&2; exit 3"],
        Options::default(),
    )
    .await;
    engine.copy_in(&one.id, "/tmp", tar(&[])).await.unwrap();
    engine.copy_in(&one.id, "/work", tar(&[("task.txt", "do it\n")])).await.unwrap();
    let path = "/home/agent/.config/deep/config.toml";
    one.write(path, "600", b"a = 1\n").await;
    let seen = exec(
        &engine,
        &one.id,
        &["sh", "-c", &format!("cat {path}; stat -c '%a %u %g' {path}; stat -c '%u' /home/agent/.config /work")],
    )
    .await;
    assert_eq!(seen.stdout, "a = 1\n600 1000 1000\n1000\n1000\n", "{seen:?}");

    one.go().await;
    assert_eq!(one.exited().await, "exited code=3 signal=0 timed_out=0");
    assert_eq!(engine.ended(&one.id).await.unwrap(), None, "it stays for what comes after the harness");
    assert_eq!(exec(&engine, &one.id, &["cat", "/work/made.txt"]).await.stdout, "out\n");
    assert_eq!(exec(&engine, &one.id, &[HELPER, "cat", "/work/made.txt", "2"]).await.stdout, "ou");
    let out = engine.copy_out(&one.id, "/work/made.txt").await.unwrap();
    let mut archive = tar::Archive::new(&out[..]);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut archive.entries().unwrap().next().unwrap().unwrap(), &mut text).unwrap();
    assert_eq!(text, "out\n");
    assert!(matches!(engine.copy_out(&one.id, "/work/none").await, Err(EngineError::Failed { .. })));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("made.tar");
    assert_eq!(engine.copy_out_to(&one.id, "/work/made.txt", &file, 1 << 20).await.unwrap(), out.len() as u64);
    assert_eq!(std::fs::read(&file).unwrap(), out);
    let error = engine.copy_out_to(&one.id, "/work/made.txt", &file, 600).await.unwrap_err().to_string();
    assert!(error.contains("it has more than 600 bytes") && std::fs::read(&file).unwrap() == out[..600], "{error}");

    let id = one.id.clone();
    assert_eq!(one.hang_up(&engine).await, SandboxEnd { exit_code: 0, out_of_memory: false });
    assert_eq!(engine.logs(&id).await.unwrap(), (Bytes::from("do it\n"), Bytes::from("err\n")));
    engine.remove(&id).await.unwrap();
    engine.remove(&id).await.expect("removing twice is fine");
    assert!(engine.ended(&id).await.is_err());
}

/// Files are written and read whatever stands there: links are never followed.
#[tokio::test]
async fn the_init_follows_no_links() {
    let engine = engine().await;
    let mut one = Sandbox::start(&engine, &["true"], Options::default()).await;
    let setup = "cd /tmp && echo x >file && ln -s /tmp/file link && ln -s /etc folder && mkfifo fifo";
    assert_eq!(exec(&engine, &one.id, &["sh", "-c", setup]).await.exit_code, 0);
    for (path, code) in
        [("/tmp/link", 4), ("/tmp/fifo", 4), ("/tmp", 4), ("/dev/null", 4), ("/tmp/none", 3), ("/run/gleaner/model.sock", 4)]
    {
        let read = exec(&engine, &one.id, &[HELPER, "cat", path, "100"]).await;
        assert_eq!((read.exit_code, read.stdout), (code, Bytes::new()), "{path}");
    }
    one.write("/tmp/link", "644", b"new\n").await;
    let replaced = exec(&engine, &one.id, &["sh", "-c", "stat -c %F /tmp/link; cat /tmp/link /tmp/file"]).await;
    assert_eq!(replaced.stdout, "regular file\nnew\nx\n", "{replaced:?}");
    one.say("write 644 1 /etc/x\ny").await;
    assert!(one.line().await.unwrap().starts_with("failed /etc/x"), "the harness's user may not write there");
    engine.remove(&one.id).await.unwrap();
}

/// The working folder is the user's, whatever the image has in it; no link in it is followed. The image is made once.
#[tokio::test]
async fn the_working_folder_is_the_users() {
    let engine = engine().await;
    let image = Image::build(
        &engine,
        "RUN mkdir -p /src/inner && echo a >/src/inner/a && ln -s /etc/passwd /src/link && ln -s /etc /src/folder && chmod 700 /src/inner\n\
         ENV A=b\nWORKDIR /src",
    )
    .await;
    assert_eq!(engine.image(&image.0).await.unwrap().unwrap().workdir.as_deref(), Some("/src"));
    let options = || Options { image: image.0.clone(), workdir: Some("/src".into()), ..Options::default() };
    let see =
        "stat -c '%n %u:%g %a' /src /src/inner /src/inner/a /src/link /etc/passwd /etc; cat inner/a; echo $A; touch inner/b new";
    let one = Sandbox::start(&engine, &["true"], options()).await;
    let expected = "/src 1000:1000 755\n/src/inner 1000:1000 700\n/src/inner/a 1000:1000 644\n/src/link 1000:1000 777\n\
                    /etc/passwd 0:0 644\n/etc 0:0 755\na\nb\n";
    let seen = exec(&engine, &one.id, &["sh", "-c", see]).await;
    assert_eq!((seen.exit_code, &seen.stdout[..]), (0, expected.as_bytes()), "{seen:?}");
    let began = Instant::now();
    let two = Sandbox::start(&engine, &["true"], options()).await;
    let seen = exec(&engine, &two.id, &["ls", "/src"]).await;
    assert_eq!(seen.stdout, "folder\ninner\nlink\n", "what one sandbox writes is in no other; {:?}", began.elapsed());
    // The user's image is kept while its own is there, and goes with it.
    let of_it = |images: Vec<bollard::models::ImageSummary>, id: &str| {
        images.into_iter().filter(|one| one.labels.get("gleaner.of").is_some_and(|of| of == id)).count()
    };
    let api = bollard::Docker::connect_with_defaults().unwrap().negotiate_version().await.unwrap();
    let list = || api.list_images(None::<bollard::query_parameters::ListImagesOptions>);
    let id = engine.image(&image.0).await.unwrap().unwrap().id;
    engine.sweep().await.unwrap();
    assert_eq!(of_it(list().await.unwrap(), &id), 1);
    engine.remove(&one.id).await.unwrap();
    engine.remove(&two.id).await.unwrap();
    image.remove(&engine).await;
    engine.sweep().await.unwrap();
    assert_eq!(of_it(list().await.unwrap(), &id), 0);
}

#[tokio::test]
async fn commands_are_bounded_in_time_and_output() {
    let engine = engine().await;
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
    let mut spec = exec_spec(&["sh", "-c", "echo first; exec sleep 1000"]);
    spec.timeout = Duration::from_secs(2);
    let expected = ExecResult { exit_code: -1, stdout: "first\n".into(), stderr: Bytes::new(), timed_out: true };
    assert_eq!(engine.exec(&one.id, &spec).await.unwrap(), expected);
    assert!(started.elapsed() < LONG);

    let background = exec(&engine, &one.id, &["sh", "-c", "sleep 1000 & echo started"]).await;
    assert_eq!((background.exit_code, background.timed_out), (0, false), "a child left behind is not waited for: {background:?}");
    engine.remove(&one.id).await.unwrap();
}

/// A tree that ignores TERM, a part of it in a session of its own, ends with the deadline.
#[tokio::test]
async fn the_deadline_ends_everything() {
    let engine = engine().await;
    let options = Options { deadline: Duration::from_secs(3), grace: Duration::from_millis(300), ..Options::default() };
    let stubborn = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' &); while :; do sleep 1; done";
    let mut one = Sandbox::start(&engine, &["sh", "-c", stubborn], options).await;
    one.go().await;
    assert_eq!(one.exited().await, "exited code=137 signal=9 timed_out=1");
    assert_eq!(processes(&engine, &one.id).await, ["init"]);
    engine.remove(&one.id).await.unwrap();
}

#[tokio::test]
async fn a_harness_may_end_itself_within_the_grace() {
    let engine = engine().await;
    let options = Options { deadline: Duration::from_secs(2), grace: LONG, ..Options::default() };
    let mut one = Sandbox::start(&engine, &["sh", "-c", "trap 'exit 4' TERM; while :; do sleep 0.1; done"], options).await;
    one.go().await;
    assert_eq!(one.exited().await, "exited code=4 signal=0 timed_out=1");
    engine.remove(&one.id).await.unwrap();
}

/// What a harness leaves running is gone when its end is told, and its open calls are cut.
#[tokio::test]
async fn nothing_outlives_the_harness() {
    let engine = engine().await;
    let script = "import os, socket, time
s = socket.create_connection(('127.0.0.1', 8080)); s.sendall(b'x'); s.recv(1)
if os.fork() == 0:
    os.setsid()
    time.sleep(1000)
os._exit(7)";
    let mut one = Sandbox::start(&engine, &["python3", "-c", script], Options::default()).await;
    one.go().await;
    let mut call = one.accept().await;
    call.write_all(b"y").await.unwrap();
    assert_eq!(one.exited().await, "exited code=7 signal=0 timed_out=0");
    assert_eq!(processes(&engine, &one.id).await, ["init"]);
    let mut rest = Vec::new();
    timeout(LONG, call.read_to_end(&mut rest)).await.expect("the call is cut").unwrap();
    assert_eq!(rest, b"x");
    engine.remove(&one.id).await.unwrap();
}

#[tokio::test]
async fn a_harness_that_cannot_start_says_why() {
    let engine = engine().await;
    let mut one = Sandbox::start(&engine, &["/no/such/program"], Options::default()).await;
    one.say("go").await;
    assert_eq!(one.exited().await, "exited code=127 signal=0 timed_out=0");
    let id = one.id.clone();
    one.hang_up(&engine).await;
    let (_, stderr) = engine.logs(&id).await.unwrap();
    assert!(String::from_utf8_lossy(&stderr).contains("cannot start /no/such/program"), "{stderr:?}");
    engine.remove(&id).await.unwrap();
}

/// A Gleaner that dies hangs up: its sandboxes end by themselves, before and while the harness runs.
#[tokio::test]
async fn a_hang_up_ends_the_sandbox() {
    let engine = engine().await;
    let one = Sandbox::start(&engine, &["true"], Options::default()).await;
    let mut two = Sandbox::start(&engine, &["sleep", "1000"], Options::default()).await;
    two.go().await;
    for one in [one, two] {
        let id = one.id.clone();
        assert_eq!(one.hang_up(&engine).await, SandboxEnd { exit_code: 0, out_of_memory: false });
        engine.remove(&id).await.unwrap();
    }
}

/// The engine's own stop works as the deadline does; the harness itself can't send it.
#[tokio::test]
async fn the_engine_can_stop_it_and_the_harness_cannot() {
    let engine = engine().await;
    let mut one = Sandbox::start(
        &engine,
        &["sh", "-c", "kill -TERM 1; kill -KILL 1; kill -STOP 1; echo up; exec sleep 1000"],
        Options::default(),
    )
    .await;
    one.go().await;
    let up = async { while engine.logs(&one.id).await.unwrap().0 != "up\n" {} };
    timeout(LONG, up).await.expect("the harness got past its kills");
    let api = bollard::Docker::connect_with_defaults().unwrap().negotiate_version().await.unwrap();
    let term = bollard::query_parameters::KillContainerOptionsBuilder::new().signal("SIGTERM").build();
    api.kill_container(&one.id.0, Some(term)).await.unwrap();
    assert_eq!(one.line().await.as_deref(), Some("terminated"), "the host must not take it for the harness's own end");
    assert_eq!(one.exited().await, "exited code=143 signal=15 timed_out=0");
    engine.remove(&one.id).await.unwrap();
}

/// The harness runs as the same user as the init, and tries to tell the host its own end.
#[tokio::test]
async fn the_report_cannot_be_forged() {
    let engine = engine().await;
    let script = r"
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, work):
    try: print(name, 'DONE', work(), flush=True)
    except OSError as error: print(name, error.errno in (1, 2, 13, 30, 38), flush=True)
def call(function, *args):
    result = function(*args)
    if result < 0: raise OSError(ctypes.get_errno(), 'refused')
    return result
def dial():
    s = socket.socket(socket.AF_UNIX); s.connect('/run/gleaner/control.sock'); return s
def is_open(fd):
    try: os.fstat(fd); return True
    except OSError: return False
print('own', [fd for fd in range(1000) if is_open(fd)], flush=True)
tried('control', dial)
tried('fds', lambda: os.listdir('/proc/1/fd'))
tried('memory', lambda: open('/proc/1/mem', 'r+b'))
tried('trace', lambda: call(libc.ptrace, 16, 1, 0, 0))
tried('take', lambda: [call(libc.syscall, 438, os.pidfd_open(1), fd, 0) for fd in range(3, 10)])
tried('socket', lambda: open('/run/gleaner/new', 'w'))
os._exit(5)";
    let mut one = Sandbox::start(&engine, &["python3", "-c", script], Options::default()).await;
    one.go().await;
    assert_eq!(one.exited().await, "exited code=5 signal=0 timed_out=0");
    let id = one.id.clone();
    one.hang_up(&engine).await;
    let (stdout, stderr) = engine.logs(&id).await.unwrap();
    let expected = "own [0, 1, 2]\ncontrol True\nfds True\nmemory True\ntrace True\ntake True\nsocket True\n";
    assert_eq!((stdout, stderr), (Bytes::from(expected), Bytes::new()));
    engine.remove(&id).await.unwrap();
}

#[tokio::test]
async fn out_of_memory_is_seen() {
    let engine = engine().await;
    let limits = Limits { cpus: 1.0, memory_bytes: 64 << 20, pids: 64, disk_bytes: None };
    let eat = "b = []\nwhile True: b.append(bytearray(1 << 20))";
    let mut one = Sandbox::start(&engine, &["python3", "-c", eat], Options { limits, ..Options::default() }).await;
    one.go().await;
    assert_eq!(one.exited().await, "exited code=137 signal=9 timed_out=0 oom=1");
    let id = one.id.clone();
    assert_eq!(one.hang_up(&engine).await, SandboxEnd { exit_code: 0, out_of_memory: true });
    engine.remove(&id).await.unwrap();
}

/// A root file system in a tar file becomes an image; our helper is all that it needs.
#[tokio::test]
async fn a_root_file_system_becomes_an_image() {
    let engine = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let mut builder = tar::Builder::new(std::fs::File::create(folder.path().join("root.tar")).unwrap());
    builder.append_path_with_name(gleaner::harness::helper::install(folder.path()).unwrap(), "init").unwrap();
    builder.into_inner().unwrap();
    let name = format!("gleaner-test:{}", uuid::Uuid::new_v4().simple());
    engine.import(&name, &folder.path().join("root.tar"), &[("A", "b"), ("C", "d")]).await.unwrap();
    let facts = engine.image(&name).await.unwrap().unwrap();
    let env = vec![("A".to_owned(), "b".to_owned()), ("C".to_owned(), "d".to_owned())];
    assert_eq!((facts.workdir, facts.env), (None, env));
    let api = bollard::Docker::connect_with_defaults().unwrap().negotiate_version().await.unwrap();
    api.remove_image(&name, None::<bollard::query_parameters::RemoveImageOptions>, None).await.unwrap();
    assert!(engine.image(&name).await.unwrap().is_none());
    assert!(matches!(engine.import(&name, &folder.path().join("none.tar"), &[]).await, Err(EngineError::Failed { .. })));
}

/// A build is told line by line; one that fails says where and why. What it made stays for the next.
#[tokio::test]
async fn images_are_built() {
    let engine = engine().await;
    let told = std::sync::Mutex::new(Vec::new());
    let tell = |line: &str| told.lock().unwrap().push(line.to_owned());
    let name = format!("gleaner-test:{}", uuid::Uuid::new_v4().simple());
    let dockerfile = format!("FROM {}\nCOPY seed /seed\nRUN cat /seed && echo {name} >&2\nWORKDIR /there", sandbox::image());
    engine.build(&name, tar(&[("Dockerfile", &dockerfile), ("seed", "from the folder\n")]), &tell).await.unwrap();
    let told = told.into_inner().unwrap();
    assert!(["from the folder", &name].iter().all(|line| told.iter().any(|said| said == line)), "{told:?}");
    assert_eq!(engine.image(&name).await.unwrap().unwrap().workdir.as_deref(), Some("/there"));
    engine.sweep().await.unwrap();
    assert!(engine.image(&name).await.unwrap().is_some(), "a built image has no owner that could die");
    engine.remove_image(&name).await.unwrap();
    engine.remove_image(&name).await.expect("removing twice is fine");
    assert!(engine.image(&name).await.unwrap().is_none());

    let dockerfile = format!("FROM {}\nRUN echo {name}\nRUN (seq 100; echo it broke) >&2; exit 3", sandbox::image());
    let error = engine.build(&name, tar(&[("Dockerfile", &dockerfile)]), &|_| {}).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("build image {name}: Step 3/4 : RUN (seq 100")), "{error}");
    assert!(error.contains("returned a non-zero code: 3; its last lines:\n") && error.contains("\n100\nit broke"), "{error}");
    assert!(!error.contains("\n50\n"), "{error}");
    let error = engine.build(&name, tar(&[("Dockerfile", "FROM gleaner-no-such:x\nRUN true")]), &|_| {}).await.unwrap_err();
    assert!(error.to_string().contains("Step 1/3 : FROM gleaner-no-such:x: "), "{error}");
}

/// What a sandbox left becomes an image, without the keys that were in its environment; a dead owner's is swept.
#[tokio::test]
async fn a_sandbox_becomes_an_image() {
    let engine = engine().await;
    let dead = connect("test-99999999").await;
    let mut names = Vec::new();
    for owner in [&engine, &dead] {
        let options = Options { env: vec![("KEY".into(), "glr_x".into()), ("LANG".into(), "de".into())], ..Options::default() };
        let mut one = Sandbox::start(owner, &["sh", "-c", "echo $KEY >made; echo lost >/tmp/lost"], options).await;
        one.go().await;
        assert_eq!(one.exited().await, "exited code=0 signal=0 timed_out=0");
        let began = Instant::now();
        names.push(owner.snapshot(&one.id).await.unwrap());
        println!("snapshot: {:?}", began.elapsed());
        owner.remove(&one.id).await.unwrap();
    }
    let options = Options { image: names[0].clone(), own_workdir: false, user: Some("0:0".into()), ..Options::default() };
    let two = Sandbox::start(&engine, &["true"], options).await;
    let seen = exec(&engine, &two.id, &["sh", "-c", "cat made; ls /tmp; env | grep -e KEY -e LANG; id -u; echo $HOME"]).await;
    assert_eq!(seen.stdout, "glr_x\n0\n/home/agent\n", "{seen:?}");
    engine.remove(&two.id).await.unwrap();
    engine.sweep().await.unwrap();
    assert!(engine.image(&names[0]).await.unwrap().is_some());
    assert!(engine.image(&names[1]).await.unwrap().is_none());
    engine.remove_image(&names[0]).await.unwrap();
}

/// A harness that prints without end is not stopped, and the engine, its disk and we hold no more than the end of it.
#[tokio::test]
async fn logs_are_bounded() {
    let engine = engine().await;
    let script = "import sys
line = 'x' * 8191 + '\\n'
for _ in range(8000): sys.stdout.write(line)
print('the end')";
    let mut one = Sandbox::start(&engine, &["python3", "-c", script], Options::default()).await;
    one.go().await;
    assert_eq!(one.exited().await, "exited code=0 signal=0 timed_out=0");
    one.say("mark 7f").await;
    let read = async {
        loop {
            let (stdout, _) = engine.logs(&one.id).await.unwrap();
            if stdout.ends_with(b"the end\n7f\n") {
                return stdout;
            }
        }
    };
    let stdout = timeout(LONG, read).await.expect("the end is there");
    assert!((8 << 20..=16 << 20).contains(&stdout.len()), "{}", stdout.len());
    engine.remove(&one.id).await.unwrap();
}

/// What a sandbox writes is seen where it is not bounded: see `disk_used`.
#[tokio::test]
async fn the_disk_is_bounded_or_looked_at() {
    let engine = engine().await;
    let one = Sandbox::start(&engine, &["true"], Options::default()).await;
    let before = engine.disk_used(&one.id).await.unwrap();
    let wrote = exec(&engine, &one.id, &["sh", "-c", "head -c 50000000 /dev/zero >/work/big"]).await;
    let began = Instant::now();
    match (before, engine.disk_used(&one.id).await.unwrap()) {
        (Some(before), Some(after)) => {
            assert!(before < 1 << 20 && after >= 50_000_000, "{before} {after}");
            println!("looking at the size: {:?}", began.elapsed());
        }
        (None, None) => assert_ne!(wrote.exit_code, 0, "more than the sandbox's bound"),
        other => panic!("{other:?}"),
    }
    // Files in memory have bounds too, of which the writer is told.
    let full = exec(&engine, &one.id, &["sh", "-c", "head -c 900000000 /dev/zero >/tmp/big"]).await;
    assert!(full.exit_code == 1 && full.stderr.ends_with(b"No space left on device\n"), "{full:?}");
    engine.remove(&one.id).await.unwrap();
}

/// Only what dead processes left is swept.
#[tokio::test]
async fn leftovers_are_swept() {
    let living = engine().await;
    // No process has this id: it is past the kernel's largest.
    let dead = connect("test-99999999").await;
    let left = Sandbox::start(&dead, &["true"], Options::default()).await;
    let kept = Sandbox::start(&living, &["true"], Options::default()).await;
    // Another test's engine may come first.
    let swept = living.sweep().await.unwrap();
    assert!(living.ended(&left.id).await.is_err(), "{swept} swept");
    assert_eq!(living.ended(&kept.id).await.unwrap(), None);
    living.remove(&kept.id).await.unwrap();
}

/// Where the init is not the first process, it ends the harness's group and nobody else.
#[tokio::test]
async fn outside_a_sandbox_the_init_ends_its_own_group_only() {
    let engine = engine().await;
    let script = format!(
        "sleep 1000 & {HELPER} run --control /run/gleaner/inner.sock --listen 127.0.0.1:9090 --socket /run/gleaner/model.sock \
         --deadline-ms 2000 --grace-ms 100 -- sh -c \"trap '' TERM; while :; do sleep 1; done\" && kill -0 $! && exit 6"
    );
    let mut one = Sandbox::start(&engine, &["sh", "-c", &script], Options::default()).await;
    let inner = one.listen("inner.sock");
    one.go().await;
    let (mut control, _) = timeout(LONG, inner.accept()).await.unwrap().unwrap();
    control.write_all(b"go\n").await.unwrap();
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains("exited ") {
        assert!(timeout(LONG, control.read_buf(&mut said)).await.unwrap().unwrap() > 0, "{said:?}");
    }
    assert!(String::from_utf8_lossy(&said).contains("exited code=137 signal=9 timed_out=1"), "{said:?}");
    drop(control);
    assert_eq!(one.exited().await, "exited code=6 signal=0 timed_out=0");
    engine.remove(&one.id).await.unwrap();
}

/// The names of a sandbox's processes but the one that asks.
async fn processes(engine: &impl Engine, id: &SandboxId) -> Vec<String> {
    let list = "import os
for p in os.listdir('/proc'):
    if p.isdigit() and int(p) != os.getpid(): print(open(f'/proc/{p}/comm').read().strip())";
    let seen = engine.exec(id, &exec_spec(&["python3", "-c", list])).await.unwrap();
    assert_eq!((seen.exit_code, seen.stderr), (0, Bytes::new()));
    String::from_utf8_lossy(&seen.stdout).lines().map(str::to_owned).collect()
}

fn tar(files: &[(&str, &str)]) -> Bytes {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, text.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap().into()
}
