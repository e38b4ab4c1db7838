//! A device that is none, for tests on machines without one: it notes what it is told, and says of
//! work what the test has it say. One for each thread.

mod work;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::cm::{CmId, EventChannel};
use crate::ffi::*;
use crate::{Device, Library};
use work::{poll_cq, post_recv, post_send, post_srq_recv, req_notify_cq};

/// A send, write or read as the device was told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Posted {
    pub(crate) number: u64,
    pub(crate) opcode: c_uint,
    pub(crate) flags: c_uint,
    pub(crate) lengths: Vec<u32>,
    pub(crate) key: u32,
}

/// What the device knows, and what it will do.
#[derive(Default)]
pub(crate) struct State {
    /// Lists of work, one for each call.
    pub(crate) sends: Vec<Vec<Posted>>,
    /// Numbers of receives, one list for each call.
    pub(crate) receives: Vec<Vec<u64>>,
    /// The pieces of each receive, as it was told of them: address and length.
    pub(crate) scattered: Vec<Vec<(u64, u32)>>,
    /// Its receives are of one piece.
    pub(crate) no_scatter: bool,
    /// What it says when it is polled.
    pub(crate) completions: VecDeque<IbvWc>,
    /// How much of the next list of sends it takes; then it refuses.
    pub(crate) takes: Option<usize>,
    /// It does not let go of queue pairs.
    pub(crate) holds_on: bool,
    /// It refuses queue pairs that can send bytes of the queue itself.
    pub(crate) no_inline: bool,
    /// What it says when a connection is ended.
    pub(crate) at_disconnect: Vec<IbvWc>,
    /// What was changed of queue pairs: which attributes, and their timer for receivers that are not ready.
    pub(crate) modified: Vec<(c_int, u8)>,
    /// It registers no memory.
    pub(crate) no_memory: bool,
    /// It has no room for shared queues.
    pub(crate) no_shared: bool,
    /// Completion queues that it was asked to give notice of, in this order.
    pub(crate) armed: Vec<*mut IbvCq>,
    /// Completion queues that it gives notice of, one each time it is asked.
    pub(crate) notices: VecDeque<*mut IbvCq>,
    /// How often it was asked for a notice, and how many were acknowledged.
    pub(crate) reads: u32,
    pub(crate) acknowledged: u32,
    /// Objects that were made and not ended: domains, registrations, channels, completion queues, shared
    /// queues, queue pairs, ids, event channels, lists of devices.
    pub(crate) alive: [i32; 9],
    pairs: u32,
    /// Where ends of receives go, as the last queue pair has it.
    arrivals: Option<*mut IbvCq>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
    static DEVICE: RefCell<Option<NonNull<IbvContext>>> = const { RefCell::new(None) };
}

/// Looks at the device's state, or changes it.
pub(crate) fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(f)
}

/// The completion of a work request, with this status.
pub(crate) fn says(number: u64, status: u32) -> IbvWc {
    IbvWc { wr_id: number, status, byte_len: 5, ..IbvWc::default() }
}

/// The device.
pub(crate) fn device() -> (Arc<Library>, Device) {
    let library = Library::fake(verbs(), cm());
    let device = library.devices().expect("a device").remove(0);
    (library, device)
}

/// An id on the device.
pub(crate) fn id(library: &Arc<Library>) -> CmId {
    let channel = EventChannel::new(library).expect("a channel");
    CmId::new(&channel, 7).expect("an id")
}

fn verbs() -> VerbsTable {
    VerbsTable {
        ibv_query_device: query_device,
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
        ibv_destroy_qp: destroy_qp,
        ibv_modify_qp: modify_qp,
        ..VerbsTable::absent()
    }
}

fn cm() -> CmTable {
    CmTable {
        rdma_get_devices: get_devices,
        rdma_free_devices: free_devices,
        rdma_create_event_channel: create_event_channel,
        rdma_destroy_event_channel: destroy_event_channel,
        rdma_create_id: create_id,
        rdma_destroy_id: destroy_id,
        rdma_create_qp: create_qp,
        rdma_accept: accept,
        rdma_disconnect: disconnect,
        ..CmTable::absent()
    }
}

