//! Parameter lists of EXTENDED COPY (SPC-5 6.4 to 6.6). The tests of lunet-front-iscsi use this file as well.

/// An identification descriptor with an NAA designator.
pub fn cscd(naa: &[u8]) -> Vec<u8> {
    let mut d = vec![0; 32];
    d[0] = 0xE4;
    d[4..8].copy_from_slice(&[1, 3, 0, naa.len() as u8]);
    d[8..8 + naa.len()].copy_from_slice(naa);
    d
}

/// A segment descriptor of type 02h.
pub fn segment(source: u16, destination: u16, blocks: u16, from: u64, to: u64) -> Vec<u8> {
    let mut d = vec![0x02, 0, 0, 0x18];
    d.extend(source.to_be_bytes());
    d.extend(destination.to_be_bytes());
    d.extend([0, 0]);
    d.extend(blocks.to_be_bytes());
    d.extend(from.to_be_bytes());
    d.extend(to.to_be_bytes());
    d
}

/// The parameter list of EXTENDED COPY(LID1).
pub fn lid1(list: u8, usage: u8, cscds: &[Vec<u8>], segments: &[Vec<u8>]) -> Vec<u8> {
    let (cscds, segments) = (cscds.concat(), segments.concat());
    let mut all = vec![list, usage << 3];
    all.extend((cscds.len() as u16).to_be_bytes());
    all.extend([0; 4]);
    all.extend((segments.len() as u32).to_be_bytes());
    all.extend([0; 4]);
    [all, cscds, segments].concat()
}

/// The parameter list of EXTENDED COPY(LID4); `flags` are list id usage and the byte with IMMED.
pub fn lid4(list: u32, flags: (u8, u8), cscds: &[Vec<u8>], segments: &[Vec<u8>]) -> Vec<u8> {
    let (cscds, segments) = (cscds.concat(), segments.concat());
    let mut all = vec![0; 48];
    (all[0], all[1], all[3], all[15], all[16]) = (1, flags.0 << 3, 0x20, flags.1, 0xFF);
    all[20..24].copy_from_slice(&list.to_be_bytes());
    all[42..44].copy_from_slice(&(cscds.len() as u16).to_be_bytes());
    all[44..46].copy_from_slice(&(segments.len() as u16).to_be_bytes());
    [all, cscds, segments].concat()
}
