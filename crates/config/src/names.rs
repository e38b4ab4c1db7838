//! The form of iSCSI names (RFC 7143 4.2.7, RFC 3722) and of volume names.

/// The longest iSCSI name, in bytes (RFC 7143 4.2.7.1).
const MAX_ISCSI_NAME: usize = 223;

/// The longest volume name: it becomes part of a file name.
const MAX_VOLUME_NAME: usize = 64;

/// Checks the name of an iSCSI node: `iqn.`, `eui.` or `naa.` form.
///
/// Names are taken in the normal form of RFC 3722: lower case, and of the ASCII characters only
/// `a-z`, `0-9`, `-`, `.` and `:`. Characters beyond ASCII are refused, since comparing them
/// would need the whole of stringprep.
///
/// # Errors
/// A sentence that says what is wrong with the name.
pub fn check_iscsi_name(name: &str) -> Result<(), String> {
    if name.len() > MAX_ISCSI_NAME {
        return Err(format!("is {} bytes long; {MAX_ISCSI_NAME} are allowed", name.len()));
    }
    match name.split_once('.') {
        Some(("iqn", rest)) => check_iqn(name, rest),
        Some(("eui", rest)) => check_hex("eui", rest, &[16]),
        Some(("naa", rest)) => check_hex("naa", rest, &[16, 32]),
        _ if name.to_ascii_lowercase().starts_with("iqn.") => Err(lower_case(name)),
        _ => Err("must start with iqn., eui. or naa., as in \
                  \"iqn.2026-11.local.lunet:demo\""
            .to_owned()),
    }
}

fn check_iqn(name: &str, rest: &str) -> Result<(), String> {
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err(lower_case(name));
    }
    if let Some(bad) = name.chars().find(|c| !is_name_char(*c)) {
        return Err(format!("has {bad:?} in it; only a-z, 0-9, '-', '.' and ':' are allowed"));
    }
    let (authority, own) = match rest.split_once(':') {
        Some((authority, own)) => (authority, Some(own)),
        None => (rest, None),
    };
    let Some((date, domain)) = authority.split_once('.') else {
        return Err("must have a date and a domain behind iqn., as in \
                    \"iqn.2026-11.local.lunet:demo\""
            .to_owned());
    };
    if !is_year_and_month(date) {
        return Err(format!("\"{date}\" must be a year and a month, as in \"2026-11\""));
    }
    if domain.split('.').any(|label| !is_domain_label(label)) {
        return Err(format!("\"{domain}\" must be a domain name, its parts in reverse order"));
    }
    if own == Some("") {
        return Err("ends with ':'; a name of your own must follow".to_owned());
    }
    Ok(())
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.' | ':')
}

fn is_year_and_month(date: &str) -> bool {
    let digits = |s: &str, n: usize| s.len() == n && s.bytes().all(|b| b.is_ascii_digit());
    match date.split_once('-') {
        Some((year, month)) => {
            digits(year, 4) && digits(month, 2) && ("01"..="12").contains(&month)
        }
        None => false,
    }
}

fn is_domain_label(label: &str) -> bool {
    !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
}

fn check_hex(form: &str, digits: &str, lengths: &[usize]) -> Result<(), String> {
    let hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
    if hex && lengths.contains(&digits.len()) {
        return Ok(());
    }
    let wanted: Vec<String> = lengths.iter().map(usize::to_string).collect();
    Err(format!("must have {} hexadecimal digits behind {form}.", wanted.join(" or ")))
}

fn lower_case(name: &str) -> String {
    format!("must be lower case: \"{}\"", name.to_ascii_lowercase())
}

/// Checks the name of a volume: 1 to 64 letters, digits, `-`, `_` and `.`, the first one a letter
/// or a digit.
///
/// # Errors
/// A sentence that says what is wrong with the name.
pub fn check_volume_name(name: &str) -> Result<(), String> {
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if starts_well && name.chars().all(allowed) && name.len() <= MAX_VOLUME_NAME {
        return Ok(());
    }
    Err(format!(
        "the name of a volume has 1 to {MAX_VOLUME_NAME} letters, digits, '-', '_' and '.', \
         and starts with a letter or a digit"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_three_forms_pass() {
        for name in [
            "iqn.2026-11.local.lunet:demo",
            "iqn.2001-04.com.example",
            "iqn.2001-04.com.example:storage:diskarrays-sn-a8675309",
            "iqn.2001-04.com.example:storage.disk2.sys1.xyz",
            "eui.02004567A425678D",
            "naa.52004567ba64678d",
            "naa.62004567BA64678D0123456789ABCDEF",
        ] {
            assert_eq!(check_iscsi_name(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn other_names_are_refused_with_a_reason() {
        let long = format!("iqn.2026-11.local:{}", "x".repeat(223));
        for (name, reason) in [
            ("", "must start with"),
            ("demo", "must start with"),
            ("iqn", "must start with"),
            ("iqn.", "a date and a domain"),
            ("iqn.2026-11", "a date and a domain"),
            ("iqn.2026-11.", "domain name"),
            ("iqn.2026-13.local:x", "a year and a month"),
            ("iqn.2026-00.local:x", "a year and a month"),
            ("iqn.26-11.local:x", "a year and a month"),
            ("iqn.2026-11.local..lunet:x", "domain name"),
            ("iqn.2026-11.-local:x", "domain name"),
            ("iqn.2026-11.local:", "ends with ':'"),
            ("iqn.2026-11.local:Demo", "\"iqn.2026-11.local:demo\""),
            ("IQN.2026-11.local:demo", "\"iqn.2026-11.local:demo\""),
            ("iqn.2026-11.local:a_b", "'_'"),
            ("iqn.2026-11.local:a b", "' '"),
            ("iqn.2026-11.local:ä", "'ä'"),
            ("eui.02004567A425678", "16 hexadecimal digits"),
            ("naa.52004567BA64678DX", "16 or 32 hexadecimal digits"),
            (&long, "223 are allowed"),
        ] {
            let error = check_iscsi_name(name).expect_err(name);
            assert!(error.contains(reason), "{name}: {error}");
        }
    }

    #[test]
    fn a_volume_name_is_fit_for_a_file_name() {
        for name in ["demo", "vm-1", "db_2.old", "0"] {
            assert_eq!(check_volume_name(name), Ok(()), "{name}");
        }
        for name in ["", ".hidden", "-x", "a/b", "..", "a b", "ä", &"x".repeat(65)] {
            assert!(check_volume_name(name).is_err(), "{name}");
        }
    }
}
