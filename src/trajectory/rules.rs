//! What is trained of a rollout, and how drift is read: the choices of whoever asks for samples.

use serde::{Deserialize, Serialize};

use super::drift::Drift;
use super::kind::{Class, Kind};
use super::sample::Reason;
use crate::call::CallRecord;

/// The choices.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    pub drift: Drift,
    /// Which calls may be trained; others are context, left out as `filtered`.
    pub chosen: &'a (dyn Fn(&CallRecord) -> bool + Sync),
    /// Calls of these kinds are not trained.
    pub without: &'a [Without],
    /// Samples of more tokens are not given.
    pub max_tokens: Option<usize>,
}

impl Default for Rules<'_> {
    fn default() -> Self {
        Self { drift: Drift::Fork, chosen: &|_| true, without: &[], max_tokens: None }
    }
}

/// Calls that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Without {
    /// Titles, summaries.
    Side,
    Subagent,
    Compaction,
    /// Replies that were not gone on from.
    Abandoned,
}

impl Rules<'_> {
    /// Why these choices leave out a call of this class, and more for people.
    #[must_use]
    pub fn leave_out(&self, record: &CallRecord, class: Class) -> Option<(Reason, Option<String>)> {
        let without = |what| self.without.contains(&what);
        match class.kind {
            Kind::Side if without(Without::Side) => return Some((Reason::SideCall, None)),
            Kind::Subagent if without(Without::Subagent) => return Some((Reason::SideCall, Some("a sub-agent's".to_owned()))),
            Kind::Compaction if without(Without::Compaction) => {
                return Some((Reason::SideCall, Some("a compaction".to_owned())));
            }
            _ => {}
        }
        match class.abandoned {
            Some(how) if without(Without::Abandoned) => Some((Reason::Abandoned, Some(how.name().to_owned()))),
            _ if (self.chosen)(record) => None,
            _ => Some((Reason::Filtered, None)),
        }
    }
}
