//! What happens to the comments above something that is removed.

use toml_edit::{Decor, DocumentMut, Item, RawString, Table};

/// What stands before something, as text.
pub(super) fn prefix(decor: &Decor) -> String {
    decor.prefix().and_then(RawString::as_str).unwrap_or_default().to_owned()
}

/// Two pieces of comments and spaces, with one line break between them and no heap of empty lines.
pub(super) fn joined(first: &str, second: &str) -> String {
    let first = first.trim_end_matches([' ', '\t']);
    if !second.starts_with(['\n', '\r']) {
        let gap = if first.ends_with('\n') { "" } else { "\n" };
        return format!("{first}{gap}{second}");
    }
    // `second` brings the empty line between them, and a comment must end before it.
    let first = first.trim_end_matches(['\n', '\r']);
    format!("{first}\n{second}")
}

/// The part of the text above a heading that is not about it: all but the comment lines that
/// stand right above it.
pub(super) fn not_about(above: &str) -> &str {
    let mut end = above.len();
    for line in above.split_inclusive('\n').rev() {
        if line.trim().is_empty() {
            break;
        }
        end -= line.len();
    }
    let kept = &above[..end];
    if kept.contains('#') { kept } else { "" }
}

/// What stands between the neighbours of an entry that is removed from an array: `above` is what stood before it, from
/// the comma or bracket on, and `below` what stands behind it. `None`: `below` as it is.
pub(super) fn between(above: &str, below: &str) -> Option<String> {
    if !above.contains('#') && !below.contains('#') {
        return None;
    }
    // A comment on the line of the comma or bracket is about what is before it.
    let (first, lines) = above.split_at(above.find('\n').unwrap_or(above.len()));
    let (lines, indent) = lines.split_at(lines.rfind('\n').map_or(0, |at| at + 1));
    let kept = format!("{first}{}", not_about(lines));
    let rest = &below[below.find('\n').unwrap_or(below.len())..];
    Some(match (kept.contains('#'), rest.is_empty()) {
        (false, true) => format!("\n{indent}"),
        (false, false) => rest.to_owned(),
        (true, true) => format!("{}\n{indent}", kept.trim_end()),
        (true, false) if kept == first => format!("{}{rest}", first.trim_end()),
        (true, false) => joined(&kept, rest),
    })
}

/// Keeps what stood above the removed table and is not about it: it now stands above what follows.
pub(super) fn keep_above(document: &mut DocumentMut, gone: &Table) {
    let above = prefix(gone.decor());
    let kept = not_about(&above);
    if !kept.is_empty() {
        put_above_next(document, gone.position(), kept);
    }
}

/// Puts text above the table that follows the place `position`, or at the end.
pub(super) fn put_above_next(document: &mut DocumentMut, position: Option<isize>, text: &str) {
    let mut next: Option<isize> = None;
    each(document.as_table_mut(), &mut |table| {
        let at = table.position().filter(|at| Some(*at) > position && !table.is_implicit());
        next = match (next, at) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    });
    let mut put = false;
    each(document.as_table_mut(), &mut |table| {
        if next.is_some() && table.position() == next && !put {
            let below = prefix(table.decor());
            table.decor_mut().set_prefix(joined(text, &below));
            put = true;
        }
    });
    if !put {
        let trailing = document.trailing().as_str().unwrap_or_default().to_owned();
        document.set_trailing(format!("\n{}", joined(text.trim_start_matches('\n'), &trailing)));
    }
}

/// Shows every table below `table` that has a heading of its own.
fn each(table: &mut Table, show: &mut dyn FnMut(&mut Table)) {
    for (_, item) in table.iter_mut() {
        match item {
            Item::Table(below) => {
                show(below);
                each(below, show);
            }
            Item::ArrayOfTables(array) => {
                for below in array.iter_mut() {
                    show(below);
                    each(below, show);
                }
            }
            _ => {}
        }
    }
}
