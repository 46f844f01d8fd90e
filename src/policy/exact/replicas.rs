//! The servers of one policy, all of the same weights: which of them a call goes to.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use secrecy::SecretString;
use tokio::time::Instant;

use super::generate::{Endpoint, Unfit};
use crate::call::WeightVersion;
use crate::policy::config::{ConfigError, PolicyConfig};
use crate::policy::http::Http;
use crate::policy::probe::{Found, probe};

/// How long a server that was in trouble is passed over while there are others.
const DOWN: Duration = Duration::from_secs(5);

/// A server that was told the beginning of a prompt is preferred until it has so many calls more than the least busy one.
const CROWDED: usize = 8;

/// One server.
pub(super) struct Replica {
    pub http: Arc<Http>,
    config: PolicyConfig,
    in_flight: AtomicUsize,
    down_until: Mutex<Option<Instant>>,
    served: RwLock<Option<Arc<Served>>>,
    probing: tokio::sync::Mutex<()>,
    /// The weights that it last told of: a reply that breaks off does not say by which it was sampled.
    pub last_version: Mutex<Option<WeightVersion>>,
    /// Whether it was compared with the model that is open.
    pub agreed: AtomicBool,
}

/// What a server is, and where it takes ids.
#[derive(Debug)]
pub(super) struct Served {
    pub found: Found,
    pub endpoint: Endpoint,
}

impl Replica {
    /// What the server is; asks it if nobody has.
    pub(super) async fn served(&self) -> Result<Arc<Served>, Unfit> {
        if let Some(served) = self.known() {
            return Ok(served);
        }
        let _one = self.probing.lock().await;
        if let Some(served) = self.known() {
            return Ok(served);
        }
        let found = probe(&self.http, &self.config).await.map_err(Unfit::Unreachable)?;
        let endpoint = Endpoint::of(&self.http, found.kind).await?;
        let served = Arc::new(Served { found, endpoint });
        *self.served.write().unwrap_or_else(PoisonError::into_inner) = Some(served.clone());
        Ok(served)
    }

    /// Asks the server what it is, and keeps what it was known to be.
    pub(super) async fn asked_anew(&self) -> Result<(), String> {
        probe(&self.http, &self.config).await.map(drop)
    }

