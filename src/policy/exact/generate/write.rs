//! Writes what a generate endpoint is asked: ids, sampling under the server's own names, and a grammar where one is wanted.

use bytes::Bytes;

use super::Endpoint;
use super::grammar::Grammar;
use crate::call::{Call, Sampling, ToolChoice, quote};
use crate::policy::body::{field, write_fractions};

/// A reply that is asked for.
pub(in crate::policy::exact) struct Asked<'a> {
    pub call: &'a Call,
    pub model: &'a str,
    /// The prompt, and what was sampled of the reply before it broke off.
    pub prompt: &'a [u32],
    pub sampled: &'a [u32],
    pub sampling: &'a Sampling,
    /// The most tokens that may still come; `None`: as many as the window leaves.
    pub max_tokens: Option<u64>,
    pub stream: bool,
    /// The server is to say what the tokens read as.
    pub text: bool,
    /// How many of the likeliest tokens are wanted with each.
    pub alternatives: u32,
}

/// A request that is ready to go.
pub(in crate::policy::exact) struct Written {
    pub body: Bytes,
    /// What the endpoint has no place for, for people.
    pub notes: Vec<String>,
}

/// What is held over a reply's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::policy::exact) struct Held {
    pub grammar: bool,
    /// Something else keeps tokens from being drawn, or makes others likelier.
    pub narrowed: bool,
}

/// Settings beside the neutral call's own fields, and what each server calls them: vLLM (both endpoints), `SGLang`, llama.cpp.
const SETTINGS: [(&str, [Option<&str>; 3]); 24] = [
    ("min_tokens", [Some("min_tokens"), Some("min_new_tokens"), None]),
    ("min_new_tokens", [Some("min_tokens"), Some("min_new_tokens"), None]),
    ("ignore_eos", [Some("ignore_eos"); 3]),
    ("stop_token_ids", [Some("stop_token_ids"), Some("stop_token_ids"), None]),
    ("logit_bias", [Some("logit_bias"); 3]),
    ("bad_words", [Some("bad_words"), None, None]),
    ("allowed_token_ids", [Some("allowed_token_ids"), None, None]),
    ("thinking_token_budget", [Some("thinking_token_budget"), None, None]),
    ("repetition_detection", [Some("repetition_detection"), None, None]),
    ("include_stop_str_in_output", [None; 3]),
    ("length_penalty", [None; 3]),
    ("stop_regex", [None, Some("stop_regex"), None]),
    ("custom_params", [None, Some("custom_params"), None]),
    ("typical_p", [None, None, Some("typical_p")]),
    ("top_n_sigma", [None, None, Some("top_n_sigma")]),
    ("dynatemp_range", [None, None, Some("dynatemp_range")]),
    ("dynatemp_exponent", [None, None, Some("dynatemp_exponent")]),
    ("mirostat", [None, None, Some("mirostat")]),
    ("mirostat_tau", [None, None, Some("mirostat_tau")]),
    ("mirostat_eta", [None, None, Some("mirostat_eta")]),
    ("xtc_probability", [None, None, Some("xtc_probability")]),
    ("xtc_threshold", [None, None, Some("xtc_threshold")]),
    ("dry_multiplier", [None, None, Some("dry_multiplier")]),
    ("dry_base", [None, None, Some("dry_base")]),
];

/// Those of them that change which tokens can be drawn.
const NARROWING: [&str; 5] = ["logit_bias", "bad_words", "allowed_token_ids", "min_tokens", "min_new_tokens"];

/// The fields of llama.cpp's answer that are wanted: not the prompt's text, which it would repeat.
const LLAMACPP_FIELDS: &[u8] = br#"["content","tokens","completion_probabilities","stop_type","stopping_word","truncated","tokens_predicted","tokens_evaluated","tokens_cached","generation_settings","timings"]"#;

/// Writes a request for `endpoint`.
pub(in crate::policy::exact) fn write(endpoint: Endpoint, asked: &Asked) -> Written {
    let mut writing =
        Writing { out: Vec::with_capacity(512 + 7 * (asked.prompt.len() + asked.sampled.len())), notes: Vec::new() };
    match endpoint {
        Endpoint::VllmGenerate => writing.vllm_generate(asked),
        Endpoint::VllmCompletions => writing.vllm_completions(asked),
        Endpoint::Sglang { .. } => writing.sglang(asked),
        Endpoint::Llamacpp => writing.llamacpp(asked),
    }
    let forced = matches!(asked.call.tool_choice, Some(ToolChoice::Required | ToolChoice::Named { .. }));
    if forced && !asked.call.tools.is_empty() {
        writing
            .notes
            .push("tool_choice is not forced: generate endpoints take no tools, the model is only told of them".to_owned());
    }
    Written { body: writing.out.into(), notes: writing.notes }
}

