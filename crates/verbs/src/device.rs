//! An opened device: its limits, its ports, and what happens to it.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use crate::ffi::{
    DEVICE_MEM_MGT_EXTENSIONS, EVENT_DEVICE_FATAL, EVENT_GID_CHANGE, EVENT_PORT_ACTIVE,
    EVENT_PORT_ERR, EVENT_QP_FATAL, IbvAsyncEvent, IbvContext, IbvDeviceAttr, IbvPortAttr,
    PORT_ACTIVE,
};
use crate::{Error, Library};

/// A list of one context that librdmacm has opened: it stays open as long as the list.
///
/// The library's own list holds all devices together, and one of them that goes away would stay open for the
/// sake of the others. Its driver may wait for that.
struct List {
    library: Arc<Library>,
    start: NonNull<*mut IbvContext>,
}

impl List {
    /// Splits the library's list.
    ///
    /// # Safety
    /// `all` came from `rdma_get_devices`, has `count` entries and a null behind them, and was not freed.
    unsafe fn split(
        library: &Arc<Library>,
        all: NonNull<*mut IbvContext>,
        count: usize,
    ) -> Vec<Self> {
        // SAFETY: the caller's promise.
        let contexts = unsafe { slice::from_raw_parts(all.as_ptr(), count) };
        let lists = contexts.iter().filter_map(|context| {
            // SAFETY: memory as the library itself takes it, filled before it is used. Without any, the
            // device stays open.
            let start = unsafe {
                let start = NonNull::new(libc::malloc(2 * size_of::<usize>()).cast())?;
                ptr::copy_nonoverlapping([*context, ptr::null_mut()].as_ptr(), start.as_ptr(), 2);
                start
            };
            Some(Self { library: Arc::clone(library), start })
        });
        let lists = lists.collect();
        // SAFETY: the list alone: what it holds has moved into the others.
        unsafe { libc::free(all.as_ptr().cast()) };
        lists
    }

    fn context(&self) -> Option<NonNull<IbvContext>> {
        // SAFETY: the list has one entry.
        NonNull::new(unsafe { *self.start.as_ptr() })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: a list such as `rdma_get_devices` makes, in memory of the same kind, freed once.
        unsafe { (self.library.cm.rdma_free_devices)(self.start.as_ptr()) };
    }
}

// SAFETY: the list is only read, and freed by whoever drops it last.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

/// How much of everything a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Work requests of a queue.
    pub queue_depth: u32,
    /// Pieces of memory in one work request.
    pub pieces: u32,
    /// Pieces of memory in one receive of a shared receive queue.
    pub shared_pieces: u32,
    /// Entries of a completion queue.
    pub completions: u32,
    /// RDMA reads that a connection may have in flight.
    pub reads: u8,
    /// RDMA reads of the other end that a connection serves at a time.
    pub reads_served: u8,
    /// Receives of a shared receive queue; 0 if the device has none.
    pub shared_receives: u32,
    /// The largest registration in bytes.
    pub registration: u64,
    /// A message may take back a key of the peer (Send with Invalidate).
    pub invalidates: bool,
    /// Ports.
    pub ports: u8,
}

/// The largest payload of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mtu(pub(crate) u32);

impl Mtu {
    /// In bytes, 256 to 4096; 0 if the device says something unknown.
    pub const fn bytes(self) -> u32 {
        match self.0 {
            code @ 1..=5 => 128 << code,
            _ => 0,
        }
    }
}

/// A port as its device describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortState {
    /// True if frames can pass.
    pub active: bool,
    /// The MTU in use.
    pub mtu: Mtu,
    /// The largest MTU that it could have.
    pub max_mtu: Mtu,
}

/// What happened to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// It has failed; its connections are lost.
    Fatal,
    /// A port has a link again.
    PortUp(u8),
    /// A port has lost its link.
    PortDown(u8),
    /// A port's addresses have changed.
    AddressesChanged(u8),
    /// A queue pair has failed; its connection ends.
    ConnectionFailed,
    /// Something else, by the number that `ibv_event_type` has for it.
    Other(u32),
}

