//! Endpoints: made, connected, ended.

use std::fmt;
use std::mem;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use lunet_ring::{Key, Slots};

use super::endpoint::{Endpoint, Parts};
use super::receive::{ReceiveList, SharedQueue};
use super::work::{ENDPOINTS, HEAD_MAX, INLINE, RECEIVE_GENERATIONS, SGES};
use super::{Adapter, EndpointConfig, EndpointId};
use crate::Error;
use crate::cm::{CmId, ConnParams};
use crate::device::Mtu;
use crate::ffi::{
    IbvQpAttr, IbvQpCap, IbvQpInitAttr, IbvSrq, QP_AV, QP_MIN_RNR_TIMER, QP_PATH_MTU, QPT_RC,
    RdmaCmId, RdmaConnParam,
};

/// 0.64 ms, in the code of the InfiniBand Architecture Specification (volume 1, 9.7.5.2.8).
const RETRY: u8 = 12;

/// An endpoint that could not be made. The id is handed back, to be rejected.
pub struct NotOpened {
    /// Why.
    pub error: Error,
    /// The connection without a queue pair: to be rejected or dropped.
    pub id: CmId,
}

impl fmt::Debug for NotOpened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotOpened").field("error", &self.error).finish_non_exhaustive()
    }
}

/// Where a connection goes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// This end's address.
    pub local: Option<SocketAddr>,
    /// The other end's address.
    pub peer: Option<SocketAddr>,
    /// The device's port, from 1 on.
    pub port: u8,
    /// The place of this end's GID in the port's table.
    pub gid_index: u8,
    /// The largest payload of a packet.
    pub mtu: Mtu,
}

impl Adapter {
    /// Makes an endpoint of an id: one of a connect request, or one whose route is resolved. Receives
    /// should be queued and flushed before it is accepted or connected.
    ///
    /// # Errors
    /// [`NotOpened`], with the id: it is on another device, or the device or the arena has no room.
    pub fn open_endpoint(
        &mut self,
        id: CmId,
        config: EndpointConfig,
    ) -> Result<EndpointId, Box<NotOpened>> {
        match self.make(&id, config) {
            Ok(made) => {
                let Made { qp, depth, heads, heads_key, inline, receives } = made;
                let domain = Rc::clone(&self.domain);
                let mut endpoint = Endpoint::new(Parts {
                    qp,
                    id,
                    domain,
                    depth,
                    heads,
                    heads_key,
                    inline,
                    receives,
                });
                // What has ended before was none of its own.
                endpoint.reached = self.shared.as_ref().map_or(0, |shared| shared.reached);
                let number = endpoint.number();
                let id = EndpointId(self.endpoints.insert(endpoint));
                self.dirty.reserve(self.endpoints.len() * 2);
                self.by_number.insert(number, id);
                Ok(id)
            }
            Err(error) => Err(Box::new(NotOpened { error, id })),
        }
    }

    fn make(&mut self, id: &CmId, config: EndpointConfig) -> Result<Made, Error> {
        let device = self.device().name().to_string();
        if !id.is_on(self.device()) {
            return Err(Error::OtherDevice { device });
        }
        self.settle_shared();
        let shared = self.shared.as_ref().filter(|shared| !shared.is_worn());
        let queue = shared.map_or(ptr::null_mut(), SharedQueue::raw);
        let (depth, shared) = (config.sends.max(2), shared.is_some());
        let own = if shared { 0 } else { config.receives.max(1) };
        let limit = self.device().limits().queue_depth;
        let over = |what, wanted: u32, limit: u32| {
            let (wanted, limit) = (wanted.into(), limit.into());
            Err(Error::Limit { device: device.clone(), what, wanted, limit })
        };
        if depth.max(own) > limit {
            return over("operations in a queue", depth.max(own), limit);
        }
        if self.endpoints.len() == ENDPOINTS {
            return over("connections of one thread", ENDPOINTS as u32 + 1, ENDPOINTS as u32);
        }
        let heads = self.arena.alloc(depth as usize * HEAD_MAX).ok_or(Error::NoBuffers)?;
        let address = heads.start().as_ptr() as u64;
        let heads_key = self.memory.iter().find_map(|m| m.key_for(address, heads.len() as u64));
        let heads_key = heads_key.unwrap_or_default();
        if !self.queues.sends.take(depth) {
            return over("completions left", depth, self.queues.sends.free());
        }
        // Those of the shared queue have their places already.
        if !self.queues.receives.take(own) {
            self.queues.sends.give_back(depth);
            return over("completions of receives left", own, self.queues.receives.free());
        }
        match self.make_pair(id, depth, (own, queue)) {
            Ok((qp, inline)) => {
                self.receives.reserve(own as usize);
                let receives = (!shared).then(|| ReceiveList::new(own));
                Ok(Made { qp, depth, heads, heads_key, inline, receives })
            }
            Err(error) => {
                self.queues.sends.give_back(depth);
                self.queues.receives.give_back(own);
                Err(error)
            }
        }
    }

