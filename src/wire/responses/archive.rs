//! Responses that are asked for again.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::earlier::{self, Earlier};
use super::reply::{self, Status};
use super::request;
use super::stream::ResponsesEncoder;
use crate::call::{Call, CallStatus, Failure, FailureKind, Kept};
use crate::ids::CallId;
use crate::wire::{Archive, ReplyHead, Target};

/// What can be asked about a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Response,
    InputItems,
    Cancel,
}

/// How many items a page has if nothing is said, and at most.
const PAGE: (usize, usize) = (20, 100);

impl Archive for super::Responses {
    fn paths(&self) -> &'static [&'static str] {
        &["/responses/{id}", "/responses/{id}/input_items", "/responses/{id}/cancel", "/responses/compact"]
    }

    fn about(&self, method: &str, target: Target<'_>) -> Result<CallId, Failure> {
        let (question, name) = question(method, target)?;
        if question == Question::Response && target.field("stream") == Some("true") {
            return Err(Failure::invalid("stream", "stream is not served here: an earlier response is given whole"));
        }
        earlier::response(name).ok_or_else(|| not_found(name))
    }

    fn answer(&self, method: &str, target: Target<'_>, kept: Option<&Kept>, earlier: &[&Kept]) -> Result<Vec<u8>, Failure> {
        let (question, name) = question(method, target)?;
        let kept = kept.filter(|kept| earlier::was_stored(kept)).ok_or_else(|| not_found(name))?;
        match question {
            Question::Response => Ok(response(kept, Earlier(earlier), target)),
            Question::InputItems => input_items(kept, Earlier(earlier), target),
            Question::Cancel => Err(Failure::new(FailureKind::Invalid, "Cannot cancel a synchronous response.")),
        }
    }
}

fn question<'t>(method: &str, target: Target<'t>) -> Result<(Question, &'t str), Failure> {
    let mut segments = target.path.trim_start_matches('/').split('/').skip(1);
    match (method, segments.next().unwrap_or_default(), segments.next()) {
        (_, "compact", None) => Err(Failure::new(
            FailureKind::NotFound,
            "/responses/compact is not served: no policy compacts; send the conversation with a request for a summary",
        )),
        ("GET" | "HEAD", name, None) => Ok((Question::Response, name)),
        ("GET" | "HEAD", name, Some("input_items")) => Ok((Question::InputItems, name)),
        ("POST", name, Some("cancel")) => Ok((Question::Cancel, name)),
        ("DELETE", _, None) => Err(Failure::new(
            FailureKind::MethodNotAllowed,
            "responses are not deleted: they are what a rollout is trained on; send store: false for those that are not to be \
             given again",
        )),
        _ => Err(Failure::new(FailureKind::MethodNotAllowed, format!("{} does not take {method}", target.path))),
    }
}

fn not_found(name: &str) -> Failure {
    Failure::new(FailureKind::NotFound, format!("Response with id '{name}' not found."))
}

/// The response as its client got it, or would have.
fn response(kept: &Kept, earlier: Earlier<'_>, target: Target<'_>) -> Vec<u8> {
    let call = asked(kept, earlier);
    let included = target.query.split('&').any(|pair| pair.ends_with("=reasoning.encrypted_content"));
    let mut encoder = encoder(kept, &call, included);
    let (record, mut out) = (&kept.record, Vec::new());
    match record.status {
        CallStatus::Done => {
            encoder.ended(&earlier::recorded(kept, &[&call.tools]), Status::of(record.finish), &mut out);
        }
        CallStatus::Running => encoder.without_reply(Status::InProgress, b"null", &mut out),
        CallStatus::Cancelled => encoder.without_reply(Status::Cancelled, b"null", &mut out),
        CallStatus::Failed | CallStatus::Interrupted => {
            let unknown = || Failure::new(FailureKind::Cut, "the server ended before the reply did");
            let failure = record.failure.clone().unwrap_or_else(unknown);
            encoder.without_reply(Status::Failed, &reply::error(&failure), &mut out);
        }
    }
    out
}

/// The request; one that was refused asked for nothing.
fn asked(kept: &Kept, earlier: Earlier<'_>) -> Call {
    let calls = request::parse(&kept.request, Some(earlier)).unwrap_or_default();
    calls.into_iter().next().unwrap_or_else(|| Call::new("responses"))
}

fn encoder(kept: &Kept, call: &Call, sealed: bool) -> ResponsesEncoder {
    let record = &kept.record;
    let head = ReplyHead { call_id: record.id, choice: 0, created: record.started_at / 1000, model: record.model.clone() };
    let mut call = call.clone();
    call.wants.sealed_reasoning |= sealed;
    ResponsesEncoder::new(&call, &head)
}

