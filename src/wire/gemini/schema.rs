//! Schemas in the API's own dialect (OpenAPI's, with types in capitals), written as JSON schemas in one pass. Keys keep their order,
//! since schemas become prompt text; what is JSON schema already stays as it is.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::call::{Failure, Raw, quote};
use crate::wire::fields::At;

/// Translates a schema whose depth was checked.
pub(super) fn translate(at: &At<'_>, schema: &Raw) -> Result<Raw, Failure> {
    let mut out = Vec::with_capacity(schema.as_bytes().len());
    let written = Schema(&mut out).deserialize(&mut serde_json::Deserializer::from_str(schema.as_str()));
    written.map_err(|_| at.invalid("must be a schema"))?;
    Ok(Raw::from_json(out))
}

/// What a schema has under a key.
enum Value {
    /// What is copied, but not if it is null.
    Plain,
    /// What is copied as it is; null says something there.
    Any,
    Type,
    Nullable,
    Reference,
    /// A number, which this dialect may write as a string.
    Number,
    Schema,
    /// A list of schemas.
    Schemas,
    /// Schemas by their names.
    Named,
    /// What JSON schema has no word for.
    Left,
}

/// A key by JSON schema's name for it, and what stands under it.
fn known(key: &str) -> (&str, Value) {
    match key {
        "type" => ("type", Value::Type),
        "nullable" => ("nullable", Value::Nullable),
        "ref" | "$ref" => ("$ref", Value::Reference),
        "propertyOrdering" | "property_ordering" => ("", Value::Left),
        "default" | "example" | "examples" | "enum" | "const" => (key, Value::Any),
        "maxItems" | "max_items" => ("maxItems", Value::Number),
        "minItems" | "min_items" => ("minItems", Value::Number),
        "maxLength" | "max_length" => ("maxLength", Value::Number),
        "minLength" | "min_length" => ("minLength", Value::Number),
        "maxProperties" | "max_properties" => ("maxProperties", Value::Number),
        "minProperties" | "min_properties" => ("minProperties", Value::Number),
        "minimum" | "maximum" => (key, Value::Number),
        "items" | "not" => (key, Value::Schema),
        "additionalProperties" | "additional_properties" => ("additionalProperties", Value::Schema),
        "anyOf" | "any_of" => ("anyOf", Value::Schemas),
        "oneOf" | "allOf" | "prefixItems" => (key, Value::Schemas),
        "properties" | "patternProperties" | "definitions" | "$defs" => (key, Value::Named),
        "defs" => ("$defs", Value::Named),
        _ => (key, Value::Plain),
    }
}

/// Writes a schema; gives whether there was one.
struct Schema<'o>(&'o mut Vec<u8>);

impl<'de> DeserializeSeed<'de> for Schema<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Schema<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a schema")
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_bool<E>(self, any: bool) -> Result<bool, E> {
        self.0.extend_from_slice(if any { b"true" } else { b"false" });
        Ok(true)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let out = self.0;
        out.push(b'{');
        let (mut kind, mut any_of, mut nullable) = (None, None, false);
        while let Some(key) = map.next_key::<String>()? {
            let (name, value) = known(&key);
            let before = out.len();
            write_key(out, name);
            let start = out.len();
            let written = match value {
                Value::Schema => map.next_value_seed(Schema(out))?,
                Value::Schemas => map.next_value_seed(Schemas(out))?,
                Value::Named => map.next_value_seed(Named(out))?,
                Value::Plain | Value::Any | Value::Type | Value::Nullable | Value::Reference | Value::Number | Value::Left => {
                    let raw = map.next_value::<&RawValue>()?;
                    nullable |= matches!(value, Value::Nullable) && raw.get() == "true";
                    write_value(out, &value, raw.get())
                }
            };
            match (written, value) {
                (false, _) => out.truncate(before),
                (true, Value::Type) => kind = Some(start..out.len()),
                (true, Value::Schemas) if name == "anyOf" => any_of = Some(out.len() - 1),
                (true, _) => {}
            }
        }
        if nullable {
            allow_null(out, kind, any_of);
        }
        out.push(b'}');
        Ok(true)
    }
}

