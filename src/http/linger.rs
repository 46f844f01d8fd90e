//! Connections that are closed without a reset.
//!
//! A request may be answered before it was read whole: its head is too large, its key is wrong, its body over the limit. If the
//! connection were closed with bytes in it that nobody has read, the kernel would answer them with a reset, which throws away
//! what the client has not read of the answer yet. So after the last byte was written what still comes is read and let go of, for
//! a while.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// The silence after which a client counts as done.
const QUIET: Duration = Duration::from_millis(500);
/// The longest that is waited in all.
const LONGEST: Duration = Duration::from_secs(10);

/// Listens as `L` does.
pub(super) struct Lingering<L>(pub L);

impl<L: Listener> Listener for Lingering<L> {
    type Io = Connection<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (io, address) = self.0.accept().await;
        (Connection { io, closing: None }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

/// One connection.
pub(super) struct Connection<S> {
    io: S,
    closing: Option<Closing>,
}

struct Closing {
    quiet: Pin<Box<Sleep>>,
    until: Instant,
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(mut self: Pin<&mut Self>, ctx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(ctx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(mut self: Pin<&mut Self>, ctx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(ctx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        ctx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(ctx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(ctx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Connection { io, closing } = &mut *self;
        if closing.is_none() {
            ready!(Pin::new(&mut *io).poll_shutdown(ctx))?;
        }
        let closing = closing
            .get_or_insert_with(|| Closing { quiet: Box::pin(tokio::time::sleep(QUIET)), until: Instant::now() + LONGEST });
        let mut scratch = [0; 16 << 10];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            match Pin::new(&mut *io).poll_read(ctx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() && Instant::now() < closing.until => {
                    closing.quiet.as_mut().reset(Instant::now() + QUIET);
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    ready!(closing.quiet.as_mut().poll(ctx));
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn what_still_comes_is_read_until_the_client_is_done() {
        let (client, server) = tokio::io::duplex(64);
        let mut server = Connection { io: server, closing: None };
        let (mut answer, mut request) = tokio::io::split(client);
        let sending = async {
            // More than the pipe holds, so that it ends only if somebody reads.
            request.write_all(&vec![b'x'; 100_000]).await.unwrap();
            request.shutdown().await.unwrap();
        };
        server.write_all(b"too large").await.unwrap();
        let (closed, ()) = tokio::join!(server.shutdown(), sending);
        closed.unwrap();
        let mut said = String::new();
        drop(server);
        answer.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "too large");
    }

    #[tokio::test]
    async fn a_client_that_stays_is_not_waited_for_long() {
        let (_client, server) = tokio::io::duplex(64);
        let begun = Instant::now();
        Connection { io: server, closing: None }.shutdown().await.unwrap();
        assert!((QUIET..LONGEST).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }
}
