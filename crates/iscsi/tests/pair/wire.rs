//! The way between the two ends.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use lunet_block::Random;
use lunet_iscsi::digest::Crc32c;
use lunet_iscsi::initiator;
use lunet_iscsi::iser::Remote;
use lunet_iscsi::target::{Payload, Transmit};

/// So many random bytes.
pub fn random_bytes(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

/// Data of a Data-In.
pub struct Bytes(pub Vec<u8>);

impl Payload for Bytes {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn crc32c(&self, range: Range<usize>, crc: &mut Crc32c) {
        crc.update(&self.0[range]);
    }
}

/// What the target wants done over RDMA.
#[derive(Debug)]
pub enum Effect {
    Send { bytes: Vec<u8>, invalidate: Option<u32> },
    Write { bytes: Vec<u8>, to: Remote },
}

/// What the target wants to send.
#[derive(Default)]
pub struct Outgoing {
    pub bytes: Vec<u8>,
    /// Over RDMA.
    pub effects: Vec<Effect>,
    payloads: Vec<Bytes>,
}

impl Outgoing {
    /// Takes what is to be sent; the payloads are dropped, as after a send.
    pub fn take(&mut self) -> Vec<u8> {
        self.payloads.clear();
        std::mem::take(&mut self.bytes)
    }
}

impl Transmit for Outgoing {
    type Payload = Bytes;

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn payload(&mut self, payload: Bytes) -> usize {
        self.payloads.push(payload);
        self.payloads.len() - 1
    }

    fn slice(&mut self, id: usize, range: Range<usize>) {
        self.bytes.extend_from_slice(&self.payloads[id].0[range]);
    }

    fn end_send(&mut self, invalidate: Option<u32>) {
        let bytes = std::mem::take(&mut self.bytes);
        self.effects.push(Effect::Send { bytes, invalidate });
    }

    fn write(&mut self, id: usize, range: Range<usize>, to: Remote) {
        assert!(self.bytes.is_empty(), "an RDMA Write in the middle of a Send");
        let bytes = self.payloads[id].0[range].to_vec();
        self.effects.push(Effect::Write { bytes, to });
    }
}

/// What the initiator wants to send.
#[derive(Default)]
pub struct Sent {
    pub bytes: Vec<u8>,
    /// Over RDMA.
    pub sends: Vec<Vec<u8>>,
}

impl initiator::Transmit<Rc<[u8]>> for Sent {
    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn data(&mut self, data: &Rc<[u8]>, range: Range<usize>) {
        self.bytes.extend_from_slice(&data[range]);
    }

    fn end_send(&mut self) {
        self.sends.push(std::mem::take(&mut self.bytes));
    }
}

/// A bit to be flipped on the way: the byte, counted from the end of the login, and the bit.
#[derive(Clone, Copy, Debug)]
pub struct Flip {
    pub byte: u64,
    pub bit: u8,
}

/// One direction of the stream.
#[derive(Default)]
pub struct Wire {
    bytes: VecDeque<u8>,
    /// The damage to do, if any; gone when it is done.
    pub flip: Option<Flip>,
    /// Bytes are counted, and damaged, from here on.
    pub armed: bool,
    /// A bit was flipped.
    pub flipped: bool,
    taken: u64,
}

impl Wire {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next bytes, as many as chance gives.
    pub fn take(&mut self, rng: &mut Random) -> Vec<u8> {
        let most = match rng.below(4) {
            0 => 1,
            1 => 60,
            2 => 2000,
            _ => 100_000,
        };
        let n = (1 + rng.below(most) as usize).min(self.bytes.len());
        let mut piece: Vec<u8> = self.bytes.drain(..n).collect();
        if self.armed {
            let start = self.taken;
            self.taken += n as u64;
            if let Some(flip) = self.flip.filter(|flip| (start..self.taken).contains(&flip.byte)) {
                piece[(flip.byte - start) as usize] ^= 1 << flip.bit;
                self.flip = None;
                self.flipped = true;
            }
        }
        piece
    }
}