/// Writes a value that holds no schemas; gives whether there was one.
fn write_value(out: &mut Vec<u8>, value: &Value, json: &str) -> bool {
    match value {
        Value::Left | Value::Nullable => return false,
        Value::Any => {}
        _ if json == "null" => return false,
        Value::Type => return write_type(out, json),
        Value::Number => {
            let digits = json.trim_matches('"');
            if digits.len() != json.len() && serde_json::from_str::<serde_json::Number>(digits).is_ok() {
                out.extend_from_slice(digits.as_bytes());
                return true;
            }
        }
        Value::Reference => {
            if let Some(name) = json.strip_prefix("\"#/defs/") {
                out.extend_from_slice(b"\"#/$defs/");
                out.extend_from_slice(name.as_bytes());
                return true;
            }
        }
        Value::Plain | Value::Schema | Value::Schemas | Value::Named => {}
    }
    out.extend_from_slice(json.as_bytes());
    true
}

/// Writes a type, or a list of them, in JSON schema's small letters.
fn write_type(out: &mut Vec<u8>, json: &str) -> bool {
    let lower = |name: &str| {
        match name {
            "STRING" | "NUMBER" | "INTEGER" | "BOOLEAN" | "ARRAY" | "OBJECT" | "NULL" => Cow::Owned(name.to_ascii_lowercase()),
            _ => Cow::Borrowed(name),
        }
        .into_owned()
    };
    if let Ok(name) = serde_json::from_str::<String>(json) {
        if name == "TYPE_UNSPECIFIED" {
            return false;
        }
        quote(out, &lower(&name));
    } else if let Ok(names) = serde_json::from_str::<Vec<String>>(json) {
        let names: Vec<String> = names.iter().map(|name| lower(name)).collect();
        // A `Vec` takes every write and strings are always JSON.
        let _ = serde_json::to_writer(out, &names);
    } else {
        out.extend_from_slice(json.as_bytes());
    }
    true
}

/// Lets the schema that is being written be null: where it has one type, there are two, and where it is any of some, one more.
/// `any_of` is the place of their list's end.
fn allow_null(out: &mut Vec<u8>, kind: Option<Range<usize>>, any_of: Option<usize>) {
    match (kind, any_of) {
        (Some(kind), _) if out[kind.start] == b'"' => {
            let both = [b"[", &out[kind.clone()], b",\"null\"]"].concat();
            out.splice(kind, both);
        }
        (None, Some(end)) => {
            let null: &[u8] = if out[end - 1] == b'[' { b"{\"type\":\"null\"}" } else { b",{\"type\":\"null\"}" };
            out.splice(end..end, null.iter().copied());
        }
        _ => {}
    }
}

fn write_key(out: &mut Vec<u8>, name: &str) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
    quote(out, name);
    out.push(b':');
}

/// Writes a list of schemas.
struct Schemas<'o>(&'o mut Vec<u8>);

impl<'de> DeserializeSeed<'de> for Schemas<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Schemas<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of schemas")
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
        let out = self.0;
        out.push(b'[');
        while let Some(written) = list.next_element_seed(Schema(out))? {
            if !written {
                return Err(A::Error::custom("a schema is null"));
            }
            out.push(b',');
        }
        if out.last() == Some(&b',') {
            out.pop();
        }
        out.push(b']');
        Ok(true)
    }
}

/// Writes schemas by their names, which are the client's own, whatever they look like.
struct Named<'o>(&'o mut Vec<u8>);

