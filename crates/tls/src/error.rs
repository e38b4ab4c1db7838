//! What may be wrong with a handshake, and the alert for it.

use core::fmt;
use thiserror::Error;

/// The description of an alert (RFC 8446 section 6).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Alert(pub u8);

impl Alert {
    /// The other end sends nothing more.
    pub const CLOSE_NOTIFY: Self = Self(0);
    /// A message that does not belong here.
    pub const UNEXPECTED_MESSAGE: Self = Self(10);
    /// A record that was not protected by the right key.
    pub const BAD_RECORD_MAC: Self = Self(20);
    /// A record that is too long.
    pub const RECORD_OVERFLOW: Self = Self(22);
    /// Nothing that both ends know.
    pub const HANDSHAKE_FAILURE: Self = Self(40);
    /// A value that is not permitted.
    pub const ILLEGAL_PARAMETER: Self = Self(47);
    /// A message that cannot be read.
    pub const DECODE_ERROR: Self = Self(50);
    /// A proof that is wrong.
    pub const DECRYPT_ERROR: Self = Self(51);
    /// Not TLS 1.3.
    pub const PROTOCOL_VERSION: Self = Self(70);
    /// Something that has nothing to do with the other end.
    pub const INTERNAL_ERROR: Self = Self(80);
    /// An extension is not there that has to be.
    pub const MISSING_EXTENSION: Self = Self(109);
    /// An extension that was not asked for.
    pub const UNSUPPORTED_EXTENSION: Self = Self(110);
    /// No key is known by this identity.
    pub const UNKNOWN_PSK_IDENTITY: Self = Self(115);

    /// Its name in RFC 8446; `None` for one that a handshake with pre-shared keys has no use for.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::CLOSE_NOTIFY => "close_notify",
            Self::UNEXPECTED_MESSAGE => "unexpected_message",
            Self::BAD_RECORD_MAC => "bad_record_mac",
            Self::RECORD_OVERFLOW => "record_overflow",
            Self::HANDSHAKE_FAILURE => "handshake_failure",
            Self::ILLEGAL_PARAMETER => "illegal_parameter",
            Self::DECODE_ERROR => "decode_error",
            Self::DECRYPT_ERROR => "decrypt_error",
            Self::PROTOCOL_VERSION => "protocol_version",
            Self::INTERNAL_ERROR => "internal_error",
            Self::MISSING_EXTENSION => "missing_extension",
            Self::UNSUPPORTED_EXTENSION => "unsupported_extension",
            Self::UNKNOWN_PSK_IDENTITY => "unknown_psk_identity",
            _ => return None,
        })
    }
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "alert {}", self.0),
        }
    }
}

impl fmt::Debug for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a handshake has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// Bytes that are not what they should be.
    #[error("the {0} cannot be read")]
    Malformed(&'static str),
    /// A value that RFC 8446 does not permit.
    #[error("the {0} has a value that is not permitted")]
    Illegal(&'static str),
    /// Another message was expected, or another kind of record.
    #[error("a message came that does not belong there")]
    Unexpected,
    /// A record or a message is longer than it may be.
    #[error("a record or a message is longer than it may be")]
    TooLong,
    /// A record was not protected by the right key.
    #[error("a record was changed on its way, or protected by another key")]
    BadRecord,
    /// An extension is not there.
    #[error("the extension {0} is not there")]
    Missing(&'static str),
    /// An extension that was not asked for.
    #[error("the {0} has an extension that was not asked for")]
    Unasked(&'static str),
    /// The other end does not offer TLS 1.3.
    #[error("TLS 1.3 is not offered")]
    Version,
    /// No pre-shared key is offered.
    #[error("no pre-shared key is offered")]
    NoPsk,
    /// The pre-shared key would be used without Diffie-Hellman.
    #[error("pre-shared keys are offered without Diffie-Hellman (psk_dhe_ke)")]
    NoExchange,
    /// The cipher suite for the key is not offered.
    #[error("the cipher suite for the key's hash is not offered")]
    Suite,
    /// Neither X25519 nor secp256r1 is offered.
    #[error("neither X25519 nor secp256r1 is offered")]
    Group,
    /// There is no key for the identity.
    #[error("there is no key for the identity")]
    Unknown,
    /// The other end has not proved that it has the key.
    #[error("the key of the other end is another one")]
    Proof,
    /// The binder was made by another hash than the key is for.
    #[error(
        "the binder is made by another hash than the key is for: with GnuTLS, which tlshd uses, it may be SHA-256 always, so give \
         the host a key for SHA-256"
    )]
    BinderHash,
    /// There are no random numbers.
    #[error("there are no random numbers")]
    Random,
    /// The other end has ended the handshake by this alert.
    #[error("the other end has refused: {0}")]
    Refused(Alert),
}

impl Error {
    /// The alert that tells the other end; `None` if it has told us.
    #[must_use]
    pub const fn alert(self) -> Option<Alert> {
        Some(match self {
            Self::Malformed(_) => Alert::DECODE_ERROR,
            Self::Illegal(_) => Alert::ILLEGAL_PARAMETER,
            Self::Unexpected => Alert::UNEXPECTED_MESSAGE,
            Self::TooLong => Alert::RECORD_OVERFLOW,
            Self::BadRecord => Alert::BAD_RECORD_MAC,
            Self::Missing(_) => Alert::MISSING_EXTENSION,
            Self::Unasked(_) => Alert::UNSUPPORTED_EXTENSION,
            Self::Version => Alert::PROTOCOL_VERSION,
            Self::NoPsk | Self::NoExchange | Self::Suite | Self::Group => Alert::HANDSHAKE_FAILURE,
            Self::Unknown => Alert::UNKNOWN_PSK_IDENTITY,
            Self::Proof | Self::BinderHash => Alert::DECRYPT_ERROR,
            Self::Random => Alert::INTERNAL_ERROR,
            Self::Refused(_) => return None,
        })
    }
}
