//! Reads the values of one table, notes what is wrong, and goes on.

use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::mistake::Mistakes;
use super::schema::{self, Table, nearest};
use crate::units::{self, Grain};

/// So many keys of a table are named where none looks like the wrong one.
const FEW: usize = 12;

/// Turns a TOML value into one of ours, or says what it must be.
pub(crate) type Convert<'c, T> = &'c dyn Fn(&DeValue<'_>) -> Result<T, String>;

/// A value and the offset of its first byte, for mistakes that show later.
#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    pub(crate) offset: usize,
    pub(crate) value: T,
}

/// One table of the file, checked for unknown keys.
pub(crate) struct Section<'a> {
    /// Where the table begins.
    pub(crate) offset: usize,
    /// The key of the table, as mistakes name it.
    pub(crate) path: String,
    table: &'a DeTable<'a>,
    schema: &'static Table,
}

impl<'a> Section<'a> {
    /// Opens `value` as a table with the keys of `schema`; keys that are not in it are mistakes, unless
    /// they once were.
    pub(crate) fn open(
        value: &'a Spanned<DeValue<'a>>,
        path: String,
        schema: &'static Table,
        mistakes: &mut Mistakes,
    ) -> Option<Self> {
        let offset = value.span().start;
        let Some(table) = value.get_ref().as_table() else {
            mistakes.add(offset, path, format!("must be a table: {}", schema.heading));
            return None;
        };
        Some(Self::new(table, offset, path, schema, mistakes))
    }

    /// The same, for a table that is known to be one.
    pub(crate) fn new(
        table: &'a DeTable<'a>,
        offset: usize,
        path: String,
        schema: &'static Table,
        mistakes: &mut Mistakes,
    ) -> Self {
        let section = Self { offset, path, table, schema };
        for name in table.keys().filter(|name| !schema.has(name.get_ref())) {
            let key = section.key(name.get_ref());
            match schema::retired(schema.heading, name.get_ref()) {
                Some(retired) => mistakes.note(name.span().start, key, retired.why),
                None => mistakes.add(name.span().start, key, unknown(name.get_ref(), schema)),
            }
        }
        section
    }

    /// The full name of a key of this table.
    pub(crate) fn key(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The value of a key as TOML has it, if it is there.
    pub(crate) fn raw(&self, name: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        debug_assert!(self.schema.has(name), "{name} is not in the schema");
        self.table.get(name)
    }

    /// The value of a key and where it stands. None if it is not there, or wrong (noted then).
    pub(crate) fn get<T>(
        &self,
        name: &str,
        convert: Convert<'_, T>,
        mistakes: &mut Mistakes,
    ) -> Option<At<T>> {
        let value = self.raw(name)?;
        let offset = value.span().start;
        match convert(value.get_ref()) {
            Ok(value) => Some(At { offset, value }),
            Err(text) => {
                mistakes.add(offset, self.key(name), text);
                None
            }
        }
    }

    /// Sets `place` to the value of a key, if it is there and right.
    pub(crate) fn set<T>(
        &self,
        name: &str,
        place: &mut T,
        convert: Convert<'_, T>,
        mistakes: &mut Mistakes,
    ) {
        if let Some(found) = self.get(name, convert, mistakes) {
            *place = found.value;
        }
    }

    /// Notes that a required key is not there.
    pub(crate) fn missing(&self, name: &str, mistakes: &mut Mistakes) {
        if !self.table.contains_key(name) {
            mistakes.add(self.offset, self.key(name), "is missing and has no default");
        }
    }
}

fn unknown(name: &str, schema: &'static Table) -> String {
    if let Some(near) = nearest(name, schema.names()) {
        return format!("is not a key; did you mean \"{near}\"?");
    }
    match schema::TABLES.iter().find(|table| table.has(name)) {
        Some(table) => format!("is not a key here; it belongs into {}", table.heading),
        None => {
            let names: Vec<&str> = schema.names().collect();
            match names.len() <= FEW {
                true => format!("is not a key; the keys here are {}", names.join(", ")),
                false => "is not a key".to_owned(),
            }
        }
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

/// Any string.
pub(crate) fn string(value: &DeValue<'_>) -> Result<String, String> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(format!("must be a string in quotes, not {}", kind(value))),
    }
}

/// A string of 1 to `most` printable ASCII characters that neither starts nor ends with a space.
pub(crate) fn label(value: &DeValue<'_>, most: usize) -> Result<String, String> {
    let text = string(value)?;
    let printable = text.bytes().all(|b| (0x20..0x7f).contains(&b));
    if text.is_empty() || text.len() > most || !printable || text.trim() != text {
        return Err(format!(
            "must be 1 to {most} printable ASCII characters, with no space at either end"
        ));
    }
    Ok(text)
}

/// `true` or `false`.
pub(crate) fn boolean(value: &DeValue<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("must be true or false, not {}", kind(value)))
}

/// An integer within bounds.
pub(crate) fn integer(value: &DeValue<'_>, range: RangeInclusive<u64>) -> Result<u64, String> {
    let wanted = || format!("must be an integer from {} to {}", range.start(), range.end());
    let number = value.as_integer().ok_or_else(|| format!("{}, not {}", wanted(), kind(value)))?;
    let number = u64::from_str_radix(number.as_str(), number.radix()).map_err(|_| wanted())?;
    if range.contains(&number) { Ok(number) } else { Err(wanted()) }
}

/// A part of the whole, from 0 to 1.
pub(crate) fn share(value: &DeValue<'_>) -> Result<f64, String> {
    let number = match value {
        DeValue::Float(number) => number.as_str().parse().ok(),
        DeValue::Integer(number) => number.as_str().parse().ok(),
        _ => None,
    };
    let number = number.filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "must be a number from 0.0 to 1.0".to_owned())
}

