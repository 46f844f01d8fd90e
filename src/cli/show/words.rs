//! What token ids read as: what servers named in their replies, or what a tokenizer says.

use std::collections::HashMap;

use serde::Deserialize;

use super::super::terminal::{Paint, harmless};
use crate::policy::Texts;

/// The texts of ids.
#[derive(Default)]
pub(super) struct Words {
    named: HashMap<u32, String>,
    tokenizer: Option<Texts>,
}

impl Words {
    /// Reads all ids by a tokenizer where there is one.
    pub(super) fn new(tokenizer: Option<Texts>) -> Self {
        Self { named: HashMap::new(), tokenizer }
    }

    /// Learns from a server's raw reply, of which `ids` were sampled.
    pub(super) fn learn(&mut self, response: &[u8], ids: &[u32]) {
        let entries = entries(response);
        let counted = entries.len() == ids.len();
        for (at, Entry { id, token }) in entries.into_iter().enumerate() {
            let id = id.or_else(|| ids.get(at).copied().filter(|_| counted));
            if let Some(id) = id.filter(|_| !token.starts_with("token_id:")) {
                self.named.insert(id, token);
            }
        }
    }

    fn of(&self, id: u32) -> Option<String> {
        self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.read(&[id])).or_else(|| self.named.get(&id).cloned())
    }

    /// Ids with their texts; on a terminal the texts alone where all are known, as they read together. `logprobs` is empty, or one for each.
    pub(super) fn line(&self, ids: &[u32], logprobs: &[Option<f64>], paint: Paint) -> String {
        let texts: Vec<Option<String>> = ids.iter().map(|id| self.of(*id)).collect();
        let reads = paint.is_on() && !ids.is_empty() && texts.iter().all(Option::is_some);
        if reads && logprobs.is_empty() {
            return paint.dim(&harmless(&self.together(ids, &texts)).replace('\n', "\n  "));
        }
        let words = ids.iter().zip(&texts).enumerate().map(|(at, (id, text))| {
            let logprob = logprobs.get(at).copied().flatten();
            let word = match text {
                Some(text) if reads => harmless(text).replace('\n', "\u{23ce}\n  "),
                Some(text) => format!("{id} {text:?}"),
                None => id.to_string(),
            };
            match logprob {
                Some(logprob) if paint.is_on() => paint.shade(&word, logprob.exp()),
                Some(logprob) => format!("{word} {logprob:.2}"),
                None => paint.dim(&word),
            }
        });
        words.collect::<Vec<_>>().join(if reads { "" } else { " " })
    }

    /// Characters may need several tokens.
    fn together(&self, ids: &[u32], texts: &[Option<String>]) -> String {
        let read = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.read(ids));
        read.unwrap_or_else(|| texts.iter().flatten().map(String::as_str).collect())
    }
}

/// A reply or one chunk of it, as far as it names tokens: chat completions', or llama.cpp's own.
#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    completion_probabilities: Vec<Entry>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    logprobs: Option<Logprobs>,
}

#[derive(Deserialize)]
struct Logprobs {
    #[serde(default)]
    content: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    id: Option<u32>,
    token: String,
}

/// The sampled tokens that a server's raw answer names: a whole reply, or a stream of chunks.
fn entries(response: &[u8]) -> Vec<Entry> {
    let chunks: Vec<Chunk> = match serde_json::from_slice(response) {
        Ok(whole) => vec![whole],
        Err(_) => response
            .split(|byte| *byte == b'\n' || *byte == b'\r')
            .filter_map(|line| line.strip_prefix(b"data:"))
            .filter_map(|data| serde_json::from_slice(data).ok())
            .collect(),
    };
    let entries = chunks.into_iter().flat_map(|chunk| {
        let chosen = chunk.choices.into_iter().filter_map(|choice| choice.logprobs?.content).flatten();
        chosen.chain(chunk.completion_probabilities)
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(response: &[u8], ids: &[u32]) -> Words {
        let mut words = Words::default();
        words.learn(response, ids);
        words
    }

    #[test]
    fn token_texts_are_read_from_streams_and_whole_replies() {
        let stream =
            b"data: {\"choices\":[{\"delta\":{},\"logprobs\":{\"content\":[{\"token\":\"He\",\"logprob\":-1}]}}]}\r\n\r\n\
            : ping\ndata: {\"choices\":[{\"logprobs\":null}]}\n\ndata: {\"choices\":[]}\n\
            data:{\"choices\":[{\"logprobs\":{\"content\":[{\"token\":\"y\"}]}}]}\n\ndata: [DONE]\n\n";
        assert_eq!(learned(stream, &[7, 8]).line(&[8, 7, 9], &[], Paint::none()), "8 \"y\" 7 \"He\" 9");
        // Without an id, one too few says nothing of any.
        assert_eq!(learned(stream, &[7, 8, 9]).line(&[7], &[], Paint::none()), "7");
        let whole = br#"{"completion_probabilities":[{"id":3,"token":" a","logprob":-1},{"id":4,"token":"token_id:4"}]}"#;
        assert_eq!(learned(whole, &[]).line(&[3, 4], &[], Paint::none()), "3 \" a\" 4");
        assert!(learned(b"<html>", &[]).named.is_empty());
    }

    #[test]
    fn log_probabilities_are_numbers_in_a_pipe_and_shades_on_a_terminal() {
        let whole = br#"{"completion_probabilities":[{"id":3,"token":" a"},{"id":4,"token":"b\n"}]}"#;
        let words = learned(whole, &[]);
        let logprobs = [Some(-0.01), Some(-5.0)];
        assert_eq!(words.line(&[3, 4], &logprobs, Paint::none()), "3 \" a\" -0.01 4 \"b\\n\" -5.00");
        let shown = words.line(&[3, 4], &logprobs, Paint::always());
        let (likely, unlikely) = (Paint::always().shade(" a", 0.99), Paint::always().shade("b\u{23ce}\n  ", 0.0067));
        assert_eq!(shown, [likely.as_str(), &unlikely].concat());
        assert_ne!(likely.split('a').next(), unlikely.split('b').next());
        assert_eq!(words.line(&[3, 4], &[], Paint::always()), Paint::always().dim(" ab\n  "));
    }
}
