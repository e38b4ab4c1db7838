//! The machine against a kernel that does what the test says.

use lunet_block::ByteRange;

use super::*;

type Buf = Vec<u8>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Call {
    Read { at: u64, len: usize },
    Write { at: u64, range: Range<usize> },
    Sync,
    Punch { at: u64, len: u64 },
    Zero { at: u64, len: u64 },
    Discard { at: u64, len: u64 },
    Cancel,
}

#[derive(Default)]
struct Kernel {
    calls: Vec<(u32, Call)>,
    bufs: Vec<(u32, Buf)>,
    out_of_memory: bool,
}

impl DiskQueue<Buf> for Kernel {
    fn takes(&self, buf: &Buf, len: u64) -> bool {
        buf.len() as u64 >= len
    }
    fn read(&mut self, slot: u32, at: u64, buf: Buf, len: usize) {
        self.calls.push((slot, Call::Read { at, len }));
        self.bufs.push((slot, buf));
    }
    fn write(&mut self, slot: u32, at: u64, buf: Buf, range: Range<usize>) {
        self.calls.push((slot, Call::Write { at, range }));
        self.bufs.push((slot, buf));
    }
    fn sync_data(&mut self, slot: u32) {
        self.calls.push((slot, Call::Sync));
    }
    fn punch_hole(&mut self, slot: u32, at: u64, len: u64) {
        self.calls.push((slot, Call::Punch { at, len }));
    }
    fn zero_range(&mut self, slot: u32, at: u64, len: u64) {
        self.calls.push((slot, Call::Zero { at, len }));
    }
    fn discard(&mut self, slot: u32, at: u64, len: u64) {
        self.calls.push((slot, Call::Discard { at, len }));
    }
    fn cancel(&mut self, slot: u32) {
        self.calls.push((slot, Call::Cancel));
    }
    fn zeroes(&mut self) -> Option<Buf> {
        (!self.out_of_memory).then(|| vec![0; ZEROES])
    }
}

const ABLE: Abilities = Abilities {
    size: 1 << 40,
    read_only: false,
    write_cache: true,
    punch_hole: true,
    zero_range: true,
    discard: None,
};

struct Bench {
    machine: Machine<Buf>,
    kernel: Kernel,
}

impl Bench {
    fn new(able: Abilities) -> Self {
        Self { machine: Machine::new(able), kernel: Kernel::default() }
    }

    fn submit(&mut self, tag: u64, op: Op, range: ByteRange) -> Submit<Buf> {
        let data = matches!(op, Op::Read | Op::Write { .. });
        let buf = data.then(|| vec![0xAB; range.len as usize]);
        self.machine.submit(Request::new(tag, op, range, buf), &mut self.kernel)
    }

    fn queue(&mut self, op: Op, range: ByteRange) {
        assert!(matches!(self.submit(1, op, range), Submit::Queued), "{op:?}");
    }

    /// The only new call.
    #[track_caller]
    fn call(&mut self) -> (u32, Call) {
        assert_eq!(self.kernel.calls.len(), 1, "{:?}", self.kernel.calls);
        self.kernel.calls.remove(0)
    }

    /// Ends the operation of a slot.
    fn end(&mut self, slot: u32, result: Result<usize, i32>) -> Option<Completion<Buf>> {
        let at = self.kernel.bufs.iter().position(|(of, _)| *of == slot);
        let buf = at.map(|at| self.kernel.bufs.remove(at).1);
        self.machine.advance(IoDone { slot, buf, result }, &mut self.kernel)
    }

    /// The one operation must be this, and ends like that.
    #[track_caller]
    fn step(&mut self, expected: Call, result: Result<usize, i32>) -> Option<Completion<Buf>> {
        let (slot, call) = self.call();
        assert_eq!(call, expected);
        self.end(slot, result)
    }
}

fn errno(e: Errno) -> i32 {
    e.raw_os_error()
}

const RANGE: ByteRange = ByteRange::new(8192, 4096);

