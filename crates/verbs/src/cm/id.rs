//! One connection, or a listener.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use super::address::{from_c, to_c};
use super::channel::Inner;
use super::{EventChannel, PRIVATE_MAX};
use crate::ffi::{OPTION_ID, OPTION_ID_AFONLY, PS_TCP, RdmaCmId, RdmaConnParam};
use crate::{Device, Error};

/// What two ends agree on when they connect.
#[derive(Clone, Copy, Debug)]
pub struct ConnParams<'a> {
    /// RDMA reads of the peer that this end serves at a time.
    pub reads_served: u8,
    /// RDMA reads that this end may have in flight.
    pub reads: u8,
    /// Goes to the peer's program: at most 56 bytes to connect, 196 to accept.
    pub private: &'a [u8],
}

impl ConnParams<'_> {
    /// As C has it; it points to the private data.
    pub(crate) fn to_c(self, limit: u8, limit_served: u8) -> Result<RdmaConnParam, Error> {
        Ok(RdmaConnParam {
            private_data: self.private.as_ptr().cast(),
            private_data_len: private_len(self.private)?,
            responder_resources: self.reads_served.min(limit_served),
            initiator_depth: self.reads.min(limit),
            flow_control: 1,
            retry_count: 7,
            // 7 is for ever: a receiver without a buffer is waited for, its death is found
            // otherwise.
            rnr_retry_count: 7,
            srq: 0,
            qp_num: 0,
        })
    }
}

fn private_len(private: &[u8]) -> Result<u8, Error> {
    match u8::try_from(private.len()) {
        Ok(len) => Ok(len),
        Err(_) => Err(Error::Limit {
            device: "rdma_cm".into(),
            what: "bytes of private data",
            wanted: private.len() as u64,
            limit: PRIVATE_MAX as u64,
        }),
    }
}

/// One connection, or a listener, of rdma_cm. Dropping it ends what it was; with an endpoint on
/// it, it belongs to the [`Adapter`](crate::Adapter).
pub struct CmId {
    raw: NonNull<RdmaCmId>,
    channel: Arc<Inner>,
}

// SAFETY: an id may be used by any thread, one at a time; `&self` only reads what does not change
// meanwhile, but for the token, which is atomic.
unsafe impl Send for CmId {}

impl CmId {
    /// An id that is to connect. Its events carry the token.
    ///
    /// # Errors
    /// `rdma_create_id` has failed.
    pub fn new(channel: &EventChannel, token: u64) -> Result<Self, Error> {
        let inner = &channel.inner;
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is open; the context is a number that nobody follows.
        let rc = unsafe {
            let context = token as *mut c_void;
            (inner.library.cm.rdma_create_id)(inner.raw.as_ptr(), &mut raw, context, PS_TCP)
        };
        match NonNull::new(raw) {
            Some(raw) if rc == 0 => Ok(Self { raw, channel: Arc::clone(inner) }),
            _ => Err(Error::last("making an RDMA connection")),
        }
    }

