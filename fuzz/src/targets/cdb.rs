//! Any command blocks and parameter lists of several initiators at a logical unit.
use std::time::Duration;

use crate::Input;
use lunet_block::{BlockRange, Caps, Support};
use lunet_reservations::{Event, MAX_REGISTRATIONS, Reservations};
use lunet_scsi::alua::{AccessState, PortGroup, PortGroups};
use lunet_scsi::copy;
use lunet_scsi::reserve::{
    InitiatorPort, LiveNexus, NexusId, Port, Request, Seat, Seats, TargetPort,
};
use lunet_scsi::unit::MAX_PARAMETER_LIST;
use lunet_scsi::{
    Action, Attention, Code, CommandIn, Identity, Key, Nexus, Parameters, Reply, Sense, Target,
    Unit, execute, parameters,
};

const ATTENTIONS: [Attention; 3] =
    [Attention::PowerOn, Attention::BusDeviceReset, Attention::ReportedLunsChanged];

fn unit(kind: u8) -> Option<Unit> {
    if kind & 0x0f == 0x0f {
        return None;
    }
    let support = |bit: u8| if kind & bit != 0 { Support::Native } else { Support::None };
    let block_size = if kind & 1 != 0 { 4096 } else { 512 };
    let caps = Caps {
        block_size,
        physical_block_size: 4096,
        // Beyond what 32 bits of a READ CAPACITY (10) hold, or small.
        blocks: if kind & 2 != 0 { 1 << 40 } else { 2048 },
        read_only: kind & 4 != 0,
        write_cache: kind & 8 != 0,
        fua: support(0x10),
        write_zeroes: support(0x20),
        unmap: support(0x40),
        unmap_zeroes: true,
        unmap_granularity: 4096,
        mapped_reads: false,
        alignment: block_size,
    };
    Some(Unit::new(Identity::from_seed("fuzz"), caps))
}

fn check_range(unit: Option<&Unit>, range: BlockRange) {
    let unit = unit.expect("a range without a unit");
    assert!(range.blocks > 0 && range.fits(unit.caps.blocks), "{range:?}");
}

fn check_reply(reply: &Reply) {
    assert_eq!(reply.sense.is_some(), reply.status == lunet_scsi::status::CHECK_CONDITION);
    if let Some(sense) = &reply.sense {
        for format in [lunet_scsi::SenseFormat::Fixed, lunet_scsi::SenseFormat::Descriptor] {
            assert!(!sense.encode(format).is_empty());
        }
    }
}

/// Checks what an action promises; gives the parameter list that it asks for.
fn check_action(unit: Option<&Unit>, action: &Action) -> Option<Parameters> {
    match action {
        Action::Complete(reply) => check_reply(reply),
        Action::Read { range, .. }
        | Action::Verify { range, .. }
        | Action::Prefetch { range, .. }
        | Action::LbaStatus { range, .. }
        | Action::Flush { range, .. } => check_range(unit, *range),
        Action::Write { range, .. }
        | Action::WriteSame { range, .. }
        | Action::Exclusive { range, .. } => {
            check_range(unit, *range);
            assert!(unit.is_some_and(|unit| !unit.caps.read_only));
        }
        Action::Unmap(ranges) => {
            assert!(!ranges.is_empty() && ranges.len() <= 4096);
            ranges.iter().for_each(|range| check_range(unit, *range));
        }
        Action::Parameters(wanted) => {
            assert!((1..=MAX_PARAMETER_LIST).contains(&wanted.len));
            return Some(*wanted);
        }
        Action::Copy(request) => check_copy(unit, request),
        Action::Reservation(_)
        | Action::PortGroups(_)
        | Action::Power(_)
        | Action::PreventRemoval(_)
        | Action::Sanitize(_)
        | Action::Modes(_) => {}
    }
    None
}

