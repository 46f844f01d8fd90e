//! Ids of the things Gleaner keeps: newtypes over UUIDv7, so that they sort by time and are never mixed up.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Makes one id type: parse, print, serde, and [`Uuid`] inside.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// Makes a new id from the clock and the system's random numbers; pure code takes ids as arguments.
            #[must_use]
            pub fn generate() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::try_parse(text).map(Self)
            }
        }
    };
}

id! {
    /// Names one run of one harness on one task.
    RolloutId
}
id! {
    /// Names many rollouts that were ordered together.
    BatchId
}
id! {
    /// Names one request to the model and its reply.
    CallId
}
impl CallId {
    /// Reads the 32 digits that the names which wires give to replies are made of. Hyphens and capitals are other spellings of
    /// an id, and in no name of ours.
    #[must_use]
    pub fn from_digits(digits: &str) -> Option<Self> {
        let plain = digits.len() == 32 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        digits.parse().ok().filter(|_| plain)
    }
}

id! {
    /// Names one running Gleaner process, so that calls of a process that died are told from live ones.
    ProcessId
}

/// The secret that a harness sends to say which rollout its calls belong to (`glr_...`).
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RolloutKey(String);

impl RolloutKey {
    /// Every rollout key starts so; nothing else that Gleaner accepts as a key does.
    pub const PREFIX: &str = "glr_";

    /// Makes a new key of 122 random bits.
    #[must_use]
    pub fn generate() -> Self {
        Self(format!("{}{}", Self::PREFIX, Uuid::new_v4().simple()))
    }

    /// Takes `text` as a rollout key if it has a rollout key's prefix; whether such a rollout exists is the store's to say.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        text.starts_with(Self::PREFIX).then(|| Self(text.to_owned()))
    }

    /// The key as it goes over the wire. A secret: never log it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RolloutKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RolloutKey(glr_...)")
    }
}
