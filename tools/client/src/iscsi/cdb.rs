//! Command descriptor blocks (SPC-5, SBC-4).

/// A command descriptor block of 6, 10 or 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cdb {
    bytes: [u8; 16],
    len: usize,
}

impl Cdb {
    fn new(bytes: &[u8]) -> Self {
        let mut cdb = Self { bytes: [0; 16], len: bytes.len() };
        cdb.bytes[..bytes.len()].copy_from_slice(bytes);
        cdb
    }

    /// The command descriptor block without padding.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// FUA in byte 1.
const FUA: u8 = 8;

/// READ: the form of 10 bytes where place and length fit, which every disk has; else that of 16.
pub fn read(lba: u64, blocks: u32) -> Cdb {
    transfer(0x28, 0x88, 0, lba, blocks)
}

/// WRITE, of 10 or 16 bytes.
pub fn write(lba: u64, blocks: u32, fua: bool) -> Cdb {
    transfer(0x2A, 0x8A, if fua { FUA } else { 0 }, lba, blocks)
}

fn transfer(ten: u8, sixteen: u8, flags: u8, lba: u64, blocks: u32) -> Cdb {
    let mut cdb = [0; 16];
    if let (Ok(lba), Ok(blocks)) = (u32::try_from(lba), u16::try_from(blocks)) {
        (cdb[0], cdb[1]) = (ten, flags);
        cdb[2..6].copy_from_slice(&lba.to_be_bytes());
        cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
        return Cdb { bytes: cdb, len: 10 };
    }
    (cdb[0], cdb[1]) = (sixteen, flags);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    Cdb { bytes: cdb, len: 16 }
}

/// SYNCHRONIZE CACHE of these blocks; with 0 of them, of all behind the first.
pub fn flush(lba: u64, blocks: u32) -> Cdb {
    transfer(0x35, 0x91, 0, lba, blocks)
}

/// TEST UNIT READY.
pub fn ready() -> Cdb {
    Cdb::new(&[0; 6])
}

/// INQUIRY: standard data, or a page of vital product data.
pub fn inquiry(page: Option<u8>, len: u8) -> Cdb {
    Cdb::new(&[0x12, u8::from(page.is_some()), page.unwrap_or(0), 0, len, 0])
}

/// READ CAPACITY(10).
pub fn capacity_10() -> Cdb {
    Cdb::new(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0])
}

/// READ CAPACITY(16).
pub fn capacity_16(len: u8) -> Cdb {
    Cdb::new(&[0x9E, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, len, 0, 0])
}

/// MODE SENSE(6) of one page, without block descriptors.
pub fn mode_sense(page: u8, len: u8) -> Cdb {
    Cdb::new(&[0x1A, 8, page, 0, len, 0])
}

/// PERSISTENT RESERVE IN with a service action (SPC-5 6.14).
pub fn reserve_in(action: u8, len: u16) -> Cdb {
    let [a, b] = len.to_be_bytes();
    Cdb::new(&[0x5E, action, 0, 0, 0, 0, 0, a, b, 0])
}

/// REPORT LUNS.
pub fn report_luns(len: u32) -> Cdb {
    let [a, b, c, d] = len.to_be_bytes();
    Cdb::new(&[0xA0, 0, 0, 0, 0, 0, a, b, c, d, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_places_fit_into_ten_bytes() {
        assert_eq!(read(0x0102_0304, 8).as_bytes(), [0x28, 0, 1, 2, 3, 4, 0, 0, 8, 0]);
        assert_eq!(write(1, 2, true).as_bytes(), [0x2A, 8, 0, 0, 0, 1, 0, 0, 2, 0]);
        let far = write(1 << 32, 8, false);
        assert_eq!(far.as_bytes(), [0x8A, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0]);
        assert_eq!(read(0, 65536).as_bytes()[..14], [0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
    }
}
