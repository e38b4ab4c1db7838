//! The connection manager: the functions of librdmacm.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::mem;
use std::net::SocketAddr;
use std::ptr;
use std::slice;
use std::time::Duration;

use lunet_os::simulated;

use super::calls::{create_qp, fails, free, made, number_of};
use super::pair::Life;
use super::{EventQueue, State, latency, later, with};
use crate::cm::{from_c, to_c};
use crate::ffi::{CmTable, IbvContext, RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel};

/// Numbers of `enum rdma_cm_event_type`.
const CONNECT_REQUEST: c_uint = 4;
const CONNECT_ERROR: c_uint = 6;
pub(super) const ESTABLISHED: c_uint = 9;
pub(super) const DISCONNECTED: c_uint = 10;
pub(super) const DEVICE_REMOVAL: c_uint = 11;

/// RDMA Reads that a host serves at a time.
const READS: u8 = 4;

/// A connection of the server, or a listener.
pub(super) struct Id {
    raw: usize,
    channel: u64,
    pub(super) context: Option<u64>,
    pub(super) pair: Option<u64>,
    pub(super) end: Option<u64>,
    pub(super) listening: Option<SocketAddr>,
    address: Option<SocketAddr>,
    accepted: bool,
    unacknowledged: u32,
}

/// Something that has happened to an id.
pub(super) struct Event {
    about: u64,
    kind: c_uint,
    status: c_int,
    private: Vec<u8>,
    /// Of a connect request.
    end: Option<u64>,
}

/// An event that was read and not acknowledged.
#[repr(C)]
struct Told {
    raw: RdmaCmEvent,
    private: Vec<u8>,
    about: u64,
}

pub(super) fn calls() -> CmTable {
    CmTable {
        rdma_get_devices: super::calls::get_devices,
        rdma_free_devices: super::calls::free_devices,
        rdma_create_event_channel: create_event_channel,
        rdma_destroy_event_channel: destroy_event_channel,
        rdma_create_id: create_id,
        rdma_destroy_id: destroy_id,
        rdma_bind_addr: bind_addr,
        rdma_listen: listen,
        rdma_create_qp: create_qp,
        rdma_accept: accept,
        rdma_reject: reject,
        rdma_disconnect: disconnect,
        rdma_migrate_id: migrate_id,
        rdma_get_cm_event: get_cm_event,
        rdma_ack_cm_event: ack_cm_event,
        ..CmTable::absent()
    }
}

impl State {
    /// Tells the owner of an id that something has happened to it.
    pub(super) fn tell(&mut self, about: u64, kind: c_uint, status: c_int, private: Vec<u8>) {
        self.push(Event { about, kind, status, private, end: None });
    }

    fn push(&mut self, event: Event) {
        let Some(id) = self.ids.get(&event.about) else { return };
        if let Some(queue) = self.event_queues.get_mut(&id.channel) {
            queue.events.push_back(event);
            queue.signal.set(true);
        }
    }

    /// A host wants to connect.
    pub(super) fn request(&mut self, listener: u64, end: u64) {
        let Some(host) = self.ends.get(&end) else { return };
        let private = host.private.clone();
        if !self.ids.contains_key(&listener) {
            return self.end_breaks(end, latency());
        }
        let kind = CONNECT_REQUEST;
        self.push(Event { about: listener, kind, status: 0, private, end: Some(end) });
    }

    /// Makes the id of a connect request.
    ///
    /// # Safety
    /// The listener is alive.
    unsafe fn adopt(&mut self, listener: u64, end: u64) -> Option<*mut RdmaCmId> {
        let (raw, context) =
            (self.ids[&listener].raw as *mut RdmaCmId, self.ids[&listener].context?);
        let (channel, address) = (self.ids[&listener].channel, self.ids[&listener].address?);
        // SAFETY: numbers and null pointers are all zeroes; the listener is alive, by the caller.
        let new = unsafe {
            let mut new: RdmaCmId = mem::zeroed();
            (new.verbs, new.channel, new.context) = ((*raw).verbs, (*raw).channel, (*raw).context);
            new.route.addr.src = to_c(address);
            if let Some(host) = self.ends.get(&end) {
                new.route.addr.dst = to_c(host.peer);
            }
            new.port_num = 1;
            new
        };
        let number = self.object("an id");
        let raw = made(number, new);
        self.ids.insert(
            number,
            Id {
                raw: raw as usize,
                channel,
                context: Some(context),
                pair: None,
                end: Some(end),
                listening: None,
                address: Some(address),
                accepted: false,
                unacknowledged: 0,
            },
        );
        if let Some(host) = self.ends.get_mut(&end) {
            host.id = Some(number);
        }
        Some(raw)
    }
}

