//! One reply on its way from the policy to the client, recorded as it passes.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, Stream};
use tokio::sync::Mutex;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use crate::call::{Event, Failure, FailureKind, Reply};
use crate::ids::CallId;
use crate::policy::{Answer, NoAnswer};
use crate::record::Recorder;
use crate::wire::Encoder;

use super::recording::Recording;
use super::{Answered, App, JSON, Live};

pub(super) type Sending = BoxFuture<'static, Result<Box<dyn Answer>, NoAnswer>>;
type Committing = BoxFuture<'static, Result<Reply, Failure>>;

/// Reads the policy's events, folds them into the record and writes them in the client's wire. The end is written when the
/// record is committed, never before.
pub(super) struct Tee {
    stage: Stage,
    encoder: Box<dyn Encoder>,
    call_id: CallId,
    app: Arc<App>,
    recorder: Recorder,
    pings: Pings,
    /// Resolves when the call is to end although neither side ended it.
    interrupted: BoxFuture<'static, Failure>,
    events: Vec<Event>,
    out: Vec<u8>,
    begun: bool,
}

enum Stage {
    Sending(Box<Recording>, Sending),
    Flowing(Box<Recording>, Box<dyn Answer>),
    Committing(Committing),
    /// All was written; what is left is to note that it was taken.
    Ended {
        committed: bool,
    },
    Over,
}

/// What woke the reply.
#[expect(clippy::large_enum_variant, reason = "it lives for one step")]
enum Woken {
    Answer(Result<Box<dyn Answer>, NoAnswer>),
    Bytes(Result<Option<Bytes>, Failure>),
    Committed(Result<Reply, Failure>),
    Interrupted(Failure),
    Ping,
}

impl Tee {
    /// A reply that is being asked for; `ping` is the silence after which a stream gets a sign of life.
    pub fn new(recording: Box<Recording>, encoder: Box<dyn Encoder>, sending: Sending, ping: Duration) -> Self {
        let (app, rollout) = (Arc::clone(recording.app()), Arc::clone(recording.rollout()));
        let recorder = app.recorder.clone();
        let interrupted = Box::pin(interruption(Arc::clone(&app), rollout));
        Self {
            call_id: recording.call_id(),
            app,
            stage: Stage::Sending(recording, sending),
            encoder,
            recorder,
            pings: Pings::every(ping),
            interrupted,
            events: Vec::new(),
            out: Vec::new(),
            begun: false,
        }
    }

    /// Waits until the policy has begun to answer, or so long that the client must get a sign of life.
    ///
    /// # Errors
    /// If the policy gave no answer: nothing was sent yet, so that the failure can still be the HTTP answer.
    pub async fn until_begun(mut self: Box<Self>) -> Result<Box<Self>, (Box<Recording>, Failure)> {
        match self.woken().await {
            Woken::Answer(Ok(answer)) => self.flow(answer),
            Woken::Answer(Err(no_answer)) => return Err(self.unanswered(no_answer)),
            Woken::Interrupted(failure) => return Err(self.give_up(failure)),
            Woken::Ping | Woken::Bytes(_) | Woken::Committed(_) => self.pings.due(),
        }
        Ok(self)
    }

    /// The reply as a stream of server-sent events.
    pub fn into_stream(self: Box<Self>) -> Answered {
        let call_id = self.call_id;
        let (app, rollout) = (Arc::clone(&self.app), self.rollout());
        let content_type = self.encoder.content_type();
        let tee = Arc::new(Mutex::new(self));
        let over = CancellationToken::new();
        if let Some(rollout) = rollout {
            let (watched, over, interrupted) = (Arc::downgrade(&tee), over.clone(), interruption(Arc::clone(&app), rollout));
            // A client that reads nothing is not asked for more bytes, so that its stream does not see that it is to end.
            app.tasks.spawn(async move {
                tokio::select! {
                    biased;
                    () = over.cancelled() => {}
                    failure = interrupted => {
                        if let Some(tee) = watched.upgrade() {
                            tee.lock().await.interrupt(failure).await;
                        }
                    }
                }
            });
        }
        let span = Span::current();
        let stream = futures::stream::unfold((tee, over.drop_guard()), move |(tee, over)| {
            let step = async move {
                // Held while hyper waits for bytes; the watcher has its turn when hyper asks for none.
                let bytes = tee.lock().await.step().await;
                bytes.map(|bytes| (Ok(bytes), (tee, over)))
            };
            step.instrument(span.clone())
        });
        let body = ReplyBody::stream(Box::pin(stream));
        Answered { call_id, status: 200, retry_after: None, content_type, length: None, body }
    }