/// What `endpoint` holds over the tokens of the reply to a call.
pub(in crate::policy::exact) fn held(endpoint: Endpoint, call: &Call, sampling: &Sampling) -> Held {
    let spelling = Spelling::of(endpoint);
    let narrows = |(name, spelt, _): &Setting| NARROWING.contains(name) && spelt[spelling as usize].is_some();
    Held {
        grammar: Grammar::asked(call).is_some_and(|grammar| grammar.spelt(spelling).is_some()),
        narrowed: settings(call, sampling).iter().any(narrows),
    }
}

/// A setting: its own name, the servers' names, and its value.
type Setting = (&'static str, [Option<&'static str>; 3], Vec<u8>);

/// The settings that are asked for: what is pinned, and what the client wants beside.
fn settings(call: &Call, sampling: &Sampling) -> Vec<Setting> {
    let known = |name: &str| SETTINGS.iter().find(|(known, _)| *known == name);
    let others = sampling.others.iter().filter_map(|(name, value)| Some((*known(name)?, value.to_string().into_bytes())));
    let beside = call.rest.iter().filter_map(|(name, value)| {
        let name = name.decode();
        let new = known(&name).filter(|_| !sampling.others.contains_key(&*name))?;
        Some((*new, value.as_bytes().to_vec()))
    });
    let says_nothing = |value: &[u8]| matches!(value, b"null" | b"{}" | b"[]" | b"\"\"" | b"false" | b"0");
    others.chain(beside).filter(|(_, value)| !says_nothing(value)).map(|((name, spelt), value)| (name, spelt, value)).collect()
}

struct Writing {
    out: Vec<u8>,
    notes: Vec<String>,
}

/// A server's own names.
#[derive(Clone, Copy)]
pub(super) enum Spelling {
    Vllm,
    Sglang,
    Llamacpp,
}

impl Spelling {
    fn of(endpoint: Endpoint) -> Self {
        match endpoint {
            Endpoint::VllmGenerate | Endpoint::VllmCompletions => Self::Vllm,
            Endpoint::Sglang { .. } => Self::Sglang,
            Endpoint::Llamacpp => Self::Llamacpp,
        }
    }
}

impl Writing {
    fn vllm_generate(&mut self, asked: &Asked) {
        self.begin_with_model(asked);
        self.ids("token_ids", asked);
        self.out.extend_from_slice(b",\"sampling_params\":{\"skip_special_tokens\":false");
        self.vllm_sampling(asked);
        if let Some(limit) = asked.max_tokens {
            self.field("max_tokens", limit.to_string().as_bytes());
        }
        self.out.push(b'}');
        if asked.text {
            self.field("output_mode", b"\"text\"");
        }
        self.vllm_stream(asked);
    }

    fn vllm_completions(&mut self, asked: &Asked) {
        self.begin_with_model(asked);
        self.ids("prompt", asked);
        self.field("return_token_ids", b"true");
        self.field("skip_special_tokens", b"false");
        self.vllm_sampling(asked);
        // Without the field, the reply would end after sixteen tokens.
        self.limit("max_tokens", asked.max_tokens, b"null");
        self.vllm_stream(asked);
    }

    fn vllm_sampling(&mut self, asked: &Asked) {
        self.sampling(asked, Spelling::Vllm);
        self.field("logprobs", asked.alternatives.to_string().as_bytes());
        self.grammar(asked.call, Spelling::Vllm);
    }

    fn vllm_stream(&mut self, asked: &Asked) {
        if asked.stream {
            // With each event, so that the count of a reply that breaks off is known.
            self.field("stream", b"true");
            self.field("stream_options", b"{\"include_usage\":true,\"continuous_usage_stats\":true}");
        }
        self.out.push(b'}');
    }

