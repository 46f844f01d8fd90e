//! `init probe`: a harness that tries to get out of its sandbox, and says what it reached.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

use crate::{sys, usage};

/// Whoever answers at all is near.
const PATIENCE: Duration = Duration::from_millis(700);
/// Reserved for examples: whatever answered there would be something that takes all traffic.
const NOWHERE: &str = "192.0.2.1:80";
/// Where clouds tell machines their secrets.
const METADATA: &str = "169.254.169.254:80";
/// What a sandbox sees and may not write to.
const READ_ONLY: [&str; 6] = ["/opt/harness", "/opt/gleaner", "/run/gleaner", "/proc/sys/kernel", "/sys", "/sys/fs/cgroup"];

/// Tries the targets that the host names (`tcp ADDR`, `udp ADDR`, `unix PATH`, `abstract NAME`), and what any sandbox can try by itself.
/// Prints a line for each thing that got out, and how many were tried.
pub fn probe(targets: &[&str]) -> io::Result<()> {
    let mut tried = 0;
    let mut found = Vec::new();
    let mut check = |what: String, out: bool| {
        tried += 1;
        if out {
            found.push(what);
        }
    };
    for target in targets {
        let Some((kind, at)) = target.split_once(' ') else { usage() };
        let out = match kind {
            "tcp" => tcp(at),
            "udp" => udp(at, b"?"),
            "unix" => UnixStream::connect(at).is_ok(),
            "abstract" => UnixAddr::from_abstract_name(at).and_then(|at| UnixStream::connect_addr(&at)).is_ok(),
            _ => usage(),
        };
        check(format!("{kind} {at} answers"), out);
    }
    for at in gateways().into_iter().map(|gateway| format!("{gateway}:80")).chain([METADATA, NOWHERE].map(str::to_owned)) {
        check(format!("tcp {at} answers"), tcp(&at));
    }
    for server in name_servers() {
        check(format!("the name server {server} answers"), udp(&format!("{server}:53"), QUESTION));
    }
    check(format!("it has network interfaces: {}", interfaces().join(" ")), interfaces() != ["lo"]);
    for folder in READ_ONLY {
        check(format!("{folder} can be written to"), can_write(Path::new(folder)));
    }
    powers(&mut check);
    for line in &found {
        println!("{line}");
    }
    println!("tried {tried}");
    Ok(())
}

/// Whether anything is there: a refusal is an answer too, but of the own loopback.
fn tcp(at: &str) -> bool {
    let Ok(at) = at.parse::<SocketAddr>() else { usage() };
    match TcpStream::connect_timeout(&at, PATIENCE) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionRefused && !at.ip().is_loopback(),
    }
}

fn udp(at: &str, question: &[u8]) -> bool {
    let Ok(at) = at.parse::<SocketAddr>() else { return false };
    let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let ask = || -> io::Result<usize> {
        let socket = UdpSocket::bind(any)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect(at)?;
        socket.send(question)?;
        socket.recv(&mut [0; 512])
    };
    match ask() {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionRefused && !at.ip().is_loopback(),
    }
}

/// The address of `gleaner.invalid`, a name that is reserved: a server that answers at all says that there is none.
const QUESTION: &[u8] = b"\x47\x4c\x01\0\0\x01\0\0\0\0\0\0\x07gleaner\x07invalid\0\0\x01\0\x01";

fn name_servers() -> Vec<String> {
    let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let named = text.lines().filter_map(|line| line.strip_prefix("nameserver ")).map(|at| at.trim().to_owned());
    // The engine's own, in networks that people make.
    named.chain(["127.0.0.11".to_owned()]).filter(|at| at.parse::<IpAddr>().is_ok_and(|at| at.is_ipv4())).collect()
}

/// Where the routing table leads by default: the host.
fn gateways() -> Vec<Ipv4Addr> {
    let table = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let gateway = |line: &str| {
        let number = u32::from_str_radix(line.split_whitespace().nth(2)?, 16).ok()?;
        (number != 0).then(|| Ipv4Addr::from(number.to_ne_bytes()))
    };
    table.lines().skip(1).filter_map(gateway).collect()
}

fn interfaces() -> Vec<String> {
    let table = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let mut names: Vec<String> =
        table.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim().to_owned()).collect();
    // Some kernels put an end of every kind of tunnel into every network; one that is down reaches nothing.
    names.retain(|name| name == "lo" || !is_down(name));
    names.sort();
    names
}

fn is_down(name: &str) -> bool {
    fs::read_to_string(format!("/sys/class/net/{name}/operstate")).is_ok_and(|state| state.trim() == "down")
}

fn can_write(folder: &Path) -> bool {
    let path = folder.join("gleaner-probe");
    let written = OpenOptions::new().write(true).create_new(true).open(&path).is_ok();
    if written {
        let _ = fs::remove_file(&path);
    }
    written
}

/// What only root's powers can do, and what only they can see.
fn powers(check: &mut dyn FnMut(String, bool)) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("missing").trim().to_owned();
    for name in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        let held = field(name);
        check(format!("it holds capabilities: {name} {held}"), held.trim_matches('0') != "");
    }
    check("it can have new privileges".to_owned(), field("NoNewPrivs:") != "1");
    check("its system calls are not filtered".to_owned(), field("Seccomp:") != "2");
    // SAFETY: plain system calls; the strings are static and end with a zero, the pointers to nothing are allowed.
    unsafe {
        // As root it is root already, without powers.
        let became = sys::getuid() != 0 && sys::setuid(0) == 0;
        check("it can become root".to_owned(), became);
        check("it can make devices".to_owned(), sys::mknod(c"/tmp/gleaner-device".as_ptr(), sys::S_IFCHR, 0x0101) == 0);
        let none = std::ptr::null();
        check("it can mount".to_owned(), sys::mount(c"none".as_ptr(), c"/tmp".as_ptr(), c"tmpfs".as_ptr(), 0, none) == 0);
        check("it can have namespaces of its own".to_owned(), sys::unshare(sys::CLONE_NEWNS) == 0);
        check("it can trace its init".to_owned(), sys::ptrace(sys::PTRACE_ATTACH, 1, 0, 0) == 0);
    }
    check("it can read its init's environment".to_owned(), reads(Path::new("/proc/1/environ")));
    check("it can read its init's memory".to_owned(), File::open("/proc/1/mem").is_ok());
    for device in ["/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/kvm"] {
        check(format!("it can open {device}"), File::open(device).is_ok());
    }
}

fn reads(path: &Path) -> bool {
    File::open(path).and_then(|mut file| file.read(&mut [0; 1])).is_ok()
}
