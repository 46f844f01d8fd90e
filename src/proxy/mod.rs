//! The way of a call through Gleaner: [`handle`] is the whole of it, straight down.

mod archive;
mod conversation;
mod marks;
mod meter;
mod place;
mod recording;
mod rollouts;
mod routes;
mod several;
mod tee;
mod transcript;
mod unrecorded;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Span;
use tracing::field::display;

use crate::call::{Call, Failure, Mark};
use crate::ids::{CallId, ProcessId};
use crate::policy::{Answer, NoAnswer, Policy, Prepared, Transcript};
use crate::record::Recorder;
use crate::store::Store;
use crate::telemetry::now_ms;
use crate::trajectory::Drift;
use crate::wire::{ReplyHead, Wire};

pub use archive::recall;
pub use conversation::conversation_of;
pub use marks::marks_of;
pub use place::{Identity, named, nameless, place};
pub use rollouts::{FinishError, Live, Rollouts};
pub use routes::{Policies, Route};
pub use tee::ReplyBody;

use recording::{Place, Recording, Sent};
use several::Asked;
use tee::Tee;

/// Everything a running Gleaner shares.
pub struct App {
    /// The policies, and which call goes to which.
    pub policies: Policies,
    /// Where rollouts and calls are read.
    pub store: Arc<dyn Store>,
    /// Where they are written.
    pub recorder: Recorder,
    /// The rollouts that take calls.
    pub rollouts: Rollouts,
    /// This process, as its calls name it.
    pub process_id: ProcessId,
    /// Tasks that outlive a request; awaited at the end.
    pub tasks: TaskTracker,
    /// Cancelled when no new calls are to be taken.
    pub draining: CancellationToken,
    /// Cancelled when calls that still run are to be cut off.
    pub stopping: CancellationToken,
    /// How calls are served.
    pub settings: ProxySettings,
    /// What becomes of drift in the samples that are given out.
    pub drift: Drift,
}

/// How calls are served.
#[derive(Clone, Copy, Debug)]
pub struct ProxySettings {
    /// Seconds of silence after which a stream gets a sign of life.
    pub ping_s: u64,
}

/// What a client gets.
pub struct Answered {
    /// The call, as its record and the header `x-gleaner-call` name it.
    pub call_id: CallId,
    /// The HTTP status.
    pub status: u16,
    /// Seconds, for the `retry-after` header.
    pub retry_after: Option<u64>,
    /// The type of the body's content.
    pub content_type: &'static str,
    /// The body's length in bytes; `None` for a stream.
    pub length: Option<usize>,
    /// The body, which also notes that it was delivered.
    pub body: ReplyBody,
}

/// The type of a whole body.
const JSON: &str = "application/json";

