//! What must hold for every command block.

use crate::common::*;
use lunet_block::Space;
use lunet_block::{BlockRange, Random};
use lunet_scsi::copy::Request;
use lunet_scsi::{
    Action, Attention, Check, Code, CommandIn, Exclusive, Modes, Nexus, ParameterKind, Parameters,
    PowerChange, Reply, Task, Unit, WriteSameSource, execute, parameters, status,
};
use proptest::prelude::*;

/// What the executor relies on.
fn check(unit: &Unit, task: &Task) {
    let ranges = match &task.action {
        Action::Complete(Reply { status, data, sense }) => {
            assert_eq!(*status == status::CHECK_CONDITION, sense.is_some());
            assert_ne!(*status, status::RESERVATION_CONFLICT, "nothing is reserved");
            assert!(sense.is_none() || data.is_empty());
            vec![]
        }
        Action::Read { range, .. }
        | Action::Write { range, .. }
        | Action::Verify { range, .. }
        | Action::Prefetch { range }
        | Action::Flush { range, .. }
        | Action::LbaStatus { range, .. }
        | Action::WriteSame { range, .. }
        | Action::Exclusive { range, .. } => vec![*range],
        Action::Parameters(asked) => {
            assert!(asked.len > 0 && asked.len <= lunet_scsi::unit::MAX_PARAMETER_LIST);
            vec![]
        }
        Action::Unmap(ranges) => {
            assert!(!ranges.is_empty());
            ranges.clone()
        }
        Action::Copy(request) => copied(request),
        Action::Power(_)
        | Action::PreventRemoval(_)
        | Action::Reservation(_)
        | Action::PortGroups(_)
        | Action::Sanitize(_)
        | Action::Modes(_) => vec![],
    };
    for range in ranges {
        assert!(range.blocks > 0 && range.fits(unit.caps.blocks), "{range:?}");
    }
}

/// No GOOD for data that is thrown away: what the initiator sends of the data that a command needs is used,
/// or the command is refused. `sent` is the expected data transfer length.
fn check_data_out(unit: &Unit, task: &Task, sent: u32) {
    let (sent, needed) = (u64::from(sent), task.transfer.data_out);
    let used = match &task.action {
        Action::Complete(Reply { status: status::GOOD, .. }) => 0,
        Action::Complete(_) => return,
        Action::Write { range, .. } | Action::Verify { range, check: Check::Compare } => {
            range.bytes(unit.caps.block_size).len
        }
        Action::Exclusive { what: Exclusive::CompareAndWrite, range, .. } => {
            2 * range.bytes(unit.caps.block_size).len
        }
        Action::Exclusive { range, .. } => range.bytes(unit.caps.block_size).len,
        Action::WriteSame { source: WriteSameSource::DataOut, .. }
        | Action::Verify { check: Check::CompareOneBlock, .. } => u64::from(unit.caps.block_size),
        Action::Parameters(asked) => u64::from(asked.len),
        _ => 0,
    };
    assert_eq!(used, sent.min(needed), "of {sent} bytes, {needed} are needed: {task:?}");
}

/// True if the byte of this answer of MODE SENSE (6) is part of a page, and not of a header.
fn in_page_body(answer: &[u8], at: usize) -> bool {
    let mut page = 4;
    while page < answer.len() {
        let (header, len) = if answer[page] & 0x40 == 0 {
            (2, usize::from(answer[page + 1]))
        } else {
            (4, usize::from(answer[page + 3]))
        };
        if (page + header..page + header + len).contains(&at) {
            return true;
        }
        page += header + len;
    }
    false
}

const POWER: [PowerChange; 5] = [
    PowerChange::Active,
    PowerChange::Idle,
    PowerChange::Standby,
    PowerChange::Stopped,
    PowerChange::Eject,
];

/// The ranges that a copy names on the unit itself.
fn copied(request: &Request) -> Vec<BlockRange> {
    match request {
        Request::Populate(populate) => populate.ranges.clone(),
        Request::WriteUsing(write) => write.ranges.clone(),
        Request::Extended(_) | Request::Query(_) | Request::Abort { .. } => vec![],
    }
}

