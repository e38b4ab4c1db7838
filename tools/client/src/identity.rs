//! Which disk it is, and which hosts have reserved it.

use std::fmt::Write;

/// What a disk is known by wherever it shows up, and who lays claim to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// World-wide names as Linux writes them, without those that are not unique: `naa.6...`, `eui.00...`, `uuid.1234...-...`.
    pub names: Vec<String>,
    /// Its reservations.
    pub claims: Claims,
}

/// The persistent reservations of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// The type of the reservation, in words, if there is one.
    pub kind: Option<&'static str>,
    /// Who is registered; holders are.
    pub registrants: Vec<Registrant>,
    /// Why the disk did not say, although it has reservations.
    pub unknown: Option<String>,
}

/// A host that is registered for reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// The initiator's name, or the host identifier as a UUID; `None` if the disk does not say.
    pub who: Option<String>,
    /// Its key.
    pub key: u64,
    /// It holds the reservation.
    pub holds: bool,
}

impl Claims {
    /// Those that could not be read.
    #[must_use]
    pub fn unknown(why: impl ToString) -> Self {
        Self { unknown: Some(why.to_string()), ..Self::default() }
    }
}

/// The lower-case digits of bytes.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A UUID with its hyphens (RFC 9562 section 4).
pub(crate) fn uuid(bytes: &[u8; 16]) -> String {
    let digits = hex(bytes);
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    parts.join("-")
}
