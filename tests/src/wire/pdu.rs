//! One PDU: the basic header segment, the data segment, the digests.

use std::io::{Read, Write};

use anyhow::{Result, ensure};

const HEADER: usize = 48;

/// More than any PDU that this initiator lets a target send.
const MAX_DATA: usize = 1 << 20;

/// A PDU without additional header segments.
#[derive(Clone, Debug)]
pub struct Pdu {
    /// The basic header segment. The data segment's length is filled in when it is sent.
    pub header: [u8; HEADER],
    /// The data segment, without its padding.
    pub data: Vec<u8>,
}

impl Pdu {
    /// A header with this opcode, and no data.
    pub fn new(opcode: u8) -> Pdu {
        let mut header = [0; HEADER];
        header[0] = opcode;
        Pdu { header, data: Vec::new() }
    }

    /// The opcode without the immediate bit.
    pub fn opcode(&self) -> u8 {
        self.header[0] & 0x3f
    }

    /// The second byte: flags.
    pub fn flags(&self) -> u8 {
        self.header[1]
    }

    /// The 32-bit big-endian field at `at`.
    pub fn word(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.header[at..at + 4]);
        u32::from_be_bytes(bytes)
    }

    /// Sets the 32-bit big-endian field at `at`.
    pub fn set_word(&mut self, at: usize, value: u32) {
        self.header[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    /// The bytes on the wire.
    pub fn encode(&self, header_digest: bool, data_digest: bool) -> Vec<u8> {
        let mut header = self.header;
        // 24 bits; what is larger cannot be said, and no caller sends it.
        let length = (self.data.len() as u32).to_be_bytes();
        header[5..8].copy_from_slice(&length[1..]);
        let mut bytes = Vec::with_capacity(HEADER + self.data.len() + 12);
        bytes.extend_from_slice(&header);
        if header_digest {
            bytes.extend_from_slice(&crc32c(&header).to_le_bytes());
        }
        if !self.data.is_empty() {
            let start = bytes.len();
            bytes.extend_from_slice(&self.data);
            bytes.resize(start + self.data.len().next_multiple_of(4), 0);
            if data_digest {
                let digest = crc32c(&bytes[start..]);
                bytes.extend_from_slice(&digest.to_le_bytes());
            }
        }
        bytes
    }

    /// Sends the PDU.
    pub fn send(&self, to: &mut impl Write, header_digest: bool, data_digest: bool) -> Result<()> {
        Ok(to.write_all(&self.encode(header_digest, data_digest))?)
    }

    /// Receives a PDU and checks its digests.
    pub fn receive(from: &mut impl Read, header_digest: bool, data_digest: bool) -> Result<Pdu> {
        let mut header = [0; HEADER];
        from.read_exact(&mut header)?;
        ensure!(header[4] == 0, "a target sends no additional header segments");
        if header_digest {
            check_digest(from, &header, "header")?;
        }
        let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        ensure!(length <= MAX_DATA, "a data segment of {length} bytes");
        let mut data = vec![0; length.next_multiple_of(4)];
        from.read_exact(&mut data)?;
        if data_digest && length > 0 {
            check_digest(from, &data, "data")?;
        }
        ensure!(data[length..].iter().all(|&b| b == 0), "padding that is not zero");
        data.truncate(length);
        Ok(Pdu { header, data })
    }
}

fn check_digest(from: &mut impl Read, bytes: &[u8], what: &str) -> Result<()> {
    let mut digest = [0; 4];
    from.read_exact(&mut digest)?;
    ensure!(crc32c(bytes).to_le_bytes() == digest, "the target's {what} digest is wrong");
    Ok(())
}

/// CRC32C (RFC 7143 13.1). The digest goes out as `to_le_bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    static TABLE: [u32; 256] = table();
    let step = |crc: u32, &byte: &u8| TABLE[((crc ^ u32::from(byte)) & 0xff) as usize] ^ (crc >> 8);
    !bytes.iter().fold(!0, step)
}

const fn table() -> [u32; 256] {
    // The polynomial 0x1EDC6F41, bits reversed.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_of_the_examples_in_the_rfc() {
        // RFC 7143, appendix A.4.
        assert_eq!(crc32c(&[0; 32]).to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[0xff; 32]).to_le_bytes(), [0x43, 0xab, 0xa8, 0x62]);
    }

    #[test]
    fn a_pdu_survives_the_wire_and_a_flipped_bit_does_not() -> Result<()> {
        let mut pdu = Pdu::new(0x25);
        pdu.set_word(16, 7);
        pdu.data = b"seventeen letters".to_vec();
        let mut bytes = pdu.encode(true, true);
        assert_eq!(bytes.len(), 48 + 4 + 20 + 4);
        let back = Pdu::receive(&mut bytes.as_slice(), true, true)?;
        assert_eq!((back.word(16), back.data), (7, pdu.data));
        for at in [20, 55] {
            bytes[at] ^= 4;
            assert!(Pdu::receive(&mut bytes.as_slice(), true, true).is_err());
            bytes[at] ^= 4;
        }
        Ok(())
    }
}
