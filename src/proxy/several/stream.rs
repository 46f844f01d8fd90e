//! Several replies as one stream: their events as they come, each one's end when it is recorded, the stream's end after the last.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use tokio::sync::mpsc;
use tracing::{Instrument, Span};

use super::flight::Step;
use super::{Answered, Replies, ReplyBody};
use crate::call::{Failure, FailureKind, Usage};
use crate::proxy::tee::{Delivered, Pings};

/// What the client gets next.
enum Piece {
    /// No stream: nothing was sent yet, so that the failure can still be the HTTP answer.
    Refused(Failure),
    Bytes(Bytes),
    /// The end; what to note once the client has it, if all replies are in it.
    Last(Bytes, Option<Delivered>),
}

/// Where a body's next bytes come from.
enum Source {
    Known(Piece, mpsc::Receiver<Piece>),
    Waiting(mpsc::Receiver<Piece>),
    Taken(Option<Delivered>),
}

impl Replies {
    /// All of them as one stream.
    ///
    /// # Errors
    /// If one fails before anything was sent.
    pub(super) async fn stream(self) -> Result<Answered, Failure> {
        let (call_id, content_type) = (self.ids[0], self.encoders[0].content_type());
        // One place is kept for the end.
        let (client, mut pieces) = mpsc::channel(2);
        // A client that reads nothing asks for no bytes. In a task of their own the calls end when they must all the same.
        let tasks = self.app.tasks.clone();
        tasks.spawn(self.run(client).instrument(Span::current()));
        let source = match pieces.recv().await {
            Some(Piece::Refused(failure)) => return Err(failure),
            Some(first) => Source::Known(first, pieces),
            None => return Err(Failure::new(FailureKind::Unavailable, "the replies were given up")),
        };
        let body = ReplyBody::stream(Box::pin(stream::unfold(source, next)));
        Ok(Answered { call_id, status: 200, retry_after: None, content_type, length: None, body })
    }

    /// Writes the stream. When the client hangs up this is dropped, and what has not ended is cancelled with it.
    async fn run(mut self, client: mpsc::Sender<Piece>) {
        let Ok(last) = client.clone().try_reserve_owned() else { return };
        let mut pings = Pings::every(Duration::from_secs(self.app.settings.ping_s));
        let (mut out, mut begun, mut sent) = (Vec::new(), false, false);
        let failure = loop {
            let step = tokio::select! {
                biased;
                () = client.closed() => return,
                step = self.next() => step.map(Some),
                () = pings.next() => Some(None),
            };
            if step.is_some() && !std::mem::replace(&mut begun, true) {
                for encoder in &mut self.encoders {
                    encoder.begin(&mut out);
                }
            }
            match step {
                Some(Some((place, Step::Events(events)))) => {
                    for event in &events {
                        self.encoders[place].event(event, &mut out);
                    }
                }
                Some(Some((place, Step::Ended(reply)))) => {
                    self.encoders[place].finish(&reply, &mut out);
                    self.ended[place] = Some(reply);
                }
                Some(Some((_, Step::Failed(failure)))) => break failure,
                Some(None) => self.encoders[0].ping(&mut out),
                None => {
                    let usage = Usage::of_prompts(&self.take_ended(), self.each);
                    self.encoders[0].close(usage.as_ref(), &mut out);
                    last.send(Piece::Last(out.into(), Some(self.delivered())));
                    return;
                }
            }
            if out.is_empty() {
                continue;
            }
            tokio::select! {
                biased;
                place = client.reserve() => match place {
                    Ok(place) => place.send(Piece::Bytes(std::mem::take(&mut out).into())),
                    Err(_) => return,
                },
                failure = &mut self.interrupted, if !self.stop.is_said() => {
                    self.stop.say(failure.clone());
                    break failure;
                }
            }
            sent = true;
            pings.written();
        };
        self.give_up(&failure).await;
        if sent {
            self.encoders[0].fail(&failure, &mut out);
            last.send(Piece::Last(out.into(), None));
        } else {
            last.send(Piece::Refused(failure));
        }
    }
}

/// The next bytes of a body; none once the connection has taken the last.
async fn next(source: Source) -> Option<(Result<Bytes, Infallible>, Source)> {
    let (piece, pieces) = match source {
        Source::Known(piece, pieces) => (piece, pieces),
        Source::Waiting(mut pieces) => (pieces.recv().await?, pieces),
        Source::Taken(delivered) => {
            delivered.iter().for_each(Delivered::note);
            return None;
        }
    };
    match piece {
        Piece::Bytes(bytes) => Some((Ok(bytes), Source::Waiting(pieces))),
        Piece::Last(bytes, delivered) => Some((Ok(bytes), Source::Taken(delivered))),
        Piece::Refused(_) => None,
    }
}