#[test]
fn a_read_is_one_operation() {
    let mut b = Bench::new(ABLE);
    b.queue(Op::Read, RANGE);
    let done = b.step(Call::Read { at: 8192, len: 4096 }, Ok(4096)).expect("the answer");
    assert_eq!((done.result, done.buf.map(|b| b.len())), (Ok(()), Some(4096)));
}

#[test]
fn a_short_read_is_done_again_and_the_end_of_the_file_is_an_error() {
    let mut b = Bench::new(ABLE);
    b.queue(Op::Read, RANGE);
    assert!(b.step(Call::Read { at: 8192, len: 4096 }, Ok(512)).is_none());
    assert!(b.step(Call::Read { at: 8192, len: 4096 }, Ok(1024)).is_none());
    let done = b.step(Call::Read { at: 8192, len: 4096 }, Ok(1024)).expect("no progress");
    assert_eq!(done.result, Err(Error::Io(errno(Errno::IO))));
    assert!(done.buf.is_some());
    b.queue(Op::Read, RANGE);
    let done = b.step(Call::Read { at: 8192, len: 4096 }, Ok(0)).expect("the end of the file");
    assert_eq!(done.result, Err(Error::Io(errno(Errno::IO))));
}

#[test]
fn a_short_write_goes_on_where_it_ended_and_an_interrupted_one_again() {
    let mut b = Bench::new(ABLE);
    b.queue(Op::Write { fua: false }, RANGE);
    assert!(b.step(Call::Write { at: 8192, range: 0..4096 }, Ok(1000)).is_none());
    assert!(b.step(Call::Write { at: 9192, range: 1000..4096 }, Err(errno(Errno::INTR))).is_none());
    let done = b.step(Call::Write { at: 9192, range: 1000..4096 }, Ok(3096)).expect("done");
    assert_eq!((done.result, done.buf.map(|b| b.len())), (Ok(()), Some(4096)));
}

#[test]
fn a_write_without_progress_ends() {
    let mut b = Bench::new(ABLE);
    b.queue(Op::Write { fua: false }, RANGE);
    let done = b.step(Call::Write { at: 8192, range: 0..4096 }, Ok(0)).expect("an answer");
    assert_eq!(done.result, Err(Error::Io(errno(Errno::IO))));
}

#[test]
fn fua_is_a_write_and_a_flush_where_there_is_a_cache() {
    let mut b = Bench::new(ABLE);
    b.queue(Op::Write { fua: true }, RANGE);
    assert!(b.step(Call::Write { at: 8192, range: 0..4096 }, Ok(4096)).is_none());
    let done = b.step(Call::Sync, Err(errno(Errno::IO))).expect("done");
    assert_eq!(done.result, Err(Error::NotStable(errno(Errno::IO))));
    assert!(done.buf.is_some(), "the buffer is kept while the flush runs");
    // What the write itself fails with loses nothing of others.
    b.queue(Op::Write { fua: true }, RANGE);
    let done = b.step(Call::Write { at: 8192, range: 0..4096 }, Err(errno(Errno::NOSPC)));
    assert_eq!(done.expect("done").result, Err(Error::OutOfSpace));
    b.queue(Op::Flush, RANGE);
    let done = b.step(Call::Sync, Err(errno(Errno::NOSPC))).expect("done");
    assert_eq!(done.result, Err(Error::NotStable(errno(Errno::NOSPC))));

    let mut b = Bench::new(Abilities { write_cache: false, ..ABLE });
    b.queue(Op::Write { fua: true }, RANGE);
    let done = b.step(Call::Write { at: 8192, range: 0..4096 }, Ok(4096)).expect("done");
    assert_eq!(done.result, Ok(()));
}

#[test]
fn zeroing_keeps_space_unless_it_may_be_given_back() {
    let mut b = Bench::new(ABLE);
    let (at, len) = (RANGE.offset, RANGE.len);
    for op in [Op::Unmap, Op::WriteZeroes { may_unmap: true }] {
        b.queue(op, RANGE);
        assert_eq!(b.step(Call::Punch { at, len }, Ok(0)).expect("done").result, Ok(()));
    }
    b.queue(Op::WriteZeroes { may_unmap: false }, RANGE);
    assert_eq!(b.step(Call::Zero { at, len }, Ok(0)).expect("done").result, Ok(()));
}