struct Inner {
    context: NonNull<IbvContext>,
    name: String,
    limits: Limits,
    list: List,
}

// SAFETY: a context may be used by any thread at any time: the library locks what it must.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// An opened device. A clone is the same one.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

impl Device {
    pub(crate) fn all(library: &Arc<Library>) -> Result<Vec<Self>, Error> {
        let mut count: c_int = 0;
        // SAFETY: fills in the number, and returns a list of so many contexts or null.
        let start = unsafe { (library.cm.rdma_get_devices)(&mut count) };
        let Some(start) = NonNull::new(start) else {
            let source = std::io::Error::last_os_error();
            return Err(Error::NoConnectionManager { source });
        };
        // SAFETY: the list was just made, and has so many entries.
        let lists = unsafe { List::split(library, start, count.max(0) as usize) };
        lists.into_iter().filter_map(|list| Some(Self::open(list.context()?, list))).collect()
    }

    fn open(context: NonNull<IbvContext>, list: List) -> Result<Self, Error> {
        // SAFETY: an opened context has a device, whose name ends with a zero.
        let name = unsafe { CStr::from_ptr((*context.as_ref().device).name.as_ptr()) };
        let mut attr = MaybeUninit::<IbvDeviceAttr>::zeroed();
        let query = list.library.verbs.ibv_query_device;
        // SAFETY: fills in the structure; all zeroes are a valid one, too.
        let attr = unsafe {
            match query(context.as_ptr(), attr.as_mut_ptr()) {
                0 => attr.assume_init(),
                number => return Err(Error::number("asking the RDMA device", number)),
            }
        };
        // SAFETY: the context stays open as long as the list; its descriptor is its own.
        unsafe { set_nonblocking(context.as_ref().async_fd)? };
        Ok(Self(Arc::new(Inner {
            context,
            name: name.to_string_lossy().into_owned(),
            limits: limits(&attr),
            list,
        })))
    }

    /// Its name: `mlx5_0`, `rxe0`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// True if it is the same opened device, and not another one of that name.
    pub fn is(&self, other: &Self) -> bool {
        self.0.context == other.0.context
    }

    /// How much of everything it has.
    pub fn limits(&self) -> Limits {
        self.0.limits
    }

    /// Asks for the state of a port.
    ///
    /// # Errors
    /// There is no such port, or the device is gone.
    pub fn port(&self, number: u8) -> Result<PortState, Error> {
        let mut attr = IbvPortAttr::default();
        // SAFETY: the context is open. The function fills the first part of the structure, which
        // is all that older versions of it had.
        let rc =
            unsafe { (self.library().verbs.ibv_query_port)(self.context(), number, &mut attr) };
        match rc {
            0 => Ok(PortState {
                active: attr.state == PORT_ACTIVE,
                mtu: Mtu(attr.active_mtu),
                max_mtu: Mtu(attr.max_mtu),
            }),
            number => Err(Error::number("asking for a port of the RDMA device", number)),
        }
    }

    /// The next thing that happened to the device; `None` if there is nothing new. For one thread
    /// of the process: its descriptor ([`AsFd`]) is readable when there is something.
    ///
    /// # Errors
    /// The device was removed.
    pub fn next_event(&self) -> Result<Option<DeviceEvent>, Error> {
        let mut event = IbvAsyncEvent { element: 0, event_type: 0 };
        let verbs = &self.library().verbs;
        // SAFETY: the context is open, and its descriptor does not block.
        let rc = unsafe { (verbs.ibv_get_async_event)(self.context(), &mut event) };
        if rc != 0 {
            return match std::io::Error::last_os_error() {
                e if e.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
                source => Err(Error::System { what: "reading the RDMA device's events", source }),
            };
        }
        let seen = device_event(&event);
        // SAFETY: the event was just got, and is acknowledged once. Nothing of it is used later.
        unsafe { (verbs.ibv_ack_async_event)(&mut event) };
        Ok(Some(seen))
    }

