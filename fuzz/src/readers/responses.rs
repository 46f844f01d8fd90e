//! Responses: events in the order that the official SDKs insist on, and no item done before the record is committed that Codex
//! would act on.

use super::{Reader, Request, Seen, SeenTool, events, list, place, seen};
use crate::call::{FinishReason, Reply};
use crate::json::{self, Json, Units};

pub(super) struct Responses;

impl Reader for Responses {
    fn wire(&self) -> &'static str {
        "responses"
    }

    fn requests(&self) -> &'static [Request] {
        &[("/responses", r#"{"model":"m","stream":true,"input":"go"}"#)]
    }

    fn has_custom_tools(&self) -> bool {
        true
    }

    fn has_namespaces(&self) -> bool {
        true
    }

    fn expected(&self, reply: &Reply) -> Seen {
        let mut seen = seen(reply);
        seen.finish = match reply.finish {
            Some(FinishReason::Length) => "max_output_tokens",
            Some(FinishReason::ContentFilter) => "content_filter",
            _ => "completed",
        }
        .to_owned();
        for tool in &mut seen.tools {
            if tool.arguments == Json::String(Units::default()) && !tool.custom && seen.finish == "completed" {
                tool.arguments = Json::String("{}".into());
            }
        }
        seen
    }

    fn stream(&self, _request: Request, _choices: usize, live: &[u8], held: &[u8]) -> Vec<Seen> {
        let mut reader = Stream::default();
        for (name, data) in events(live) {
            let event = json::ours(&data);
            assert!(
                event.get("type").plain() != "response.output_item.done" || event.at(&["item", "type"]).plain() == "reasoning",
                "an item is done before the record is committed"
            );
            reader.event(&name, &event);
        }
        assert!(reader.end.is_none(), "the end leaves before the record is committed");
        for (name, data) in events(held) {
            reader.event(&name, &json::ours(&data));
        }
        vec![reader.finish()]
    }

    fn whole(&self, body: &[u8]) -> Vec<Seen> {
        vec![response(&json::ours(body))]
    }
}

#[derive(Default)]
struct Stream {
    number: u64,
    id: Option<Units>,
    items: Vec<Item>,
    end: Option<Json>,
}

struct Item {
    id: Units,
    /// Text of each part, or the arguments.
    parts: Vec<Units>,
    done: Option<Json>,
}

impl Stream {
    fn event(&mut self, name: &str, event: &Json) {
        let kind = event.get("type").plain();
        assert_eq!(name, kind, "the event's name is its type");
        assert!(self.end.is_none(), "{kind} follows the end");
        assert_eq!(event.get("sequence_number").number(), Some(self.number));
        self.number += 1;
        assert_eq!(kind == "response.created", self.number == 1, "{kind} is event {}", self.number);
        if event.has("response") {
            let id = event.at(&["response", "id"]).text();
            assert_eq!(self.id.get_or_insert_with(|| id.clone()), &id);
        }
        match kind.as_str() {
            "response.created" | "response.in_progress" => assert_eq!(event.at(&["response", "status"]).plain(), "in_progress"),
            "response.completed" | "response.incomplete" => self.end = Some(event.get("response").clone()),
            "response.output_item.added" => {
                assert_eq!(place(event.get("output_index")), self.items.len());
                let id = event.at(&["item", "id"]).text();
                assert!(self.items.iter().all(|item| item.id != id), "an item's id is its own");
                self.items.push(Item { id, parts: Vec::new(), done: None });
            }
            "response.output_item.done" => {
                let item = &mut self.items[place(event.get("output_index"))];
                assert_eq!(event.at(&["item", "id"]).text(), item.id);
                assert!(item.done.is_none(), "an item is done once");
                item.done = Some(event.get("item").clone());
            }
            _ => self.piece(&kind, event),
        }
    }

