//! A sandbox made exactly as rollouts get theirs, with the host's side of its sockets in the test's hands.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gleaner::engine::{
    Docker, Engine, EngineConfig, ExecResult, ExecSpec, Limits, Mount, Network, Places, Powers, SandboxEnd, SandboxId,
    SandboxSpec,
};
use gleaner::harness::helper;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Nothing here takes so long; a test that waits longer has failed.
pub const LONG: Duration = Duration::from_mins(1);
pub const HELPER: &str = "/opt/gleaner/init";
/// Over all tests of a program: the engine starts sandboxes one by one.
static STARTS: Semaphore = Semaphore::const_new(4);

/// The image that the tests run in.
pub fn image() -> String {
    std::env::var("GLEANER_TEST_IMAGE").unwrap_or_else(|_| gleaner::engine::base_image::DEFAULT.to_owned())
}

/// An engine for this process; what tests that died left behind is removed first.
pub async fn engine() -> Docker {
    let engine = connect(&format!("test-{}", std::process::id())).await;
    engine.sweep().await.expect("leftovers can be removed");
    let image = image();
    let facts = engine.image(&image).await.expect("the engine answers");
    assert!(facts.is_some(), "these tests need the image {image}: make it with docker/base-image, or set GLEANER_TEST_IMAGE");
    engine
}

pub async fn connect(process_id: &str) -> Docker {
    // Only test processes can be judged here; any other is somebody's running Gleaner.
    let is_alive =
        |id: &str| id.strip_prefix("test-").is_none_or(|id| Path::new("/proc").join(id.split('-').next().unwrap()).exists());
    Docker::connect(&EngineConfig::default(), process_id, Arc::new(is_alive)).await.expect("these tests need a Docker engine")
}

/// How a sandbox is made where it matters.
pub struct Options {
    pub deadline: Duration,
    pub grace: Duration,
    pub limits: Limits,
    pub image: String,
    /// The engine's usual one if `None`; so is the user.
    pub workdir: Option<String>,
    pub own_workdir: bool,
    pub user: Option<String>,
    pub env: Vec<(String, String)>,
    pub network: Network,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            deadline: LONG,
            grace: Duration::from_secs(1),
            limits: Limits { cpus: 1.0, memory_bytes: 512 << 20, pids: 128, disk_bytes: Some(32 << 20) },
            image: image(),
            workdir: None,
            own_workdir: true,
            user: None,
            env: Vec::new(),
            network: Network::None,
        }
    }
}

pub struct Sandbox {
    pub id: SandboxId,
    pub places: Places,
    /// The model endpoint's end.
    pub model: UnixListener,
    /// The folder that the sandbox sees as `/run/gleaner`.
    pub sockets: TempDir,
    lines: BufReader<OwnedReadHalf>,
    control: OwnedWriteHalf,
    _folders: [TempDir; 2],
}

impl Sandbox {
    /// Creates and starts it; the harness waits for [`Self::go`].
    pub async fn start(engine: &dyn Engine, harness: &[&str], options: Options) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let helper = helper::install(cache.path()).unwrap();
        std::fs::set_permissions(cache.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let sockets = tempfile::tempdir().unwrap();
        std::fs::set_permissions(sockets.path(), PermissionsExt::from_mode(0o755)).unwrap();
        // Writable for everybody on the host, so that only the mount protects it.
        let payload = tempfile::tempdir().unwrap();
        std::fs::set_permissions(payload.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let model = listen(&sockets.path().join("model.sock"));
        let control = listen(&sockets.path().join("control.sock"));
        let name = format!("gleaner-test-{}", uuid::Uuid::new_v4().simple());
        let places = engine.places(&name).await.expect("the sandbox has its places");
        let spec = spec(engine, name, &places, harness, &options, [&helper, sockets.path(), payload.path()]);
        let id = engine.create(&spec).await.expect("the sandbox can be created");
        {
            let _permit = STARTS.acquire().await.unwrap();
            engine.start(&id).await.expect("the sandbox can be started");
        }
        let (stream, _) = match timeout(LONG, control.accept()).await {
            Ok(stream) => stream.unwrap(),
            Err(tokio::time::error::Elapsed { .. }) => {
                panic!("the init did not connect; it printed {:?}", engine.logs(&id).await)
            }
        };
        // One connection, before the harness runs, and no way to make another.
        std::fs::remove_file(sockets.path().join("control.sock")).unwrap();
        let (lines, control) = stream.into_split();
        let mut sandbox = Self { id, places, model, sockets, lines: BufReader::new(lines), control, _folders: [cache, payload] };
        assert_eq!(sandbox.line().await.as_deref(), Some("ready"));
        sandbox
    }

    /// The next line from the init; `None` at its end.
    pub async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let count = timeout(LONG, self.lines.read_line(&mut line)).await.expect("the init says something").unwrap_or(0);
        (count > 0).then(|| line.trim_end().to_owned())
    }

