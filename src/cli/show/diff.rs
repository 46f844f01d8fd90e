//! Where the prompts of two calls part.

use std::fmt::Write as _;

use super::super::terminal::{Paint, counted};
use super::branches::difference;
use super::words::Words;
use crate::call::CallRecord;
use crate::http::api::CallView;

/// So many ids are printed before and after the place.
const AROUND: usize = 24;

/// Says where the tokens of two calls part, with what stands around that place in both, and where their messages do.
pub(super) fn rendered(
    (one, two): (&CallRecord, &CallRecord),
    views: (&CallView, &CallView),
    words: &Words,
    paint: Paint,
) -> String {
    let mut out = tokens(one, two, words, paint);
    let _ = writeln!(out, "messages: {}", difference(views.0, views.1));
    out
}

fn tokens(one: &CallRecord, two: &CallRecord, words: &Words, paint: Paint) -> String {
    let mut out = String::new();
    for record in [one, two] {
        let (prompt, reply) = (record.capture.prompt_ids.len(), record.capture.completion_ids.len());
        let _ = writeln!(
            out,
            "{} {}: {} of prompt, {reply} of reply",
            paint.bold("call"),
            record.id,
            counted(prompt as u64, "token")
        );
    }
    // What goes on from a prompt goes on from its reply, so that the shorter one is taken with it.
    let swap = one.capture.prompt_ids.len() > two.capture.prompt_ids.len();
    let (first, second) = if swap { (two, one) } else { (one, two) };
    let length = first.capture.prompt_ids.len();
    if length == 0 {
        out.push_str("tokens: the ids of a prompt are not known\n");
        return out;
    }
    let sequence = [first.capture.prompt_ids.as_slice(), &first.capture.completion_ids].concat();
    let prompt = &second.capture.prompt_ids;
    let at = sequence.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    let place = match at {
        at if at == prompt.len() && at == length => format!("the prompts are the same {}", counted(at as u64, "token")),
        at if at == sequence.len() => format!("call {} goes on from the reply of call {}", second.id, first.id),
        at if at >= length => {
            let into = counted((at - length) as u64, "token");
            format!("they part at {at}, {into} into the reply of call {}", first.id)
        }
        at => format!("they part at {at}, inside both prompts"),
    };
    let _ = writeln!(out, "tokens: {place}");
    for (record, ids) in [(first, sequence.as_slice()), (second, prompt)] {
        let at = at.min(ids.len());
        let before = words.line(&ids[at.saturating_sub(AROUND)..at], &[], paint);
        let after = words.line(&ids[at..ids.len().min(at + AROUND)], &[], paint);
        let _ = writeln!(out, "  {}: {before} {} {after}", record.id, paint.bold("|"));
    }
    out
}