    fn piece(&mut self, kind: &str, event: &Json) {
        let item = &mut self.items[place(event.get("output_index"))];
        assert_eq!(event.get("item_id").text(), item.id);
        assert!(item.done.is_none(), "{kind} of an item that is done");
        let at = event.get("content_index").number().map_or(0, |index| usize::try_from(index).expect("an index"));
        match kind {
            "response.content_part.added" => {
                assert_eq!(at, item.parts.len());
                item.parts.push(Units::default());
            }
            "response.output_text.delta" | "response.refusal.delta" => item.parts[at].push(&event.get("delta").text()),
            "response.reasoning_text.delta"
            | "response.function_call_arguments.delta"
            | "response.custom_tool_call_input.delta" => {
                assert!(item.parts.len() <= 1 && at == 0);
                item.parts.resize(1, Units::default());
                item.parts[0].push(&event.get("delta").text());
            }
            "response.output_text.done" | "response.reasoning_text.done" => assert_eq!(event.get("text").text(), item.parts[at]),
            "response.refusal.done" => assert_eq!(event.get("refusal").text(), item.parts[at]),
            "response.function_call_arguments.done" => item.said(&event.get("arguments").text()),
            "response.custom_tool_call_input.done" => item.said(&event.get("input").text()),
            "response.content_part.done" => {
                let part = event.get("part");
                let text = if part.get("type").plain() == "refusal" { part.get("refusal") } else { part.get("text") };
                assert_eq!(text.text(), item.parts[at]);
            }
            other => panic!("unknown event {other}"),
        }
    }

    fn finish(self) -> Seen {
        let end = self.end.expect("the stream ends with the response");
        let output = list(end.get("output"));
        assert_eq!(output.len(), self.items.len());
        for (given, item) in output.iter().zip(&self.items) {
            match &item.done {
                Some(done) => assert_eq!(done, given),
                None => assert_eq!(given.get("status").plain(), "incomplete", "an item that is whole is never done"),
            }
        }
        response(&end)
    }
}

impl Item {
    fn said(&self, whole: &Units) {
        assert_eq!(self.parts.first().cloned().unwrap_or_default(), *whole);
    }
}

fn response(response: &Json) -> Seen {
    let mut seen = Seen { finish: response.get("status").plain(), usage: usage(response.get("usage")), ..Seen::default() };
    if seen.finish == "incomplete" {
        seen.finish = response.at(&["incomplete_details", "reason"]).plain();
    }
    for item in list(response.get("output")) {
        match item.get("type").plain().as_str() {
            "reasoning" => list(item.get("content")).iter().for_each(|part| seen.reasoning.push(&part.get("text").text())),
            "message" => {
                for part in list(item.get("content")) {
                    match part.get("type").plain().as_str() {
                        "output_text" => seen.text.push(&part.get("text").text()),
                        "refusal" => seen.refusal.push(&part.get("refusal").text()),
                        other => panic!("unknown part {other}"),
                    }
                }
            }
            "function_call" => seen.tools.push(tool(item, false, "arguments")),
            "custom_tool_call" => seen.tools.push(tool(item, true, "input")),
            other => panic!("unknown item {other}"),
        }
    }
    seen
}

fn tool(item: &Json, custom: bool, arguments: &str) -> SeenTool {
    SeenTool {
        custom,
        namespace: item.get("namespace").text(),
        id: item.get("call_id").text(),
        name: item.get("name").text(),
        arguments: Json::String(item.get(arguments).text()),
    }
}

fn usage(usage: &Json) -> Option<[u64; 4]> {
    let prompt = usage.get("input_tokens").number()?;
    let completion = usage.get("output_tokens").number().expect("output_tokens");
    assert_eq!(usage.get("total_tokens").number(), Some(prompt + completion));
    let cached = usage.at(&["input_tokens_details", "cached_tokens"]).number().expect("cached_tokens");
    let reasoning = usage.at(&["output_tokens_details", "reasoning_tokens"]).number().expect("reasoning_tokens");
    Some([prompt, completion, cached, reasoning])
}
