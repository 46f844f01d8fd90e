//! From inside a rollout's sandbox nothing answers but the model endpoint: no host, port, peer, socket or name. That the
//! same probes do succeed from Docker's default bridge shows that they would notice.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod sandbox;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    CreateContainerOptions, LogsOptionsBuilder, RemoveContainerOptionsBuilder, StartContainerOptions,
};
use bytes::Bytes;
use futures::TryStreamExt;
use gleaner::engine::{
    Docker, Engine, EngineConfig, EngineError, ExecResult, ExecSpec, Finding, ImageFacts, Limits, Network, Places, SandboxEnd,
    SandboxId, SandboxSpec, Tell,
};
use gleaner::harness::isolation::{self, Leaks};
use gleaner::harness::run::Cap;
use gleaner::harness::{ModelEndpoint, RolloutConfig, Served, Stage, Terms, helper};
use gleaner::ids::RolloutId;
use gleaner::store::{Finish, NewRollout, Reward, Rollout};
use sandbox::{LONG, Options, Sandbox, engine, image};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Tries each target: whether it gave a byte (or an address, for a name), and how many seconds that took.
const PROBE: &str = r"
import json, socket, sys, time
def tcp(host, port): s = socket.create_connection((host, int(port)), 5); s.settimeout(5); return s.recv(1)
def udp(host, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); s.connect((host, int(port))); s.send(b'?'); return s.recv(1)
def unix(path): s = socket.socket(socket.AF_UNIX); s.settimeout(5); s.connect(path.replace('@', '\0')); return s.recv(1) if '@' in path else b'!'
def name(host): return socket.getaddrinfo(host, 80)
def probe(target):
    kind, *rest = target.split(' ')
    started = time.monotonic()
    try: reached = bool(globals()[kind](*rest))
    except OSError: reached = False
    return [reached, time.monotonic() - started]
print(json.dumps({target: probe(target) for target in sys.argv[1:]}), flush=True)
";

/// What the kernel says of a process in the sandbox, and what it may not do.
const FACTS: &str = r"
import glob, json, os, threading
status = dict(line.split(':\t') for line in open('/proc/self/status').read().splitlines() if ':\t' in line)
def refused(path):
    try: open(path, 'w').close(); return False
    except OSError: return True
def limit(*names):
    return next(open('/sys/fs/cgroup/' + name).read().strip() for name in names if os.path.exists('/sys/fs/cgroup/' + name))
def threads():
    stop, made = threading.Event(), []
    try:
        while len(made) < 1000: made.append(threading.Thread(target=stop.wait)); made[-1].start()
    except RuntimeError: made.pop()
    stop.set()
    return len(made) < int(limit('pids/pids.max', 'pids.max'))
