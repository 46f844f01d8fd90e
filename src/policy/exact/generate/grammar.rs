//! A grammar that a reply must keep to, from any of the fields that clients ask for it by, in each server's own.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::write::Spelling;
use crate::call::{Call, Raw, quote};

/// What a reply must be; the value as JSON.
#[derive(Debug)]
pub(super) struct Grammar {
    kind: Kind,
    value: Raw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A JSON schema, or a string with one.
    Json,
    /// Any JSON object.
    JsonObject,
    Regex,
    /// One of a list of texts.
    Choice,
    /// A grammar in the server's own notation (EBNF; llama.cpp's GBNF).
    Ebnf,
    StructuralTag,
}

/// Fields of requests, beside `response_format` and `structured_outputs`.
const FIELDS: [(&str, Kind); 8] = [
    ("guided_json", Kind::Json),
    ("json_schema", Kind::Json),
    ("guided_regex", Kind::Regex),
    ("regex", Kind::Regex),
    ("guided_choice", Kind::Choice),
    ("guided_grammar", Kind::Ebnf),
    ("grammar", Kind::Ebnf),
    ("ebnf", Kind::Ebnf),
];

#[derive(Deserialize)]
struct Format<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    json_schema: Option<Schema<'a>>,
}

#[derive(Deserialize)]
struct Schema<'a> {
    #[serde(borrow)]
    schema: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Structured<'a> {
    #[serde(borrow)]
    json: Option<&'a RawValue>,
    json_object: Option<bool>,
    #[serde(borrow)]
    regex: Option<&'a RawValue>,
    #[serde(borrow)]
    choice: Option<&'a RawValue>,
    #[serde(borrow)]
    grammar: Option<&'a RawValue>,
    #[serde(borrow)]
    structural_tag: Option<&'a RawValue>,
}

impl Grammar {
    /// The grammar that a call asks for.
    pub(super) fn asked(call: &Call) -> Option<Self> {
        let field = |wanted: &str| call.rest.iter().find(|(name, _)| *name.decode() == *wanted).map(|(_, value)| value);
        let format = call.response_format.as_ref().and_then(Self::of_format);
        format.or_else(|| field("structured_outputs").and_then(Self::of_structured)).or_else(|| {
            FIELDS.iter().find_map(|(name, kind)| {
                let value = field(name).filter(|value| value.as_str() != "null" && value.as_str() != "\"\"")?;
                Some(Self { kind: *kind, value: value.clone() })
            })
        })
    }

    fn of_format(format: &Raw) -> Option<Self> {
        let read = format.read::<Option<Format>>().ok()??;
        let of = |kind, raw: Option<&RawValue>| Some(Self { kind, value: copied(raw?) });
        match &*read.kind {
            "json_object" => Some(Self { kind: Kind::JsonObject, value: Raw::from_value(&true) }),
            "json_schema" => of(Kind::Json, read.json_schema.and_then(|schema| schema.schema)),
            "structural_tag" => Some(Self { kind: Kind::StructuralTag, value: format.clone() }),
            _ => None,
        }
    }

    fn of_structured(value: &Raw) -> Option<Self> {
        let read = value.read::<Option<Structured>>().ok()??;
        let object = read.json_object.unwrap_or(false);
        let of = |kind, raw: Option<&RawValue>| Some(Self { kind, value: copied(raw?) });
        of(Kind::Json, read.json)
            .or_else(|| of(Kind::Regex, read.regex))
            .or_else(|| of(Kind::Choice, read.choice))
            .or_else(|| of(Kind::Ebnf, read.grammar))
            .or_else(|| of(Kind::StructuralTag, read.structural_tag))
            .or_else(|| object.then(|| Self { kind: Kind::JsonObject, value: Raw::from_value(&true) }))
    }

