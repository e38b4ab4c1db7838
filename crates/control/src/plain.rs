//! Control characters in the texts of a request: no name and no path has them, and what takes a name is not to have to
//! look for them.

use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};

/// Texts that may have them: a configuration has lines, and whoever takes a secret says what it may have in it.
const FREE: [&str; 3] = ["text", "password", "current"];

/// The name of the first text of a JSON document that has control characters.
///
/// # Errors
/// It is no JSON.
pub(crate) fn strange(json: &[u8]) -> serde_json::Result<Option<String>> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    Look { name: "the body" }.deserialize(&mut reader)
}

/// Looks through a value, which has this name.
#[derive(Clone, Copy)]
struct Look<'n> {
    name: &'n str,
}

impl<'de> DeserializeSeed<'de> for Look<'_> {
    type Value = Option<String>;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Option<String>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Look<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<String>, E> {
        let is = !FREE.contains(&self.name) && text.chars().any(char::is_control);
        Ok(is.then(|| self.name.to_owned()))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<String>, A::Error> {
        let mut found = None;
        while let Some(one) = items.next_element_seed(self)? {
            found = found.or(one);
        }
        Ok(found)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Option<String>, A::Error> {
        let mut found = None;
        while let Some(name) = items.next_key::<String>()? {
            found = found.or(items.next_value_seed(Look { name: &name })?);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_found_wherever_they_are_but_in_secrets_and_configurations() {
        for (json, name) in [
            (r#"{"path": "/a b\u00e9", "size": 1, "x": [null, true, -1, 1.5]}"#, None),
            (r#"{"path": "/a\u0000b"}"#, Some("path")),
            (r#"{"name": "a\nb"}"#, Some("name")),
            ("{\"name\": \"a\u{7f}\"}", Some("name")),
            ("{\"name\": \"a\u{85}\"}", Some("name")),
            (r#"{"initiators": ["a", "b\t"]}"#, Some("initiators")),
            (r#"{"options": {"only": ["\u001b[2J"]}}"#, Some("only")),
            (r#"{"text": "[server]\n", "password": "a\tb", "current": "\u0000"}"#, None),
            (r#""\u0000""#, Some("the body")),
        ] {
            assert_eq!(strange(json.as_bytes()).unwrap().as_deref(), name, "{json}");
        }
        assert!(strange(b"{").is_err());
    }
}
