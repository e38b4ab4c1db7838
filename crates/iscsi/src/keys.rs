//! The text keys of RFC 7143 section 13 and RFC 7145 section 6: names, value types, result functions, where they may be
//! negotiated.

use core::fmt;

use crate::printable::is_printable;

/// Where a key may appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Only in the first Login Request (or the first login stage) of a connection.
    Initialize,
    /// Only in a login phase, and only on the leading connection of a session.
    LeadingOnly,
    /// In any login phase and in the full feature phase.
    All,
    /// Only in the full feature phase.
    FullFeature,
}

/// How the result of a negotiation follows from the two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The first value of the offered list that the responder takes.
    List(&'static [&'static str]),
    /// Yes when either side says Yes.
    Or,
    /// Yes when both sides say Yes.
    And,
    /// The smaller number, within a range.
    Minimum(u32, u32),
    /// The larger number, within a range.
    Maximum(u32, u32),
    /// Each side declares its own number, within a range; there is no answer.
    DeclareNumber(u32, u32),
    /// Each side declares its own text; there is no answer.
    DeclareText,
    /// One side declares a boolean; there is no answer.
    DeclareBoolean,
    /// A request that is answered with other keys.
    Query,
    /// A step of an authentication (RFC 7143 section 12).
    Authentication,
    /// Withdrawn by RFC 7143 section 13.25; the answer is fixed.
    Obsolete(&'static str),
}

/// Declares the keys: variant, name, use, rule, and whether a discovery session ignores it.
macro_rules! keys {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $use:ident, $rule:expr, $relevance:ident;)*) => {
        /// A key that RFC 7143 or RFC 7145 defines.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Key {
            $($(#[$doc])* $variant,)*
        }

        impl Key {
            /// All keys.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name on the wire. Case counts.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The key with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }

            /// Where the key may appear.
            #[must_use]
            pub const fn usage(self) -> Use {
                match self { $(Self::$variant => Use::$use,)* }
            }

            /// The key's result function and value range.
            #[must_use]
            pub const fn rule(self) -> Rule {
                match self { $(Self::$variant => $rule,)* }
            }

            /// True when the key means nothing in a discovery session.
            #[must_use]
            pub const fn normal_sessions_only(self) -> bool {
                match self { $(Self::$variant => matches!(Relevance::$relevance, Relevance::Normal),)* }
            }
        }
    };
}

/// Which sessions a key belongs to.
enum Relevance {
    /// Every session.
    Any,
    /// Normal sessions only.
    Normal,
}

/// Values of HeaderDigest and DataDigest.
pub const DIGESTS: &[&str] = &["None", "CRC32C"];
/// Values of TaskReporting that lunet knows.
pub const TASK_REPORTING: &[&str] = &["RFC3720", "ResponseFence", "FastAbort"];
/// Smallest value of the length keys, in bytes.
pub const MIN_LENGTH: u32 = 512;
/// Largest value of the length keys, in bytes.
pub const MAX_LENGTH: u32 = (1 << 24) - 1;

