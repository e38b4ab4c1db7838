//! A configuration that can be shown to others.

use toml_edit::{Item, TableLike, Value};

/// What stands in the place of a secret. It is too short to be one.
const HIDDEN: &str = "not shown";

/// Takes the secrets out of a table and of all that is in it.
pub(super) fn hide(table: &mut dyn TableLike) {
    for (key, item) in table.iter_mut() {
        match item {
            Item::Value(value) if key == "secret" => cover(value),
            Item::Value(value) => within(value),
            Item::Table(table) => hide(table),
            Item::ArrayOfTables(tables) => tables.iter_mut().for_each(|table| hide(table)),
            Item::None => {}
        }
    }
}

fn within(value: &mut Value) {
    match value {
        Value::InlineTable(table) => hide(table),
        Value::Array(array) => array.iter_mut().for_each(within),
        _ => {}
    }
}

/// Puts something else there; what stands around it stays.
fn cover(value: &mut Value) {
    let decor = value.decor().clone();
    *value = HIDDEN.into();
    *value.decor_mut() = decor;
}
