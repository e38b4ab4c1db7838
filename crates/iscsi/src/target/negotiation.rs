//! Negotiation of operational parameters (RFC 7143 sections 6.2 and 13).

use crate::keys::{self, Key, Rule, choose, parse_bool, parse_number_in, yes_no};
use crate::target::options::MAX_IMMEDIATE;
use crate::target::{DigestPolicy, Options};
use crate::text::{IRRELEVANT, REJECT};
use alloc::borrow::Cow;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// Seconds that this target keeps the tasks of a lost connection: recovery of connections needs
/// error recovery level 2.
const TIME2RETAIN: u32 = 0;
/// iSCSIProtocolLevel of RFC 7143.
const PROTOCOL_LEVEL: u32 = 1;

/// What both ends agreed on; begins with the defaults of RFC 7143.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// CRC32C over headers.
    pub header_digest: bool,
    /// CRC32C over data.
    pub data_digest: bool,
    /// Whether unsolicited Data-Out must wait for an R2T.
    pub initial_r2t: bool,
    /// Whether commands may carry data.
    pub immediate_data: bool,
    /// Longest data segment that the initiator takes, in bytes.
    pub initiator_max_recv: u32,
    /// Longest data segment that the target takes, in bytes.
    pub target_max_recv: u32,
    /// Longest data sequence, in bytes.
    pub max_burst_length: u32,
    /// Most unsolicited data of a command, in bytes.
    pub first_burst_length: u32,
    /// R2Ts of a command that may be outstanding.
    pub max_outstanding_r2t: u16,
    /// Seconds before a reconnect.
    pub time2wait: u16,
    /// Seconds that tasks are kept after a lost connection.
    pub time2retain: u16,
    /// iSCSIProtocolLevel.
    pub protocol_level: u8,
    /// What RFC 7145 adds; `None` on a stream.
    pub rdma: Option<RdmaTerms>,
}

/// What was said about RDMA (RFC 7145 section 6). The lengths of data segments are those of the
/// Sends then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaTerms {
    /// RDMAExtensions; `None` as long as nothing was said.
    pub extensions: Option<bool>,
    /// MaxOutstandingUnexpectedPDUs of the initiator; 0: any number.
    pub max_unexpected: u32,
    /// Whether the memory that a write opens begins behind the unsolicited data. The default of RFC 7145
    /// is No, but Linux and libiscsi, who declare nothing, mean Yes.
    pub solicited_only: bool,
}

impl Default for RdmaTerms {
    fn default() -> Self {
        Self { extensions: None, max_unexpected: 0, solicited_only: true }
    }
}

impl Default for Negotiated {
    fn default() -> Self {
        Self {
            header_digest: false,
            data_digest: false,
            initial_r2t: true,
            immediate_data: true,
            initiator_max_recv: 8192,
            target_max_recv: 8192,
            max_burst_length: 262_144,
            first_burst_length: 65_536,
            max_outstanding_r2t: 1,
            time2wait: 2,
            time2retain: 20,
            protocol_level: 1,
            rdma: None,
        }
    }
}

impl Negotiated {
    /// Keys and values for people, in a fixed order.
    #[must_use]
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let digest = |on: bool| if on { "CRC32C" } else { "None" }.to_string();
        let mut pairs = alloc::vec![
            ("HeaderDigest", digest(self.header_digest)),
            ("DataDigest", digest(self.data_digest)),
            ("InitialR2T", yes_no(self.initial_r2t).to_string()),
            ("ImmediateData", yes_no(self.immediate_data).to_string()),
            ("MaxRecvDataSegmentLength (initiator)", self.initiator_max_recv.to_string()),
            ("MaxRecvDataSegmentLength (target)", self.target_max_recv.to_string()),
            ("MaxBurstLength", self.max_burst_length.to_string()),
            ("FirstBurstLength", self.first_burst_length.to_string()),
            ("MaxOutstandingR2T", self.max_outstanding_r2t.to_string()),
            ("MaxConnections", 1.to_string()),
            ("ErrorRecoveryLevel", 0.to_string()),
            ("DefaultTime2Wait", self.time2wait.to_string()),
            ("DefaultTime2Retain", self.time2retain.to_string()),
            ("iSCSIProtocolLevel", self.protocol_level.to_string()),
        ];
        if let Some(terms) = &self.rdma {
            pairs.push(("RDMAExtensions", yes_no(terms.extensions != Some(false)).to_string()));
            let unexpected = terms.max_unexpected.to_string();
            pairs.push(("MaxOutstandingUnexpectedPDUs (initiator)", unexpected));
        }
        pairs
    }
}

