//! CmdSN, StatSN and the command window (RFC 7143 section 4.2.2).

use super::Error;
use crate::pdu::{Bhs, NopIn, Wire};

/// `a < b` in serial number arithmetic (RFC 1982).
pub(super) fn before(a: u32, b: u32) -> bool {
    a != b && b.wrapping_sub(a) < 1 << 31
}

/// The numbers of one session with one connection.
#[derive(Debug)]
pub(super) struct Sequence {
    cmd_sn: u32,
    exp_cmd_sn: u32,
    max_cmd_sn: u32,
    exp_stat_sn: u32,
}

impl Sequence {
    /// Before the login: the window is closed.
    pub fn new(first_cmd_sn: u32) -> Self {
        let max_cmd_sn = first_cmd_sn.wrapping_sub(1);
        Self { cmd_sn: first_cmd_sn, exp_cmd_sn: first_cmd_sn, max_cmd_sn, exp_stat_sn: 0 }
    }

    /// CmdSN of the next non-immediate command; immediate commands carry it without using it up.
    pub fn cmd_sn(&self) -> u32 {
        self.cmd_sn
    }

    /// ExpStatSN: the next StatSN that is awaited.
    pub fn exp_stat_sn(&self) -> u32 {
        self.exp_stat_sn
    }

    /// Commands that may be sent now.
    pub fn window(&self) -> u32 {
        let next_closed = self.max_cmd_sn.wrapping_add(1);
        if before(self.cmd_sn, next_closed) { next_closed.wrapping_sub(self.cmd_sn) } else { 0 }
    }

    /// Uses up a CmdSN if the window is open.
    pub fn take_cmd_sn(&mut self) -> Option<u32> {
        (self.window() > 0).then(|| {
            let taken = self.cmd_sn;
            self.cmd_sn = taken.wrapping_add(1);
            taken
        })
    }

    /// Sets all from the first Login Response of a connection.
    pub fn begin(&mut self, bhs: &Bhs) {
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = numbers(bhs);
        self.exp_stat_sn = stat_sn.wrapping_add(1);
        self.exp_cmd_sn = exp_cmd_sn;
        self.max_cmd_sn = max_cmd_sn;
    }

    /// Takes ExpCmdSN and MaxCmdSN of any PDU: a pair that contradicts itself or goes back is
    /// ignored. An ExpCmdSN beyond what was sent is an error.
    pub fn update_window(&mut self, bhs: &Bhs) -> Result<(), Error> {
        let (_, exp_cmd_sn, max_cmd_sn) = numbers(bhs);
        if before(max_cmd_sn, exp_cmd_sn.wrapping_sub(1)) {
            return Ok(());
        }
        if before(self.cmd_sn, exp_cmd_sn) {
            return Err(Error::ExpCmdSn);
        }
        if before(self.exp_cmd_sn, exp_cmd_sn) {
            self.exp_cmd_sn = exp_cmd_sn;
        }
        if before(self.max_cmd_sn, max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
        Ok(())
    }

    /// Takes the StatSN of a PDU that carries a status.
    pub fn take_status(&mut self, bhs: &Bhs) -> Result<(), Error> {
        let (stat_sn, _, _) = numbers(bhs);
        if stat_sn != self.exp_stat_sn {
            return Err(Error::StatSn);
        }
        self.exp_stat_sn = stat_sn.wrapping_add(1);
        Ok(())
    }
}

/// StatSN, ExpCmdSN and MaxCmdSN, which stand at the same place in every PDU of a target.
fn numbers(bhs: &Bhs) -> (u32, u32, u32) {
    let pdu = NopIn::from_bhs(bhs);
    (pdu.stat_sn.get(), pdu.exp_cmd_sn.get(), pdu.max_cmd_sn.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pdu(stat_sn: u32, exp_cmd_sn: u32, max_cmd_sn: u32) -> Bhs {
        *NopIn {
            stat_sn: stat_sn.into(),
            exp_cmd_sn: exp_cmd_sn.into(),
            max_cmd_sn: max_cmd_sn.into(),
            ..Default::default()
        }
        .as_bhs()
    }

    #[test]
    fn serial_numbers_wrap() {
        assert!(before(u32::MAX, 0));
        assert!(before(0, 1));
        assert!(!before(1, 1));
        assert!(!before(0, u32::MAX));
    }

    #[test]
    fn the_window_opens_wraps_and_closes() {
        let mut sequence = Sequence::new(u32::MAX);
        assert_eq!(sequence.take_cmd_sn(), None);
        sequence.begin(&pdu(7, u32::MAX, 1));
        assert_eq!(sequence.window(), 3);
        assert_eq!(sequence.take_cmd_sn(), Some(u32::MAX));
        assert_eq!(sequence.take_cmd_sn(), Some(0));
        assert_eq!(sequence.take_cmd_sn(), Some(1));
        assert_eq!(sequence.take_cmd_sn(), None);
        assert_eq!(sequence.update_window(&pdu(8, 2, 2)), Ok(()));
        assert_eq!(sequence.window(), 1);
    }

    #[test]
    fn numbers_that_go_back_or_contradict_themselves_are_ignored() {
        let mut sequence = Sequence::new(10);
        sequence.begin(&pdu(0, 10, 20));
        assert_eq!(sequence.update_window(&pdu(0, 9, 15)), Ok(()));
        assert_eq!(sequence.window(), 11);
        assert_eq!(sequence.update_window(&pdu(0, 10, 8)), Ok(()));
        assert_eq!(sequence.window(), 11);
        assert_eq!(sequence.update_window(&pdu(0, 11, 30)), Err(Error::ExpCmdSn));
    }

    #[test]
    fn a_status_number_comes_once_and_in_order() {
        let mut sequence = Sequence::new(0);
        sequence.begin(&pdu(u32::MAX, 0, 0));
        assert_eq!(sequence.take_status(&pdu(0, 0, 0)), Ok(()));
        assert_eq!(sequence.take_status(&pdu(0, 0, 0)), Err(Error::StatSn));
        assert_eq!(sequence.take_status(&pdu(1, 0, 0)), Ok(()));
    }
}
