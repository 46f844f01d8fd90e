//! From sampled ids to what they say: text, stop strings, and what the parsers make of it.

use std::sync::Arc;

use super::generate::{Alternative, Said};
use super::model::{Detokenizer, Model};
use super::parse::Parser;
use crate::call::{Call, Event, Extra, Raw, Sampling, Text};
use crate::policy::capture::NO_LOGPROB;

/// Reads one reply's tokens, also across servers.
pub(super) struct Speech {
    call: Arc<Call>,
    model: Model,
    /// None where only the server can read ids.
    detokenizer: Option<Detokenizer>,
    stops: Stops,
    parser: Parser,
}

/// What some tokens said.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Heard {
    /// The stop string that ends the reply here.
    pub stop: Option<String>,
    /// Their log-probabilities, for a client that wants them.
    pub logprobs: Option<Event>,
}

impl Speech {
    pub(super) fn new(call: &Arc<Call>, model: &Model, sampling: &Sampling, parser: Parser) -> Self {
        let detokenizer = model.detokenizer();
        // Where the server says the text, it has cut it.
        let stops = if detokenizer.is_some() { Stops::of(sampling) } else { Stops::default() };
        Self { call: call.clone(), model: model.clone(), detokenizer, stops, parser }
    }

    /// Whether the reply has called a tool.
    pub(super) fn called(&self) -> bool {
        self.parser.called()
    }

    pub(super) fn notes(&mut self) -> Vec<String> {
        self.parser.notes()
    }

    /// Takes the next tokens.
    pub(super) async fn take(&mut self, said: &Said, events: &mut Vec<Event>) -> Heard {
        let pieces: Vec<String> = match &mut self.detokenizer {
            Some(detokenizer) => said.ids.iter().map(|id| detokenizer.push(*id)).collect(),
            None => vec![said.text.clone().unwrap_or_default()],
        };
        let heard = self.stops.push(&pieces.concat());
        self.say(&heard.text, events).await;
        let wanted = self.call.wants.logprobs && !said.logprobs.is_empty();
        let texts = (self.detokenizer.is_some() && pieces.len() == said.logprobs.len()).then_some(&pieces[..]);
        Heard { stop: heard.stop, logprobs: wanted.then(|| self.logprobs(said, texts)) }
    }

    /// Takes the end: what was held back comes out.
    pub(super) async fn finish(&mut self, events: &mut Vec<Event>) -> Option<String> {
        let rest = self.detokenizer.as_mut().map(Detokenizer::finish).unwrap_or_default();
        let heard = self.stops.push(&rest);
        let held = self.stops.finish();
        self.say(&format!("{}{held}", heard.text), events).await;
        if self.call.prompt.is_none() {
            self.parser.finish(events).await;
        }
        heard.stop
    }

    async fn say(&mut self, text: &str, events: &mut Vec<Event>) {
        if text.is_empty() {
            return;
        }
        // What goes on from a prompt that is no conversation has no form.
        if self.call.prompt.is_some() {
            events.push(Event::Text(Text::new(text)));
        } else {
            self.parser.push(text, events).await;
        }
    }

    /// Log-probabilities as a client of chat completions knows them.
    fn logprobs(&self, said: &Said, pieces: Option<&[String]>) -> Event {
        let entries: Vec<serde_json::Value> = said
            .logprobs
            .iter()
            .enumerate()
            .map(|(at, logprob)| {
                let id = said.ids.get(at).copied();
                let text = pieces.map_or_else(|| self.read(id, None), |pieces| pieces[at].clone());
                let top = said.alternatives.get(at).map(|top| &top[..]).unwrap_or_default();
                let most = self.call.wants.top_logprobs.unwrap_or(0) as usize;
                let top: Vec<serde_json::Value> = top.iter().take(most).map(|top| self.alternative(top)).collect();
                serde_json::json!({"token": text, "logprob": finite(*logprob), "bytes": text.as_bytes(), "top_logprobs": top})
            })
            .collect();
        Event::Extra(Extra::Choice {
            name: Text::new("logprobs"),
            value: Raw::from_value(&serde_json::json!({ "content": entries })),
        })
    }

    fn alternative(&self, top: &Alternative) -> serde_json::Value {
        let text = self.read(top.id, top.text.as_deref());
        serde_json::json!({"token": text, "logprob": finite(top.logprob), "bytes": text.as_bytes()})
    }

