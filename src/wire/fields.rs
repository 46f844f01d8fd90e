//! Requests read field by field in one pass, everything borrowed from the body.
//!
//! An object becomes [`Fields`]: the values of the names asked for, as slices of JSON, and the rest in its order. The body's one
//! long list (its messages) is read element by element on the way, so that its bytes are walked once. Of a key that comes
//! twice, the last stands.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

use crate::call::{Failure, FailureKind, Raw, Rest, Text};

/// How deep a value may be nested that is kept unread; whoever reads it later (`serde_json`, servers) stops at 128 or so.
const MAX_DEPTH: usize = 100;

/// How many elements a list, and unknown fields an object, may have: a body of nothing but `{"role":"user"}` would take fifteen
/// times its size in memory.
const MAX_COUNT: usize = 1 << 17;

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
    if body.is_empty() {
        return Err(Failure::new(FailureKind::Invalid, "the body is empty"));
    }
    let text = std::str::from_utf8(body).map_err(|error| {
        Failure::new(FailureKind::Invalid, format!("the body is not valid UTF-8 at byte {}", error.valid_up_to()))
    })?;
    let mut list =
        List { body, at: At::Field(&At::Body, list), name: list, names: item_names, index: None, items, failure: None };
    let mut json = serde_json::Deserializer::from_str(text);
    let fields =
        ObjectSeed { body, names, list: &mut list }.deserialize(&mut json).and_then(|fields| json.end().map(|()| fields));
    fields.map_err(|error| match list.failure.take() {
        Some(failure) => failure,
        None if !text.trim_start().starts_with('{') && error.is_data() => At::Body.invalid("must be an object"),
        None => list.explain(&error),
    })
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

fn is_deep(json: &[u8]) -> bool {
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

/// A list that is being read.
struct List<'a, 'de, const M: usize, I> {
    body: &'de Bytes,
    at: At<'a>,
    name: &'static str,
    names: &'static [&'static str; M],
    /// The element that is being read.
    index: Option<usize>,
    items: &'a mut I,
    /// What `items` found wrong.
    failure: Option<Failure>,
}

impl<const M: usize, I> List<'_, '_, M, I> {
    fn explain(&self, error: &serde_json::Error) -> Failure {
        match (error.classify(), self.index) {
            (Category::Data, Some(index)) => At::Index(&self.at, index).invalid("must be an object"),
            (Category::Data, None) => self.at.invalid("must be a list"),
            _ => Failure::new(FailureKind::Invalid, format!("the body is not valid JSON: {error}")),
        }
    }
}

/// For objects without a long list.
struct NoItems;

impl<'de> Items<'de, 0> for NoItems {
    fn begin(&mut self) {}
    fn item(&mut self, _at: &At<'_>, _item: Fields<'de, 0>) -> Result<(), Failure> {
        Ok(())
    }
}

struct Each<F>(F);

impl<'de, const M: usize, F> Items<'de, M> for Each<F>
where
    F: FnMut(&At<'_>, Fields<'de, M>) -> Result<(), Failure>,
{
    fn begin(&mut self) {}
    fn item(&mut self, at: &At<'_>, item: Fields<'de, M>) -> Result<(), Failure> {
        (self.0)(at, item)
    }
}

struct ObjectSeed<'l, 'a, 'de, const N: usize, const M: usize, I> {
    body: &'de Bytes,
    names: &'static [&'static str; N],
    list: &'l mut List<'a, 'de, M, I>,
}

impl<'de, const N: usize, const M: usize, I: Items<'de, M>> DeserializeSeed<'de> for ObjectSeed<'_, '_, 'de, N, M, I> {
    type Value = Fields<'de, N>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, const N: usize, const M: usize, I: Items<'de, M>> Visitor<'de> for ObjectSeed<'_, '_, 'de, N, M, I> {
    type Value = Fields<'de, N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Fields { body: self.body, names: self.names, known: [None; N], rest: Vec::new() };
        while let Some(name) = map.next_key_seed(KeySeed)? {
            if !self.list.name.is_empty() && name == self.list.name {
                map.next_value_seed(ListSeed(self.list))?;
                continue;
            }
            let value = map.next_value()?;
            match self.names.iter().position(|known| *known == name) {
                Some(place) => fields.known[place] = Some(value),
                None if fields.rest.len() == MAX_COUNT => {
                    // Only the body itself has a long list, and its place is another than the list's.
                    let at = if self.list.name.is_empty() { &self.list.at } else { &At::Body };
                    self.list.failure = Some(at.invalid(format_args!("has more than {MAX_COUNT} unknown fields")));
                    return Err(A::Error::custom("refused"));
                }
                None => fields.rest.push((name, value)),
            }
        }
        Ok(fields)
    }
}

struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}

struct ListSeed<'l, 'a, 'de, const M: usize, I>(&'l mut List<'a, 'de, M, I>);

impl<'de, const M: usize, I: Items<'de, M>> DeserializeSeed<'de> for ListSeed<'_, '_, 'de, M, I> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, const M: usize, I: Items<'de, M>> Visitor<'de> for ListSeed<'_, '_, 'de, M, I> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.0.items.begin();
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        let list = self.0;
        list.items.begin();
        list.items.text(&list.at, text).map_err(|failure| {
            list.failure = Some(failure);
            E::custom("refused")
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let list = self.0;
        list.items.begin();
        for index in 0.. {
            list.index = Some(index);
            let at = &At::Index(&list.at, index);
            let mut inner =
                List { body: list.body, at: *at, name: "", names: &[], index: None, items: &mut NoItems, failure: None };
            let seed = ObjectSeed { body: list.body, names: list.names, list: &mut inner };
            let item = match elements.next_element_seed(seed) {
                Ok(Some(item)) => item,
                Ok(None) => break,
                Err(error) => {
                    list.failure = inner.failure;
                    return Err(error);
                }
            };
            let taken = if index < MAX_COUNT {
                list.items.item(at, item)
            } else {
                Err(list.at.invalid(format_args!("has more than {MAX_COUNT} elements")))
            };
            if let Err(failure) = taken {
                list.failure = Some(failure);
                // What follows must not be read; it may be a whole body long.
                return Err(A::Error::custom("refused"));
            }
        }
        list.index = None;
        Ok(())
    }
}
