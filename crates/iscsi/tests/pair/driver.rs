//! Drives commands through a world and checks each answer against a model of the disk.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use lunet_iscsi::initiator::{
    Command, Completion, Data, Event, Finished, Outcome, Residual, SubmitError, Tag,
};
use lunet_iscsi::pdu::{TaskAttribute, TmfFunction};
use proptest::prelude::*;
use proptest::sample::select;

use crate::disk::{NOTHING, READ, SENSE, SIZE, UNKNOWN, WRITE, cdb};
use crate::wire::random_bytes;
use crate::world::World;

/// No command may take longer than this, in virtual time.
const PATIENCE: Duration = Duration::from_secs(60);
const TASK_SET_FULL: u8 = 0x28;
const CHECK_CONDITION: u8 = 2;

/// One command to send.
#[derive(Clone, Debug)]
pub struct Action {
    op: u8,
    offset: u32,
    /// Length that the CDB tells.
    len: u32,
    /// Length of the buffer: the Expected Data Transfer Length.
    expected: u32,
    immediate: bool,
    /// Send ABORT TASK for it so many steps later.
    abort_after: Option<u8>,
}

prop_compose! {
    pub fn action(aborts: bool)(
        op in select(vec![READ, READ, READ, WRITE, WRITE, WRITE, NOTHING, UNKNOWN]),
        offset in 0..SIZE,
        len in prop_oneof![0u32..2000, 0u32..40_000],
        // Sometimes the initiator expects another length than the command moves.
        residual in prop_oneof![8 => Just(0i64), 1 => 1i64..3000, 1 => -3000i64..0],
        immediate in prop::bool::weighted(0.05),
        abort_after in prop_oneof![4 => Just(None), 1 => (0u8..40).prop_map(Some)],
    ) -> Action {
        let len = len.min(SIZE - offset);
        let expected = (i64::from(len) + residual).max(0) as u32;
        Action { op, offset, len, expected, immediate, abort_after: abort_after.filter(|_| aborts) }
    }
}

struct Outstanding {
    tag: Tag,
    action: Action,
    /// What a write sends.
    sends: Rc<[u8]>,
    since: Duration,
    abort_in: Option<u8>,
}

impl Outstanding {
    /// Bytes that move.
    fn moved(&self) -> usize {
        self.action.len.min(self.action.expected) as usize
    }

    fn range(&self) -> Range<usize> {
        let start = self.action.offset as usize;
        start..start + self.moved()
    }

    fn residual(&self) -> Residual {
        let (len, expected) = (self.action.len, self.action.expected);
        match self.action.op {
            READ | WRITE if len < expected => Residual::Underflow(expected - len),
            READ | WRITE if len > expected => Residual::Overflow(len - expected),
            READ | WRITE => Residual::None,
            _ if expected > 0 => Residual::Underflow(expected),
            _ => Residual::None,
        }
    }
}

/// What may happen besides an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Buffers run out.
    pub no_memory: bool,
    /// The stream is damaged.
    pub damage: bool,
}

pub struct Driver {
    model: Vec<u8>,
    waiting: VecDeque<Action>,
    outstanding: BTreeMap<u64, Outstanding>,
    aborts: usize,
    next_token: u64,
    allowed: Allowed,
    /// Answers by kind: good, failed, aborted, lost.
    pub answers: [usize; 4],
}

impl Driver {
    pub fn new(world: &World, actions: Vec<Action>, allowed: Allowed) -> Self {
        Self {
            model: world.disk.bytes.clone(),
            waiting: actions.into(),
            outstanding: BTreeMap::new(),
            aborts: 0,
            next_token: 0,
            allowed,
            answers: [0; 4],
        }
    }

    /// Runs all actions. Each gets exactly one answer, and the right one.
    pub fn run(&mut self, world: &mut World) {
        while !(self.waiting.is_empty() && self.outstanding.is_empty() && self.aborts == 0) {
            self.send_aborts(world);
            self.submit(world);
            if !world.step() {
                world.advance(world.now + Duration::from_millis(500));
            }
            if world.initiator.is_over() || world.target.is_closed() {
                return self.broken(world);
            }
            self.take_events(world);
            for (token, outstanding) in &self.outstanding {
                let waited = world.now - outstanding.since;
                assert!(waited < PATIENCE, "command {token} hangs: {:?}", outstanding.action);
            }
        }
        // A ping may be on its way.
        world.settle();
        assert_eq!(world.initiator.outstanding(), 0);
        assert!(world.disk.bytes == self.model, "the disk differs from the model");
    }

    /// The connection ended: only damage may do this.
    fn broken(&mut self, world: &mut World) {
        let failure = world.events.iter().find_map(|event| match event {
            Event::Failed(error) => Some(error),
            _ => None,
        });
        assert!(self.allowed.damage, "broken: {failure:?} {:?}", world.disk.closed);
        // What was sent before the end still arrives; then both ends are closed.
        world.settle();
        world.initiator.transport_closed(&mut world.events);
        self.take_events(world);
        assert!(self.outstanding.is_empty(), "commands without an answer");
        assert!(world.disk.bytes == self.model, "the disk differs from the model");
    }