    /// What to call it, for people.
    pub(super) fn name(&self) -> &'static str {
        match self.kind {
            Kind::Json => "a JSON schema",
            Kind::JsonObject => "a JSON object",
            Kind::Regex => "a regular expression",
            Kind::Choice => "a choice of texts",
            Kind::Ebnf => "a grammar",
            Kind::StructuralTag => "a structural tag",
        }
    }

    /// The field and its value; `None` if the server has no such thing.
    pub(super) fn spelt(&self, spelling: Spelling) -> Option<(&'static str, Vec<u8>)> {
        match spelling {
            Spelling::Vllm => Some(("structured_outputs", self.vllm())),
            Spelling::Sglang => self.sglang(),
            Spelling::Llamacpp => self.llamacpp(),
        }
    }

    fn vllm(&self) -> Vec<u8> {
        let (name, value) = match self.kind {
            Kind::Json => ("json", self.value.as_bytes().to_vec()),
            Kind::JsonObject => ("json_object", b"true".to_vec()),
            Kind::Regex => ("regex", self.value.as_bytes().to_vec()),
            Kind::Choice => ("choice", self.value.as_bytes().to_vec()),
            Kind::Ebnf => ("grammar", self.value.as_bytes().to_vec()),
            Kind::StructuralTag => ("structural_tag", as_string(&self.value)),
        };
        let mut out = format!("{{\"{name}\":").into_bytes();
        out.extend_from_slice(&value);
        out.push(b'}');
        out
    }

    /// All of `SGLang`'s are strings.
    fn sglang(&self) -> Option<(&'static str, Vec<u8>)> {
        Some(match self.kind {
            Kind::Json => ("json_schema", as_string(&self.value)),
            Kind::JsonObject => ("json_schema", quoted(r#"{"type":"object"}"#)),
            Kind::Regex => ("regex", self.value.as_bytes().to_vec()),
            Kind::Choice => ("regex", quoted(&alternation(&self.value.read::<Vec<String>>().ok()?))),
            Kind::Ebnf => ("ebnf", self.value.as_bytes().to_vec()),
            Kind::StructuralTag => ("structural_tag", as_string(&self.value)),
        })
    }

    fn llamacpp(&self) -> Option<(&'static str, Vec<u8>)> {
        Some(match self.kind {
            Kind::Json => ("json_schema", as_value(&self.value)?),
            Kind::JsonObject => ("json_schema", br#"{"type":"object"}"#.to_vec()),
            Kind::Choice => {
                let choices = self.value.read::<Vec<String>>().ok()?;
                let literals: Vec<String> =
                    choices.iter().map(|text| String::from_utf8_lossy(&quoted(text)).into_owned()).collect();
                ("grammar", quoted(&format!("root ::= {}", literals.join(" | "))))
            }
            Kind::Ebnf => ("grammar", self.value.as_bytes().to_vec()),
            Kind::Regex | Kind::StructuralTag => return None,
        })
    }
}

fn copied(raw: &RawValue) -> Raw {
    Raw::from_json(raw.get().as_bytes().to_vec())
}

/// JSON as a string that holds it; a string is one already.
fn as_string(value: &Raw) -> Vec<u8> {
    if value.as_text().is_some() { value.as_bytes().to_vec() } else { quoted(value.as_str()) }
}

/// JSON itself; a string holds it.
fn as_value(value: &Raw) -> Option<Vec<u8>> {
    let Some(text) = value.as_text() else { return Some(value.as_bytes().to_vec()) };
    let json = text.decode().into_owned();
    serde_json::from_str::<&RawValue>(&json).ok()?;
    Some(json.into_bytes())
}

fn quoted(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    quote(&mut out, text);
    out
}

/// A regular expression for exactly one of these texts.
fn alternation(texts: &[String]) -> String {
    let escape = |text: &String| {
        let mut escaped = String::new();
        for c in text.chars() {
            if r"\.+*?()|[]{}^$".contains(c) {
                escaped.push('\\');
            }
            escaped.push(c);
        }
        escaped
    };
    format!("({})", texts.iter().map(escape).collect::<Vec<_>>().join("|"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::call::Text;
    use crate::policy::stub::call;

    fn spelt(call: &Call) -> [Option<String>; 3] {
        let grammar = Grammar::asked(call);
        [Spelling::Vllm, Spelling::Sglang, Spelling::Llamacpp].map(|spelling| {
            let (name, value) = grammar.as_ref()?.spelt(spelling)?;
            Some(format!("{name}:{}", serde_json::from_slice::<Value>(&value).unwrap()))
        })
    }

    fn with(name: &str, value: impl serde::Serialize) -> Call {
        let mut call = call();
        if name == "response_format" {
            call.response_format = Some(Raw::from_value(&value));
        } else {
            call.rest.push((Text::new(name), Raw::from_value(&value)));
        }
        call
    }

    #[test]
    fn every_way_to_ask_reaches_every_server_that_has_it() {
        let say = |texts: [&str; 3]| texts.map(|text| (!text.is_empty()).then(|| text.to_owned()));
        let schema = json!({"type": "string"});
        let schemas = say([
            r#"structured_outputs:{"json":{"type":"string"}}"#,
            r#"json_schema:"{\"type\":\"string\"}""#,
            r#"json_schema:{"type":"string"}"#,
        ]);
        let format = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
        assert_eq!(spelt(&with("response_format", format)), schemas);
        assert_eq!(spelt(&with("guided_json", schema.clone())), schemas);
        assert_eq!(spelt(&with("structured_outputs", json!({"json": schema, "regex": null}))), schemas);
        let objects = say([
            r#"structured_outputs:{"json_object":true}"#,
            r#"json_schema:"{\"type\":\"object\"}""#,
            r#"json_schema:{"type":"object"}"#,
        ]);
        assert_eq!(spelt(&with("response_format", json!({"type": "json_object"}))), objects);
        assert_eq!(spelt(&with("structured_outputs", json!({"json_object": true}))), objects);
        let regexes = say([r#"structured_outputs:{"regex":"a+"}"#, r#"regex:"a+""#, ""]);
        assert_eq!(spelt(&with("guided_regex", json!("a+"))), regexes);
        let choices = say([
            r#"structured_outputs:{"choice":["a.b","c\"d"]}"#,
            r#"regex:"(a\\.b|c\"d)""#,
            r#"grammar:"root ::= \"a.b\" | \"c\\\"d\"""#,
        ]);
        assert_eq!(spelt(&with("guided_choice", json!(["a.b", "c\"d"]))), choices);
        let tag = json!({"type": "structural_tag", "format": {"type": "any_text"}});
        let [vllm, sglang, llamacpp] = spelt(&with("response_format", tag));
        assert!(
            vllm.unwrap().starts_with(r#"structured_outputs:{"structural_tag":"{"#) && sglang.is_some() && llamacpp.is_none()
        );
        for nothing in [json!({"type": "text"}), json!(null)] {
            assert_eq!(spelt(&with("response_format", nothing)), [None, None, None]);
        }
    }
}
