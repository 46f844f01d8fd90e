//! The way of a call out of the sandbox: the init's forwarder, with a real client in a real sandbox.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod sandbox;

use std::time::{Duration, Instant};

use gleaner::engine::{Docker, Engine, Limits};
use sandbox::{LONG, Options, Sandbox, engine};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// What a hang-up may take to get through. It is far under 1 ms; this leaves room for a busy machine, and is still less than
/// any timer on the way.
const SOON: Duration = Duration::from_secs(1);

async fn client(engine: &Docker, script: &str) -> Sandbox {
    let script =
        format!("import socket, sys, threading\ndef dial(): return socket.create_connection(('127.0.0.1', 8080))\n{script}");
    // Few processes: the forwarder must need none.
    let limits = Limits { cpus: 2.0, memory_bytes: 256 << 20, pids: 16, disk_bytes: None };
    let mut one = Sandbox::start(engine, &["python3", "-c", &script], Options { limits, ..Options::default() }).await;
    one.go().await;
    one
}

async fn done(engine: &Docker, mut one: Sandbox) {
    let report = one.exited().await;
    assert_eq!(report, "exited code=0 signal=0 timed_out=0", "{:?}", engine.logs(&one.id).await);
    engine.remove(&one.id).await.unwrap();
}

async fn read(stream: &mut UnixStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    timeout(LONG, stream.read_exact(&mut bytes)).await.expect("bytes come").unwrap();
    bytes
}

/// A client that hangs up, in the middle of a reply or before it, is seen at once by the host.
#[tokio::test]
async fn a_clients_hang_up_gets_out() {
    let engine = engine().await;
    // The second connection tells the host of the moment.
    let script = "
tell, idle = dial(), dial()
tell.sendall(b't'); tell.recv(1)
idle.sendall(b'i'); idle.recv(1)
tell.sendall(b'!'); idle.close()
busy = dial(); busy.sendall(b'b'); busy.recv(1000)
tell.sendall(b'!'); busy.close()
tell.recv(1)";
    let one = client(&engine, script).await;
    let mut tell = one.accept().await;
    assert_eq!(read(&mut tell, 1).await, b"t");
    tell.write_all(b"t").await.unwrap();
    let mut idle = one.accept().await;
    assert_eq!(read(&mut idle, 1).await, b"i");
    idle.write_all(b"i").await.unwrap();
    read(&mut tell, 1).await;
    let told = Instant::now();
    assert_eq!(timeout(LONG, idle.read(&mut [0; 1])).await.unwrap().unwrap(), 0);
    assert!(told.elapsed() < SOON, "{:?}", told.elapsed());

    let mut busy = one.accept().await;
    assert_eq!(read(&mut busy, 1).await, b"b");
    let (mut from, mut to) = busy.split();
    let write = async { while to.write_all(&[0; 1 << 13]).await.is_ok() {} };
    let watch = async {
        read(&mut tell, 1).await;
        let told = Instant::now();
        // Unread bytes make it a reset, which ends both directions.
        let _ = from.read(&mut [0; 1]).await;
        told.elapsed()
    };
    let (took, ()) = timeout(LONG, async { tokio::join!(watch, write) }).await.expect("writing ends too");
    assert!(took < SOON, "{took:?}");
    tell.write_all(b".").await.unwrap();
    done(&engine, one).await;
}

/// A host that hangs up is seen at once by the client, with all that it sent before.
#[tokio::test]
async fn the_hosts_hang_up_gets_in() {
    let engine = engine().await;
    let script = "
tell, call = dial(), dial()
tell.sendall(b't'); tell.recv(1)
call.sendall(b'c')
parts = []
while part := call.recv(1 << 16): parts.append(part)
tell.sendall(b'!')
assert b''.join(parts) == b'answer', parts
tell.recv(1)";
    let one = client(&engine, script).await;
    let mut tell = one.accept().await;
    assert_eq!(read(&mut tell, 1).await, b"t");
    tell.write_all(b"t").await.unwrap();
    let mut call = one.accept().await;
    assert_eq!(read(&mut call, 1).await, b"c");
    call.write_all(b"answer").await.unwrap();
    let dropped = Instant::now();
    drop(call);
    assert_eq!(read(&mut tell, 1).await, b"!");
    assert!(dropped.elapsed() < SOON, "{:?}", dropped.elapsed());
    tell.write_all(b".").await.unwrap();
    done(&engine, one).await;
}

