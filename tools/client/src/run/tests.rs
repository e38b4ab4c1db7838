//! The load loop on a protocol that exists in memory only.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use lunet_ring::{Arena, Buf};

use super::data::Pattern;
use super::job::{Job, Load, Parts, Phase};
use crate::front::{
    Action, Command, Connection, Cx, Data, Ending, Event, Geometry, Outgoing, StreamConnection,
};
use crate::layout::{Layout, Picker};
use crate::outcome::Kind;
use crate::verify::{Fault, Ledger};
use crate::workload::{OnError, Verify, Workload};

const BLOCK: usize = 512;
const VOLUME: Geometry =
    Geometry { blocks: 2048, block_size: BLOCK as u32, max_transfer: None, read_only: false };

/// What a volume does with one command instead of what it should.
type Instead = fn(u64, &Command) -> Option<Ending<&'static str>>;

/// A connection to a volume in memory. Commands wait until [`Memory::answer`] carries them out.
struct Memory {
    bytes: Vec<u8>,
    pending: VecDeque<Command>,
    /// Commands carried out, those with another ending included.
    answered: u64,
    instead: Instead,
    window: u32,
    deepest: usize,
    flushes: u64,
}

impl Memory {
    /// Carries out the newest command or the oldest, in turn.
    fn answer(&mut self) -> Option<Event<&'static str>> {
        let newest = self.answered % 2 == 1;
        let command = if newest { self.pending.pop_back() } else { self.pending.pop_front() }?;
        let other = (self.instead)(self.answered, &command);
        self.answered += 1;
        let at = command.lba as usize * BLOCK;
        let own = &mut self.bytes[at..at + command.blocks as usize * BLOCK];
        let mut data = command.data;
        let ending = other.unwrap_or_else(|| match (command.action, &mut data) {
            (Action::Read, Data::Read(buf)) => {
                buf.copy_from_slice(own);
                Ending::Done(own.len() as u32)
            }
            (Action::Read, Data::Discard(len)) => Ending::Done(*len),
            (Action::Write { .. }, Data::Write(source)) => {
                own.copy_from_slice(source.as_ref());
                Ending::Done(0)
            }
            (Action::Flush, Data::None) => {
                self.flushes += 1;
                Ending::Done(0)
            }
            (action, data) => panic!("{action:?} with {data:?}"),
        });
        Some(Event::Ended { token: command.token, data, ending })
    }
}

impl Connection for Memory {
    type SubmitError = Infallible;
    type Failure = &'static str;
    type Raw = Event<&'static str>;
    type Out = Outgoing;

    fn window(&self) -> u32 {
        self.window - self.pending.len() as u32
    }

    fn submit(&mut self, command: Command, out: &mut Outgoing) -> Result<(), Infallible> {
        out.bytes(&[0]);
        self.pending.push_back(command);
        self.deepest = self.deepest.max(self.pending.len());
        Ok(())
    }

    fn closed(&mut self, events: &mut Vec<Self::Raw>) {
        for command in self.pending.drain(..) {
            let (token, data, ending) = (command.token, command.data, Ending::Failed("lost"));
            events.push(Event::Ended { token, data, ending });
        }
        events.push(Event::Failed("the cable is out".into()));
    }

    fn leave(&mut self, _: Duration, _: &mut Outgoing) -> bool {
        false
    }

    fn event(raw: Self::Raw) -> Option<Event<&'static str>> {
        Some(raw)
    }
}

impl StreamConnection for Memory {
    const COMMAND_LEN: usize = 1;

    fn discardable(&self) -> usize {
        0
    }

    fn discarded(&mut self, n: usize, _: &mut Cx<'_, Self::Raw>) {
        panic!("{n} bytes were thrown away");
    }

    fn take_room(&mut self) -> Option<(Buf, Range<usize>)> {
        None
    }

    fn filled(&mut self, _: Buf, range: Range<usize>, _: usize, _: &mut Cx<'_, Self::Raw>) {
        panic!("{range:?} was not lent");
    }

    /// Each byte is the answer to a command.
    fn received(&mut self, bytes: &[u8], cx: &mut Cx<'_, Self::Raw>) {
        cx.events.extend(bytes.iter().map_while(|_| self.answer()));
    }

    fn has_data_digest(&self) -> bool {
        false
    }
}

/// A load of one MiB in blocks of 4 KiB.
fn mib() -> Workload {
    Workload { runtime: None, size: Some(1 << 20), depth: 8, ..Workload::new(4096) }
}

fn job(workload: &Workload, instead: Instead) -> Job<Memory> {
    workload.check(&VOLUME).expect("it can be run");
    let parts = Layout::new(workload, &VOLUME).expect("a layout").jobs[0].clone();
    let load = Load {
        block_size: VOLUME.block_size,
        depth: workload.depth,
        largest: workload.largest(),
        keeps_data: workload.keeps_data(),
        fua: workload.fua,
        flush_every: workload.flush_every,
        on_error: workload.on_error,
        read_back: workload.verify.is_some_and(|verify| verify.read_back),
        command_timeout: Duration::from_secs(1),
        size: workload.size,
    };
    let connection = Memory {
        bytes: vec![0; VOLUME.bytes() as usize],
        pending: VecDeque::new(),
        answered: 0,
        instead,
        window: 6,
        deepest: 0,
        flushes: 0,
    };
    Job::new(Parts {
        number: 0,
        load: Rc::new(load),
        connection,
        picker: Picker::new(workload, VOLUME.block_size, parts.clone(), 0),
        pattern: Pattern::new(workload.largest() as usize, 1),
        ledger: workload.verify.map(|_| Ledger::new(parts, 7, VOLUME.block_size, 8)),
        pacer: None,
    })
}