#[test]
fn a_long_range_is_zeroed_piece_by_piece() {
    let mut b = Bench::new(ABLE);
    let piece = ZEROING_STEP;
    b.queue(Op::Unmap, ByteRange::new(4096, 2 * piece + 512));
    assert!(b.step(Call::Punch { at: 4096, len: piece }, Ok(0)).is_none());
    assert!(b.step(Call::Punch { at: 4096 + piece, len: piece }, Ok(0)).is_none());
    let done = b.step(Call::Punch { at: 4096 + 2 * piece, len: 512 }, Ok(0));
    assert_eq!(done.expect("done").result, Ok(()));
}

#[test]
fn without_help_of_the_file_system_zeroes_are_written() {
    let mut b = Bench::new(ABLE);
    let range = ByteRange::new(4096, ZEROES as u64 + 512);
    b.queue(Op::Unmap, range);
    let punch = Call::Punch { at: 4096, len: range.len };
    assert!(b.step(punch, Err(errno(Errno::OPNOTSUPP))).is_none());
    let zero = Call::Zero { at: 4096, len: range.len };
    assert!(b.step(zero, Err(errno(Errno::OPNOTSUPP))).is_none());
    assert!(b.step(Call::Write { at: 4096, range: 0..ZEROES }, Ok(ZEROES)).is_none());
    let rest = Call::Write { at: 4096 + ZEROES as u64, range: 0..512 };
    assert_eq!(b.step(rest, Ok(512)).expect("done").result, Ok(()));
    // It is remembered.
    b.queue(Op::WriteZeroes { may_unmap: true }, RANGE);
    let write = Call::Write { at: 8192, range: 0..4096 };
    assert_eq!(b.step(write, Ok(4096)).expect("done").result, Ok(()));
}

#[test]
fn one_request_at_a_time_writes_zeroes() {
    let mut b = Bench::new(Abilities { punch_hole: false, zero_range: false, ..ABLE });
    b.machine.keep_zeroes(vec![0; ZEROES]);
    b.kernel.out_of_memory = true;
    for _ in 0..3 {
        b.queue(Op::Unmap, RANGE);
        let Submit::Busy(second) = b.submit(2, Op::Unmap, RANGE) else {
            panic!("the zeroes are lent");
        };
        assert_eq!(second.complete(Ok(())).tag, 2);
        let write = Call::Write { at: 8192, range: 0..4096 };
        let done = b.step(write, Err(errno(Errno::NOSPC))).expect("done");
        assert_eq!((done.result, done.buf), (Err(Error::OutOfSpace), None));
    }
}

#[test]
fn two_that_find_out_together_both_write_zeroes() {
    let mut b = Bench::new(ABLE);
    for tag in [1, 2, 3] {
        let op = Op::WriteZeroes { may_unmap: false };
        assert!(matches!(b.submit(tag, op, RANGE), Submit::Queued));
    }
    let slots: Vec<u32> = b.kernel.calls.drain(..).map(|(slot, _)| slot).collect();
    assert!(b.end(slots[0], Err(errno(Errno::OPNOTSUPP))).is_none());
    assert!(b.end(slots[1], Err(errno(Errno::OPNOTSUPP))).is_none());
    b.kernel.out_of_memory = true;
    let third = b.end(slots[2], Err(errno(Errno::OPNOTSUPP))).expect("no memory");
    assert_eq!(third.result, Err(Error::Io(errno(Errno::NOMEM))));
    for slot in [slots[0], slots[1]] {
        assert_eq!(b.end(slot, Ok(4096)).expect("done").result, Ok(()));
    }
    b.kernel.calls.clear();
    b.queue(Op::WriteZeroes { may_unmap: false }, RANGE);
    // The file system is not asked again, and the zeroes came back.
    let write = Call::Write { at: 8192, range: 0..4096 };
    assert_eq!(b.step(write, Ok(4096)).expect("done").result, Ok(()));
}

