//! What is measured, and what is to be reached.

use std::time::Duration;

use super::wire::{self, Wire};

/// One kind of load.
#[derive(Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// What clients of Gleaner speak; the mock is always asked for chat completions.
    pub wire: &'static Wire,
    /// Connections, each with one call at a time.
    pub clients: usize,
    pub stream: bool,
    /// Bytes of text in the request.
    pub request: usize,
    /// Milliseconds between events.
    pub pace_ms: u64,
    /// Tokens of a streamed reply; three events more than that, and `[DONE]`.
    pub tokens: usize,
    pub goals: &'static [Goal],
}

/// A figure that is to be reached.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// Milliseconds added to the median.
    AddedP50(f64),
    AddedP99(f64),
    /// Of direct's calls per second, with what to aim at.
    Share(f64, f64),
    /// Part of direct's median time that may be added.
    Slower(f64),
    /// Megabytes resident.
    Resident(f64),
    /// Every stream came whole, and in no more than this part beyond direct's median time.
    AllKept(f64),
    /// Processor time of a call, as a multiple of that of this scenario's in the same run.
    Cost(&'static str, f64),
    /// The same of one event.
    EventCost(&'static str, f64),
}

impl Goal {
    /// The scenario that must be in the run too.
    pub fn beside(self) -> Option<&'static str> {
        match self {
            Self::Cost(name, _) | Self::EventCost(name, _) => Some(name),
            _ => None,
        }
    }
}

const BODY: Scenario =
    Scenario { name: "", wire: &wire::CHAT, clients: 1, stream: false, request: 2_000, pace_ms: 0, tokens: 80, goals: &[] };
const STREAM: Scenario = Scenario { stream: true, tokens: 200, ..BODY };
const BODY_32: Scenario = Scenario { clients: 32, ..BODY };
const STREAM_32: Scenario = Scenario { clients: 32, ..STREAM };
const NEAR_CHAT: &[Goal] = &[Goal::Cost("body-c32", 1.15)];
const NEAR_CHAT_STREAM: &[Goal] = &[Goal::Cost("stream-c32", 1.15)];

/// All of them.
pub static ALL: [Scenario; 17] = [
    Scenario { name: "body-c1", goals: &[Goal::AddedP50(0.20), Goal::AddedP99(0.5)], ..BODY },
    Scenario { name: "body-c32", clients: 32, goals: &[Goal::Share(0.12, 0.17)], ..BODY },
    Scenario { name: "body-c256", clients: 256, goals: &[Goal::Resident(60.0)], ..BODY },
    Scenario { name: "200kb-c32", clients: 32, request: 200_000, goals: &[Goal::Share(0.18, 0.22)], ..BODY },
    // A stall of 40 ms (Nagle and delayed acknowledgements) shows at one client first.
    Scenario { name: "stream-c1", goals: &[Goal::AddedP50(5.0)], ..STREAM },
    Scenario { name: "stream-c32", clients: 32, goals: &[Goal::Share(0.65, 0.80)], ..STREAM },
    Scenario { name: "paced5-c32", clients: 32, pace_ms: 5, goals: &[Goal::Slower(0.02)], ..STREAM },
    Scenario { name: "paced20-c512", clients: 512, pace_ms: 20, tokens: 60, goals: &[Goal::AllKept(0.10)], ..STREAM },
    // An event costs the same however long the reply is.
    Scenario { name: "10k-stream-c1", tokens: 10_000, goals: &[Goal::EventCost("stream-c1", 1.3)], ..STREAM },
    Scenario { name: "messages-c32", wire: &wire::MESSAGES, goals: NEAR_CHAT, ..BODY_32 },
    Scenario { name: "messages-st32", wire: &wire::MESSAGES, goals: NEAR_CHAT_STREAM, ..STREAM_32 },
    Scenario { name: "gemini-c32", wire: &wire::GEMINI, goals: NEAR_CHAT, ..BODY_32 },
    Scenario { name: "gemini-st32", wire: &wire::GEMINI, goals: NEAR_CHAT_STREAM, ..STREAM_32 },
    Scenario { name: "responses-c32", wire: &wire::RESPONSES, goals: &[Goal::Cost("body-c32", f64::INFINITY)], ..BODY_32 },
    Scenario { name: "responses-st32", wire: &wire::RESPONSES, goals: &[Goal::Cost("stream-c32", f64::INFINITY)], ..STREAM_32 },
    Scenario { name: "complet.-c32", wire: &wire::COMPLETIONS, goals: &[Goal::Cost("body-c32", f64::INFINITY)], ..BODY_32 },
    Scenario { name: "complet.-st32", wire: &wire::COMPLETIONS, goals: &[Goal::Cost("stream-c32", f64::INFINITY)], ..STREAM_32 },
];

impl Scenario {
    /// The request's body, for a client of this wire.
    pub fn body(&self, wire: &Wire) -> Vec<u8> {
        // Not one word again and again: what is stored is compressed, and that shall cost what it costs in life.
        let mut text = String::with_capacity(self.request + 16);
        let mut state = 7_u32;
        while text.len() < self.request {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            text.push_str(
                ["error ", "return ", "fn main() ", "the ", "file ", "\\n  at line ", "value ", "x = "]
                    [(state >> 20) as usize % 8],
            );
            text.push_str(&format!("{} ", (state >> 12) % 1_000));
        }
        let system = &text[..200.min(text.len())].trim_end_matches('\\');
        let own = format!(r#""stream":{},"seed":{},"bench_tokens":{}"#, self.stream, self.pace_ms, self.tokens);
        wire.body(system, &text, self.stream, &own).into_bytes()
    }

    /// Warm-up and measured time. A paced stream is as long as it is, warm or not.
    pub fn times(&self, direct: bool, quick: bool) -> (Duration, Duration) {
        let millis = Duration::from_millis;
        match (self.pace_ms > 0, direct, quick) {
            (true, _, true) => (millis(0), millis(100)),
            (true, _, false) => (millis(0), millis(3_000)),
            (false, _, true) => (millis(100), millis(200)),
            (false, true, false) => (millis(400), millis(1_100)),
            (false, false, false) => (millis(400), millis(1_800)),
        }
    }
}
