//! NVMe Qualified Names (NVMe base specification, section 4.7).

use thiserror::Error;

/// Most bytes of a name, without the NUL behind it.
pub const NQN_MAX: usize = 223;

/// Length of a field with a name, in bytes.
pub const NQN_FIELD: usize = 256;

/// The name of every discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// What names that consist of a UUID start with.
const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// What is wrong with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NqnError {
    /// Nothing before the NUL.
    #[error("the NQN is empty")]
    Empty,
    /// More than [`NQN_MAX`] bytes.
    #[error("the NQN is longer than 223 bytes")]
    TooLong,
    /// Not UTF-8, or with control characters.
    #[error("the NQN is not printable UTF-8")]
    Text,
    /// White space, which programs that read lists of names do not take.
    #[error("the NQN has a space in it")]
    Space,
    /// Not `nqn.` and a date `yyyy-mm`.
    #[error("the NQN does not start with 'nqn.', a year and a month, such as nqn.2026-11.")]
    Date,
    /// No domain name behind the date.
    #[error("the NQN has no reverse domain name behind its date")]
    Domain,
    /// No colon and name behind the domain.
    #[error("the NQN has no ':' and name behind its domain")]
    Name,
    /// A name of the form `...:uuid:` without a UUID.
    #[error("the NQN does not end with a UUID")]
    Uuid,
}

/// The name in a field of a command or a log page. Any printable text will do, as other hosts and
/// controllers take it: what a name must look like is [`check_nqn`]'s.
///
/// # Errors
/// [`NqnError::Empty`], [`NqnError::TooLong`], [`NqnError::Text`].
pub fn nqn_of_field(field: &[u8; NQN_FIELD]) -> Result<&str, NqnError> {
    let len = field.iter().position(|byte| *byte == 0).ok_or(NqnError::TooLong)?;
    check_text(core::str::from_utf8(&field[..len]).map_err(|_| NqnError::Text)?)
}

/// The field with a name of at most [`NQN_MAX`] bytes; what is longer is cut off.
#[must_use]
pub fn field_of_nqn(nqn: &str) -> [u8; NQN_FIELD] {
    let mut field = [0; NQN_FIELD];
    let len = nqn.len().min(NQN_MAX);
    field[..len].copy_from_slice(&nqn.as_bytes()[..len]);
    field
}

fn check_text(nqn: &str) -> Result<&str, NqnError> {
    match nqn.len() {
        0 => Err(NqnError::Empty),
        len if len > NQN_MAX => Err(NqnError::TooLong),
        _ if nqn.chars().any(char::is_control) => Err(NqnError::Text),
        _ => Ok(nqn),
    }
}

/// Checks a name that somebody else has given, in whatever form: other products take more than the
/// specification says.
///
/// # Errors
/// [`NqnError::Empty`], [`NqnError::TooLong`], [`NqnError::Text`], [`NqnError::Space`].
pub fn check_any_nqn(nqn: &str) -> Result<(), NqnError> {
    match check_text(nqn)?.contains(char::is_whitespace) {
        true => Err(NqnError::Space),
        false => Ok(()),
    }
}

/// Checks a name as the specification has it: `nqn.yyyy-mm.reverse.domain:name`, or
/// `nqn.2014-08.org.nvmexpress:uuid:` and a UUID. That of discovery subsystems has no colon.
///
/// # Errors
/// What is wrong with it; [`NqnError::Name`] only if nothing else is.
pub fn check_nqn(nqn: &str) -> Result<(), NqnError> {
    check_any_nqn(nqn)?;
    if let Some(uuid) = nqn.strip_prefix(UUID_PREFIX) {
        return if is_uuid(uuid) { Ok(()) } else { Err(NqnError::Uuid) };
    }
    let rest = nqn.strip_prefix("nqn.").ok_or(NqnError::Date)?;
    let (date, name) = rest.split_once('.').ok_or(NqnError::Date)?;
    if !is_date(date) {
        return Err(NqnError::Date);
    }
    let (domain, name) = name.split_once(':').unwrap_or((name, ""));
    match domain.split('.').all(is_label) {
        false => Err(NqnError::Domain),
        true if name.is_empty() && nqn != DISCOVERY_NQN => Err(NqnError::Name),
        true => Ok(()),
    }
}

fn is_date(date: &str) -> bool {
    let Some((year, month)) = date.split_once('-') else { return false };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let month_is_one = month.parse().is_ok_and(|month: u8| (1..=12).contains(&month));
    year.len() == 4 && month.len() == 2 && digits(year) && digits(month) && month_is_one
}

fn is_label(label: &str) -> bool {
    let inner = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    !label.is_empty() && inner && !label.starts_with('-') && !label.ends_with('-')
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_the_specification_are_good() {
        for good in [
            "nqn.2014-08.com.example:nvme.host.sys.xyz",
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
            DISCOVERY_NQN,
        ] {
            assert_eq!(check_nqn(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn bad_names_are_told_why() {
        for (bad, why) in [
            ("", NqnError::Empty),
            ("iqn.2014-08.com.example:x", NqnError::Date),
            ("nqn.2014-13.com.example:x", NqnError::Date),
            ("nqn.214-08.com.example:x", NqnError::Date),
            ("nqn.+014-08.com.example:x", NqnError::Date),
            ("nqn.2014-08", NqnError::Date),
            ("nqn.2014-08.:x", NqnError::Domain),
            ("nqn.2014-08.com..example", NqnError::Domain),
            ("nqn.2014-08.-com", NqnError::Domain),
            ("nqn.2014-08.com.example", NqnError::Name),
            ("nqn.2014-08.com.example:", NqnError::Name),
            ("nqn.2014-08.com.example:a b", NqnError::Space),
            ("nqn.2014-08.com.example:a\u{a0}", NqnError::Space),
            ("nqn.2014-08.com.example:a\n", NqnError::Text),
            ("nqn.2014-08.org.nvmexpress:uuid:f81d4fae", NqnError::Uuid),
        ] {
            assert_eq!(check_nqn(bad), Err(why), "{bad}");
        }
        assert_eq!(check_nqn(&"n".repeat(224)), Err(NqnError::TooLong));
        // What hosts of other products are called.
        for odd in ["hostnqn", "nqn.2014-08.com.lab_net:a", "nqn.2014-08.org.nvmexpress:uuid:a"] {
            assert!(check_nqn(odd).is_err() && check_any_nqn(odd).is_ok(), "{odd}");
        }
        assert_eq!(check_any_nqn(" a"), Err(NqnError::Space));
    }

    #[test]
    fn fields_end_with_a_nul() {
        assert_eq!(nqn_of_field(&[b'n'; NQN_FIELD]), Err(NqnError::TooLong));
        let mut field = [0; NQN_FIELD];
        assert_eq!(nqn_of_field(&field), Err(NqnError::Empty));
        field[..224].fill(b'n');
        assert_eq!(nqn_of_field(&field), Err(NqnError::TooLong));
        field[223] = 0;
        assert_eq!(nqn_of_field(&field).map(str::len), Ok(223));
        field[0] = 0xff;
        assert_eq!(nqn_of_field(&field), Err(NqnError::Text));
    }

    proptest! {
        #[test]
        fn a_name_survives_its_field(nqn in "[ -~]{1,223}") {
            let field = field_of_nqn(&nqn);
            prop_assert_eq!(nqn_of_field(&field), Ok(nqn.as_str()));
        }

        #[test]
        fn any_text_is_judged(text in ".{0,300}") {
            let _ = check_nqn(&text);
        }
    }
}