#[test]
fn a_cancelled_request_takes_no_further_step() {
    let mut b = Bench::new(ABLE);
    let canceled = errno(Errno::CANCELED);
    for op in [Op::Read, Op::Write { fua: true }, Op::Flush, Op::Unmap] {
        b.queue(op, RANGE);
        let (slot, _) = b.call();
        b.machine.cancel(1, &mut b.kernel);
        assert_eq!(b.call(), (slot, Call::Cancel));
        let done = b.end(slot, Err(canceled)).expect("an answer");
        assert_eq!(done.result, Err(Error::Cancelled), "{op:?}");
    }
    // The data is written: `Cancelled` would be wrong, and no flush follows.
    b.queue(Op::Write { fua: true }, RANGE);
    let (slot, _) = b.call();
    b.machine.cancel(1, &mut b.kernel);
    b.kernel.calls.clear();
    let done = b.end(slot, Ok(4096)).expect("an answer");
    assert_eq!(done.result, Err(Error::Io(canceled)));
    // Too late: it is done.
    b.queue(Op::Write { fua: false }, RANGE);
    let (slot, _) = b.call();
    b.machine.cancel(1, &mut b.kernel);
    assert_eq!(b.end(slot, Ok(4096)).expect("an answer").result, Ok(()));
    assert!(b.kernel.calls.iter().all(|(_, call)| *call == Call::Cancel));
}

#[test]
fn a_slot_number_is_not_used_again_soon() {
    let mut b = Bench::new(ABLE);
    b.queue(Op::Flush, RANGE);
    let (first, _) = b.call();
    assert!(b.end(first, Ok(0)).is_some());
    b.queue(Op::Flush, RANGE);
    let (second, _) = b.call();
    assert_ne!(first, second);
    assert!(b.end(first, Ok(0)).is_none(), "not the end of this one");
    assert!(b.end(second, Ok(0)).is_some());
}

#[test]
fn a_full_channel_is_busy_until_something_ends() {
    let mut b = Bench::new(ABLE);
    for tag in 0..CAPACITY as u64 {
        assert!(matches!(b.submit(tag, Op::Flush, RANGE), Submit::Queued), "{tag}");
    }
    let Submit::Busy(request) = b.submit(9999, Op::Read, RANGE) else { panic!("not busy") };
    let done = request.complete(Err(Error::Cancelled));
    assert!(done.buf.is_some());
    let slot = b.kernel.calls[CAPACITY / 2].0;
    assert!(b.end(slot, Ok(0)).is_some());
    assert!(matches!(b.submit(9999, Op::Read, RANGE), Submit::Queued));
    for slot in b.kernel.calls.iter().map(|(slot, _)| *slot).collect::<Vec<_>>() {
        let answered = b.end(slot, Ok(4096)).is_some();
        assert!(answered || slot == b.kernel.calls[CAPACITY / 2].0);
    }
}

#[test]
fn what_cannot_be_done_is_answered_without_the_kernel() {
    let mut b = Bench::new(Abilities { size: 16384, read_only: true, ..ABLE });
    let mut answer = |op, range| match b.submit(1, op, range) {
        Submit::Done(done) => Some(done.result),
        Submit::Queued | Submit::Busy(_) => None,
    };
    let write = Op::Write { fua: false };
    let zeroes = Op::WriteZeroes { may_unmap: true };
    for op in [write, Op::Unmap, zeroes] {
        assert_eq!(answer(op, RANGE), Some(Err(Error::ReadOnly)));
    }
    assert_eq!(answer(Op::Flush, RANGE), Some(Ok(())));
    let beyond = ByteRange::new(16384 - 512, 1024);
    assert_eq!(answer(Op::Read, beyond), Some(Err(Error::OutOfRange)));
    let wraps = ByteRange::new(u64::MAX - 511, 1024);
    assert_eq!(answer(Op::Read, wraps), Some(Err(Error::OutOfRange)));
    assert_eq!(answer(Op::ReadMapped, RANGE), Some(Err(Error::Unsupported)));
    let short = Request::new(1, Op::Read, RANGE, Some(vec![0; 512]));
    let Submit::Done(done) = b.machine.submit(short, &mut b.kernel) else { panic!("accepted") };
    assert_eq!((done.result, done.buf.is_some()), (Err(Error::Unsupported), true));
    assert!(b.kernel.calls.is_empty());
}

