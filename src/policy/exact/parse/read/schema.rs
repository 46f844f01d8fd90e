//! From a parameter's text to its JSON value, by the type that its tool declares: what models that write plain text in tags mean.

use std::collections::HashMap;

use serde_json::Value;

use crate::call::{Call, Raw, quote};
use crate::policy::names::Names;

/// The parameters of a call's tools, by the names under which those are offered.
#[derive(Debug)]
pub(super) struct Schemas(HashMap<String, Raw>);

impl Schemas {
    pub(super) fn of(call: &Call, names: &Names) -> Self {
        let named = |tool| names.of_tool(tool).decode().into_owned();
        Self(call.tools.iter().filter_map(|tool| Some((named(tool), tool.parameters.clone()?))).collect())
    }

    /// Writes a call's arguments as JSON; of fields that are repeated, the last one stands.
    pub(super) fn write(&self, tool: &str, fields: &[(String, String)]) -> String {
        let schema: Value = self.0.get(tool).and_then(|schema| schema.read().ok()).unwrap_or_default();
        let mut order: Vec<&str> = Vec::new();
        let mut last: HashMap<&str, &str> = HashMap::new();
        for (key, value) in fields {
            if last.insert(key, value).is_none() {
                order.push(key);
            }
        }
        let mut out = b"{".to_vec();
        for (at, key) in order.into_iter().enumerate() {
            if at > 0 {
                out.extend_from_slice(b", ");
            }
            quote(&mut out, key);
            out.extend_from_slice(b": ");
            value(&mut out, last[key], &schema["properties"][key]);
        }
        out.push(b'}');
        String::from_utf8(out).unwrap_or_default()
    }
}

/// Writes a value as its declared type says, and to the letter where it is JSON already. What is not of its type is a string, as the
/// model wrote it; so is what has no type.
fn value(out: &mut Vec<u8>, text: &str, declared: &Value) {
    let types = types(declared);
    let nullable = types.contains(&"null");
    let kind = types.iter().copied().find(|kind| *kind != "null").unwrap_or("string");
    let string = matches!(kind, "string" | "str" | "text" | "enum");
    let plain = text.trim();
    // Templates of the family write Python's word for an argument that is null.
    if (nullable || !string) && (plain.eq_ignore_ascii_case("null") || plain.eq_ignore_ascii_case("none")) {
        return out.extend_from_slice(b"null");
    }
    let literal = match kind {
        "boolean" | "bool" => match plain.to_ascii_lowercase().as_str() {
            "true" => Some("true"),
            "false" => Some("false"),
            _ => None,
        },
        "integer" | "int" => Some(plain).filter(|text| is(text, |value| value.is_i64() || value.is_u64())),
        "number" | "float" => Some(plain).filter(|text| is(text, Value::is_number)),
        "object" => Some(plain).filter(|text| is(text, Value::is_object)),
        "array" => Some(plain).filter(|text| is(text, Value::is_array)),
        _ => None,
    };
    match literal {
        Some(json) => out.extend_from_slice(json.as_bytes()),
        None => quote(out, text),
    }
}

fn is(text: &str, kind: impl Fn(&Value) -> bool) -> bool {
    serde_json::from_str(text).is_ok_and(|value| kind(&value))
}

/// The types that a schema allows, in its order.
fn types(declared: &Value) -> Vec<&str> {
    match &declared["type"] {
        Value::String(kind) => return vec![kind],
        Value::Array(kinds) => return kinds.iter().filter_map(Value::as_str).collect(),
        _ => {}
    }
    let any = declared["anyOf"].as_array().or_else(|| declared["oneOf"].as_array());
    any.into_iter().flatten().filter_map(|option| option["type"].as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_what_its_type_says_to_the_letter() {
        let schema = serde_json::json!({"properties": {
            "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
            "o": {"type": "object"}, "a": {"type": "array"}, "sn": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "in": {"type": ["integer", "null"]}, "u": {"description": "no type"},
        }});
        let schemas = Schemas(HashMap::from([("f".to_owned(), Raw::from_value(&schema))]));
        for (key, text, json) in [
            ("s", "null", r#""null""#),
            ("s", " 1 ", r#"" 1 ""#),
            ("s", "a\n\"b\" é", r#""a\n\"b\" é""#),
            ("i", "42", "42"),
            ("i", "4.2", r#""4.2""#),
            ("i", "None", "null"),
            ("n", "1.0", "1.0"),
            ("n", "1e400x", r#""1e400x""#),
            ("b", "True", "true"),
            ("b", "yes", r#""yes""#),
            ("o", r#"{"b" :1,"a":2}"#, r#"{"b" :1,"a":2}"#),
            ("o", "[1]", r#""[1]""#),
            ("a", " [1,\n2] ", "[1,\n2]"),
            ("sn", "null", "null"),
            ("sn", "12", r#""12""#),
            ("in", "12", "12"),
            ("in", "none", "null"),
            ("u", "12", r#""12""#),
            ("other", "true", r#""true""#),
        ] {
            let written = schemas.write("f", &[(key.to_owned(), text.to_owned())]);
            assert_eq!(written, format!(r#"{{"{key}": {json}}}"#), "{key} = {text:?}");
        }
        let twice = [("i", "1"), ("s", "x"), ("i", "2")].map(|(key, text)| (key.to_owned(), text.to_owned()));
        assert_eq!(schemas.write("f", &twice), r#"{"i": 2, "s": "x"}"#);
        assert_eq!(schemas.write("unknown", &twice[..1]), r#"{"i": "1"}"#);
        assert_eq!(schemas.write("f", &[]), "{}");
    }
}
