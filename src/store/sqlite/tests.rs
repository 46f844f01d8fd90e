//! The store through its seams: writers and readers on real files.

mod batches;
mod chains;
mod faults;
mod story;
mod upkeep;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::call::{
    CallEnd, CallRecord, CallStart, CallStatus, Capture, CaptureLevel, Failure, FailureKind, FinishReason, History, LogprobKind,
    Mark, Raw, RawParts, Rendered, Run, Sampling, Usage, VersionSource, WeightVersion,
};
use crate::ids::{CallId, ProcessId, RolloutId, RolloutKey};
use crate::store::{NewRollout, Purpose, Store, StoreConfig, StoreError, Write, Writer};

/// Locks end soon here: a test that waits for one waits for its whole time.
fn config() -> StoreConfig {
    StoreConfig { busy_timeout_s: 1, ..StoreConfig::default() }
}

async fn open(path: &Path) -> (Arc<dyn Store>, ProcessId) {
    let process = ProcessId::generate();
    (crate::store::open(path.to_str().unwrap(), &config(), process).await.unwrap(), process)
}

fn raw(json: &str) -> Raw {
    serde_json::from_str(json).unwrap()
}

fn new_rollout(group: Option<&str>) -> NewRollout {
    NewRollout {
        id: RolloutId::generate(),
        key: RolloutKey::generate(),
        created_at: 1_000,
        purpose: Purpose::Train,
        task_id: Some("task".into()),
        group_id: group.map(str::to_owned),
        group_size: group.map(|_| 2),
        harness: Some("codex".into()),
        policy: Some("default".into()),
        sampling: Sampling { temperature: Some(1.0), top_k: Some(-1), stop: Some(raw(r#"["a"]"#)), ..Sampling::default() },
        metadata: serde_json::from_str(r#"{"z":1,"a":{"b":[null,"é"]}}"#).unwrap(),
        ttl_s: Some(60),
        idempotency_key: None,
        conversation: None,
        index: None,
        run: None,
    }
}

fn start(rollout: RolloutId, process: ProcessId) -> Arc<CallStart> {
    Arc::new(CallStart {
        id: CallId::generate(),
        rollout_id: rollout,
        process_id: process,
        started_at: 2_000,
        wire: "chat",
        target: "/chat/completions".to_owned(),
        choice: 0,
        policy: "default".into(),
        model: "m".into(),
        stream: true,
        marks: vec![Mark { name: "x-openai-subagent".to_owned(), value: "review".to_owned() }],
        request: Bytes::from(format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}]}}"#, "word ".repeat(200))),
    })
}

/// An end with everything in it.
fn end(start: &Arc<CallStart>) -> CallEnd {
    let upstream = [br#"{"return_token_ids":true,"#, &start.request[1..]].concat();
    CallEnd {
        start: Arc::clone(start),
        ended_at: 3_000,
        first_event_at: Some(2_500),
        status: CallStatus::Done,
        failure: None,
        raw: RawParts { upstream: upstream.into(), response: Bytes::from("data: {}\n\n".repeat(99)), prompt: Bytes::from("p") },
        message: Some(raw(r#"{"role":"assistant","content":"h\u00e9 \ud83d\ude00"}"#)),
        finish: Some(FinishReason::ToolCalls),
        usage: Some(Usage { prompt_tokens: 3, completion_tokens: 2, cached_tokens: 1, reasoning_tokens: 0 }),
        capture: Capture {
            level: CaptureLevel::Full,
            reason: Some("none".into()),
            prompt_ids: vec![0, 127, 128, u32::MAX],
            completion_ids: vec![151_643, 7],
            logprobs: vec![-0.1, -f64::MIN_POSITIVE],
            logprob_kind: LogprobKind::Processed,
            constrained: true,
            runs: vec![Run { start: 0, version: WeightVersion { version: Some("w0".into()), seq: 3, source: None } }],
            rendered: Some(Rendered { tokenizer_hash: "t".into(), history: History::Template, ..Rendered::default() }),
        },
        sampling_asked: Sampling { temperature: Some(0.7), ..Sampling::default() },
        sampling_used: Sampling { temperature: Some(1.0), seed: Some(i64::MAX), ..Sampling::default() },
        max_tokens_asked: Some(u64::MAX),
        max_tokens_used: Some(100),
        version: WeightVersion { version: Some("w1".into()), seq: 4, source: Some(VersionSource::Polled) },
        notes: vec!["clamped".into(), "é\n".into()],
    }
}

/// An end with nothing in it.
fn bare_end(start: &Arc<CallStart>) -> CallEnd {
    CallEnd {
        start: Arc::clone(start),
        ended_at: 3_000,
        first_event_at: None,
        status: CallStatus::Failed,
        failure: Some(Failure::invalid("messages", "no \"messages\"")),
        raw: RawParts::default(),
        message: None,
        finish: None,
        usage: None,
        capture: Capture::default(),
        sampling_asked: Sampling { temperature: Some(0.5), ..Sampling::default() },
        sampling_used: Sampling::default(),
        max_tokens_asked: None,
        max_tokens_used: None,
        version: WeightVersion::default(),
        notes: Vec::new(),
    }
}

/// What is to be read back of `end`.
fn recorded(end: &CallEnd, delivered: Option<bool>) -> CallRecord {
    CallRecord {
        images: Vec::new(),
        id: end.start.id,
        rollout_id: end.start.rollout_id,
        started_at: end.start.started_at,
        wire: end.start.wire.into(),
        target: end.start.target.clone(),
        choice: end.start.choice,
        policy: end.start.policy.clone(),
        model: end.start.model.clone(),
        stream: end.start.stream,
        marks: end.start.marks.clone(),
        status: end.status,
        delivered,
        ended_at: Some(end.ended_at),
        first_event_at: end.first_event_at,
        failure: end.failure.clone(),
        message: end.message.clone(),
        finish: end.finish,
        usage: end.usage,
        capture: end.capture.clone(),
        sampling_asked: end.sampling_asked.clone(),
        sampling_used: end.sampling_used.clone(),
        max_tokens_asked: end.max_tokens_asked,
        max_tokens_used: end.max_tokens_used,
        version: end.version.clone(),
        notes: end.notes.clone(),
    }
}

/// What is to be read back of a call that has no end.
fn unended(start: &CallStart, status: CallStatus, delivered: Option<bool>) -> CallRecord {
    let end = bare_end(&Arc::new(start.clone()));
    let (ended_at, failure, sampling_asked) = (None, None, Sampling::default());
    CallRecord { status, ended_at, failure, sampling_asked, ..recorded(&end, delivered) }
}

fn write_all(writer: &mut dyn Writer, items: impl IntoIterator<Item = Write>) {
    let batch: Vec<_> = items.into_iter().collect();
    assert_eq!(writer.apply(&batch), vec![Ok(()); batch.len()]);
}

fn other_failure() -> Failure {
    Failure::new(FailureKind::NotRecorded, "the record could not be stored")
}

fn is_other(result: &Result<(), StoreError>, part: &str) -> bool {
    matches!(result, Err(StoreError::Other(text)) if text.contains(part))
}