    /// Makes the queue pair, and tells how many bytes may be sent by copying them into it.
    fn make_pair(
        &self,
        id: &CmId,
        sends: u32,
        (receives, shared): (u32, *mut IbvSrq),
    ) -> Result<(NonNull<crate::ffi::IbvQp>, u32), Error> {
        let mut error = Error::Ended;
        // A device that has no room for heads in its queue refuses to be asked.
        for inline in [INLINE, 0] {
            let mut attr = IbvQpInitAttr {
                qp_context: ptr::null_mut(),
                send_cq: self.queues.sends.raw(),
                recv_cq: self.queues.receives.raw(),
                srq: shared,
                cap: IbvQpCap {
                    max_send_wr: sends,
                    max_recv_wr: receives,
                    max_send_sge: SGES as u32,
                    max_recv_sge: self.receive_sges,
                    max_inline_data: inline,
                },
                qp_type: QPT_RC,
                sq_sig_all: 0,
            };
            let create = self.device().library().cm.rdma_create_qp;
            // SAFETY: the id is alive and on this device, queue and domain are alive and go later.
            let made = unsafe {
                let rc = create(id.raw(), self.domain.raw(), &mut attr);
                if rc == 0 { NonNull::new((*id.raw()).qp) } else { None }
            };
            match made {
                Some(qp) => return Ok((qp, attr.cap.max_inline_data)),
                None => error = Error::last("making an RDMA queue pair"),
            }
        }
        Err(error)
    }

    /// Accepts a connect request. It stands with [`CmEventKind::Established`](crate::CmEventKind).
    ///
    /// # Errors
    /// The endpoint has ended, the peer has given up, or the private data is too long.
    pub fn accept(&mut self, id: EndpointId, params: ConnParams<'_>) -> Result<(), Error> {
        let accept = self.device().library().cm.rdma_accept;
        self.agree(id, params, accept, "accepting an RDMA connection")?;
        self.shorten_retries(id);
        Ok(())
    }

    /// Rejects a connect request whose endpoint was opened, with this private data. It is to be
    /// [closed](Self::close) then.
    pub fn reject(&mut self, id: EndpointId, private: &[u8]) {
        if let Some(endpoint) = self.endpoints.get(id.0) {
            // The peer may have given up already.
            let _ = endpoint.id.send_reject(private);
        }
    }

    /// Has the peer try again after [`RETRY`] when it finds no receive. rdma_cm leaves it at the longest
    /// time that there is, 655 ms.
    fn shorten_retries(&self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get(id.0) else { return };
        let mut attr = IbvQpAttr { min_rnr_timer: RETRY, ..IbvQpAttr::default() };
        let modify = self.device().library().verbs.ibv_modify_qp;
        // SAFETY: the queue pair is alive; the attributes are read during the call. A device that knows no
        // such timer (iWARP) refuses, and all is as it was.
        unsafe { modify(endpoint.qp.as_ptr(), &mut attr, QP_MIN_RNR_TIMER) };
    }

