//! What a controller is made of, and what it says of itself.

use crate::fabrics::Transport;
use crate::feature::{EVENT_ANA, EVENT_DISCOVERY, EVENT_NAMESPACES};
use crate::identify::{
    self, CMIC_ANA, CMIC_CONTROLLERS, CMIC_PORTS, CTRATT_HOST_ID_128, CTRATT_TBKAS,
    FUSES_COMPARE_WRITE, ONCS_COMPARE, ONCS_COPY, ONCS_DSM, ONCS_RESERVATIONS, ONCS_VERIFY,
    ONCS_WRITE_ZEROES, SGLS_KEYED, SGLS_OFFSET, SGLS_SUPPORTED, TYPE_DISCOVERY, TYPE_IO,
    VWC_FLUSH_ALL, VWC_PRESENT, ascii,
};
use crate::name::field_of_nqn;
use crate::pdu::{U16, U32};
use alloc::string::String;
use core::time::Duration;

/// The version of the specification: 2.0.
pub(super) const VERSION: u32 = 0x0002_0000;

/// Asynchronous Event Requests that a controller keeps.
pub(super) const EVENT_REQUESTS: usize = 4;

/// Entries of the error log.
pub(super) const ERRORS: usize = 64;

/// Granularity of the keep alive timer (KAS).
pub(super) const KEEP_ALIVE_UNIT: Duration = Duration::from_secs(1);

/// What a controller is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads and writes.
    Io,
    /// Discovery.
    Discovery,
}

/// A subsystem, as its controllers describe it.
#[derive(Clone, Debug)]
pub struct Subsystem {
    /// Its name.
    pub nqn: String,
    /// Serial number; no two subsystems have the same. At most 20 ASCII characters, and no ':',
    /// of which VMware makes names.
    pub serial: String,
    /// Model number, at most 40 ASCII characters, without ':'.
    pub model: String,
    /// Firmware revision, at most 8 ASCII characters.
    pub firmware: String,
    /// MDTS: most data of a command, 2^n units of 4 KiB; 0: no limit.
    pub mdts: u8,
    /// Data of a capsule on I/O queues, in bytes: a multiple of 16.
    pub capsule_data: u32,
    /// Entries of a queue at most.
    pub max_entries: u16,
    /// The largest NSID, which is the number of namespaces at most.
    pub max_namespaces: u32,
    /// Groups of asymmetric namespace access; their identifiers are 1 to this number.
    pub groups: u32,
    /// Most seconds that a transition of asymmetric namespace access takes.
    pub transition: u8,
    /// Logical blocks that are written as one, whatever happens, and that Compare and Write takes.
    /// At least 1.
    pub atomic_blocks: u16,
}

/// What a controller is made of: the host's Connect, and the subsystem.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What it is for.
    pub kind: Kind,
    /// Its identifier, 1 to [`MAX_CNTLID`](crate::fabrics::MAX_CNTLID), unique in the subsystem.
    pub cntlid: u16,
    /// HOSTID of the Connect.
    pub host_id: [u8; 16],
    /// KATO of the Connect.
    pub kato: Duration,
    /// I/O queues that the host may have.
    pub max_queues: u16,
    /// What carries its queues.
    pub transport: Transport,
    /// The subsystem.
    pub subsystem: Subsystem,
}

impl Setup {
    /// OAES: the events that the controller has.
    pub(super) const fn events(&self) -> u32 {
        match self.kind {
            Kind::Io => EVENT_NAMESPACES | EVENT_ANA,
            Kind::Discovery => EVENT_DISCOVERY,
        }
    }

    /// SGLS: the descriptors that the transport has.
    const fn sgls(&self) -> u32 {
        SGLS_SUPPORTED
            | SGLS_OFFSET
            | match self.transport {
                Transport::Tcp => 0,
                Transport::Rdma => SGLS_KEYED,
            }
    }

    /// Identify Controller.
    pub(super) fn identify(&self) -> identify::Controller {
        let of = &self.subsystem;
        let mut page = identify::Controller {
            sn: ascii(&of.serial),
            mn: ascii(&of.model),
            fr: ascii(&of.firmware),
            mdts: of.mdts,
            cntlid: U16::new(self.cntlid),
            ver: U32::new(VERSION),
            oaes: U32::new(self.events()),
            ctratt: U32::new(CTRATT_HOST_ID_128 | CTRATT_TBKAS),
            cntrltype: if self.kind == Kind::Io { TYPE_IO } else { TYPE_DISCOVERY },
            crdt: [1, 10, 50].map(U16::new),
            acl: 3,
            aerl: EVENT_REQUESTS as u8 - 1,
            // Log pages with offsets, and the effects of commands.
            lpa: 1 << 1 | 1 << 2,
            elpe: ERRORS as u8 - 1,
            kas: U16::new((KEEP_ALIVE_UNIT.as_millis() / 100) as u16),
            sqes: 0x66,
            cqes: 0x44,
            maxcmd: U16::new(of.max_entries),
            sgls: U32::new(self.sgls()),
            subnqn: field_of_nqn(&of.nqn),
            ioccsz: U32::new((64 + of.capsule_data) / 16),
            iorcsz: U32::new(1),
            msdbd: 1,
            // Disconnect of a single queue is not supported.
            ofcs: U16::new(0),
            ..identify::Controller::default()
        };
        if self.kind == Kind::Io {
            self.describe_io(&mut page);
        }
        page
    }

    /// What controllers have that read and write.
    fn describe_io(&self, page: &mut identify::Controller) {
        let of = &self.subsystem;
        page.cmic = CMIC_PORTS | CMIC_CONTROLLERS | CMIC_ANA;
        page.anatt = of.transition;
        // All five states are reported.
        page.anacap = 0x1f;
        page.anagrpmax = U32::new(of.groups);
        page.nanagrpid = U32::new(of.groups);
        page.nn = U32::new(of.max_namespaces);
        page.mnan = U32::new(of.max_namespaces);
        page.oncs = U16::new(
            ONCS_COMPARE
                | ONCS_DSM
                | ONCS_WRITE_ZEROES
                | ONCS_RESERVATIONS
                | ONCS_VERIFY
                | ONCS_COPY,
        );
        page.fuses = U16::new(FUSES_COMPARE_WRITE);
        page.vwc = VWC_PRESENT | VWC_FLUSH_ALL;
        let atomic = U16::new(of.atomic_blocks.saturating_sub(1));
        (page.awun, page.awupf, page.acwu) = (atomic, atomic, atomic);
        page.ocfs = U16::new(1);
    }
}
