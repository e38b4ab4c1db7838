//! The LUNs of a target: a table in the line, a table with a heading, or an array.

use toml_edit::{Array, InlineTable, Item, Key, TableLike, Value};

use super::{EditError, comments, remove_from};

const LUNS: &str = "luns";

/// Adds a LUN that is not there.
pub(super) fn add(target: &mut dyn TableLike, lun: u16, volume: &str) -> Result<(), EditError> {
    let number = lun.to_string();
    match target.get_mut(LUNS) {
        None => {
            let mut table = InlineTable::new();
            table.insert(number, volume.into());
            target.insert(LUNS, Item::Value(table.into()));
        }
        Some(Item::Table(table)) => {
            table.insert(&number, toml_edit::value(volume));
        }
        Some(Item::Value(Value::InlineTable(table))) => insert(table, &number, volume),
        Some(Item::Value(Value::Array(array))) if usize::from(lun) == array.len() => {
            push(array, volume);
        }
        Some(Item::Value(value)) => {
            let Value::Array(array) = value else { return Err(EditError::Form(LUNS)) };
            let mut table = numbered(array);
            insert(&mut table, &number, volume);
            replace(value, table);
        }
        Some(_) => return Err(EditError::Form(LUNS)),
    }
    Ok(())
}

/// Removes a LUN; false if it is not there.
pub(super) fn remove(target: &mut dyn TableLike, lun: u16) -> Result<bool, EditError> {
    let number = lun.to_string();
    let removed = match target.get_mut(LUNS) {
        None => false,
        Some(Item::Table(table)) => {
            // The last LUN may take its heading's only line with it, and the heading stays.
            table.remove(&number).is_some()
        }
        Some(Item::Value(Value::InlineTable(table))) => take(table, &number),
        Some(Item::Value(Value::Array(array))) if usize::from(lun) + 1 == array.len() => {
            remove_from(array, usize::from(lun));
            true
        }
        Some(Item::Value(value)) => {
            let Value::Array(array) = value else { return Err(EditError::Form(LUNS)) };
            if usize::from(lun) >= array.len() {
                return Ok(false);
            }
            // The others keep their numbers, so these must be written down from now on.
            let mut table = numbered(array);
            take(&mut table, &number);
            replace(value, table);
            true
        }
        Some(_) => return Err(EditError::Form(LUNS)),
    };
    Ok(removed)
}

/// An array as a table that says the same.
fn numbered(array: &Array) -> InlineTable {
    let mut table = InlineTable::new();
    let lines = has_lines(&array.to_string());
    for (number, value) in array.iter().enumerate() {
        let mut value = value.clone();
        let mut key = Key::new(number.to_string());
        if lines {
            key.leaf_decor_mut().set_prefix(comments::prefix(value.decor()));
            key.leaf_decor_mut().set_suffix(" ");
            value.decor_mut().set_prefix(" ");
        } else {
            value.decor_mut().clear();
        }
        table.insert_formatted(&key, value);
    }
    if lines {
        table.set_trailing_comma(array.trailing_comma());
        table.set_trailing(array.trailing().as_str().unwrap_or_default());
    }
    table
}

/// Puts a table where an array stood.
fn replace(place: &mut Value, table: InlineTable) {
    let mut table = Value::InlineTable(table);
    *table.decor_mut() = place.decor().clone();
    *place = table;
}

/// Appends to an array, on a line of its own if the others have one.
pub(super) fn push(array: &mut Array, volume: &str) {
    let indent = array.iter().last().map(|last| line_break(&comments::prefix(last.decor())));
    let Some(indent) = indent.filter(|indent| !indent.is_empty()) else {
        array.push(volume);
        return;
    };
    // The comment behind what was the last stays there, and the comma comes before it.
    let trailing = array.trailing().as_str().unwrap_or_default().to_owned();
    let (before, after) = match array.trailing_comma() {
        true => split_last_line(&trailing),
        false => (array.get_mut(array.len() - 1).map_or_else(String::new, take_suffix), trailing),
    };
    let mut value = Value::from(volume);
    value.decor_mut().set_prefix(format!("{}{indent}", before.trim_end()));
    let own_line = !array.trailing_comma() && !has_lines(&after);
    value.decor_mut().set_suffix(if own_line { "\n" } else { "" });
    array.push_formatted(value);
    array.set_trailing(after);
}