    fn sglang(&mut self, asked: &Asked) {
        self.out.push(b'{');
        self.ids("input_ids", asked);
        self.out.extend_from_slice(b",\"sampling_params\":{\"skip_special_tokens\":false");
        self.sampling(asked, Spelling::Sglang);
        // Without the field, the reply would end after 128 tokens.
        self.limit("max_new_tokens", asked.max_tokens, b"null");
        self.grammar(asked.call, Spelling::Sglang);
        self.out.extend_from_slice(b"},\"return_logprob\":true");
        if asked.alternatives > 0 {
            self.field("top_logprobs_num", asked.alternatives.to_string().as_bytes());
            self.field("return_text_in_logprobs", b"true");
        }
        let stream: &[u8] = if asked.stream { b"true" } else { b"false" };
        self.field("stream", stream);
        self.out.push(b'}');
    }

    fn llamacpp(&mut self, asked: &Asked) {
        self.out.push(b'{');
        self.ids("prompt", asked);
        self.sampling(asked, Spelling::Llamacpp);
        self.limit("n_predict", asked.max_tokens, b"-1");
        self.grammar(asked.call, Spelling::Llamacpp);
        self.field("n_probs", asked.alternatives.max(1).to_string().as_bytes());
        self.field("return_tokens", b"true");
        self.field("cache_prompt", b"true");
        self.field("stream", b"false");
        self.field("response_fields", LLAMACPP_FIELDS);
        self.out.push(b'}');
    }

    fn begin_with_model(&mut self, asked: &Asked) {
        self.out.extend_from_slice(b"{\"model\":");
        quote(&mut self.out, asked.model);
        self.out.push(b',');
    }

    /// Writes the prompt's ids, and those sampled before; the first field but the model.
    fn ids(&mut self, name: &str, asked: &Asked) {
        quote(&mut self.out, name);
        self.out.extend_from_slice(b":[");
        for (at, id) in asked.prompt.iter().chain(asked.sampled).enumerate() {
            if at > 0 {
                self.out.push(b',');
            }
            push_number(&mut self.out, *id);
        }
        self.out.push(b']');
    }

    fn limit(&mut self, name: &str, limit: Option<u64>, none: &[u8]) {
        match limit {
            Some(limit) => self.field(name, limit.to_string().as_bytes()),
            None => self.field(name, none),
        }
    }

    fn sampling(&mut self, asked: &Asked, spelling: Spelling) {
        let sampling = asked.sampling;
        let repetition = if matches!(spelling, Spelling::Llamacpp) { "repeat_penalty" } else { "repetition_penalty" };
        write_fractions(&mut self.out, sampling, repetition);
        if let Some(top_k) = sampling.top_k {
            // All of them: 0 or less, but for SGLang, to which 0 is none.
            let top_k = if matches!(spelling, Spelling::Sglang) && top_k == 0 { -1 } else { top_k };
            self.field("top_k", top_k.to_string().as_bytes());
        }
        if let Some(seed) = sampling.seed {
            let name = if matches!(spelling, Spelling::Sglang) { "sampling_seed" } else { "seed" };
            self.field(name, seed.to_string().as_bytes());
        }
        if let Some(stop) = sampling.stop.as_ref().filter(|stop| stop.as_str() != "null") {
            self.field("stop", stop.as_bytes());
        }
        self.settings(asked, spelling);
    }

    fn settings(&mut self, asked: &Asked, spelling: Spelling) {
        for (name, spelt, value) in settings(asked.call, asked.sampling) {
            let Some(spelt) = spelt[spelling as usize] else {
                self.notes.push(format!("{name} is not offered by this server's generate endpoint; left out"));
                continue;
            };
            match serde_json::from_slice::<u64>(&value) {
                // What was sampled before counts.
                Ok(least) if name.starts_with("min_") => {
                    let least = least.saturating_sub(asked.sampled.len() as u64);
                    self.field(spelt, least.to_string().as_bytes());
                }
                _ => self.field(spelt, &value),
            }
        }
    }

    fn grammar(&mut self, call: &Call, spelling: Spelling) {
        let Some(grammar) = Grammar::asked(call) else { return };
        match grammar.spelt(spelling) {
            Some((name, value)) => self.field(name, &value),
            None => self.notes.push(format!("{} is not offered by this server's generate endpoint; left out", grammar.name())),
        }
    }

    fn field(&mut self, name: &str, value: &[u8]) {
        field(&mut self.out, name, value);
    }
}

fn push_number(out: &mut Vec<u8>, mut number: u32) {
    let mut digits = [0_u8; 10];
    let mut at = digits.len();
    loop {
        at -= 1;
        let digit = (number % 10) as u8;
        digits[at] = b'0' + digit;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}