    /// The whole reply as one body.
    ///
    /// # Errors
    /// If there is none.
    pub async fn whole(mut self: Box<Self>) -> Result<Answered, (Box<Recording>, Failure)> {
        loop {
            match self.woken().await {
                Woken::Answer(Ok(answer)) => self.flow(answer),
                Woken::Answer(Err(no_answer)) => return Err(self.unanswered(no_answer)),
                Woken::Bytes(Ok(Some(bytes))) => self.take(&bytes),
                Woken::Bytes(Ok(None)) => break,
                Woken::Bytes(Err(failure)) | Woken::Interrupted(failure) => return Err(self.give_up(before_the_end(failure))),
                Woken::Ping | Woken::Committed(_) => {}
            }
        }
        let Stage::Flowing(mut recording, answer) = std::mem::replace(&mut self.stage, Stage::Over) else { unreachable_stage() };
        let reply = match commit(&mut recording, answer).await {
            Ok(reply) => reply,
            Err(failure) => return Err((recording, failure)),
        };
        self.encoder.whole(std::slice::from_ref(&reply), &mut self.out);
        let body = Bytes::from(std::mem::take(&mut self.out));
        let length = body.len();
        let delivered = Some(Delivered { recorder: self.recorder.clone(), call_id: self.call_id, others: Vec::new() });
        let body = ReplyBody::whole(body, delivered);
        Ok(Answered { call_id: self.call_id, status: 200, retry_after: None, content_type: JSON, length: Some(length), body })
    }

    /// The stream's next bytes; `None` at its end.
    async fn step(&mut self) -> Option<Bytes> {
        loop {
            self.begin();
            if let Stage::Ended { committed } = self.stage {
                if let Some(bytes) = self.flush() {
                    return Some(bytes);
                }
                self.stage = Stage::Over;
                if committed {
                    // All that was written has been taken by the connection.
                    self.recorder.delivered(self.call_id);
                }
                return None;
            }
            match self.woken().await {
                Woken::Answer(Ok(answer)) => self.flow(answer),
                Woken::Answer(Err(no_answer)) => {
                    let (recording, failure) = self.unanswered(no_answer);
                    self.fail(recording, failure).await;
                }
                Woken::Bytes(Ok(Some(bytes))) => {
                    self.take(&bytes);
                    for event in &self.events {
                        self.encoder.event(event, &mut self.out);
                    }
                }
                Woken::Bytes(Ok(None)) => {
                    if let Stage::Flowing(mut recording, answer) = std::mem::replace(&mut self.stage, Stage::Over) {
                        self.stage = Stage::Committing(Box::pin(async move { commit(&mut recording, answer).await }));
                    }
                }
                Woken::Bytes(Err(failure)) | Woken::Interrupted(failure) => {
                    let (recording, failure) = self.give_up(failure);
                    self.fail(recording, failure).await;
                }
                Woken::Committed(committed) => self.committed(&committed),
                Woken::Ping => self.encoder.ping(&mut self.out),
            }
            if let Some(bytes) = self.flush() {
                return Some(bytes);
            }
        }
    }

