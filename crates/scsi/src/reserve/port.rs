//! Ports, and the nexus between two of them (SAM-5 4.6).

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::fmt::Write as _;
use core::ops::Deref;

use lunet_reservations::Registrant;

/// PROTOCOL IDENTIFIER and TPID FORMAT 01b: an iSCSI initiator port, name and ISID.
const ISCSI_PORT: u8 = 0x45;
/// What stands between name and ISID.
const SEPARATOR: &str = ",i,0x";
/// The longest iSCSI name, in bytes (RFC 7143 4.2.7.1).
const MAX_NAME: usize = 223;
/// Who registers by such ports, among those who reserve a volume.
pub const FAMILY: &str = "scsi";
/// Stands between two names, and in none.
const NO_TEXT: u8 = 0xFF;
/// The shortest ADDITIONAL LENGTH (SPC-5 7.6.4.6).
const MIN_LENGTH: usize = 20;

/// An iSCSI initiator port: the initiator's name and the ISID of its session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InitiatorPort {
    /// The iSCSI name.
    pub name: String,
    /// The initiator's session identifier.
    pub isid: [u8; 6],
}

/// The name of an iSCSI target port: a target in one of its portal groups (RFC 7143 4.4.1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TargetPort {
    /// The target's iSCSI name: the SCSI target device.
    pub target: Arc<str>,
    /// The target portal group tag.
    pub tag: u16,
}

/// A target port that leads to a logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Target name and portal group tag.
    pub name: TargetPort,
    /// RELATIVE TARGET PORT IDENTIFIER: no other port of the server has it, whatever its target.
    pub relative: u16,
}

/// An I_T nexus by the names of its ends, which outlive its sessions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NexusId {
    /// Who sends.
    pub initiator: InitiatorPort,
    /// Through which port.
    pub port: TargetPort,
}

impl NexusId {
    /// The nexus as it registers and reserves.
    pub fn registrant(&self) -> Registrant {
        let (initiator, port) = (&self.initiator, &self.port);
        let mut name = Vec::with_capacity(9 + initiator.name.len() + port.target.len());
        name.extend_from_slice(&initiator.isid);
        name.extend_from_slice(&port.tag.to_be_bytes());
        name.extend_from_slice(initiator.name.as_bytes());
        name.push(NO_TEXT);
        name.extend_from_slice(port.target.as_bytes());
        Registrant::new(FAMILY, &name)
    }

    /// The nexus that has registered so; `None` if another protocol knows who that is.
    pub fn of(registrant: &Registrant) -> Option<Self> {
        let (isid, rest) = registrant.name_in(FAMILY)?.split_first_chunk::<6>()?;
        let (tag, names) = rest.split_first_chunk::<2>()?;
        let end = names.iter().position(|byte| *byte == NO_TEXT)?;
        let text = |bytes| core::str::from_utf8(bytes).ok();
        let initiator = InitiatorPort { name: text(&names[..end])?.into(), isid: *isid };
        let target = text(&names[end + 1..])?.into();
        Some(Self { initiator, port: TargetPort { target, tag: u16::from_be_bytes(*tag) } })
    }
}

/// A nexus that is logged in: made once, whatever the number of units that it sees.
#[derive(Debug, PartialEq, Eq)]
pub struct LiveNexus {
    id: NexusId,
    registrant: Registrant,
}

impl LiveNexus {
    /// Of this name.
    pub fn new(id: NexusId) -> Arc<Self> {
        let registrant = id.registrant();
        Arc::new(Self { id, registrant })
    }

    /// The nexus as it registers and reserves.
    pub const fn registrant(&self) -> &Registrant {
        &self.registrant
    }
}

impl Deref for LiveNexus {
    type Target = NexusId;

    fn deref(&self) -> &NexusId {
        &self.id
    }
}

