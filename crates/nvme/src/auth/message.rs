//! Messages of DH-HMAC-CHAP (NVMe base specification, section 8.13.5).

use super::Hash;
use super::dh::Group;
use crate::code::{codes, wire};
use crate::pdu::{U16, U32};
use alloc::vec::Vec;
use core::fmt;
use zerocopy::{FromBytes, IntoBytes};

/// AUTH_TYPE of messages that all protocols have.
const COMMON: u8 = 0;
/// AUTH_TYPE of DH-HMAC-CHAP.
const DH_CHAP: u8 = 1;
/// AUTH_ID of the messages.
const NEGOTIATE: (u8, u8) = (COMMON, 0);
const CHALLENGE: (u8, u8) = (DH_CHAP, 1);
const REPLY: (u8, u8) = (DH_CHAP, 2);
const SUCCESS1: (u8, u8) = (DH_CHAP, 3);
const SUCCESS2: (u8, u8) = (DH_CHAP, 4);
const FAILURE2: (u8, u8) = (COMMON, 0xf0);
const FAILURE1: (u8, u8) = (COMMON, 0xf1);

/// Numbers of hashes, and of groups, in a descriptor.
const LIST: usize = 30;

codes! {
    /// Why an authentication failed.
    Failure: u8 {
        /// The response is wrong.
        Failed = 1,
        /// No protocol that both have.
        NotUsable = 2,
        /// Secure channel concatenation is not what is wanted.
        Concatenation = 3,
        /// No hash that both have.
        Hash = 4,
        /// No group that both have.
        Group = 5,
        /// A message whose content is not valid.
        Payload = 6,
        /// A message that is not the next one.
        Message = 7,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Failed => "the secrets differ",
            Self::NotUsable => "authentication protocol not usable",
            Self::Concatenation => "secure channel concatenation mismatch",
            Self::Hash => "no hash that both have",
            Self::Group => "no Diffie-Hellman group that both have",
            Self::Payload => "incorrect payload",
            Self::Message => "incorrect protocol message",
        })
    }
}

wire! {
    /// The start of every message.
    Head {
        kind: u8,
        id: u8,
        reserved2: [u8; 2],
        /// T_ID.
        transaction: U16,
    }
}

wire! {
    /// AUTH_Negotiate with one protocol.
    Negotiation {
        head: Head,
        /// SC_C.
        concatenation: u8,
        /// NAPD.
        protocols: u8,
        /// Protocol: 1.
        protocol: u8,
        reserved9: u8,
        halen: u8,
        dhlen: u8,
        hashes: [u8; LIST],
        groups: [u8; LIST],
    }
}

wire! {
    /// DH-HMAC-CHAP_Challenge and DH-HMAC-CHAP_Reply, without the values behind.
    Exchange {
        head: Head,
        /// HL.
        len: u8,
        reserved7: u8,
        /// HashID of a challenge, CVALID of a reply.
        first: u8,
        /// DHgID of a challenge.
        second: u8,
        /// DHVLEN.
        public: U16,
        /// SEQNUM.
        sequence: U32,
    }
}

wire! {
    /// DH-HMAC-CHAP_Success1, without the response, and DH-HMAC-CHAP_Success2.
    Success {
        head: Head,
        /// HL.
        len: u8,
        reserved7: u8,
        /// RVALID.
        valid: u8,
        reserved9: [u8; 7],
    }
}

wire! {
    /// AUTH_Failure1 and AUTH_Failure2.
    Failed {
        head: Head,
        /// Reason code: 1, authentication failed.
        reason: u8,
        /// Reason code explanation.
        explanation: u8,
    }
}

/// A message, with its transaction identifier beside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Negotiate {
        concatenation: u8,
        hashes: Vec<u8>,
        groups: Vec<u8>,
    },
    Challenge {
        hash: Hash,
        group: Group,
        sequence: u32,
        challenge: Vec<u8>,
        public: Vec<u8>,
    },
    /// `challenge` is there if the controller has to prove itself, too, or, with a `sequence` of 0, for the key of secure
    /// channel concatenation.
    Reply {
        sequence: u32,
        response: Vec<u8>,
        challenge: Option<Vec<u8>>,
        public: Vec<u8>,
    },
    Success1 {
        response: Option<Vec<u8>>,
        len: u8,
    },
    Success2,
    Failure1(u8),
    Failure2(u8),
}

