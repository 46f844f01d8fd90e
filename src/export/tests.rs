//! Exports from a store that lives in memory.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::call::{
    CallStatus, Capture, CaptureLevel, FinishReason, ImageHash, LogprobKind, Raw, RawKind, Sampling, Usage, WeightVersion,
};
use crate::ids::{BatchId, CallId, RolloutKey};
use crate::store::{
    Artifacts, Batch, BatchBrief, Checked, Outcome, Prune, Pruned, Purpose, RolloutFilter, RolloutStatus, Writer,
};
use crate::trajectory::Sample;

#[derive(Default)]
struct Memory {
    rollouts: Vec<Rollout>,
    calls: Vec<CallRecord>,
    requests: HashMap<CallId, Bytes>,
    artifacts: Artifacts,
}

#[async_trait]
impl Store for Memory {
    fn writer(&self) -> Result<Box<dyn Writer>, StoreError> {
        Err(StoreError::ReadOnly(self.describe()))
    }
    fn describe(&self) -> String {
        "memory".to_owned()
    }
    fn artifacts(&self) -> &Artifacts {
        &self.artifacts
    }
    async fn rollout(&self, id: RolloutId) -> Result<Option<Rollout>, StoreError> {
        Ok(self.rollouts.iter().find(|rollout| rollout.id == id).cloned())
    }
    async fn rollout_by_key(&self, _: &RolloutKey) -> Result<Option<Rollout>, StoreError> {
        Ok(None)
    }
    async fn rollout_by_idempotency_key(&self, _: &str) -> Result<Option<Rollout>, StoreError> {
        Ok(None)
    }
    async fn rollout_by_conversation(&self, _: &str) -> Result<Option<Rollout>, StoreError> {
        Ok(None)
    }
    async fn rollouts(&self, filter: &RolloutFilter) -> Result<Vec<Rollout>, StoreError> {
        let after = |rollout: &&Rollout| filter.after.is_none_or(|after| rollout.id > after);
        Ok(self.rollouts.iter().filter(after).take(filter.limit as usize).cloned().collect())
    }
    async fn batch(&self, _: BatchId) -> Result<Option<Batch>, StoreError> {
        Ok(None)
    }
    async fn batches(&self, _: Option<BatchId>, _: u32) -> Result<Vec<BatchBrief>, StoreError> {
        Ok(Vec::new())
    }
    async fn ended(&self, _: BatchId) -> Result<u64, StoreError> {
        Ok(0)
    }
    async fn call(&self, id: CallId) -> Result<Option<CallRecord>, StoreError> {
        Ok(self.calls.iter().find(|call| call.id == id).cloned())
    }
    async fn calls(&self, rollout: RolloutId) -> Result<Vec<CallRecord>, StoreError> {
        Ok(self.calls.iter().filter(|call| call.rollout_id == rollout).cloned().collect())
    }
    async fn raw(&self, call: CallId, kind: RawKind) -> Result<Option<Bytes>, StoreError> {
        assert_eq!(kind, RawKind::Request);
        Ok(self.requests.get(&call).cloned())
    }
    async fn weight_versions(&self) -> Result<BTreeMap<String, WeightVersion>, StoreError> {
        Ok(BTreeMap::new())
    }

    async fn image(&self, _: ImageHash) -> Result<Option<Bytes>, StoreError> {
        Ok(None)
    }
    async fn check(&self) -> Result<Checked, StoreError> {
        Ok(Checked::default())
    }
    fn prune(&self, _: &[RolloutId], _: Prune) -> Result<Pruned, StoreError> {
        Err(StoreError::ReadOnly(self.describe()))
    }
}

impl Memory {
    /// Adds a finished rollout.
    fn add_rollout(&mut self, change: impl FnOnce(&mut Rollout)) -> RolloutId {
        let mut rollout = Rollout {
            id: RolloutId::generate(),
            key: RolloutKey::generate(),
            status: RolloutStatus::Finished,
            outcome: Some(Outcome::Passed),
            index: 0,
            created_at: 1_000,
            ended_at: None,
            last_call_at: None,
            purpose: Purpose::Train,
            task_id: None,
            group_id: None,
            group_size: None,
            harness: None,
            policy: None,
            sampling: Sampling::default(),
            metadata: serde_json::Map::new(),
            ttl_s: None,
            no_reward: false,
            run: None,
            rewards: BTreeMap::from([("reward".to_owned(), 1.0)]),
            call_rewards: Vec::new(),
            calls: 0,
            tokens: 0,
            evidence: None,
            policy_versions: Vec::new(),
        };
        change(&mut rollout);
        self.rollouts.push(rollout.clone());
        rollout.id
    }

