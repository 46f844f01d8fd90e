//! The neutral model that every wire and every policy speaks: a [`Call`], its stream of [`Event`]s, and what is recorded of it.
//! Pure: no async, no clock, no random ids.
//!
//! Text stays as it came. A [`Text`] is a slice of the JSON that held it, escapes and quotes included, so that carrying it from
//! a client to a policy is a copy of bytes; it is decoded only where somebody must look at it.

mod base64;
mod event;
mod failure;
mod fold;
mod image;
mod json;
mod message;
mod record;
mod request;
mod tokens;

pub use base64::Base64Form;
pub use event::{Event, Extra, FinishReason, ToolStart, Usage};
pub use failure::{Failure, FailureKind};
pub use fold::{Fold, Reply};
pub use image::{Image, ImageHash};
pub use json::{Raw, Rest, Text, quote};
pub use message::{Content, Message, Part, Role, Tool, ToolCall, ToolKind, grouped_name};
pub use record::{CallEnd, CallRecord, CallStart, CallStatus, Kept, Mark, RawKind, RawParts, VersionSource, WeightVersion};
pub use request::{Call, Prompt, Sampling, ToolChoice, Wants};
pub use tokens::{Capture, CaptureLevel, History, LogprobKind, Rendered, Run, SpecialText, Tokens};
