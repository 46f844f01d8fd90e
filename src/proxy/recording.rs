//! The record of one call while it runs: known to the store from its start, and ended however the call ends.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::call::{
    Call, CallEnd, CallStart, CallStatus, Event, Failure, FailureKind, Fold, Mark, Raw, RawParts, Reply, Sampling, grouped_name,
};
use crate::ids::CallId;
use crate::policy::{Captured, Exchange, Policy, Prepared};
use crate::telemetry::now_ms;
use crate::wire::Wire;

use super::{App, Live, unrecorded};

/// How many notes a call keeps, and how many bytes of each.
const NOTES: usize = 50;
const NOTE_BYTES: usize = 500;

/// What goes upstream, known as soon as it is ready.
pub(super) type Sent = Arc<OnceLock<Prepared>>;

/// What a call was asked for by.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub wire: &'static dyn Wire,
    /// Where the request was posted, below the base URL.
    pub target: &'a str,
    /// What its headers said.
    pub marks: &'a [Mark],
    /// The call's place among those of its request.
    pub choice: u32,
}

/// What is known of a call so far. Dropping it before its end was recorded means that the client hung up.
pub(super) struct Recording {
    app: Arc<App>,
    rollout: Arc<Live>,
    start: Arc<CallStart>,
    /// Taken when the end has been handed to the recorder, so that ending the rollout waits for it.
    in_flight: Option<TaskTrackerToken>,
    prepared: Sent,
    /// What went upstream, where the policy had to change what was prepared.
    amended: Option<Prepared>,
    sampling_asked: Sampling,
    max_tokens_asked: Option<u64>,
    first_event_at: Option<i64>,
    /// Tokens that have come and are counted as the rollout's.
    tokens: u64,
    response: Received,
    fold: Fold,
    notes: Vec<String>,
}

impl Recording {
    /// Makes the call known to the store; waits for a place in the recorder's queue, not for the commit.
    pub async fn begin(
        app: &Arc<App>,
        place: Place<'_>,
        rollout: Arc<Live>,
        policy: &Arc<dyn Policy>,
        id: CallId,
        request: Bytes,
        call: Option<&Call>,
    ) -> Box<Self> {
        let start = Arc::new(CallStart {
            id,
            rollout_id: rollout.id(),
            process_id: app.process_id,
            started_at: now_ms(),
            wire: place.wire.name(),
            target: place.target.to_owned(),
            choice: place.choice,
            policy: policy.name().to_owned(),
            model: call.map(|call| call.model.clone()).unwrap_or_default(),
            stream: call.is_some_and(|call| call.stream),
            marks: place.marks.to_vec(),
            request,
        });
        let in_flight = Some(rollout.enter());
        app.recorder.call_started(Arc::clone(&start)).await;
        Box::new(Self {
            app: Arc::clone(app),
            rollout,
            start,
            in_flight,
            prepared: Sent::default(),
            amended: None,
            sampling_asked: call.map(|call| call.sampling.clone()).unwrap_or_default(),
            max_tokens_asked: call.and_then(|call| call.max_tokens),
            first_event_at: None,
            tokens: 0,
            response: Received::default(),
            fold: Fold::default(),
            notes: call.map(|call| call.notes.clone()).unwrap_or_default(),
        })
    }

    /// The call's id.
    pub fn call_id(&self) -> CallId {
        self.start.id
    }

    /// What the process shares.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// The rollout that the call belongs to.
    pub fn rollout(&self) -> &Arc<Live> {
        &self.rollout
    }

    /// Where to note what goes upstream, once that is known.
    pub fn prepared(&self) -> Sent {
        Arc::clone(&self.prepared)
    }

    /// Notes that something else went upstream.
    pub fn amended(&mut self, amended: Prepared) {
        self.amended = Some(amended);
    }

