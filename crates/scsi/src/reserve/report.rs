//! PERSISTENT RESERVE IN: what the state looks like (SPC-5 6.14).

use alloc::vec;
use alloc::vec::Vec;

use super::command::In;
use super::{Held, Registration, Reservations};

impl Reservations {
    pub(super) fn report(&self, action: In, allocation: u16) -> Vec<u8> {
        let mut data = match action {
            In::ReadKeys => self.keys(),
            In::ReadReservation => self.reservation(),
            In::ReportCapabilities => self.capabilities(),
            In::ReadFullStatus => self.full_status(),
        };
        data.truncate(usize::from(allocation));
        data
    }

    /// PRGENERATION, ADDITIONAL LENGTH, and the list.
    fn listed(&self, list: &[u8]) -> Vec<u8> {
        let mut data = Vec::with_capacity(8 + list.len());
        data.extend_from_slice(&self.generation.to_be_bytes());
        data.extend_from_slice(&(list.len() as u32).to_be_bytes());
        data.extend_from_slice(list);
        data
    }

    fn keys(&self) -> Vec<u8> {
        let keys: Vec<u8> = self.registrations.iter().flat_map(|r| r.key.to_be_bytes()).collect();
        self.listed(&keys)
    }

    fn reservation(&self) -> Vec<u8> {
        let Some(kind) = self.kind() else { return self.listed(&[]) };
        // The key is 0 where all hold the reservation.
        let holder = self.registrations.iter().find(|r| self.only_holder(r));
        let mut descriptor = vec![0; 16];
        descriptor[0..8].copy_from_slice(&holder.map_or(0, |r| r.key).to_be_bytes());
        descriptor[13] = kind as u8; // SCOPE 0: the logical unit
        self.listed(&descriptor)
    }

    fn capabilities(&self) -> Vec<u8> {
        // CRH, SIP_C, ATP_C, PTPL_C.
        let flags = 0x10 | 0x08 | 0x04 | u8::from(self.capable);
        // TMV; ALLOW COMMANDS 011b: what only reads passes Write Exclusive; PTPL_A.
        let more = 0x80 | 0x30 | u8::from(self.activated);
        // WR_EX_AR, EX_AC_RO, WR_EX_RO, EX_AC, WR_EX; EX_AC_AR.
        let kinds = [0x80 | 0x40 | 0x20 | 0x08 | 0x02, 0x01];
        vec![0, 8, flags, more, kinds[0], kinds[1], 0, 0]
    }

    fn full_status(&self) -> Vec<u8> {
        let mut list = Vec::new();
        for registration in &self.registrations {
            self.describe(registration, &mut list);
        }
        self.listed(&list)
    }

    /// A full status descriptor. Each port has its own, so ALL_TG_PT is 0.
    fn describe(&self, registration: &Registration, list: &mut Vec<u8>) {
        let start = list.len();
        list.extend_from_slice(&registration.key.to_be_bytes());
        list.extend_from_slice(&[0; 16]);
        let holds = matches!(self.held, Held::ByAll(_)) || self.only_holder(registration);
        if let Some(kind) = self.kind().filter(|_| holds) {
            list[start + 12] = 0x01; // R_HOLDER
            list[start + 13] = kind as u8;
        }
        // A port that leads here no more has no number.
        let port = self.ports.iter().find(|port| port.name == registration.nexus.port);
        let relative = port.map_or(0, |port| port.relative);
        list[start + 18..start + 20].copy_from_slice(&relative.to_be_bytes());
        registration.nexus.initiator.encode(list);
        let len = (list.len() - start - 24) as u32;
        list[start + 20..start + 24].copy_from_slice(&len.to_be_bytes());
    }

    fn only_holder(&self, registration: &Registration) -> bool {
        matches!(&self.held, Held::By(_, holder) if *holder == registration.nexus)
    }
}
