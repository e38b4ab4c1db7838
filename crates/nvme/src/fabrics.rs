//! Fabrics commands (NVMe base specification, section 6).

use crate::code::{codes, wire};
use crate::command::{Completion, FABRICS, Sgl, Sqe};
use crate::name::{NQN_FIELD, field_of_nqn, nqn_of_field};
use crate::pdu::U16;
use crate::status::Status;
use crate::through::Through;
use alloc::string::String;
use core::mem::{offset_of, size_of};
use core::time::Duration;

/// CNTLID of a Connect that lets the controller choose (dynamic controller model).
pub const ANY_CONTROLLER: u16 = 0xffff;

/// Most CNTLIDs: 0xfff0 and above have special meanings.
pub const MAX_CNTLID: u16 = 0xffef;

/// CATTR of Connect: the host wants no flow control of the submission queue.
const CATTR_NO_SQ_FLOW: u8 = 1 << 2;

/// Result of Connect: the host has to authenticate (ATR).
const AUTHENTICATE: u64 = 1 << 17;
/// Result of Connect: the host has to authenticate for secure channel concatenation (ASCR).
const CONCATENATE: u64 = 1 << 18;

/// What carries a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// A stream of TCP.
    #[default]
    Tcp,
    /// A queue pair of RDMA.
    Rdma,
}

codes! {
    /// Types of Fabrics commands.
    FabricsType: u8 {
        /// Property Set.
        PropertySet = 0x00,
        /// Connect.
        Connect = 0x01,
        /// Property Get.
        PropertyGet = 0x04,
        /// Authentication Send.
        AuthenticationSend = 0x05,
        /// Authentication Receive.
        AuthenticationReceive = 0x06,
        /// Disconnect.
        Disconnect = 0x08,
    }
}

codes! {
    /// Offsets of the properties (NVMe base specification, section 3.1.4).
    Property: u32 {
        /// Controller Capabilities.
        Capabilities = 0x00,
        /// Version.
        Version = 0x08,
        /// Controller Configuration.
        Configuration = 0x14,
        /// Controller Status.
        Status = 0x1c,
        /// NVM Subsystem Reset.
        SubsystemReset = 0x20,
        /// Controller Ready Timeouts.
        ReadyTimeouts = 0x68,
    }
}

impl Property {
    /// Length in bytes: 4 or 8.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Capabilities => 8,
            _ => 4,
        }
    }
}

wire! {
    /// The data of a Connect.
    ConnectData {
        /// HOSTID: the host identifier.
        host_id: [u8; 16],
        /// CNTLID: the controller; [`ANY_CONTROLLER`] on the admin queue.
        cntlid: U16,
        /// Reserved.
        reserved: [u8; 238],
        /// SUBNQN: the subsystem.
        subnqn: [u8; NQN_FIELD],
        /// HOSTNQN: the host.
        hostnqn: [u8; NQN_FIELD],
        /// Reserved.
        rest: [u8; 256],
    }
}

/// Length of the data of a Connect, in bytes.
pub const CONNECT_DATA_LEN: usize = size_of::<ConnectData>();

/// A Connect: the host makes a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Queue identifier; 0 is the admin queue.
    pub qid: u16,
    /// SQSIZE: entries of the queue, 0's based, at least 1.
    pub sqsize: u16,
    /// The host does without flow control of the submission queue.
    pub no_sq_flow: bool,
    /// KATO: keep alive timeout; zero: none. On the admin queue only.
    pub kato: Duration,
    /// HOSTID: the host identifier.
    pub host_id: [u8; 16],
    /// The controller; [`ANY_CONTROLLER`] on the admin queue.
    pub cntlid: u16,
    /// The subsystem.
    pub subnqn: String,
    /// The host.
    pub hostnqn: String,
    /// The gateway of a failover group that it comes through, see [`Through`].
    pub through: Option<Through>,
}

/// Connect is refused because of a field of the command, at this offset.
const fn in_command(offset: u64) -> Completion {
    Completion { result: offset, status: Status::CONNECT_PARAMETER.no_retry() }
}

/// Connect is refused because of a field of its data, at this offset.
const fn in_data(offset: usize) -> Completion {
    Completion { result: offset as u64 | 1 << 16, status: Status::CONNECT_PARAMETER.no_retry() }
}

impl Connect {
    /// Refused: the subsystem is not known. Without `no_retry`, for one that may be there later.
    pub const UNKNOWN_SUBSYSTEM: Completion = Completion {
        result: in_data(offset_of!(ConnectData, subnqn)).result,
        status: Status::CONNECT_PARAMETER,
    };
    /// Refused: the controller is not there, or not this host's.
    pub const WRONG_CONTROLLER: Completion = in_data(offset_of!(ConnectData, cntlid));
    /// Refused: the host identifier is not the one of the admin queue.
    pub const WRONG_HOST_ID: Completion = in_data(offset_of!(ConnectData, host_id));
    /// Refused: the host NQN is not the one of the admin queue.
    pub const WRONG_HOST_NQN: Completion = in_data(offset_of!(ConnectData, hostnqn));
    /// Refused: the queue identifier is taken, or beyond those that the host was given.
    pub const WRONG_QUEUE: Completion = in_command(42);
    /// Refused: the queue is larger than CAP.MQES allows.
    pub const WRONG_SIZE: Completion = in_command(44);

