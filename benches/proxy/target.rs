//! What stands between loader and mock: Gleaner with a fresh store, or nginx.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A running `gleaner serve`.
pub struct Gleaner {
    pub addr: SocketAddr,
    /// The key of the rollout that all calls belong to.
    pub key: String,
    child: Child,
    dir: TempDir,
}

impl Gleaner {
    /// Starts it with a fresh store and makes a rollout.
    pub fn start(policy: SocketAddr) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(dir.path().join("stderr.log")).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_gleaner"))
            .args(["serve", "--listen", "127.0.0.1:0", "--policy", &format!("http://{policy}"), "--database"])
            .arg(dir.path().join("gleaner.db"))
            .env("HOME", dir.path())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut gleaner = Self { addr: SocketAddr::from(([127, 0, 0, 1], 0)), key: String::new(), child, dir };
        let addr = line.trim().strip_prefix("listening on http://").and_then(|addr| addr.parse().ok());
        gleaner.addr = addr.unwrap_or_else(|| panic!("gleaner did not start: {}", gleaner.log()));
        let made = gleaner.api("POST", "/api/v1/rollouts", "{\"task_id\":\"bench\"}");
        made["key"].as_str().unwrap_or_else(|| panic!("no rollout: {made}")).clone_into(&mut gleaner.key);
        gleaner
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Every one of these calls is recorded whole, at capture level `full`.
    pub fn assert_recorded(&self, calls: &[String]) {
        assert!(!calls.is_empty(), "no answer named its call: {}", self.log());
        for id in calls {
            let record = self.api("GET", &format!("/api/v1/calls/{id}"), "");
            assert_eq!((&record["status"], &record["capture"]["level"]), (&"done".into(), &"full".into()), "call {id}: {record}");
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("stderr.log")).unwrap_or_default()
    }

    fn api(&self, method: &str, path: &str, body: &str) -> Value {
        let mut stream = TcpStream::connect(self.addr).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.addr,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        // A chunked body has its sizes around the JSON; the JSON is one object.
        let json = body.find('{').zip(body.rfind('}')).map_or("", |(from, to)| &body[from..=to]);
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{error} in the answer to {path}: {answer}"))
    }
}

impl Drop for Gleaner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running nginx with two workers and kept connections.
pub struct Nginx {
    pub addr: SocketAddr,
    child: Child,
    _dir: TempDir,
}

/// Tells whether there is one to run.
pub fn nginx_is_installed() -> bool {
    Command::new("nginx").arg("-v").stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

impl Nginx {
    /// Starts it before this server.
    pub fn start(policy: SocketAddr) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = format!(
            "worker_processes 2; pid {path}/pid; error_log {path}/error.log;\nevents {{ worker_connections 4096; }}\n\
             http {{ access_log off; client_body_temp_path {path}/body; proxy_temp_path {path}/proxy; client_body_buffer_size 1m;\n\
             client_max_body_size 64m; keepalive_requests 10000000; fastcgi_temp_path {path}/f; uwsgi_temp_path {path}/u; scgi_temp_path {path}/s;\n\
             upstream policy {{ server {policy}; keepalive 512; keepalive_requests 10000000; }}\n\
             server {{ listen {addr} backlog=4096; location / {{ proxy_pass http://policy; proxy_http_version 1.1;\n\
             proxy_set_header Connection \"\"; proxy_buffering off; }} }} }}\n",
            path = dir.path().display()
        );
        let path = dir.path().join("nginx.conf");
        std::fs::write(&path, config).unwrap();
        let child = Command::new("nginx").arg("-c").arg(&path).args(["-g", "daemon off;"]).stderr(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        while TcpStream::connect(addr).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(5), "nginx did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { addr, child, _dir: dir }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The master ends its workers when it is asked to; killed, it would leave them.
        let ended = Command::new("sh").args(["-c", &format!("kill -TERM {}", self.child.id())]).status();
        if !ended.is_ok_and(|status| status.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// CPU time of a process so far, in microseconds.
pub fn cpu_us(pid: u32) -> f64 {
    const TICK_US: f64 = 10_000.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or_default();
    (ticks(11) + ticks(12)) * TICK_US
}

/// The most memory that a process has had, in kilobytes.
pub fn resident_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).unwrap_or_default()
}