    /// A listener. An IPv6 address does not take IPv4 along. Port 0 is any that is free.
    ///
    /// # Errors
    /// [`Error::InUse`]; [`Error::NoDevice`] if no device carries the address; or the kernel
    /// refuses otherwise.
    pub fn listen(
        channel: &EventChannel,
        address: SocketAddr,
        backlog: u16,
        token: u64,
    ) -> Result<Self, Error> {
        let id = Self::new(channel, token)?;
        let cm = &id.channel.library.cm;
        let mut c = to_c(address);
        if address.is_ipv6() {
            let mut on: c_int = 1;
            // SAFETY: the id is alive; the option is an int.
            unsafe {
                let value = ptr::from_mut(&mut on).cast();
                (cm.rdma_set_option)(
                    id.raw(),
                    OPTION_ID,
                    OPTION_ID_AFONLY,
                    value,
                    size_of::<c_int>(),
                )
            };
        }
        let place = ptr::from_mut(&mut c).cast();
        // SAFETY: the id is alive; the address is read during the call.
        let done = unsafe {
            (cm.rdma_bind_addr)(id.raw(), place) == 0
                && (cm.rdma_listen)(id.raw(), c_int::from(backlog)) == 0
        };
        if done {
            return Ok(id);
        }
        Err(match std::io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::EADDRINUSE) => Error::InUse { address },
            e if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::EADDRNOTAVAIL)) => {
                Error::NoDevice { address: address.ip() }
            }
            source => Error::System { what: "listening for RDMA connections", source },
        })
    }

    /// Takes over the id of a connect request.
    pub(super) fn adopt(raw: NonNull<RdmaCmId>, channel: &Arc<Inner>) -> Self {
        Self { raw, channel: Arc::clone(channel) }
    }

    /// The token of a foreign id.
    ///
    /// # Safety
    /// The id must be alive.
    pub(super) unsafe fn token_of(raw: NonNull<RdmaCmId>) -> u64 {
        // SAFETY: the id is alive. This field is touched as an atomic only, once the id is made.
        let context = unsafe { AtomicPtr::from_ptr(&raw mut (*raw.as_ptr()).context) };
        context.load(Ordering::Relaxed) as u64
    }

    /// Changes the token that its events carry. That of a connect request begins with the
    /// listener's.
    pub fn set_token(&self, token: u64) {
        // SAFETY: the id is alive. This field is touched as an atomic only, once the id is made.
        let context = unsafe { AtomicPtr::from_ptr(&raw mut (*self.raw.as_ptr()).context) };
        context.store(token as *mut c_void, Ordering::Relaxed);
    }

    /// Local address, once the connection is bound to a device.
    pub fn local(&self) -> Option<SocketAddr> {
        self.look(|raw| from_c(&raw.route.addr.src))
    }

    /// The address of the other end.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.look(|raw| from_c(&raw.route.addr.dst))
    }

    /// True if the connection is one of this device.
    pub fn is_on(&self, device: &Device) -> bool {
        self.look(|raw| raw.verbs == device.context())
    }

    /// The port of the device, from 1 on; 0 as long as there is none.
    pub fn port(&self) -> u8 {
        self.look(|raw| raw.port_num)
    }

    /// Looks at the id while no event changes it.
    fn look<T>(&self, look: impl FnOnce(&RdmaCmId) -> T) -> T {
        let _still = self.channel.still();
        // SAFETY: the id is alive. It changes in calls on it, which its owner makes, and where an event
        // of its channel is read, which waits. The token is not looked at.
        look(unsafe { self.raw.as_ref() })
    }

    /// From now on its events come on another channel: that of the thread that it belongs to now.
    ///
    /// # Errors
    /// The kernel refuses; then they come where they came before.
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<(), Error> {
        let inner = &channel.inner;
        // SAFETY: id and channel are alive; the old channel stays open until the call is over.
        let rc = unsafe { (inner.library.cm.rdma_migrate_id)(self.raw(), inner.raw.as_ptr()) };
        if rc != 0 {
            return Err(Error::last("moving an RDMA connection to another thread"));
        }
        self.channel = Arc::clone(inner);
        Ok(())
    }

    /// Looks for the device that leads to an address, and ends in an event.
    ///
    /// # Errors
    /// No device carries the address to start from.
    pub fn resolve_address(
        &mut self,
        from: Option<IpAddr>,
        to: SocketAddr,
        limit: Duration,
    ) -> Result<(), Error> {
        let mut source = from.map(|ip| to_c((ip, 0).into()));
        let source = source.as_mut().map_or(ptr::null_mut(), |s| ptr::from_mut(s).cast());
        let mut target = to_c(to);
        let resolve = self.channel.library.cm.rdma_resolve_addr;
        // SAFETY: the id is alive; the addresses are read during the call.
        let rc = unsafe {
            resolve(self.raw(), source, ptr::from_mut(&mut target).cast(), millis(limit))
        };
        if rc == 0 {
            return Ok(());
        }
        Err(match std::io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ENODEV) => {
                Error::NoDevice { address: from.unwrap_or(to.ip()) }
            }
            source => Error::System { what: "looking for an RDMA device to connect from", source },
        })
    }

    /// Looks for a route, and ends in an event. After [`CmEventKind::AddressResolved`](crate::CmEventKind).
    ///
    /// # Errors
    /// `rdma_resolve_route` has failed.
    pub fn resolve_route(&mut self, limit: Duration) -> Result<(), Error> {
        // SAFETY: the id is alive.
        let rc = unsafe { (self.channel.library.cm.rdma_resolve_route)(self.raw(), millis(limit)) };
        if rc == 0 { Ok(()) } else { Err(Error::last("looking for an RDMA route")) }
    }

    /// Turns a connect request away, with a word to the peer's program: at most 148 bytes.
    ///
    /// # Errors
    /// The peer is gone, or the word is too long.
    pub fn reject(self, private: &[u8]) -> Result<(), Error> {
        self.send_reject(private)
    }

    pub(crate) fn send_reject(&self, private: &[u8]) -> Result<(), Error> {
        let len = private_len(private)?;
        let reject = self.channel.library.cm.rdma_reject;
        // SAFETY: the id is alive; the data is read during the call.
        let rc = unsafe { reject(self.raw(), private.as_ptr().cast(), len) };
        if rc == 0 { Ok(()) } else { Err(Error::last("rejecting an RDMA connection")) }
    }

    pub(crate) const fn raw(&self) -> *mut RdmaCmId {
        self.raw.as_ptr()
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: the id is alive, has no queue pair any more (its endpoint goes first), and no event
        // of it is held by this thread, so this does not wait for itself.
        unsafe { (self.channel.library.cm.rdma_destroy_id)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmId").field("local", &self.local()).field("peer", &self.peer()).finish()
    }
}

fn millis(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_agreed_on_stays_within_the_device_and_the_message() {
        let params = ConnParams { reads_served: 200, reads: 3, private: &[1, 2] };
        let c = params.to_c(16, 128).expect("short");
        assert_eq!((c.responder_resources, c.initiator_depth, c.private_data_len), (128, 3, 2));
        let long = ConnParams { private: &[0; 256], ..params };
        assert!(matches!(long.to_c(16, 16), Err(Error::Limit { wanted: 256, .. })));
        assert_eq!(millis(Duration::MAX), c_int::MAX);
    }
}
