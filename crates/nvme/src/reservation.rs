//! The data of a Reservation Report (NVMe base specification, section 7.8).
//!
//! # How a volume's reservations look over NVMe and over SCSI
//!
//! Both protocols share one state per volume. A registrant of NVMe is a host, known by its HOSTID
//! of 128 bits whichever controller it comes by; one of SCSI is an I_T nexus. So:
//!
//! * Types and keys are the same on both sides: type n here is the n-th of write exclusive,
//!   exclusive access, the two 'registrants only' and the two 'all registrants'.
//! * Preempting by a key reaches registrants of both protocols that have it.
//! * A host that registers over both protocols is two registrants, which may have one key.
//! * A report over NVMe lists the host identifiers of NVMe registrants. A registrant of SCSI is
//!   counted and listed with its key and a host identifier of zero, which no NVMe host has: the
//!   number of registrants is true, and whoever wants to preempt by key finds it.
//!   Over SCSI, READ KEYS has the keys of NVMe hosts, and READ FULL STATUS omits them.
//! * GEN is the volume's generation, which changes of either side raise.
//! * Persist Through Power Loss is a property of the volume: the latest registration that says
//!   something of it decides, over APTPL or CPTPL.

use crate::code::wire;
use crate::command::ReservationType;
use crate::pdu::{U16, U32, U64};
use alloc::vec::Vec;
use zerocopy::{FromBytes, IntoBytes};

wire! {
    /// The header of a report.
    Header {
        /// GEN: generation.
        generation: U32,
        /// RTYPE; 0 without a reservation.
        kind: u8,
        /// REGCTL: registrants.
        count: U16,
        /// Reserved.
        reserved7: [u8; 2],
        /// PTPLS: Persist Through Power Loss.
        persist: u8,
        /// Reserved.
        reserved10: [u8; 14],
    }
}

wire! {
    /// A registrant in the extended data structure, whose entries begin at byte 64.
    Extended {
        /// CNTLID: 0xffff in the dynamic controller model.
        cntlid: U16,
        /// RCSTS: bit 0, it holds the reservation.
        status: u8,
        /// Reserved.
        reserved3: [u8; 5],
        /// RKEY.
        key: U64,
        /// HOSTID.
        host_id: [u8; 16],
        /// Reserved.
        reserved32: [u8; 32],
    }
}

/// Where the entries begin.
const ENTRIES: usize = 64;

/// Somebody who is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// HOSTID; zero for somebody who came over another protocol.
    pub host_id: [u8; 16],
    /// The key.
    pub key: u64,
    /// It holds the reservation.
    pub holds: bool,
}

/// The state of a namespace's reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Generation.
    pub generation: u32,
    /// Type of the reservation, if there is one.
    pub kind: Option<ReservationType>,
    /// It persists through power loss.
    pub persist: bool,
    /// Who is registered.
    pub registrants: Vec<Registrant>,
}

impl Report {
    /// The extended data structure. The other one has host identifiers of 64 bits, which hosts
    /// with 128 bits cannot ask for.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let header = Header {
            generation: U32::new(self.generation),
            kind: self.kind.map_or(0, ReservationType::code),
            count: U16::new(u16::try_from(self.registrants.len()).unwrap_or(u16::MAX)),
            persist: u8::from(self.persist),
            ..Header::default()
        };
        let mut page = header.as_bytes().to_vec();
        page.resize(ENTRIES, 0);
        for registrant in self.registrants.iter().take(usize::from(u16::MAX)) {
            let entry = Extended {
                cntlid: U16::MAX_VALUE,
                status: u8::from(registrant.holds),
                key: U64::new(registrant.key),
                host_id: registrant.host_id,
                ..Extended::default()
            };
            page.extend_from_slice(entry.as_bytes());
        }
        page
    }

    /// The report of an extended data structure; `None` if it is cut off or of an unknown type.
    #[must_use]
    pub fn decode(page: &[u8]) -> Option<Self> {
        let (header, _) = Header::ref_from_prefix(page).ok()?;
        let len = usize::from(header.count.get()) * size_of::<Extended>();
        let entries = page.get(ENTRIES..)?.get(..len)?;
        let kind = match header.kind {
            0 => None,
            code => Some(ReservationType::from_code(code)?),
        };
        let registrant = |entry: &Extended| Registrant {
            host_id: entry.host_id,
            key: entry.key.get(),
            holds: entry.status & 1 != 0,
        };
        Some(Self {
            generation: header.generation.get(),
            kind,
            persist: header.persist & 1 != 0,
            registrants: <[Extended]>::ref_from_bytes(entries)
                .ok()?
                .iter()
                .map(registrant)
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;
    use proptest::prelude::*;

    #[test]
    fn reports_are_as_the_specification_has_them() {
        assert_eq!((size_of::<Header>(), size_of::<Extended>()), (24, 64));
        assert_eq!((offset_of!(Header, kind), offset_of!(Header, count)), (4, 5));
        assert_eq!(offset_of!(Header, persist), 9);
        assert_eq!((offset_of!(Extended, status), offset_of!(Extended, key)), (2, 8));
        assert_eq!(offset_of!(Extended, host_id), 16);
    }

    proptest! {
        #[test]
        fn reports_survive_the_wire(generation: u32, kind in 0u8..=6, persist: bool, list in prop::collection::vec(any::<([u8; 16], u64, bool)>(), 0..5)) {
            let registrants = list.into_iter().map(|(host_id, key, holds)| Registrant { host_id, key, holds }).collect();
            let report = Report { generation, kind: ReservationType::from_code(kind), persist, registrants };
            let page = report.encode();
            prop_assert_eq!(Report::decode(&page), Some(report));
        }

        #[test]
        fn any_report_is_read(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Report::decode(&bytes);
        }
    }
}