    /// A Connect, if it is valid by itself.
    ///
    /// # Errors
    /// What to refuse it with.
    pub fn decode(sqe: &Sqe, data: &ConnectData) -> Result<Self, Completion> {
        if sqe.cdw(0) & 0xffff != 0 {
            return Err(Status::CONNECT_FORMAT.no_retry().into());
        }
        let qid = (sqe.cdw(0) >> 16) as u16;
        let sqsize = sqe.cdw(1) as u16;
        if sqsize == 0 {
            return Err(Self::WRONG_SIZE);
        }
        let subnqn =
            nqn_of_field(&data.subnqn).map_err(|_| in_data(offset_of!(ConnectData, subnqn)))?;
        let hostnqn = nqn_of_field(&data.hostnqn).map_err(|_| Self::WRONG_HOST_NQN)?;
        let cntlid = data.cntlid.get();
        let through = Through::read(&data.reserved);
        if through.is_some() && qid != 1 {
            return Err(Self::WRONG_QUEUE);
        }
        if (qid == 0 || through.is_some()) != (cntlid == ANY_CONTROLLER) {
            return Err(Self::WRONG_CONTROLLER);
        }
        Ok(Self {
            qid,
            sqsize,
            no_sq_flow: (sqe.cdw(1) >> 16) as u8 & CATTR_NO_SQ_FLOW != 0,
            kato: Duration::from_millis(u64::from(sqe.cdw(2))),
            host_id: data.host_id,
            cntlid,
            subnqn: subnqn.into(),
            hostnqn: hostnqn.into(),
            through,
        })
    }

    /// The command, with its data in the capsule; its identifier is not set.
    #[must_use]
    pub fn encode(&self) -> (Sqe, ConnectData) {
        let mut sqe = Fabrics::sqe(FabricsType::Connect);
        let cattr = if self.no_sq_flow { CATTR_NO_SQ_FLOW } else { 0 };
        sqe.sgl = Sgl::in_capsule(CONNECT_DATA_LEN as u32);
        sqe.set_cdw(0, u32::from(self.qid) << 16);
        sqe.set_cdw(1, u32::from(self.sqsize) | u32::from(cattr) << 16);
        sqe.set_cdw(2, u32::try_from(self.kato.as_millis()).unwrap_or(u32::MAX));
        let mut data = ConnectData {
            host_id: self.host_id,
            cntlid: U16::new(self.cntlid),
            subnqn: field_of_nqn(&self.subnqn),
            hostnqn: field_of_nqn(&self.hostnqn),
            ..ConnectData::default()
        };
        if let Some(through) = &self.through {
            through.write(&mut data.reserved);
        }
        (sqe, data)
    }
}

/// What a host has to do after its Connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authentication {
    /// Nothing.
    #[default]
    None,
    /// Authenticate.
    Required,
    /// Authenticate, and come back with the key that comes of it (secure channel concatenation).
    Concatenate,
}

/// The answer to a Connect that is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// The controller.
    pub cntlid: u16,
    /// What comes next.
    pub authentication: Authentication,
}

impl Connected {
    /// The result of the Connect.
    #[must_use]
    pub const fn encode(self) -> u64 {
        self.cntlid as u64
            | match self.authentication {
                Authentication::None => 0,
                Authentication::Required => AUTHENTICATE,
                Authentication::Concatenate => CONCATENATE,
            }
    }

    /// What the result of a Connect says.
    #[must_use]
    pub const fn decode(result: u64) -> Self {
        let authentication = if result & CONCATENATE != 0 {
            Authentication::Concatenate
        } else if result & AUTHENTICATE != 0 {
            Authentication::Required
        } else {
            Authentication::None
        };
        Self { cntlid: result as u16, authentication }
    }
}

/// Which security protocol an authentication command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Security {
    /// SECP: 0xe9 for NVMe's own.
    pub protocol: u8,
    /// SPSP0 and SPSP1: what the protocol makes of it, 1 and 1 for NVMe's own.
    pub specific: [u8; 2],
    /// TL or AL: length of the message, or of the room for it, in bytes.
    pub len: u32,
}

impl Security {
    /// DH-HMAC-CHAP, with so many bytes.
    #[must_use]
    pub const fn dh_chap(len: u32) -> Self {
        Self { protocol: 0xe9, specific: [1, 1], len }
    }
}