unsafe extern "C" fn create_event_channel() -> *mut RdmaEventChannel {
    with(|s| {
        let Ok(signal) = s.signal() else { return ptr::null_mut() };
        let number = s.object("an event channel");
        s.event_queues.insert(number, EventQueue { events: VecDeque::new(), signal });
        made(number, RdmaEventChannel { fd: signal.fd() })
    })
}

unsafe extern "C" fn destroy_event_channel(channel: *mut RdmaEventChannel) {
    // SAFETY: the channel came from `create_event_channel`, and its owner ends it once.
    let number = unsafe { free(channel) };
    with(|s| {
        s.objects.remove(&number);
        if let Some(queue) = s.event_queues.remove(&number) {
            queue.signal.close();
        }
        if s.ids.values().any(|id| id.channel == number) {
            s.wrong("an event channel goes before its ids".into());
        }
    });
}

unsafe extern "C" fn create_id(
    channel: *mut RdmaEventChannel,
    id: *mut *mut RdmaCmId,
    token: *mut c_void,
    _: c_uint,
) -> c_int {
    // SAFETY: numbers and null pointers are all zeroes; the channel is alive.
    let (mut new, channel_number) = unsafe { (mem::zeroed::<RdmaCmId>(), number_of(channel)) };
    (new.channel, new.context) = (channel, token);
    let raw = with(|s| {
        let number = s.object("an id");
        let raw = made(number, new);
        let new = Id {
            raw: raw as usize,
            channel: channel_number,
            context: None,
            pair: None,
            end: None,
            listening: None,
            address: None,
            accepted: false,
            unacknowledged: 0,
        };
        s.ids.insert(number, new);
        raw
    });
    // SAFETY: the caller's place for the answer.
    unsafe { *id = raw };
    0
}

unsafe extern "C" fn destroy_id(id: *mut RdmaCmId) -> c_int {
    // SAFETY: the id is alive, and its owner ends it once.
    let number = unsafe {
        if !(*id).qp.is_null() {
            with(|s| s.wrong("an id goes before its queue pair".into()));
        }
        free(id)
    };
    with(|s| {
        s.objects.remove(&number);
        let Some(id) = s.ids.remove(&number) else { return };
        if id.unacknowledged > 0 {
            s.wrong("an id goes before its events are acknowledged: this waits for ever".into());
        }
        if let Some(end) = id.end {
            s.end_breaks(end, latency());
        }
        let Some(queue) = s.event_queues.get_mut(&id.channel) else { return };
        let (gone, kept) =
            mem::take(&mut queue.events).into_iter().partition(|e| e.about == number);
        queue.events = kept;
        let gone: VecDeque<Event> = gone;
        gone.iter().filter_map(|event| event.end).for_each(|end| s.end_breaks(end, latency()));
    });
    0
}

unsafe extern "C" fn bind_addr(id: *mut RdmaCmId, address: *mut libc::sockaddr) -> c_int {
    // SAFETY: the caller's address, which is in a whole `sockaddr_storage`; the id is alive.
    let (address, number) = unsafe { (from_c(&*address.cast()), number_of(id)) };
    let Some(address) = address else { return fails(libc::EINVAL) };
    let found = with(|s| {
        let device = s.devices.iter().find(|device| device.present).map(|d| d.incarnation);
        let process = simulated::process();
        let own = |c: &&super::Context| c.process == process && Some(c.incarnation) == device;
        let context = s.contexts.iter().find(|(_, c)| own(c)).map(|(n, c)| (*n, c.raw))?;
        let id = s.ids.get_mut(&number)?;
        (id.context, id.address) = (Some(context.0), Some(address));
        Some(context.1)
    });
    let Some(context) = found else { return fails(libc::ENODEV) };
    // SAFETY: the id is alive.
    unsafe {
        (*id).verbs = context as *mut IbvContext;
        (*id).route.addr.src = to_c(address);
    }
    0
}

unsafe extern "C" fn listen(id: *mut RdmaCmId, _: c_int) -> c_int {
    // SAFETY: the id is alive.
    let number = unsafe { number_of(id) };
    with(|s| {
        let address = s.ids.get(&number).and_then(|id| id.address);
        if s.ids.values().any(|id| id.listening.is_some() && id.listening == address) {
            return fails(libc::EADDRINUSE);
        }
        if let Some(id) = s.ids.get_mut(&number) {
            id.listening = address;
        }
        0
    })
}