/// A size in bytes within bounds: a string with a unit, or an integer.
pub(crate) fn size(value: &DeValue<'_>, range: RangeInclusive<u64>) -> Result<u64, String> {
    let bytes = match value {
        DeValue::String(text) => units::parse_size(text)?,
        DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix())
            .map_err(|_| "must be a size in bytes that is not negative".to_owned())?,
        other => return Err(format!("must be a size, as in \"8GiB\", not {}", kind(other))),
    };
    if range.contains(&bytes) {
        return Ok(bytes);
    }
    Err(format!(
        "must be from {} to {}",
        units::exact_size(*range.start()),
        units::exact_size(*range.end())
    ))
}

/// A duration within bounds: a string with a unit.
pub(crate) fn duration(
    value: &DeValue<'_>,
    range: RangeInclusive<Duration>,
) -> Result<Duration, String> {
    let Some(text) = value.as_str() else {
        return Err(format!("must be a duration, as in \"15s\", not {}", kind(value)));
    };
    let time = units::parse_duration(text)?;
    if range.contains(&time) {
        return Ok(time);
    }
    let (least, most) = (units::duration(*range.start()), units::duration(*range.end()));
    Err(format!("must be from {least} to {most}"))
}

/// A duration within bounds that the API tells of in whole units.
pub(crate) fn whole(
    value: &DeValue<'_>,
    range: RangeInclusive<Duration>,
    grain: Grain,
) -> Result<Duration, String> {
    let time = duration(value, range)?;
    value.as_str().map_or(Ok(0), |text| units::parse_whole(text, grain))?;
    Ok(time)
}

/// One of some words; gives the value that belongs to it.
pub(crate) fn choice<T: Copy>(value: &DeValue<'_>, words: &[(&str, T)]) -> Result<T, String> {
    let found = value.as_str().and_then(|text| words.iter().find(|(word, _)| *word == text));
    if let Some((_, meaning)) = found {
        return Ok(*meaning);
    }
    let all: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
    let mut text = format!("must be one of {}", all.join(", "));
    let near = value.as_str().and_then(|text| nearest(text, words.iter().map(|(word, _)| *word)));
    if let Some(near) = near {
        text.push_str(&format!("; did you mean \"{near}\"?"));
    }
    Err(text)
}
