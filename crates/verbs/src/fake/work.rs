//! Work that the device is given, and completions that are taken from it.

use std::collections::VecDeque;
use std::ffi::c_int;

use super::{Posted, with};
use crate::ffi::*;

pub(super) unsafe extern "C" fn poll_cq(cq: *mut IbvCq, room: c_int, into: *mut IbvWc) -> c_int {
    with(|s| {
        let arrivals = s.arrivals == Some(cq);
        let (mut count, mut others) = (0, VecDeque::new());
        for wc in s.completions.drain(..) {
            let received = s.receives.iter().any(|list| list.contains(&wc.wr_id));
            if received == arrivals && count < room as usize {
                // SAFETY: the caller has room for so many.
                unsafe { into.add(count).write(wc) };
                count += 1;
            } else {
                others.push_back(wc);
            }
        }
        s.completions = others;
        count as c_int
    })
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut IbvCq, _: c_int) -> c_int {
    with(|s| s.armed.push(cq));
    0
}

pub(super) unsafe extern "C" fn post_send(
    _: *mut IbvQp,
    mut work: *mut IbvSendWr,
    bad: *mut *mut IbvSendWr,
) -> c_int {
    let takes = with(|s| s.takes.take());
    let mut list = Vec::new();
    while !work.is_null() {
        if takes == Some(list.len()) {
            // SAFETY: the caller's place for the answer.
            unsafe { *bad = work };
            with(|s| s.sends.push(list));
            return libc::ENOMEM;
        }
        // SAFETY: the caller's list, and so many pieces of each of its entries.
        let (wr, pieces) = unsafe {
            let wr = *work;
            (wr, std::slice::from_raw_parts(wr.sg_list, wr.num_sge as usize))
        };
        list.push(Posted {
            number: wr.wr_id,
            opcode: wr.opcode,
            flags: wr.send_flags,
            lengths: pieces.iter().map(|piece| piece.length).collect(),
            key: if wr.opcode == WR_SEND_WITH_INV { wr.invalidate_rkey } else { wr.rkey },
        });
        work = wr.next;
    }
    with(|s| s.sends.push(list));
    0
}

fn note_receives(mut work: *mut IbvRecvWr) -> c_int {
    let mut list = Vec::new();
    while !work.is_null() {
        // SAFETY: the caller's list, and so many pieces of each of its entries.
        let (wr, pieces) = unsafe {
            let wr = *work;
            (wr, std::slice::from_raw_parts(wr.sg_list, wr.num_sge as usize))
        };
        let pieces = pieces.iter().map(|piece| (piece.addr, piece.length)).collect();
        with(|s| s.scattered.push(pieces));
        list.push(wr.wr_id);
        work = wr.next;
    }
    with(|s| s.receives.push(list));
    0
}

pub(super) unsafe extern "C" fn post_recv(
    _: *mut IbvQp,
    work: *mut IbvRecvWr,
    _: *mut *mut IbvRecvWr,
) -> c_int {
    note_receives(work)
}

pub(super) unsafe extern "C" fn post_srq_recv(
    _: *mut IbvSrq,
    work: *mut IbvRecvWr,
    _: *mut *mut IbvRecvWr,
) -> c_int {
    note_receives(work)
}
