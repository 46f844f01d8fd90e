//! Samples as the raw bytes give them, and where others differ from them.

use std::collections::HashMap;
use std::sync::Arc;

use super::report::Report;
use crate::call::{CallRecord, CallStatus, Capture, RawKind, RawParts};
use crate::export::earlier::Earlier;
use crate::export::{ExportError, load};
use crate::ids::RolloutId;
use crate::policy;
use crate::store::{Store, StoreError};
use crate::trajectory::{Sample, Span, Turn};

/// The turns with what the raw bytes say of their tokens in place of what was captured. What can't be read is reported, and keeps
/// what was captured.
pub(super) async fn turns(
    store: &dyn Store,
    rollout: RolloutId,
    mut turns: Vec<Turn>,
    report: &mut Report,
) -> Result<Vec<Turn>, ExportError> {
    let mut earlier = Earlier::new(store, rollout);
    for turn in turns.iter_mut().filter(|turn| has_tokens(&turn.record)) {
        match reread(store, &turn.record, &mut earlier).await {
            Ok(Ok(mut capture)) => {
                turn.prompt = std::mem::take(&mut capture.prompt_ids).into();
                turn.record.capture = capture;
            }
            Ok(Err(what)) | Err(StoreError::Other(what)) => {
                report.differs(Some(rollout), format!("call {}: its raw bytes can't be read: {what}", turn.record.id));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(turns)
}

/// Whether the call's reply came with tokens that somebody asked for.
fn has_tokens(record: &CallRecord) -> bool {
    record.status == CallStatus::Done && !record.capture.completion_ids.is_empty()
}

async fn reread(
    store: &dyn Store,
    record: &CallRecord,
    earlier: &mut Earlier<'_>,
) -> Result<Result<Capture, String>, StoreError> {
    let Some(call) = load::asked_after(store, record, earlier).await? else { return Ok(Err("the request is none".to_owned())) };
    let mut raw = RawParts::default();
    for (kind, part) in
        [(RawKind::Upstream, &mut raw.upstream), (RawKind::Response, &mut raw.response), (RawKind::Prompt, &mut raw.prompt)]
    {
        *part = store.raw(record.id, kind).await?.unwrap_or_default();
    }
    Ok(policy::reread(&Arc::new(call), &raw, &record.capture))
}

/// Reports where samples are not what the raw bytes give: tokens, masks, log-probabilities to the last bit, spans.
pub(super) fn compare(rollout: RolloutId, given: &[Sample], derived: &[Sample], report: &mut Report) {
    let mut known: HashMap<&str, &Sample> = derived.iter().map(|sample| (sample.id.as_str(), sample)).collect();
    for sample in given {
        let what = match known.remove(sample.id.as_str()) {
            None => Some("the raw bytes give no such sample".to_owned()),
            Some(derived) => differs(sample, derived),
        };
        if let Some(what) = what {
            report.differs(Some(rollout), format!("sample {}: {what}", sample.id));
        }
    }
    let mut missing: Vec<&str> = known.into_keys().collect();
    missing.sort_unstable();
    for id in missing {
        report.differs(Some(rollout), format!("sample {id}: the raw bytes give it, and it is not there"));
    }
}

/// The first thing in which two samples differ.
fn differs(given: &Sample, derived: &Sample) -> Option<String> {
    let bits = |logprob: &Option<f64>| logprob.map(f64::to_bits);
    first("id", &given.token_ids, &derived.token_ids, |a, b| a == b)
        .or_else(|| first("mask", &given.loss_mask, &derived.loss_mask, |a, b| a == b))
        .or_else(|| first("log-probability", &given.logprobs, &derived.logprobs, |a, b| bits(a) == bits(b)))
        .or_else(|| {
            let place = |span: &Span| (span.call_id, span.start, span.end, span.constrained);
            let same = given.spans.iter().map(place).eq(derived.spans.iter().map(place))
                && (given.prompt_length, given.rollout_mask_total) == (derived.prompt_length, derived.rollout_mask_total);
            (!same).then(|| "its spans, prompt_length or rollout_mask_total are not what the raw bytes give".to_owned())
        })
}

/// The first place in which two lists differ, one for each token.
fn first<T: std::fmt::Debug>(what: &str, given: &[T], derived: &[T], same: impl Fn(&T, &T) -> bool) -> Option<String> {
    let at = given.iter().zip(derived).position(|(given, derived)| !same(given, derived));
    match at {
        Some(at) => Some(format!("{what} of token {at} is {:?}, by the raw bytes {:?}", given[at], derived[at])),
        None if given.len() != derived.len() => {
            Some(format!("it has the {what} of {} tokens, by the raw bytes of {}", given.len(), derived.len()))
        }
        None => None,
    }
}