fn head((kind, id): (u8, u8), transaction: u16) -> Head {
    Head { kind, id, transaction: U16::new(transaction), ..Head::default() }
}

fn list(codes: &[u8]) -> ([u8; LIST], u8) {
    let mut list = [0; LIST];
    let len = codes.len().min(LIST);
    list[..len].copy_from_slice(&codes[..len]);
    (list, len as u8)
}

impl Message {
    /// The bytes of the message.
    pub fn encode(&self, transaction: u16) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Negotiate { concatenation, hashes, groups } => {
                let ((hashes, halen), (groups, dhlen)) = (list(hashes), list(groups));
                let negotiation = Negotiation {
                    head: head(NEGOTIATE, transaction),
                    concatenation: *concatenation,
                    protocols: 1,
                    protocol: 1,
                    halen,
                    dhlen,
                    hashes,
                    groups,
                    ..Negotiation::default()
                };
                bytes.extend_from_slice(negotiation.as_bytes());
            }
            Self::Challenge { hash, group, sequence, challenge, public } => {
                let exchange = Exchange {
                    head: head(CHALLENGE, transaction),
                    len: hash.size() as u8,
                    first: hash.code(),
                    second: group.code(),
                    public: U16::new(public.len() as u16),
                    sequence: U32::new(*sequence),
                    ..Exchange::default()
                };
                for part in [exchange.as_bytes(), challenge, public] {
                    bytes.extend_from_slice(part);
                }
            }
            Self::Reply { sequence, response, challenge, public } => {
                let exchange = Exchange {
                    head: head(REPLY, transaction),
                    len: response.len() as u8,
                    first: u8::from(challenge.is_some()),
                    public: U16::new(public.len() as u16),
                    sequence: U32::new(*sequence),
                    ..Exchange::default()
                };
                bytes.extend_from_slice(exchange.as_bytes());
                bytes.extend_from_slice(response);
                // Its place is there, whether it is valid or not.
                let at = bytes.len();
                bytes.extend_from_slice(challenge.as_deref().unwrap_or_default());
                bytes.resize(at + response.len(), 0);
                bytes.extend_from_slice(public);
            }
            Self::Success1 { response, len } => {
                let success = Success {
                    head: head(SUCCESS1, transaction),
                    len: *len,
                    valid: u8::from(response.is_some()),
                    ..Success::default()
                };
                bytes.extend_from_slice(success.as_bytes());
                bytes.extend_from_slice(response.as_deref().unwrap_or_default());
            }
            Self::Success2 => {
                let success = Success { head: head(SUCCESS2, transaction), ..Success::default() };
                bytes.extend_from_slice(success.as_bytes());
            }
            Self::Failure1(explanation) | Self::Failure2(explanation) => {
                let ours = matches!(self, Self::Failure1(_));
                let id = if ours { FAILURE1 } else { FAILURE2 };
                let failed =
                    Failed { head: head(id, transaction), reason: 1, explanation: *explanation };
                bytes.extend_from_slice(failed.as_bytes());
            }
        }
        bytes
    }

    /// The transaction identifier and the message of these bytes. What is behind it does not
    /// matter.
    pub fn decode(bytes: &[u8]) -> Result<(u16, Self), Failure> {
        let (head, _) = Head::read_from_prefix(bytes).map_err(|_| Failure::Payload)?;
        let message = match (head.kind, head.id) {
            NEGOTIATE => negotiate(bytes),
            CHALLENGE => challenge(bytes),
            REPLY => reply(bytes),
            SUCCESS1 => {
                let (success, rest) =
                    Success::ref_from_prefix(bytes).map_err(|_| Failure::Payload)?;
                let response = match success.valid {
                    0 => Some(None),
                    1 => rest.get(..usize::from(success.len)).map(|bytes| Some(bytes.to_vec())),
                    _ => None,
                };
                response.map(|response| Self::Success1 { response, len: success.len })
            }
            SUCCESS2 => Some(Self::Success2),
            FAILURE1 => {
                Failed::ref_from_prefix(bytes).ok().map(|(f, _)| Self::Failure1(f.explanation))
            }
            FAILURE2 => {
                Failed::ref_from_prefix(bytes).ok().map(|(f, _)| Self::Failure2(f.explanation))
            }
            _ => return Err(Failure::Message),
        };
        Ok((head.transaction.get(), message.ok_or(Failure::Payload)?))
    }
}

