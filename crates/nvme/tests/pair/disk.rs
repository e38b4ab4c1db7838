//! The layer above the controller: a disk that does its work in any order.

use std::rc::Rc;

use lunet_block::Random;
use lunet_nvme::command::{Completion, Fuse, Io};
use lunet_nvme::controller::{Command, Connection, Event, Site, Tag};
use lunet_nvme::status::Status;
use lunet_nvme::transmit::Transmit;

use crate::world::Bytes;

/// Bytes of a block.
pub const BLOCK: usize = 512;
/// Blocks of the disk.
pub const BLOCKS: usize = 512;

/// Buffers, which may be short.
#[derive(Default)]
pub struct TestSite {
    /// There are none.
    pub short: bool,
    /// Buffers of receives that were kept.
    pub kept: u32,
}

impl Site for TestSite {
    type Buf = Vec<u8>;

    fn alloc(&mut self, len: usize) -> Option<Vec<u8>> {
        assert!(len > 0 && len <= 16_384);
        (!self.short).then(|| vec![0xaa; len])
    }

    fn keep(&mut self, buf: &mut Vec<u8>) -> bool {
        assert!(buf.len() <= 16_384);
        self.kept += u32::from(!self.short);
        !self.short
    }
}

/// A command at work.
struct Work {
    tag: Tag,
    io: Io,
    /// Data of a write that came.
    data: Vec<u8>,
    came: usize,
    asked: usize,
    expects: usize,
    /// Bytes of a read that were sent.
    sent: usize,
    /// How it is to be completed, whatever it is.
    status: Option<Status>,
}

pub struct Disk {
    pub bytes: Vec<u8>,
    work: Vec<Work>,
    random: Random,
    /// Commands that came.
    pub commands: usize,
    /// The last event was the first command of a pair.
    first: bool,
    /// Pairs that came.
    pub pairs: usize,
    /// Percentage of writes that fail while their data is still to come.
    pub fails: u64,
    /// Most bytes that are asked for at once.
    pub chunk: usize,
}

fn bounds(io: &Io) -> Option<(usize, usize)> {
    match io {
        Io::Read { range, .. } | Io::Write { range, .. } | Io::Compare { range } => {
            let at = range.lba as usize * BLOCK;
            Some((at, range.blocks as usize * BLOCK))
        }
        _ => None,
    }
}

impl Disk {
    pub fn new(mut random: Random) -> Self {
        let mut bytes = vec![0; BLOCK * BLOCKS];
        random.fill(&mut bytes);
        Self {
            bytes,
            work: Vec::new(),
            random,
            commands: 0,
            first: false,
            pairs: 0,
            fails: 0,
            chunk: usize::MAX,
        }
    }

    pub fn handle<T: Transmit<Payload = Bytes>>(
        &mut self,
        event: Event<Vec<u8>>,
        end: &mut Connection<Vec<u8>>,
        tx: &mut T,
    ) {
        match event {
            Event::Command(command) => self.command(command, end, tx),
            Event::Data { tag, offset, len, buf } => {
                let work = self.work.iter_mut().find(|work| work.tag == tag).expect("a command");
                assert_eq!(buf.len(), len as usize);
                work.data[offset as usize..(offset + len) as usize].copy_from_slice(&buf);
                work.came += buf.len();
            }
            Event::TransferFailed { tag } => {
                self.work.retain(|work| work.tag != tag);
                end.complete(tag, Status::TRANSPORT.into(), tx);
            }
            Event::Connect(_) | Event::Close(_) => unreachable!("the world's"),
        }
    }

    fn command<T: Transmit<Payload = Bytes>>(
        &mut self,
        command: Command<Vec<u8>>,
        end: &mut Connection<Vec<u8>>,
        tx: &mut T,
    ) {
        self.commands += 1;
        assert_eq!(self.first, command.fuse == Fuse::Second, "a pair was torn");
        self.first = command.fuse == Fuse::First;
        self.pairs += usize::from(self.first);
        let tag = command.tag;
        let io = match Io::decode(&command.sqe) {
            Ok(io) => io,
            Err(status) => return end.complete(tag, status.into(), tx),
        };
        let expects = command.expects_write as usize;
        if let Some((at, len)) = bounds(&io) {
            if at + len > self.bytes.len() {
                return end.complete(tag, Status::LBA_RANGE.no_retry().into(), tx);
            }
            if len != expects + command.expects_read as usize {
                return end.complete(tag, Status::DATA_LENGTH.no_retry().into(), tx);
            }
        }
        let mut data = vec![0; expects];
        let came = command.data.map_or(0, |(buf, range)| {
            assert_eq!(range.len(), expects);
            data.copy_from_slice(&buf[range]);
            expects
        });
        let status =
            (expects > came && self.random.chance(self.fails)).then_some(Status::WRITE_FAULT);
        self.work.push(Work { tag, io, data, came, asked: came, expects, sent: 0, status });
    }

    /// Does something. False if there is nothing to do.
    pub fn work<T: Transmit<Payload = Bytes>>(
        &mut self,
        end: &mut Connection<Vec<u8>>,
        tx: &mut T,
    ) -> bool {
        if self.work.is_empty() {
            return false;
        }
        let index = self.random.below(self.work.len() as u64) as usize;
        let moved = self.work_on(index, end, tx);
        moved || (0..self.work.len()).any(|index| self.work_on(index, end, tx))
    }

    fn work_on<T: Transmit<Payload = Bytes>>(
        &mut self,
        index: usize,
        end: &mut Connection<Vec<u8>>,
        tx: &mut T,
    ) -> bool {
        let Self { work: list, bytes, random, chunk, .. } = self;
        let work = &mut list[index];
        let tag = work.tag;
        let completion = match (&work.io, work.status) {
            (_, Some(status)) if work.asked > 0 => Completion::from(status),
            (Io::Read { .. }, _) => {
                let (at, len) = bounds(&work.io).expect("a range");
                let n = (1 + random.below(len as u64) as usize).min(len - work.sent);
                let from = at + work.sent;
                work.sent += n;
                let last = work.sent == len;
                // A buffer that has more than is sent.
                let payload = Bytes(Rc::from(&bytes[at..]));
                let range = from - at..from - at + n;
                let last = last.then_some(Completion::SUCCESS);
                if last.is_some() {
                    list.swap_remove(index);
                }
                end.send_data(tag, payload, range, last, tx);
                return true;
            }
            _ if work.asked < work.expects => {
                let n =
                    (1 + random.below(work.expects as u64) as usize).min(work.expects - work.asked);
                let n = n.min(*chunk);
                let offset = work.asked as u32;
                work.asked += n;
                end.solicit(tag, offset, n as u32, vec![0; n], tx);
                return true;
            }
            _ if work.came < work.expects => return false,
            (Io::Write { .. }, _) => {
                let (at, len) = bounds(&work.io).expect("a range");
                bytes[at..at + len].copy_from_slice(&work.data);
                Completion::SUCCESS
            }
            (Io::Compare { .. }, _) => {
                let (at, len) = bounds(&work.io).expect("a range");
                match bytes[at..at + len] == work.data[..] {
                    true => Completion::SUCCESS,
                    false => Status::COMPARE_FAILURE.no_retry().into(),
                }
            }
            _ => Completion::with(work.tag.slot() as u64 + 1),
        };
        list.swap_remove(index);
        end.complete(tag, completion, tx);
        true
    }
}
