//! Any bytes as a header of NVMe/TCP, at both ends.
use crate::Input;
use lunet_nvme::pdu::{COMMON_LEN, Framing, Header, MAX_ALIGNMENT, Rules, Sender, TermReq};

/// One input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let agreed = input.byte();
    let framing = Framing {
        header_digest: agreed & 1 != 0,
        data_digest: agreed & 2 != 0,
        alignment: agreed >> 3 & MAX_ALIGNMENT,
    };
    let sender = if agreed & 4 == 0 { Sender::Host } else { Sender::Controller };
    let rules = Rules { sender, framing, max_capsule: 8192, max_data: input.long() };
    let mut bytes = [0; 24];
    let given = input.take(bytes.len());
    bytes[..given.len()].copy_from_slice(given);
    let header = TermReq::view(&bytes).expect("enough bytes");
    let layout = match header.common.layout(&rules) {
        Ok(layout) => layout,
        Err(error) => {
            let (_, field) = error.fatal();
            assert!(field < COMMON_LEN as u32);
            return;
        }
    };
    assert!(layout.data as u64 <= u64::from(rules.max_data.max(rules.max_capsule)));
    // What was understood is written with the same lengths.
    let mut again = TermReq::default();
    let written = framing.seal(&mut again, layout.kind, 0, layout.data as u32);
    assert_eq!((written.head, written.data), (layout.head, layout.data));
    assert!(written.gap <= layout.gap);
}