    /// Connects to the address whose route was resolved.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn connect(&mut self, id: EndpointId, params: ConnParams<'_>) -> Result<(), Error> {
        let connect = self.device().library().cm.rdma_connect;
        self.agree(id, params, connect, "connecting over RDMA")
    }

    fn agree(
        &mut self,
        id: EndpointId,
        params: ConnParams<'_>,
        call: unsafe extern "C" fn(*mut RdmaCmId, *mut RdmaConnParam) -> std::ffi::c_int,
        what: &'static str,
    ) -> Result<(), Error> {
        let limits = self.device().limits();
        let endpoint = self.endpoints.get_mut(id.0).ok_or(Error::Ended)?;
        let mut c = params.to_c(limits.reads, limits.reads_served)?;
        endpoint.begun = true;
        // SAFETY: the id is alive; parameters and private data are read during the call.
        let rc = unsafe { call(endpoint.id.raw(), &mut c) };
        if rc == 0 { Ok(()) } else { Err(Error::last(what)) }
    }

    /// Ends a connection: what is in flight ends with [`Status::Flushed`](crate::Status), and the peer
    /// is told. No error if it has ended already.
    pub fn disconnect(&mut self, id: EndpointId) {
        if let Some(endpoint) = self.endpoints.get(id.0) {
            // SAFETY: the id is alive.
            unsafe { (self.device().library().cm.rdma_disconnect)(endpoint.id.raw()) };
        }
    }

    /// The connection of an endpoint: its addresses and its token.
    pub fn id(&self, id: EndpointId) -> Option<&CmId> {
        self.endpoints.get(id.0).map(|endpoint| &endpoint.id)
    }

    /// Work of an endpoint that has not ended: sends, writes and reads, and receives of its own.
    pub fn in_flight(&self, id: EndpointId) -> (usize, usize) {
        self.endpoints.get(id.0).map_or((0, 0), |endpoint| {
            let receives = endpoint.receives.as_ref().map_or(0, |list| list.held as usize);
            (endpoint.sends.len(), receives)
        })
    }

    /// Where a connection goes along. A system call.
    ///
    /// # Errors
    /// The endpoint or its device has ended.
    pub fn path(&self, id: EndpointId) -> Result<Path, Error> {
        let endpoint = self.endpoints.get(id.0).ok_or(Error::Ended)?;
        let mut attr = IbvQpAttr::default();
        let mut init = mem::MaybeUninit::<IbvQpInitAttr>::zeroed();
        let query = self.device().library().verbs.ibv_query_qp;
        // SAFETY: the queue pair is alive; the function fills in the two structures.
        let rc = unsafe {
            query(endpoint.qp.as_ptr(), &mut attr, QP_PATH_MTU | QP_AV, init.as_mut_ptr())
        };
        if rc != 0 {
            return Err(Error::number("asking for an RDMA connection's path", rc));
        }
        Ok(Path {
            local: endpoint.id.local(),
            peer: endpoint.id.peer(),
            port: endpoint.id.port(),
            gid_index: attr.ah_attr.grh.sgid_index,
            mtu: Mtu(attr.path_mtu),
        })
    }

    /// Ends an endpoint at once. Its work ends without completions, and its memory is free when this
    /// returns: the device touches nothing of it any more. The peer is told if it was connected.
    pub fn close(&mut self, id: EndpointId) {
        self.end(id.0);
    }

    /// False if the device did not let go of the endpoint's memory: then it stays taken for ever.
    fn end(&mut self, key: Key) -> bool {
        if self.shared.is_some() {
            self.take_leave(key);
        }
        let Some(endpoint) = self.endpoints.remove(key) else { return true };
        self.by_number.remove(&endpoint.number());
        let (sends, receives) = endpoint.places();
        self.queues.sends.leave(sends);
        self.queues.receives.leave(receives);
        let shared = endpoint.receives.is_none() && endpoint.begun;
        let gone = endpoint.destroy();
        if shared {
            self.left_shared();
        }
        for place in self.receives.keys(|receive| receive.owner == Some(key)) {
            let receive = self.receives.remove(place);
            if !gone {
                mem::forget(receive);
            }
        }
        gone
    }

    /// Before a queue pair goes, takes what it has received from the shared queue: some devices forget
    /// the completions of one that is gone, and its receives would be missed for ever.
    fn take_leave(&mut self, key: Key) {
        let id = EndpointId(key);
        // It takes no more.
        self.disconnect(id);
        self.drain();
        self.refused.retain(|done| done.endpoint != id);
    }
}

struct Made {
    qp: NonNull<crate::ffi::IbvQp>,
    depth: u32,
    heads: lunet_ring::Buf,
    heads_key: u32,
    inline: u32,
    receives: Option<ReceiveList>,
}

impl Drop for Adapter {
    fn drop(&mut self) {
        let mut gone = true;
        for key in self.endpoints.keys(|_| true) {
            gone &= self.end(key);
        }
        if let Some(shared) = self.shared.take() {
            gone &= shared.destroy();
        }
        if !gone {
            mem::forget(mem::replace(&mut self.receives, Slots::with_mask(RECEIVE_GENERATIONS)));
        }
    }
}
