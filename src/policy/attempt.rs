//! One try at getting a reply, and what to make of it when there is none.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Response;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;
use tokio::time::{Instant, timeout_at};

use super::http::{Http, HttpError, Route, next_chunk, read_whole};
use super::{NoAnswer, Prepared, refusal};
use crate::call::{Failure, FailureKind};
use crate::telemetry::now_ms;

/// A reply that has begun.
pub(super) enum Begun {
    /// A stream, and its first bytes.
    Stream(Response, Bytes),
    /// A whole body.
    Whole(Bytes),
}

/// Why a try gave no reply.
pub(super) enum Trouble {
    /// It may work later, after the time that the server asked for.
    Again(NoAnswer, Option<Duration>),
    /// It would be the same again.
    Final(NoAnswer),
}

/// A request for a reply.
#[derive(Clone, Debug)]
pub(super) struct Post<'a> {
    pub route: Route<'a>,
    pub body: Bytes,
    pub stream: bool,
}

impl Post<'static> {
    /// What was prepared for a server of chat completions.
    pub(super) fn of(prepared: &Prepared) -> Self {
        Self { route: Route::of(&prepared.call), body: prepared.body.clone(), stream: prepared.stream }
    }
}

/// Sends a request and waits for its reply's first bytes; for all of them if it is not a stream.
pub(super) async fn attempt(http: &Http, post: Post<'_>, first_byte: Duration) -> Result<Begun, Trouble> {
    let deadline = Instant::now() + first_byte;
    let late = || {
        let message = format!("the policy did not begin its reply within {} s", first_byte.as_secs());
        Trouble::Final(nothing(FailureKind::TimedOut, message))
    };
    let response = match timeout_at(deadline, http.call(post.route, post.body)).await {
        Err(_) => return Err(late()),
        Ok(Err(error)) => return Err(again(format!("the policy can't be reached: {error}"))),
        Ok(Ok(response)) => response,
    };
    let status = response.status().as_u16();
    if status != 200 {
        return Err(refusal_of(response, status, http.idle).await);
    }
    let header = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = header.to_ascii_lowercase();
    if !post.stream || kind.contains("json") || kind.contains("html") {
        return whole(response, http.idle, deadline, late).await;
    }
    let mut response = response;
    match timeout_at(deadline, first_chunk(&mut response, http.idle)).await {
        Err(_) => Err(late()),
        Ok(Ok(Some(first))) if !kind.contains("event-stream") && is_no_stream(&first) => {
            let message = format!("the policy answered with something that is no stream ({kind})");
            Err(Trouble::Again(NoAnswer { failure: Failure::new(FailureKind::Unavailable, message), response: first }, None))
        }
        Ok(Ok(Some(first))) => Ok(Begun::Stream(response, first)),
        Ok(Ok(None)) => Err(again("the policy's reply ended before its first byte".to_owned())),
        Ok(Err(error)) => Err(again(format!("the policy's reply broke off before its first byte: {error}"))),
    }
}

/// A stream's first bytes; empty pieces don't count.
async fn first_chunk(response: &mut Response, idle: Duration) -> Result<Option<Bytes>, HttpError> {
    loop {
        match next_chunk(response, idle).await? {
            Some(chunk) if chunk.is_empty() => {}
            chunk => return Ok(chunk),
        }
    }
}

/// Whether bytes can't be the start of a stream of server-sent events.
fn is_no_stream(first: &[u8]) -> bool {
    matches!(first.trim_ascii_start().first(), Some(b'<' | b'{' | b'['))
}

async fn whole(response: Response, idle: Duration, deadline: Instant, late: impl Fn() -> Trouble) -> Result<Begun, Trouble> {
    let Ok(read) = timeout_at(deadline, read_whole(response, idle)).await else { return Err(late()) };
    match read {
        // A body without a length ends the same whether it is whole or cut; a look at its ends costs nothing.
        Ok(body) if body.trim_ascii().starts_with(b"{") && body.trim_ascii().ends_with(b"}") => Ok(Begun::Whole(body)),
        Ok(body) => {
            let said = refusal::read(&body).message;
            let failure = Failure::new(FailureKind::Unavailable, format!("the policy's answer is no whole JSON: {said:?}"));
            Err(Trouble::Again(NoAnswer { failure, response: body }, None))
        }
        Err((error @ HttpError::TooLarge, _)) => Err(Trouble::Final(nothing(FailureKind::Unavailable, error.to_string()))),
        Err((error, response)) => {
            let failure = Failure::new(FailureKind::Unavailable, format!("the policy's answer broke off: {error}"));
            Err(Trouble::Again(NoAnswer { failure, response }, None))
        }
    }
}

