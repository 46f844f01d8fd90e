//! Which rollout a call belongs to.

use std::sync::Arc;

use crate::call::{Failure, FailureKind};
use crate::ids::{RolloutId, RolloutKey};

use super::{App, Live};

/// What a call says of where it belongs. Whatever of it is there must agree.
#[derive(Clone, Default)]
pub struct Identity<'a> {
    /// The rollout whose unix socket the call came by.
    pub socket: Option<RolloutId>,
    /// The key in the path.
    pub path: Option<&'a str>,
    /// Keys in headers and the query, whatever they are keys of.
    pub keys: Vec<&'a str>,
    /// The rollout that `x-gleaner-rollout` names, of a client whose key is known.
    pub named: Option<&'a str>,
    /// Names the conversation if nothing else is said; `None` if such calls are not taken.
    pub conversation: Option<&'a (dyn Fn() -> String + Sync)>,
}

/// Finds the open rollout that a call belongs to: the one that it names or, where calls that name none are taken, the one of the
/// harness's own conversation.
///
/// # Errors
/// As [`named`], and 401 if nothing names a rollout.
pub async fn place(app: &App, identity: Identity<'_>) -> Result<Arc<Live>, Failure> {
    let conversation = identity.conversation;
    match (named(app, identity).await?, conversation) {
        (Some(rollout), _) => Ok(rollout),
        (None, Some(conversation)) => app.rollouts.by_conversation(&conversation()).await,
        (None, None) => Err(nameless()),
    }
}

/// Finds the open rollout that a request names: by its socket, its path, its keys or the header.
///
/// # Errors
/// 401 if a key is unknown, 403 if two names disagree, 409 if the rollout is finished.
pub async fn named(app: &App, identity: Identity<'_>) -> Result<Option<Arc<Live>>, Failure> {
    let mut found: Option<Arc<Live>> = None;
    if let Some(id) = identity.socket {
        agree(&mut found, app.rollouts.by_id(id).await?)?;
    }
    let path_key = identity.path.map(|key| RolloutKey::parse(key).ok_or_else(not_a_key)).transpose()?;
    let keys = identity.keys.iter().filter_map(|key| RolloutKey::parse(key));
    for key in path_key.into_iter().chain(keys) {
        agree(&mut found, app.rollouts.by_key(&key).await?)?;
    }
    if let Some(named) = identity.named {
        let id: RolloutId = named.parse().map_err(|_| {
            Failure::new(FailureKind::Unauthorized, format!("x-gleaner-rollout is {named:?}, which is no rollout's id"))
        })?;
        agree(&mut found, app.rollouts.by_id(id).await?)?;
    }
    Ok(found)
}

/// Refuses a request that names no rollout where one must be named.
#[must_use]
pub fn nameless() -> Failure {
    Failure::new(
        FailureKind::Unauthorized,
        "this call names no rollout: send a rollout's key (glr_...) as the API key, or in the path as /rollouts/KEY/v1/...",
    )
}

fn agree(found: &mut Option<Arc<Live>>, next: Arc<Live>) -> Result<(), Failure> {
    match found {
        Some(rollout) if rollout.id() != next.id() => Err(Failure::new(
            FailureKind::Forbidden,
            format!("this call names two rollouts, {} and {}; it may name one", rollout.id(), next.id()),
        )),
        _ => {
            *found = Some(next);
            Ok(())
        }
    }
}

fn not_a_key() -> Failure {
    Failure::new(FailureKind::Unauthorized, "the path's key is not a rollout's key (glr_...)")
}
