//! One reply on its way, from the server that began it to the one that ended it.

use std::sync::Arc;

use bytes::Bytes;

use super::contact::{Begin, Contact, Opened, Request};
use super::generate::{Ended, Held, Reader, Said, held};
use super::replicas::{Lease, Served};
use super::speech::Speech;
use super::tally::Tally;
use crate::call::{Event, Failure, FailureKind, FinishReason, Text, Tokens};
use crate::policy::Prepared;
use crate::policy::answer::{Source, TAIL, broken};
use crate::policy::attempt::Begun;
use crate::policy::gate::Passed;
use crate::policy::http::next_chunk;

/// How often one reply is taken up again.
const MOST_RESUMED: usize = 8;

/// A reply that has begun, wherever it is now.
pub(super) struct Flow {
    contact: Arc<Contact>,
    pub opened: Arc<Opened>,
    pub request: Request,
    lease: Lease,
    pub served: Arc<Served>,
    source: Source,
    reader: Reader,
    speech: Speech,
    pub tally: Tally,
    /// The call counts as in flight, but not while it waits for a pause to end.
    passed: Option<Passed>,
    /// What broke it off was a pause.
    paused: bool,
    /// Why the server's answer is of no more use.
    broken: Option<Failure>,
    /// The reply has ended, whatever may still come.
    ended: bool,
    counted: bool,
    /// A grammar is one that no other server could take up in its middle.
    pub held: Held,
    pub sent: Prepared,
    pub changed: bool,
}

impl Flow {
    pub(super) fn new(
        contact: Arc<Contact>,
        opened: Arc<Opened>,
        request: Request,
        speech: Speech,
        mut sent: Prepared,
        begin: Begin,
        passed: Passed,
    ) -> Self {
        let changed = sent.body != begin.body;
        sent.body.clone_from(&begin.body);
        let Begin { lease, served, begun, body: _ } = begin;
        let mut tally = Tally::new(&request.prompt.ids, opened.model.vocabulary());
        tally.begin(&lease.0);
        Self {
            reader: reader(&contact, &request, &served),
            held: held(served.endpoint, &request.call, &request.sampling),
            source: source(begun),
            contact,
            opened,
            request,
            lease,
            served,
            speech,
            tally,
            passed: Some(passed),
            broken: None,
            paused: false,
            ended: false,
            counted: false,
            sent,
            changed,
        }
    }

    /// Waits for the next bytes, from another server if this one fails, and appends the events that they complete.
    pub(super) async fn step(&mut self, events: &mut Vec<Event>) -> Result<Option<Bytes>, Failure> {
        loop {
            if let Some(failure) = self.broken.take() {
                self.go_on(failure, events).await?;
            }
            if self.counted {
                return Ok(self.tail().await);
            }
            let (bytes, read) = self.read(events).await;
            match read {
                Err(failure) if !self.ended => self.broken = Some(failure),
                // What is missing is nothing of the reply's.
                Err(_) => self.count(events),
                Ok(()) => {}
            }
            if bytes.is_some() {
                return Ok(bytes);
            }
        }
    }

