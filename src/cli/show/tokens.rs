//! The forest of a rollout's tokens: each sample by mask, from where it leaves another.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::super::terminal::Paint;
use super::words::Words;
use crate::ids::CallId;
use crate::trajectory::{Built, Sample, Span};

/// Of a long run of context, so many ids are printed at each end.
const ENDS: usize = 24;
/// So many ids are printed of each side where two part.
const SIDE: usize = 12;

/// Draws the samples in their order. A branch begins where it leaves its parent.
pub(super) fn forest(built: &Built, words: &Words, paint: Paint) -> String {
    let by_id: HashMap<&str, &Sample> = built.samples.iter().map(|sample| (sample.id.as_str(), sample)).collect();
    let reasons: HashMap<CallId, &str> = built.left_out.iter().map(|left| (left.call_id, left.reason.name())).collect();
    let mut out = String::new();
    for sample in &built.samples {
        let _ = writeln!(out, "\n{} {} ({})", paint.bold("sample"), sample.id, sample.kind.name());
        let parent = sample.parent.as_ref().and_then(|parent| Some((by_id.get(parent.sample_id.as_str())?, parent.at)));
        let from = parent.map_or(0, |(parent, at)| {
            out.push_str(&fork(parent, sample, at, words, paint));
            at
        });
        out.push_str(&runs(sample, from, &reasons, words, paint));
    }
    out
}

/// Where a sample leaves another, and what each says from there.
fn fork(parent: &Sample, sample: &Sample, at: usize, words: &Words, paint: Paint) -> String {
    let inside = parent.spans.iter().find(|span| (span.start..span.end).contains(&at));
    let place = inside.map_or_else(String::new, |span| format!(", inside the reply of call {}", span.call_id));
    let mut out = format!("leaves {} at {at}{place}\n", parent.id);
    for (who, of) in [("there", parent), ("here", sample)] {
        let ids = &of.token_ids[at..of.token_ids.len().min(at + SIDE)];
        let more = if of.token_ids.len() > at + SIDE { " ..." } else { "" };
        let _ = writeln!(out, "  {who}: {}{more}", words.line(ids, &[], paint));
    }
    out
}

/// The sample's ids from `from` on, run by run of one mask and one call.
fn runs(sample: &Sample, from: usize, reasons: &HashMap<CallId, &str>, words: &Words, paint: Paint) -> String {
    let (mut out, mut at) = (String::new(), from);
    while at < sample.token_ids.len() {
        let span = sample.spans.iter().find(|span| (span.start..span.end).contains(&at));
        let end = span.map_or_else(|| next_span(sample, at), |span| span.end).min(sample.token_ids.len());
        let mask = sample.loss_mask[at];
        let what = span.map_or_else(String::new, |span| told(span, mask, reasons));
        let ids = &sample.token_ids[at..end];
        let shown = match span {
            Some(span) if !span.realigned => words.line(ids, &sample.logprobs[at..end], paint),
            _ => context(ids, words, paint),
        };
        let _ = writeln!(out, "[mask {mask}] {} ids{what}: {shown}", end - at);
        at = end;
    }
    out
}

/// What a span is, and why it is not trained here.
fn told(span: &Span, mask: u8, reasons: &HashMap<CallId, &str>) -> String {
    let mut told = format!(" {} by call {}", if span.realigned { "in place of those sampled" } else { "sampled" }, span.call_id);
    if let Some(version) = &span.policy_version {
        let _ = write!(told, ", version {version}");
    }
    if let Some(how) = span.abandoned_as {
        let _ = write!(told, ", abandoned ({})", how.name());
    }
    if mask == 0 {
        let why = reasons.get(&span.call_id).copied().unwrap_or("trained in another sample");
        let _ = write!(told, ", not trained: {why}");
    }
    told
}

fn next_span(sample: &Sample, at: usize) -> usize {
    sample.spans.iter().map(|span| span.start).filter(|start| *start > at).min().unwrap_or(usize::MAX)
}

