//! Which commands may be executed.

use crate::{Epoch, Portals};

/// The epoch that a command belongs to. There is no other way to get one than from a [`Link`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(Epoch);

/// A question to the other end of a connection, such as a NOP-In, whose answer shows that nothing older is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping(Epoch);

/// A connection. It belongs to the epoch of its login, or of the latest ping that has come back: bytes of a connection
/// stay in order, so what arrives behind the answer was sent in that epoch or later. A command that a network or a
/// stopped clock has held back belongs to an epoch that is over, and so is never executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link(Epoch);

impl Link {
    /// The answer to a ping came back on this connection.
    pub fn renew(&mut self, ping: Ping) {
        self.0 = self.0.max(ping.0);
    }

    /// The stamp of a command that arrives here.
    pub const fn stamp(&self) -> Stamp {
        Stamp(self.0)
    }
}

/// What becomes of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is executed.
    Execute,
    /// The owner executes it: it is passed on.
    Forward,
    /// It is not, and the initiator sends it again: BUSY. The group is on its way to another gateway, or the command's
    /// connection was not pinged in this epoch yet.
    Busy,
    /// It is not: this gateway does not own the group (02h/04h/0Bh, or Asymmetric Access Inaccessible).
    Standby,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Closed,
    Blocked,
    Open,
    /// Of these protocols.
    Through {
        iscsi: bool,
        nvme: bool,
    },
}

/// Says of each command whether it may be executed. The event loops have copies of it, which a message changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    epoch: Epoch,
    door: Door,
}

impl Gate {
    pub(crate) const fn closed(epoch: Epoch) -> Self {
        Self { epoch, door: Door::Closed }
    }

    pub(crate) const fn blocked(epoch: Epoch) -> Self {
        Self { epoch, door: Door::Blocked }
    }

    pub(crate) const fn open(epoch: Epoch) -> Self {
        Self { epoch, door: Door::Open }
    }

    /// Closed but for what is passed on to these portals.
    pub(crate) const fn through(epoch: Epoch, to: &Portals) -> Self {
        let (iscsi, nvme) = (to.iscsi.is_some(), to.nvme.is_some());
        let door = if iscsi || nvme { Door::Through { iscsi, nvme } } else { Door::Closed };
        Self { epoch, door }
    }

    /// The gate of iSCSI alone.
    #[must_use]
    pub const fn of_iscsi(self) -> Self {
        match self.door {
            Door::Through { iscsi: false, .. } => Self::closed(self.epoch),
            _ => self,
        }
    }

    /// The gate of NVMe alone.
    #[must_use]
    pub const fn of_nvme(self) -> Self {
        match self.door {
            Door::Through { nvme: false, .. } => Self::closed(self.epoch),
            _ => self,
        }
    }

    /// The epoch that is known here.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// True if commands are executed.
    pub fn is_open(&self) -> bool {
        self.door == Door::Open
    }

    /// True if commands are passed on to the owner.
    pub fn is_through(&self) -> bool {
        matches!(self.door, Door::Through { .. })
    }

    /// A connection whose login was answered just now. The initiator sends no command before that answer.
    pub const fn connected(&self) -> Link {
        Link(self.epoch)
    }

    /// A question to send on each connection that there is when the gate opens.
    pub const fn ping(&self) -> Ping {
        Ping(self.epoch)
    }

    /// What becomes of a command: to be asked when it is about to be executed, not when it arrives.
    pub fn admits(&self, stamp: Stamp) -> Admission {
        match self.door {
            Door::Closed => Admission::Standby,
            Door::Open if stamp.0 == self.epoch => Admission::Execute,
            Door::Through { .. } if stamp.0 == self.epoch => Admission::Forward,
            Door::Open | Door::Through { .. } | Door::Blocked => Admission::Busy,
        }
    }
}
