//! What the tests of this layer share: a plain call, and a server that answers with bytes written by hand.

use std::sync::Arc;
use std::sync::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::call::{Call, Message, Role, Text};

pub(super) fn call() -> Call {
    Call {
        model: "asked".to_owned(),
        stream: true,
        messages: vec![Message::text(Role::User, Text::new("hi"))],
        ..Call::new("chat")
    }
}

/// Answers each request, on a connection of its own, with what `answer` gives for its path and body, byte for byte, then
/// closes the connection.
pub(super) struct Stub {
    pub url: String,
    /// Path and body of each request, in order.
    pub seen: Arc<Mutex<Vec<(String, String)>>>,
    task: AbortHandle,
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stub {
    pub(super) async fn start(answer: impl Fn(&str, &str, usize) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        let log = seen.clone();
        let answer = Arc::new(answer);
        let task = tokio::task::JoinSet::spawn(&mut tasks, async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(stream, log.clone(), answer.clone()));
            }
        });
        tasks.detach_all();
        Self { url, seen, task }
    }

    /// How often a path was asked for.
    pub(super) fn count(&self, path: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|(seen, _)| seen == path).count()
    }
}

async fn serve(
    mut stream: TcpStream,
    log: Arc<Mutex<Vec<(String, String)>>>,
    answer: Arc<impl Fn(&str, &str, usize) -> Vec<u8> + Send + Sync + 'static>,
) {
    let mut bytes = Vec::new();
    let (head, length) = loop {
        let mut buffer = [0; 4096];
        let n = stream.read(&mut buffer).await.unwrap();
        if n == 0 {
            return;
        }
        bytes.extend_from_slice(&buffer[..n]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned));
            break (head.to_owned(), length.map_or(0, |length| length.parse::<usize>().unwrap()));
        }
    };
    while bytes.len() < head.len() + 4 + length {
        let mut buffer = [0; 4096];
        let n = stream.read(&mut buffer).await.unwrap();
        bytes.extend_from_slice(&buffer[..n]);
    }
    let path = head.split(' ').nth(1).unwrap().to_owned();
    let body = String::from_utf8_lossy(&bytes[head.len() + 4..]).into_owned();
    let before = log.lock().unwrap().iter().filter(|(seen, _)| *seen == path).count();
    log.lock().unwrap().push((path.clone(), body.clone()));
    let reply = answer(&path, &body, before);
    // A client that has seen enough may have hung up.
    let _ = stream.write_all(&reply).await;
    let _ = stream.shutdown().await;
}

/// A whole HTTP answer.
pub(super) fn http(status: &str, kind: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
        .into()
}
