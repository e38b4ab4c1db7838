//! Brings the text of a configuration of an earlier version to the present one.

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use zeroize::Zeroizing;

use super::edit::EditError;
use super::schema;

/// A text of the present version, and what is different in it.
#[derive(Debug)]
pub struct Migrated {
    /// There may be secrets in it.
    pub text: Zeroizing<String>,
    /// Each change in a few words.
    pub changes: Vec<String>,
}

/// Takes out keys that are gone, and raises `version` where it is written. All else stays as it was written. `None`: the
/// text is of the present version.
///
/// # Errors
/// The text is no TOML, is of a version that is not known, or writes a key in a way that cannot be edited.
pub fn migrate(text: &str) -> Result<Option<Migrated>, EditError> {
    let root = DeTable::parse(text).map_err(|_| EditError::NotToml)?;
    let root = root.get_ref();
    // From the end, so that what is found earlier stays where it was.
    let mut cuts = Vec::new();
    let mut changes = Vec::new();
    if let Some(version) = root.get("version") {
        let found = version.get_ref().as_integer();
        let found = found.and_then(|n| u32::from_str_radix(n.as_str(), n.radix()).ok());
        match found {
            Some(found) if found < schema::VERSION => {
                cuts.push((version.span(), schema::VERSION.to_string()));
                changes.push(format!("version: {}", schema::VERSION));
            }
            Some(schema::VERSION) => {}
            _ => return Err(EditError::Form("version")),
        }
    }
    for gone in schema::RETIRED {
        let table = root.get(gone.heading.trim_matches(['[', ']']));
        let Some(table) = table.and_then(|table| table.get_ref().as_table()) else { continue };
        if let Some((key, value)) = table.get_key_value(gone.name) {
            cuts.push((line(text, key, value).ok_or(EditError::Form(gone.name))?, String::new()));
            changes.push(format!("{} {}: taken out", gone.heading, gone.name));
        }
    }
    if changes.is_empty() {
        return Ok(None);
    }
    cuts.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
    let mut out = Zeroizing::new(text.to_owned());
    for (span, replacement) in cuts {
        out.replace_range(span, &replacement);
    }
    Ok(Some(Migrated { text: out, changes }))
}

/// The lines that a key and its value have for themselves, but for a comment behind them.
fn line(
    text: &str,
    key: &Spanned<std::borrow::Cow<'_, str>>,
    value: &Spanned<DeValue<'_>>,
) -> Option<std::ops::Range<usize>> {
    let start = text[..key.span().start].rfind('\n').map_or(0, |at| at + 1);
    let end = value.span().end;
    let end = text[end..].find('\n').map_or(text.len(), |at| end + at + 1);
    let before = text[start..key.span().start].trim();
    let after = text[value.span().end..end].trim();
    (before.is_empty() && (after.is_empty() || after.starts_with('#'))).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_taken_out_and_the_rest_stays_as_it_was() {
        let before = "version = 1 # first\n# mine\n[server]\nshards = 2\n  coalesce = \"20us\" # old\n\n[iscsi]\n";
        let migrated = migrate(before).unwrap().expect("it is of version 1");
        let after = "version = 2 # first\n# mine\n[server]\nshards = 2\n\n[iscsi]\n";
        assert_eq!(migrated.text.as_str(), after);
        assert_eq!(migrated.changes, ["version: 2", "[server] coalesce: taken out"]);
        assert!(migrate(after).unwrap().is_none(), "there is nothing left to do");
        // Without a version it is of the present one, and a key that is gone does not belong there either.
        let migrated = migrate("[server]\ncoalesce = \"1us\"").unwrap().expect("a key is gone");
        assert_eq!(migrated.text.as_str(), "[server]\n");
    }

    #[test]
    fn what_cannot_be_edited_is_refused() {
        for (text, error) in [
            ("server = { coalesce = \"1us\" }", EditError::Form("coalesce")),
            ("version = 3", EditError::Form("version")),
            ("version = \"1\"", EditError::Form("version")),
            ("[server", EditError::NotToml),
        ] {
            assert_eq!(migrate(text).unwrap_err(), error, "{text}");
        }
    }

    /// The text of each migration is read without a note about what it was to take out.
    #[test]
    fn every_key_that_is_gone_can_be_taken_out() {
        for gone in schema::RETIRED {
            let text = format!("{}\n{} = 1\n", gone.heading, gone.name);
            let migrated = migrate(&text).unwrap().expect("a key is gone");
            assert_eq!(migrated.text.as_str(), format!("{}\n", gone.heading));
        }
    }
}