/// Ids that were given to the policy; the middle of a long run is left out.
pub(super) fn context(ids: &[u32], words: &Words, paint: Paint) -> String {
    if ids.len() <= 2 * ENDS {
        return words.line(ids, &[], paint);
    }
    let (first, last) = (&ids[..ENDS], &ids[ids.len() - ENDS..]);
    let more = ids.len() - 2 * ENDS;
    format!("{} ... {more} more ... {}", words.line(first, &[], paint), words.line(last, &[], paint))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ROLLOUT: &str = "019a0000-0000-7000-8000-000000000000";

    fn call(number: u32) -> String {
        format!("019a0000-0000-7000-8000-00000000000{number}")
    }

    fn sample(id: &str, ids: &[u32], mask: &[u8], spans: &[(u32, usize, usize)], parent: Option<usize>) -> Sample {
        let logprobs: Vec<Option<f64>> =
            (0..ids.len()).map(|at| spans.iter().any(|(_, start, end)| (*start..*end).contains(&at)).then_some(-1.0)).collect();
        let span = |(number, start, end): &(u32, usize, usize)| {
            json!({"call_id": call(*number), "start": start, "end": end, "policy_version": null, "policy_seq": 0,
                "version_source": null, "finish_reason": null, "sampling": {}, "logprob_kind": "raw", "constrained": false,
                "rewards": {}})
        };
        let parent = parent.map(|at| json!({"sample_id": "s", "at": at}));
        let sample = json!({"schema": "gleaner.sample.v1", "id": id, "rollout_id": ROLLOUT,
            "rollout_index": 0, "group_id": null, "task_id": null, "harness": null, "purpose": "record", "index": 0, "kind": "main",
            "token_ids": ids, "loss_mask": mask, "logprobs": logprobs,
            "prompt_length": 2, "spans": spans.iter().map(span).collect::<Vec<_>>(), "reward": null, "rewards": {}, "outcome": null,
            "status": "complete", "rollout_mask_total": 3, "rollout_samples": 1, "parent": parent, "policy": "p", "model": "m",
            "tokenizer_hash": null, "template_hash": null, "messages": [], "tools": [], "images": [], "metadata": {}});
        serde_json::from_value(sample).unwrap()
    }

    fn drawn(samples: Vec<Sample>) -> String {
        let reply = br#"{"completion_probabilities":[{"id":3,"token":"a\n"},{"id":4,"token":"b"}]}"#;
        let mut words = Words::default();
        words.learn(reply, &[3, 4]);
        forest(&Built { samples, ..Built::default() }, &words, Paint::none()).replace("019a0000-0000-7000-8000-00000000000", "")
    }

    #[test]
    fn runs_change_with_the_mask_and_with_the_call() {
        let whole = sample("s", &[1, 2, 3, 4, 5, 6], &[0, 0, 1, 1, 0, 1], &[(1, 2, 4), (2, 5, 6)], None);
        let expected = "\nsample s (main)\n[mask 0] 2 ids: 1 2\n[mask 1] 2 ids sampled by call 1: 3 \"a\\n\" -1.00 4 \"b\" -1.00\n\
            [mask 0] 1 ids: 5\n[mask 1] 1 ids sampled by call 2: 6 -1.00\n";
        assert_eq!(drawn(vec![whole]), expected);
    }

    #[test]
    fn a_branch_begins_where_it_leaves_with_both_texts() {
        let whole = sample("s", &[1, 2, 3, 4], &[0, 0, 1, 1], &[(1, 2, 4)], None);
        let mut branch = sample("t", &[1, 2, 3, 9, 4], &[0, 0, 0, 0, 1], &[(1, 2, 4), (2, 4, 5)], Some(3));
        branch.spans[0].realigned = true;
        let expected = "\nsample t (main)\nleaves s at 3, inside the reply of call 1\n  there: 4 \"b\"\n  here: 9 4 \"b\"\n\
            [mask 0] 1 ids in place of those sampled by call 1, not trained: trained in another sample: 9\n\
            [mask 1] 1 ids sampled by call 2: 4 \"b\" -1.00\n";
        let drawn = drawn(vec![whole, branch]);
        assert_eq!(&drawn[drawn.find("\nsample t").unwrap()..], expected);
    }

    #[test]
    fn long_context_is_shortened_in_its_middle() {
        let ids: Vec<u32> = (0..60).collect();
        let words = Words::default();
        let text = context(&ids, &words, Paint::none());
        assert!(text.starts_with("0 1 2 ") && text.contains("23 ... 12 more ... 36") && text.ends_with(" 59"), "{text}");
        assert_eq!(context(&ids[..3], &words, Paint::none()), "0 1 2");
    }
}