print(json.dumps({
    'capabilities': [int(status[name], 16) for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')],
    'no_new_privs': status['NoNewPrivs'], 'seccomp': status['Seccomp'], 'uid': os.getuid(), 'gid': os.getgid(), 'groups': [g for g in os.getgroups() if g != os.getgid()],
    'refused': [refused(path) for path in ('/opt/harness/x', '/opt/gleaner/init', '/run/gleaner/x', '/etc/x', '/proc/sys/kernel/hostname')],
    'sockets': os.listdir('/run/gleaner'), 'interfaces': os.listdir('/sys/class/net'), 'host': os.uname().nodename,
    'memory': limit('memory/memory.limit_in_bytes', 'memory.max'), 'pids': limit('pids/pids.max', 'pids.max'), 'threads_bounded': threads(),
    'devices': [path for path in glob.glob('/dev/*') if os.access(path, os.W_OK) and os.path.basename(path)[:2] in ('sd', 'vd', 'kv', 'me')],
}), flush=True)
";

#[tokio::test]
async fn nothing_answers_but_the_model_endpoint() {
    let engine = engine().await;
    let token = uuid::Uuid::new_v4().simple().to_string();
    let everywhere = greet(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap());
    let loopback = greet(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let hidden = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&token).unwrap()).unwrap();
    std::thread::spawn(move || while hidden.accept().is_ok_and(|(mut stream, _)| stream.write_all(b"!").is_ok()) {});
    let peer = Bridged::start(&engine, &["python3", "-c", PEER]).await;
    let other = Sandbox::start(&engine, &["sleep", "1000"], Options::default()).await;

    let hosts = host_addresses();
    let echoes: Vec<String> =
        hosts.iter().chain([&Ipv4Addr::LOCALHOST]).map(|&host| format!("udp {host} {}", echo(host))).collect();
    assert!(!hosts.is_empty(), "this machine has no address but its loopback: nothing to try");
    let mut reachable: Vec<String> = hosts.iter().map(|host| format!("tcp {host} {everywhere}")).collect();
    reachable.extend(echoes[..hosts.len()].iter().cloned());
    reachable.push(format!("tcp {} 9000", peer.address));
    let mut unreachable = reachable.clone();
    unreachable.extend(hosts.iter().chain([&Ipv4Addr::LOCALHOST]).map(|host| format!("tcp {host} {loopback}")));
    unreachable.extend([format!("tcp 127.0.0.1 {everywhere}"), echoes[hosts.len()].clone(), format!("unix @{token}")]);
    unreachable.extend([
        "unix /var/run/docker.sock".into(),
        "unix /run/docker.sock".into(),
        "unix /run/gleaner/control.sock".into(),
    ]);
    unreachable.push(format!("unix {}", other.sockets.path().join("model.sock").display()));
    // Reserved names and addresses: whatever answered would be wrong, and nobody outside is asked.
    unreachable.extend(
        ["name gleaner.invalid", "name host.docker.internal", "tcp 192.0.2.1 80", "tcp 169.254.169.254 80"].map(Into::into),
    );

    // The name servers that the engine gave it, too.
    let resolvers = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    unreachable
        .extend(resolvers.lines().filter_map(|line| line.strip_prefix("nameserver ")).map(|at| format!("tcp {} 53", at.trim())));

    // The probes see what there is to see: from this host, and from a container on the default bridge.
    std::os::unix::net::UnixStream::connect_addr(&SocketAddr::from_abstract_name(&token).unwrap()).unwrap();
    std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, loopback)).unwrap();
    let words: Vec<&str> = ["python3", "-c", PROBE].into_iter().chain(reachable.iter().map(String::as_str)).collect();
    let bridged = Bridged::start(&engine, &words).await;
    let seen: BTreeMap<String, (bool, f64)> = serde_json::from_str(&bridged.output().await).unwrap();
    let missed: Vec<_> = seen.iter().filter(|(_, (reached, _))| !reached).collect();
    assert!(missed.is_empty() && seen.len() == reachable.len(), "the probes fail where they must not: {seen:?}");

    let endpoint = "tcp 127.0.0.1 8080".to_owned();
    let words: Vec<&str> =
        ["python3", "-c", PROBE].into_iter().chain(unreachable.iter().chain([&endpoint]).map(String::as_str)).collect();
    let mut one = Sandbox::start(&engine, &words, Options::default()).await;
    one.go().await;
    one.accept().await.write_all(b"!").await.unwrap();
    let mut seen: BTreeMap<String, (bool, f64)> = serde_json::from_value(report(&engine, one).await).unwrap();
    assert!(seen.remove(&endpoint).unwrap().0, "what the harness needs answers");
    let wrong: Vec<_> = seen.iter().filter(|(_, (reached, seconds))| *reached || *seconds > 1.0).collect();
    assert!(wrong.is_empty() && seen.len() == unreachable.len(), "reached, or slow to fail: {wrong:?}");

    engine.remove(&other.id).await.unwrap();
    peer.remove().await;
    bridged.remove().await;
}

#[tokio::test]
async fn a_harness_has_no_powers() {
    let engine = engine().await;
    let limits = Limits { cpus: 1.0, memory_bytes: 256 << 20, pids: 64, disk_bytes: None };
    let mut one = Sandbox::start(&engine, &["python3", "-c", FACTS], Options { limits, ..Options::default() }).await;
    one.go().await;
    let expected = json!({
        "capabilities": [0, 0, 0, 0, 0], "no_new_privs": "1", "seccomp": "2", "uid": 1000, "gid": 1000, "groups": [],
        "refused": [true, true, true, true, true],
        "sockets": ["model.sock"], "interfaces": ["lo"], "host": "sandbox",
        "memory": (256 << 20).to_string(), "pids": "64", "threads_bounded": true, "devices": [],
    });
    assert_eq!(report(&engine, one).await, expected);
}

/// Before its first run an engine is tested: one whose sandboxes have a network runs nothing, and what got out is named. Ours is
/// tested once a day.
#[tokio::test]
async fn an_engine_that_does_not_hold_runs_nothing() {
    let cache = tempfile::tempdir().unwrap();
    let holds = Leaky { docker: engine().await, network: Network::None, created: AtomicUsize::new(0) };
    let leaks = Leaky { docker: engine().await, network: Network::Outside, created: AtomicUsize::new(0) };
    let error = tested(&leaks, cache.path()).await.unwrap_err();
    let reached = &error.downcast_ref::<Leaks>().unwrap_or_else(|| panic!("{error:#}")).reached;
    let gateway = host_addresses();
    for sign in ["it has network interfaces: eth0 lo".to_owned(), "this process heard it on tcp 0.0.0.0:".to_owned()]
        .into_iter()
        .chain(gateway.iter().map(|host| format!("tcp {host}:")))
    {
        assert!(reached.iter().any(|line| line.starts_with(&sign)), "{sign} is not in {reached:#?}");
    }
    let said = error.to_string();
    assert!(said.contains("no harness is run in them") && said.contains("self_test = false"), "{said}");
    assert_eq!(leaks.created.load(Relaxed), 1, "the probe alone");
    tested(&holds, cache.path()).await.unwrap();
    assert_eq!(holds.created.load(Relaxed), 1, "what failed is not believed");
    tested(&holds, cache.path()).await.unwrap();
    assert_eq!(holds.created.load(Relaxed), 1, "what was passed is");
    let left: Vec<_> = std::fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("isolation-")), "{left:?}");
}