/// What a copy names of the unit lies on it, whoever the other party is.
fn check_copy(unit: Option<&Unit>, request: &copy::Request) {
    let own = unit.expect("a copy without a unit");
    match request {
        copy::Request::Extended(extended) => {
            for index in 0..extended.segments() {
                let step = extended.step(index, |name| {
                    let here = name.is_none_or(|name| name.names(&own.identity));
                    here.then_some(((), own))
                });
                if let Ok(Some(step)) = step {
                    assert!(step.from.len > 0 && step.from.len == step.to.len);
                    assert!(
                        step.from.end() <= own.caps.bytes() && step.to.end() <= own.caps.bytes()
                    );
                }
            }
        }
        copy::Request::Populate(populate) => {
            populate.ranges.iter().for_each(|range| check_range(unit, *range));
        }
        copy::Request::WriteUsing(write) => {
            write.ranges.iter().for_each(|range| check_range(unit, *range));
            let rod = copy::Rod { ranges: write.ranges.clone(), block_size: 512 };
            let pieces = write.pieces(&rod, own.caps.block_size).unwrap_or_default();
            assert!(
                pieces.iter().all(|p| p.from.len == p.to.len && p.to.end() <= own.caps.bytes())
            );
        }
        copy::Request::Query(_) | copy::Request::Abort { .. } => {}
    }
}

/// The copies of one initiator, as they begin, end and are asked for.
#[derive(Default)]
struct Copies {
    operations: copy::Operations,
    now: Duration,
    running: Vec<u64>,
}

impl Copies {
    fn request(&mut self, request: &copy::Request, unit: &Unit, control: u8) {
        self.now += Duration::from_secs(u64::from(control >> 4));
        let (list, action, background) = match request {
            copy::Request::Query(query) => {
                let formats = [lunet_scsi::SenseFormat::Fixed, lunet_scsi::SenseFormat::Descriptor];
                let format = formats[usize::from(control & 1)];
                let reply = self.operations.query(0, *query, format, self.now);
                check_reply(&reply);
                assert!(reply.data.len() <= query.allocation as usize);
                return;
            }
            copy::Request::Abort { list } => {
                if let Ok(Some(id)) = self.operations.abort(0, *list) {
                    assert!(self.running.contains(&id));
                    self.end(id, copy::Outcome::Aborted);
                }
                return;
            }
            copy::Request::Extended(copy) => (copy.list, copy.action, copy.immediate),
            copy::Request::Populate(populate) => {
                (Some(populate.list), copy::action::POPULATE_TOKEN, false)
            }
            copy::Request::WriteUsing(write) => {
                (Some(write.list), copy::action::WRITE_USING_TOKEN, write.immediate)
            }
        };
        let block_size = unit.caps.block_size;
        let origin = copy::Origin { unit: 0, list, action, background, block_size };
        let Ok(id) = self.operations.begin(origin, self.now) else { return };
        self.running.push(id);
        assert!(self.running.len() <= copy::MAX_COPIES);
        self.operations.advance(id, u16::from(control), u64::from(control) << 28, 1);
        let sense = Sense::new(Key::CopyAborted, Code::UNREACHABLE_COPY_TARGET);
        match control >> 4 & 3 {
            0 => {
                let secret = [control; copy::RodToken::SECRET];
                self.operations.made(id, copy::RodToken::new(unit, &target(vec![]), 512, &secret));
                self.end(id, copy::Outcome::Done);
            }
            1 => self.end(id, copy::Outcome::Failed(sense)),
            2 => self.end(id, copy::Outcome::Partial),
            _ => {}
        }
    }

    fn end(&mut self, id: u64, outcome: copy::Outcome) {
        self.running.retain(|other| *other != id);
        self.operations.end(id, outcome, self.now);
    }
}

/// The initiators at the unit, and what they reserve of it.
struct Initiators {
    reservations: Reservations,
    seats: Seats,
    nexuses: Vec<(Seat, Nexus)>,
}

impl Initiators {
    fn new() -> Self {
        let port = |tag| TargetPort { target: NAME.into(), tag };
        let ports = vec![Port { name: port(1), relative: 1 }, Port { name: port(2), relative: 3 }];
        let mut seats = Seats::new(ports);
        let nexuses = (0..3u16).map(|number| {
            let name = format!("iqn.2026-11.local.lunet:i{}", number / 2);
            let initiator = InitiatorPort { name, isid: [0x80, 0, 0, 0, 0, number as u8] };
            let nexus = NexusId { initiator, port: port(1 + number % 2) };
            (seats.attach(LiveNexus::new(nexus)), Nexus::new())
        });
        let nexuses = nexuses.collect();
        Self { reservations: Reservations::new(true), seats, nexuses }
    }