/// A Fabrics command other than Connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabrics {
    /// Sets a property.
    PropertySet {
        /// Which.
        property: Property,
        /// Its value.
        value: u64,
    },
    /// Reads a property.
    PropertyGet {
        /// Which.
        property: Property,
    },
    /// Sends a message of the authentication.
    AuthenticationSend(Security),
    /// Receives one.
    AuthenticationReceive(Security),
    /// Deletes an I/O queue.
    Disconnect,
}

impl Fabrics {
    fn sqe(kind: FabricsType) -> Sqe {
        Sqe::new(FABRICS, u32::from(kind.code()))
    }

    /// The command of a submission queue entry that has the opcode of Fabrics commands.
    ///
    /// # Errors
    /// [`Status::INVALID_OPCODE`] for a type that is not supported, [`Status::SEQUENCE`] for a
    /// Connect, which comes first and once, [`Status::INVALID_FIELD`] for a property that does not
    /// exist or has another size, [`Status::CONNECT_FORMAT`] for a Disconnect in another format.
    pub fn decode(sqe: &Sqe) -> Result<Self, Status> {
        let kind = FabricsType::from_code(sqe.fctype()).ok_or(Status::INVALID_OPCODE.no_retry())?;
        let [_, low, high, protocol] = sqe.cdw(0).to_le_bytes();
        let security = Security { protocol, specific: [low, high], len: sqe.cdw(1) };
        Ok(match kind {
            FabricsType::Connect => return Err(Status::SEQUENCE.no_retry()),
            FabricsType::PropertySet => {
                Self::PropertySet { property: property(sqe)?, value: sqe.quad(2) }
            }
            FabricsType::PropertyGet => Self::PropertyGet { property: property(sqe)? },
            FabricsType::AuthenticationSend => Self::AuthenticationSend(security),
            FabricsType::AuthenticationReceive => Self::AuthenticationReceive(security),
            FabricsType::Disconnect if sqe.cdw(0) & 0xffff != 0 => {
                return Err(Status::CONNECT_FORMAT.no_retry());
            }
            FabricsType::Disconnect => Self::Disconnect,
        })
    }

    /// A submission queue entry with this command; its data and its identifier are not set.
    #[must_use]
    pub fn encode(&self) -> Sqe {
        match *self {
            Self::PropertySet { property, value } => {
                let mut sqe = Self::of_property(FabricsType::PropertySet, property);
                sqe.set_quad(2, value);
                sqe
            }
            Self::PropertyGet { property } => Self::of_property(FabricsType::PropertyGet, property),
            Self::AuthenticationSend(security) => security.encode(FabricsType::AuthenticationSend),
            Self::AuthenticationReceive(security) => {
                security.encode(FabricsType::AuthenticationReceive)
            }
            Self::Disconnect => Self::sqe(FabricsType::Disconnect),
        }
    }

    fn of_property(kind: FabricsType, property: Property) -> Sqe {
        let mut sqe = Self::sqe(kind);
        sqe.set_cdw(0, u32::from(property.size() == 8));
        sqe.set_cdw(1, property.code());
        sqe
    }
}

impl Security {
    fn encode(self, kind: FabricsType) -> Sqe {
        let mut sqe = Fabrics::sqe(kind);
        let [low, high] = self.specific;
        sqe.set_cdw(0, u32::from_le_bytes([0, low, high, self.protocol]));
        sqe.set_cdw(1, self.len);
        sqe
    }
}

