//! Random commands: each ends once, with the right data.

use std::collections::BTreeMap;
use std::rc::Rc;

use lunet_block::Random;
use lunet_nvme::command::{Io, Range};
use lunet_nvme::host::{Command, Data, Event, SubmitError};
use lunet_nvme::status::Status;
use proptest::prelude::*;

use crate::disk::{BLOCK, BLOCKS};
use crate::world::{Bytes, Settings, World};

/// Tells what each command has to lead to. Every write goes to blocks of its own, so that the order
/// does not matter.
pub struct Load {
    pub model: Vec<u8>,
    /// The commands under way, by token.
    under_way: BTreeMap<u64, Expected>,
    next: u64,
    /// The next blocks that nobody has written.
    fresh: u64,
    pub finished: usize,
}

enum Expected {
    Data(Range),
    Nothing(u32),
    Good,
    Miscompare,
    OutOfRange,
}

impl Load {
    pub fn new(world: &World) -> Self {
        let model = world.disk.bytes.clone();
        Self { model, under_way: BTreeMap::new(), next: 0, fresh: BLOCKS as u64 / 2, finished: 0 }
    }

    fn bytes_of(&self, range: Range) -> &[u8] {
        let at = range.lba as usize * BLOCK;
        &self.model[at..at + range.blocks as usize * BLOCK]
    }

    /// A random command: reads and compares in the first half, which nobody writes, writes in the other.
    fn command(&mut self, random: &mut Random) -> (Command<Vec<u8>, Bytes>, Expected) {
        let most = if random.chance(30) { 40 } else { 4 };
        let blocks = 1 + random.below(most) as u32;
        let lba = random.below(BLOCKS as u64 / 2 - u64::from(blocks));
        let range = Range { lba, blocks };
        let len = blocks as usize * BLOCK;
        let (io, data, expected) = match random.below(10) {
            0 => (
                Io::Read { range, fua: false },
                Data::Discard(len as u32),
                Expected::Nothing(len as u32),
            ),
            1..=3 => {
                (Io::Read { range, fua: false }, Data::Read(vec![0; len]), Expected::Data(range))
            }
            4..=6 if self.fresh + u64::from(blocks) <= BLOCKS as u64 => {
                let range = Range { lba: self.fresh, blocks };
                self.fresh += u64::from(blocks);
                let mut bytes = vec![0; len];
                random.fill(&mut bytes);
                let at = range.lba as usize * BLOCK;
                self.model[at..at + len].copy_from_slice(&bytes);
                (Io::Write { range, fua: true }, write(&bytes), Expected::Good)
            }
            7 => (Io::Compare { range }, write(self.bytes_of(range)), Expected::Good),
            8 => {
                let mut bytes = self.bytes_of(range).to_vec();
                bytes[random.below(len as u64) as usize] ^= 1;
                (Io::Compare { range }, write(&bytes), Expected::Miscompare)
            }
            9 if random.chance(30) => {
                let range = Range { lba: BLOCKS as u64, blocks: 1 };
                (Io::Read { range, fua: false }, Data::Read(vec![0; BLOCK]), Expected::OutOfRange)
            }
            _ => (Io::Flush, Data::None, Expected::Good),
        };
        (Command { token: self.next, sqe: io.encode(1), data }, expected)
    }

    /// Sends a random command, if there is room.
    pub fn submit(&mut self, world: &mut World) -> bool {
        if !world.host.is_ready() || world.host.outstanding() == world.host.entries() {
            return false;
        }
        let (command, expected) = self.command(&mut world.random);
        world.host.submit(command, &mut world.sent).expect("there is room");
        self.under_way.insert(self.next, expected);
        self.next += 1;
        true
    }

    /// Checks what has come. Gives how the connection failed, if it did.
    pub fn check(&mut self, world: &mut World) -> Option<lunet_nvme::host::Error> {
        let mut failed = None;
        for event in std::mem::take(&mut world.events) {
            assert!(failed.is_none(), "an event after the end");
            let finished = match event {
                Event::Finished(finished) => finished,
                Event::Failed(error) => {
                    failed = Some(error);
                    continue;
                }
                Event::Connected(_) => panic!("connected twice"),
            };
            self.finished += 1;
            let expected = self.under_way.remove(&finished.token).expect("a command ends once");
            let Some(completion) = finished.completion else { continue };
            let status = completion.status.code();
            // Damage was seen, and the command not executed.
            if status == Status::TRANSPORT {
                continue;
            }
            match expected {
                Expected::Good => assert!(status.is_success(), "{status}"),
                Expected::Miscompare => assert_eq!(status, Status::COMPARE_FAILURE),
                Expected::OutOfRange => assert_eq!(status, Status::LBA_RANGE),
                Expected::Nothing(len) => {
                    assert!(status.is_success(), "{status}");
                    assert_eq!((finished.received, finished.data), (len, Data::Discard(len)));
                }
                Expected::Data(range) => {
                    let bytes = self.bytes_of(range);
                    assert!(status.is_success(), "{status}");
                    assert_eq!(finished.received as usize, bytes.len());
                    assert_eq!(finished.data, Data::Read(bytes.to_vec()));
                }
            }
        }
        failed
    }

    /// Sends so many commands, and lets all end.
    pub fn run(&mut self, world: &mut World, commands: u64) {
        while self.next < commands {
            if !self.submit(world) {
                world.step();
            }
            if world.random.chance(60) {
                world.step();
            }
            assert_eq!(self.check(world), None);
        }
        world.settle();
        assert_eq!(self.check(world), None);
        assert!(self.under_way.is_empty(), "{} commands have not ended", self.under_way.len());
    }
}

pub fn write(bytes: &[u8]) -> Data<Vec<u8>, Bytes> {
    Data::Write(Bytes(Rc::from(bytes)), bytes.len() as u32)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_command_ends_once_with_the_right_data(seed: u64) {
        let mut random = Random::new(seed);
        let settings = Settings::random(&mut random);
        let mut world = World::connected(settings, random.bits());
        world.scarce = random.below(3) * 40;
        let mut load = Load::new(&world);
        load.run(&mut world, 80);
        prop_assert_eq!(world.controller.outstanding(), 0);
        prop_assert_eq!(world.closed, None);
        prop_assert!(world.disk.bytes == load.model, "a write is lost or misplaced");
        let framing = world.controller.framing();
        prop_assert_eq!(framing.header_digest, world.settings.header_digest);
    }

    /// A write that fails early is answered once the host has sent what it was asked for.
    #[test]
    fn writes_may_fail_while_their_data_is_under_way(seed: u64) {
        let mut random = Random::new(seed);
        let settings = Settings::random(&mut random);
        let mut world = World::connected(settings, random.bits());
        world.disk.fails = 50;
        let mut answered = 0;
        for token in 0..40 {
            let range = Range { lba: random.below(400), blocks: 1 + random.below(100) as u32 };
            let data = write(&vec![7; range.blocks as usize * BLOCK]);
            let command = Command { token, sqe: Io::Write { range, fua: false }.encode(1), data };
            match world.host.submit(command, &mut world.sent) {
                Ok(_) => answered += 1,
                Err(refused) => prop_assert_eq!(refused.error, SubmitError::QueueFull),
            }
            world.step();
        }
        world.settle();
        let finished = world.events.iter().filter(|event| match event {
            Event::Finished(finished) => finished.completion.is_some(),
            _ => false,
        });
        prop_assert_eq!(finished.count(), answered);
        prop_assert_eq!((world.controller.outstanding(), world.closed), (0, None));
    }
}
