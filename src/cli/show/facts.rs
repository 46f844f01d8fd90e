//! A rollout, its calls and its samples in short.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::super::list::name_of;
use super::super::terminal::{Paint, counted, duration, harmless, table};
use crate::call::CallRecord;
use crate::http::api::rfc3339;
use crate::ids::CallId;
use crate::store::Rollout;
use crate::trajectory::{Built, Class, LeftOut, Sample};

/// What is known of the rollout itself.
pub(super) fn rollout(rollout: &Rollout, built: &Built, paint: Paint) -> String {
    let ended = rollout.ended_at.map(|at| duration(at - rollout.created_at));
    let status = match (rollout.outcome, ended) {
        (Some(outcome), Some(ended)) => format!("{}, after {ended}", name_of(&outcome)),
        _ => "open".to_owned(),
    };
    let group = rollout.group_id.as_ref().map(|group| {
        let size = rollout.group_size.map(|size| format!(" of {size}")).unwrap_or_default();
        format!("{group} (rollout {}{size})", rollout.index + 1)
    });
    let batch = rollout.run.map(|run| {
        let again = if run.attempt > 1 { format!(" (try {})", run.attempt) } else { String::new() };
        format!("{}{again}", run.batch)
    });
    // The one that has no name of its own needs none here.
    let named = |(name, value): (&String, &f64)| if name == "reward" { value.to_string() } else { format!("{name} {value}") };
    let rewards: Vec<String> = rollout.rewards.iter().map(named).collect();
    let reward = if rewards.is_empty() && rollout.no_reward { "none to come".to_owned() } else { rewards.join(", ") };
    let sampling = name_of_settings(&rollout.sampling);
    let trained = counted(built.samples.iter().map(trained).sum::<usize>() as u64, "token");
    let facts = [
        ("outcome", Some(status)),
        ("reward", Some(reward)),
        ("created", Some(rfc3339(rollout.created_at))),
        ("harness", rollout.harness.clone()),
        ("task", rollout.task_id.clone()),
        ("batch", batch),
        ("group", group),
        ("purpose", Some(name_of(&rollout.purpose))),
        ("policy", rollout.policy.clone()),
        ("versions", Some(rollout.policy_versions.join(", "))),
        ("pinned", sampling),
        ("calls", Some(format!("{}, {} sampled", rollout.calls, counted(rollout.tokens, "token")))),
        ("samples", Some(format!("{}, {trained} trained, drift {}", built.samples.len(), built.drift))),
        ("metadata", (!rollout.metadata.is_empty()).then(|| serde_json::json!(rollout.metadata).to_string())),
    ];
    let mut out = format!("{} {}\n", paint.bold("rollout"), rollout.id);
    for (name, value) in facts {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            let _ = writeln!(out, "  {name:<9} {}", harmless(&value));
        }
    }
    out
}

/// One line a call: how it went, and why it gave nothing, if it did.
pub(super) fn calls(records: &[CallRecord], built: &Built, paint: Paint) -> String {
    if records.is_empty() {
        return "no calls\n".to_owned();
    }
    let left_out: BTreeMap<CallId, &LeftOut> = built.left_out.iter().map(|left| (left.call_id, left)).collect();
    let classes: BTreeMap<CallId, Class> = built.classes.iter().copied().collect();
    let head = ["call", "started", "took", "wire", "kind", "level", "prompt", "sampled", "finish", "left out", "why"];
    let row = |record: &CallRecord| {
        row(record, left_out.get(&record.id).copied(), classes.get(&record.id).copied().unwrap_or_default())
    };
    let rows: Vec<Vec<String>> = records.iter().map(row).collect();
    table(&head, &rows, paint)
}

fn row(record: &CallRecord, left_out: Option<&LeftOut>, class: Class) -> Vec<String> {
    let prompt = record.usage.map_or(record.capture.prompt_ids.len() as u64, |usage| usage.prompt_tokens);
    let sampled = record.usage.map_or(record.capture.completion_ids.len() as u64, |usage| usage.completion_tokens);
    let failure = record.failure.as_ref().map(|failure| format!("{}: {}", name_of(&failure.kind), failure.message));
    let detail = left_out.and_then(|left| left.detail.clone());
    let why = failure.or(detail).or_else(|| record.capture.reason.clone()).unwrap_or_default();
    let abandoned = class.abandoned.map_or_else(String::new, |how| format!(", {}", how.name()));
    vec![
        record.id.to_string(),
        rfc3339(record.started_at).chars().skip(11).take(8).collect(),
        record.ended_at.map_or_else(String::new, |ended| duration(ended - record.started_at)),
        record.wire.clone(),
        format!("{}{abandoned}", class.kind.name()),
        record.capture.level.name().to_owned(),
        prompt.to_string(),
        sampled.to_string(),
        record.finish.map_or_else(|| name_of(&record.status), |finish| finish.name().to_owned()),
        left_out.map_or("-", |left| left.reason.name()).to_owned(),
        harmless(&why).replace(['\n', '\t'], " "),
    ]
}

/// One line a sample.
pub(super) fn samples(samples: &[Sample], paint: Paint) -> String {
    if samples.is_empty() {
        return "no samples\n".to_owned();
    }
    let rows: Vec<Vec<String>> = samples
        .iter()
        .map(|sample| {
            let parent = sample.parent.as_ref().map(|parent| format!("{} at {}", parent.sample_id, parent.at));
            vec![
                sample.id.clone(),
                sample.kind.name().to_owned(),
                name_of(&sample.status),
                sample.token_ids.len().to_string(),
                trained(sample).to_string(),
                sample.spans.len().to_string(),
                parent.unwrap_or_else(|| "-".to_owned()),
            ]
        })
        .collect();
    table(&["sample", "kind", "status", "tokens", "trained", "spans", "branch of"], &rows, paint)
}

fn trained(sample: &Sample) -> usize {
    sample.loss_mask.iter().map(|mask| usize::from(*mask)).sum()
}

fn name_of_settings(sampling: &crate::call::Sampling) -> Option<String> {
    let settings = serde_json::to_string(sampling).ok()?;
    (settings != "{}").then_some(settings)
}
