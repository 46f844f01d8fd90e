//! The closed-loop loader: so many connections on one thread, each with one call at a time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;

use super::scenario::Scenario;
use super::wire;

/// What was seen of one target.
#[derive(Debug, Default)]
pub struct Load {
    /// Calls begun in all, warm-up included.
    pub sent: usize,
    pub failed: usize,
    /// Calls that ended within the measured time, per second.
    pub per_second: f64,
    /// Milliseconds to a reply's first and last byte, sorted.
    pub first_ms: Vec<f64>,
    pub total_ms: Vec<f64>,
    /// Some of the calls, by the ids that Gleaner gave them.
    pub call_ids: Vec<String>,
    pub cpu_us: Option<f64>,
    pub resident_kb: u64,
}

/// One call.
struct Called {
    begun: Instant,
    ended: Instant,
    first_ms: f64,
    whole: bool,
    id: Option<String>,
}

/// Loads `addr` for as long as the scenario says.
pub fn run(scenario: &Scenario, addr: SocketAddr, key: Option<&str>, quick: bool) -> Load {
    let (warm_up, time) = scenario.times(key.is_none(), quick);
    let begin = Instant::now() + warm_up;
    let end = begin + time;
    // The mock, asked without Gleaner, speaks chat completions only.
    let wire = if key.is_some() { scenario.wire } else { &wire::CHAT };
    let job = Job {
        path: wire.path(scenario.stream),
        tail: wire.end,
        addr,
        host: addr.to_string(),
        authorization: format!("Bearer {}", key.unwrap_or("none")),
        body: Bytes::from(scenario.body(wire)),
        stream: scenario.stream,
        end,
    };
    let (give, given) = mpsc::channel();
    let clients = scenario.clients;
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let job = Arc::new(job);
            let mut tasks = JoinSet::new();
            for _ in 0..clients {
                tasks.spawn(client(Arc::clone(&job), give.clone()));
            }
            tasks.join_all().await;
        });
    });
    thread.join().unwrap();
    let mut load = Load::default();
    let (mut in_time, mut last_id) = (0, None);
    for called in given.try_iter() {
        load.sent += 1;
        if !called.whole {
            load.failed += 1;
            continue;
        }
        in_time += usize::from(called.ended >= begin && called.ended <= end);
        if called.begun >= begin {
            load.first_ms.push(called.first_ms);
            load.total_ms.push((called.ended - called.begun).as_secs_f64() * 1e3);
        }
        // Some from all over the run: its beginning, and ever rarer.
        if load.sent.is_power_of_two() {
            load.call_ids.extend(called.id);
        } else {
            last_id = called.id;
        }
    }
    load.call_ids.extend(last_id);
    load.per_second = in_time as f64 / time.as_secs_f64();
    load.first_ms.sort_by(f64::total_cmp);
    load.total_ms.sort_by(f64::total_cmp);
    load
}

struct Job {
    path: &'static str,
    tail: &'static [u8],
    addr: SocketAddr,
    host: String,
    authorization: String,
    body: Bytes,
    stream: bool,
    end: Instant,
}

async fn client(job: Arc<Job>, give: mpsc::Sender<Called>) {
    let mut connections = JoinSet::new();
    let mut sender = connect(&job, &mut connections).await;
    while Instant::now() < job.end {
        let begun = Instant::now();
        let called = match call(&job, &mut sender, begun).await {
            Ok(called) => called,
            Err(_) => Called { begun, ended: Instant::now(), first_ms: 0.0, whole: false, id: None },
        };
        if sender.is_closed() {
            sender = connect(&job, &mut connections).await;
        }
        give.send(called).unwrap();
    }
}

async fn connect(job: &Job, connections: &mut JoinSet<()>) -> SendRequest<Full<Bytes>> {
    let stream = tokio::net::TcpStream::connect(job.addr).await.expect("the target does not listen");
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    connections.spawn(async {
        let _ = connection.await;
    });
    sender
}

async fn call(job: &Job, sender: &mut SendRequest<Full<Bytes>>, begun: Instant) -> hyper::Result<Called> {
    sender.ready().await?;
    let request = Request::post(job.path)
        .header("host", &job.host)
        .header("content-type", "application/json")
        .header("authorization", &job.authorization)
        .body(Full::new(job.body.clone()))
        .unwrap();
    let response = sender.send_request(request).await?;
    let ok = response.status() == 200;
    let id = response.headers().get("x-gleaner-call").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let mut body = response.into_body();
    let (mut first_ms, mut length, mut tail) = (None, 0, Vec::new());
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            first_ms.get_or_insert_with(|| begun.elapsed().as_secs_f64() * 1e3);
            length += data.len();
            if job.stream {
                tail.extend_from_slice(&data[data.len().saturating_sub(32)..]);
                tail.drain(..tail.len().saturating_sub(32));
            }
        }
    }
    let whole = ok && length > 500 && (!job.stream || tail.ends_with(job.tail));
    Ok(Called { begun, ended: Instant::now(), first_ms: first_ms.unwrap_or_default(), whole, id })
}
