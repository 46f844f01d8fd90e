//! Which rollouts are meant, where a command takes many.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::builder::PossibleValuesParser;

use super::list::named;
use crate::export::{self, Filter};
use crate::ids::RolloutId;
use crate::store::{Outcome, Purpose};
use crate::trajectory::{Drift, Without};

/// What a rollout is of; nothing given means all.
#[derive(Debug, clap::Args)]
pub(super) struct Which {
    /// Only rollouts of this group.
    #[arg(long, value_name = "ID")]
    pub group: Option<String>,
    /// Only rollouts of this task.
    #[arg(long, value_name = "ID")]
    pub task: Option<String>,
    /// Only rollouts of this harness.
    #[arg(long, value_name = "NAME")]
    pub harness: Option<String>,
    /// Only rollouts that ended so: passed, failed, truncated, `timed_out`, `harness_error`, `infra_error` or cancelled.
    #[arg(long, value_parser = named::<Outcome>)]
    pub outcome: Option<Outcome>,
    /// Only rollouts of this purpose: train, eval or record.
    #[arg(long, value_parser = named::<Purpose>)]
    pub purpose: Option<Purpose>,
}

/// What must hold of a rollout; nothing given means all.
#[derive(Debug, clap::Args)]
pub(super) struct FilterArgs {
    /// Only this rollout; may be given more than once.
    #[arg(long, value_name = "ID")]
    rollout: Vec<RolloutId>,
    #[command(flatten)]
    which: Which,
    /// Only rollouts with at least this reward.
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    min_reward: Option<f64>,
    /// Only rollouts begun since then: RFC 3339, or how long ago (90s, 15m, 2h, 7d).
    #[arg(long, value_name = "T", value_parser = since)]
    since: Option<i64>,
    /// Train only what was sampled by weights V to W (`policy_seq`, both included; either may be missing).
    #[arg(long, value_name = "V..W", value_parser = export::policy_seq, allow_hyphen_values = true)]
    policy_seq: Option<std::ops::RangeInclusive<i64>>,
    /// Leave out calls by kind: side (titles, summaries), subagent, compaction, abandoned (not gone on from); several with commas.
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = named::<Without>)]
    without: Vec<Without>,
    /// The most tokens of a sample; what becomes of longer ones says --overlong.
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// What becomes of samples with more than --max-tokens: drop (their calls are left out as `over_length`).
    #[arg(long, value_parser = PossibleValuesParser::new(["drop"]), requires = "max_tokens", default_value = "drop")]
    overlong: String,
    /// What becomes of a prompt that parts from an earlier reply that reads the same: fork or realign (one sample, that reply not
    /// trained) [default: the config's, which is fork]
    #[arg(long, value_parser = named::<Drift>)]
    drift: Option<Drift>,
}

impl FilterArgs {
    /// The filter; `drift` is what the config says of it.
    pub fn filter(self, drift: Drift) -> Filter {
        Filter {
            rollouts: self.rollout,
            group: self.which.group,
            task: self.which.task,
            harness: self.which.harness,
            outcome: self.which.outcome,
            purpose: self.which.purpose,
            min_reward: self.min_reward,
            since: self.since,
            policy_seq: self.policy_seq,
            without: self.without,
            max_tokens: self.max_tokens,
            drift: self.drift.unwrap_or(drift),
        }
    }
}

/// Reads a time, as `--since` has it.
pub(super) fn since(text: &str) -> Result<i64, export::BadFilter> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    export::since(text, i64::try_from(now.as_millis()).unwrap_or(i64::MAX))
}