/// Serves one request: `target` is where it was posted, `marks` what its headers say, and `body` what the client
/// sent, or why it could not be read.
#[tracing::instrument(level = "debug", name = "call", skip_all, fields(call.id, rollout.id = %rollout.id(), wire = wire.name()))]
pub async fn handle(
    app: &Arc<App>,
    wire: &'static dyn Wire,
    rollout: Arc<Live>,
    target: &str,
    marks: Vec<Mark>,
    body: Result<Bytes, Refused>,
) -> Answered {
    let call_id = CallId::generate();
    Span::current().record("call.id", display(call_id));
    let (request, parsed) = match body {
        Ok(bytes) => {
            let calls = archive::read(app, wire, rollout.id(), target, &bytes).await;
            let parsed = calls.and_then(|calls| Asked::of(calls, bytes.len()));
            (bytes, parsed)
        }
        Err(refused) => (refused.begun, Err(refused.failure)),
    };
    // One that can't be read counts too: it is recorded.
    let parsed = rollout.meter().begin(parsed.as_ref().map_or(1, Asked::replies)).and(parsed);
    let policy = app.policies.choose(rollout.policy(), parsed.as_ref().map_or("", Asked::model));
    let place = Place { wire, target, marks: &marks, choice: 0 };
    let call = match parsed {
        Ok(Asked::One(call)) => Arc::new(call),
        Ok(Asked::Several(calls)) => {
            return Box::pin(several::serve(app, place, &rollout, &policy, call_id, request, calls)).await;
        }
        Err(failure) => {
            let recording = Recording::begin(app, place, rollout, &policy, call_id, request, None).await;
            return refuse(wire, recording, failure).await;
        }
    };
    let recording = Recording::begin(app, place, rollout, &policy, call_id, request, Some(&call)).await;
    let head = ReplyHead { call_id, choice: 0, created: now_ms() / 1000, model: call.model.clone() };
    let encoder = wire.encoder(&call, head);
    let sending =
        Box::pin(send(Arc::clone(app), policy, Arc::clone(&call), Arc::clone(recording.rollout()), recording.prepared()));
    let tee = Box::new(Tee::new(recording, encoder, sending, Duration::from_secs(app.settings.ping_s)));
    if call.stream {
        match tee.until_begun().await {
            Ok(tee) => tee.into_stream(),
            Err((recording, failure)) => refuse(wire, recording, failure).await,
        }
    } else {
        match tee.whole().await {
            Ok(answered) => answered,
            Err((recording, failure)) => refuse(wire, recording, failure).await,
        }
    }
}

/// Asks the policy, noting in `sent` what goes upstream before it does.
async fn send(
    app: Arc<App>,
    policy: Arc<dyn Policy>,
    call: Arc<Call>,
    rollout: Arc<Live>,
    sent: Sent,
) -> Result<Box<dyn Answer>, NoAnswer> {
    let prepared = prepare(&app, policy.as_ref(), &call, &rollout).await;
    let prepared = prepared.map_err(|failure| NoAnswer { failure, response: Bytes::new() })?;
    policy.send(sent.get_or_init(|| prepared)).await
}

async fn prepare(app: &App, policy: &dyn Policy, call: &Arc<Call>, rollout: &Live) -> Result<Prepared, Failure> {
    let patience = rollout.meter().patience();
    if !policy.splices() {
        return policy.prepare(call, rollout.sampling(), &Transcript::default(), patience).await;
    }
    let transcript = rollout.recalled(|| transcript::read(app.store.as_ref(), rollout.id())).await?;
    policy.prepare(call, rollout.sampling(), transcript, patience).await
}

/// Counts the tokens of a request's prompt, which is no call and leaves no record.
///
/// # Errors
/// If the body is not a request of this wire, or the policy can't be asked.
pub async fn count(
    app: &App,
    wire: &'static dyn Wire,
    rollout: &Live,
    target: &str,
    body: Result<Bytes, Refused>,
) -> Result<u64, Failure> {
    let body = body.map_err(|refused| refused.failure)?;
    let calls = archive::read(app, wire, rollout.id(), target, &body).await?;
    // Several replies have one prompt; that of a wire which has several is not asked for here.
    let Some(call) = calls.first() else { return Ok(0) };
    app.policies.choose(rollout.policy(), &call.model).count(call).await
}

/// A request whose body could not be read.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub failure: Failure,
    /// What of it had come, as far as it is worth keeping.
    pub begun: Bytes,
}

/// Records that a call failed before anything was sent, and says so in the wire's form.
async fn refuse(wire: &dyn Wire, mut recording: Box<Recording>, failure: Failure) -> Answered {
    let call_id = recording.call_id();
    recording.failed(&failure).await;
    refused(wire, call_id, &failure)
}

/// Says in the wire's form that there is no reply.
fn refused(wire: &dyn Wire, call_id: CallId, failure: &Failure) -> Answered {
    let body = wire.failure_of(failure, call_id);
    Answered {
        call_id,
        status: failure.status,
        retry_after: failure.retry_after,
        content_type: JSON,
        length: Some(body.len()),
        body: ReplyBody::whole(body.into(), None),
    }
}
