//! Units that a host has reserved by RESERVE of SPC-2 through a relay: such a reservation is the session's, and ends with it.

use std::collections::{HashMap, HashSet};

use lunet_iscsi::pdu::TmfFunction;
use lunet_scsi::{SenseCodes, status};

/// RESERVE(6) and RESERVE(10); RELEASE(6) and RELEASE(10) (SPC-2, 7.21 and 7.16).
const RESERVE: [u8; 2] = [0x16, 0x56];
const RELEASE: [u8; 2] = [0x17, 0x57];
/// The additional sense code of POWER ON, RESET, OR BUS DEVICE RESET OCCURRED, behind which there is no reservation.
const RESET_OCCURRED: u8 = 0x29;

/// What a relay knows of them.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    /// Their logical unit numbers, as iSCSI has them.
    units: HashSet<u64>,
    /// What is under way, by its ticket: at which unit, and whether it reserves it or gives it back.
    under_way: HashMap<u64, (u64, Option<bool>)>,
}

impl Reserved {
    /// A command was sent.
    pub(super) fn sent(&mut self, ticket: u64, lun: u64, cdb: &[u8]) {
        let opcode = cdb.first().copied().unwrap_or_default();
        let reserves = RESERVE.contains(&opcode);
        let change = (reserves || RELEASE.contains(&opcode)).then_some(reserves);
        self.under_way.insert(ticket, (lun, change));
    }

    /// A command was aborted: nobody waits for its answer. A reservation that it has made all the same is not known here.
    pub(super) fn aborted(&mut self, ticket: u64) {
        self.under_way.remove(&ticket);
    }

    /// A command was answered, with this sense data.
    pub(super) fn answered(&mut self, ticket: u64, code: u8, sense: &[u8]) {
        let Some((lun, change)) = self.under_way.remove(&ticket) else { return };
        match change {
            Some(true) if code == status::GOOD => drop(self.units.insert(lun)),
            Some(false) if code == status::GOOD => drop(self.units.remove(&lun)),
            _ if code == status::CHECK_CONDITION => {
                let told = SenseCodes::decode(sense);
                if told.is_some_and(|told| told.asc == RESET_OCCURRED) {
                    self.units.remove(&lun);
                }
            }
            _ => {}
        }
    }

    /// The host has a unit reset, or all of them.
    pub(super) fn managed(&mut self, function: TmfFunction, lun: u64) {
        match function {
            TmfFunction::LogicalUnitReset => drop(self.units.remove(&lun)),
            TmfFunction::TargetWarmReset | TmfFunction::TargetColdReset => self.units.clear(),
            _ => {}
        }
    }

    /// True if there are some.
    pub(super) fn any(&self) -> bool {
        !self.units.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: u8 = status::GOOD;

    fn done(reserved: &mut Reserved, lun: u64, opcode: u8, code: u8) {
        reserved.sent(7, lun, &[opcode, 0, 0, 0, 0, 0]);
        reserved.answered(7, code, &[]);
    }

    #[test]
    fn a_reservation_is_kept_until_it_is_given_back() {
        for (reserve, release) in RESERVE.into_iter().zip(RELEASE) {
            let mut reserved = Reserved::default();
            done(&mut reserved, 1, reserve, status::RESERVATION_CONFLICT);
            done(&mut reserved, 1, 0x2A, GOOD);
            assert!(!reserved.any(), "it has got none");
            done(&mut reserved, 1, reserve, GOOD);
            done(&mut reserved, 2, reserve, GOOD);
            done(&mut reserved, 1, release, GOOD);
            assert!(reserved.any(), "another unit's");
            done(&mut reserved, 2, release, GOOD);
            assert!(!reserved.any());
        }
    }

    #[test]
    fn a_reset_ends_reservations() {
        let mut reserved = Reserved::default();
        let reserve = |reserved: &mut Reserved| done(reserved, 1, 0x16, GOOD);
        reserve(&mut reserved);
        reserved.managed(TmfFunction::AbortTaskSet, 1);
        reserved.managed(TmfFunction::LogicalUnitReset, 2);
        assert!(reserved.any());
        reserved.managed(TmfFunction::LogicalUnitReset, 1);
        assert!(!reserved.any());
        reserve(&mut reserved);
        reserved.managed(TmfFunction::TargetWarmReset, 0);
        assert!(!reserved.any());
        // Somebody else's.
        let fixed = [0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 3];
        for sense in [&fixed[..], &[0x72, 6, 0x29, 3]] {
            reserve(&mut reserved);
            for (lun, sense) in [(1, &[0x72, 6, 0x2A, 3][..]), (2, sense)] {
                reserved.sent(8, lun, &[0x2A; 10]);
                reserved.answered(8, status::CHECK_CONDITION, sense);
                assert!(reserved.any());
            }
            reserved.sent(8, 1, &[0x2A; 10]);
            reserved.answered(8, status::CHECK_CONDITION, sense);
            assert!(!reserved.any());
        }
    }
}