keys! {
    /// Authentication methods (section 13, RFC 7143 section 12.1).
    AuthMethod = "AuthMethod", Initialize, Rule::List(&["None", "CHAP"]), Any;
    /// Algorithms offered, or the one chosen (12.1.3).
    ChapAlgorithm = "CHAP_A", Initialize, Rule::Authentication, Any;
    /// Identifier of a challenge (12.1.3).
    ChapIdentifier = "CHAP_I", Initialize, Rule::Authentication, Any;
    /// Challenge (12.1.3).
    ChapChallenge = "CHAP_C", Initialize, Rule::Authentication, Any;
    /// Name of the side that responds (12.1.3).
    ChapName = "CHAP_N", Initialize, Rule::Authentication, Any;
    /// Response to a challenge (12.1.3).
    ChapResponse = "CHAP_R", Initialize, Rule::Authentication, Any;
    /// Header digest (13.1).
    HeaderDigest = "HeaderDigest", Initialize, Rule::List(DIGESTS), Any;
    /// Data digest (13.1).
    DataDigest = "DataDigest", Initialize, Rule::List(DIGESTS), Any;
    /// Connections per session (13.2).
    MaxConnections = "MaxConnections", LeadingOnly, Rule::Minimum(1, 65535), Normal;
    /// Asks for targets and their addresses (13.3).
    SendTargets = "SendTargets", FullFeature, Rule::Query, Any;
    /// Name of the target (13.4).
    TargetName = "TargetName", Initialize, Rule::DeclareText, Any;
    /// Name of the initiator (13.5).
    InitiatorName = "InitiatorName", Initialize, Rule::DeclareText, Any;
    /// Name for people (13.6).
    TargetAlias = "TargetAlias", All, Rule::DeclareText, Any;
    /// Name for people (13.7).
    InitiatorAlias = "InitiatorAlias", All, Rule::DeclareText, Any;
    /// Address of a target portal (13.8).
    TargetAddress = "TargetAddress", All, Rule::DeclareText, Any;
    /// Portal group of the connection (13.9).
    TargetPortalGroupTag = "TargetPortalGroupTag", Initialize, Rule::DeclareNumber(0, 65535), Any;
    /// Whether unsolicited data must wait for an R2T (13.10).
    InitialR2T = "InitialR2T", LeadingOnly, Rule::Or, Normal;
    /// Whether a command may carry data (13.11).
    ImmediateData = "ImmediateData", LeadingOnly, Rule::And, Normal;
    /// Longest data segment that the declaring side takes (13.12).
    MaxRecvDataSegmentLength = "MaxRecvDataSegmentLength", All,
        Rule::DeclareNumber(MIN_LENGTH, MAX_LENGTH), Any;
    /// Longest data sequence (13.13).
    MaxBurstLength = "MaxBurstLength", LeadingOnly, Rule::Minimum(MIN_LENGTH, MAX_LENGTH), Normal;
    /// Most unsolicited data of a command (13.14).
    FirstBurstLength = "FirstBurstLength", LeadingOnly, Rule::Minimum(MIN_LENGTH, MAX_LENGTH), Normal;
    /// Seconds before a reconnect (13.15).
    DefaultTime2Wait = "DefaultTime2Wait", LeadingOnly, Rule::Maximum(0, 3600), Any;
    /// Seconds that tasks are kept after a lost connection (13.16).
    DefaultTime2Retain = "DefaultTime2Retain", LeadingOnly, Rule::Minimum(0, 3600), Any;
    /// R2Ts of a command that may be outstanding (13.17).
    MaxOutstandingR2T = "MaxOutstandingR2T", LeadingOnly, Rule::Minimum(1, 65535), Normal;
    /// Whether the PDUs of a sequence come in order (13.18).
    DataPDUInOrder = "DataPDUInOrder", LeadingOnly, Rule::Or, Normal;
    /// Whether the sequences of a command come in order (13.19).
    DataSequenceInOrder = "DataSequenceInOrder", LeadingOnly, Rule::Or, Normal;
    /// Error recovery level (13.20).
    ErrorRecoveryLevel = "ErrorRecoveryLevel", LeadingOnly, Rule::Minimum(0, 2), Any;
    /// Discovery or Normal (13.21).
    SessionType = "SessionType", LeadingOnly, Rule::DeclareText, Any;
    /// How aborted tasks are reported (13.23).
    TaskReporting = "TaskReporting", LeadingOnly, Rule::List(TASK_REPORTING), Normal;
    /// Protocol level (13.24); this crate speaks 1.
    ISCSIProtocolLevel = "iSCSIProtocolLevel", LeadingOnly, Rule::Minimum(0, 31), Normal;
    /// Withdrawn.
    IFMarker = "IFMarker", LeadingOnly, Rule::Obsolete("No"), Any;
    /// Withdrawn.
    OFMarker = "OFMarker", LeadingOnly, Rule::Obsolete("No"), Any;
    /// Withdrawn.
    IFMarkInt = "IFMarkInt", LeadingOnly, Rule::Obsolete(crate::text::REJECT), Any;
    /// Withdrawn.
    OFMarkInt = "OFMarkInt", LeadingOnly, Rule::Obsolete(crate::text::REJECT), Any;
    /// Whether the connection moves data by RDMA (RFC 7145 section 6.3).
    RDMAExtensions = "RDMAExtensions", LeadingOnly, Rule::And, Any;
    /// Longest data segment of a Send to the target (RFC 7145 section 6.4).
    TargetRecvDataSegmentLength = "TargetRecvDataSegmentLength", Initialize,
        Rule::Minimum(MIN_LENGTH, MAX_LENGTH), Any;
    /// Longest data segment of a Send to the initiator (RFC 7145 section 6.5).
    InitiatorRecvDataSegmentLength = "InitiatorRecvDataSegmentLength", Initialize,
        Rule::Minimum(MIN_LENGTH, MAX_LENGTH), Any;
    /// How many PDUs that nothing announces the declaring side can take at a time; 0: any number
    /// (RFC 7145 section 6.7).
    MaxOutstandingUnexpectedPDUs = "MaxOutstandingUnexpectedPDUs", LeadingOnly,
        Rule::DeclareNumber(0, u32::MAX), Any;
    /// Most bytes of additional header segments that the declaring side takes; 0: any number (RFC
    /// 7145 section 6.8).
    MaxAHSLength = "MaxAHSLength", LeadingOnly, Rule::DeclareNumber(0, u32::MAX), Any;
    /// Whether the memory that a write opens begins behind the unsolicited data (RFC 7145 section
    /// 6.9).
    TaggedBufferForSolicitedDataOnly = "TaggedBufferForSolicitedDataOnly", LeadingOnly,
        Rule::DeclareBoolean, Any;
    /// Whether the initiator begins with an iSER Hello (RFC 7145 section 6.10).
    ISERHelloRequired = "iSERHelloRequired", LeadingOnly, Rule::DeclareBoolean, Any;
}