fn negotiate(bytes: &[u8]) -> Option<Message> {
    let (negotiation, _) = Negotiation::ref_from_prefix(bytes).ok()?;
    let hashes = negotiation.hashes.get(..usize::from(negotiation.halen))?.to_vec();
    let groups = negotiation.groups.get(..usize::from(negotiation.dhlen))?.to_vec();
    let one = negotiation.protocols >= 1 && negotiation.protocol == 1;
    let concatenation = negotiation.concatenation;
    one.then_some(Message::Negotiate { concatenation, hashes, groups })
}

fn challenge(bytes: &[u8]) -> Option<Message> {
    let (exchange, rest) = Exchange::ref_from_prefix(bytes).ok()?;
    let hash = Hash::from_code(exchange.first)?;
    let group = Group::from_code(exchange.second)?;
    let (challenge, rest) = rest.split_at_checked(usize::from(exchange.len))?;
    let public = rest.get(..usize::from(exchange.public.get()))?.to_vec();
    let fits = challenge.len() == hash.size() && public.len() == group.size();
    let sequence = exchange.sequence.get();
    let challenge = challenge.to_vec();
    fits.then_some(Message::Challenge { hash, group, sequence, challenge, public })
}

fn reply(bytes: &[u8]) -> Option<Message> {
    let (exchange, rest) = Exchange::ref_from_prefix(bytes).ok()?;
    let (response, rest) = rest.split_at_checked(usize::from(exchange.len))?;
    let (challenge, rest) = rest.split_at_checked(usize::from(exchange.len))?;
    let challenge = match exchange.first {
        0 => None,
        1 => Some(challenge.to_vec()),
        _ => return None,
    };
    Some(Message::Reply {
        sequence: exchange.sequence.get(),
        response: response.to_vec(),
        challenge,
        public: rest.get(..usize::from(exchange.public.get()))?.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};
    use proptest::prelude::*;

    #[test]
    fn messages_are_as_the_specification_has_them() {
        assert_eq!((size_of::<Head>(), offset_of!(Head, transaction)), (6, 4));
        assert_eq!((size_of::<Negotiation>(), offset_of!(Negotiation, halen)), (72, 10));
        assert_eq!((offset_of!(Negotiation, hashes), offset_of!(Negotiation, groups)), (12, 42));
        assert_eq!((size_of::<Exchange>(), offset_of!(Exchange, first)), (16, 8));
        assert_eq!((offset_of!(Exchange, public), offset_of!(Exchange, sequence)), (10, 12));
        assert_eq!((size_of::<Success>(), offset_of!(Success, valid)), (16, 8));
        assert_eq!((size_of::<Failed>(), offset_of!(Failed, explanation)), (8, 7));
    }

    fn message() -> impl Strategy<Value = Message> {
        let bytes = |len| prop::collection::vec(any::<u8>(), len);
        prop_oneof![
            (any::<u8>(), bytes(0..=30), bytes(0..=30)).prop_map(
                |(concatenation, hashes, groups)| {
                    Message::Negotiate { concatenation, hashes, groups }
                }
            ),
            (any::<u32>(), bytes(48..=48), bytes(256..=256)).prop_map(
                |(sequence, challenge, public)| Message::Challenge {
                    hash: Hash::Sha384,
                    group: Group::Ffdhe2048,
                    sequence,
                    challenge,
                    public,
                }
            ),
            (any::<u32>(), bytes(32..=32), prop::option::of(bytes(32..=32)), bytes(0..=1024))
                .prop_map(|(sequence, response, challenge, public)| Message::Reply {
                    sequence,
                    response,
                    challenge,
                    public,
                }),
            prop::option::of(bytes(32..=32))
                .prop_map(|response| Message::Success1 { response, len: 32 }),
            Just(Message::Success2),
            any::<u8>().prop_map(Message::Failure1),
            any::<u8>().prop_map(Message::Failure2),
        ]
    }

    proptest! {
        #[test]
        fn messages_survive_the_wire(message in message(), transaction: u16) {
            let mut bytes = message.encode(transaction);
            bytes.push(0);
            prop_assert_eq!(Message::decode(&bytes), Ok((transaction, message)));
        }

        #[test]
        fn any_message_is_judged(bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0u8..2, id in 0u8..6) {
            let _ = Message::decode(&bytes);
            let _ = Message::decode(&[&[kind, id, 0, 0, 0, 0][..], &bytes].concat());
        }
    }
}
