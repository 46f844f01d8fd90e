//! What a rollout has said and sampled, as far as the store knows it: for policies that make their prompts themselves, after a restart
//! and where another process began the rollout.

use bytes::Bytes;

use crate::call::{Call, CallRecord, CallStatus, Failure, FailureKind, Message, Raw};
use crate::export::{Earlier, asked_after};
use crate::ids::RolloutId;
use crate::policy::{Exchange, Transcript};
use crate::store::{Store, StoreError};
use crate::wire::{self, Target};

/// Reads a rollout's transcript from its calls that ended well, in the order of their ends.
///
/// # Errors
/// If the store fails.
pub(super) async fn read(store: &dyn Store, rollout: RolloutId) -> Result<Transcript, Failure> {
    noted(store, rollout)
        .await
        .map_err(|error| Failure::new(FailureKind::NotRecorded, format!("what was said before could not be read: {error}")))
}

async fn noted(store: &dyn Store, rollout: RolloutId) -> Result<Transcript, StoreError> {
    let transcript = Transcript::default();
    let mut records = store.calls(rollout).await?;
    records.retain(|record| record.status == CallStatus::Done && record.capture.rendered.is_some());
    records.sort_by_key(|record| record.ended_at);
    let mut earlier = Earlier::new(store, rollout);
    for record in &records {
        let call = asked_after(store, record, &mut earlier).await?;
        if let (Some(call), Some(reply)) = (call, reply(record)) {
            transcript.note(Exchange { call_id: record.id, call: &call, reply: &reply, capture: &record.capture });
        }
    }
    Ok(transcript)
}

/// A call's reply as a message of the conversation: records have it in chat completions' form, which that wire reads.
fn reply(record: &CallRecord) -> Option<Message> {
    let message: &Raw = record.message.as_ref()?;
    let body = [b"{\"model\":\"\",\"messages\":[", message.as_bytes(), b"]}"].concat();
    let calls = wire::named("chat")?.parse(Target::read("/chat/completions"), &Bytes::from(body)).ok()?;
    calls.into_iter().next().and_then(|call: Call| call.messages.into_iter().next())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::call::{CallEnd, CallStart, Capture, CaptureLevel, FinishReason, RawParts, Rendered, Sampling, WeightVersion};
    use crate::ids::{CallId, ProcessId, RolloutKey};
    use crate::store::{NewRollout, Purpose, StoreConfig, Write};

    /// One call of the rollout below.
    struct Told {
        start: Arc<CallStart>,
        end: CallEnd,
    }

    fn told(
        rollout: RolloutId,
        process_id: ProcessId,
        messages: &Value,
        reply: &Value,
        ended_at: i64,
        after: Option<CallId>,
    ) -> Told {
        let request = json!({ "model": "m", "messages": messages }).to_string();
        let start = Arc::new(CallStart {
            id: CallId::generate(),
            rollout_id: rollout,
            process_id,
            started_at: 1,
            wire: "chat",
            target: "/chat/completions".to_owned(),
            choice: 0,
            policy: "default".to_owned(),
            model: "m".to_owned(),
            stream: false,
            marks: Vec::new(),
            request: request.into(),
        });
        let ids = |from: i64, count: i64| (from..from + count).filter_map(|id| u32::try_from(id).ok()).collect::<Vec<_>>();
        let rendered = Some(Rendered { tokenizer_hash: "t".to_owned(), after, ..Rendered::default() });
        let capture = Capture {
            level: CaptureLevel::Ids,
            prompt_ids: ids(0, ended_at * 10),
            completion_ids: ids(ended_at * 10, 10),
            rendered,
            ..Capture::default()
        };
        let end = CallEnd {
            start: Arc::clone(&start),
            ended_at,
            first_event_at: None,
            status: CallStatus::Done,
            failure: None,
            raw: RawParts::default(),
            message: Some(Raw::from_value(reply)),
            finish: Some(FinishReason::Stop),
            usage: None,
            capture,
            sampling_asked: Sampling::default(),
            sampling_used: Sampling::default(),
            max_tokens_asked: None,
            max_tokens_used: None,
            version: WeightVersion::default(),
            notes: Vec::new(),
        };
        Told { start, end }
    }

    #[tokio::test]
    async fn what_another_process_recorded_is_gone_on_from() {
        let folder = tempfile::tempdir().unwrap();
        let process = ProcessId::generate();
        let path = folder.path().join("gleaner.db");
        let store = crate::store::open(path.to_str().unwrap(), &StoreConfig::default(), process).await.unwrap();
        let rollout = RolloutId::generate();
        let new = NewRollout {
            id: rollout,
            key: RolloutKey::generate(),
            created_at: 1,
            purpose: Purpose::Train,
            task_id: None,
            group_id: None,
            group_size: None,
            harness: None,
            policy: None,
            sampling: Sampling::default(),
            metadata: serde_json::Map::new(),
            ttl_s: None,
            idempotency_key: None,
            conversation: None,
            index: None,
            run: None,
        };
        let user = json!({"role": "user", "content": "go"});
        let function = json!({"name": "fs__read", "arguments": "{\"path\": \"a\"}"});
        let calling = json!({"role": "assistant", "content": null, "reasoning_content": "hm",
                             "tool_calls": [{"id": "1", "type": "function", "function": function}]});
        let result = json!({"role": "tool", "tool_call_id": "1", "content": "text"});
        let done = json!({"role": "assistant", "content": "done"});
        let first = told(rollout, process, &json!([user]), &calling, 1, None);
        let asked = json!([user, calling, result]);
        let second = told(rollout, process, &asked, &done, 2, Some(first.start.id));
        let mut broken = told(rollout, process, &asked, &done, 3, Some(first.start.id));
        broken.end.status = CallStatus::Cancelled;
        let mut other = told(rollout, process, &asked, &done, 4, None);
        other.end.capture.rendered = None;
        let mut batch = vec![Write::NewRollout(Box::new(new))];
        // In the order of their ends, whatever order they were begun in.
        let second_id = second.start.id;
        for told in [second, first, broken, other] {
            batch.extend([Write::CallStart(told.start), Write::CallEnd(Box::new(told.end))]);
        }
        let mut writer = store.writer().unwrap();
        assert!(writer.apply(&batch).iter().all(Result::is_ok));

        let transcript = read(store.as_ref(), rollout).await.unwrap();
        let body = json!({"model": "m", "messages": [user, calling, result, done, {"role": "user", "content": "more"}]});
        let chat = wire::named("chat").unwrap();
        let call = chat.parse(Target::read("/chat/completions"), &body.to_string().into()).unwrap().remove(0);
        let found = transcript.find(&call, "t", "");
        assert_eq!(found.afresh, None);
        let earlier = found.earlier.unwrap();
        assert_eq!((earlier.call_id, earlier.reply), (second_id, (3, 4)));
        assert_eq!(earlier.ids, (0..30).collect::<Vec<u32>>());
    }
}