async fn tested(engine: &Leaky, cache: &std::path::Path) -> anyhow::Result<()> {
    let stage = Stage {
        engine,
        endpoint: &Nobody,
        cache: cache.to_owned(),
        artifacts: cache.join("artifacts"),
        image: image(),
        limits: EngineConfig::default().limits(),
        config: RolloutConfig::default(),
        room: Arc::new(Semaphore::new(1)),
        cancel: CancellationToken::new(),
        progress: &|_| {},
    };
    let images = ["gleaner.invalid/no-such:image".to_owned(), image()];
    isolation::ensure(&stage, &helper::install(cache)?, images.iter().map(String::as_str)).await
}

/// Nobody who serves a model.
struct Nobody;

#[async_trait]
impl ModelEndpoint for Nobody {
    async fn open(&self, _: NewRollout, _: &Terms, _: &std::path::Path) -> anyhow::Result<()> {
        anyhow::bail!("no rollout may begin")
    }
    async fn capped(&self, _: RolloutId) -> Cap {
        std::future::pending().await
    }
    async fn paused(&self, _: RolloutId, _: bool) -> bool {
        std::future::pending().await
    }
    fn turns(&self, _: RolloutId) -> u64 {
        0
    }
    async fn window(&self, _: Option<&str>) -> Option<u64> {
        None
    }
    async fn seal(&self, _: RolloutId) -> Served {
        Served::default()
    }
    async fn reward(&self, _: Reward) -> anyhow::Result<()> {
        Ok(())
    }
    async fn close(&self, _: Finish) -> anyhow::Result<Rollout> {
        anyhow::bail!("no rollout may begin")
    }
    async fn drift(&self, _: RolloutId) -> anyhow::Result<u64> {
        Ok(0)
    }
}

/// Docker, with the network that sandboxes get chosen here.
struct Leaky {
    docker: Docker,
    network: Network,
    created: AtomicUsize,
}

#[async_trait]
impl Engine for Leaky {
    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxId, EngineError> {
        self.created.fetch_add(1, Relaxed);
        self.docker.create(&SandboxSpec { network: self.network, ..spec.clone() }).await
    }
    fn describe(&self) -> String {
        self.docker.describe()
    }
    fn isolates(&self) -> bool {
        self.docker.isolates()
    }
    async fn look(&self) -> Vec<Finding> {
        self.docker.look().await
    }
    async fn isolation(&self) -> Result<Option<String>, EngineError> {
        self.docker.isolation().await
    }
    async fn ready(&self) -> Result<(), EngineError> {
        self.docker.ready().await
    }
    async fn image(&self, name: &str) -> Result<Option<ImageFacts>, EngineError> {
        self.docker.image(name).await
    }
    async fn ensure(&self, name: &str) -> Result<ImageFacts, EngineError> {
        self.docker.ensure(name).await
    }
    async fn build(&self, name: &str, context: Bytes, tell: Tell<'_>) -> Result<(), EngineError> {
        self.docker.build(name, context, tell).await
    }
    async fn snapshot(&self, sandbox: &SandboxId) -> Result<String, EngineError> {
        self.docker.snapshot(sandbox).await
    }
    async fn remove_image(&self, name: &str) -> Result<(), EngineError> {
        self.docker.remove_image(name).await
    }
    async fn places(&self, name: &str) -> Result<Places, EngineError> {
        self.docker.places(name).await
    }
    fn inside(&self, host: &std::path::Path, usual: &str) -> String {
        self.docker.inside(host, usual)
    }
    async fn start(&self, sandbox: &SandboxId) -> Result<(), EngineError> {
        self.docker.start(sandbox).await
    }
    async fn exec(&self, sandbox: &SandboxId, command: &ExecSpec) -> Result<ExecResult, EngineError> {
        self.docker.exec(sandbox, command).await
    }
    async fn copy_in(&self, sandbox: &SandboxId, folder: &str, tar: Bytes) -> Result<(), EngineError> {
        self.docker.copy_in(sandbox, folder, tar).await
    }
    async fn copy_out(&self, sandbox: &SandboxId, path: &str) -> Result<Bytes, EngineError> {
        self.docker.copy_out(sandbox, path).await
    }
    async fn copy_out_to(&self, sandbox: &SandboxId, path: &str, file: &std::path::Path, limit: u64) -> Result<u64, EngineError> {
        self.docker.copy_out_to(sandbox, path, file, limit).await
    }
    async fn logs(&self, sandbox: &SandboxId) -> Result<(Bytes, Bytes), EngineError> {
        self.docker.logs(sandbox).await
    }
    async fn disk_used(&self, sandbox: &SandboxId) -> Result<Option<u64>, EngineError> {
        self.docker.disk_used(sandbox).await
    }
    async fn ended(&self, sandbox: &SandboxId) -> Result<Option<SandboxEnd>, EngineError> {
        self.docker.ended(sandbox).await
    }
    async fn remove(&self, sandbox: &SandboxId) -> Result<(), EngineError> {
        self.docker.remove(sandbox).await
    }
    async fn sweep(&self) -> Result<usize, EngineError> {
        self.docker.sweep().await
    }
}

