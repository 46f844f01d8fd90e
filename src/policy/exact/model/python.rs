//! What templates know of Python: the filters, functions and spellings that transformers gives them.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value};
use serde_json::Value as Json;
use time::OffsetDateTime;
use time::format_description::parse_strftime_owned;

/// An environment with nothing in it but what transformers has.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(format);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_function("dict", dict);
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment
}

/// Writes a value as Python spells it.
fn format(out: &mut Output, state: &State, value: &Value) -> Result<(), Error> {
    let word = match value.kind() {
        ValueKind::None => "None",
        ValueKind::Bool if value.is_true() => "True",
        ValueKind::Bool => "False",
        _ => return minijinja::escape_formatter(out, state, value),
    };
    out.write_str(word).map_err(Error::from)
}

/// Refuses the conversation in the template's words.
fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message).with_source(Raised))
}

/// Marks an error that a template raised itself.
#[derive(Debug, thiserror::Error)]
#[error("raised by the template")]
struct Raised;

pub(super) fn is_raised(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<Raised>())
}

/// The date and time, in UTC, as servers in containers have it.
fn strftime_now(format: &str) -> Result<String, Error> {
    let wrong = |error: String| Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {error}"));
    let parsed = parse_strftime_owned(format).map_err(|error| wrong(error.to_string()))?;
    OffsetDateTime::now_utc().format(&parsed).map_err(|error| wrong(error.to_string()))
}

/// Python's `dict`, of pairs too.
fn dict(pairs: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let mut all: Vec<(Value, Value)> = Vec::new();
    if let Some(given) = pairs.filter(|given| !given.is_undefined()) {
        let is_map = given.kind() == ValueKind::Map;
        for item in given.try_iter()? {
            if is_map {
                let value = given.get_item(&item)?;
                all.push((item, value));
                continue;
            }
            let mut pair = item.try_iter()?;
            let (Some(key), Some(value), None) = (pair.next(), pair.next(), pair.next()) else {
                return Err(Error::new(ErrorKind::InvalidOperation, "dict() takes a mapping or pairs"));
            };
            all.push((key, value));
        }
    }
    for name in named.args() {
        all.push((name.into(), named.peek(name)?));
    }
    Ok(all.into_iter().collect())
}

/// `{% generation %}` marks what a trainer learns from; to a prompt it is nothing. It becomes `{% if true %}`, which leaves the blanks around
/// it as they are.
pub(super) fn without_generation_marks(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find("{%") {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = rest.find("%}").map_or(rest.len(), |end| end + 2);
        let tag = &rest[..end];
        match tag.trim_matches(|c: char| "{%-+}".contains(c) || c.is_whitespace()) {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => {
                // Only the mark itself is passed: what looks like its end may stand in a string.
                out.push_str("{%");
                rest = &rest[2..];
                continue;
            }
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// How JSON is spelt.
struct Spelling {
    ascii: bool,
    indent: Option<usize>,
    item: String,
    key: String,
    sorted: bool,
}

/// transformers' `tojson`: Python's `json.dumps`, without Jinja's escapes for HTML.
fn to_json(value: &Value, given: Kwargs) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "tojson of what is not defined"));
    }
    let indent: Option<usize> = given.get("indent")?;
    let separators: Option<(String, String)> = match given.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => {
            let words: Vec<String> = pair.try_iter()?.map(|word| word.to_string()).collect();
            <[String; 2]>::try_from(words).ok().map(|[item, key]| (item, key))
        }
        _ => None,
    };
    let (item, key) = separators.unwrap_or_else(|| (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()));
    let ascii = given.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = given.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    given.assert_all_used()?;
    let json = serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, "tojson of what has no JSON").with_source(error))?;
    let mut out = String::new();
    Spelling { ascii, indent, item, key, sorted }.write(&json, 1, &mut out);
    Ok(Value::from(out))
}

impl Spelling {
    fn write(&self, json: &Json, depth: usize, out: &mut String) {
        match json {
            Json::Null => out.push_str("null"),
            Json::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Json::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
                Some(float) => out.push_str(&float_repr(float)),
                None => out.push_str(&number.to_string()),
            },
            Json::String(text) => self.string(text, out),
            Json::Array(items) => self.items(('[', ']'), items, depth, out, |item, out| self.write(item, depth + 1, out)),
            Json::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                if self.sorted {
                    fields.sort_by_key(|(name, _)| *name);
                }
                self.items(('{', '}'), &fields, depth, out, |(name, value), out| {
                    self.string(name, out);
                    out.push_str(&self.key);
                    self.write(value, depth + 1, out);
                });
            }
        }
    }

    fn items<T>(
        &self,
        (open, close): (char, char),
        items: &[T],
        depth: usize,
        out: &mut String,
        write: impl Fn(&T, &mut String),
    ) {
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.item);
            }
            self.line(depth, out);
            write(item, out);
        }
        if !items.is_empty() {
            self.line(depth - 1, out);
        }
        out.push(close);
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || self.ascii && !c.is_ascii() => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // A string takes all that is written to it.
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// Python's `repr` of a float: positional from 1e-4 to 1e16.
fn float_repr(float: f64) -> String {
    let scientific = format!("{float:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..16).contains(&exponent) {
        let positional = float.to_string();
        return if positional.contains('.') { positional } else { format!("{positional}.0") };
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_spelt_as_python_does() {
        let floats = [1.0, 0.1, 1e15, 1e16, 1.5e16, 1e-4, 1e-5, 1.234e-5, 1e100, -2.5, 0.0, -0.0, 123_456_789.125];
        let spelt: Vec<String> = floats.into_iter().map(float_repr).collect();
        let python = [
            "1.0",
            "0.1",
            "1000000000000000.0",
            "1e+16",
            "1.5e+16",
            "0.0001",
            "1e-05",
            "1.234e-05",
            "1e+100",
            "-2.5",
            "0.0",
            "-0.0",
            "123456789.125",
        ];
        assert_eq!(spelt, python);
    }

    #[test]
    fn generation_marks_are_nothing() {
        let template =
            "{% set x = '{%' %}a\n{%- generation -%}\n b {%+ endgeneration %}c{% if add_generation_prompt %}d{% endif %}";
        let expected = "{% set x = '{%' %}a\n{%- if true -%}\n b {%+ endif %}c{% if add_generation_prompt %}d{% endif %}";
        assert_eq!(without_generation_marks(template), expected);
    }
}
