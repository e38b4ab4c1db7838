//! The portals.

use std::net::SocketAddr;

use toml_edit::{ArrayOfTables, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use super::{EditError, comments, remove_entry};
use crate::parse_portal;

const PORTALS: &str = "portal";

/// Adds one with these keys.
pub(super) fn add(document: &mut DocumentMut, keys: &[(&str, Value)]) -> Result<(), EditError> {
    let none = Item::ArrayOfTables(ArrayOfTables::new());
    match document.entry(PORTALS).or_insert(none) {
        Item::ArrayOfTables(portals) => {
            let mut table = Table::new();
            for (key, value) in keys {
                table.insert(key, Item::Value(value.clone()));
            }
            portals.push(table);
        }
        Item::Value(Value::Array(portals)) => {
            portals.push(
                keys.iter().map(|(key, value)| (*key, value.clone())).collect::<InlineTable>(),
            );
        }
        _ => return Err(EditError::Form(PORTALS)),
    }
    Ok(())
}

/// Removes the one with this address, however that is written.
pub(super) fn remove(document: &mut DocumentMut, address: SocketAddr) -> Result<(), EditError> {
    let is = |table: &dyn TableLike| {
        let text = table.get("address").and_then(Item::as_str);
        text.and_then(|text| parse_portal(text).ok()) == Some(address)
    };
    let missing = || EditError::Missing(format!("[[portal]] with the address {address}"));
    match document.get_mut(PORTALS) {
        Some(Item::ArrayOfTables(portals)) => {
            let at = portals.iter().position(|table| is(table)).ok_or_else(missing)?;
            let table = portals.remove(at);
            comments::keep_above(document, &table);
        }
        Some(Item::Value(Value::Array(portals))) => {
            let found = portals.iter().position(|v| v.as_inline_table().is_some_and(|t| is(t)));
            remove_entry(portals, found.ok_or_else(missing)?);
        }
        _ => return Err(missing()),
    }
    Ok(())
}
