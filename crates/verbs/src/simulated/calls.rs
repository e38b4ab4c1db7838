//! Devices, memory, queues and queue pairs: the functions of libibverbs.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::mem;
use std::ptr;
use std::slice;

use lunet_os::simulated;

use super::device::Context;
use super::pair::{Life, Pair, Receive, Work};
use super::{CompletionQueue, NoticeChannel, Registration, SharedQueue, queue_of, with};
use crate::ffi::*;

/// A structure of the library's, and its number.
#[repr(C)]
struct Object<T> {
    raw: T,
    number: u64,
}

/// Makes a structure of the library's.
pub(super) fn made<T>(number: u64, raw: T) -> *mut T {
    Box::into_raw(Box::new(Object { raw, number })).cast()
}

/// The number of a structure.
///
/// # Safety
/// It came from [`made`], and is alive.
pub(super) unsafe fn number_of<T>(raw: *mut T) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { (*raw.cast::<Object<T>>()).number }
}

/// Ends a structure; returns its number.
///
/// # Safety
/// As [`number_of`], once.
pub(super) unsafe fn free<T>(raw: *mut T) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { Box::from_raw(raw.cast::<Object<T>>()) }.number
}

/// What a function returns that fails with this error.
pub(super) fn fails(errno: c_int) -> c_int {
    // SAFETY: the calling thread's own number.
    unsafe { *libc::__errno_location() = errno };
    -1
}

fn none<T>(errno: c_int) -> *mut T {
    fails(errno);
    ptr::null_mut()
}

pub(super) fn verbs() -> VerbsTable {
    VerbsTable {
        ibv_query_device: query_device,
        ibv_get_async_event: get_async_event,
        ibv_ack_async_event: ack_async_event,
        ibv_alloc_pd: alloc_pd,
        ibv_dealloc_pd: dealloc_pd,
        ibv_reg_mr: reg_mr,
        ibv_dereg_mr: dereg_mr,
        ibv_create_comp_channel: create_channel,
        ibv_destroy_comp_channel: destroy_channel,
        ibv_create_cq: create_cq,
        ibv_destroy_cq: destroy_cq,
        ibv_get_cq_event: get_cq_event,
        ibv_ack_cq_events: ack_cq_events,
        ibv_create_srq: create_srq,
        ibv_destroy_srq: destroy_srq,
        ibv_modify_qp: modify_qp,
        ibv_query_qp: query_qp,
        ibv_destroy_qp: destroy_qp,
        ..VerbsTable::absent()
    }
}

pub(super) unsafe extern "C" fn get_devices(count: *mut c_int) -> *mut *mut IbvContext {
    let contexts = with(|s| {
        let process = simulated::process();
        let present: Vec<(u64, String)> = s
            .devices
            .iter()
            .filter(|device| device.present)
            .map(|device| (device.incarnation, device.name.clone()))
            .collect();
        let mut contexts = Vec::new();
        for (incarnation, name) in present {
            let own = |c: &&Context| c.process == process && c.incarnation == incarnation;
            if let Some(known) = s.contexts.values().find(own) {
                contexts.push(known.raw as *mut IbvContext);
                continue;
            }
            let Ok(signal) = s.signal() else { continue };
            let number = s.number();
            let raw = context(number, &name, signal.fd());
            let (raw_number, events) = (raw as usize, VecDeque::new());
            let new = Context { process, incarnation, raw: raw_number, events, signal };
            s.contexts.insert(number, new);
            contexts.push(raw);
        }
        contexts
    });
    // SAFETY: the caller's number; memory for so many devices and the end of the list.
    unsafe {
        *count = contexts.len() as c_int;
        let list = libc::calloc(contexts.len() + 1, size_of::<usize>()).cast::<*mut IbvContext>();
        contexts.iter().enumerate().for_each(|(n, context)| *list.add(n) = *context);
        list
    }
}

/// An opened device, for as long as the world.
fn context(number: u64, name: &str, async_fd: c_int) -> *mut IbvContext {
    // SAFETY: numbers, null pointers and absent functions are all zeroes.
    let (mut context, mut device): (IbvContext, IbvDevice) = unsafe { mem::zeroed() };
    for (to, from) in device.name.iter_mut().zip(name.bytes().take(63)) {
        *to = from as _;
    }
    context.ops.poll_cq = Some(poll_cq);
    context.ops.req_notify_cq = Some(req_notify_cq);
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    context.ops.post_srq_recv = Some(post_srq_recv);
    (context.num_comp_vectors, context.async_fd) = (2, async_fd);
    context.device = Box::into_raw(Box::new(device));
    made(number, context)
}

