//! Requests read field by field in one pass, everything borrowed from the body.
//!
//! An object becomes [`Fields`]: the values of the names asked for, as slices of JSON, and the rest in its order. The body's one
//! long list (its messages) is read element by element on the way, so that its bytes are walked once. Of a key that comes
//! twice, the last stands.

mod walk;

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeSeed;
use serde_json::value::RawValue;

use self::walk::{Each, List, ListSeed, NoItems, ObjectSeed};
use crate::call::{Failure, FailureKind, Raw, Rest, Text};

/// How deep a value may be nested that is kept unread; whoever reads it later (`serde_json`, servers) stops at 128 or so.
const MAX_DEPTH: usize = 100;

/// How many elements a list, and unknown fields an object, may have: a body of nothing but `{"role":"user"}` would take fifteen
/// times its size in memory.
const MAX_COUNT: usize = 1 << 17;

/// What values must be, for messages.
pub(super) const NUMBER: &str = "a number";
pub(super) const BOOLEAN: &str = "a boolean";
pub(super) const COUNT: &str = "a whole number of 0 or more";
pub(super) const INTEGER: &str = "a whole number";
pub(super) const STRINGS: &str = "a list of strings";

/// Where in the body a value stands, for messages.
#[derive(Clone, Copy)]
pub(super) enum At<'a> {
    Body,
    Field(&'a At<'a>, &'a str),
    Index(&'a At<'a>, usize),
}

impl At<'_> {
    /// A request that is wrong here.
    pub(super) fn invalid(&self, what: impl fmt::Display) -> Failure {
        Failure::invalid(self.to_string(), format!("{self} {what}"))
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body => f.write_str("body"),
            Self::Field(Self::Body, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// One object: the values of the names asked for, and the rest.
pub(super) struct Fields<'de, const N: usize> {
    body: &'de Bytes,
    names: &'static [&'static str; N],
    known: [Option<&'de RawValue>; N],
    rest: Vec<(Cow<'de, str>, &'de RawValue)>,
}

/// What takes the elements of the body's long list.
pub(super) trait Items<'de, const N: usize> {
    /// The list begins; what came before under the same key no longer counts.
    fn begin(&mut self);
    /// The next element.
    fn item(&mut self, at: &At<'_>, item: Fields<'de, N>) -> Result<(), Failure>;
    /// A string in the list's place.
    fn text(&mut self, at: &At<'_>, _text: &str) -> Result<(), Failure> {
        Err(at.invalid("must be a list, not a string"))
    }
}

/// Reads a whole body: an object of `names`, and the list called `list` in it, whose elements are objects of `item_names`.
pub(super) fn read<'de, const N: usize, const M: usize>(
    body: &'de Bytes,
    names: &'static [&'static str; N],
    list: &'static str,
    item_names: &'static [&'static str; M],
    items: &mut impl Items<'de, M>,
) -> Result<Fields<'de, N>, Failure> {
    read_at(body, names, At::Field(&At::Body, list), list, item_names, items)
}

fn read_at<'de, const N: usize, const M: usize>(
    body: &'de Bytes,
    names: &'static [&'static str; N],
    at: At<'_>,
    list: &'static str,
    item_names: &'static [&'static str; M],
    items: &mut impl Items<'de, M>,
) -> Result<Fields<'de, N>, Failure> {
    if body.is_empty() {
        return Err(Failure::new(FailureKind::Invalid, "the body is empty"));
    }
    let text = std::str::from_utf8(body).map_err(|error| {
        Failure::new(FailureKind::Invalid, format!("the body is not valid UTF-8 at byte {}", error.valid_up_to()))
    })?;
    let mut list = List { body, at, name: list, names: item_names, index: None, items, failure: None };
    let mut json = serde_json::Deserializer::from_str(text);
    let fields =
        ObjectSeed { body, names, list: &mut list }.deserialize(&mut json).and_then(|fields| json.end().map(|()| fields));
    fields.map_err(|error| match list.failure.take() {
        Some(failure) => failure,
        None if !text.trim_start().starts_with('{') && error.is_data() => At::Body.invalid("must be an object"),
        None => list.explain(&error),
    })
}

/// Reads a whole body that has no list as long as itself: an object of `names`.
pub(super) fn read_plain<'de, const N: usize>(
    body: &'de Bytes,
    names: &'static [&'static str; N],
) -> Result<Fields<'de, N>, Failure> {
    read_at(body, names, At::Body, "", &[], &mut NoItems)
}

/// Reads a list inside the body, whose elements are objects of `names`.
pub(super) fn each<'de, const M: usize>(
    body: &'de Bytes,
    value: &'de RawValue,
    at: &At<'_>,
    names: &'static [&'static str; M],
    item: impl FnMut(&At<'_>, Fields<'de, M>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let items = &mut Each(item);
    let mut list = List { body, at: *at, name: "", names, index: None, items, failure: None };
    let read = ListSeed(&mut list).deserialize(&mut serde_json::Deserializer::from_str(value.get()));
    read.map_err(|error| list.failure.take().unwrap_or_else(|| list.explain(&error)))
}