/// Counts a new object, and makes it.
fn made<T>(kind: usize, value: T) -> *mut T {
    with(|s| s.alive[kind] += 1);
    Box::into_raw(Box::new(value))
}

/// Ends an object that [`made`] has made.
fn ended<T>(kind: usize, object: *mut T) -> c_int {
    with(|s| s.alive[kind] -= 1);
    // SAFETY: the object came from `made`, and its owner ends it once.
    drop(unsafe { Box::from_raw(object) });
    0
}

/// A descriptor that is never readable.
fn quiet() -> c_int {
    // SAFETY: makes a new descriptor and touches no memory.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }
}

fn context() -> *mut IbvContext {
    DEVICE.with_borrow_mut(|device| {
        let made = || {
            // SAFETY: numbers, null pointers and absent functions are all zeroes.
            let (mut context, mut device): (IbvContext, IbvDevice) = unsafe { mem::zeroed() };
            for (to, from) in device.name.iter_mut().zip(*b"fake0") {
                *to = from as _;
            }
            context.ops.poll_cq = Some(poll_cq);
            context.ops.req_notify_cq = Some(req_notify_cq);
            context.ops.post_send = Some(post_send);
            context.ops.post_recv = Some(post_recv);
            context.ops.post_srq_recv = Some(post_srq_recv);
            context.num_comp_vectors = 3;
            context.async_fd = quiet();
            // Of the thread, and so for ever: a test has one.
            context.device = Box::into_raw(Box::new(device));
            NonNull::from(Box::leak(Box::new(context)))
        };
        device.get_or_insert_with(made).as_ptr()
    })
}

unsafe extern "C" fn get_devices(count: *mut c_int) -> *mut *mut IbvContext {
    with(|s| s.alive[8] += 1);
    // SAFETY: the caller's number; memory for one device and the end of the list.
    unsafe {
        *count = 1;
        let list = libc::calloc(2, size_of::<usize>()).cast::<*mut IbvContext>();
        *list = context();
        list
    }
}

unsafe extern "C" fn free_devices(list: *mut *mut IbvContext) {
    with(|s| s.alive[8] -= 1);
    // SAFETY: memory of the same kind, whose owner frees it once.
    unsafe { libc::free(list.cast()) };
}

unsafe extern "C" fn query_device(_: *mut IbvContext, attr: *mut IbvDeviceAttr) -> c_int {
    // SAFETY: the caller's structure.
    let attr = unsafe { &mut *attr };
    (attr.max_qp_wr, attr.max_cqe, attr.max_sge) = (1024, 4096, 4);
    (attr.max_srq, attr.max_srq_wr, attr.max_mr_size) = (1, 64, u64::MAX);
    attr.max_srq_sge = if with(|s| s.no_scatter) { 1 } else { 3 };
    0
}

unsafe extern "C" fn alloc_pd(context: *mut IbvContext) -> *mut IbvPd {
    made(0, IbvPd { context })
}

unsafe extern "C" fn dealloc_pd(pd: *mut IbvPd) -> c_int {
    ended(0, pd)
}

unsafe extern "C" fn reg_mr(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    _: c_int,
) -> *mut IbvMr {
    if with(|s| s.no_memory) {
        return ptr::null_mut();
    }
    made(1, IbvMr { context: context(), pd, addr, length, handle: 0, lkey: 11, rkey: 22 })
}

unsafe extern "C" fn dereg_mr(mr: *mut IbvMr) -> c_int {
    ended(1, mr)
}

unsafe extern "C" fn create_channel(context: *mut IbvContext) -> *mut IbvCompChannel {
    made(2, IbvCompChannel { context, fd: quiet(), refcnt: 0 })
}

unsafe extern "C" fn destroy_channel(channel: *mut IbvCompChannel) -> c_int {
    // SAFETY: the channel's own descriptor.
    unsafe { libc::close((*channel).fd) };
    ended(2, channel)
}

unsafe extern "C" fn create_cq(
    context: *mut IbvContext,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut IbvCompChannel,
    _: c_int,
) -> *mut IbvCq {
    made(3, IbvCq { context, channel, cq_context, handle: 0, cqe })
}