pub(super) unsafe extern "C" fn free_devices(list: *mut *mut IbvContext) {
    // SAFETY: memory of the same kind, whose owner frees it once.
    unsafe { libc::free(list.cast()) };
}

unsafe extern "C" fn query_device(context: *mut IbvContext, attr: *mut IbvDeviceAttr) -> c_int {
    // SAFETY: the caller's structures.
    let (attr, number) = unsafe { (&mut *attr, number_of(context)) };
    let Some(traits) = with(|s| s.traits(number)) else { return libc::EIO };
    let depth = traits.depth as c_int;
    (attr.max_qp_wr, attr.max_cqe, attr.max_sge) = (depth, 4 * depth, 4);
    (attr.max_qp_rd_atom, attr.max_qp_init_rd_atom, attr.max_mr_size) = (16, 16, u64::MAX);
    attr.phys_port_cnt = 1;
    if traits.shared_receives {
        (attr.max_srq, attr.max_srq_wr) = (8, depth);
        attr.max_srq_sge = traits.pieces as c_int;
    }
    if traits.invalidates {
        attr.device_cap_flags = DEVICE_MEM_MGT_EXTENSIONS;
    }
    0
}

unsafe extern "C" fn get_async_event(context: *mut IbvContext, event: *mut IbvAsyncEvent) -> c_int {
    // SAFETY: the context is alive.
    let number = unsafe { number_of(context) };
    with(|s| {
        let Some(context) = s.contexts.get_mut(&number) else { return fails(libc::EIO) };
        let next = context.events.pop_front();
        context.signal.set(!context.events.is_empty());
        let Some(event_type) = next else { return fails(libc::EAGAIN) };
        // SAFETY: the caller's place for the answer.
        unsafe { *event = IbvAsyncEvent { element: 0, event_type } };
        0
    })
}

unsafe extern "C" fn ack_async_event(_: *mut IbvAsyncEvent) {}

unsafe extern "C" fn alloc_pd(context: *mut IbvContext) -> *mut IbvPd {
    // SAFETY: the context is alive.
    let of = unsafe { number_of(context) };
    with(|s| match s.traits(of) {
        Some(_) => made(s.object("a protection domain"), IbvPd { context }),
        None => none(libc::EIO),
    })
}

unsafe extern "C" fn dealloc_pd(pd: *mut IbvPd) -> c_int {
    // SAFETY: the domain is alive, and its owner ends it once.
    let number = unsafe { free(pd) };
    with(|s| s.objects.remove(&number));
    0
}