    /// Reads the next bytes; what came, and whether it was as it should be.
    async fn read(&mut self, events: &mut Vec<Event>) -> (Option<Bytes>, Result<(), Failure>) {
        let idle = self.lease.0.http.idle;
        let (bytes, whole) = match &mut self.source {
            Source::Whole(body) => (Ok(body.take()), true),
            Source::Stream { .. } => (self.next_of_stream(idle).await, false),
        };
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(failure) => return (None, Err(failure)),
        };
        let mut said = Vec::new();
        let read = match &bytes {
            Some(bytes) if whole => self.reader.whole(bytes, &mut said),
            Some(bytes) => self.reader.push(bytes, &mut said),
            None => self.reader.finish(&mut said),
        };
        for said in said {
            self.take(said, events).await;
        }
        if self.ended && self.reader.is_done() {
            self.count(events);
        }
        (bytes, read)
    }

    async fn next_of_stream(&mut self, idle: std::time::Duration) -> Result<Option<Bytes>, Failure> {
        let Source::Stream { response, first } = &mut self.source else { return Ok(None) };
        if let Some(first) = first.take() {
            return Ok(Some(first));
        }
        tokio::select! {
            biased;
            chunk = next_chunk(response, idle) => chunk.map_err(|error| broken(&error)),
            () = self.contact.gate.interrupted(), if !self.ended => {
                self.paused = true;
                Err(Failure::new(FailureKind::Cut, "the policy was paused"))
            }
        }
    }

    /// The end of the answer's framing, so that the connection can serve again.
    async fn tail(&mut self) -> Option<Bytes> {
        let Source::Stream { response, .. } = &mut self.source else { return None };
        let tail = tokio::time::timeout(TAIL, response.chunk()).await;
        tail.ok().and_then(Result::ok).flatten()
    }

    async fn take(&mut self, said: Said, events: &mut Vec<Event>) {
        // What comes behind a stop string that only we have seen is nobody's.
        if self.counted {
            return;
        }
        if self.tally.is_new() {
            events.push(Event::Prompt(self.request.prompt.ids.clone()));
        }
        self.tally.take(&said);
        if self.ended {
            return;
        }
        let heard = self.speech.take(&said, events).await;
        let Said { ids, logprobs, ended, stop, .. } = said;
        if !ids.is_empty() || !logprobs.is_empty() {
            events.push(Event::Tokens(Tokens { ids, logprobs }));
        }
        events.extend(heard.logprobs);
        if heard.stop.is_some() && ended.is_none() {
            // The server has not seen it: a part of it was sampled elsewhere.
            self.end(Ended::Stop, heard.stop, events).await;
            self.source = Source::Whole(None);
            self.count(events);
        } else if let Some(ended) = ended {
            self.end(ended, heard.stop.or(stop), events).await;
        }
    }

    async fn end(&mut self, ended: Ended, stop: Option<String>, events: &mut Vec<Event>) {
        let late = self.speech.finish(events).await;
        let stop = stop.or(late);
        let reason = match ended {
            Ended::Length if stop.is_none() => FinishReason::Length,
            _ if self.speech.called() => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        };
        if let Some(stop) = stop {
            events.push(Event::StopString(Text::new(&stop)));
        }
        events.push(Event::Finish(reason));
        for note in self.speech.notes() {
            self.note(note);
        }
        self.ended = true;
    }

    /// Tells the counts, once.
    fn count(&mut self, events: &mut Vec<Event>) {
        if !self.counted {
            self.counted = true;
            events.push(Event::Usage(self.tally.usage()));
        }
    }

    fn note(&mut self, note: String) {
        self.sent.notes.push(note);
        self.changed = true;
    }

    /// Takes the reply up where it broke off, at another server or at this one again.
    async fn go_on(&mut self, failure: Failure, events: &mut Vec<Event>) -> Result<(), Failure> {
        let sampled = self.tally.ids().len();
        let last = self.tally.ids().last().copied();
        let ignores =
            self.request.call.rest.iter().any(|(name, value)| name.inner() == b"ignore_eos" && value.as_str() == "true");
        let left = self.request.max_tokens.map(|limit| limit.saturating_sub(sampled as u64));
        let window =
            self.served.found.window.map(|window| window.saturating_sub((self.request.prompt.ids.len() + sampled) as u64));
        // All tokens had come; what is lost is the server's word that they were all.
        let over = match last {
            Some(last) if self.opened.model.ends(last) && !ignores => Some(Ended::Stop),
            Some(_) if left == Some(0) || window == Some(0) => Some(Ended::Length),
            _ => None,
        };
        if let Some(ended) = over {
            self.note(format!("the reply broke off after its last token: {failure}"));
            self.end(ended, None, events).await;
            self.source = Source::Whole(None);
            self.count(events);
            return Ok(());
        }
        self.may_go_on(&failure)?;
        let mut but = Vec::new();
        if std::mem::take(&mut self.paused) {
            // Hangs up, so that the server can change its weights.
            self.source = Source::Whole(None);
            self.tally.break_off(self.contact.weights(&self.lease.0).await);
            self.passed = None;
            self.passed = Some(self.contact.pass().await?);
        } else {
            self.lease.0.is_in_trouble();
            self.tally.break_off(self.contact.weights_at_last(&self.lease.0));
            but.push(self.lease.0.clone());
        }
        let begin = self.contact.begin(&self.opened, &self.request, self.tally.ids(), but, None).await.map_err(|no_answer| {
            let message = format!("{failure}; and it could not be taken up again: {}", no_answer.failure);
            Failure { message, ..failure.clone() }
        })?;
        self.note(format!(
            "the reply broke off after {sampled} tokens at {} ({failure}) and went on at {}",
            self.lease.0.http.base(),
            begin.lease.0.http.base()
        ));
        let Begin { lease, served, begun, body } = begin;
        self.tally.begin(&lease.0);
        self.reader = reader(&self.contact, &self.request, &served);
        self.source = source(begun);
        (self.lease, self.served, self.sent.body) = (lease, served, body);
        Ok(())
    }

    fn may_go_on(&self, failure: &Failure) -> Result<(), Failure> {
        let why = match failure.kind {
            FailureKind::Cut | FailureKind::TimedOut | FailureKind::Unavailable | FailureKind::RateLimited => {
                if self.held.grammar && !self.tally.ids().is_empty() {
                    "; a grammar can't be taken up in its middle"
                } else if self.tally.pieces() > MOST_RESUMED {
                    "; it was taken up too often"
                } else {
                    return Ok(());
                }
            }
            _ => "",
        };
        Err(Failure { message: format!("{failure}{why}"), ..failure.clone() })
    }

    pub(super) fn contact(&self) -> &Contact {
        &self.contact
    }
}

fn reader(contact: &Contact, request: &Request, served: &Served) -> Reader {
    let wants = request.call.wants;
    Reader::new(
        served.endpoint,
        wants.logprobs && wants.top_logprobs.is_some_and(|count| count > 0),
        contact.config.max_event_bytes,
    )
}

fn source(begun: Begun) -> Source {
    match begun {
        Begun::Stream(response, first) => Source::Stream { response, first: Some(first) },
        Begun::Whole(body) => Source::Whole(Some(body)),
    }
}