/// Answers an operational key that the initiator offers, and remembers the result. None: the key
/// needs no answer. Keys that are not operational parameters are answered with Reject.
pub fn answer(
    negotiated: &mut Negotiated,
    options: &Options,
    discovery: bool,
    key: Key,
    value: &str,
) -> Option<Cow<'static, str>> {
    if discovery && key.normal_sessions_only() {
        return Some(IRRELEVANT.into());
    }
    match key.rule() {
        Rule::List(_) => Some(list(negotiated, options, key, value).into()),
        Rule::Or | Rule::And => Some(boolean(negotiated, options, key, value).into()),
        Rule::Minimum(low, high) | Rule::Maximum(low, high) => {
            let Some(offered) = parse_number_in(value, low, high) else {
                return Some(REJECT.into());
            };
            Some(number(negotiated, options, key, offered).to_string().into())
        }
        Rule::DeclareNumber(low, high) => {
            let taken = parse_number_in(value, low, high)
                .is_some_and(|number| declared_number(negotiated, key, number));
            match key {
                _ if !taken => Some(REJECT.into()),
                // Said to initiators that know the key only: some fail on what they do not know.
                Key::MaxOutstandingUnexpectedPDUs => Some(MAX_IMMEDIATE.to_string().into()),
                _ => None,
            }
        }
        Rule::DeclareBoolean => {
            let Some(declared) = parse_bool(value) else { return Some(REJECT.into()) };
            if let (Some(terms), Key::TaggedBufferForSolicitedDataOnly) =
                (&mut negotiated.rdma, key)
            {
                terms.solicited_only = declared;
            }
            None
        }
        Rule::Obsolete(answer) => Some(answer.into()),
        Rule::DeclareText | Rule::Query | Rule::Authentication => Some(REJECT.into()),
    }
}

/// Takes a number that the initiator declares. False: it is not the initiator's to declare.
fn declared_number(n: &mut Negotiated, key: Key, number: u32) -> bool {
    match (key, &mut n.rdma) {
        (Key::MaxRecvDataSegmentLength, None) => n.initiator_max_recv = number,
        // Whatever it says, an initiator has receive buffers for the length of a login.
        (Key::MaxRecvDataSegmentLength, Some(_)) => {
            n.initiator_max_recv = number.min(n.initiator_max_recv);
        }
        (Key::MaxOutstandingUnexpectedPDUs, Some(terms)) => terms.max_unexpected = number,
        // This target sends no additional header segments.
        (Key::MaxAHSLength, Some(_)) => {}
        _ => return false,
    }
    true
}

/// The result of a list.
fn list(n: &mut Negotiated, options: &Options, key: Key, value: &str) -> &'static str {
    let digest = |policy: DigestPolicy| {
        let takes = |offer: &str| match policy {
            DigestPolicy::Allow => keys::DIGESTS.contains(&offer),
            DigestPolicy::Require => offer == "CRC32C",
            DigestPolicy::Forbid => offer == "None",
        };
        choose(value, takes).map(|chosen| chosen == "CRC32C")
    };
    let (result, field) = match key {
        Key::HeaderDigest => (digest(options.header_digest), &mut n.header_digest),
        Key::DataDigest => (digest(options.data_digest), &mut n.data_digest),
        Key::TaskReporting => {
            let plain = choose(value, |offer| offer == keys::TASK_REPORTING[0]);
            return plain.map_or(REJECT, |_| keys::TASK_REPORTING[0]);
        }
        _ => return REJECT,
    };
    let Some(on) = result else { return REJECT };
    *field = on;
    keys::DIGESTS[usize::from(on)]
}

/// The result of a boolean.
fn boolean(n: &mut Negotiated, options: &Options, key: Key, value: &str) -> &'static str {
    let Some(offered) = parse_bool(value) else { return REJECT };
    yes_no(match key {
        Key::InitialR2T => {
            n.initial_r2t = offered || options.initial_r2t;
            n.initial_r2t
        }
        Key::ImmediateData => {
            n.immediate_data = offered && options.immediate_data;
            n.immediate_data
        }
        Key::RDMAExtensions => match &mut n.rdma {
            Some(terms) => {
                terms.extensions = Some(offered);
                offered
            }
            None => false,
        },
        // DataPDUInOrder and DataSequenceInOrder: this target wants order, and Yes wins.
        _ => true,
    })
}

/// The result of a number.
fn number(n: &mut Negotiated, options: &Options, key: Key, offered: u32) -> u32 {
    match key {
        Key::MaxBurstLength => {
            n.max_burst_length = offered.min(options.max_burst_length);
            n.max_burst_length
        }
        Key::FirstBurstLength => {
            n.first_burst_length = offered.min(options.first_burst_length);
            n.first_burst_length
        }
        Key::MaxOutstandingR2T => {
            let least = offered.min(u32::from(options.max_outstanding_r2t));
            n.max_outstanding_r2t = least as u16;
            least
        }
        Key::DefaultTime2Wait => {
            let most = offered.max(u32::from(options.time2wait));
            n.time2wait = most as u16;
            most
        }
        Key::DefaultTime2Retain => {
            n.time2retain = TIME2RETAIN as u16;
            TIME2RETAIN
        }
        Key::ISCSIProtocolLevel => {
            let least = offered.min(PROTOCOL_LEVEL);
            n.protocol_level = least as u8;
            least
        }
        Key::MaxConnections => 1,
        Key::TargetRecvDataSegmentLength => {
            n.target_max_recv = offered.min(options.max_recv_data_segment_length);
            n.target_max_recv
        }
        Key::InitiatorRecvDataSegmentLength => {
            n.initiator_max_recv = offered;
            n.initiator_max_recv
        }
        // ErrorRecoveryLevel: the smaller of any offer and 0.
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
