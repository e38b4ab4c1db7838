//! What facts look like, found out from their types: serde is asked for a value in which every
//! option is there and every list has an element.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Visitor,
};

/// What a value looks like. A copy shares what is inside: that of the facts has thousands of parts, and each name in an expression
/// gives one.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Named fields, and no others.
    Fields(Arc<BTreeMap<String, Shape>>),
    /// Any names.
    Map(Arc<Shape>),
    /// A list.
    List(Arc<Shape>),
    /// A number, a text, or nothing that is known.
    Plain,
}

/// The name of the element of a map in a value that was made up.
const ANY: &str = "*";

impl Shape {
    /// What values of this type look like.
    pub fn of<T: DeserializeOwned + Serialize>() -> Self {
        serde_json::to_value(sample::<T>()).map_or(Self::Plain, |value| Self::from(&value))
    }

    /// A list of such.
    pub fn list(element: Self) -> Self {
        Self::List(Arc::new(element))
    }

    /// These fields, and no others.
    pub fn fields(fields: impl IntoIterator<Item = (String, Self)>) -> Self {
        Self::Fields(Arc::new(fields.into_iter().collect()))
    }

    /// The same with one more name.
    #[must_use]
    pub fn with(mut self, name: &str, shape: Self) -> Self {
        if let Self::Fields(fields) = &mut self {
            Arc::make_mut(fields).insert(name.to_owned(), shape);
        }
        self
    }

    /// What expressions over facts may name: the facts, and the constants.
    pub fn facts() -> Self {
        let constants = ["KiB", "MiB", "GiB", "TiB"];
        constants
            .iter()
            .fold(Self::of::<crate::facts::Facts>(), |shape, name| shape.with(name, Self::Plain))
    }

    /// What is in it, if it is a list.
    pub fn element(&self) -> Option<Self> {
        match self {
            Self::List(element) => Some((**element).clone()),
            _ => None,
        }
    }

    fn from(value: &serde_json::Value) -> Self {
        match value {
            serde_json::Value::Object(fields) => match fields.get(ANY) {
                Some(any) => Self::Map(Arc::new(Self::from(any))),
                None => Self::fields(
                    fields.iter().map(|(name, field)| (name.clone(), Self::from(field))),
                ),
            },
            serde_json::Value::Array(list) => {
                Self::list(list.first().map_or(Self::Plain, Self::from))
            }
            _ => Self::Plain,
        }
    }
}

/// A value in which everything is known: every list and map has one element.
///
/// # Panics
/// If the type cannot be made up like this: that is a mistake in the type.
#[expect(clippy::expect_used, reason = "the types are our own, and a test makes them all")]
pub fn sample<T: DeserializeOwned>() -> T {
    T::deserialize(Full).expect("facts are plain structures")
}

/// Has an answer for every question.
struct Full;

impl<'de> Deserializer<'de> for Full {
    type Error = Error;

    /// Asked for by untagged enums.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(1)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(true)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str("1")
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str("1")
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_f64(1.0)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Once(true))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(Names([ANY].iter()))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(Names(fields.iter()))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let first: StrDeserializer<'_, Error> =
            variants.first().copied().unwrap_or_default().into_deserializer();
        visitor.visit_enum(first)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 char bytes byte_buf unit unit_struct tuple
        tuple_struct identifier ignored_any
    }
}

/// A list of one element.
struct Once(bool);

impl<'de> SeqAccess<'de> for Once {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        match std::mem::take(&mut self.0) {
            true => seed.deserialize(Full).map(Some),
            false => Ok(None),
        }
    }
}

/// A value for each of these names.
struct Names<'a>(std::slice::Iter<'a, &'static str>);

impl<'de> MapAccess<'de> for Names<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some(name) = self.0.next() else { return Ok(None) };
        let name: StrDeserializer<'_, Error> = (*name).into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(Full)
    }
}