/// What the harness printed, once the sandbox has ended: only then has the engine all of it.
async fn report(engine: &Docker, mut one: Sandbox) -> Value {
    let id = one.id.clone();
    let exited = one.exited().await;
    one.hang_up(engine).await;
    let (stdout, stderr) = engine.logs(&id).await.unwrap();
    assert_eq!(exited, "exited code=0 signal=0 timed_out=0", "{stderr:?}");
    engine.remove(&id).await.unwrap();
    serde_json::from_slice(&stdout).unwrap()
}

/// Answers everybody with a byte; gives the port.
fn greet(listener: TcpListener) -> u16 {
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(b"!");
        }
    });
    port
}

/// Sends a byte back to everybody; gives the port.
fn echo(host: Ipv4Addr) -> u16 {
    let socket = UdpSocket::bind((host, 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 16]) {
            let _ = socket.send_to(b"!", from);
        }
    });
    port
}

/// This machine's own IPv4 addresses but the loopback's, as its routing table has them; the bridge's gateway is one.
fn host_addresses() -> Vec<Ipv4Addr> {
    let table = std::fs::read_to_string("/proc/net/fib_trie").unwrap();
    let lines: Vec<&str> = table.lines().collect();
    let local = lines.windows(2).filter(|pair| pair[1].contains("/32 host LOCAL"));
    let mut found: Vec<Ipv4Addr> = local.filter_map(|pair| pair[0].rsplit(' ').next()?.parse().ok()).collect();
    found.sort_unstable();
    found.dedup();
    found.retain(|address| !address.is_loopback());
    found
}

const PEER: &str = "import socket
s = socket.create_server(('', 9000)); print('up', flush=True)
while True: s.accept()[0].sendall(b'!')";

/// A plain container on the default bridge.
struct Bridged {
    api: bollard::Docker,
    id: String,
    address: String,
}

impl Bridged {
    async fn start(engine: &Docker, command: &[&str]) -> Self {
        engine.ready().await.unwrap();
        let api = bollard::Docker::connect_with_defaults().unwrap().negotiate_version().await.unwrap();
        let process = format!("test-{}", std::process::id());
        let body = ContainerCreateBody {
            image: Some(image()),
            cmd: Some(command.iter().map(|&word| word.to_owned()).collect()),
            labels: Some([("gleaner".into(), "test".into()), ("gleaner.process".into(), process)].into()),
            ..ContainerCreateBody::default()
        };
        let id = api.create_container(None::<CreateContainerOptions>, body).await.unwrap().id;
        api.start_container(&id, None::<StartContainerOptions>).await.unwrap();
        let facts = api.inspect_container(&id, None).await.unwrap();
        let networks = facts.network_settings.and_then(|settings| settings.networks).unwrap_or_default();
        let address = networks.get("bridge").and_then(|bridge| bridge.ip_address.clone()).unwrap_or_default();
        let one = Self { api, id, address };
        timeout(LONG, async {
            while one.logs().await.is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
        .expect("it prints something");
        one
    }

    async fn logs(&self) -> String {
        let options = LogsOptionsBuilder::new().stdout(true).stderr(true).build();
        let lines: Vec<_> = self.api.logs(&self.id, Some(options)).try_collect().await.unwrap();
        lines.iter().map(ToString::to_string).collect()
    }

    /// What it has printed when it ended by itself.
    async fn output(&self) -> String {
        let _: Vec<_> = timeout(LONG, self.api.wait_container(&self.id, None).try_collect()).await.unwrap().unwrap();
        self.logs().await
    }

    async fn remove(self) {
        let options = RemoveContainerOptionsBuilder::new().force(true).build();
        self.api.remove_container(&self.id, Some(options)).await.unwrap();
    }
}
