//! However the stream is cut, what comes out is the same.

use super::*;
use alloc::format;
use proptest::prelude::*;

/// What a run came to: events (tags and data as text) and what the target sent.
type Outcome = (Vec<String>, Vec<Got>);

/// Plays `stream` in pieces of these lengths (over and over). Write data is received into its
/// buffer when `direct` says so. Each command is answered at once.
fn play(keys: &[&str], stream: &[u8], cuts: &[usize], direct: bool) -> Outcome {
    let mut bench = Bench::ready(Options::default(), keys);
    let (mut seen, mut sent) = (Vec::new(), Vec::new());
    let mut rest = stream;
    let mut cuts = cuts.iter().cycle();
    while !rest.is_empty() && !bench.connection.is_closed() {
        let mut n = (*cuts.next().unwrap()).clamp(1, rest.len());
        let lent = if direct { bench.connection.take_rx_target() } else { None };
        if let Some(mut target) = lent {
            let filled = n.min(target.range.len());
            let start = target.range.start;
            target.buf[start..start + filled].copy_from_slice(&rest[..filled]);
            let Bench { connection, site, now, wires, events, .. } = &mut bench;
            connection.rx_payload(target, filled, &mut Cx { now: *now, site, tx: wires, events });
            rest = &rest[filled..];
            n -= filled;
        }
        let (head, tail) = rest.split_at(n);
        bench.raw(head);
        rest = tail;
        for event in bench.events() {
            let Event::Command(command) = event else {
                seen.push(format!("{event:?}"));
                continue;
            };
            // Slots are reused when answers come early, so the tag is left out.
            let Command { tag, cdb, long_cdb, expects_read, expects_write, data, .. } = command;
            seen.push(format!("{cdb:?} {long_cdb:?} {expects_read} {expects_write} {data:?}"));
            if expects_read > 0 {
                let len = expects_read as usize;
                let last = Some(Wanted { read: expects_read, write: 0 });
                let payload = TestPayload(bytes(len));
                bench.with(|c, tx| c.send_data(tag, payload, 0..len, last, tx));
            } else {
                bench.good(tag);
            }
        }
        sent.extend(bench.got());
    }
    (seen, sent)
}

/// A stream of commands, pings and broken things.
fn stream(keys: &[&str], parts: &[(u8, u16)]) -> Vec<u8> {
    let bench = Bench::ready(Options::default(), keys);
    let mut stream = Vec::new();
    let mut cmd_sn = 1;
    for (what, len) in parts {
        let len = usize::from(*len) % 5000;
        stream.extend(match what % 6 {
            0 => bench.encode(&read(cmd_sn, cmd_sn, len as u32), &[], &[]),
            1 => bench.encode(&write(cmd_sn, cmd_sn, len as u32), &[], &bytes(len)),
            2 => {
                let mut command = write(cmd_sn, cmd_sn, 2 * len as u32 + 2);
                command.flags &= !pdu::FINAL;
                let mut all = bench.encode(&command, &[], &bytes(len));
                let out = data_out(cmd_sn, u32::MAX, 0, len as u32);
                all.extend(bench.encode(&out, &[], &bytes(len + 2)));
                all
            }
            3 => {
                let nop = pdu::NopOut {
                    itt: U32::new(cmd_sn),
                    ttt: U32::new(u32::MAX),
                    cmd_sn: U32::new(cmd_sn),
                    ..Default::default()
                };
                bench.encode(&nop, &[], &bytes(len))
            }
            4 => {
                let mut ahs = Vec::new();
                assert!(pdu::write_extended_cdb(&mut ahs, &bytes(len % 200 + 1)));
                bench.encode(&read(cmd_sn, cmd_sn, 64), &ahs, &[])
            }
            // Late data of a task that is gone.
            _ => bench.encode(&data_out(0xdead, 5, 0, 0), &[], &bytes(len)),
        });
        cmd_sn += u32::from(what % 6 < 5);
    }
    stream
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_stream_means_the_same_however_it_is_cut(
        parts in proptest::collection::vec(any::<(u8, u16)>(), 1..12),
        cuts in proptest::collection::vec(prop_oneof![1usize..60, 1usize..9000], 1..20),
        digests: bool,
        direct: bool,
    ) {
        let keys: &[&str] =
            if digests { &["HeaderDigest=CRC32C", "DataDigest=CRC32C"] } else { &[] };
        let stream = stream(keys, &parts);
        let whole = play(keys, &stream, &[usize::MAX], false);
        let pieces = play(keys, &stream, &cuts, direct);
        prop_assert_eq!(whole.0, pieces.0);
        // Answers that are made while more commands wait behind them carry a smaller ExpCmdSN.
        let plain = |got: Vec<Got>| -> Vec<(Opcode, Vec<u8>)> {
            got.into_iter().map(|g| (g.opcode(), g.data)).collect()
        };
        let (mut whole, mut pieces) = (plain(whole.1), plain(pieces.1));
        whole.sort_by_key(|(opcode, data)| (opcode.code(), data.clone()));
        pieces.sort_by_key(|(opcode, data)| (opcode.code(), data.clone()));
        prop_assert_eq!(whole, pieces);
    }

    #[test]
    fn any_bytes_leave_the_connection_in_a_sound_state(
        junk in proptest::collection::vec(any::<u8>(), 0..2000),
        opcodes in proptest::collection::vec((0u8..0x40, any::<[u8; 32]>(), 0usize..300), 0..20),
        before_login: bool,
    ) {
        let mut bench = if before_login {
            Bench::new(Options::default())
        } else {
            Bench::ready(Options::default(), &[])
        };
        for (opcode, fields, len) in opcodes {
            let mut bhs = [0; BHS_LEN];
            bhs[16..].copy_from_slice(&fields);
            bhs[0] = opcode | pdu::IMMEDIATE;
            bhs[1] = fields[0];
            bhs[7] = len as u8;
            bench.raw(&bhs);
            bench.raw(&bytes(usize::from(bhs[7]).next_multiple_of(4)));
            let tags: Vec<Tag> = bench.events().into_iter().filter_map(|event| match event {
                Event::Command(command) => Some(command.tag),
                _ => None,
            }).collect();
            for tag in tags {
                bench.good(tag);
            }
        }
        bench.raw(&junk);
        let limit = (options::MAX_IMMEDIATE + Options::default().queue_depth) as usize;
        prop_assert!(bench.connection.outstanding() <= limit);
        prop_assert!(bench.site.allocated.iter().all(|len| *len <= 65_536));
        bench.got();
    }
}