unsafe extern "C" fn accept(id: *mut RdmaCmId, param: *mut RdmaConnParam) -> c_int {
    // SAFETY: the caller's structures, and private data of this length.
    let (number, private) = unsafe {
        let param = &*param;
        let len = usize::from(param.private_data_len);
        (number_of(id), slice::from_raw_parts(param.private_data.cast::<u8>(), len).to_vec())
    };
    with(|s| {
        let Some(id) = s.ids.get_mut(&number) else { return fails(libc::EINVAL) };
        let (Some(pair), Some(end), Some(context)) = (id.pair, id.end, id.context) else {
            return fails(libc::EINVAL);
        };
        id.accepted = true;
        if s.traits(context).is_none() {
            return fails(libc::EIO);
        }
        match s.ends.get_mut(&end).filter(|end| end.phase == super::Phase::Connecting) {
            Some(host) => {
                (host.answer, host.pair) = (private, Some(pair));
                later(latency(), move |s| s.end_established(end));
            }
            None if simulated::below(2) == 0 => return fails(libc::ECONNRESET),
            // Nobody answers.
            None => later(Duration::from_millis(simulated::below(4000)), move |s| {
                s.tell(number, CONNECT_ERROR, -libc::ETIMEDOUT, Vec::new());
            }),
        }
        if let Some(pair) = s.pairs.get_mut(&pair) {
            (pair.life, pair.end) = (Life::Connected, Some(end));
        }
        0
    })
}

unsafe extern "C" fn reject(id: *mut RdmaCmId, _: *const c_void, _: u8) -> c_int {
    // SAFETY: the id is alive.
    let number = unsafe { number_of(id) };
    with(|s| {
        if let Some(end) = s.ids.get(&number).and_then(|id| id.end) {
            s.end_breaks(end, latency());
        }
    });
    0
}

unsafe extern "C" fn disconnect(id: *mut RdmaCmId) -> c_int {
    // SAFETY: the id is alive.
    let number = unsafe { number_of(id) };
    with(|s| {
        let Some(id) = s.ids.get(&number).filter(|id| id.accepted) else {
            return fails(libc::EINVAL);
        };
        let (pair, end) = (id.pair, id.end);
        if let Some(end) = end {
            s.end_breaks(end, latency());
        }
        let Some(pair) = pair else { return 0 };
        if simulated::below(2) == 0 {
            // The device is quick: the rest is flushed when this returns.
            s.pair_fails(pair);
            s.flush_pair(pair);
        } else {
            s.pair_fails(pair);
        }
        0
    })
}

unsafe extern "C" fn migrate_id(id: *mut RdmaCmId, channel: *mut RdmaEventChannel) -> c_int {
    // SAFETY: both are alive.
    let (number, to) = unsafe {
        (*id).channel = channel;
        (number_of(id), number_of(channel))
    };
    with(|s| {
        let Some(id) = s.ids.get_mut(&number) else { return fails(libc::EINVAL) };
        let from = mem::replace(&mut id.channel, to);
        let Some(queue) = s.event_queues.get_mut(&from) else { return 0 };
        let (moved, kept) =
            mem::take(&mut queue.events).into_iter().partition(|e| e.about == number);
        queue.events = kept;
        let moved: VecDeque<Event> = moved;
        moved.into_iter().for_each(|event| s.push(event));
        0
    })
}

unsafe extern "C" fn get_cm_event(
    channel: *mut RdmaEventChannel,
    place: *mut *mut RdmaCmEvent,
) -> c_int {
    // SAFETY: the channel is alive.
    let channel = unsafe { number_of(channel) };
    with(|s| {
        loop {
            let Some(queue) = s.event_queues.get_mut(&channel) else { return fails(libc::EBADF) };
            let event = queue.events.pop_front();
            queue.signal.set(!queue.events.is_empty());
            let Some(Event { about, kind, status, private, end }) = event else {
                return fails(libc::EAGAIN);
            };
            let Some(id) = s.ids.get(&about) else { continue };
            let own = id.raw as *mut RdmaCmId;
            // SAFETY: its raw id is alive as long as it is known.
            let new = end.map(|end| unsafe { s.adopt(about, end) });
            let (id, listen_id) = match new {
                Some(Some(new)) => (new, own),
                Some(None) => continue,
                None => (own, ptr::null_mut()),
            };
            if let Some(id) = s.ids.get_mut(&about) {
                id.unacknowledged += 1;
            }
            // SAFETY: numbers and null pointers are all zeroes.
            let mut raw: RdmaCmEvent = unsafe { mem::zeroed() };
            (raw.id, raw.listen_id, raw.event, raw.status) = (id, listen_id, kind, status);
            raw.conn.private_data = private.as_ptr().cast();
            raw.conn.private_data_len = private.len() as u8;
            (raw.conn.initiator_depth, raw.conn.responder_resources) = (READS, 1);
            let told = Box::into_raw(Box::new(Told { raw, private, about }));
            // SAFETY: the caller's place for the answer.
            unsafe { *place = told.cast() };
            return 0;
        }
    })
}

unsafe extern "C" fn ack_cm_event(event: *mut RdmaCmEvent) -> c_int {
    // SAFETY: the event came from `get_cm_event`, and is acknowledged once.
    let told = unsafe { Box::from_raw(event.cast::<Told>()) };
    with(|s| {
        if let Some(id) = s.ids.get_mut(&told.about) {
            id.unacknowledged -= 1;
        }
    });
    drop(told.private);
    0
}
