//! PERSISTENT RESERVE IN: what the state looks like (SPC-5 6.14).

use alloc::vec;
use alloc::vec::Vec;

use lunet_reservations::{Registration, Reservations};

use super::access::type_of;
use super::command::In;
use super::{NexusId, Port};

/// What is answered, cut off at the allocation length.
pub(super) fn report(state: &Reservations, ports: &[Port], action: In, allocation: u16) -> Vec<u8> {
    let mut data = match action {
        In::ReadKeys => keys(state),
        In::ReadReservation => reservation(state),
        In::ReportCapabilities => capabilities(state),
        In::ReadFullStatus => full_status(state, ports),
    };
    data.truncate(usize::from(allocation));
    data
}

/// PRGENERATION, ADDITIONAL LENGTH, and the list.
fn listed(state: &Reservations, list: &[u8]) -> Vec<u8> {
    let mut data = Vec::with_capacity(8 + list.len());
    data.extend_from_slice(&state.generation().to_be_bytes());
    data.extend_from_slice(&(list.len() as u32).to_be_bytes());
    data.extend_from_slice(list);
    data
}

/// All keys, also those of other protocols' hosts: whoever wants to preempt one must know it.
fn keys(state: &Reservations) -> Vec<u8> {
    let keys: Vec<u8> = state.registrations().iter().flat_map(|r| r.key.to_be_bytes()).collect();
    listed(state, &keys)
}

fn reservation(state: &Reservations) -> Vec<u8> {
    let Some(kind) = state.kind() else { return listed(state, &[]) };
    // The key is 0 where all hold the reservation.
    let key = state.holder().and_then(|holder| state.key_of(holder)).unwrap_or(0);
    let mut descriptor = vec![0; 16];
    descriptor[0..8].copy_from_slice(&key.to_be_bytes());
    descriptor[13] = type_of(kind); // SCOPE 0: the logical unit
    listed(state, &descriptor)
}

fn capabilities(state: &Reservations) -> Vec<u8> {
    // CRH, SIP_C, ATP_C, PTPL_C.
    let flags = 0x10 | 0x08 | 0x04 | u8::from(state.capable());
    // TMV; ALLOW COMMANDS 011b: what only reads passes Write Exclusive; PTPL_A.
    let more = 0x80 | 0x30 | u8::from(state.activated());
    // WR_EX_AR, EX_AC_RO, WR_EX_RO, EX_AC, WR_EX; EX_AC_AR.
    let kinds = [0x80 | 0x40 | 0x20 | 0x08 | 0x02, 0x01];
    vec![0, 8, flags, more, kinds[0], kinds[1], 0, 0]
}

/// Every registered nexus. Hosts of other protocols have no TransportID to be described by.
fn full_status(state: &Reservations, ports: &[Port]) -> Vec<u8> {
    let mut list = Vec::new();
    for registration in state.registrations() {
        if let Some(nexus) = NexusId::of(&registration.registrant) {
            describe(state, (registration, &nexus), ports, &mut list);
        }
    }
    listed(state, &list)
}

/// A full status descriptor. Each port has its own, so ALL_TG_PT is 0.
fn describe(
    state: &Reservations,
    (registration, nexus): (&Registration, &NexusId),
    ports: &[Port],
    list: &mut Vec<u8>,
) {
    let start = list.len();
    list.extend_from_slice(&registration.key.to_be_bytes());
    list.extend_from_slice(&[0; 16]);
    if let Some(kind) = state.kind().filter(|_| state.holds(&registration.registrant)) {
        list[start + 12] = 0x01; // R_HOLDER
        list[start + 13] = type_of(kind);
    }
    // A port that leads here no more has no number.
    let port = ports.iter().find(|port| port.name == nexus.port);
    let relative = port.map_or(0, |port| port.relative);
    list[start + 18..start + 20].copy_from_slice(&relative.to_be_bytes());
    nexus.initiator.encode(list);
    let len = (list.len() - start - 24) as u32;
    list[start + 20..start + 24].copy_from_slice(&len.to_be_bytes());
}