/// One iteration of the loop: sends, and receives at most three answers.
fn iterate(job: &mut Job<Memory>, arena: &Arena, now: Duration) {
    job.top_up(now, arena, true);
    job.out.0.clear();
    job.advance(now);
    job.arrived(now, |connection, cx| connection.received(&[0; 3], cx));
    job.check_timeout(now);
}

/// Runs the load to its end; how long it took, with a millisecond for each iteration.
fn run(job: &mut Job<Memory>) -> Duration {
    let arena = Arena::new(1 << 20).expect("memory");
    let mut now = Duration::ZERO;
    while job.phase != Phase::Over {
        iterate(job, &arena, now);
        now += Duration::from_millis(1);
        assert!(now < Duration::from_secs(60), "the load does not end");
    }
    job.end_second(false, &mut crate::outcome::Work::default());
    now
}

#[test]
fn a_load_moves_what_it_should_within_depth_and_window() {
    let workload = Workload { reads_percent: 50, flush_every: Some(16), ..mib() };
    let mut job = job(&workload, |_, _| None);
    run(&mut job);
    let Job { total, connection, failed, .. } = job;
    assert_eq!((total.operations(), total.bytes(), failed), (256, 1 << 20, None));
    assert_eq!(connection.deepest, 6, "the window is smaller than the depth");
    assert_eq!(
        (total.flush.operations, connection.flushes),
        (total.write.operations / 16, total.write.operations / 16)
    );
    assert_eq!(total.read.latency.count() + total.write.latency.count(), 256);
}

#[test]
fn what_was_written_is_read_back_and_a_lost_write_is_named() {
    let workload = Workload { reads_percent: 30, verify: Some(Verify::default()), ..mib() };
    let mut right = job(&workload, |_, _| None);
    run(&mut right);
    let found = right.ledger.expect("it verifies").outcome;
    assert!(found.checked > 0 && !found.incomplete);
    assert_eq!((found.wrong(), right.failed), (0, None));

    let lost: Instead = |_, command| {
        let write = matches!(command.action, Action::Write { .. });
        (write && command.lba == 8 * 100).then_some(Ending::Done(0))
    };
    let workload =
        Workload { reads_percent: 0, order: crate::workload::Order::Sequential, ..workload };
    let mut wrong = job(&workload, lost);
    run(&mut wrong);
    let found = wrong.ledger.expect("it verifies").outcome;
    assert_eq!(
        found.findings.iter().map(|f| (f.fault, f.lba, f.blocks)).collect::<Vec<_>>(),
        [(Fault::Lost, 800, 8)]
    );
}

#[test]
fn a_busy_volume_is_asked_again_later_and_an_attention_at_once() {
    let one_by_one = Workload { depth: 1, ..mib() };
    let mut at_once = job(&one_by_one, |n, _| (n < 5).then_some(Ending::Again));
    let quick = run(&mut at_once);
    let mut later = job(&one_by_one, |n, _| (n < 5).then_some(Ending::Busy));
    let slow = run(&mut later);
    for job in [&at_once, &later] {
        assert_eq!((job.total.operations(), job.total.retries, job.total.errors), (256, 5, 0));
    }
    // Five pauses of 10 ms, in iterations of one.
    assert!(slow >= quick + Duration::from_millis(45), "{slow:?} {quick:?}");
}

#[test]
fn errors_end_the_load_or_are_counted_by_kind() {
    let broken: Instead = |n, _| match n {
        10 | 20 => Some(Ending::Failed("medium error")),
        30 => Some(Ending::Done(100)),
        _ => None,
    };
    let mut stopped = job(&mib(), broken);
    run(&mut stopped);
    let reason = stopped.failed.expect("it has failed");
    assert!(
        reason.starts_with("a read at LBA ") && reason.ends_with(" failed: medium error"),
        "{reason}"
    );
    assert!(stopped.total.operations() < 40);

    let mut counted = job(&Workload { on_error: OnError::Continue, ..mib() }, broken);
    run(&mut counted);
    assert_eq!((counted.total.operations(), counted.total.errors, counted.failed), (253, 3, None));
    let errors = counted.errors.into_counts();
    let told: Vec<_> = errors.iter().map(|e| (e.kind, e.failure.as_str(), e.count)).collect();
    let short = "less data was read than was asked for";
    assert_eq!(told, [(Kind::Read, "medium error", 2), (Kind::Read, short, 1)]);
}

#[test]
fn a_closed_transport_ends_the_load_with_its_reason() {
    let mut job = job(&mib(), |_, _| None);
    let arena = Arena::new(1 << 20).expect("memory");
    iterate(&mut job, &arena, Duration::ZERO);
    job.closed(Duration::ZERO);
    assert_eq!((job.phase, job.failed.as_deref()), (Phase::Over, Some("the cable is out")));
    assert!(job.slots.is_empty());
}

#[test]
fn a_command_without_an_answer_ends_the_load() {
    let mut job = job(&mib(), |_, _| None);
    let arena = Arena::new(1 << 20).expect("memory");
    job.top_up(Duration::ZERO, &arena, true);
    job.check_timeout(Duration::from_millis(1001));
    let reason = job.failed.expect("it has given up");
    assert!(reason.contains("was not answered for 1 s"), "{reason}");
}
