//! Tests that a sandbox holds, before the first run on an engine: a harness that tries to get out (`init probe`) runs in one, while
//! this process listens on every address that it has.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context as _;

use super::catalog::Harness;
use super::driver::{Driver, Prepared, Slot};
use super::spec::Spec;
use super::task::Task;
use super::{HarnessChoice, Order, Stage, Terms};
use crate::engine::ImageFacts;
use crate::ids::{BatchId, ProcessId};
use crate::store::RunOf;

/// How long a test that was passed is believed.
const BELIEVED: Duration = Duration::from_hours(24);
/// The test takes a second; an engine under load takes its time.
const TIME: Duration = Duration::from_mins(2);
/// Where engines and their parts listen.
const ENGINE_SOCKETS: [&str; 6] = [
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/crio/crio.sock",
    "/run/gleaner/control.sock",
];
const PROBE: &str = "name = \"isolation\"\nversion = \"1\"\ndescription = \"tries to get out\"\nwire = \"chat\"\n\
    [payload]\nbuild = \"none\"\nwhere = \"host\"\n[run]\ncommand = [\"/opt/gleaner/init\", \"probe\"]\n";

/// What a sandbox lets through.
#[derive(Debug, thiserror::Error)]
#[error(
    "sandboxes of this engine do not hold, so no harness is run in them. From inside one: {}. Look at the engine's settings, or run \
     without this test: `self_test = false` under [engine]",
    .reached.join("; ")
)]
pub struct Leaks {
    pub reached: Vec<String>,
}

/// Tests it, if it was not tested within a day, in a sandbox of the first image that can be had; without one nothing can run.
///
/// # Errors
/// [`Leaks`] if anything gets out; anything else if the test could not be made.
pub async fn ensure<'a>(stage: &Stage<'_>, helper: &Path, images: impl Iterator<Item = &'a str>) -> anyhow::Result<()> {
    let Some(engine) = stage.engine.isolation().await? else { return Ok(()) };
    let passed = note(&stage.cache, &engine, helper);
    if age(&passed).is_some() {
        return Ok(());
    }
    for image in images {
        // What an image lacks its own rollouts say.
        let Ok(facts) = stage.engine.ensure(image).await else { continue };
        let reached = test(stage, helper, image, facts).await.context("testing that a sandbox holds")?;
        if !reached.is_empty() {
            return Err(Leaks { reached }.into());
        }
        let folder = passed.parent().unwrap_or(&stage.cache);
        let kept = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&passed, &engine));
        kept.unwrap_or_else(
            |error| tracing::warn!(%error, "could not note that sandboxes hold; it is tested again the next time"),
        );
        break;
    }
    Ok(())
}

/// How long ago an engine passed the test, if that is believed still; `engine` is what [`Engine::isolation`] says.
///
/// [`Engine::isolation`]: crate::engine::Engine::isolation
#[must_use]
pub fn passed(cache: &Path, engine: &str, helper: &Path) -> Option<Duration> {
    age(&note(cache, engine, helper))
}

/// The file that says that this engine passed it.
fn note(cache: &Path, engine: &str, helper: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    (engine, helper.file_name()).hash(&mut hasher);
    cache.join("isolation").join(format!("{:016x}", hasher.finish()))
}

fn age(note: &Path) -> Option<Duration> {
    let age = std::fs::metadata(note).and_then(|facts| facts.modified()).ok()?.elapsed().ok()?;
    (age < BELIEVED).then_some(age)
}

/// What a harness reaches that it must not.
async fn test(stage: &Stage<'_>, helper: &Path, image: &str, facts: ImageFacts) -> anyhow::Result<Vec<String>> {
    let bait = Bait::lay()?;
    let folder = Folder::make(&stage.cache)?;
    let order = order(bait.targets())?;
    let prepared = Prepared {
        order: &order,
        image: image.to_owned(),
        facts,
        payload: Some(folder.0.clone()),
        helper: helper.to_owned(),
        group: String::new(),
        timeout: TIME,
        limits: stage.limits,
        terms: Terms::default(),
        unfit: OnceLock::new(),
    };
    let slot = Slot { index: 0, run: RunOf { batch: BatchId::generate(), attempt: 1 } };
    let printed = Driver::new(stage, &prepared, slot).await?.probe().await?;
    let stdout = String::from_utf8_lossy(&printed.stdout);
    let (reached, last): (Vec<&str>, Vec<&str>) = stdout.lines().partition(|line| !line.starts_with("tried "));
    // A probe that broke says nothing of what it did not try.
    if last.is_empty() {
        anyhow::bail!("the probe broke: {}", String::from_utf8_lossy(&printed.stderr).trim());
    }
    let heard = bait.heard().into_iter().map(|what| format!("this process heard it on {what}"));
    Ok(reached.into_iter().map(str::to_owned).chain(heard).collect())
}

fn order(targets: Vec<String>) -> anyhow::Result<Order> {
    let mut spec = Spec::parse("isolation", PROBE)?;
    spec.run.command.extend(targets);
    let harness = Harness { spec: spec.clone(), files: BTreeMap::new(), origin: String::new(), baseline: None };
    let choice = HarnessChoice { harness: spec.name.clone(), wire: None, set: BTreeMap::new() };
    let task = Task::of_prompt("");
    Ok(Order {
        harness,
        spec,
        choice,
        task,
        samples: 1,
        image: None,
        timeout: None,
        max_calls: None,
        max_tokens: None,
        policy: None,
        purpose: None,
    })
}