fn property(sqe: &Sqe) -> Result<Property, Status> {
    let size = match sqe.cdw(0) & 7 {
        0 => 4,
        1 => 8,
        _ => 0,
    };
    let property = Property::from_code(sqe.cdw(1)).filter(|property| property.size() == size);
    property.ok_or(Status::INVALID_FIELD.no_retry())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn connect() -> Connect {
        Connect {
            qid: 0,
            sqsize: 31,
            no_sq_flow: false,
            kato: Duration::from_secs(5),
            host_id: [7; 16],
            cntlid: ANY_CONTROLLER,
            subnqn: "nqn.2026-11.org.lunet:a".into(),
            hostnqn: "nqn.2026-11.org.lunet:host".into(),
            through: None,
        }
    }

    #[test]
    fn connect_data_is_as_the_specification_has_it() {
        assert_eq!(CONNECT_DATA_LEN, 1024);
        assert_eq!(offset_of!(ConnectData, cntlid), 16);
        assert_eq!(offset_of!(ConnectData, subnqn), 256);
        assert_eq!(offset_of!(ConnectData, hostnqn), 512);
    }

    /// The first command of a host, as seen on the wire.
    #[test]
    fn connect_is_as_linux_sends_it() {
        let (mut sqe, data) = connect().encode();
        sqe.cid = U16::new(0);
        let bytes = sqe.as_bytes();
        assert_eq!(bytes[..5], [0x7f, 0x40, 0, 0, 1]);
        assert_eq!(bytes[32..36], 1024u32.to_le_bytes());
        assert_eq!(bytes[39], 1);
        assert_eq!(bytes[40..52], [0, 0, 0, 0, 31, 0, 0, 0, 0x88, 0x13, 0, 0]);
        assert_eq!(Connect::decode(&sqe, &data), Ok(connect()));
    }

    #[test]
    fn what_is_wrong_with_a_connect_is_named() {
        let (sqe, data) = connect().encode();
        let mut other = sqe;
        other.set_cdw(0, 1);
        let format = Completion::from(Status::CONNECT_FORMAT.no_retry());
        assert_eq!(Connect::decode(&other, &data), Err(format));
        let mut other = sqe;
        other.set_cdw(1, 0);
        assert_eq!(Connect::decode(&other, &data), Err(Connect::WRONG_SIZE));
        assert_eq!(Connect::WRONG_SIZE.result, 44);
        let mut other = data;
        other.subnqn = [b'n'; NQN_FIELD];
        let refused = Connect::decode(&sqe, &other).expect_err("no name");
        assert_eq!(refused.result, 256 | 1 << 16);
        other = data;
        other.hostnqn[0] = 0;
        assert_eq!(Connect::decode(&sqe, &other), Err(Connect::WRONG_HOST_NQN));
        other = data;
        other.cntlid = U16::new(1);
        assert_eq!(Connect::decode(&sqe, &other), Err(Connect::WRONG_CONTROLLER));
        // Linux goes on trying: the subsystem may be there later.
        assert!(!Connect::UNKNOWN_SUBSYSTEM.status.is_final());
    }

    #[test]
    fn properties_have_their_size() {
        let mut sqe = Fabrics::PropertyGet { property: Property::Capabilities }.encode();
        assert_eq!(sqe.as_bytes()[40..48], [1, 0, 0, 0, 0, 0, 0, 0]);
        sqe.set_cdw(0, 0);
        assert_eq!(Fabrics::decode(&sqe), Err(Status::INVALID_FIELD.no_retry()));
        sqe.set_cdw(1, 4);
        assert_eq!(Fabrics::decode(&sqe), Err(Status::INVALID_FIELD.no_retry()));
        let (connect, _) = connect().encode();
        assert_eq!(Fabrics::decode(&connect), Err(Status::SEQUENCE.no_retry()));
        let other = Sqe::new(FABRICS, 0x09);
        assert_eq!(Fabrics::decode(&other), Err(Status::INVALID_OPCODE.no_retry()));
    }

    fn fabrics() -> impl Strategy<Value = Fabrics> {
        let offsets = [0u32, 8, 0x14, 0x1c, 0x20, 0x68];
        let property = prop::sample::select(offsets.to_vec())
            .prop_map(|offset| Property::from_code(offset).expect("a property"));
        let security = any::<(u8, [u8; 2], u32)>().prop_map(|(protocol, specific, len)| Security {
            protocol,
            specific,
            len,
        });
        prop_oneof![
            (property.clone(), any::<u64>())
                .prop_map(|(property, value)| Fabrics::PropertySet { property, value }),
            property.prop_map(|property| Fabrics::PropertyGet { property }),
            security.clone().prop_map(Fabrics::AuthenticationSend),
            security.prop_map(Fabrics::AuthenticationReceive),
            Just(Fabrics::Disconnect),
        ]
    }

    proptest! {
        #[test]
        fn commands_survive_the_wire(fabrics in fabrics()) {
            prop_assert_eq!(Fabrics::decode(&fabrics.encode()), Ok(fabrics));
        }

        #[test]
        fn connects_survive_the_wire(
            qid: u16,
            sqsize in 1u16..,
            no_sq_flow: bool,
            kato: u32,
            host_id: [u8; 16],
            cntlid in 0u16..0xffff,
            names in ("[ -~]{1,223}", "[ -~]{1,223}"),
        ) {
            let (subnqn, hostnqn) = names;
            let cntlid = if qid == 0 { ANY_CONTROLLER } else { cntlid };
            let kato = Duration::from_millis(u64::from(kato));
            let connect =
                Connect { qid, sqsize, no_sq_flow, kato, host_id, cntlid, subnqn, hostnqn, through: None };
            let (sqe, data) = connect.encode();
            prop_assert_eq!(Connect::decode(&sqe, &data), Ok(connect));
        }

        #[test]
        fn results_survive_the_wire(cntlid: u16, kind in 0..3) {
            let kinds = [Authentication::None, Authentication::Required, Authentication::Concatenate];
            let connected = Connected { cntlid, authentication: kinds[kind as usize] };
            prop_assert_eq!(Connected::decode(connected.encode()), connected);
        }
    }
}