/// Large bodies both ways at once, and an end in one direction that leaves the other open.
#[tokio::test]
async fn large_bodies_pass_whole_and_half_closed() {
    let engine = engine().await;
    let script = "
import hashlib
call = dial()
body = bytes(range(256)) * (1 << 17)
def send():
    call.sendall(body); call.shutdown(socket.SHUT_WR)
thread = threading.Thread(target=send); thread.start()
got, count = hashlib.sha256(), 0
while part := call.recv(1 << 16): got.update(part); count += len(part)
thread.join()
assert count == len(body) + 4, count
assert got.digest() == hashlib.sha256(body + b'last').digest()";
    let one = client(&engine, script).await;
    let mut call = one.accept().await;
    let (mut from, mut to) = call.split();
    let copied = timeout(LONG, tokio::io::copy(&mut from, &mut to)).await.unwrap().unwrap();
    assert_eq!(copied, 256 << 17);
    to.write_all(b"last").await.unwrap();
    drop(call);
    done(&engine, one).await;
}

/// A host that answers and hangs up without reading the request (413): the client still gets the answer whole.
#[tokio::test]
async fn an_early_answer_is_not_lost() {
    let engine = engine().await;
    let script = "
call = dial()
def send():
    try: call.sendall(b'x' * (4 << 20))
    except OSError: pass
thread = threading.Thread(target=send); thread.start()
count = 0
while part := call.recv(1 << 12): count += len(part)
assert count == 1 << 20, count";
    let one = client(&engine, script).await;
    let mut call = one.accept().await;
    read(&mut call, 1).await;
    call.write_all(&vec![b'y'; 1 << 20]).await.unwrap();
    drop(call);
    done(&engine, one).await;
}

/// More connections than the forwarder holds at once: each is answered, later ones after earlier ones have ended.
#[tokio::test]
async fn many_connections_are_carried() {
    let engine = engine().await;
    let script = "
held = [dial() for _ in range(480)]
late = [dial() for _ in range(20)]
for n, call in enumerate(held + late): call.sendall(n.to_bytes(2, 'big'))
for n, call in enumerate(held):
    assert call.recv(2) == n.to_bytes(2, 'big'), n
    call.close()
for n, call in enumerate(late, 480): assert call.recv(2) == n.to_bytes(2, 'big'), n";
    let one = client(&engine, script).await;
    let serve = |mut call: UnixStream| async move {
        let number = read(&mut call, 2).await;
        call.write_all(&number).await.unwrap();
        assert_eq!(call.read(&mut [0; 1]).await.unwrap(), 0);
    };
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..500 {
        calls.spawn(serve(one.accept().await));
    }
    calls.join_all().await;
    done(&engine, one).await;
}

/// Where nobody answers for the socket, the client is hung up on instead of left waiting.
#[tokio::test]
async fn without_a_host_the_client_is_hung_up_on() {
    let engine = engine().await;
    let script = "
tell = dial(); tell.sendall(b't'); tell.recv(1)
call = dial()
try: assert call.recv(1) == b''
except ConnectionError: pass";
    let one = client(&engine, script).await;
    let mut tell = one.accept().await;
    read(&mut tell, 1).await;
    std::fs::remove_file(one.sockets.path().join("model.sock")).unwrap();
    tell.write_all(b"t").await.unwrap();
    done(&engine, one).await;
}