impl<'de> DeserializeSeed<'de> for Named<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Named<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("schemas by name")
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let out = self.0;
        out.push(b'{');
        while let Some(name) = map.next_key::<String>()? {
            let before = out.len();
            write_key(out, &name);
            if !map.next_value_seed(Schema(out))? {
                out.truncate(before);
            }
        }
        out.push(b'}');
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(schema: &str) -> String {
        let schema: &RawValue = serde_json::from_str(schema).unwrap();
        match translate(&At::Body, &Raw::from_value(&schema)) {
            Ok(schema) => schema.as_str().to_owned(),
            Err(failure) => failure.message,
        }
    }

    #[test]
    fn capitals_and_the_api_s_own_keys_become_json_schema_in_their_order() {
        let schema = r##"{"type":"OBJECT","required":["b"],"properties":{
            "b":{"type":"ARRAY","minItems":"1","max_items":3,"items":{"type":"STRING","format":"enum","enum":["X","TYPE"]}},
            "type":{"type":"INTEGER","description":"TYPE: \"STRING\"","minimum":0},
            "a":{"any_of":[{"type":"NUMBER"},{"ref":"#/defs/D"}]}},
            "propertyOrdering":["b","a"],"defs":{"D":{"type":"BOOLEAN"}},"additional_properties":false}"##;
        let expected = concat!(
            r#"{"type":"object","required":["b"],"properties":{"#,
            r#""b":{"type":"array","minItems":1,"maxItems":3,"items":{"type":"string","format":"enum","enum":["X","TYPE"]}},"#,
            r#""type":{"type":"integer","description":"TYPE: \"STRING\"","minimum":0},"#,
            r##""a":{"anyOf":[{"type":"number"},{"$ref":"#/$defs/D"}]}},"##,
            r#""$defs":{"D":{"type":"boolean"}},"additionalProperties":false}"#
        );
        assert_eq!(translated(schema), expected);
    }

    #[test]
    fn what_may_be_null_says_so_in_its_type_wherever_it_stands() {
        assert_eq!(translated(r#"{"nullable":true,"type":"STRING"}"#), r#"{"type":["string","null"]}"#);
        assert_eq!(translated(r#"{"type":"STRING","nullable":true,"title":"t"}"#), r#"{"type":["string","null"],"title":"t"}"#);
        assert_eq!(translated(r#"{"type":"STRING","nullable":false}"#), r#"{"type":"string"}"#);
        assert_eq!(translated(r#"{"type":["STRING","NULL"],"nullable":true}"#), r#"{"type":["string","null"]}"#);
        let any = r#"{"nullable":true,"any_of":[{"type":"STRING"},{"type":"INTEGER"}],"title":"t"}"#;
        let expected = r#"{"anyOf":[{"type":"string"},{"type":"integer"},{"type":"null"}],"title":"t"}"#;
        assert_eq!(translated(any), expected);
        assert_eq!(translated(r#"{"anyOf":[],"nullable":true}"#), r#"{"anyOf":[{"type":"null"}]}"#);
        assert_eq!(translated(r#"{"title":"t","nullable":true}"#), r#"{"title":"t"}"#);
        let nested =
            r#"{"type":"OBJECT","properties":{"a":{"type":"ARRAY","items":{"type":"STRING","nullable":true},"nullable":true}}}"#;
        let expected = r#"{"type":"object","properties":{"a":{"type":["array","null"],"items":{"type":["string","null"]}}}}"#;
        assert_eq!(translated(nested), expected);
    }

    #[test]
    fn json_schema_stays_as_it_is_and_nulls_that_say_nothing_go() {
        let schema = r##"{"$schema":"x","type":"object","properties":{"p":{"$ref":"#/$defs/D"}},"oneOf":[true],"x-new":{"type":"STRING"}}"##;
        assert_eq!(translated(schema), schema);
        let nulls =
            r#"{"type":"TYPE_UNSPECIFIED","items":null,"title":null,"default":null,"properties":{"a":null},"anyOf":null}"#;
        assert_eq!(translated(nulls), r#"{"default":null,"properties":{}}"#);
        assert_eq!(translated("{}"), "{}");
    }

    #[test]
    fn what_is_no_schema_is_told() {
        for other in ["7", "\"OBJECT\"", "[]", r#"{"properties":[]}"#, r#"{"anyOf":[null]}"#, r#"{"items":"STRING"}"#] {
            assert_eq!(translated(other), "body must be a schema", "{other}");
        }
    }
}
