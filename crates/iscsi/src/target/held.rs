//! PDUs that wait for a command with a lower CmdSN.

use super::task::Tag;
use crate::pdu::Bhs;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Most bytes of key and ping data that are held.
const MAX_HELD: usize = 64 * 1024;

/// What waits.
#[derive(Debug)]
pub(super) enum Waiting {
    /// A SCSI command, which has a task already.
    Command(Tag),
    /// Another PDU with its data.
    Pdu(Box<Bhs>, Vec<u8>),
    /// Nothing: the number counts as received.
    Void,
}

/// The PDUs that wait, at most as many as the command window has places.
#[derive(Debug)]
pub(super) struct Held {
    list: Vec<(u32, Waiting)>,
    bytes: usize,
}

impl Held {
    pub(super) const fn new() -> Self {
        Self { list: Vec::new(), bytes: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// True when this number is taken.
    pub(super) fn contains(&self, cmd_sn: u32) -> bool {
        self.list.iter().any(|(held, _)| *held == cmd_sn)
    }

    /// Holds something. False when it is too much.
    #[must_use]
    pub(super) fn push(&mut self, cmd_sn: u32, waiting: Waiting) -> bool {
        if let Waiting::Pdu(_, data) = &waiting {
            if self.bytes + data.len() > MAX_HELD {
                return false;
            }
            self.bytes += data.len();
        }
        self.list.push((cmd_sn, waiting));
        true
    }

    /// Takes what has this number.
    pub(super) fn take(&mut self, cmd_sn: u32) -> Option<Waiting> {
        let index = self.list.iter().position(|(held, _)| *held == cmd_sn)?;
        let (_, waiting) = self.list.swap_remove(index);
        if let Waiting::Pdu(_, data) = &waiting {
            self.bytes -= data.len();
        }
        Some(waiting)
    }
}
