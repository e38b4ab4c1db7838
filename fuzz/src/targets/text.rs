//! Key data in pieces, and the negotiation of what it says.
use crate::Input;
use lunet_iscsi::keys::{Key, MAX_LENGTH, MIN_LENGTH, parse_bool, parse_number, valid_name};
use lunet_iscsi::pdu::CONTINUE;
use lunet_iscsi::target::Options;
use lunet_iscsi::target::negotiation::{Negotiated, answer};
use lunet_iscsi::text::{Collector, MAX_TEXT, Writer, pairs};

/// One input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (discovery, size) = (input.byte() & 1 != 0, 1 + usize::from(input.byte()));
    let text = input.0;
    let mut collector = Collector::new();
    let mut whole = None;
    let count = text.chunks(size).count();
    for (number, piece) in text.chunks(size).enumerate() {
        let flags = if number + 1 < count { CONTINUE } else { 0 };
        match collector.push(piece, flags) {
            Ok(complete) => whole = complete,
            Err(_) => assert!(text.len() > MAX_TEXT),
        }
    }
    assert_eq!(whole.as_deref().unwrap_or_default(), text);
    assert!(collector.is_empty());
    let options = Options::default();
    let mut negotiated = Negotiated::default();
    let mut again = Writer::new();
    for (name, value) in pairs(text).flatten() {
        again.pair(name, value);
        let _ = (parse_bool(value), parse_number(value), valid_name(value));
        let Some(key) = Key::from_name(name) else { continue };
        let _ = answer(&mut negotiated, &options, discovery, key, value);
    }
    let length = MIN_LENGTH..=MAX_LENGTH;
    assert!(length.contains(&negotiated.initiator_max_recv));
    assert!(length.contains(&negotiated.target_max_recv));
    assert!(length.contains(&negotiated.max_burst_length));
    assert!(length.contains(&negotiated.first_burst_length));
    assert!((1..=options.max_outstanding_r2t).contains(&negotiated.max_outstanding_r2t));
    assert!(negotiated.time2wait <= 3600 && negotiated.time2retain <= 3600);
    // What was read is read again from what is written of it.
    assert!(pairs(again.as_bytes()).flatten().eq(pairs(text).flatten()));
}