impl<'de, const N: usize> Fields<'de, N> {
    /// The value, `null` included.
    pub(super) fn raw(&self, name: &str) -> Option<&'de RawValue> {
        let place = self.names.iter().position(|known| *known == name);
        debug_assert!(place.is_some(), "{name} was not asked for");
        self.known[place?]
    }

    /// The value, unless it is `null`.
    pub(super) fn value(&self, name: &str) -> Option<&'de RawValue> {
        self.raw(name).filter(|value| value.get() != "null")
    }

    /// A string, as it came.
    pub(super) fn text(&self, at: &At<'_>, name: &str) -> Result<Option<Text>, Failure> {
        let Some(value) = self.value(name) else { return Ok(None) };
        Text::of(self.body, value).map(Some).ok_or_else(|| wrong(&At::Field(at, name), "a string", value))
    }

    /// A string that must be there.
    pub(super) fn required_text(&self, at: &At<'_>, name: &str) -> Result<Text, Failure> {
        self.text(at, name)?.ok_or_else(|| At::Field(at, name).invalid("is missing"))
    }

    /// A string, decoded.
    pub(super) fn string(&self, at: &At<'_>, name: &str) -> Result<Option<Cow<'de, str>>, Failure> {
        let Some(value) = self.value(name) else { return Ok(None) };
        string(value).map(Some).ok_or_else(|| wrong(&At::Field(at, name), "a string", value))
    }

    /// A number or a boolean; `what` names it for the message.
    pub(super) fn read<T: Deserialize<'de>>(&self, at: &At<'_>, name: &str, what: &str) -> Result<Option<T>, Failure> {
        let Some(value) = self.value(name) else { return Ok(None) };
        serde_json::from_str(value.get()).map(Some).map_err(|_| wrong(&At::Field(at, name), what, value))
    }

    /// A value that is passed on unread.
    pub(super) fn keep(&self, at: &At<'_>, name: &str) -> Result<Option<Raw>, Failure> {
        self.value(name).map(|value| keep(self.body, &At::Field(at, name), value)).transpose()
    }

    /// The fields that were not asked for.
    pub(super) fn rest(&self, at: &At<'_>) -> Result<Rest, Failure> {
        let field =
            |(name, value): &(Cow<'de, str>, &'de RawValue)| Ok((Text::new(name), keep(self.body, &At::Field(at, name), value)?));
        self.rest.iter().map(field).collect()
    }

    /// The names of the fields that were not asked for.
    pub(super) fn unknown(&self) -> impl Iterator<Item = &str> {
        self.rest.iter().map(|(name, _)| name.as_ref())
    }

    /// An object inside this one.
    pub(super) fn object<const M: usize>(
        &self,
        at: &At<'_>,
        name: &str,
        names: &'static [&'static str; M],
    ) -> Result<Option<Fields<'de, M>>, Failure> {
        let Some(value) = self.value(name) else { return Ok(None) };
        object(self.body, value, &At::Field(at, name), names).map(Some)
    }

    /// The elements of a list inside this object; none if there is no such list.
    pub(super) fn list<const M: usize>(
        &self,
        at: &At<'_>,
        name: &str,
        names: &'static [&'static str; M],
        item: impl FnMut(&At<'_>, Fields<'de, M>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.value(name).map_or(Ok(()), |value| each(self.body, value, &At::Field(at, name), names, item))
    }
}

/// Reads an object inside the body.
pub(super) fn object<'de, const M: usize>(
    body: &'de Bytes,
    value: &'de RawValue,
    at: &At<'_>,
    names: &'static [&'static str; M],
) -> Result<Fields<'de, M>, Failure> {
    let mut list = List { body, at: *at, name: "", names: &[], index: None, items: &mut NoItems, failure: None };
    let seed = ObjectSeed { body, names, list: &mut list };
    let read = seed.deserialize(&mut serde_json::Deserializer::from_str(value.get()));
    read.map_err(|_| list.failure.take().unwrap_or_else(|| wrong(at, "an object", value)))
}

/// A string's text; `None` if the value is no string.
pub(super) fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    let json = value.get();
    match serde_json::from_str::<&str>(json) {
        Ok(plain) => Some(Cow::Borrowed(plain)),
        Err(_) => serde_json::from_str::<String>(json).ok().map(Cow::Owned),
    }
}

/// Takes a value that is passed on unread.
pub(super) fn keep(body: &Bytes, at: &At<'_>, value: &RawValue) -> Result<Raw, Failure> {
    if is_deep(value.get().as_bytes()) {
        return Err(at.invalid(format_args!("is nested deeper than {MAX_DEPTH}")));
    }
    Ok(Raw::of(body, value))
}

/// Takes the element at `index` of a list unread. The list is walked once more, the first time, and kept in `elements`.
pub(super) fn nth<'de>(
    body: &Bytes,
    at: &At<'_>,
    list: &'de RawValue,
    elements: &mut Option<Vec<&'de RawValue>>,
    index: usize,
) -> Result<Raw, Failure> {
    let elements = elements.get_or_insert_with(|| serde_json::from_str(list.get()).unwrap_or_default());
    elements.get(index).ok_or_else(|| at.invalid("can't be read")).and_then(|value| keep(body, at, value))
}

/// The failure of a value that is not `what` it must be.
pub(super) fn wrong(at: &At<'_>, what: &str, value: &RawValue) -> Failure {
    let found = match value.get().as_bytes().first() {
        Some(b'"') => "a string",
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => value.get().get(..value.get().len().min(40)).unwrap_or("a number"),
    };
    at.invalid(format_args!("must be {what}, not {found}"))
}

/// Whether a value is nested deeper than one that is kept unread may be.
pub(super) fn is_deep(json: &[u8]) -> bool {
    let opens = |byte: &&u8| matches!(byte, b'[' | b'{');
    // Counting without looking for strings goes at memory speed, and settles nearly all.
    if json.iter().filter(opens).count() <= MAX_DEPTH {
        return false;
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return true;
        }
    }
    false
}