    /// The nexus with this number, up to date.
    fn nexus(&mut self, number: usize) -> &mut Nexus {
        let number = number % self.nexuses.len();
        let (seat, nexus) = &mut self.nexuses[number];
        let seen = 1 + self.reservations.changes() + self.seats.changes();
        self.seats.refresh(*seat, &self.reservations, seen, nexus);
        nexus
    }

    fn request(&mut self, number: usize, request: &Request) {
        let (seat, _) = self.nexuses[number % self.nexuses.len()];
        let nexus = self.seats.nexus(seat).expect("it has its seat");
        let outcome = request.execute(&mut self.reservations, nexus, self.seats.ports());
        check_reply(&outcome.reply);
        assert!(Event::aborted(&outcome.events).count() <= MAX_REGISTRATIONS);
        self.seats.tell(&outcome.events);
        // Whoever has registered is one of SCSI's.
        let registered = self.reservations.registrations();
        assert!(registered.iter().all(|r| NexusId::of(&r.registrant).is_some()));
        // What is to survive a power loss can be read again, and is the same then.
        let Some(saved) = self.reservations.saved() else { return };
        assert!(saved.registrations.len() <= MAX_REGISTRATIONS);
        let mut again = Reservations::new(true);
        assert_eq!(again.restore(saved.clone()), Ok(()));
        assert_eq!(again.saved(), Some(saved));
    }
}

const NAME: &str = "iqn.2026-11.local.lunet:fuzz";

fn target(luns: Vec<u16>) -> Target {
    let groups =
        [1, 2].map(|tag| PortGroup { tag, state: AccessState::Optimized, preferred: false });
    let groups = PortGroups::new(groups.to_vec()).expect("not too many");
    Target {
        name: NAME.to_string(),
        portal_group_tag: 1,
        relative_port: 1,
        several_ports: true,
        groups,
        group: 0,
        luns,
    }
}

/// One input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let unit = unit(input.byte());
    let unit = unit.as_ref();
    let mut initiators = Initiators::new();
    let mut copies = Copies::default();
    let target = target((0..u16::from(input.byte())).map(|lun| lun * 7).collect());
    while !input.is_empty() {
        let control = input.byte();
        let len = match control & 3 {
            0 => 6,
            1 => 10,
            2 => 16,
            _ => 32,
        };
        let mut cdb = input.take(len).to_vec();
        // As the transport hands it over: 16 bytes at least.
        cdb.resize(len.max(16), 0);
        let sender = usize::from(control >> 4 & 3);
        let nexus = initiators.nexus(sender);
        if control & 4 != 0 {
            nexus.establish(ATTENTIONS[usize::from(control >> 6) % ATTENTIONS.len()]);
        }
        let (expects_read, expects_write) = match control & 8 {
            0 => (u32::MAX, u32::MAX),
            _ => (input.long(), input.long()),
        };
        let command = CommandIn { cdb: &cdb, expects_read, expects_write };
        let task = execute(&target, unit, Some(nexus), &command);
        if let Action::Complete(reply) = &task.action {
            assert!(reply.data.len() as u64 <= task.transfer.data_in);
        }
        let mut action = task.action;
        if let (Some(wanted), Some(unit)) = (check_action(unit, &action), unit) {
            let list = usize::from(input.short());
            action = parameters(unit, wanted, input.take(list));
            assert!(check_action(Some(unit), &action).is_none());
        }
        if let (Action::PortGroups(request), Some(unit)) = (&action, unit) {
            let done = target.groups.execute(&unit.state.access, initiators.seats.ports(), request);
            check_reply(&done.reply);
        }
        if let (Action::Copy(request), Some(unit)) = (&action, unit) {
            copies.request(request, unit, control);
        }
        if let Action::Reservation(request) = &action {
            initiators.request(sender, request);
        }
    }
}