    /// Adds a delivered call of level `full`, or of `text` where there are no ids.
    fn add_call(&mut self, rollout: RolloutId, request: &str, reply: &Value, prompt: &[u32], sampled: &[u32]) -> CallId {
        let id = CallId::generate();
        let level = if prompt.is_empty() { CaptureLevel::Text } else { CaptureLevel::Full };
        self.requests.insert(id, Bytes::from(request.to_owned()));
        self.calls.push(CallRecord {
            images: Vec::new(),
            id,
            rollout_id: rollout,
            started_at: 0,
            wire: "chat".to_owned(),
            target: "/chat/completions".to_owned(),
            choice: 0,
            policy: "default".to_owned(),
            model: "m".to_owned(),
            stream: false,
            marks: Vec::new(),
            status: CallStatus::Done,
            delivered: Some(true),
            ended_at: None,
            first_event_at: None,
            failure: None,
            message: Some(Raw::from_value(reply)),
            finish: Some(FinishReason::Stop),
            usage: Some(Usage { completion_tokens: 2, ..Usage::default() }),
            capture: Capture {
                level,
                prompt_ids: prompt.to_vec(),
                completion_ids: sampled.to_vec(),
                logprobs: sampled.iter().map(|id| -f64::from(*id) / 7.0).collect(),
                logprob_kind: LogprobKind::Raw,
                ..Capture::default()
            },
            sampling_asked: Sampling::default(),
            sampling_used: Sampling::default(),
            max_tokens_asked: None,
            max_tokens_used: None,
            version: WeightVersion { seq: 3, ..WeightVersion::default() },
            notes: Vec::new(),
        });
        id
    }

    /// A conversation of two turns, its second request written over several lines.
    fn two_turns(&mut self, rollout: RolloutId) {
        let say = json!({"role": "assistant", "content": "b", "reasoning": "hm"});
        self.add_call(rollout, r#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#, &say, &[1, 2], &[3]);
        let second = "{\"model\": \"m\",\n \"messages\": [{\"role\": \"user\",\n \"content\": [{\"type\": \"text\",\r\n \"text\": \"a\"}]}, \
                      {\"role\": \"assistant\", \"content\": \"b\"}, {\"role\": \"user\", \"content\": \"c\\nd\"}],\n \"tools\": [{\"type\": \
                      \"function\", \"function\": {\"name\": \"sh\",\n \"parameters\": {\"type\":\n \"object\"}}}]}";
        self.add_call(rollout, second, &json!({"role": "assistant", "content": "e"}), &[1, 2, 3, 4], &[5, 6]);
    }
}

async fn exported(store: &Memory, format: &str, filter: &Filter, out: &Path) -> Result<Summary, ExportError> {
    export(named(format).unwrap(), store, filter, &|policy| policy == "default", out, true, &|_| {}).await
}

/// The API's handlers may move between threads, so what they wait for may too.
fn movable<T: Send>(future: T) -> T {
    future
}

fn rows(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn names(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn samples_are_one_line_each_and_hold_their_invariants() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("s.jsonl");
    let mut store = Memory::default();
    let rollout = store.add_rollout(|_| {});
    store.two_turns(rollout);
    let failed = store.add_call(rollout, "{}", &json!({}), &[], &[]);
    store.calls.last_mut().unwrap().status = CallStatus::Failed;
    store.calls.last_mut().unwrap().message = None;
    let summary = exported(&store, "samples", &Filter::default(), &out).await.unwrap();
    let expected = Summary {
        format: "samples",
        out: out.clone(),
        samples: 1,
        rollouts: 1,
        still_open: 0,
        left_out: BTreeMap::from([("upstream_error", 1)]),
        checked: true,
    };
    assert_eq!(summary, expected);
    let [row] = &rows(&out)[..] else { panic!("one row was expected") };
    assert_eq!(row["token_ids"], json!([1, 2, 3, 4, 5, 6]));
    assert_eq!(row["loss_mask"], json!([0, 0, 1, 0, 1, 1]));
    assert_eq!(row["tools"], json!([{"type": "function", "function": {"name": "sh", "parameters": {"type": "object"}}}]));
    assert_eq!(row["messages"][1], json!({"role": "assistant", "content": "b", "reasoning_content": "hm"}));
    assert_eq!(row["messages"][3], json!({"role": "assistant", "content": "e"}));
    assert_eq!(names(folder.path()), ["s.jsonl"]);

    let built = movable(build(&store, &store.rollouts[0], &|_| true, Drift::Fork)).await.unwrap();
    assert_eq!(serde_json::to_value(&built.samples).unwrap(), json!([row]));
    assert_eq!(built.left_out[0].call_id, failed);
}

#[tokio::test]
async fn conversations_need_no_token_ids() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("m.jsonl");
    let mut store = Memory::default();
    let rollout = store.add_rollout(|rollout| {
        rollout.status = RolloutStatus::Open;
        rollout.purpose = Purpose::Record;
    });
    store.two_turns(rollout);
    for call in &mut store.calls {
        call.capture = Capture::default();
    }
    let summary = exported(&store, "messages", &Filter::default(), &out).await.unwrap();
    assert_eq!((summary.samples, summary.left_out.len(), summary.checked), (1, 0, true));
    assert_eq!(
        rows(&out),
        [json!({
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b", "reasoning_content": "hm", "step_loss_mask": 1},
                {"role": "user", "content": "c\nd"},
                {"role": "assistant", "content": "e", "step_loss_mask": 1},
            ],
            "tools": "[{\"type\":\"function\",\"function\":{\"name\":\"sh\",\"parameters\":{\"type\":\n \"object\"}}}]",
        })]
    );
    let samples = exported(&store, "samples", &Filter::default(), &folder.path().join("s.jsonl")).await.unwrap();
    assert_eq!((samples.samples, samples.left_out), (0, BTreeMap::from([("text_only", 2)])));
    assert_eq!(names(folder.path()), ["m.jsonl"]);
}