    pub(super) fn known(&self) -> Option<Arc<Served>> {
        self.served.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whatever comes back may be another server.
    pub(super) fn forget(&self) {
        *self.served.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Passes it over for a while.
    pub(super) fn is_in_trouble(&self) {
        *self.down_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + DOWN);
        self.forget();
    }

    pub(super) fn is_well(&self) {
        *self.down_until.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn is_down(&self, now: Instant) -> bool {
        self.down_until.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| now < until)
    }
}

/// A place at a server, until it is dropped.
pub(super) struct Lease(pub Arc<Replica>);

impl Lease {
    fn new(replica: &Arc<Replica>) -> Self {
        replica.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(replica.clone())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All servers of a policy.
pub(super) struct Replicas {
    all: Vec<Arc<Replica>>,
    beginnings: Mutex<Beginnings>,
}

impl Replicas {
    pub(super) fn new(name: &str, config: &PolicyConfig, api_key: Option<&SecretString>) -> Result<Self, ConfigError> {
        let mut urls = vec![&config.url];
        urls.extend(config.urls.iter().filter(|url| **url != config.url));
        let replica = |url: &String| {
            let config = PolicyConfig { url: url.clone(), ..config.clone() };
            Ok(Arc::new(Replica {
                http: Arc::new(Http::new(name, &config, api_key)?),
                config,
                in_flight: AtomicUsize::new(0),
                down_until: Mutex::new(None),
                served: RwLock::new(None),
                probing: tokio::sync::Mutex::new(()),
                last_version: Mutex::new(None),
                agreed: AtomicBool::new(false),
            }))
        };
        Ok(Self { all: urls.into_iter().map(replica).collect::<Result<_, _>>()?, beginnings: Mutex::default() })
    }

    /// That of `url`.
    pub(super) fn first(&self) -> &Arc<Replica> {
        &self.all[0]
    }

    pub(super) fn all(&self) -> &[Arc<Replica>] {
        &self.all
    }

    /// The server for a prompt, none of `but`: one that is not down, the one that was told the most of its beginning, else the least
    /// busy. `None` if there is no other.
    pub(super) fn pick(&self, prompt: &[u32], but: &[Arc<Replica>]) -> Option<Lease> {
        if let [only] = &self.all[..] {
            return but.is_empty().then(|| Lease::new(only));
        }
        let now = Instant::now();
        let free = || self.all.iter().filter(|replica| !but.iter().any(|other| Arc::ptr_eq(replica, other)));
        let busy = |replica: &Arc<Replica>| replica.in_flight.load(Ordering::Relaxed);
        // The first of those that are alike.
        let least = free().min_by_key(|replica| (replica.is_down(now), busy(replica)))?;
        let chain = chain(prompt);
        let mut beginnings = self.beginnings.lock().unwrap_or_else(PoisonError::into_inner);
        let told = beginnings.longest(&chain).map(|at| &self.all[at]);
        let told = told.filter(|told| free().any(|replica| Arc::ptr_eq(replica, told)) && !told.is_down(now));
        let chosen = told.filter(|told| busy(told) <= busy(least) + CROWDED).unwrap_or(least);
        if let Some(at) = self.all.iter().position(|replica| Arc::ptr_eq(replica, chosen)) {
            beginnings.note(&chain, at);
        }
        Some(Lease::new(chosen))
    }
}

/// How many tokens a prompt's beginning is known by.
const BLOCK: usize = 256;

/// How many beginnings are remembered.
const REMEMBERED: usize = 1 << 15;

/// Names of a prompt's beginnings, each a block longer than the one before.
fn chain(prompt: &[u32]) -> Vec<u64> {
    let mut hasher = DefaultHasher::new();
    let mut hash = |block: &[u32]| {
        for id in block {
            hasher.write_u32(*id);
        }
        hasher.finish()
    };
    prompt.chunks_exact(BLOCK).map(&mut hash).collect()
}

/// Which server was told which beginning last.
#[derive(Default)]
struct Beginnings {
    told: HashMap<u64, usize>,
    order: VecDeque<u64>,
}

impl Beginnings {
    fn longest(&self, chain: &[u64]) -> Option<usize> {
        chain.iter().rev().find_map(|name| self.told.get(name)).copied()
    }

    fn note(&mut self, chain: &[u64], at: usize) {
        for name in chain {
            if self.told.insert(*name, at).is_none() {
                self.order.push_back(*name);
            }
        }
        while self.order.len() > REMEMBERED {
            self.order.pop_front().map(|name| self.told.remove(&name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replicas(count: usize) -> Replicas {
        let urls: Vec<String> = (1..count).map(|at| format!("http://127.0.0.1:{at}")).collect();
        let config = PolicyConfig { url: "http://127.0.0.1:9".to_owned(), urls, ..PolicyConfig::default() };
        Replicas::new("p", &config, None).unwrap()
    }

    fn place(replicas: &Replicas, lease: &Lease) -> usize {
        replicas.all.iter().position(|replica| Arc::ptr_eq(replica, &lease.0)).unwrap()
    }

    #[test]
    fn calls_are_spread_and_conversations_stay() {
        let replicas = replicas(3);
        let pick = |prompt: &[u32]| replicas.pick(prompt, &[]).unwrap();
        let short: Vec<Lease> = (0..6).map(|id| pick(&[id])).collect();
        assert_eq!(short.iter().map(|lease| place(&replicas, lease)).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
        drop(short);
        let conversation = |who: u32, turns: u32| (0..turns * 300).map(|id| who * 10_000 + id).collect::<Vec<u32>>();
        let first: Vec<Lease> = (0..3).map(|who| pick(&conversation(who, 1))).collect();
        let homes: Vec<usize> = first.iter().map(|lease| place(&replicas, lease)).collect();
        assert_eq!(homes, [0, 1, 2]);
        for who in [2, 0, 1] {
            assert_eq!(place(&replicas, &pick(&conversation(who, 4))), homes[who as usize], "conversation {who} has moved");
        }
        let crowd: Vec<Lease> = (0..CROWDED + 2).map(|_| pick(&conversation(0, 4))).collect();
        assert!(crowd.iter().any(|lease| place(&replicas, lease) != 0), "one server was given all of {} calls", crowd.len());
    }

    #[test]
    fn a_server_in_trouble_is_passed_over_while_there_are_others() {
        let replicas = replicas(2);
        replicas.all[0].is_in_trouble();
        assert_eq!(place(&replicas, &replicas.pick(&[1], &[]).unwrap()), 1);
        let but = [replicas.all[1].clone()];
        assert_eq!(place(&replicas, &replicas.pick(&[1], &but).unwrap()), 0);
        assert!(replicas.pick(&[1], &replicas.all).is_none());
        replicas.all[0].is_well();
        assert_eq!(place(&replicas, &replicas.pick(&[1], &[]).unwrap()), 0);
    }

    #[test]
    fn the_memory_of_beginnings_is_bounded() {
        let mut beginnings = Beginnings::default();
        for at in 0..3 {
            let prompt: Vec<u32> = (0..u32::try_from(BLOCK * REMEMBERED / 2).unwrap()).map(|id| id * 3 + at).collect();
            beginnings.note(&chain(&prompt), at as usize);
        }
        assert_eq!((beginnings.told.len(), beginnings.order.len()), (REMEMBERED, REMEMBERED));
    }
}