impl fmt::Display for InitiatorPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{SEPARATOR}", self.name)?;
        self.isid.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl InitiatorPort {
    /// Appends the TransportID (SPC-5 7.6.4.6): the name ends with a zero and is padded to a
    /// multiple of 4.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut text = String::with_capacity(self.name.len() + SEPARATOR.len() + 12);
        // Writing to a String does not fail.
        let _ = write!(text, "{self}");
        let len = ((text.len() + 4) & !3).max(MIN_LENGTH);
        out.extend_from_slice(&[ISCSI_PORT, 0]);
        out.extend_from_slice(&(len as u16).to_be_bytes());
        let end = out.len() + len;
        out.extend_from_slice(text.as_bytes());
        out.resize(end, 0);
    }

    /// Reads the TransportID at the start of `bytes`; the port, and how many bytes it took. `None`
    /// for other protocols, for an initiator without ISID (it names no port), and for damage.
    pub fn decode(bytes: &[u8]) -> Option<(Self, usize)> {
        let (header, rest) = bytes.split_first_chunk::<4>()?;
        let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if header[0] != ISCSI_PORT || len < MIN_LENGTH || len % 4 != 0 {
            return None;
        }
        let body = rest.get(..len)?;
        let end = body.iter().position(|byte| *byte == 0)?;
        let (name, digits) = core::str::from_utf8(&body[..end]).ok()?.rsplit_once(SEPARATOR)?;
        if name.is_empty() || name.len() > MAX_NAME || digits.len() > 12 {
            return None;
        }
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let [_, _, isid @ ..] = u64::from_str_radix(digits, 16).ok()?.to_be_bytes();
        Some((Self { name: name.into(), isid }, 4 + len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    fn encoded(port: &InitiatorPort) -> Vec<u8> {
        let mut bytes = vec![];
        port.encode(&mut bytes);
        bytes
    }

    #[test]
    fn a_port_is_its_transport_id() {
        let port = InitiatorPort { name: "iqn.x:a".into(), isid: [0x40, 0, 1, 2, 3, 0xAB] };
        let expected = b"\x45\x00\x00\x1Ciqn.x:a,i,0x4000010203ab\0\0\0\0";
        assert_eq!(encoded(&port), expected);
        assert_eq!(InitiatorPort::decode(expected), Some((port, 32)));
    }

    #[test]
    fn a_nexus_is_known_by_its_registrant_and_no_other_is() {
        let nexus = |initiator: &str, last, target: &str, tag| NexusId {
            initiator: InitiatorPort { name: initiator.into(), isid: [0x40, 0, 0, 0, 0xFF, last] },
            port: TargetPort { target: target.into(), tag },
        };
        let all = [
            nexus("iqn.a", 1, "iqn.t", 1),
            nexus("iqn.a", 2, "iqn.t", 1),
            nexus("iqn.a", 1, "iqn.t", 0xFFFF),
            nexus("iqn.ai", 1, "qn.t", 1),
            nexus("quote\" \u{ff} \n", 1, "", 1),
        ];
        for (at, one) in all.iter().enumerate() {
            assert_eq!(NexusId::of(&one.registrant()).as_ref(), Some(one));
            for other in &all[..at] {
                assert_ne!(one.registrant(), other.registrant());
            }
        }
        for (family, name) in [("host", &[1; 16][..]), (FAMILY, &[1; 16]), (FAMILY, b"")] {
            assert_eq!(NexusId::of(&Registrant::new(family, name)), None);
        }
    }

    #[test]
    fn every_name_length_survives() {
        for len in 1..=MAX_NAME {
            let port = InitiatorPort { name: "n".repeat(len), isid: [1; 6] };
            let bytes = encoded(&port);
            assert_eq!((bytes.len() % 4, bytes.last()), (0, Some(&0)), "{len}");
            assert_eq!(InitiatorPort::decode(&bytes), Some((port, bytes.len())));
        }
    }

    #[test]
    fn digits_may_be_few_and_of_either_case() {
        let bytes = b"\x45\x00\x00\x14iqn.x:aaaa,i,0xAb\0\0\0rest";
        let port = InitiatorPort { name: "iqn.x:aaaa".into(), isid: [0, 0, 0, 0, 0, 0xAB] };
        assert_eq!(InitiatorPort::decode(bytes), Some((port, 24)));
    }

    #[test]
    fn other_forms_name_no_port() {
        for bytes in [
            &b""[..],
            b"\x45\x00\x00",
            // Fibre Channel; a device name alone.
            b"\x40\x00\x00\x14iqn.x:aaaa,i,0x0b\0\0\0",
            b"\x05\x00\x00\x14iqn.x:aaaa,i,0x0b\0\0\0",
            // Too short, not a multiple of 4, cut off, no end.
            b"\x45\x00\x00\x10iqn.x,i,0x0b\0\0\0\0",
            b"\x45\x00\x00\x15iqn.x:aaaa,i,0x0b\0\0\0\0",
            b"\x45\x00\x00\x18iqn.x:aaaa,i,0x0b\0\0\0",
            b"\x45\x00\x00\x14iqn.x:aaaa,i,0x0b1234",
            // No separator, no digits, no hexadecimal, too many digits, no name.
            b"\x45\x00\x00\x14iqn.x:aaaaaaaaaaaa\0\0",
            b"\x45\x00\x00\x14iqn.x:aaaa,i,0x\0\0\0\0\0",
            b"\x45\x00\x00\x14iqn.x:aaaa,i,0xg\0\0\0\0",
            b"\x45\x00\x00\x14iqn.x:aaaa,i,0x+1\0\0\0",
            b"\x45\x00\x00\x14a,i,0x1234567890123\0",
            b"\x45\x00\x00\x14,i,0x123456789012\0\0\0",
        ] {
            assert_eq!(InitiatorPort::decode(bytes), None, "{bytes:02X?}");
        }
    }
}