    /// Takes bytes that came from the policy, and the events that they completed.
    pub fn received(&mut self, bytes: &Bytes, events: &[Event]) {
        if !events.is_empty() && self.first_event_at.is_none() {
            self.first_event_at = Some(now_ms());
        }
        self.response.push(bytes);
        let mut tokens = 0;
        for event in events {
            if let Event::Tokens(more) = event {
                tokens += more.ids.len() as u64;
            }
            self.fold.push(event);
        }
        self.sampled(tokens);
    }

    fn sampled(&mut self, tokens: u64) {
        if tokens > 0 {
            self.tokens += tokens;
            self.rollout.meter().sampled(tokens);
        }
    }

    /// The reply as it was received; what was received is not given twice.
    pub fn take_reply(&mut self) -> Reply {
        std::mem::take(&mut self.fold).reply()
    }

    /// Records a reply that ended well, and returns once that is committed.
    ///
    /// # Errors
    /// If it could not be committed: then the reply must not count as given.
    pub async fn finished(&mut self, reply: &Reply, captured: Captured) -> Result<(), Failure> {
        let end = self.end(CallStatus::Done, None, reply, captured);
        let exact = end.capture.rendered.is_some().then(|| end.capture.clone());
        let in_flight = self.in_flight.take();
        let committed = self.app.recorder.call_ended(end).await;
        if let (Ok(()), Some(capture), Some(prepared), Some(transcript)) =
            (&committed, exact, self.prepared.get(), self.rollout.transcript())
        {
            let (call, reply) = (&*prepared.call, &reply.message());
            transcript.note(Exchange { call_id: self.start.id, call, reply, capture: &capture });
        }
        drop(in_flight);
        committed.map_err(|error| {
            tracing::error!(call.id = %self.start.id, %error, "a call could not be recorded");
            let failure = Failure::new(FailureKind::NotRecorded, format!("the reply could not be recorded: {error}"));
            self.rollout.meter().ended(Some(&failure));
            unrecorded::keep_trying(&self.app, &self.start, failure.clone());
            failure
        })
    }

    /// Records that the call failed, unless its end was handed to the recorder before: what failed then is that.
    pub async fn failed(&mut self, failure: &Failure) {
        let Some(in_flight) = self.in_flight.take() else { return };
        let reply = self.take_reply();
        let end = self.end(status_of(failure), Some(failure.clone()), &reply, Captured::default());
        if let Err(error) = self.app.recorder.call_ended(end).await {
            tracing::error!(call.id = %self.start.id, %error, "a failed call could not be recorded");
            unrecorded::keep_trying(&self.app, &self.start, failure.clone());
        }
        drop(in_flight);
    }

    fn end(&mut self, status: CallStatus, failure: Option<Failure>, reply: &Reply, captured: Captured) -> Box<CallEnd> {
        let mut capture = captured.capture;
        if status != CallStatus::Done {
            // What there is of a reply that broke off is kept, and never trained.
            capture.prompt_ids = reply.prompt_ids.clone().unwrap_or_default();
            capture.completion_ids.clone_from(&reply.tokens.ids);
            capture.reason.get_or_insert_with(|| "the reply did not end".to_owned());
        }
        self.rollout.meter().ended(failure.as_ref());
        // Servers that give no ids count at the end.
        self.sampled(reply.usage.map_or(0, |usage| usage.completion_tokens).saturating_sub(self.tokens));
        let prepared = self.amended.as_ref().or(self.prepared.get());
        let mut notes = std::mem::take(&mut self.notes);
        notes.extend(prepared.map(|prepared| prepared.notes.clone()).unwrap_or_default());
        bound(&mut notes);
        metrics::counter!("gleaner_calls_total", "wire" => self.start.wire, "status" => status_name(status)).increment(1);
        metrics::counter!("gleaner_sampled_tokens_total").increment(reply.usage.map_or(0, |usage| usage.completion_tokens));
        Box::new(CallEnd {
            start: Arc::clone(&self.start),
            ended_at: now_ms(),
            first_event_at: self.first_event_at,
            status,
            failure,
            raw: RawParts {
                upstream: prepared.map(|prepared| prepared.body.clone()).unwrap_or_default(),
                response: std::mem::take(&mut self.response).whole(),
                prompt: captured.prompt_raw,
            },
            message: (status == CallStatus::Done || reply.has_output()).then(|| message(reply)),
            finish: reply.finish,
            usage: reply.usage,
            capture,
            sampling_asked: std::mem::take(&mut self.sampling_asked),
            sampling_used: prepared.map(|prepared| prepared.sampling_used.clone()).unwrap_or_default(),
            max_tokens_asked: self.max_tokens_asked,
            max_tokens_used: prepared.and_then(|prepared| prepared.max_tokens_used),
            version: captured.version,
            notes,
        })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.in_flight.is_some() {
            let waited = u64::try_from(now_ms().saturating_sub(self.start.started_at)).unwrap_or_default();
            self.rollout.meter().hung_up(self.first_event_at.is_none().then(|| Duration::from_millis(waited)));
            let failure = Failure::new(FailureKind::Cancelled, "the client hung up");
            let reply = self.take_reply();
            let end = self.end(CallStatus::Cancelled, Some(failure), &reply, Captured::default());
            self.app.recorder.call_abandoned(end);
        }
    }
}

