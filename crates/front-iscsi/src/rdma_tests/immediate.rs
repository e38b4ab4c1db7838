//! Immediate data: where it comes, and what becomes of its buffer.

use super::*;

impl Bench {
    /// One session, on a device that has these.
    fn session((shared, one_piece): (bool, bool), layout: Layout) -> Self {
        let (device, wire) = fake::device(64);
        wire.with(|state| (state.shared, state.one_piece) = (shared.then(Vec::new), one_piece));
        let mut bench = Self::over((device, wire), layout);
        bench.connect(1);
        bench.log_in(1);
        bench
    }

    fn bodies(&self) -> Vec<usize> {
        self.wire.with(|state| state.bodies())
    }

    /// A write of these blocks with all its data in the command, behind additional header segments of so many words.
    fn write(&mut self, number: u32, data: &[u8], ahs: u8) {
        let blocks = (data.len() / 512) as u16;
        let mut command = ScsiCommand { flags: WRITE | 0x80, ..ScsiCommand::default() };
        command.cdb[..10].copy_from_slice(&cdb(0x2a, blocks));
        command.expected_len = pdu::U32::new(data.len() as u32);
        command.itt = pdu::U32::new(100 + number);
        command.cmd_sn = pdu::U32::new(number);
        command.data_len = pdu::U24::new(data.len() as u32);
        let header = Header::default().to_bytes();
        let mut message = [&header[..], pdu::Wire::as_bhs(&command)].concat();
        message[HEADER_LEN + 4] = ahs;
        // Of a kind that nobody knows.
        for _ in 0..ahs / 4 {
            message.extend_from_slice(&[&[0, 13, 0x3f][..], &[0xaa; 13]].concat());
        }
        message.extend_from_slice(data);
        self.wire.send(1, &message);
    }

    fn read_back(&mut self, number: u32, len: usize) -> Vec<u8> {
        let read = (READ, &cdb(0x28, (len / 512) as u16)[..], len as u32);
        self.command(1, number, read, opens(None, Some(4)), &[]);
        let (mut seen, mut at) = (vec![0; len], 0);
        while at < len {
            let Work::Write(bytes, _) = self.next(1, &[], Status::Success) else {
                panic!("an RDMA Write was expected");
            };
            seen[at..at + bytes.len()].copy_from_slice(&bytes);
            at += bytes.len();
        }
        assert_eq!(self.status(1, number).0, 0);
        seen
    }

    fn finish(mut self, number: u32) {
        self.log_out(1, number);
        self.assert_all_is_given_back();
    }
}

#[test]
fn immediate_data_is_kept_in_the_buffer_that_it_came_in() {
    for (shared, blocks) in [(false, 8), (true, 8), (true, 16)] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut bench = Bench::session((shared, false), layout(Some(&folder)));
        let before = bench.bodies();
        let data = pattern(blocks * 512);
        bench.write(1, &data, 0);
        assert_eq!(bench.status(1, 1).0, 0);
        let after = bench.bodies();
        let new = after.iter().filter(|body| !before.contains(body)).count();
        assert_eq!((new, after.len()), (1, before.len()), "another one is in its place");
        assert!(bench.read_back(2, data.len()) == data);
        bench.finish(3);
    }
}

#[test]
fn immediate_data_that_comes_elsewhere_is_copied() {
    // Little, behind additional header segments, up to where it ends behind the body, and in one piece.
    let cases = [(false, 1, 0), (false, 7, 0), (false, 8, 4), (false, 16, 4), (false, 16, 252)];
    for (one_piece, blocks, ahs) in cases.into_iter().chain([(true, 8, 0), (true, 16, 252)]) {
        let mut bench = Bench::session((true, one_piece), layout(None));
        let before = bench.bodies();
        assert!(before.is_empty() == one_piece);
        let data = pattern(blocks * 512);
        bench.write(1, &data, ahs);
        assert_eq!(bench.status(1, 1).0, 0, "{blocks} blocks behind {ahs} words");
        assert_eq!(bench.bodies(), before, "all buffers are as before");
        assert!(bench.read_back(2, data.len()) == data, "{blocks} blocks behind {ahs} words");
        bench.finish(3);
    }
}

#[test]
fn without_memory_immediate_data_is_copied_and_all_receives_stay() {
    let mut bench = Bench::session((true, false), layout(None));
    let arena = bench.shard.front.exec.storage.ring.arena().clone();
    let mut taken = Vec::new();
    while let Some(buf) = arena.alloc(64 << 10).or_else(|| arena.alloc(4096)) {
        taken.push(buf);
    }
    let before = bench.bodies();
    for number in 1..60 {
        bench.write(number, &pattern(4096), 0);
        assert_eq!(bench.status(1, number).0, 0, "it has its reserve");
        assert_eq!(bench.bodies(), before);
    }
    drop(taken);
    bench.write(60, &pattern(4096), 0);
    assert_eq!(bench.status(1, 60).0, 0);
    assert_ne!(bench.bodies(), before, "it is kept again");
    bench.finish(61);
}