    pub async fn say(&mut self, line: &str) {
        self.control.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// Has the init write a file.
    pub async fn write(&mut self, path: &str, mode: &str, content: &[u8]) {
        self.say(&format!("write {mode} {} {path}", content.len())).await;
        self.control.write_all(content).await.unwrap();
        assert_eq!(self.line().await.as_deref(), Some("wrote"));
    }

    /// One more socket in the sandbox's `/run/gleaner`.
    pub fn listen(&self, name: &str) -> UnixListener {
        listen(&self.sockets.path().join(name))
    }

    /// Lets the harness run.
    pub async fn go(&mut self) {
        self.say("go").await;
        let line = self.line().await.unwrap();
        assert!(line.starts_with("started "), "{line}");
    }

    /// Waits for the report, without its milliseconds.
    pub async fn exited(&mut self) -> String {
        let line = self.line().await.unwrap();
        let (report, ms) = line.rsplit_once(" ms=").unwrap_or_else(|| panic!("{line}"));
        ms.parse::<u64>().unwrap();
        report.to_owned()
    }

    pub async fn accept(&self) -> UnixStream {
        timeout(LONG, self.model.accept()).await.expect("the harness calls").unwrap().0
    }

    /// Hangs up on the init and waits for the sandbox's end.
    pub async fn hang_up(self, engine: &dyn Engine) -> SandboxEnd {
        drop((self.lines, self.control));
        ended(engine, &self.id).await
    }
}

/// Waits for a sandbox's end.
pub async fn ended(engine: &dyn Engine, id: &SandboxId) -> SandboxEnd {
    let wait = async {
        loop {
            if let Some(end) = engine.ended(id).await.unwrap() {
                return end;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, wait).await.expect("the sandbox ends")
}

fn listen(path: &Path) -> UnixListener {
    let listener = UnixListener::bind(path).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o666)).unwrap();
    listener
}

fn spec(
    engine: &dyn Engine,
    name: String,
    places: &Places,
    harness: &[&str],
    options: &Options,
    [helper, sockets, payload]: [&Path; 3],
) -> SandboxSpec {
    let mount = |host: &Path, usual: &str| Mount { host: host.to_owned(), inside: engine.inside(host, usual), read_only: true };
    let mounts = vec![mount(helper, HELPER), mount(sockets, "/run/gleaner"), mount(payload, "/opt/harness")];
    let socket = |name: &str| format!("{}/{name}", mounts[1].inside);
    let (deadline, grace) = (options.deadline.as_millis().to_string(), options.grace.as_millis().to_string());
    let command = [&mounts[0].inside, "run", "--control", &socket("control.sock"), "--listen", &places.bind]
        .into_iter()
        .chain(["--socket", &socket("model.sock"), "--deadline-ms", &deadline, "--grace-ms", &grace, "--"])
        .chain(harness.iter().copied())
        .map(str::to_owned)
        .collect();
    let (uid, gid) = places.user;
    SandboxSpec {
        name,
        image: options.image.clone(),
        command,
        env: [("HOME".into(), places.home.clone())].into_iter().chain(options.env.iter().cloned()).collect(),
        workdir: options.workdir.clone().unwrap_or_else(|| places.workdir.clone()),
        own_workdir: options.own_workdir,
        user: options.user.clone().unwrap_or_else(|| format!("{uid}:{gid}")),
        mounts,
        tmpfs: vec![
            (places.temp.clone(), "exec,mode=1777,size=256m".into()),
            (places.home.clone(), format!("uid={uid},gid={gid},exec")),
        ],
        limits: options.limits,
        network: options.network,
        powers: Powers::None,
        labels: vec![("gleaner.rollout".into(), "test".into())],
    }
}

/// Runs a command as the sandbox's user.
pub async fn exec(engine: &dyn Engine, id: &SandboxId, command: &[&str]) -> ExecResult {
    engine.exec(id, &exec_spec(command)).await.unwrap()
}

pub fn exec_spec(command: &[&str]) -> ExecSpec {
    ExecSpec {
        command: command.iter().map(|&word| word.to_owned()).collect(),
        env: Vec::new(),
        workdir: None,
        user: None,
        stdin: Bytes::new(),
        timeout: LONG,
        output_limit: 1 << 20,
    }
}

/// An image of the tests' own, made of [`image`].
pub struct Image(pub String);

impl Image {
    pub async fn build(engine: &Docker, steps: &str) -> Self {
        let name = format!("gleaner-test:{}", uuid::Uuid::new_v4().simple());
        let dockerfile = format!("FROM {}\n{steps}\n", image());
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(dockerfile.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, "Dockerfile", dockerfile.as_bytes()).unwrap();
        engine.build(&name, builder.into_inner().unwrap().into(), &|_| {}).await.expect("the image can be built");
        Self(name)
    }

    pub async fn remove(self, engine: &Docker) {
        engine.remove_image(&self.0).await.expect("the image can be removed");
    }
}