/// A page of the items that a response was made from: of its own input, and of what it goes on from.
fn input_items(kept: &Kept, earlier: Earlier<'_>, target: Target<'_>) -> Result<Vec<u8>, Failure> {
    let mut items = Vec::new();
    let chain = earlier.chain(kept);
    for (place, link) in chain.iter().enumerate() {
        given(link, &mut items);
        if place + 1 < chain.len() {
            // Its own tools are enough, and reading all that it goes on from would be done once for each.
            let call = request::parse(&link.request, None).unwrap_or_default().into_iter().next();
            let call = call.unwrap_or_else(|| Call::new("responses"));
            let reply = earlier::recorded(link, &[&call.tools]);
            let output = encoder(link, &call, false).output(&reply, Status::of(reply.finish));
            let output: Vec<Value> = serde_json::from_slice(&[b"[", &output[..], b"]"].concat()).unwrap_or_default();
            items.extend(output);
        }
    }
    match target.field("order") {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(other) => return Err(Failure::invalid("order", format!("order must be asc or desc, not {other:?}"))),
    }
    let limit = match target.field("limit") {
        None => PAGE.0,
        Some(given) => given.parse().ok().filter(|limit| (1..=PAGE.1).contains(limit)).ok_or_else(|| {
            Failure::invalid("limit", format!("limit must be a whole number from 1 to {}, not {given:?}", PAGE.1))
        })?,
    };
    let start = match target.field("after") {
        None => 0,
        Some(after) => {
            let place = items.iter().position(|item| item["id"] == after);
            1 + place.ok_or_else(|| Failure::invalid("after", format!("after: the response has no item {after:?}")))?
        }
    };
    let has_more = items.len() - start > limit;
    let page: Vec<Value> = items.into_iter().skip(start).take(limit).collect();
    let id = |item: Option<&Value>| item.map(|item| item["id"].clone());
    let (first, last) = (id(page.first()), id(page.last()));
    let body = json!({ "object": "list", "data": page, "first_id": first, "last_id": last, "has_more": has_more });
    Ok(body.to_string().into_bytes())
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    input: Option<&'a serde_json::value::RawValue>,
}

/// The items of a request's input, each with an id.
fn given(kept: &Kept, items: &mut Vec<Value>) {
    let Some(input) = serde_json::from_slice::<Body>(&kept.request).ok().and_then(|body| body.input) else { return };
    let input: Vec<Value> = match serde_json::from_str(input.get()) {
        Ok(Value::Array(list)) => list,
        Ok(text @ Value::String(_)) => vec![json!({ "role": "user", "content": text })],
        _ => return,
    };
    let hex = kept.record.id.0.simple().to_string();
    let object = |(place, item)| if let Value::Object(fields) = item { Some(identified(fields, &hex, place)) } else { None };
    items.extend(input.into_iter().enumerate().filter_map(object));
}

/// An item as the original lists it: with what clients may leave out.
fn identified(mut fields: Map<String, Value>, hex: &str, place: usize) -> Value {
    let text = |fields: &Map<String, Value>, name: &str| fields.get(name).and_then(Value::as_str).map(ToOwned::to_owned);
    let bare = fields.contains_key("role") || !fields.contains_key("id");
    let kind = text(&fields, "type").unwrap_or_else(|| if bare { "message" } else { "item_reference" }.to_owned());
    let prefix: Cow<'_, str> = match kind.as_str() {
        "message" => "msg".into(),
        "reasoning" => "rs".into(),
        "function_call" => "fc".into(),
        "function_call_output" => "fco".into(),
        "custom_tool_call" => "ctc".into(),
        "custom_tool_call_output" => "ctco".into(),
        _ => "item".into(),
    };
    let part = if text(&fields, "role").as_deref() == Some("assistant") { "output_text" } else { "input_text" };
    if let ("message", Some(content @ Value::String(_))) = (kind.as_str(), fields.get_mut("content")) {
        let mut only = json!({ "type": part, "text": content.take() });
        if part == "output_text" {
            only["annotations"] = json!([]);
        }
        *content = json!([only]);
    }
    fields.insert("type".to_owned(), kind.into());
    if text(&fields, "id").is_none() {
        // No name of an output's item, which a request may quote.
        fields.insert("id".to_owned(), format!("{prefix}_{hex}_i{place}").into());
    }
    if fields.get("status").is_none_or(Value::is_null) {
        fields.insert("status".to_owned(), "completed".into());
    }
    Value::Object(fields)
}