/// What a status other than 200 means.
async fn refusal_of(response: Response, status: u16, idle: Duration) -> Trouble {
    let seconds = retry_after(response.headers());
    let body = read_whole(response, idle).await.unwrap_or_else(|(_, part)| part);
    if !matches!(status, 408 | 429) && (400..500).contains(&status) {
        return Trouble::Final(NoAnswer { failure: refusal::refused(status, &body), response: body });
    }
    let said = refusal::read(&body).message;
    let kind = if status == 429 { FailureKind::RateLimited } else { FailureKind::Unavailable };
    let mut failure = Failure::new(kind, format!("the policy answered with status {status}: {said}"));
    if seconds.is_some() {
        failure.retry_after = seconds;
    }
    Trouble::Again(NoAnswer { failure, response: body }, seconds.map(Duration::from_secs))
}

/// The seconds that a server asks to be left alone for: a number of them, a number of milliseconds, or a date.
fn retry_after(headers: &HeaderMap) -> Option<u64> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let milliseconds = || text("retry-after-ms")?.parse::<u64>().ok().map(|milliseconds| milliseconds.div_ceil(1000));
    let date = || {
        let date = OffsetDateTime::parse(text(RETRY_AFTER.as_str())?, &Rfc2822).ok()?;
        u64::try_from(date.unix_timestamp() - now_ms() / 1000).ok()
    };
    text(RETRY_AFTER.as_str()).and_then(|seconds| seconds.parse().ok()).or_else(milliseconds).or_else(date)
}

fn nothing(kind: FailureKind, message: String) -> NoAnswer {
    NoAnswer { failure: Failure::new(kind, message), response: Bytes::new() }
}

fn again(message: String) -> Trouble {
    Trouble::Again(nothing(FailureKind::Unavailable, message), None)
}

/// How long trouble is retried: within a time from its first sight, after waits that double.
pub(super) struct Retries {
    within: Duration,
    until: Option<Instant>,
    wait: Duration,
}

impl Retries {
    /// The first wait.
    const FIRST: Duration = Duration::from_millis(250);
    /// The longest wait that is not the server's wish.
    const LONGEST: Duration = Duration::from_secs(5);

    pub(super) fn new(within: Duration) -> Self {
        Self { within, until: None, wait: Self::FIRST }
    }

    /// Waits before the next try, as long as the server asked for if it did. `false` if the time is up.
    pub(super) async fn wait(&mut self, asked: Option<Duration>) -> bool {
        let Some(wait) = self.next(Instant::now(), asked) else { return false };
        tokio::time::sleep(wait).await;
        true
    }

    fn next(&mut self, now: Instant, asked: Option<Duration>) -> Option<Duration> {
        let until = *self.until.get_or_insert(now + self.within);
        let wait = asked.unwrap_or(self.wait);
        self.wait = (self.wait * 2).min(Self::LONGEST);
        (now + wait <= until).then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_in_three_ways_when_to_come_back() {
        let read = |name: &'static str, value: &str| {
            retry_after(&HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]))
        };
        assert_eq!(read("retry-after", " 7"), Some(7));
        assert_eq!(read("retry-after-ms", "1500"), Some(2));
        assert!(read("retry-after", "Fri, 01 Jan 2100 00:00:00 GMT").is_some_and(|seconds| seconds > 1_000_000));
        assert_eq!(read("retry-after", "Sat, 01 Jan 2000 00:00:00 GMT"), None);
        assert_eq!(read("retry-after", "soon"), None);
    }

    #[test]
    fn waits_double_within_the_time_and_obey_the_server() {
        let start = Instant::now();
        let waits = |asked: Option<Duration>| {
            let mut retries = Retries::new(Duration::from_secs(20));
            let mut now = start;
            let mut waited = Vec::new();
            while let Some(wait) = retries.next(now, asked) {
                waited.push(wait.as_millis());
                now += wait;
            }
            waited
        };
        assert_eq!(waits(None), [250, 500, 1000, 2000, 4000, 5000, 5000]);
        assert_eq!(waits(Some(Duration::from_secs(9))), [9000, 9000]);
        assert_eq!(waits(Some(Duration::from_secs(21))), [0; 0]);
    }
}
