//! Submits requests, waits for their ends, and checks what holds for every answer.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::Driver;
use crate::{ByteRange, Completion, Error, Op, Request, Submit};

/// Keeps account of the requests of one channel: each is answered exactly once, with the tag,
/// operation, range and buffer that it was submitted with.
pub(super) struct Runner<'a, D: Driver> {
    pub driver: &'a mut D,
    next_tag: u64,
    /// Refused as `Busy`: to be submitted again.
    waiting: VecDeque<Request<D::Buf>>,
    open: BTreeMap<u64, (Op, ByteRange, bool)>,
    answers: BTreeMap<u64, Completion<D::Buf>>,
}

impl<'a, D: Driver> Runner<'a, D> {
    pub fn new(driver: &'a mut D) -> Self {
        Self {
            driver,
            next_tag: 1,
            waiting: VecDeque::new(),
            open: BTreeMap::new(),
            answers: BTreeMap::new(),
        }
    }

    /// Submits a request, or keeps it for later if the channel is full. Returns its tag.
    pub fn start(&mut self, op: Op, range: ByteRange, data: Option<&[u8]>) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        let buf = match data {
            Some(data) => Some(self.driver.buf(data)),
            // What a read leaves untouched must show.
            None if op == Op::Read => Some(self.driver.buf(&alloc::vec![0xEE; range.len as usize])),
            None => None,
        };
        self.open.insert(tag, (op, range, buf.is_some()));
        self.submit(Request::new(tag, op, range, buf));
        tag
    }

    /// Requests that are not answered yet.
    pub fn in_flight(&self) -> usize {
        self.open.len()
    }

    pub fn cancel(&mut self, tag: u64) {
        let (channel, queue) = self.driver.channel();
        channel.cancel(tag, queue);
    }

    /// Waits until the request is answered.
    pub fn answer(&mut self, tag: u64) -> Completion<D::Buf> {
        loop {
            if let Some(done) = self.answers.remove(&tag) {
                return done;
            }
            self.wait();
        }
    }

    /// Waits until all requests are answered, in order of their tags.
    pub fn finish(&mut self) -> Vec<Completion<D::Buf>> {
        while !self.open.is_empty() {
            self.wait();
        }
        core::mem::take(&mut self.answers).into_values().collect()
    }

    /// Runs one request to its end.
    pub fn run(&mut self, op: Op, range: ByteRange, data: Option<&[u8]>) -> Result<(), Error> {
        let tag = self.start(op, range, data);
        self.answer(tag).result
    }

    /// The bytes of a range, by `Op::Read`, which must succeed.
    pub fn read(&mut self, range: ByteRange) -> Vec<u8> {
        let tag = self.start(Op::Read, range, None);
        let done = self.answer(tag);
        assert_eq!(done.result, Ok(()), "read of {range:?}");
        self.bytes(done)
    }

    /// The first `range.len` bytes of an answer's buffer.
    pub fn bytes(&mut self, done: Completion<D::Buf>) -> Vec<u8> {
        let buf = done.buf.unwrap_or_else(|| panic!("{:?} was answered without data", done.op));
        self.driver.bytes(&buf, done.range.len as usize)
    }

    fn submit(&mut self, request: Request<D::Buf>) {
        let (channel, queue) = self.driver.channel();
        match channel.submit(request, queue) {
            Submit::Queued => {}
            Submit::Done(done) => self.take(done),
            Submit::Busy(request) => {
                let others = self.open.len() - self.waiting.len();
                assert!(others > 1, "a channel with nothing in flight must not be busy");
                self.waiting.push_back(request);
            }
        }
    }

    /// Waits for operations of the channel, and lets it go on.
    fn wait(&mut self) {
        assert!(!self.open.is_empty(), "waiting for an answer that was already given");
        let mut ended = Vec::new();
        self.driver.wait(&mut ended);
        for done in ended {
            let (channel, queue) = self.driver.channel();
            let mut next = channel.advance(done, queue);
            while let Some(done) = next {
                self.take(done);
                let (channel, queue) = self.driver.channel();
                next = channel.more(queue);
            }
        }
        for _ in 0..self.waiting.len() {
            if let Some(request) = self.waiting.pop_front() {
                self.submit(request);
            }
        }
    }

    fn take(&mut self, done: Completion<D::Buf>) {
        let Some((op, range, buf)) = self.open.remove(&done.tag) else {
            panic!("an answer to no open request: tag {}", done.tag);
        };
        assert_eq!((done.op, done.range), (op, range), "the answer differs from the request");
        if buf {
            assert!(done.buf.is_some(), "{op:?} lost its buffer");
        }
        self.answers.insert(done.tag, done);
    }
}