impl Key {
    /// The key with this name on a connection of this kind: on a stream the keys of RFC 7145 are
    /// not understood.
    #[must_use]
    pub fn on(name: &str, rdma: bool) -> Option<Self> {
        Self::from_name(name).filter(|key| rdma || !key.is_rdma())
    }

    /// True for the keys of RFC 7145.
    #[must_use]
    pub const fn is_rdma(self) -> bool {
        matches!(
            self,
            Self::RDMAExtensions
                | Self::TargetRecvDataSegmentLength
                | Self::InitiatorRecvDataSegmentLength
                | Self::MaxOutstandingUnexpectedPDUs
                | Self::MaxAHSLength
                | Self::TaggedBufferForSolicitedDataOnly
                | Self::ISERHelloRequired
        )
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads a boolean value: `Yes` or `No`, case counts.
#[must_use]
pub fn parse_bool(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// A boolean as a value.
#[must_use]
pub const fn yes_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// Reads a number: decimal, or hexadecimal behind `0x` or `0X`.
#[must_use]
pub fn parse_number(value: &str) -> Option<u32> {
    let (digits, radix) = match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (value, 10),
    };
    // from_str_radix would take a sign.
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

/// Reads a number that must lie in `low..=high`.
#[must_use]
pub fn parse_number_in(value: &str, low: u32, high: u32) -> Option<u32> {
    parse_number(value).filter(|number| (low..=high).contains(number))
}

/// The first value of the offered comma-separated `list` for which `takes` says yes.
pub fn choose(list: &str, mut takes: impl FnMut(&str) -> bool) -> Option<&str> {
    list.split(',').find(|value| takes(value))
}

/// True when `name` has the form of an iSCSI name: `iqn.`, `eui.` or `naa.`, at most 223 bytes,
/// none of the ASCII characters that RFC 3722 forbids (the underscore is let through: it is common), and
/// none that is invisible or not printable.
#[must_use]
pub fn valid_name(name: &str) -> bool {
    let form = name.get(..4).is_some_and(|prefix| {
        ["iqn.", "eui.", "naa."].iter().any(|known| prefix.eq_ignore_ascii_case(known))
    });
    // Nothing that is invisible or changes the order of what is shown (RFC 3722 section 5).
    let forbidden = |c: char| match c.is_ascii() {
        true => !c.is_ascii_alphanumeric() && !"-.:_".contains(c),
        false => !is_printable(c),
    };
    form && name.len() > 4 && name.len() <= 223 && !name.contains(forbidden)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_lead_back_to_their_key() {
        for key in Key::ALL {
            assert_eq!(Key::from_name(key.name()), Some(*key));
        }
        assert_eq!(Key::from_name("headerdigest"), None);
        // The target keeps a bit for each.
        assert!(Key::ALL.len() <= 64);
    }

    #[test]
    fn keys_of_rdma_are_unknown_on_a_stream() {
        for key in Key::ALL {
            assert_eq!(Key::on(key.name(), true), Some(*key));
            assert_eq!(Key::on(key.name(), false).is_none(), key.is_rdma(), "{key}");
        }
        assert!(Key::RDMAExtensions.is_rdma() && !Key::MaxBurstLength.is_rdma());
    }

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(parse_number("262144"), Some(262_144));
        assert_eq!(parse_number("0x40000"), Some(262_144));
        assert_eq!(parse_number("0X1f"), Some(31));
        for wrong in ["", "0x", "+1", "-1", "1f", "4294967296", "1 ", "Yes"] {
            assert_eq!(parse_number(wrong), None, "{wrong}");
        }
        assert_eq!(parse_number_in("511", MIN_LENGTH, MAX_LENGTH), None);
        assert_eq!(parse_number_in("16777215", MIN_LENGTH, MAX_LENGTH), Some(MAX_LENGTH));
    }

    #[test]
    fn booleans_are_exact() {
        assert_eq!(parse_bool("Yes"), Some(true));
        assert_eq!(parse_bool("No"), Some(false));
        assert_eq!(parse_bool("yes"), None);
    }

    #[test]
    fn the_offering_side_sets_the_order_of_a_list() {
        assert_eq!(choose("CRC32C,None", |v| DIGESTS.contains(&v)), Some("CRC32C"));
        assert_eq!(choose("X-new,None", |v| DIGESTS.contains(&v)), Some("None"));
        assert_eq!(choose("X-new", |v| DIGESTS.contains(&v)), None);
    }

    #[test]
    fn iscsi_names_have_a_form() {
        assert!(valid_name("iqn.2026-11.local.lunet:demo"));
        assert!(valid_name("eui.02004567A425678D"));
        assert!(!valid_name("iqn."));
        assert!(!valid_name("demo"));
        assert!(!valid_name("iqn.2026-11.local.lunet:de mo"));
        assert!(valid_name("iqn.2026-11.local.lunet:büro"));
        assert!(!valid_name("iqn.2026-11.local.lunet:a\u{202e}b"));
        assert!(!valid_name("iqn.2026-11.local.lunet:a\u{200b}b"));
        assert!(!valid_name(&alloc::format!("iqn.{}", "x".repeat(220))));
    }

    proptest! {
        #[test]
        fn numbers_round_trip(number in any::<u32>()) {
            prop_assert_eq!(parse_number(&alloc::format!("{number}")), Some(number));
            prop_assert_eq!(parse_number(&alloc::format!("{number:#x}")), Some(number));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in ".{0,40}") {
            let _ = (parse_number(&text), parse_bool(&text), valid_name(&text));
        }
    }
}
