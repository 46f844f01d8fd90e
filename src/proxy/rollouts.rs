//! Rollouts that take calls: which there are, which calls they have in flight, and their end.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::call::{Failure, FailureKind, Sampling};
use crate::harness::run::Cap;
use crate::harness::{Served, Terms};
use crate::ids::{RolloutId, RolloutKey};
use crate::policy::Transcript;
use crate::record::Recorder;
use crate::store::{Finish, NewRollout, Outcome, Purpose, Rollout, RolloutFilter, RolloutStatus, Store, StoreError, Write};
use crate::telemetry::now_ms;

use super::meter::Meter;

/// How long this process trusts what it knows of a rollout that another one may end.
const TRUST: Duration = Duration::from_secs(1);

/// The rollouts of the store, with what only a running process knows of them.
pub struct Rollouts {
    store: Arc<dyn Store>,
    recorder: Recorder,
    live: Mutex<HashMap<RolloutId, Arc<Live>>>,
    by_key: Mutex<HashMap<RolloutKey, RolloutId>>,
    by_conversation: Mutex<HashMap<String, RolloutId>>,
}

/// A rollout that takes calls.
#[derive(Debug)]
pub struct Live {
    id: RolloutId,
    policy: Option<String>,
    sampling: Sampling,
    meter: Meter,
    ttl: Option<Duration>,
    read_at: AtomicI64,
    last_call_at: AtomicI64,
    ended: CancellationToken,
    in_flight: TaskTracker,
    transcript: OnceCell<Transcript>,
}

impl Live {
    /// The rollout's id.
    #[must_use]
    pub fn id(&self) -> RolloutId {
        self.id
    }

    /// The policy that it was made for, if it named one.
    #[must_use]
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// The sampling that is pinned for its calls.
    #[must_use]
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// What its harness's own calls look like: header names and patterns of their values; empty where that is not known.
    #[must_use]
    pub fn signature(&self) -> &BTreeMap<String, String> {
        self.meter.signature()
    }

    /// Why its next call need not even be read, if it has asked for more than its terms allow.
    #[must_use]
    pub fn barred(&self) -> Option<Failure> {
        self.meter.barred()
    }

    /// Waits until it asks for more than its terms allow.
    pub async fn capped(&self) -> Cap {
        self.meter.capped().await
    }

    /// Calls begun.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.meter.begun()
    }

    /// What its calls use.
    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// What its calls have said so far, once that was needed.
    #[must_use]
    pub fn transcript(&self) -> Option<&Transcript> {
        self.transcript.get()
    }

    /// The same; `read` gives what was said before this process took its calls.
    pub(super) async fn recalled<F>(&self, read: impl FnOnce() -> F) -> Result<&Transcript, Failure>
    where
        F: Future<Output = Result<Transcript, Failure>>,
    {
        self.transcript.get_or_try_init(read).await
    }

    /// Counts a call as in flight until the token is dropped, which must be after its end was handed to the recorder.
    pub fn enter(&self) -> TaskTrackerToken {
        self.last_call_at.store(now_ms(), Ordering::Relaxed);
        self.in_flight.token()
    }

    /// Waits until the rollout is ended.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    fn new(rollout: &Rollout) -> Self {
        Self {
            id: rollout.id,
            policy: rollout.policy.clone(),
            sampling: rollout.sampling.clone(),
            meter: Meter::default(),
            ttl: rollout.ttl_s.map(Duration::from_secs),
            read_at: AtomicI64::new(now_ms()),
            last_call_at: AtomicI64::new(rollout.last_call_at.unwrap_or_else(now_ms)),
            ended: CancellationToken::new(),
            in_flight: TaskTracker::new(),
            transcript: OnceCell::new(),
        }
    }

    /// Ends its calls: those in flight are cancelled, and waited for until their ends are recorded.
    async fn end(&self) {
        self.ended.cancel();
        self.in_flight.close();
        self.in_flight.wait().await;
    }

    fn expired(&self, now: i64) -> bool {
        let idle = now.saturating_sub(self.last_call_at.load(Ordering::Relaxed));
        self.in_flight.is_empty() && self.ttl.is_some_and(|ttl| u128::from(idle.unsigned_abs()) > ttl.as_millis())
    }
}