    /// What one token reads as, by itself.
    fn read(&self, id: Option<u32>, told: Option<&str>) -> String {
        if let Some(told) = told {
            return told.to_owned();
        }
        let Some(id) = id else { return String::new() };
        match self.model.detokenizer() {
            Some(mut detokenizer) => detokenizer.push(id) + &detokenizer.finish(),
            None => format!("token_id:{id}"),
        }
    }
}

/// What JSON can hold; clients know this one as the least.
fn finite(logprob: f64) -> f64 {
    if logprob.is_finite() { logprob } else { NO_LOGPROB }
}

/// Finds stop strings in a text that comes in pieces.
#[derive(Debug, Default)]
struct Stops {
    wanted: Vec<String>,
    /// What may be the beginning of one.
    held: String,
    hit: bool,
}

/// What became of a piece.
struct Cut {
    /// What can be told.
    text: String,
    stop: Option<String>,
}

impl Stops {
    fn of(sampling: &Sampling) -> Self {
        let stops = sampling
            .stop
            .as_ref()
            .and_then(|stop| stop.read::<Vec<String>>().or_else(|_| stop.read::<String>().map(|stop| vec![stop])).ok());
        let stops = stops.unwrap_or_default().into_iter().filter(|stop| !stop.is_empty()).collect();
        Self { wanted: stops, ..Self::default() }
    }

    /// Takes a piece; what stands behind a stop string is not told.
    fn push(&mut self, piece: &str) -> Cut {
        if self.hit {
            return Cut { text: String::new(), stop: None };
        }
        if self.wanted.is_empty() {
            return Cut { text: piece.to_owned(), stop: None };
        }
        let mut text = std::mem::take(&mut self.held);
        text.push_str(piece);
        let found = self.wanted.iter().filter_map(|stop| Some((text.find(stop)?, stop))).min_by_key(|(at, _)| *at);
        if let Some((at, stop)) = found {
            self.hit = true;
            let stop = stop.clone();
            text.truncate(at);
            return Cut { text, stop: Some(stop) };
        }
        let longest = self.wanted.iter().map(String::len).max().unwrap_or(0);
        let from = text.ceil_char_boundary(text.len().saturating_sub(longest - 1));
        let begins = |at: &usize| self.wanted.iter().any(|stop| stop.starts_with(&text[*at..]));
        let held = text[from..].char_indices().map(|(at, _)| from + at).find(begins).unwrap_or(text.len());
        self.held = text.split_off(held);
        Cut { text, stop: None }
    }

    fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stops(list: &[&str]) -> Stops {
        Stops::of(&Sampling { stop: Some(Raw::from_value(&list)), ..Sampling::default() })
    }

    fn told(list: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let mut stops = stops(list);
        let (mut text, mut stop) = (String::new(), None);
        for piece in pieces {
            let cut = stops.push(piece);
            text.push_str(&cut.text);
            stop = stop.or(cut.stop);
        }
        text.push_str(&stops.finish());
        (text, stop)
    }

    #[test]
    fn stop_strings_are_found_wherever_the_text_is_cut() {
        let text = "é 12 END EN ENDING é";
        for size in 1..text.chars().count() {
            let chars: Vec<char> = text.chars().collect();
            let pieces: Vec<String> = chars.chunks(size).map(|piece| piece.iter().collect()).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            assert_eq!(told(&["ENDI", "EN E"], &pieces), ("é 12 END ".to_owned(), Some("EN E".to_owned())), "pieces of {size}");
            assert_eq!(told(&["xyz", "é!"], &pieces), (text.to_owned(), None), "pieces of {size}");
            assert_eq!(told(&[], &pieces), (text.to_owned(), None), "pieces of {size}");
        }
    }

    #[test]
    fn a_stop_may_be_one_string_or_several_and_an_empty_one_is_none() {
        let of =
            |stop: serde_json::Value| Stops::of(&Sampling { stop: Some(Raw::from_value(&stop)), ..Sampling::default() }).wanted;
        assert_eq!(of(serde_json::json!("a")), ["a"]);
        assert_eq!(of(serde_json::json!(["a", "", "b"])), ["a", "b"]);
        assert_eq!(of(serde_json::json!(null)), [""; 0]);
    }
}