unsafe extern "C" fn reg_mr(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut IbvMr {
    // SAFETY: the domain is alive.
    let (context, of) = unsafe { ((*pd).context, number_of((*pd).context)) };
    with(|s| {
        let Some(traits) = s.traits(of) else { return none(libc::EIO) };
        if simulated::below(100) < traits.refuses_memory {
            return none(libc::ENOMEM);
        }
        let number = s.object("a registration");
        let (start, len, writable) = (addr as u64, length as u64, access & ACCESS_LOCAL_WRITE != 0);
        s.registrations.insert(number as u32, Registration { start, len, writable });
        let (lkey, rkey) = (number as u32, number as u32);
        made(number, IbvMr { context, pd, addr, length, handle: 0, lkey, rkey })
    })
}

unsafe extern "C" fn dereg_mr(mr: *mut IbvMr) -> c_int {
    // SAFETY: the registration is alive, and its owner ends it once.
    let number = unsafe { free(mr) };
    with(|s| {
        s.objects.remove(&number);
        s.registrations.remove(&(number as u32));
        let key = number as u32;
        let has = |pieces: &[IbvSge]| pieces.iter().any(|piece| piece.lkey == key);
        let in_use = s.pairs.values().any(|pair| {
            pair.sends.iter().any(|work| work.inline.is_none() && has(&work.pieces))
                || pair.receives.iter().any(|receive| has(&receive.pieces))
        });
        if in_use {
            s.wrong("memory is given back that posted work needs".into());
        }
    });
    0
}

unsafe extern "C" fn create_channel(context: *mut IbvContext) -> *mut IbvCompChannel {
    with(|s| {
        let Ok(signal) = s.signal() else { return none(libc::EMFILE) };
        let number = s.object("a completion channel");
        s.channels.insert(number, NoticeChannel { notices: VecDeque::new(), signal });
        made(number, IbvCompChannel { context, fd: signal.fd(), refcnt: 0 })
    })
}

unsafe extern "C" fn destroy_channel(channel: *mut IbvCompChannel) -> c_int {
    // SAFETY: the channel is alive, and its owner ends it once.
    let number = unsafe { free(channel) };
    with(|s| {
        s.objects.remove(&number);
        if let Some(channel) = s.channels.remove(&number) {
            channel.signal.close();
        }
        if s.queues.values().any(|queue| queue.channel == number) {
            s.wrong("a completion channel goes before its queues".into());
        }
    });
    0
}

unsafe extern "C" fn create_cq(
    context: *mut IbvContext,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut IbvCompChannel,
    _: c_int,
) -> *mut IbvCq {
    // SAFETY: both are alive.
    let (of, on) = unsafe { (number_of(context), number_of(channel)) };
    with(|s| {
        if s.traits(of).is_none() {
            return none(libc::EIO);
        }
        let number = s.object("a completion queue");
        let raw = made(number, IbvCq { context, channel, cq_context, handle: 0, cqe });
        let new = CompletionQueue {
            raw: raw as usize,
            channel: on,
            context: of,
            depth: cqe as usize,
            done: VecDeque::new(),
            armed: false,
            unacknowledged: 0,
        };
        s.queues.insert(number, new);
        raw
    })
}

unsafe extern "C" fn destroy_cq(cq: *mut IbvCq) -> c_int {
    // SAFETY: the queue is alive, and its owner ends it once.
    let number = unsafe { free(cq) };
    with(|s| {
        s.objects.remove(&number);
        let Some(queue) = s.queues.remove(&number) else { return };
        if queue.unacknowledged > 0 {
            s.wrong(
                "a completion queue goes before its notices are acknowledged: this waits for ever"
                    .into(),
            );
        }
        if s.pairs.values().any(|pair| pair.send_queue == number || pair.receive_queue == number) {
            s.wrong("a completion queue goes before its queue pairs".into());
        }
        if let Some(channel) = s.channels.get_mut(&queue.channel) {
            channel.notices.retain(|raw| *raw != queue.raw);
            channel.signal.set(!channel.notices.is_empty());
        }
    });
    0
}

unsafe extern "C" fn get_cq_event(
    channel: *mut IbvCompChannel,
    cq: *mut *mut IbvCq,
    _: *mut *mut c_void,
) -> c_int {
    // SAFETY: the channel is alive.
    let number = unsafe { number_of(channel) };
    with(|s| {
        let Some(channel) = s.channels.get_mut(&number) else { return fails(libc::EBADF) };
        let notice = channel.notices.pop_front();
        channel.signal.set(!channel.notices.is_empty());
        let Some(raw) = notice else { return fails(libc::EAGAIN) };
        if let Some(queue) = s.queues.values_mut().find(|queue| queue.raw == raw) {
            queue.unacknowledged += 1;
        }
        // SAFETY: the caller's place for the answer.
        unsafe { *cq = queue_of(raw) };
        0
    })
}

unsafe extern "C" fn ack_cq_events(cq: *mut IbvCq, count: c_uint) {
    // SAFETY: the queue is alive.
    let number = unsafe { number_of(cq) };
    with(|s| {
        if let Some(queue) = s.queues.get_mut(&number) {
            queue.unacknowledged = queue.unacknowledged.saturating_sub(count);
        }
    });
}

unsafe extern "C" fn poll_cq(cq: *mut IbvCq, room: c_int, into: *mut IbvWc) -> c_int {
    // SAFETY: the queue is alive.
    let number = unsafe { number_of(cq) };
    with(|s| {
        let Some(queue) = s.queues.get_mut(&number) else { return -1 };
        let (context, count) = (queue.context, queue.done.len().min(room as usize));
        let done: Vec<(IbvWc, usize)> = queue.done.drain(..count).collect();
        for (n, (wc, places)) in done.into_iter().enumerate() {
            // SAFETY: the caller has room for so many.
            unsafe { into.add(n).write(wc) };
            let own = |pair: &&mut Pair| pair.name == wc.qp_num && pair.send_queue == number;
            if let Some(pair) = s.pairs.values_mut().find(own) {
                pair.taken = pair.taken.saturating_sub(places);
            }
        }
        // One that has gone says so when it is asked, or only by what it flushes.
        if count == 0 && s.traits(context).is_none() && simulated::below(4) == 0 {
            return -1;
        }
        count as c_int
    })
}

unsafe extern "C" fn req_notify_cq(cq: *mut IbvCq, _: c_int) -> c_int {
    // SAFETY: the queue is alive.
    let number = unsafe { number_of(cq) };
    with(|s| {
        // What comes just before it is asked for causes no notice.
        if simulated::below(8) == 0 {
            s.hurry(number);
        }
        if let Some(queue) = s.queues.get_mut(&number) {
            queue.armed = true;
        }
        0
    })
}

unsafe extern "C" fn create_srq(pd: *mut IbvPd, attr: *mut IbvSrqInitAttr) -> *mut IbvSrq {
    // SAFETY: the domain is alive, and the caller's structure.
    let (context, of, depth) =
        unsafe { ((*pd).context, number_of((*pd).context), (*attr).max_wr as usize) };
    with(|s| {
        if s.traits(of).is_none() {
            return none(libc::EIO);
        }
        let number = s.object("a shared receive queue");
        let (waiting, lost) = (VecDeque::new(), Vec::new());
        s.shared.insert(number, SharedQueue { waiting, lost, depth });
        made(number, IbvSrq { context })
    })
}

unsafe extern "C" fn destroy_srq(srq: *mut IbvSrq) -> c_int {
    // SAFETY: the queue is alive, and its owner ends it once.
    let number = unsafe { free(srq) };
    with(|s| {
        s.objects.remove(&number);
        if s.pairs.values().any(|pair| pair.shared == Some(number)) {
            s.wrong("a shared receive queue goes before its queue pairs".into());
        }
        let Some(queue) = s.shared.remove(&number) else { return };
        queue.waiting.iter().chain(&queue.lost).for_each(|receive| s.check(receive));
    });
    0
}

pub(super) unsafe extern "C" fn create_qp(
    id: *mut RdmaCmId,
    pd: *mut IbvPd,
    attr: *mut IbvQpInitAttr,
) -> c_int {
    // SAFETY: the caller's structures.
    let (id, attr) = unsafe { (&mut *id, &mut *attr) };
    // SAFETY: all of them are alive; without a shared queue there is none.
    let (number, of, sends, receives, shared) = unsafe {
        let shared = (!attr.srq.is_null()).then(|| number_of(attr.srq));
        let queues = (number_of(attr.send_cq), number_of(attr.recv_cq));
        (number_of(ptr::from_mut(id)), number_of(id.verbs), queues.0, queues.1, shared)
    };
    with(|s| {
        let Some(traits) = s.traits(of) else { return fails(libc::EIO) };
        if attr.cap.max_inline_data > traits.inline {
            return fails(libc::EINVAL);
        }
        // A name is used again as soon as it is free.
        let is_free = |name: &u32| s.pairs.values().all(|pair| pair.name != *name);
        let name = (1..).find(is_free).unwrap_or(1);
        let pair = s.object("a queue pair");
        let depth = attr.cap.max_send_wr as usize;
        s.pairs.insert(pair, Pair::new((name, of), (sends, receives, shared), depth));
        if let Some(id) = s.ids.get_mut(&number) {
            id.pair = Some(pair);
        }
        let raw = IbvQp {
            context: id.verbs,
            qp_context: ptr::null_mut(),
            pd,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            handle: 0,
            qp_num: name,
        };
        id.qp = made(pair, raw);
        0
    })
}

unsafe extern "C" fn modify_qp(_: *mut IbvQp, _: *mut IbvQpAttr, _: c_int) -> c_int {
    0
}

unsafe extern "C" fn query_qp(
    _: *mut IbvQp,
    attr: *mut IbvQpAttr,
    _: c_int,
    _: *mut IbvQpInitAttr,
) -> c_int {
    // SAFETY: the caller's structure.
    unsafe { (*attr).path_mtu = 3 };
    0
}

unsafe extern "C" fn destroy_qp(qp: *mut IbvQp) -> c_int {
    // SAFETY: the queue pair is alive, and its owner ends it once.
    let number = unsafe { free(qp) };
    with(|s| {
        s.objects.remove(&number);
        let Some(pair) = s.pairs.remove(&number) else { return };
        s.check_all(&pair);
        if let Some(end) = pair.end {
            s.end_breaks(end, std::time::Duration::from_millis(simulated::below(2000)));
        }
        if let (Some(receive), Some(shared)) = (pair.arriving, pair.shared) {
            if let Some(shared) = s.shared.get_mut(&shared) {
                shared.lost.push(receive);
            }
        }
        // Some devices forget what has ended of it.
        if simulated::below(2) == 0 {
            for queue in [pair.send_queue, pair.receive_queue] {
                if let Some(queue) = s.queues.get_mut(&queue) {
                    queue.done.retain(|(wc, _)| wc.qp_num != pair.name);
                }
            }
        }
    });
    0
}

/// The pieces of a work request.
///
/// # Safety
/// There are so many.
unsafe fn pieces(list: *mut IbvSge, count: c_int) -> Vec<IbvSge> {
    match count {
        1.. => {
            // SAFETY: the caller's promise.
            unsafe { slice::from_raw_parts(list, count as usize).to_vec() }
        }
        _ => Vec::new(),
    }
}

unsafe extern "C" fn post_send(
    qp: *mut IbvQp,
    mut work: *mut IbvSendWr,
    bad: *mut *mut IbvSendWr,
) -> c_int {
    // SAFETY: the queue pair is alive.
    let number = unsafe { number_of(qp) };
    while !work.is_null() {
        // SAFETY: the caller's list, and so many pieces of each of its entries.
        let (wr, pieces) = unsafe { (*work, pieces((*work).sg_list, (*work).num_sge)) };
        let mut new = Work {
            number: wr.wr_id,
            opcode: wr.opcode,
            signaled: wr.send_flags & SEND_SIGNALED != 0,
            inline: None,
            pieces,
            address: wr.remote_addr,
            key: if wr.opcode == WR_SEND_WITH_INV { wr.invalidate_rkey } else { wr.rkey },
            print: 0,
            result: None,
            ready: false,
        };
        new.look(wr.send_flags & SEND_INLINE != 0);
        let taken = with(|s| {
            let there = s.pairs.get(&number).is_some_and(|pair| s.traits(pair.context).is_some());
            there && s.post_send(number, new)
        });
        if !taken {
            // SAFETY: the caller's place for the answer.
            unsafe { *bad = work };
            return libc::EIO;
        }
        work = wr.next;
    }
    0
}

unsafe extern "C" fn post_recv(
    qp: *mut IbvQp,
    mut work: *mut IbvRecvWr,
    bad: *mut *mut IbvRecvWr,
) -> c_int {
    // SAFETY: the queue pair is alive.
    let number = unsafe { number_of(qp) };
    while !work.is_null() {
        // SAFETY: the caller's list, and so many pieces of each of its entries.
        let (wr, pieces) = unsafe { (*work, pieces((*work).sg_list, (*work).num_sge)) };
        let taken = with(|s| {
            let failed = match s.pairs.get_mut(&number) {
                None => return false,
                Some(pair) => {
                    pair.receives.push_back(Receive::new(wr.wr_id, pieces));
                    pair.life == Life::Failed
                }
            };
            if failed {
                super::later(super::latency(), move |s| s.flush_pair(number));
            }
            true
        });
        if !taken {
            // SAFETY: the caller's place for the answer.
            unsafe { *bad = work };
            return libc::EIO;
        }
        work = wr.next;
    }
    0
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut IbvSrq,
    mut work: *mut IbvRecvWr,
    bad: *mut *mut IbvRecvWr,
) -> c_int {
    // SAFETY: the queue is alive.
    let number = unsafe { number_of(srq) };
    while !work.is_null() {
        // SAFETY: the caller's list, and so many pieces of each of its entries.
        let (wr, pieces) = unsafe { (*work, pieces((*work).sg_list, (*work).num_sge)) };
        let taken = with(|s| {
            let Some(queue) = s.shared.get_mut(&number) else { return false };
            if queue.waiting.len() >= queue.depth {
                s.wrong("a shared receive queue has overflowed".into());
                return false;
            }
            queue.waiting.push_back(Receive::new(wr.wr_id, pieces));
            true
        });
        if !taken {
            // SAFETY: the caller's place for the answer.
            unsafe { *bad = work };
            return libc::ENOMEM;
        }
        work = wr.next;
    }
    0
}