/// Inserts into a table in the line, or in lines.
fn insert(table: &mut InlineTable, number: &str, volume: &str) {
    if !has_lines(&table.to_string()) {
        table.insert(number, volume.into());
        table.fmt();
        return;
    }
    let mut key = Key::new(number);
    key.leaf_decor_mut().set_suffix(" ");
    let mut value = Value::from(volume);
    value.decor_mut().set_prefix(" ");
    // A comment behind the last entry belongs to what follows: here, to the new entry.
    let trailing = table.trailing().as_str().unwrap_or_default().to_owned();
    let (before, after) = match table.trailing_comma() {
        true => split_last_line(&trailing),
        false => {
            (table.iter_mut().last().map_or_else(String::new, |(_, v)| take_suffix(v)), trailing)
        }
    };
    let indent = table.iter().next().map(|(key, _)| key.to_owned());
    let indent = indent.and_then(|key| table.key(&key).map(|k| comments::prefix(k.leaf_decor())));
    let indent = indent.map_or_else(String::new, |prefix| line_break(&prefix));
    let indent = if indent.is_empty() { "\n    ".to_owned() } else { indent };
    key.leaf_decor_mut().set_prefix(format!("{}{indent}", before.trim_end()));
    let own_line = !table.trailing_comma() && !has_lines(&after);
    value.decor_mut().set_suffix(if own_line { "\n" } else { "" });
    table.insert_formatted(&key, value);
    table.set_trailing(after);
}

/// What stands before the last line break, and the rest.
fn split_last_line(text: &str) -> (String, String) {
    let (before, after) = text.split_at(text.rfind('\n').unwrap_or(0));
    (before.to_owned(), after.to_owned())
}

/// What stands behind a value, taken away from there.
fn take_suffix(value: &mut Value) -> String {
    let after = suffix(value);
    value.decor_mut().set_suffix("");
    after
}

fn suffix(value: &Value) -> String {
    value.decor().suffix().and_then(|s| s.as_str()).unwrap_or_default().to_owned()
}

/// Removes a LUN from a table in the line, or in lines. Comments around it stay.
fn take(table: &mut InlineTable, number: &str) -> bool {
    let lines = has_lines(&table.to_string());
    let keys: Vec<String> = table.iter().map(|(key, _)| key.to_owned()).collect();
    let Some(at) = keys.iter().position(|key| key == number) else { return false };
    let Some((key, value)) = table.remove_entry(number) else { return false };
    if !lines {
        table.fmt();
        return true;
    }
    let mut around = comments::prefix(key.leaf_decor());
    around.push_str(&suffix(&value));
    if around.contains('#') {
        let next = keys.get(at + 1).and_then(|next| table.key_mut(next));
        if let Some(mut next) = next {
            let joined = comments::joined(&around, &comments::prefix(next.leaf_decor()));
            next.leaf_decor_mut().set_prefix(joined);
        } else {
            let trailing = table.trailing().as_str().unwrap_or_default();
            let joined = comments::joined(&around, trailing);
            table.set_trailing(joined);
        }
    }
    true
}

fn has_lines(text: &str) -> bool {
    text.trim().contains('\n')
}

/// The last line break of a text with what is behind it, if that is all spaces.
fn line_break(text: &str) -> String {
    match text.rfind('\n') {
        Some(at) if text[at..].trim().is_empty() => text[at..].to_owned(),
        _ => String::new(),
    }
}
