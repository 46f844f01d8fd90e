//! What is known of a reply's tokens, checked against the server's own counts.

use super::Prepared;
use super::kind::Dialect;
use crate::call::{Call, Capture, CaptureLevel, LogprobKind, Reply, ToolChoice};

/// What servers give in place of a log-probability that is not a number, or of a token that could not come (vLLM and `SGLang`;
/// llama.cpp's is lower). Clients know it as the least.
pub(super) const NO_LOGPROB: f64 = -9999.0;

/// Whether a number that stands for a log-probability is one.
pub(super) fn is_logprob(number: f64) -> bool {
    number.is_finite() && number <= 0.0 && number > NO_LOGPROB
}

/// Checks the tokens of a reply to `prepared`, for which the server itself held a grammar or did not. `declared` is what the config
/// says of its log-probabilities.
pub(super) fn of(
    dialect: Dialect,
    declared: Option<LogprobKind>,
    prepared: &Prepared,
    grammar_held: bool,
    prompt: Result<Vec<u32>, String>,
    reply: &Reply,
) -> Capture {
    let grammar = grammar_held || asks_grammar(&prepared.call);
    let constrained = grammar || asks_narrowed(&prepared.call);
    if let Some(reason) = dialect.blind() {
        return Capture { reason: Some(reason.to_owned()), constrained, ..Capture::default() };
    }
    let logprob_kind = dialect.logprob_kind(declared, &prepared.sampling_used, grammar);
    check(Claim { prompt, logprob_kind, constrained }, reply)
}

/// What a policy knows of a reply's tokens.
pub(super) struct Claim {
    /// The prompt's ids, or why they are not known.
    pub prompt: Result<Vec<u32>, String>,
    pub logprob_kind: LogprobKind,
    pub constrained: bool,
}

/// Checks the ids and log-probabilities of a reply. Nothing is padded or guessed: what does not add up is said in numbers.
pub(super) fn check(claim: Claim, reply: &Reply) -> Capture {
    let Claim { prompt, logprob_kind, constrained } = claim;
    let at = |level, reason| Capture { level, reason, logprob_kind, constrained, ..Capture::default() };
    let (ids, logprobs) = (&reply.tokens.ids, &reply.tokens.logprobs);
    // What ids there are is kept, so that it shows that some came and were not enough.
    let text = |reason: String, prompt_ids: Vec<u32>| Capture {
        prompt_ids,
        completion_ids: ids.clone(),
        ..at(CaptureLevel::Text, Some(reason))
    };
    let prompt_ids = match prompt {
        Ok(ids) => ids,
        Err(reason) => return text(reason, Vec::new()),
    };
    let Some(usage) = reply.usage else {
        return text("the server gave no usage to check the ids against".to_owned(), prompt_ids);
    };
    if prompt_ids.len() as u64 != usage.prompt_tokens {
        let reason = format!("{} prompt ids, but the server counted {} tokens", prompt_ids.len(), usage.prompt_tokens);
        return text(reason, prompt_ids);
    }
    if ids.len() as u64 != usage.completion_tokens {
        let reason = format!("{} completion ids, but the server counted {} tokens", ids.len(), usage.completion_tokens);
        return text(reason, prompt_ids);
    }
    let completion_ids = ids.clone();
    if logprobs.len() != ids.len() {
        let reason = format!("{} log-probabilities for {} completion ids", logprobs.len(), ids.len());
        return Capture { prompt_ids, completion_ids, ..at(CaptureLevel::Ids, Some(reason)) };
    }
    if let Some(at_index) = logprobs.iter().position(|logprob| !is_logprob(*logprob)) {
        let reason = format!("log-probability {} of token {at_index} is none", logprobs[at_index]);
        return Capture { prompt_ids, completion_ids, ..at(CaptureLevel::Ids, Some(reason)) };
    }
    Capture { prompt_ids, completion_ids, logprobs: logprobs.clone(), ..at(CaptureLevel::Full, None) }
}

/// Fields of chat completions, beside the neutral call's own, that make a server draw from fewer tokens than the model's
/// distribution has, so that the model's log-probabilities are not the ones that were drawn with.
const GRAMMARS: [&str; 10] = [
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "json_schema",
    // SGLang's.
    "regex",
    "ebnf",
    "structural_tag",
];
const NARROWING: [&str; 4] = ["logit_bias", "bad_words", "allowed_token_ids", "min_tokens"];

