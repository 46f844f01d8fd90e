//! Small enums as small integers, and rare ones by their names. The order of each list is the store's: append only.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::call::{CallStatus, CaptureLevel, LogprobKind, VersionSource};

pub(super) const STATUSES: &[CallStatus] =
    &[CallStatus::Running, CallStatus::Done, CallStatus::Failed, CallStatus::Cancelled, CallStatus::Interrupted];
pub(super) const LEVELS: &[CaptureLevel] = &[CaptureLevel::Text, CaptureLevel::Ids, CaptureLevel::Full];
pub(super) const LOGPROB_KINDS: &[LogprobKind] = &[LogprobKind::Raw, LogprobKind::Processed, LogprobKind::Unknown];
pub(super) const SOURCES: &[VersionSource] = &[VersionSource::Server, VersionSource::Declared, VersionSource::Polled];

/// The number of `value` in its list.
pub(super) fn number<T: Copy + PartialEq>(list: &[T], value: T) -> i64 {
    list.iter().position(|one| *one == value).and_then(|at| i64::try_from(at).ok()).unwrap_or(-1)
}

/// The value with this number.
pub(super) fn value<T: Copy>(list: &[T], number: i64) -> Option<T> {
    list.get(usize::try_from(number).ok()?).copied()
}

/// An enum's name, as serde has it.
pub(super) fn name(value: &impl Serialize) -> Option<String> {
    serde_json::to_value(value).ok()?.as_str().map(str::to_owned)
}

/// The enum of this name.
pub(super) fn named<T: DeserializeOwned>(name: &str) -> Option<T> {
    serde_json::from_value(name.into()).ok()
}