    pub(crate) fn context(&self) -> *mut IbvContext {
        self.0.context.as_ptr()
    }

    pub(crate) fn library(&self) -> &Arc<Library> {
        &self.0.list.library
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context, and with it the descriptor, is open as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.0.context.as_ref().async_fd) }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.0.name).finish_non_exhaustive()
    }
}

fn device_event(event: &IbvAsyncEvent) -> DeviceEvent {
    match event.event_type {
        EVENT_DEVICE_FATAL => DeviceEvent::Fatal,
        EVENT_PORT_ACTIVE => DeviceEvent::PortUp(event.port()),
        EVENT_PORT_ERR => DeviceEvent::PortDown(event.port()),
        EVENT_GID_CHANGE => DeviceEvent::AddressesChanged(event.port()),
        // QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR
        kind if (EVENT_QP_FATAL..EVENT_QP_FATAL + 3).contains(&kind) => {
            DeviceEvent::ConnectionFailed
        }
        other => DeviceEvent::Other(other),
    }
}

fn limits(attr: &IbvDeviceAttr) -> Limits {
    let count = |n: c_int| u32::try_from(n).unwrap_or(0);
    let small = |n: c_int| u8::try_from(n.clamp(0, 255)).unwrap_or(0);
    Limits {
        queue_depth: count(attr.max_qp_wr),
        pieces: count(attr.max_sge),
        shared_pieces: count(attr.max_srq_sge),
        completions: count(attr.max_cqe),
        reads: small(attr.max_qp_init_rd_atom),
        reads_served: small(attr.max_qp_rd_atom),
        shared_receives: if attr.max_srq > 0 { count(attr.max_srq_wr) } else { 0 },
        registration: attr.max_mr_size,
        invalidates: attr.device_cap_flags & DEVICE_MEM_MGT_EXTENSIONS != 0,
        ports: attr.phys_port_cnt,
    }
}

/// Makes a descriptor of a library return instead of waiting.
///
/// # Safety
/// The descriptor must be open, and belong to an object that this crate holds.
pub(crate) unsafe fn set_nonblocking(fd: c_int) -> Result<(), Error> {
    // SAFETY: only reads and changes the flags of the descriptor, which is open.
    let done = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
    };
    if done { Ok(()) } else { Err(Error::last("making an RDMA descriptor non-blocking")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_is_told_in_bytes() {
        assert_eq!([1, 2, 3, 4, 5].map(|c| Mtu(c).bytes()), [256, 512, 1024, 2048, 4096]);
        assert_eq!([0, 6, u32::MAX].map(|c| Mtu(c).bytes()), [0; 3]);
    }

    #[test]
    fn a_device_says_whether_it_takes_keys_back() {
        // SAFETY: all zeroes are a valid structure of numbers.
        let mut attr: IbvDeviceAttr = unsafe { std::mem::zeroed() };
        attr.device_cap_flags = !(1 << 21);
        assert!(!limits(&attr).invalidates);
        attr.device_cap_flags = 1 << 21;
        assert!(limits(&attr).invalidates);
    }

    #[test]
    fn events_of_a_device_are_told_apart() {
        // The union begins with an int: the port's number comes first in memory.
        let mut bytes = [0xEE; 8];
        bytes[..4].copy_from_slice(&2u32.to_ne_bytes());
        let element = u64::from_ne_bytes(bytes);
        let seen = |event_type| device_event(&IbvAsyncEvent { element, event_type });
        assert_eq!(seen(8), DeviceEvent::Fatal);
        assert_eq!((seen(9), seen(10)), (DeviceEvent::PortUp(2), DeviceEvent::PortDown(2)));
        assert_eq!(seen(18), DeviceEvent::AddressesChanged(2));
        assert_eq!([1, 2, 3].map(seen), [DeviceEvent::ConnectionFailed; 3]);
        assert_eq!(seen(16), DeviceEvent::Other(16));
    }
}