    /// Ends a stream that nobody asks for more; what it says of its end is there for when somebody does.
    async fn interrupt(&mut self, failure: Failure) {
        self.begin();
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Sending(recording, _) | Stage::Flowing(recording, _) => self.fail(recording, failure).await,
            Stage::Committing(committing) => {
                let committed = committing.await;
                self.committed(&committed);
            }
            ended @ (Stage::Ended { .. } | Stage::Over) => self.stage = ended,
        }
    }

    fn begin(&mut self) {
        if !self.begun {
            self.begun = true;
            self.encoder.begin(&mut self.out);
        }
    }

    fn committed(&mut self, committed: &Result<Reply, Failure>) {
        match committed {
            Ok(reply) => {
                self.encoder.finish(reply, &mut self.out);
                self.encoder.close(reply.usage.as_ref(), &mut self.out);
            }
            Err(failure) => self.encoder.fail(failure, &mut self.out),
        }
        self.stage = Stage::Ended { committed: committed.is_ok() };
    }

    /// The rollout of a call that has not ended.
    fn rollout(&self) -> Option<Arc<Live>> {
        match &self.stage {
            Stage::Sending(recording, _) | Stage::Flowing(recording, _) => Some(Arc::clone(recording.rollout())),
            Stage::Committing(_) | Stage::Ended { .. } | Stage::Over => None,
        }
    }

    async fn woken(&mut self) -> Woken {
        let ping = self.pings.next();
        match &mut self.stage {
            Stage::Sending(_, sending) => tokio::select! {
                biased;
                answer = sending => Woken::Answer(answer),
                failure = &mut self.interrupted => Woken::Interrupted(failure),
                () = ping => Woken::Ping,
            },
            Stage::Flowing(_, answer) => {
                self.events.clear();
                tokio::select! {
                    biased;
                    bytes = answer.next(&mut self.events) => Woken::Bytes(bytes),
                    failure = &mut self.interrupted => Woken::Interrupted(failure),
                    () = ping => Woken::Ping,
                }
            }
            Stage::Committing(committing) => tokio::select! {
                biased;
                reply = committing => Woken::Committed(reply),
                () = ping => Woken::Ping,
            },
            Stage::Ended { .. } | Stage::Over => Woken::Bytes(Ok(None)),
        }
    }

    fn flow(&mut self, answer: Box<dyn Answer>) {
        if let Stage::Sending(recording, _) = std::mem::replace(&mut self.stage, Stage::Over) {
            self.stage = Stage::Flowing(recording, answer);
        }
    }

    fn take(&mut self, bytes: &Bytes) {
        if let Stage::Flowing(recording, _) = &mut self.stage {
            recording.received(bytes, &self.events);
        }
    }

    fn unanswered(&mut self, no_answer: NoAnswer) -> (Box<Recording>, Failure) {
        let (mut recording, failure) = self.give_up(no_answer.failure);
        recording.received(&no_answer.response, &[]);
        (recording, failure)
    }

    /// Lets go of the policy; what was received stays in the recording.
    fn give_up(&mut self, failure: Failure) -> (Box<Recording>, Failure) {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Sending(recording, _) | Stage::Flowing(recording, _) => (recording, failure),
            Stage::Committing(_) | Stage::Ended { .. } | Stage::Over => unreachable_stage(),
        }
    }

    async fn fail(&mut self, mut recording: Box<Recording>, failure: Failure) {
        recording.failed(&failure).await;
        self.encoder.fail(&failure, &mut self.out);
        self.stage = Stage::Ended { committed: false };
    }

    fn flush(&mut self) -> Option<Bytes> {
        if self.out.is_empty() {
            return None;
        }
        self.pings.written();
        let room = self.out.len();
        Some(Bytes::from(std::mem::replace(&mut self.out, Vec::with_capacity(room))))
    }
}

/// Resolves when a call is to end although neither side ended it, with why.
pub(super) async fn interruption(app: Arc<App>, rollout: Arc<Live>) -> Failure {
    tokio::select! {
        () = rollout.ended() => {
            Failure::new(FailureKind::Ended, format!("rollout {} was finished while this call ran", rollout.id()))
        }
        () = app.stopping.cancelled() => Failure::new(FailureKind::Draining, "the server is shutting down; try again later"),
    }
}

