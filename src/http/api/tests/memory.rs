//! A store in memory, which keeps rollouts, and calls that tests put in.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;

use crate::call::{CallRecord, CallStatus, Capture, CaptureLevel, FinishReason, LogprobKind, RawKind, Sampling, WeightVersion};
use crate::ids::{CallId, RolloutId, RolloutKey};
use crate::store::{NewRollout, Rollout, RolloutFilter, RolloutStatus, Store, StoreError, Write, Writer};

#[derive(Default)]
pub(super) struct Memory(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    rollouts: BTreeMap<RolloutId, Rollout>,
    idempotency: BTreeMap<String, RolloutId>,
    calls: BTreeMap<CallId, CallRecord>,
    raw: Vec<(CallId, RawKind, Bytes)>,
}

/// A call that ended well, at level `full`.
pub(super) fn call(rollout_id: RolloutId) -> CallRecord {
    CallRecord {
        id: CallId::generate(),
        rollout_id,
        started_at: 0,
        wire: "none".to_owned(),
        policy: "default".to_owned(),
        model: "m".to_owned(),
        stream: true,
        status: CallStatus::Done,
        delivered: Some(true),
        ended_at: Some(20),
        first_event_at: Some(10),
        failure: None,
        message: None,
        finish: Some(FinishReason::Stop),
        usage: None,
        capture: Capture {
            level: CaptureLevel::Full,
            reason: None,
            prompt_ids: vec![1, 2],
            completion_ids: vec![3],
            logprobs: vec![-0.5],
            logprob_kind: LogprobKind::Raw,
            constrained: false,
        },
        sampling_asked: Sampling::default(),
        sampling_used: Sampling { temperature: Some(1.0), ..Sampling::default() },
        max_tokens_asked: None,
        max_tokens_used: None,
        version: WeightVersion::default(),
        notes: Vec::new(),
    }
}

impl Memory {
    pub(super) fn keep(&self, call: CallRecord) -> CallId {
        let id = call.id;
        self.0.lock().unwrap().calls.insert(id, call);
        id
    }

    pub(super) fn raw(&self, call: CallId, kind: RawKind, bytes: &'static [u8]) {
        self.0.lock().unwrap().raw.push((call, kind, Bytes::from_static(bytes)));
    }

    fn find(&self, wanted: impl Fn(&Rollout) -> bool) -> Option<Rollout> {
        self.0.lock().unwrap().rollouts.values().find(|rollout| wanted(rollout)).cloned()
    }
}

#[async_trait]
impl Store for Memory {
    fn writer(&self) -> Result<Box<dyn Writer>, StoreError> {
        Ok(Box::new(MemoryWriter(Arc::clone(&self.0))))
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }

    async fn rollout(&self, id: RolloutId) -> Result<Option<Rollout>, StoreError> {
        Ok(self.find(|rollout| rollout.id == id))
    }

    async fn rollout_by_key(&self, key: &RolloutKey) -> Result<Option<Rollout>, StoreError> {
        Ok(self.find(|rollout| rollout.key == *key))
    }

    async fn rollout_by_idempotency_key(&self, key: &str) -> Result<Option<Rollout>, StoreError> {
        let id = self.0.lock().unwrap().idempotency.get(key).copied();
        Ok(self.find(|rollout| Some(rollout.id) == id))
    }

    async fn rollout_by_conversation(&self, _conversation: &str) -> Result<Option<Rollout>, StoreError> {
        Ok(None)
    }

    async fn rollouts(&self, filter: &RolloutFilter) -> Result<Vec<Rollout>, StoreError> {
        let kept = self.0.lock().unwrap();
        let wanted = kept.rollouts.values().filter(|rollout| {
            filter.after.is_none_or(|after| rollout.id > after)
                && filter.status.is_none_or(|status| rollout.status == status)
                && (filter.task_id.is_none() || rollout.task_id == filter.task_id)
        });
        Ok(wanted.take(filter.limit as usize).cloned().collect())
    }

    async fn call(&self, id: CallId) -> Result<Option<CallRecord>, StoreError> {
        Ok(self.0.lock().unwrap().calls.get(&id).cloned())
    }

    async fn calls(&self, rollout: RolloutId) -> Result<Vec<CallRecord>, StoreError> {
        Ok(self.0.lock().unwrap().calls.values().filter(|call| call.rollout_id == rollout).cloned().collect())
    }

    async fn raw(&self, call: CallId, kind: RawKind) -> Result<Option<Bytes>, StoreError> {
        let kept = self.0.lock().unwrap();
        let bytes = kept.raw.iter().find(|(id, of, _)| (*id, *of) == (call, kind)).map(|(.., bytes)| bytes.clone());
        Ok(kept.calls.contains_key(&call).then(|| bytes.unwrap_or_default()))
    }
}

struct MemoryWriter(Arc<Mutex<Kept>>);

impl Writer for MemoryWriter {
    fn apply(&mut self, batch: &[Write]) -> Vec<Result<(), StoreError>> {
        let mut kept = self.0.lock().unwrap();
        let apply = |write| {
            kept.apply(write);
            Ok(())
        };
        batch.iter().map(apply).collect()
    }

    fn idle(&mut self) {}
}

impl Kept {
    fn apply(&mut self, write: &Write) {
        match write {
            Write::NewRollout(new) => {
                if let Some(key) = &new.idempotency_key {
                    if self.idempotency.contains_key(key) {
                        return;
                    }
                    self.idempotency.insert(key.clone(), new.id);
                }
                self.rollouts.insert(new.id, opened(new));
            }
            Write::Reward(reward) => {
                let rollout = self.rollouts.get_mut(&reward.rollout_id).unwrap();
                match reward.call_id {
                    Some(call) => rollout.call_rewards.push((call, reward.name.clone(), reward.value)),
                    None => drop(rollout.rewards.insert(reward.name.clone(), reward.value)),
                }
            }
            Write::Finish(finish) => {
                let rollout = self.rollouts.get_mut(&finish.rollout_id).unwrap();
                rollout.status = RolloutStatus::Finished;
                rollout.outcome = Some(finish.outcome);
                rollout.ended_at = Some(finish.at);
                rollout.no_reward = finish.no_reward;
            }
            Write::CallStart(_) | Write::CallEnd(_) | Write::Delivered(_) => {}
        }
    }
}

fn opened(new: &NewRollout) -> Rollout {
    Rollout {
        id: new.id,
        key: new.key.clone(),
        status: RolloutStatus::Open,
        outcome: None,
        index: 0,
        created_at: new.created_at,
        ended_at: None,
        last_call_at: None,
        purpose: new.purpose,
        task_id: new.task_id.clone(),
        group_id: new.group_id.clone(),
        group_size: new.group_size,
        harness: new.harness.clone(),
        policy: new.policy.clone(),
        sampling: new.sampling.clone(),
        metadata: new.metadata.clone(),
        ttl_s: new.ttl_s,
        no_reward: false,
        rewards: BTreeMap::new(),
        call_rewards: Vec::new(),
        calls: 0,
        tokens: 0,
        evidence: None,
        policy_versions: Vec::new(),
    }
}
