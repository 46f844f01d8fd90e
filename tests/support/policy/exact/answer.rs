//! What each kind of server says of the tokens that it sampled.

use serde_json::{Value, json};

use super::super::script::Fault;
use super::vocabulary::bytes;
use super::{Kind, Sampled, Tongue};

/// How a reply ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    Stop,
    Length,
    /// The stop string.
    Word(String),
}

/// One reply that is to be written.
pub struct Answer<'a> {
    pub kind: Kind,
    pub tongue: &'a Tongue,
    pub request: &'a Value,
    pub prompt: usize,
    pub sampled: &'a [Sampled],
    pub ended: Ended,
    pub fault: Option<&'a Fault>,
    /// The weights of each run of tokens, from which on.
    pub weights: Vec<(usize, String)>,
}

impl Answer<'_> {
    /// The events of a stream, without `[DONE]`; one for each token.
    pub fn events(&self) -> Vec<Value> {
        let count = self.sampled.len();
        match self.kind {
            Kind::Vllm | Kind::VllmCompletions => {
                let mut events: Vec<Value> = (0..count).map(|at| self.vllm(at..at + 1, at + 1 == count)).collect();
                let mut last = json!({"request_id": "generate-tokens-1", "choices": []});
                last["usage"] = self.usage(count);
                events.push(last);
                events
            }
            // Only with --incremental-streaming-output; otherwise each event would hold all tokens.
            Kind::Sglang => (0..count).map(|at| self.sglang(at..at + 1, at + 1 == count)).collect(),
            Kind::Llamacpp => panic!("llama.cpp is asked for a stream, in which it loses ids"),
        }
    }

    /// The whole body.
    pub fn whole(&self) -> Value {
        let count = self.sampled.len();
        match self.kind {
            Kind::Vllm | Kind::VllmCompletions => self.vllm(0..count, true),
            Kind::Sglang => self.sglang(0..count, true),
            Kind::Llamacpp => self.llamacpp(),
        }
    }

    fn ids(&self, range: std::ops::Range<usize>) -> Vec<u32> {
        let mut ids: Vec<u32> = self.sampled[range.clone()].iter().map(|token| token.id).collect();
        if let (Some(Fault::Foreign { id }), true) = (self.fault, range.contains(&0)) {
            ids[0] = *id;
        }
        ids
    }

    /// A log-probability as it is written, also one that JSON has no number for.
    fn logprob(&self, at: usize) -> Value {
        match self.fault {
            Some(Fault::Logprob { value }) if at == 0 => serde_json::from_str(value).unwrap(),
            _ => json!(self.sampled[at].logprob),
        }
    }

    fn usage(&self, told: usize) -> Value {
        let (prompt, completion) = match self.fault {
            Some(Fault::Miscount { prompt, completion }) => (*prompt, *completion),
            _ => (0, 0),
        };
        let prompt = i64::try_from(self.prompt).unwrap() + prompt;
        let completion = i64::try_from(told).unwrap() + completion;
        json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
    }

    fn text(&self, range: std::ops::Range<usize>) -> String {
        self.tongue.decode(&self.ids(range))
    }

    fn weight_versions(&self) -> Value {
        let end = |at: usize| self.weights.get(at + 1).map_or(self.sampled.len(), |(start, _)| *start);
        let spans = self.weights.iter().enumerate();
        spans.map(|(at, (start, version))| json!({"version": version, "start": start, "end": end(at)})).collect()
    }

    fn vllm(&self, range: std::ops::Range<usize>, last: bool) -> Value {
        let finish = match &self.ended {
            _ if !last => Value::Null,
            Ended::Length => json!("length"),
            Ended::Stop | Ended::Word(_) => json!("stop"),
        };
        let stop = match &self.ended {
            Ended::Word(word) if last => json!(word),
            _ => Value::Null,
        };
        let mut choice = json!({"index": 0, "finish_reason": finish, "stop_reason": stop, "token_ids": self.ids(range.clone())});
        if self.kind == Kind::Vllm {
            let entry =
                |at| json!({"token_id": self.ids(at..at + 1)[0], "logprob": self.logprob(at), "rank": 1, "top_logprobs": []});
            choice["logprobs"] = json!({"content": range.clone().map(entry).collect::<Vec<_>>()});
            if self.request["output_mode"] == "text" {
                choice["text"] = json!(self.text(range.clone()));
            }
            choice["routed_experts"] = Value::Null;
            choice["sampling_mask"] = Value::Null;
            choice["weight_versions"] = if last { self.weight_versions() } else { Value::Null };
        } else {
            let texts: Vec<String> = range.clone().map(|at| self.text(at..at + 1)).collect();
            choice["text"] = json!(self.text(range.clone()));
            choice["logprobs"] = json!({"tokens": texts, "token_logprobs": range.clone().map(|at| self.logprob(at)).collect::<Vec<_>>(),
                                        "text_offset": vec![0; range.len()], "top_logprobs": vec![Value::Null; range.len()]});
        }
        json!({"request_id": "generate-tokens-1", "choices": [choice], "usage": self.usage(range.end)})
    }

    fn sglang(&self, range: std::ops::Range<usize>, last: bool) -> Value {
        let finish = match &self.ended {
            _ if !last => Value::Null,
            Ended::Length => json!({"type": "length", "length": self.sampled.len()}),
            Ended::Stop => json!({"type": "stop", "matched": self.sampled.last().map(|token| token.id)}),
            Ended::Word(word) => json!({"type": "stop", "matched": word}),
        };
        let pairs: Vec<Value> = range.clone().map(|at| json!([self.logprob(at), self.ids(at..at + 1)[0], null])).collect();
        let mut meta = self.usage(range.end);
        meta["id"] = json!("r");
        meta["finish_reason"] = finish;
        meta["weight_version"] = json!(self.weights.last().map(|(_, version)| version));
        meta["weight_versions"] = self.weight_versions();
        meta["output_token_logprobs"] = json!(pairs);
        json!({"text": self.text(range.clone()), "output_ids": self.ids(range), "meta_info": meta})
    }

    /// Tokens that leave a character incomplete have ids and no log-probability, as with the real server; a stop string's tokens too.
    fn llamacpp(&self) -> Value {
        let (mut entries, mut pending) = (Vec::new(), Vec::new());
        for (at, token) in self.sampled.iter().enumerate() {
            pending.extend(bytes(token.id));
            let incomplete = std::str::from_utf8(&pending).is_err_and(|error| error.error_len().is_none());
            if !incomplete {
                let text = String::from_utf8_lossy(&pending).into_owned();
                entries.push(
                    json!({"id": self.ids(at..at + 1)[0], "token": text, "bytes": text.as_bytes(), "logprob": self.logprob(at),
                                    "top_logprobs": []}),
                );
                pending.clear();
            }
        }
        let (kind, word) = match &self.ended {
            Ended::Stop => ("eos", ""),
            Ended::Length => ("limit", ""),
            Ended::Word(word) => ("word", &word[..]),
        };
        if !word.is_empty() {
            entries.truncate(entries.len().saturating_sub(super::vocabulary::encode(word).len()));
        }
        let usage = self.usage(self.sampled.len());
        let text = self.text(0..self.sampled.len());
        let told = text.find(word).filter(|_| !word.is_empty()).unwrap_or(text.len());
        json!({"content": text[..told], "tokens": self.ids(0..self.sampled.len()), "stop_type": kind, "stopping_word": word,
               "truncated": false, "tokens_evaluated": usage["prompt_tokens"], "tokens_predicted": usage["completion_tokens"],
               "completion_probabilities": entries, "timings": {"cache_n": 0}})
    }
}