/// Command blocks that get past the first checks: a listed operation code, mostly small fields.
fn cdbs() -> impl Strategy<Value = Vec<u8>> {
    let codes: Vec<(u8, u8)> = listed(&unit_removable())
        .into_iter()
        .map(|(code, action, _)| (code, action.unwrap_or(0) as u8))
        .collect();
    let field = prop_oneof![4 => Just(0), 2 => 0..4_u8, 1 => any::<u8>()];
    let likely = (prop::sample::select(codes), prop::collection::vec(field, 16)).prop_map(
        |((code, action), mut cdb)| {
            cdb[0] = code;
            cdb[1] |= action;
            cdb
        },
    );
    prop_oneof![3 => likely, 1 => prop::collection::vec(any::<u8>(), 0..40)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn no_command_block_breaks_anything(
        cdb in cdbs(),
        expects_read in prop_oneof![Just(0), 0..2000_u32, Just(u32::MAX)],
        expects_write in prop_oneof![Just(0), Just(512), Just(4096), 0..2000_u32, Just(u32::MAX)],
        which in 0..6_usize,
        attention in any::<bool>(),
        power in prop::sample::select(&POWER[..]),
        nowhere in any::<bool>(),
    ) {
        let unit = &units()[which];
        unit.state.change_power(power);
        let mut nexus = Nexus::new();
        if attention {
            nexus.establish(Attention::PowerOn);
        }
        let command = CommandIn { cdb: &cdb, expects_read, expects_write };
        let task = execute(&target(), Some(unit), Some(&mut nexus), &command);
        check(unit, &task);
        check_data_out(unit, &task, expects_write);
        if nowhere {
            let task = execute(&target(), None, None, &command);
            prop_assert!(matches!(task.action, Action::Complete(_)));
        }
    }

    #[test]
    fn no_parameter_list_breaks_anything(
        mut list in prop::collection::vec(prop_oneof![2 => Just(0), 1 => any::<u8>()], 0..200),
        honest in any::<bool>(),
        len in 0..300_u32,
    ) {
        let unit = unit();
        if honest && list.len() >= 8 {
            let len = (list.len() - 8) as u16;
            list[2..4].copy_from_slice(&len.to_be_bytes());
        }
        for kind in
            [ParameterKind::Unmap, ParameterKind::ModeSelect6, ParameterKind::ModeSelect10]
        {
            let action = parameters(&unit, Parameters { kind, len }, &list);
            check(&unit, &Task::still(action));
        }
    }

    #[test]
    fn what_mode_sense_says_mode_select_takes_and_other_bits_only_where_they_can_be_changed(
        which in 0..6_usize,
        modes in (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
        at in 4..200_usize,
        bit in 0..8_u32,
    ) {
        let unit = &units()[which];
        unit.note_space(&Space { used: 0, available: 1 << 30, total: 1 << 40 });
        let (write_protect, descriptor_sense, task_aborted, write_cache) = modes;
        unit.state.set_modes(Modes { write_protect, descriptor_sense, task_aborted, write_cache });
        let page = |control: u8| data(run(unit, &[0x1A, 8, control << 6 | 0x3F, 0xFF, 0xFF, 0]));
        let (mut list, mask) = (page(0), page(1));
        list[..4].fill(0);
        let select = |list: &[u8]| {
            let asked = Parameters { kind: ParameterKind::ModeSelect6, len: list.len() as u32 };
            parameters(unit, asked, list)
        };
        prop_assert_eq!(select(&list), Action::Modes(unit.state.modes()));
        let at = at % list.len();
        list[at] ^= 1 << bit;
        // Other headers may happen to fit: only what is not a header is foretold.
        if in_page_body(&mask, at) {
            let taken = matches!(select(&list), Action::Modes(_));
            prop_assert_eq!(taken, mask[at] & (1 << bit) != 0, "byte {} bit {}", at, bit);
        }
    }
}

#[test]
fn what_is_listed_is_known_and_nothing_else() {
    for unit in &units() {
        let listed = listed(unit);
        for opcode in 0..=255 {
            let known = listed.iter().any(|(code, _, _)| *code == opcode);
            let task = run(unit, &cdb(16, &[(0, &[opcode])]));
            let refused = matches!(&task.action, Action::Complete(r)
                if r.sense.is_some_and(|s| s.code == Code::INVALID_OPCODE));
            assert_eq!(refused, !known, "{opcode:02X}h");
        }
        for opcode in [0x9E, 0xA3] {
            for action in 0..32 {
                let known = listed.contains(&(opcode, Some(action.into()), 16))
                    || listed.contains(&(opcode, Some(action.into()), 12));
                let task = run(unit, &cdb(16, &[(0, &[opcode, action]), (9, &[255])]));
                let refused = matches!(&task.action, Action::Complete(r)
                    if r.sense.and_then(|s| s.field).is_some_and(|f| f.in_cdb && f.byte == 1));
                assert_eq!(refused, !known, "{opcode:02X}h/{action:02X}h");
            }
        }
    }
}

/// Mostly zero: fields that are all random fail the first check.
fn byte(random: &mut Random) -> u8 {
    match random.below(8) {
        0 => random.bits() as u8,
        1 => random.below(4) as u8,
        2 => 1 << random.below(8),
        _ => 0,
    }
}

/// The bits of byte 1 that are accepted and change nothing: DPO, FUA of reads, IMMED of PRE-FETCH.
fn hints(opcode: u8) -> u8 {
    match opcode {
        0x28 | 0xA8 | 0x88 => 0x18,
        0x2A | 0xAA | 0x8A | 0x2E | 0xAE | 0x8E | 0x2F | 0xAF | 0x8F | 0x89 | 0x8B => 0x10,
        0x34 | 0x90 => 0x02,
        _ => 0,
    }
}

const SANITIZE: u8 = 0x48;
const COMPARE_AND_WRITE: u8 = 0x89;

#[test]
fn the_usage_data_says_which_bits_are_looked_at() {
    let (unit, mut random) = (unit_removable(), Random::new(1));
    for (code, action, len) in listed(&unit) {
        let [high, low] = action.unwrap_or(0).to_be_bytes();
        let option = if action.is_some() { 2 } else { 1 };
        let ask = cdb(12, &[(0, &[0xA3, 0x0C, option, code, high, low]), (9, &[0xFF])]);
        let mut usage = data(run(&unit, &ask))[4..].to_vec();
        if action.is_some() {
            // The service action stands there itself instead of a mask.
            usage[1] |= 0x1F;
        }
        let mut seen = vec![0; len];
        seen[0] = code;
        seen[1] = hints(code);
        for round in 0..2_000_000 {
            if round > 50_000 && seen == usage {
                break;
            }
            let mut cdb: Vec<u8> = (0..len).map(|_| byte(&mut random)).collect();
            cdb[0] = code;
            if action.is_some() {
                cdb[1] = cdb[1] & !0x1F | low;
            }
            // Each bit in turn, so that all get the same share.
            let bit = 8 + round % (8 * (len - 1));
            if code == SANITIZE {
                // What is reserved must be zero, or nothing else is looked at.
                cdb[1] &= !0x40;
                cdb[2..7].fill(0);
            }
            let mut other = cdb.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let expects = match code {
                COMPARE_AND_WRITE => 1024 * u32::from(cdb[13]),
                _ => [0, 512, 512, u32::MAX][random.bits() as usize % 4],
            };
            let tasks = [&cdb, &other].map(|cdb| run_expecting(&unit, cdb, u32::MAX, expects));
            if tasks[0] != tasks[1] {
                seen[bit / 8] |= 1 << (bit % 8);
            }
        }
        assert_eq!(seen, usage, "{code:02X}h: bits that matter, bits that are said to");
    }
}