unsafe extern "C" fn destroy_cq(cq: *mut IbvCq) -> c_int {
    ended(3, cq)
}

unsafe extern "C" fn get_cq_event(
    channel: *mut IbvCompChannel,
    cq: *mut *mut IbvCq,
    _: *mut *mut c_void,
) -> c_int {
    let notice = with(|s| {
        s.reads += 1;
        s.notices.pop_front()
    });
    if let Some(notice) = notice {
        // SAFETY: the caller's place for the answer.
        unsafe { *cq = notice };
        return 0;
    }
    // As the library does, which reads the descriptor. That never has anything.
    let mut event = [0u8; 8];
    // SAFETY: the descriptor of the channel, and memory of this function.
    let got = unsafe { libc::read((*channel).fd, event.as_mut_ptr().cast(), event.len()) };
    if got < 0 { -1 } else { 0 }
}

unsafe extern "C" fn ack_cq_events(_: *mut IbvCq, count: c_uint) {
    with(|s| s.acknowledged += count);
}

unsafe extern "C" fn create_srq(pd: *mut IbvPd, _: *mut IbvSrqInitAttr) -> *mut IbvSrq {
    if with(|s| s.no_shared) {
        return ptr::null_mut();
    }
    // SAFETY: the domain is alive.
    made(4, IbvSrq { context: unsafe { (*pd).context } })
}

unsafe extern "C" fn destroy_srq(srq: *mut IbvSrq) -> c_int {
    ended(4, srq)
}

unsafe extern "C" fn create_qp(
    id: *mut RdmaCmId,
    pd: *mut IbvPd,
    attr: *mut IbvQpInitAttr,
) -> c_int {
    // SAFETY: the caller's structures.
    let (id, attr) = unsafe { (&mut *id, &*attr) };
    if with(|s| s.no_inline) && attr.cap.max_inline_data > 0 {
        return -1;
    }
    let qp_num = with(|s| {
        s.arrivals = Some(attr.recv_cq);
        s.pairs += 1;
        s.pairs
    });
    id.qp = made(
        5,
        IbvQp {
            context: id.verbs,
            qp_context: ptr::null_mut(),
            pd,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            handle: 0,
            qp_num,
        },
    );
    0
}

unsafe extern "C" fn destroy_qp(qp: *mut IbvQp) -> c_int {
    if with(|s| s.holds_on) {
        return libc::EIO;
    }
    ended(5, qp)
}

unsafe extern "C" fn modify_qp(_: *mut IbvQp, attr: *mut IbvQpAttr, mask: c_int) -> c_int {
    // SAFETY: the caller's structure.
    with(|s| s.modified.push((mask, unsafe { (*attr).min_rnr_timer })));
    0
}

unsafe extern "C" fn accept(_: *mut RdmaCmId, _: *mut RdmaConnParam) -> c_int {
    0
}

unsafe extern "C" fn disconnect(_: *mut RdmaCmId) -> c_int {
    // The device may end work with it.
    with(|s| {
        let late = mem::take(&mut s.at_disconnect);
        s.completions.extend(late);
    });
    0
}

unsafe extern "C" fn create_event_channel() -> *mut RdmaEventChannel {
    made(7, RdmaEventChannel { fd: quiet() })
}

unsafe extern "C" fn destroy_event_channel(channel: *mut RdmaEventChannel) {
    // SAFETY: the channel's own descriptor.
    unsafe { libc::close((*channel).fd) };
    ended(7, channel);
}

unsafe extern "C" fn create_id(
    channel: *mut RdmaEventChannel,
    id: *mut *mut RdmaCmId,
    token: *mut c_void,
    _: c_uint,
) -> c_int {
    // SAFETY: numbers and null pointers are all zeroes.
    let mut new: RdmaCmId = unsafe { mem::zeroed() };
    (new.verbs, new.channel, new.context) = (context(), channel, token);
    // SAFETY: the caller's place for the answer.
    unsafe { *id = made(6, new) };
    0
}

unsafe extern "C" fn destroy_id(id: *mut RdmaCmId) -> c_int {
    // SAFETY: the id is alive.
    assert!(unsafe { (*id).qp.is_null() }, "an id that goes before its queue pair");
    ended(6, id)
}