/// Whether a call asks for tokens under a grammar.
pub(super) fn asks_grammar(call: &Call) -> bool {
    let forced = matches!(call.tool_choice, Some(ToolChoice::Required | ToolChoice::Named { .. })) && !call.tools.is_empty();
    let formatted = call.response_format.as_ref().is_some_and(|format| {
        #[derive(serde::Deserialize)]
        struct Format<'a> {
            #[serde(borrow, rename = "type")]
            kind: std::borrow::Cow<'a, str>,
        }
        format.as_str() != "null" && format.read::<Format>().map_or(true, |format| format.kind != "text")
    });
    forced || formatted || asks(call, &GRAMMARS)
}

/// Whether a call's own settings keep tokens from being drawn, or make others likelier, without a grammar.
pub(super) fn asks_narrowed(call: &Call) -> bool {
    asks(call, &NARROWING)
}

fn asks(call: &Call, names: &[&str]) -> bool {
    let nothing = |raw: &str| matches!(raw, "null" | "{}" | "[]" | "0" | "\"\"");
    call.rest.iter().any(|(name, value)| names.contains(&&*name.decode()) && !nothing(value.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Raw, Text, Tokens, Usage};
    use crate::policy::stub::call;

    fn reply(ids: &[u32], logprobs: &[f64], completion_tokens: u64) -> Reply {
        Reply {
            tokens: Tokens { ids: ids.to_vec(), logprobs: logprobs.to_vec() },
            usage: Some(Usage { prompt_tokens: 2, completion_tokens, ..Usage::default() }),
            ..Reply::default()
        }
    }

    fn checked(prompt: Result<Vec<u32>, String>, reply: &Reply) -> (CaptureLevel, Option<String>, [usize; 3]) {
        let capture = check(Claim { prompt, logprob_kind: LogprobKind::Raw, constrained: false }, reply);
        let lengths = [capture.prompt_ids.len(), capture.completion_ids.len(), capture.logprobs.len()];
        (capture.level, capture.reason, lengths)
    }

    #[test]
    fn a_level_is_what_the_counts_prove() {
        let prompt = || Ok(vec![1, 2]);
        let say = |reason: &str| Some(reason.to_owned());
        assert_eq!(checked(prompt(), &reply(&[3, 4], &[-0.5, -0.0], 2)), (CaptureLevel::Full, None, [2, 2, 2]));
        let short = checked(prompt(), &reply(&[3, 4], &[-0.5], 2));
        assert_eq!(short, (CaptureLevel::Ids, say("1 log-probabilities for 2 completion ids"), [2, 2, 0]));
        let positive = checked(prompt(), &reply(&[3], &[0.5], 1));
        assert_eq!(positive, (CaptureLevel::Ids, say("log-probability 0.5 of token 0 is none"), [2, 1, 0]));
        let placeholder = checked(prompt(), &reply(&[3, 4], &[-0.5, -9999.0], 2));
        assert_eq!(placeholder, (CaptureLevel::Ids, say("log-probability -9999 of token 1 is none"), [2, 2, 0]));
        let lost = checked(prompt(), &reply(&[3], &[-0.5], 4));
        assert_eq!(lost, (CaptureLevel::Text, say("1 completion ids, but the server counted 4 tokens"), [2, 1, 0]));
        let other = checked(Ok(vec![1]), &reply(&[3], &[-0.5], 1));
        assert_eq!(other, (CaptureLevel::Text, say("1 prompt ids, but the server counted 2 tokens"), [1, 1, 0]));
        let none = checked(Err("no ids".to_owned()), &reply(&[3], &[-0.5], 1));
        assert_eq!(none, (CaptureLevel::Text, say("no ids"), [0, 1, 0]));
        let blind = Reply { usage: None, ..reply(&[3], &[-0.5], 1) };
        assert_eq!(checked(prompt(), &blind).1, say("the server gave no usage to check the ids against"));
    }

    #[test]
    fn grammars_are_noticed() {
        assert!(!asks_grammar(&call()));
        let format = |json: serde_json::Value| {
            let mut call = call();
            call.response_format = Some(Raw::from_value(&json));
            asks_grammar(&call)
        };
        assert!(!format(serde_json::json!({"type": "text"})));
        assert!(format(serde_json::json!({"type": "json_object"})));
        let mut guided = call();
        guided.rest.push((Text::new("guided_regex"), Raw::from_value(&"a+")));
        assert!(asks_grammar(&guided) && !asks_narrowed(&guided));
        let mut biased = call();
        biased.rest.push((Text::new("logit_bias"), Raw::from_value(&serde_json::json!({"7": -100}))));
        assert!(asks_narrowed(&biased) && !asks_grammar(&biased));
    }
}
