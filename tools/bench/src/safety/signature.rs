//! What the first and last blocks of a device say.
//!
//! Offsets and magic numbers are those of the formats themselves: UEFI (GPT), the ext4, XFS and btrfs disk layouts, LVM2,
//! mdadm's metadata 0.90 to 1.2, LUKS, swap, OpenZFS labels, NTFS, VMFS. A format that is not known here is still data: see
//! `blocks`.

/// How much of the beginning has to be read, in bytes: the uberblocks of a ZFS label end here.
pub(super) const HEAD: usize = 256 << 10;
/// And how much of the end.
pub(super) const TAIL: usize = 512 << 10;

struct Magic {
    name: &'static str,
    at: usize,
    bytes: &'static [u8],
}

const fn magic(name: &'static str, at: usize, bytes: &'static [u8]) -> Magic {
    Magic { name, at, bytes }
}

/// The more telling one first: a disk with GPT has a protective MBR as well.
const HEADS: &[Magic] = &[
    magic("a partition table (GPT)", 512, b"EFI PART"),
    magic("a partition table (GPT)", 4096, b"EFI PART"),
    magic("an LVM physical volume", 512 + 24, b"LVM2 001"),
    magic("an LVM physical volume", 24, b"LVM2 001"),
    magic("an encrypted volume (LUKS)", 0, b"LUKS\xba\xbe"),
    magic("an XFS file system", 0, b"XFSB"),
    magic("an ext file system", 1024 + 56, b"\x53\xef"),
    magic("a btrfs file system", 65_536 + 64, b"_BHRfS_M"),
    magic("swap space", 4096 - 10, b"SWAPSPACE2"),
    magic("a RAID member (md)", 4096, b"\xfc\x4e\x2b\xa9"),
    magic("a RAID member (md)", 0, b"\xfc\x4e\x2b\xa9"),
    magic("an NTFS file system", 3, b"NTFS    "),
    magic("an exFAT file system", 3, b"EXFAT   "),
    magic("a FAT file system", 54, b"FAT"),
    magic("a FAT file system", 82, b"FAT32"),
    magic("a VMFS datastore", 1 << 20, b"\x0d\xd0\x01\xc0"),
    magic("a Ceph OSD", 0, b"bluestore block device"),
    magic("a bcache device", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    magic("a partition table (MBR)", 510, b"\x55\xaa"),
];

/// An uberblock of OpenZFS, as either kind of machine writes it. Each label has 128 of them from 128 KiB on, at least 1 KiB apart.
const UBERBLOCK: [&[u8]; 2] =
    [b"\x0c\xb1\xba\x00\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\xba\xb1\x0c"];
const LABEL: usize = 256 << 10;

/// What the beginning, or the end, says that this is. `None` if no format is known by it.
pub(super) fn signature(head: &[u8], tail: &[u8]) -> Option<&'static str> {
    let has =
        |magic: &&Magic| head.get(magic.at..magic.at + magic.bytes.len()) == Some(magic.bytes);
    // ZFS leaves the first 8 KiB of its label alone, where another table may still stand.
    if zfs(head, 0) {
        return Some("a ZFS pool member");
    }
    if let Some(magic) = HEADS.iter().find(has) {
        return Some(magic.name);
    }
    let from_end = |back: usize, bytes: &[u8]| {
        let at = tail.len().checked_sub(back)?;
        Some(tail.get(at..at + bytes.len())? == bytes)
    };
    // The second table of a GPT whose first one is gone: in the last block of 512 or 4096 bytes.
    if [512, 4096].iter().any(|back| from_end(*back, b"EFI PART") == Some(true)) {
        return Some("a partition table (GPT, at the end)");
    }
    // The last two labels are at the end, on a whole multiple of their size.
    if tail.len() >= LABEL && (0..tail.len() / LABEL).any(|label| zfs(tail, label * LABEL)) {
        return Some("a ZFS pool member");
    }
    // Metadata 1.0 stands 8 KiB before the end, 0.90 at 64 KiB before it.
    let md = b"\xfc\x4e\x2b\xa9";
    let places = [8 << 10, 12 << 10, 64 << 10, 128 << 10];
    if places.iter().any(|back| from_end(*back, md) == Some(true)) {
        return Some("a RAID member (md)");
    }
    None
}

fn zfs(bytes: &[u8], label: usize) -> bool {
    let blocks = (label + LABEL / 2..label + LABEL).step_by(1 << 10);
    blocks.filter_map(|at| bytes.get(at..at + 8)).any(|block| UBERBLOCK.contains(&block))
}
