//! The walk itself: what serde calls while it goes through a body.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;

use super::{At, Fields, Items, MAX_COUNT};
use crate::call::{Failure, FailureKind};

/// A list that is being read.
pub(super) struct List<'a, 'de, const M: usize, I> {
    pub(super) body: &'de Bytes,
    pub(super) at: At<'a>,
    pub(super) name: &'static str,
    pub(super) names: &'static [&'static str; M],
    /// The element that is being read.
    pub(super) index: Option<usize>,
    pub(super) items: &'a mut I,
    /// What `items` found wrong.
    pub(super) failure: Option<Failure>,
}

impl<const M: usize, I> List<'_, '_, M, I> {
    pub(super) fn explain(&self, error: &serde_json::Error) -> Failure {
        match (error.classify(), self.index) {
            (Category::Data, Some(index)) => At::Index(&self.at, index).invalid("must be an object"),
            (Category::Data, None) => self.at.invalid("must be a list"),
            _ => Failure::new(FailureKind::Invalid, format!("the body is not valid JSON: {error}")),
        }
    }
}

/// For objects without a long list.
pub(super) struct NoItems;

impl<'de> Items<'de, 0> for NoItems {
    fn begin(&mut self) {}
    fn item(&mut self, _at: &At<'_>, _item: Fields<'de, 0>) -> Result<(), Failure> {
        Ok(())
    }
}

pub(super) struct Each<F>(pub(super) F);

impl<'de, const M: usize, F> Items<'de, M> for Each<F>
where
    F: FnMut(&At<'_>, Fields<'de, M>) -> Result<(), Failure>,
{
    fn begin(&mut self) {}
    fn item(&mut self, at: &At<'_>, item: Fields<'de, M>) -> Result<(), Failure> {
        (self.0)(at, item)
    }
}

pub(super) struct ObjectSeed<'l, 'a, 'de, const N: usize, const M: usize, I> {
    pub(super) body: &'de Bytes,
    pub(super) names: &'static [&'static str; N],
    pub(super) list: &'l mut List<'a, 'de, M, I>,
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

pub(super) struct ListSeed<'l, 'a, 'de, const M: usize, I>(pub(super) &'l mut List<'a, 'de, M, I>);

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