#[tokio::test]
async fn filters_choose_rollouts_and_weights() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("s.jsonl");
    let mut store = Memory::default();
    let add = |store: &mut Memory, change: &dyn Fn(&mut Rollout)| {
        let rollout = store.add_rollout(|rollout| change(rollout));
        store.add_call(
            rollout,
            r#"{"messages":[{"role":"user","content":"a"}]}"#,
            &json!({"role": "assistant", "content": "b"}),
            &[1],
            &[2],
        );
        rollout
    };
    // More than a page of them.
    for number in 0..250 {
        add(&mut store, &|rollout| rollout.created_at = number);
    }
    let open = add(&mut store, &|rollout| {
        rollout.status = RolloutStatus::Open;
        rollout.group_id = Some("g".to_owned());
        rollout.rewards.clear();
    });
    let count = async |filter: Filter| {
        let summary = exported(&store, "samples", &filter, &out).await.unwrap();
        (summary.rollouts, summary.samples, summary.still_open)
    };
    assert_eq!(count(Filter::default()).await, (250, 250, 1));
    assert_eq!(count(Filter { since: Some(240), ..Filter::default() }).await, (10, 10, 1));
    assert_eq!(count(Filter { rollouts: vec![open, open], ..Filter::default() }).await, (1, 1, 0));
    assert_eq!(count(Filter { group: Some("g".to_owned()), ..Filter::default() }).await, (0, 0, 1));
    assert_eq!(count(Filter { min_reward: Some(1.0), ..Filter::default() }).await, (250, 250, 0));
    assert_eq!(count(Filter { outcome: Some(Outcome::Failed), ..Filter::default() }).await, (0, 0, 0));
    assert_eq!(count(Filter { policy_seq: Some(4..=9), ..Filter::default() }).await, (250, 0, 1));
    let unknown = Filter { rollouts: vec![RolloutId::generate()], ..Filter::default() };
    assert!(matches!(exported(&store, "samples", &unknown, &out).await, Err(ExportError::UnknownRollout(_))));
}

#[tokio::test]
async fn what_can_not_be_written_says_so_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Memory::default();
    let rollout = store.add_rollout(|_| {});
    store.two_turns(rollout);
    let error = async |path: &str| {
        exported(&store, "samples", &Filter::default(), &folder.path().join(path)).await.unwrap_err().to_string()
    };
    assert!(error("s").await.contains("ends in .jsonl or .parquet"));
    let messages = exported(&store, "messages", &Filter::default(), &folder.path().join("m.parquet")).await;
    assert!(messages.unwrap_err().to_string().contains("ends in .jsonl,"));
    assert!(error("none/s.jsonl").await.contains("No such file"));
    std::fs::create_dir(folder.path().join("d.jsonl")).unwrap();
    assert!(error("d.jsonl").await.contains("directory"));
    assert_eq!(names(folder.path()), ["d.jsonl"]);
}

