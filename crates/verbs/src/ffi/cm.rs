//! `rdma/rdma_cma.h`.

use std::ffi::{c_int, c_uint, c_void};

use super::{IbvContext, IbvQp};

#[repr(C)]
pub(crate) struct RdmaEventChannel {
    pub fd: c_int,
}

/// `struct rdma_addr`: two addresses, and what InfiniBand makes of them.
#[repr(C)]
pub(crate) struct RdmaAddr {
    pub src: libc::sockaddr_storage,
    pub dst: libc::sockaddr_storage,
    _ib: [u8; 34],
}

#[repr(C)]
pub(crate) struct RdmaRoute {
    pub addr: RdmaAddr,
    pub path_rec: *mut c_void,
    pub num_paths: c_int,
}

/// `struct rdma_cm_id`, up to what is in use.
#[repr(C)]
pub(crate) struct RdmaCmId {
    pub verbs: *mut IbvContext,
    pub channel: *mut RdmaEventChannel,
    pub context: *mut c_void,
    pub qp: *mut IbvQp,
    pub route: RdmaRoute,
    pub ps: c_uint,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RdmaConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// `struct rdma_cm_event`. Of its union only the member for connections is here.
#[repr(C)]
pub(crate) struct RdmaCmEvent {
    pub id: *mut RdmaCmId,
    pub listen_id: *mut RdmaCmId,
    pub event: c_uint,
    pub status: c_int,
    pub conn: RdmaConnParam,
}

pub(crate) const PS_TCP: c_uint = 0x0106;
pub(crate) const OPTION_ID: c_int = 0;
pub(crate) const OPTION_ID_AFONLY: c_int = 2;