/// The policy's bytes so far. What came in one piece stays that piece.
#[derive(Default)]
struct Received {
    first: Bytes,
    joined: BytesMut,
}

impl Received {
    fn push(&mut self, bytes: &Bytes) {
        if self.first.is_empty() && self.joined.is_empty() {
            self.first = bytes.clone();
            return;
        }
        if self.joined.is_empty() {
            self.joined.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.joined.extend_from_slice(bytes);
    }

    fn whole(self) -> Bytes {
        if self.joined.is_empty() { self.first } else { self.joined.freeze() }
    }
}

/// Keeps the notes of a call few and short: a body can hold any number of odd things, and names of any length.
fn bound(notes: &mut Vec<String>) {
    let more = notes.len().saturating_sub(NOTES);
    notes.truncate(NOTES);
    for note in notes.iter_mut().filter(|note| note.len() > NOTE_BYTES) {
        note.truncate(note.floor_char_boundary(NOTE_BYTES));
        note.push_str("...");
    }
    if more > 0 {
        notes.push(format!("and {more} more notes"));
    }
}

fn status_of(failure: &Failure) -> CallStatus {
    match failure.kind {
        FailureKind::Cancelled | FailureKind::Ended => CallStatus::Cancelled,
        _ => CallStatus::Failed,
    }
}

fn status_name(status: CallStatus) -> &'static str {
    match status {
        CallStatus::Running => "running",
        CallStatus::Done => "done",
        CallStatus::Failed => "failed",
        CallStatus::Cancelled => "cancelled",
        CallStatus::Interrupted => "interrupted",
    }
}

/// The reply as a message of the conversation, in chat completions' form. Tools have the names by which requests' messages show
/// them.
fn message(reply: &Reply) -> Raw {
    let mut out = Vec::new();
    reply.message().write_chat(&mut out, "reasoning_content", &|call| grouped_name(call.namespace.as_ref(), &call.name));
    Raw::from_json(out)
}

#[cfg(test)]
mod tests {
    use super::{NOTE_BYTES, NOTES, bound};

    #[test]
    fn notes_are_few_and_short() {
        let mut notes: Vec<String> = (0..100_000).map(|number| format!("left out image {number}")).collect();
        notes[0] = "é".repeat(NOTE_BYTES);
        bound(&mut notes);
        assert_eq!((notes.len(), notes[1].as_str()), (NOTES + 1, "left out image 1"));
        assert_eq!(notes[0], "é".repeat(NOTE_BYTES / 2) + "...");
        assert_eq!(notes[NOTES], format!("and {} more notes", 100_000 - NOTES));
        let mut few = vec!["one".to_owned()];
        bound(&mut few);
        assert_eq!(few, ["one"]);
    }
}