#[tokio::test]
async fn a_file_that_breaks_an_invariant_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("s.jsonl");
    let mut store = Memory::default();
    for _ in 0..2 {
        let rollout = store.add_rollout(|_| {});
        store.two_turns(rollout);
    }
    exported(&store, "samples", &Filter::default(), &out).await.unwrap();
    let samples = named("samples").unwrap();
    assert!(samples.check(Form::JsonLines, &out).is_ok());
    let text = std::fs::read_to_string(&out).unwrap();
    let mut sample: Sample = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    sample.loss_mask[0] = 1;
    let broken = [serde_json::to_string(&sample).unwrap(), text.clone()].concat();
    for broken in [broken, format!("{text}{{}}\n"), text.repeat(2), text.lines().next().unwrap()[..40].to_owned()] {
        std::fs::write(&out, broken).unwrap();
        assert!(samples.check(Form::JsonLines, &out).is_err());
    }
}

#[tokio::test]
async fn columns_hold_what_lines_hold() {
    let folder = tempfile::tempdir().unwrap();
    let [lines, columns] = ["s.jsonl", "s.parquet"].map(|name| folder.path().join(name));
    let mut store = Memory::default();
    for _ in 0..3 {
        let rollout = store.add_rollout(|_| {});
        store.two_turns(rollout);
    }
    for out in [&lines, &columns] {
        let summary = exported(&store, "samples", &Filter::default(), out).await.unwrap();
        assert_eq!((summary.samples, summary.checked), (3, true));
    }
    let read = |path: &Path| read_samples(path).unwrap().map(|sample| sample.unwrap()).collect::<Vec<_>>();
    let json = |samples: &[Sample]| serde_json::to_value(samples).unwrap();
    assert_eq!(json(&read(&columns)), json(&read(&lines)));

    let nothing = exported(&store, "samples", &Filter { min_reward: Some(2.0), ..Filter::default() }, &columns).await.unwrap();
    assert_eq!((nothing.samples, read(&columns).len()), (0, 3), "a file without rows took the place of one with some");
    assert_eq!(names(folder.path()).len(), 2);
}

#[tokio::test]
async fn columns_that_break_an_invariant_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("s.parquet");
    let mut store = Memory::default();
    for _ in 0..2 {
        let rollout = store.add_rollout(|_| {});
        store.two_turns(rollout);
    }
    exported(&store, "samples", &Filter::default(), &out).await.unwrap();
    let whole: Vec<Sample> = read_samples(&out).unwrap().map(|sample| sample.unwrap()).collect();
    let checked = |change: &dyn Fn(&mut Vec<Sample>)| {
        let mut rows = whole.clone();
        change(&mut rows);
        let mut writer = ColumnsWriter::new(std::fs::File::create(&out).unwrap()).unwrap();
        for row in rows {
            writer.add(vec![row]).unwrap();
        }
        writer.close().unwrap();
        named("samples").unwrap().check(Form::Parquet, &out)
    };
    checked(&|_| {}).unwrap();
    let found = |change: &dyn Fn(&mut Vec<Sample>)| checked(change).unwrap_err().to_string();
    assert!(found(&|rows| rows[1].loss_mask[0] = 1).contains("row 2"));
    assert!(found(&|rows| rows[0].logprobs[2] = None).contains("row 1"));
    assert!(found(&|rows| rows[0].logprobs.truncate(2)).contains("differ in length"));
    assert!(found(&|rows| rows.push(rows[0].clone())).contains("two places"));
    let bytes = std::fs::read(&out).unwrap();
    std::fs::write(&out, &bytes[..bytes.len() - 9]).unwrap();
    assert!(named("samples").unwrap().check(Form::Parquet, &out).is_err());
}

#[tokio::test]
async fn patches_are_predictions() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Memory { artifacts: Artifacts::new(dir.path().join("artifacts")), ..Memory::default() };
    let task = |rollout: &mut Rollout| (rollout.task_id, rollout.harness) = (Some("a__b-1".to_owned()), Some("codex".to_owned()));
    let (left, none, bytes) = (store.add_rollout(task), store.add_rollout(task), store.add_rollout(task));
    store.two_turns(left);
    store.two_turns(none);
    for (rollout, patch) in [(left, &b"+1\n"[..]), (bytes, b"\xff")] {
        std::fs::create_dir_all(store.artifacts.folder(rollout)).unwrap();
        std::fs::write(store.artifacts.folder(rollout).join(Artifacts::PATCH), patch).unwrap();
    }
    let out = dir.path().join("predictions.jsonl");
    let summary = exported(&store, "predictions", &Filter::default(), &out).await.unwrap();
    assert_eq!((summary.samples, summary.rollouts, summary.checked), (1, 3, true));
    let line: Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    let expected = json!({"instance_id": "a__b-1", "model_name_or_path": "codex/m", "model_patch": "+1\n", "rollout_id": left,
        "rollout_index": 0, "outcome": "passed", "reward": 1.0});
    assert_eq!(line, expected);
}
