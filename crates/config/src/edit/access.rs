//! The rules of a target: whom it lets in, and its users.

use toml_edit::{Array, ArrayOfTables, InlineTable, Item, Table, TableLike, Value};

use super::{EditError, is_named, luns, remove_entry};

pub(super) const INITIATORS: &str = "initiators";
pub(super) const HOSTS: &str = "hosts";
const USERS: &str = "user";
const OPEN: &str = "open";

/// Adds entries to the list of initiators, or of hosts, which is made if it is not there.
pub(super) fn allow(
    target: &mut dyn TableLike,
    key: &'static str,
    entries: &[String],
) -> Result<(), EditError> {
    let list = target.entry(key).or_insert(Item::Value(Array::new().into()));
    let array = list.as_array_mut().ok_or(EditError::Form(key))?;
    entries.iter().for_each(|entry| luns::push(array, entry));
    Ok(())
}

/// Removes an entry of the list of initiators, or of hosts; false if it is not there. A list that is empty then
/// stays, and lets nobody in.
pub(super) fn deny(
    target: &mut dyn TableLike,
    key: &'static str,
    same: impl Fn(&Value) -> bool,
) -> Result<bool, EditError> {
    let Some(list) = target.get_mut(key) else { return Ok(false) };
    let array = list.as_array_mut().ok_or(EditError::Form(key))?;
    let Some(at) = array.iter().position(same) else { return Ok(false) };
    remove_entry(array, at);
    if !array.to_string().contains('\n') {
        // Within a line there are no comments to lose, but the spaces of what was there.
        array.fmt();
    }
    Ok(true)
}

/// True for the entry of a list of initiators with this text: their names have letters of any case.
pub(super) fn is_initiator(entry: &str) -> impl Fn(&Value) -> bool {
    move |value| value.as_str().is_some_and(|text| text.eq_ignore_ascii_case(entry))
}

/// True for the entry of a list of hosts with this NQN, by itself or in a table with its secrets.
pub(super) fn is_host(nqn: &str) -> impl Fn(&Value) -> bool {
    move |value| {
        let named = value.as_inline_table().and_then(|host| host.get("nqn")?.as_str());
        value.as_str().or(named) == Some(nqn)
    }
}

/// Takes back that a target is open to everybody, if it says so: when those who are named now go again, nobody
/// else is to come in.
pub(super) fn close(target: &mut dyn TableLike) {
    match target.get_mut(OPEN) {
        Some(Item::Value(said)) if said.as_bool() == Some(true) => {
            let decor = said.decor().clone();
            *said = false.into();
            *said.decor_mut() = decor;
        }
        _ => {}
    }
}

/// Opens a target to everybody.
pub(super) fn open(target: &mut dyn TableLike) {
    if let Some(Item::Value(old)) = target.get_mut(OPEN) {
        let decor = old.decor().clone();
        *old = true.into();
        *old.decor_mut() = decor;
    } else {
        target.insert(OPEN, Item::Value(true.into()));
    }
}

/// Adds a user with these keys.
pub(super) fn add_user(
    target: &mut dyn TableLike,
    keys: &[(&str, Value)],
) -> Result<(), EditError> {
    let inline = || keys.iter().map(|(key, value)| (*key, value.clone())).collect::<InlineTable>();
    match target.get_mut(USERS) {
        Some(Item::ArrayOfTables(users)) => users.push(table(keys)),
        Some(Item::Value(Value::Array(users))) => users.push(inline()),
        Some(_) => return Err(EditError::Form(USERS)),
        None => {
            // In a table within a line it becomes an array there.
            let mut users = ArrayOfTables::new();
            users.push(table(keys));
            target.insert(USERS, Item::ArrayOfTables(users));
        }
    }
    Ok(())
}

/// Removes a user; `None` if it is not there. The table that had a heading of its own is given back.
pub(super) fn remove_user(
    target: &mut dyn TableLike,
    name: &str,
) -> Result<Option<Option<Table>>, EditError> {
    let (gone, left) = match target.get_mut(USERS) {
        None => return Ok(None),
        Some(Item::ArrayOfTables(users)) => {
            let Some(at) = users.iter().position(|user| is_named(user, name)) else {
                return Ok(None);
            };
            (Some(users.remove(at)), users.len())
        }
        Some(Item::Value(Value::Array(users))) => {
            let named = |value: &Value| value.as_inline_table().is_some_and(|t| is_named(t, name));
            let Some(at) = users.iter().position(named) else { return Ok(None) };
            remove_entry(users, at);
            (None, users.len())
        }
        Some(_) => return Err(EditError::Form(USERS)),
    };
    if left == 0 {
        target.remove(USERS);
    }
    Ok(Some(gone))
}

/// Gives a user another secret: its key goes, and another one stands in its place.
pub(super) fn set_secret(
    target: &mut dyn TableLike,
    name: &str,
    (key, value): (&str, Value),
) -> Result<bool, EditError> {
    let user: Option<&mut dyn TableLike> = match target.get_mut(USERS) {
        None => None,
        Some(Item::ArrayOfTables(users)) => users
            .iter_mut()
            .find(|user| is_named(*user, name))
            .map(|user| user as &mut dyn TableLike),
        Some(Item::Value(Value::Array(users))) => users
            .iter_mut()
            .filter_map(Value::as_inline_table_mut)
            .find(|user| is_named(*user, name))
            .map(|user| user as &mut dyn TableLike),
        Some(_) => return Err(EditError::Form(USERS)),
    };
    let Some(user) = user else { return Ok(false) };
    if let Some(Item::Value(old)) = user.get_mut(key) {
        let decor = old.decor().clone();
        *old = value;
        *old.decor_mut() = decor;
    } else {
        user.insert(key, Item::Value(value));
    }
    for other in ["secret", "secret-file", "secret-env"].iter().filter(|other| **other != key) {
        user.remove(other);
    }
    Ok(true)
}

fn table(keys: &[(&str, Value)]) -> Table {
    let mut table = Table::new();
    for (key, value) in keys {
        table.insert(key, Item::Value(value.clone()));
    }
    table
}
