//! Capsules as bytes, good ones and bad ones.

/// Bytes of a submission queue entry.
pub const SQE: usize = 64;
/// PSDT: an SGL.
const SGL: u8 = 0x40;

/// Memory of this host, and what the controller may reach it by.
#[derive(Clone, Copy, Debug)]
pub struct Keyed {
    pub address: u64,
    pub key: u32,
    pub len: u32,
}

/// What a command moves.
#[derive(Clone, Copy, Debug)]
pub enum Direction {
    Read,
    Write,
}

/// A command, with what comes in its capsule behind it.
#[derive(Clone, Debug)]
pub struct Capsule {
    pub sqe: [u8; SQE],
    pub inside: Vec<u8>,
    /// So many bytes of both are sent.
    pub cut: Option<usize>,
    /// The command identifier is the one that the bytes have.
    pub own_cid: bool,
}

impl Capsule {
    fn new(opcode: u8) -> Self {
        let mut sqe = [0; SQE];
        (sqe[0], sqe[1]) = (opcode, SGL);
        Self { sqe, inside: Vec::new(), cut: None, own_cid: false }
    }

    pub fn set(mut self, at: usize, bytes: &[u8]) -> Self {
        self.sqe[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// SGL1: a keyed data block.
    pub fn keyed(self, memory: Keyed) -> Self {
        let descriptor = self.set(24, &memory.address.to_le_bytes());
        let descriptor = descriptor.set(32, &memory.len.to_le_bytes()[..3]);
        descriptor.set(35, &memory.key.to_le_bytes()).set(39, &[0x40])
    }

    /// SGL1: data within the capsule, as it claims.
    pub fn within(self, offset: u64, len: u32) -> Self {
        self.set(24, &offset.to_le_bytes()).set(32, &len.to_le_bytes()).set(36, &[0, 0, 0, 0x01])
    }

    pub fn with(mut self, inside: Vec<u8>) -> Self {
        self.inside = inside;
        self
    }

    /// Connect, whose data are in memory.
    pub fn connect(qid: u16, sqsize: u16, data: Keyed) -> Self {
        let fabrics = Self::new(0x7f).set(4, &[1]).keyed(data);
        fabrics.set(42, &qid.to_le_bytes()).set(44, &sqsize.to_le_bytes())
    }

    pub fn connect_data(cntlid: u16, subsystem: &str, host: &str) -> [u8; 1024] {
        let mut data = [0; 1024];
        data[..16].copy_from_slice(b"lab's raw host 1");
        data[16..18].copy_from_slice(&cntlid.to_le_bytes());
        data[256..256 + subsystem.len()].copy_from_slice(subsystem.as_bytes());
        data[512..512 + host.len()].copy_from_slice(host.as_bytes());
        data
    }

    /// CC: enabled, with entries of 64 and 16 bytes.
    pub fn enable() -> Self {
        Self::new(0x7f).set(44, &0x14_u32.to_le_bytes()).set(48, &0x0046_0001_u32.to_le_bytes())
    }

    /// The property CSTS.
    pub fn csts() -> Self {
        Self::new(0x7f).set(4, &[4]).set(44, &0x1c_u32.to_le_bytes())
    }

    /// The feature Number of Queues.
    pub fn queues(count: u16) -> Self {
        let number = (count.max(1) - 1).to_le_bytes();
        Self::new(0x09).set(40, &[7]).set(44, &number).set(46, &number)
    }

    /// A read or a write of blocks of 512 bytes.
    pub fn io(direction: Direction, block: u64, blocks: u16, memory: Keyed) -> Self {
        let opcode = if matches!(direction, Direction::Read) { 0x02 } else { 0x01 };
        let command = Self::new(opcode).set(4, &[1]).set(40, &block.to_le_bytes());
        command.set(48, &(blocks - 1).to_le_bytes()).keyed(memory)
    }

    pub fn bytes(&self, cid: u16) -> Vec<u8> {
        let mut bytes = self.sqe.to_vec();
        if !self.own_cid {
            bytes[2..4].copy_from_slice(&cid.to_le_bytes());
        }
        bytes.extend_from_slice(&self.inside);
        bytes.truncate(self.cut.unwrap_or(usize::MAX));
        bytes
    }
}

/// A completion queue entry.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub dword0: u32,
    pub cid: u16,
    /// Status without the phase: 0 is success.
    pub status: u16,
}

impl Answer {
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u16::from_le_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
        let dword0 = u32::from(word(0)?) | u32::from(word(2)?) << 16;
        Some(Self { dword0, cid: word(12)?, status: word(14)? >> 1 })
    }
}