    /// Sends what fits into the window and touches nothing that is under way.
    fn submit(&mut self, world: &mut World) {
        while let Some(action) = self.waiting.front() {
            let range = action.offset..action.offset + action.len;
            let busy = |other: &Outstanding| {
                let (start, end) = (other.action.offset, other.action.offset + other.action.len);
                let apart = range.end <= start || end <= range.start;
                !apart && (action.op == WRITE || other.action.op == WRITE)
            };
            if self.outstanding.values().any(busy) {
                return;
            }
            let expected = action.expected as usize;
            let mut sends: Rc<[u8]> = Rc::default();
            let data = match action.op {
                READ => Data::Read(vec![0xbb; expected]),
                WRITE => {
                    sends = random_bytes(&mut world.rng, expected).into();
                    Data::Write(sends.clone())
                }
                _ => Data::None,
            };
            let command = Command {
                token: self.next_token,
                lun: 0,
                cdb: &cdb(action.op, action.offset, action.len),
                attribute: TaskAttribute::Simple,
                immediate: action.immediate,
                data,
            };
            match world.submit(command) {
                Ok(tag) => {
                    let mut action = action.clone();
                    if !matches!(action.op, READ | WRITE) {
                        action.expected = 0;
                    }
                    let abort_in = action.abort_after;
                    let since = world.now;
                    let sent = Outstanding { tag, action, sends, since, abort_in };
                    self.outstanding.insert(self.next_token, sent);
                    self.next_token += 1;
                    self.waiting.pop_front();
                }
                Err(SubmitError::NotRegistered) if self.allowed.no_memory => return,
                Err(error) => {
                    assert_eq!(error, SubmitError::WindowClosed);
                    return;
                }
            }
        }
    }

    fn send_aborts(&mut self, world: &mut World) {
        for outstanding in self.outstanding.values_mut() {
            let Some(left) = &mut outstanding.abort_in else { continue };
            if *left > 0 {
                *left -= 1;
                continue;
            }
            outstanding.abort_in = None;
            let function = TmfFunction::AbortTask;
            let tag = Some(outstanding.tag);
            world.initiator.manage(function, 0, tag, &mut world.sent).expect("the task exists");
            self.aborts += 1;
        }
    }

    fn take_events(&mut self, world: &mut World) {
        for event in std::mem::take(&mut world.events) {
            match event {
                Event::Finished(mut finished) => {
                    world.take_back(&mut finished);
                    self.finished(finished, world);
                }
                Event::Managed { response, .. } => {
                    assert!(response.is_some() || self.allowed.damage);
                    self.aborts -= 1;
                }
                Event::Failed(_) | Event::Rejected { .. } if self.allowed.damage => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    fn finished(&mut self, finished: Finished<Vec<u8>, Rc<[u8]>>, world: &World) {
        let Some(sent) = self.outstanding.remove(&finished.token) else {
            panic!("a second answer: {finished:?}")
        };
        assert_eq!(sent.tag, finished.tag);
        match finished.outcome {
            Outcome::Completed(end) if end.is_good() => self.good(&sent, &end, finished.data),
            Outcome::Completed(end) => {
                self.check_failure(&sent, &end);
                self.answers[1] += 1;
            }
            Outcome::Aborted => {
                assert!(sent.action.abort_after.is_some() && sent.abort_in.is_none());
                self.adopt(&sent, world);
                self.answers[2] += 1;
            }
            Outcome::Lost => {
                assert!(self.allowed.damage);
                self.adopt(&sent, world);
                self.answers[3] += 1;
            }
            Outcome::Rejected(reason) => panic!("rejected: {reason}"),
        }
    }

    fn good(&mut self, sent: &Outstanding, end: &Completion, data: Data<Vec<u8>, Rc<[u8]>>) {
        self.answers[0] += 1;
        assert_ne!(sent.action.op, UNKNOWN);
        assert_eq!(end.residual, sent.residual(), "{:?}", sent.action);
        let range = sent.range();
        match data {
            Data::Read(buf) => {
                assert_eq!(end.received as usize, range.len());
                assert!(buf[..range.len()] == self.model[range], "wrong data: {:?}", sent.action);
            }
            Data::Write(_) => {
                let len = range.len();
                self.model[range].copy_from_slice(&sent.sends[..len]);
            }
            Data::None | Data::Discard(_) => {}
        }
    }

    /// A command that failed changed nothing.
    fn check_failure(&self, sent: &Outstanding, end: &Completion) {
        match end.status {
            TASK_SET_FULL => assert!(self.allowed.no_memory && sent.action.op == WRITE),
            CHECK_CONDITION if sent.action.op == UNKNOWN => assert_eq!(end.sense, SENSE),
            // Protocol service CRC error, or data that does not add up after such an error.
            CHECK_CONDITION => {
                assert!(self.allowed.damage, "{end:?}");
                assert_eq!(end.sense[2], 0x0b);
            }
            _ => panic!("unexpected {end:?}"),
        }
    }

    /// An ended write was done or it was not: the model follows the disk.
    fn adopt(&mut self, sent: &Outstanding, world: &World) {
        if sent.action.op != WRITE {
            return;
        }
        let range = sent.range();
        let found = &world.disk.bytes[range.clone()];
        let done = found == &sent.sends[..range.len()];
        assert!(done || found == &self.model[range.clone()], "a write was done in part");
        self.model[range].copy_from_slice(found);
    }
}
