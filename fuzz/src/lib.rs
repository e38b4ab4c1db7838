//! Fuzz targets, and what they share: taking an input apart, and the login that comes before it.

pub mod targets;

use lunet_iscsi::pdu::{LoginResponse, U24, Wire};

/// The bytes of an input, taken from the front. Empty inputs give zeroes.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// True when nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// The next two bytes as a number.
    pub fn short(&mut self) -> u16 {
        u16::from(self.byte()) << 8 | u16::from(self.byte())
    }

    /// The next four bytes as a number.
    pub fn long(&mut self) -> u32 {
        u32::from(self.short()) << 16 | u32::from(self.short())
    }

    /// The next `n` bytes, or fewer.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (piece, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        piece
    }
}

/// What the stream consists of.
#[derive(Debug)]
pub enum Piece {
    /// Bytes as they are.
    Raw(Vec<u8>),
    /// A PDU with a header of the input's, whose data segment has the length that the header says.
    Pdu {
        /// The header.
        bhs: [u8; 48],
        /// The data segment, padded.
        data: Vec<u8>,
        /// Put the sequence number there that the other end awaits.
        in_order: bool,
    },
}

/// The next piece of a stream: mostly whole PDUs with an opcode of `opcodes`, so that the input
/// gets behind the framing, sometimes raw bytes.
pub fn piece(input: &mut Input<'_>, opcodes: &[u8]) -> Piece {
    let kind = input.byte();
    if kind & 0x0f == 0x0f {
        let n = usize::from(input.byte());
        return Piece::Raw(input.take(n).to_vec());
    }
    let mut bhs = [0; 48];
    bhs[0] = opcodes[usize::from(kind & 0x0f) % opcodes.len()] | (kind & 0x40);
    let flags = input.byte();
    bhs[1] = flags;
    // The rest of the header from the input, shortened by a mask of its four-byte words.
    let words = input.short();
    for word in 2..12 {
        if words >> word & 1 != 0 {
            let bytes = input.take(4);
            bhs[word * 4..word * 4 + bytes.len()].copy_from_slice(bytes);
        }
    }
    let len = usize::from(input.short() & 0x1fff);
    let mut data = match kind & 0x20 {
        0 => input.take(len).to_vec(),
        _ => vec![input.byte(); len],
    };
    bhs[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    data.resize(data.len().next_multiple_of(4), 0);
    Piece::Pdu { bhs, data, in_order: kind & 0x80 == 0 }
}

/// Calls `each` with the bytes in pieces of a size that `seed` decides.
pub fn cut(bytes: &[u8], seed: u8, mut each: impl FnMut(&[u8])) {
    let mut rest = bytes;
    let mut state = u32::from(seed);
    while !rest.is_empty() {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        let most = if seed & 1 == 0 { 4096 } else { 60 };
        let n = 1 + (state >> 16) as usize % most;
        let (piece, left) = rest.split_at(n.min(rest.len()));
        each(piece);
        rest = left;
    }
}

/// The answer to a login in one step: header and text, without padding.
pub fn login_response(text: &[u8], isid: [u8; 6]) -> Vec<u8> {
    let pdu = LoginResponse {
        flags: 0x87,
        data_len: U24::new(text.len() as u32),
        isid,
        tsih: 1.into(),
        exp_cmd_sn: 1.into(),
        max_cmd_sn: 64.into(),
        ..Default::default()
    };
    [&pdu.as_bhs()[..], text].concat()
}