impl Rollouts {
    /// The rollouts of `store`, which are written through `recorder`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, recorder: Recorder) -> Self {
        Self { store, recorder, live: Mutex::default(), by_key: Mutex::default(), by_conversation: Mutex::default() }
    }

    /// Keeps a new rollout. If its idempotency key is known already, gives the rollout that has it.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn create(&self, new: NewRollout) -> Result<Rollout, StoreError> {
        let (id, idempotency_key) = (new.id, new.idempotency_key.clone());
        self.recorder.write(Write::NewRollout(Box::new(new))).await?;
        let mut kept = self.store.rollout(id).await?;
        if let (None, Some(key)) = (&kept, idempotency_key) {
            kept = self.store.rollout_by_idempotency_key(&key).await?;
        }
        let rollout = kept.ok_or_else(|| StoreError::Other(format!("rollout {id} was written and is not there")))?;
        if rollout.status == RolloutStatus::Open {
            self.keep(&rollout);
        }
        Ok(rollout)
    }

    /// Sets the terms on which an open rollout's calls are served, before the first of them comes.
    pub fn agree(&self, id: RolloutId, terms: &Terms) {
        if let Some(live) = self.live(id) {
            live.meter.agree(terms);
        }
    }

    /// A rollout that this process has had calls of, or made, and that is not finished.
    #[must_use]
    pub fn live(&self, id: RolloutId) -> Option<Arc<Live>> {
        lock(&self.live).get(&id).cloned()
    }

    /// Takes no more calls of a rollout: those in flight are cancelled and their ends recorded. It stays open for its verdict. Gives
    /// what its calls came to.
    pub async fn seal(&self, id: RolloutId) -> Served {
        let Some(live) = self.live(id) else { return Served::default() };
        live.end().await;
        live.meter.read()
    }

    /// The open rollout of this key.
    ///
    /// # Errors
    /// If there is none, it is finished, or the store fails.
    pub async fn by_key(&self, key: &RolloutKey) -> Result<Arc<Live>, Failure> {
        let known = lock(&self.by_key).get(key).copied();
        if let Some(live) = known.and_then(|id| self.trusted(id)) {
            return Ok(live);
        }
        match self.store.rollout_by_key(key).await.map_err(|error| unread(&error))? {
            Some(rollout) => self.open(&rollout),
            None => Err(Failure::new(
                FailureKind::Unauthorized,
                "no rollout has this key; make one with POST /api/v1/rollouts and use the key that it answers",
            )),
        }
    }

    /// The open rollout of this id.
    ///
    /// # Errors
    /// If there is none, it is finished, or the store fails.
    pub async fn by_id(&self, id: RolloutId) -> Result<Arc<Live>, Failure> {
        if let Some(live) = self.trusted(id) {
            return Ok(live);
        }
        match self.store.rollout(id).await.map_err(|error| unread(&error))? {
            Some(rollout) => self.open(&rollout),
            None => Err(Failure::new(FailureKind::Unauthorized, format!("there is no rollout {id}"))),
        }
    }

    /// The open rollout of a conversation that named no rollout; made if there is none.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn by_conversation(&self, conversation: &str) -> Result<Arc<Live>, Failure> {
        let known = lock(&self.by_conversation).get(conversation).copied();
        if let Some(live) = known.and_then(|id| self.trusted(id)) {
            return Ok(live);
        }
        let kept = self.store.rollout_by_conversation(conversation).await.map_err(|error| unread(&error))?;
        let rollout = match kept {
            Some(rollout) => rollout,
            None => self.open_conversation(conversation).await.map_err(|error| unread(&error))?,
        };
        let live = self.open(&rollout)?;
        lock(&self.by_conversation).insert(conversation.to_owned(), live.id);
        Ok(live)
    }

    /// The open rollout of a conversation that named no rollout, if there is one.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn of_conversation(&self, conversation: &str) -> Result<Option<Arc<Live>>, Failure> {
        let kept = self.store.rollout_by_conversation(conversation).await.map_err(|error| unread(&error))?;
        kept.map(|rollout| self.open(&rollout)).transpose()
    }

    /// Ends a rollout: calls in flight are cancelled and their ends recorded, later ones are refused. Ending an ended one gives
    /// it as it is.
    ///
    /// # Errors
    /// If there is no such rollout, or the store fails.
    pub async fn finish(&self, finish: Finish) -> Result<Rollout, FinishError> {
        let id = finish.rollout_id;
        let Some(rollout) = self.store.rollout(id).await? else { return Err(FinishError::Unknown(id)) };
        if rollout.status == RolloutStatus::Finished {
            return Ok(rollout);
        }
        if let Some(live) = self.live(id) {
            live.end().await;
        }
        self.recorder.write(Write::Finish(finish)).await?;
        self.forget(&rollout);
        self.store.rollout(id).await?.ok_or(FinishError::Unknown(id))
    }

    /// Reads the open rollouts that end by themselves, so that they do although this process did not make them.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn load(&self) -> Result<(), StoreError> {
        let filter = RolloutFilter { status: Some(RolloutStatus::Open), ..RolloutFilter::default() };
        for rollout in self.store.rollouts(&filter).await?.iter().filter(|rollout| rollout.ttl_s.is_some()) {
            self.keep(rollout);
        }
        Ok(())
    }

    /// Ends the rollouts whose time without a call is over.
    pub async fn expire(&self) {
        let now = now_ms();
        let expired: Vec<_> = lock(&self.live).values().filter(|live| live.expired(now)).map(|live| live.id).collect();
        for rollout_id in expired {
            let evidence = Some(serde_json::json!({"reason": "no call came within ttl_s"}));
            let finish = Finish { rollout_id, at: now, outcome: Outcome::Cancelled, no_reward: false, evidence };
            if let Err(error) = self.finish(finish).await {
                tracing::warn!(rollout.id = %rollout_id, %error, "could not end a rollout whose time is over");
            }
        }
    }

    async fn open_conversation(&self, conversation: &str) -> Result<Rollout, StoreError> {
        let mut idempotency_key = format!("open:{conversation}");
        loop {
            let rollout = self.create(conversation_rollout(conversation, idempotency_key.clone())).await?;
            if rollout.status == RolloutStatus::Open {
                return Ok(rollout);
            }
            // It was finished from outside: the conversation goes on in a new one.
            idempotency_key = format!("open:{conversation}:{}", rollout.id);
        }
    }

    fn open(&self, rollout: &Rollout) -> Result<Arc<Live>, Failure> {
        if rollout.status == RolloutStatus::Finished {
            self.forget(rollout);
            return Err(Failure::new(FailureKind::Ended, format!("rollout {} is finished and takes no more calls", rollout.id)));
        }
        let live = self.keep(rollout);
        if live.ended.is_cancelled() {
            return Err(Failure::new(FailureKind::Ended, format!("rollout {} is over and takes no more calls", rollout.id)));
        }
        Ok(live)
    }

    fn keep(&self, rollout: &Rollout) -> Arc<Live> {
        lock(&self.by_key).insert(rollout.key.clone(), rollout.id);
        let mut live = lock(&self.live);
        let live = live.entry(rollout.id).or_insert_with(|| Arc::new(Live::new(rollout)));
        live.read_at.store(now_ms(), Ordering::Relaxed);
        Arc::clone(live)
    }

    fn forget(&self, rollout: &Rollout) {
        lock(&self.by_key).remove(&rollout.key);
        if let Some(live) = lock(&self.live).remove(&rollout.id) {
            live.ended.cancel();
        }
    }

    /// What this process knows of a rollout, if that is to be trusted.
    fn trusted(&self, id: RolloutId) -> Option<Arc<Live>> {
        let live = self.live(id)?;
        let age = now_ms().saturating_sub(live.read_at.load(Ordering::Relaxed));
        let fresh = u128::from(age.unsigned_abs()) < TRUST.as_millis();
        (fresh && !live.ended.is_cancelled()).then_some(live)
    }
}

/// Why a rollout could not be ended.
#[derive(Debug, thiserror::Error)]
pub enum FinishError {
    #[error("there is no rollout {0}")]
    Unknown(RolloutId),
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn conversation_rollout(conversation: &str, idempotency_key: String) -> NewRollout {
    let mut metadata = serde_json::Map::new();
    metadata.insert("name".to_owned(), conversation.into());
    NewRollout {
        id: RolloutId::generate(),
        key: RolloutKey::generate(),
        created_at: now_ms(),
        purpose: Purpose::Record,
        task_id: None,
        group_id: None,
        group_size: None,
        harness: None,
        policy: None,
        sampling: Sampling::default(),
        metadata,
        ttl_s: None,
        idempotency_key: Some(idempotency_key),
        conversation: Some(conversation.to_owned()),
        index: None,
        run: None,
    }
}

fn unread(error: &StoreError) -> Failure {
    Failure::new(FailureKind::NotRecorded, format!("the call's rollout could not be read: {error}"))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