/// What is open on this machine meanwhile, for the probe to find.
struct Bait {
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
    name: String,
    _hidden: UnixListener,
}

impl Bait {
    fn lay() -> std::io::Result<Self> {
        let name = format!("gleaner-{}", ProcessId::generate());
        let hidden = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let mut bait = Self { tcp: Vec::new(), udp: Vec::new(), name, _hidden: hidden };
        for any in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
            // Some machines have no IPv6.
            if let (Ok(tcp), Ok(udp)) = (TcpListener::bind((any, 0)), UdpSocket::bind((any, 0))) {
                tcp.set_nonblocking(true)?;
                udp.set_nonblocking(true)?;
                bait.tcp.push(tcp);
                bait.udp.push(udp);
            }
        }
        Ok(bait)
    }

    fn targets(&self) -> Vec<String> {
        let mut targets = vec![format!("abstract {}", self.name)];
        targets.extend(ENGINE_SOCKETS.map(|path| format!("unix {path}")));
        let tcp = self.tcp.iter().filter_map(|listener| Some(("tcp", listener.local_addr().ok()?)));
        let udp = self.udp.iter().filter_map(|socket| Some(("udp", socket.local_addr().ok()?)));
        let addresses = own_addresses();
        for (kind, bound) in tcp.chain(udp) {
            let reachable = addresses.iter().filter(|address| address.is_ipv4() == bound.is_ipv4());
            targets.extend(reachable.map(|&address| format!("{kind} {}", std::net::SocketAddr::new(address, bound.port()))));
        }
        targets
    }

    /// Where something came in.
    fn heard(&self) -> Vec<String> {
        let tcp = self.tcp.iter().filter(|listener| listener.accept().is_ok()).filter_map(|listener| listener.local_addr().ok());
        let udp =
            self.udp.iter().filter(|socket| socket.recv(&mut [0; 16]).is_ok()).filter_map(|socket| socket.local_addr().ok());
        tcp.map(|at| format!("tcp {at}")).chain(udp.map(|at| format!("udp {at}"))).collect()
    }
}

/// This machine's own addresses, the loopback's included: whoever shares its network reaches those too.
fn own_addresses() -> Vec<IpAddr> {
    let table = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let six = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let mut found: Vec<IpAddr> = local_v4(&table).map(IpAddr::from).chain(local_v6(&six).map(IpAddr::from)).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Of a routing table: an address, and on the next line that it is the machine's own.
fn local_v4(table: &str) -> impl Iterator<Item = Ipv4Addr> {
    let pairs = table.lines().zip(table.lines().skip(1));
    pairs.filter(|(_, next)| next.contains("/32 host LOCAL")).filter_map(|(line, _)| line.rsplit(' ').next()?.parse().ok())
}

/// Addresses that hold without naming an interface.
fn local_v6(table: &str) -> impl Iterator<Item = Ipv6Addr> {
    let addresses = table.lines().filter_map(|line| u128::from_str_radix(line.split_whitespace().next()?, 16).ok());
    addresses.map(Ipv6Addr::from).filter(|address| !address.is_unicast_link_local())
}

/// An empty folder that stands for a payload; writable for everybody, so that only the mount protects it.
struct Folder(PathBuf);

impl Folder {
    fn make(cache: &Path) -> std::io::Result<Self> {
        let path = cache.join(format!("isolation-{}", ProcessId::generate()));
        std::fs::create_dir_all(&path)?;
        let folder = Self(path);
        std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o777))?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_read_from_the_kernels_tables() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.0.0\n        /24 link UNICAST\n     |-- 10.0.0.7\n        /32 host LOCAL\n";
        assert_eq!(local_v4(table).collect::<Vec<_>>(), [Ipv4Addr::new(10, 0, 0, 7)]);
        let table =
            "00000000000000000000000000000001 01 80 10 80       lo\nfe80000000000000042acefffe0b0001 03 40 20 80  docker0\n";
        assert_eq!(local_v6(table).collect::<Vec<_>>(), [Ipv6Addr::LOCALHOST]);
        assert!(own_addresses().contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }

    #[test]
    fn the_bait_is_on_every_address_and_hears() {
        let bait = Bait::lay().unwrap();
        let targets = bait.targets();
        let tcp = targets.iter().find_map(|target| target.strip_prefix("tcp 127.0.0.1:")).unwrap();
        let udp = targets.iter().find_map(|target| target.strip_prefix("udp 127.0.0.1:")).unwrap();
        assert!(bait.heard().is_empty());
        std::net::TcpStream::connect(("127.0.0.1", tcp.parse().unwrap())).unwrap();
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"?", ("127.0.0.1", udp.parse().unwrap())).unwrap();
        assert_eq!(bait.heard(), [format!("tcp 0.0.0.0:{tcp}"), format!("udp 0.0.0.0:{udp}")]);
    }
}