const DISCARDING: Abilities = Abilities {
    punch_hole: false,
    discard: Some(Discard { granularity: 16384, first: 4096, zeroes: true, works: true }),
    ..ABLE
};

#[test]
fn what_a_discard_would_leave_is_zeroed() {
    // Whole units start at 4096 + n * 16384.
    let cases = [
        (4096, 16384, vec![Call::Discard { at: 4096, len: 16384 }]),
        (0, 4096, vec![Call::Zero { at: 0, len: 4096 }]),
        (8192, 4096, vec![Call::Zero { at: 8192, len: 4096 }]),
        (
            0,
            65536,
            vec![
                Call::Zero { at: 0, len: 4096 },
                Call::Discard { at: 4096, len: 49152 },
                Call::Zero { at: 53248, len: 12288 },
            ],
        ),
        (
            4096,
            ZEROING_STEP + 16384,
            vec![
                Call::Discard { at: 4096, len: ZEROING_STEP },
                Call::Discard { at: 4096 + ZEROING_STEP, len: 16384 },
            ],
        ),
    ];
    for (at, len, calls) in cases {
        for op in [Op::Unmap, Op::WriteZeroes { may_unmap: true }] {
            let mut b = Bench::new(DISCARDING);
            b.queue(op, ByteRange::new(at, len));
            let last = calls.len() - 1;
            for (i, call) in calls.iter().enumerate() {
                let done = b.step(call.clone(), Ok(0));
                assert_eq!(done.map(|d| d.result), (i == last).then_some(Ok(())), "{call:?}");
            }
        }
    }
    let mut b = Bench::new(DISCARDING);
    b.queue(Op::WriteZeroes { may_unmap: false }, ByteRange::new(4096, 16384));
    assert!(b.step(Call::Zero { at: 4096, len: 16384 }, Ok(0)).is_some(), "space must stay");
}

#[test]
fn a_discard_that_promises_nothing_goes_down_as_it_is() {
    let discard = Discard { granularity: 16384, first: 0, zeroes: false, works: true };
    let able = Abilities { discard: Some(discard), ..DISCARDING };
    let mut b = Bench::new(able);
    b.queue(Op::Unmap, RANGE);
    let done = b.step(Call::Discard { at: 8192, len: 4096 }, Ok(0)).expect("done");
    assert_eq!(done.result, Ok(()));
    b.queue(Op::WriteZeroes { may_unmap: true }, RANGE);
    assert!(b.step(Call::Zero { at: 8192, len: 4096 }, Ok(0)).is_some(), "must be zeroes");
    // The device changes its mind: that is no failure.
    b.queue(Op::Unmap, RANGE);
    let refused = Err(errno(Errno::OPNOTSUPP));
    let done = b.step(Call::Discard { at: 8192, len: 4096 }, refused).expect("done");
    assert_eq!(done.result, Ok(()));
    let Submit::Done(done) = b.submit(1, Op::Unmap, RANGE) else { panic!("tried once more") };
    assert_eq!(done.result, Ok(()));
}

#[test]
fn a_discard_that_is_refused_becomes_zeroes_where_they_are_promised() {
    let mut b = Bench::new(DISCARDING);
    b.queue(Op::Unmap, ByteRange::new(4096, 16384));
    let refused = Err(errno(Errno::OPNOTSUPP));
    assert!(b.step(Call::Discard { at: 4096, len: 16384 }, refused).is_none());
    assert!(b.step(Call::Zero { at: 4096, len: 16384 }, refused).is_none());
    let zeroes = Call::Write { at: 4096, range: 0..16384 };
    assert!(b.step(zeroes, Ok(16384)).is_some());
}
