//! Units and commands that the tests share.

use lunet_block::{Caps, Support};
use lunet_scsi::alua::{AccessState, PortGroup, PortGroups};
use lunet_scsi::{
    Action, Code, CommandIn, Designator, Identity, Key, Nexus, Reply, Target, Task, Unit, execute,
    status,
};

/// 1 GiB and one block, 512 bytes, thin, with a volatile cache.
pub fn caps() -> Caps {
    Caps {
        block_size: 512,
        physical_block_size: 512,
        blocks: (1 << 21) + 1,
        read_only: false,
        write_cache: true,
        fua: Support::Emulate,
        write_zeroes: Support::Native,
        unmap: Support::Native,
        unmap_zeroes: true,
        unmap_granularity: 4096,
        mapped_reads: false,
        alignment: 512,
    }
}

pub fn with(change: impl FnOnce(&mut Caps)) -> Unit {
    let mut caps = caps();
    change(&mut caps);
    Unit::new(identity(), caps)
}

pub fn unit() -> Unit {
    with(|_| ())
}

pub fn unit_512e() -> Unit {
    with(|c| c.physical_block_size = 4096)
}

pub fn unit_4kn() -> Unit {
    with(|c| {
        c.block_size = 4096;
        c.physical_block_size = 4096;
        c.blocks = 1 << 33;
    })
}

pub fn unit_read_only() -> Unit {
    with(|c| c.read_only = true)
}

pub fn unit_thick() -> Unit {
    with(|c| {
        c.unmap = Support::None;
        c.write_cache = false;
    })
}

/// Thin, but unmapped blocks read as anything.
pub fn unit_anything() -> Unit {
    with(|c| c.unmap_zeroes = false)
}

pub fn unit_removable() -> Unit {
    Unit { removable: true, ..unit() }
}

/// Every kind of unit.
pub fn units() -> [Unit; 6] {
    [unit(), unit_512e(), unit_4kn(), unit_read_only(), unit_thick(), unit_removable()]
}

pub fn identity() -> Identity {
    Identity {
        vendor: *b"LUNET   ",
        product: *b"VIRTUAL DISK    ",
        revision: *b"0001",
        serial: "0123456789abcdef".into(),
        naa: Designator::eight([0x30, 1, 2, 3, 0xDE, 0xAD, 0xBE, 0xEF]),
        eui: Some(Designator::eight([2, 1, 2, 3, 4, 5, 6, 7])),
    }
}

/// Groups 1 and 2.
pub fn groups() -> PortGroups {
    let group = |tag, preferred| PortGroup { tag, state: AccessState::Optimized, preferred };
    PortGroups::new(vec![group(1, true), group(2, false)]).expect("not too many")
}

pub fn target() -> Target {
    Target {
        name: "iqn.2026-11.local.lunet:demo".into(),
        portal_group_tag: 1,
        relative_port: 1,
        several_ports: true,
        groups: groups(),
        group: 0,
        luns: vec![0, 5, 300],
    }
}

/// Runs a command that the initiator has all the room and all the data for.
pub fn run(unit: &Unit, cdb: &[u8]) -> Task {
    let data_out = u32::MAX;
    run_expecting(unit, cdb, u32::MAX, data_out)
}

pub fn run_expecting(unit: &Unit, cdb: &[u8], expects_read: u32, expects_write: u32) -> Task {
    let command = CommandIn { cdb, expects_read, expects_write };
    execute(&target(), Some(unit), Some(&mut Nexus::new()), &command)
}

/// A command to a LUN without logical unit.
pub fn run_nowhere(cdb: &[u8]) -> Task {
    let command = CommandIn { cdb, expects_read: u32::MAX, expects_write: 0 };
    execute(&target(), None, None, &command)
}

#[track_caller]
pub fn data(task: Task) -> Vec<u8> {
    match task.action {
        Action::Complete(Reply { status: status::GOOD, data, sense: None }) => {
            assert_eq!(task.transfer.data_in, data.len() as u64);
            data
        }
        other => panic!("no data, but {other:?}"),
    }
}

#[track_caller]
pub fn good(task: &Task) {
    assert_eq!(task.action, Action::Complete(Reply::GOOD));
}

/// The sense key and code of CHECK CONDITION.
#[track_caller]
pub fn sense(action: &Action) -> (Key, Code) {
    match action {
        Action::Complete(Reply { status: status::CHECK_CONDITION, sense: Some(sense), .. }) => {
            (sense.key, sense.code)
        }
        other => panic!("no sense data, but {other:?}"),
    }
}

#[track_caller]
pub fn illegal(task: &Task, code: Code) {
    assert_eq!(sense(&task.action), (Key::IllegalRequest, code));
}

/// These bytes, with zeroes behind them.
pub fn padded(start: &[u8], len: usize) -> Vec<u8> {
    let mut data = start.to_vec();
    data.resize(len, 0);
    data
}

/// The command block of `len` bytes with these bytes set.
pub fn cdb(len: usize, bytes: &[(usize, &[u8])]) -> Vec<u8> {
    let mut cdb = vec![0; len];
    for (at, part) in bytes {
        cdb[*at..at + part.len()].copy_from_slice(part);
    }
    cdb
}

/// A list of the unit's commands, as it reports them: operation code, service action, length.
pub fn listed(unit: &Unit) -> Vec<(u8, Option<u16>, usize)> {
    let all = data(run(unit, &cdb(12, &[(0, &[0xA3, 0x0C]), (6, &[0, 0, 0xFF, 0xFF])])));
    assert_eq!(u32::from_be_bytes(all[0..4].try_into().unwrap()) as usize, all.len() - 4);
    let entry = |d: &[u8]| {
        let action = (d[5] & 1 == 1).then(|| u16::from_be_bytes([d[2], d[3]]));
        (d[0], action, usize::from(d[7]))
    };
    all[4..].chunks_exact(8).map(entry).collect()
}

/// LOG SENSE with room for every page.
pub fn log(page: u8, subpage: u8, pointer: u8) -> Vec<u8> {
    cdb(10, &[(0, &[0x4D, 0, page, subpage, 0, 0, pointer, 0xFF])])
}
