use super::control::logout;
use super::*;
use crate::pdu::{TmfFunction, TmfRequest, TmfResponse, TmfResponsePdu};

/// An immediate request; its own tag is 0x77.
pub(super) fn tmf(function: u8, referenced: u32, cmd_sn: u32, ref_cmd_sn: u32) -> TmfRequest {
    TmfRequest {
        opcode: 0x42,
        flags: pdu::FINAL | function,
        lun: U64::new(LUN),
        itt: U32::new(0x77),
        referenced_itt: U32::new(referenced),
        cmd_sn: U32::new(cmd_sn),
        ref_cmd_sn: U32::new(ref_cmd_sn),
        exp_stat_sn: U32::new(2),
        ..Default::default()
    }
}

fn answer(bench: &mut Bench) -> u8 {
    let got = bench.one();
    let pdu = got.as_pdu::<TmfResponsePdu>();
    assert_eq!(pdu.itt.get(), 0x77);
    pdu.response
}

#[test]
fn a_running_task_is_aborted_by_the_layer_above() {
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.feed(read(1, 1, 512), &[]);
    let task = bench.command().tag;
    bench.feed(tmf(1, 1, 2, 1), &[]);
    let Some(Event::TaskManagement { tag, function, lun, referenced }) = bench.events.pop() else {
        panic!()
    };
    assert_eq!((function, lun, referenced), (TmfFunction::AbortTask, LUN, Some(task)));
    bench.connection.abort(task);
    bench.good(task);
    bench.with(|c, tx| c.respond_tmf(tag, TmfResponse::Complete, tx));
    assert_eq!(answer(&mut bench), 0);
    assert_eq!(bench.connection.outstanding(), 0);
}

#[test]
fn a_task_that_still_collects_data_is_aborted_at_once() {
    let mut bench = Bench::ready(Options::default(), &[]);
    let mut command = write(1, 1, 8192);
    command.flags &= !pdu::FINAL;
    bench.feed(command, &[]);
    bench.feed(tmf(1, 1, 2, 1), &[]);
    assert_eq!(answer(&mut bench), 0);
    bench.feed(data_out(1, u32::MAX, 0, 0), &bytes(8192));
    assert!(bench.events().is_empty() && bench.got().is_empty());
}

#[test]
fn aborts_of_tasks_that_do_not_exist() {
    // A number that is still to come counts as received, and the command is ignored when it comes.
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.feed(tmf(1, 5, 3, 1), &[]);
    assert_eq!(answer(&mut bench), 0);
    bench.feed(read(5, 1, 512), &[]);
    assert!(bench.events().is_empty());
    bench.feed(tmf(1, 5, 4, 3), &[]);
    assert_eq!(answer(&mut bench), 0);
    bench.feed(read(2, 2, 512), &[]);
    assert_eq!(bench.events().len(), 1);
    // Numbers outside of the window, or not before the request.
    for (cmd_sn, ref_cmd_sn) in [(4, 1), (4, 500), (4, 4)] {
        bench.feed(tmf(1, 5, cmd_sn, ref_cmd_sn), &[]);
        assert_eq!(answer(&mut bench), 1);
    }
}

#[test]
fn an_abort_that_crosses_the_answer_of_its_task_finds_nothing() {
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.feed(read(1, 1, 512), &[]);
    let task = bench.command().tag;
    bench.good(task);
    bench.got();
    bench.feed(tmf(1, 1, 2, 1), &[]);
    assert_eq!(answer(&mut bench), 1, "task does not exist");
}

#[test]
fn an_abort_for_another_logical_unit_finds_nothing() {
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.feed(read(1, 1, 512), &[]);
    bench.feed(TmfRequest { lun: U64::new(0), ..tmf(1, 1, 2, 1) }, &[]);
    assert_eq!(answer(&mut bench), 1);
}

/// The tag of the function that has come last.
fn function(bench: &mut Bench) -> Tag {
    let Some(Event::TaskManagement { tag, referenced: None, .. }) = bench.events.pop() else {
        panic!()
    };
    tag
}

#[test]
fn a_function_that_is_refused_ends_nothing() {
    let mut bench = Bench::ready(Options::default(), &[]);
    let mut command = write(1, 1, 8192);
    command.flags &= !pdu::FINAL;
    bench.feed(command, &[]);
    bench.feed(tmf(7, u32::MAX, 2, 0), &[]);
    let tag = function(&mut bench);
    bench.with(|c, tx| c.respond_tmf(tag, TmfResponse::AuthorizationFailed, tx));
    assert_eq!(answer(&mut bench), 6);
    let mut data = data_out(1, u32::MAX, 0, 0);
    data.flags = pdu::FINAL;
    bench.feed(data, &bytes(8192));
    assert_eq!(bench.command().data.map(|(_, len)| len), Some(8192));
}

