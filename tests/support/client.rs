//! A client that sees every byte, and hangs up when it is dropped.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::http1::{Body, Head, read_head};
use super::within;

/// One answer; the body is read as it is asked for.
pub struct Answer {
    pub head: Head,
    stream: BufReader<TcpStream>,
    body: Body,
    /// What came of an event that is not whole yet.
    partial: Vec<u8>,
}

/// One server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sse {
    pub event: Option<String>,
    pub data: String,
}

/// Sends one request on a connection of its own.
pub async fn send(addr: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(addr).await?;
    stream.set_nodelay(true)?;
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("connection")) {
        head.push_str("connection: close\r\n");
    }
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head.push_str(&format!("host: {addr}\r\n"));
    }
    if method != "GET" && method != "HEAD" {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            head.push_str("content-type: application/json\r\n");
        }
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut stream = BufReader::new(stream);
    // A server may answer (401, 413) before it has read the body: then writing fails and the answer still is there.
    let written = stream.write_all(body).await;
    let head = match read_head(&mut stream).await {
        Ok(Some(head)) => head,
        Ok(None) => return Err(written.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into())),
        Err(error) => return Err(error),
    };
    let body = if method == "HEAD" { Body::Ended } else { Body::of(&head, false) };
    Ok(Answer { head, stream, body, partial: Vec::new() })
}

/// As [`send`], and fails the test if there is no answer.
pub async fn post(addr: SocketAddr, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    within(path, send(addr, "POST", path, headers, body.to_string().as_bytes())).await.unwrap()
}

/// As [`send`], and fails the test if there is no answer.
pub async fn get(addr: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Answer {
    within(path, send(addr, "GET", path, headers, b"")).await.unwrap()
}

impl Answer {
    /// The status.
    pub fn status(&self) -> u16 {
        self.head.status()
    }

    /// The call that this answer belongs to.
    pub fn call_id(&self) -> String {
        self.head.header("x-gleaner-call").expect("the answer names no call").to_owned()
    }

    /// The whole body; an error if it was cut.
    pub async fn bytes(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = std::mem::take(&mut self.partial);
        bytes.extend(within("a body", self.body.all(&mut self.stream)).await?);
        Ok(bytes)
    }

    /// The whole body as JSON.
    pub async fn json(&mut self) -> Value {
        let bytes = self.bytes().await.unwrap();
        serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{error} in {:?}", String::from_utf8_lossy(&bytes)))
    }

    /// The next event; `None` at the end of a stream that was not cut. Comments are passed over.
    ///
    /// # Errors
    /// If the stream was cut.
    pub async fn event(&mut self) -> io::Result<Option<Sse>> {
        loop {
            if let Some(end) = find_blank_line(&self.partial) {
                let block: Vec<u8> = self.partial.drain(..end).collect();
                if let Some(event) = parse(std::str::from_utf8(&block).expect("a stream of ours that is not UTF-8")) {
                    return Ok(Some(event));
                }
                continue;
            }
            match self.body.next(&mut self.stream).await? {
                Some(bytes) => self.partial.extend_from_slice(&bytes),
                None if self.partial.is_empty() => return Ok(None),
                None => panic!("the stream ended inside an event: {:?}", String::from_utf8_lossy(&self.partial)),
            }
        }
    }

    /// Waits until `what` has come, and takes none of the piece that holds it from the connection.
    pub async fn comes(&mut self, what: &[u8]) {
        within("a piece of a body", async {
            while !self.stream.fill_buf().await.unwrap().windows(what.len()).any(|seen| seen == what) {
                let bytes = self.body.next(&mut self.stream).await.unwrap().expect("the body ended");
                self.partial.extend_from_slice(&bytes);
            }
        })
        .await;
    }

    /// All events that are left, each with the time at which it came, and whether the stream ended whole.
    pub async fn events(&mut self) -> (Vec<(Instant, Sse)>, bool) {
        within("the events of a stream", async {
            let mut events = Vec::new();
            loop {
                match self.event().await {
                    Ok(Some(event)) => events.push((Instant::now(), event)),
                    Ok(None) => return (events, true),
                    Err(_) => return (events, false),
                }
            }
        })
        .await
    }
}

fn find_blank_line(bytes: &[u8]) -> Option<usize> {
    bytes.windows(2).position(|pair| pair == b"\n\n").map(|at| at + 2)
}

fn parse(block: &str) -> Option<Sse> {
    let (mut event, mut data) = (None, None::<String>);
    for line in block.lines() {
        match line.split_once(':') {
            Some(("event", value)) => event = Some(value.trim_start().to_owned()),
            Some(("data", value)) => {
                let value = value.strip_prefix(' ').unwrap_or(value);
                match &mut data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                    None => data = Some(value.to_owned()),
                }
            }
            _ => {}
        }
    }
    Some(Sse { event, data: data? })
}