/// Records a reply that has ended, and gives it once that is committed.
pub(super) async fn commit(recording: &mut Box<Recording>, mut answer: Box<dyn Answer>) -> Result<Reply, Failure> {
    let reply = recording.take_reply();
    let captured = answer.capture(&reply).await;
    if let Some(amended) = answer.amended() {
        recording.amended(amended);
    }
    recording.finished(&reply, captured).await?;
    Ok(reply)
}

/// A reply that broke off before any of it was sent is trouble of the kind that is worth another try.
pub(super) fn before_the_end(failure: Failure) -> Failure {
    match failure.kind {
        FailureKind::Cut => Failure { kind: FailureKind::Unavailable, ..failure },
        _ => failure,
    }
}

fn unreachable_stage() -> ! {
    unreachable!("a reply is given up only while it is sent or flows")
}

/// Signs of life: due after a while in which nothing was written.
pub(super) struct Pings {
    every: Duration,
    timer: Pin<Box<Sleep>>,
    last: Instant,
}

impl Pings {
    pub fn every(every: Duration) -> Self {
        Self { every, timer: Box::pin(tokio::time::sleep(every)), last: Instant::now() }
    }

    /// Notes that something was written. The timer is moved when it fires, not at each write.
    pub fn written(&mut self) {
        self.last = Instant::now();
    }

    /// Makes the next ping due at once.
    fn due(&mut self) {
        self.timer.as_mut().reset(Instant::now());
        self.last = Instant::now().checked_sub(self.every).unwrap_or(self.last);
    }

    /// Waits until a ping is due.
    pub fn next(&mut self) -> impl Future<Output = ()> + '_ {
        std::future::poll_fn(|ctx| {
            loop {
                std::task::ready!(self.timer.as_mut().poll(ctx));
                let due = self.last + self.every;
                let now = Instant::now();
                if due <= now {
                    self.last = now;
                    self.timer.as_mut().reset(now + self.every);
                    return Poll::Ready(());
                }
                self.timer.as_mut().reset(due);
            }
        })
    }
}

/// Notes that a reply was delivered, and the others of its answer.
pub(super) struct Delivered {
    pub recorder: Recorder,
    pub call_id: CallId,
    pub others: Vec<CallId>,
}

impl Delivered {
    /// The client has it all.
    pub fn note(&self) {
        self.recorder.delivered(self.call_id);
        for call_id in &self.others {
            self.recorder.delivered(*call_id);
        }
    }
}

/// The bytes of an answer, as the connection takes them.
pub struct ReplyBody(Body);

enum Body {
    Whole { bytes: Option<Bytes>, delivered: Option<Delivered> },
    Stream(BoxStream<'static, Result<Bytes, Infallible>>),
}

impl ReplyBody {
    pub(super) fn whole(bytes: Bytes, delivered: Option<Delivered>) -> Self {
        Self(Body::Whole { bytes: Some(bytes), delivered })
    }

    /// The bytes of a whole body, to be packed for the way.
    pub fn bytes_mut(&mut self) -> Option<&mut Bytes> {
        match &mut self.0 {
            Body::Whole { bytes, .. } => bytes.as_mut(),
            Body::Stream(_) => None,
        }
    }

    pub(super) fn stream(stream: BoxStream<'static, Result<Bytes, Infallible>>) -> Self {
        Self(Body::Stream(stream))
    }
}

impl Stream for ReplyBody {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut self.0 {
            Body::Whole { bytes, .. } => Poll::Ready(bytes.take().map(Ok)),
            Body::Stream(stream) => stream.as_mut().poll_next(ctx),
        }
    }
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        // A body of known length is not asked for more once it was taken.
        if let Body::Whole { bytes: None, delivered: Some(delivered) } = &self.0 {
            delivered.note();
        }
    }
}