#[test]
fn functions_reach_what_was_not_handed_up() {
    let mut bench = Bench::ready(Options::default(), &[]);
    for (itt, lun) in [(1, LUN), (2, 0)] {
        let mut command = write(itt, itt, 8192);
        command.flags &= !pdu::FINAL;
        command.lun = U64::new(lun);
        bench.feed(command, &[]);
    }
    bench.feed(tmf(5, u32::MAX, 3, 0), &[]);
    let tag = function(&mut bench);
    assert_eq!(bench.connection.older_than(tag, |_| true).len(), 2);
    let [own] = bench.connection.older_than(tag, |lun| lun == LUN)[..] else { panic!() };
    // Its last data comes before the function is carried out: it is handed up, and not pending.
    let mut data = data_out(1, u32::MAX, 0, 0);
    data.flags = pdu::FINAL;
    bench.feed(data, &bytes(8192));
    let command = bench.command();
    assert_eq!(command.tag, own);
    bench.connection.abort(own);
    assert!(!bench.connection.is_pending(command.tag));
    bench.with(|c, tx| c.respond_tmf(tag, TmfResponse::Complete, tx));
    assert_eq!((answer(&mut bench), bench.connection.outstanding()), (0, 1));
}

/// By CmdSN, and immediate commands by their place in the stream, whenever it is looked.
#[test]
fn a_function_spares_the_commands_behind_it() {
    for function_code in [2, 4, 5, 6, 7] {
        let mut bench = Bench::ready(Options::default(), &[]);
        let immediate = |itt| ScsiCommand { opcode: 0x41, ..read(itt, 2, 512) };
        bench.feed(read(1, 1, 512), &[]);
        bench.feed(immediate(2), &[]);
        // In front of a gap, and behind it.
        bench.feed(read(9, 3, 512), &[]);
        bench.feed(tmf(function_code, u32::MAX, 2, 0), &[]);
        let tag = function(&mut bench);
        bench.feed(immediate(3), &[]);
        bench.feed(read(4, 2, 512), &[]);
        let tags: Vec<Tag> = bench
            .events()
            .iter()
            .filter_map(|event| match event {
                Event::Command(command) => Some(command.tag),
                _ => None,
            })
            .collect();
        assert_eq!(tags.len(), 5);
        let mut older = bench.connection.older_than(tag, |_| true);
        older.sort_by_key(|tag| tag.generation());
        assert_eq!(older, tags[..2], "function {function_code}");
    }
}

#[test]
fn a_logout_waits_for_functions() {
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.feed(tmf(5, u32::MAX, 1, 0), &[]);
    let tag = function(&mut bench);
    bench.feed(logout(0, 0), &[]);
    assert!(bench.events().is_empty() && bench.got().is_empty());
    assert!(!bench.connection.logs_out());
    // One is enough.
    bench.feed(logout(0, 0), &[]);
    assert_eq!(bench.one().as_pdu::<pdu::Reject>().reason, 4);
    bench.with(|c, tx| c.respond_tmf(tag, TmfResponse::Complete, tx));
    assert_eq!(answer(&mut bench), 0);
    assert!(bench.connection.logs_out());
    bench.log_out();
    assert_eq!(bench.one().opcode(), Opcode::LogoutResponse);
    assert_eq!(bench.closed(), CloseReason::LoggedOut);
}

#[test]
fn a_logout_lets_commands_in_front_of_it_be_answered() {
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.feed(read(1, 1, 512), &[]);
    bench.feed(read(2, 2, 512), &[]);
    bench.feed(logout(0, 0), &[]);
    assert!(bench.connection.logs_out());
    let [Event::Command(first), Event::Command(_)] = &bench.events()[..] else { panic!() };
    bench.good(first.tag);
    assert_eq!(bench.one().opcode(), Opcode::ScsiResponse);
    // The other one is at the storage.
    bench.log_out();
    assert_eq!(bench.one().opcode(), Opcode::LogoutResponse);
    assert_eq!(bench.closed(), CloseReason::LoggedOut);
}

#[test]
fn functions_that_are_not_supported() {
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.feed(tmf(8, 1, 1, 1), &[]);
    assert_eq!(answer(&mut bench), 4);
    bench.feed(tmf(0, 1, 1, 1), &[]);
    assert_eq!(answer(&mut bench), 5);
    bench.feed(tmf(9, 1, 1, 1), &[]);
    assert_eq!(answer(&mut bench), 5);
}

#[test]
fn a_function_with_a_tag_in_use_is_rejected() {
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.feed(read(0x77, 1, 512), &[]);
    bench.feed(tmf(5, u32::MAX, 2, 0), &[]);
    assert_eq!(bench.one().as_pdu::<pdu::Reject>().reason, 7);
}
