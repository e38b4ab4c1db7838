//! `infiniband/verbs.h`.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`, up to what is in use.
#[repr(C)]
pub(crate) struct IbvDevice {
    _ops: [*mut c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
}

pub(crate) type PollCq = unsafe extern "C" fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int;
pub(crate) type ReqNotifyCq = unsafe extern "C" fn(*mut IbvCq, c_int) -> c_int;
pub(crate) type PostSrqRecv =
    unsafe extern "C" fn(*mut IbvSrq, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int;
pub(crate) type PostSend =
    unsafe extern "C" fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int;
pub(crate) type PostRecv =
    unsafe extern "C" fn(*mut IbvQp, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int;

/// `struct ibv_context_ops`: what the header's inline functions call. Places whose function is
/// not called here are plain pointers.
#[repr(C)]
pub(crate) struct IbvContextOps {
    _before_poll_cq: [*mut c_void; 11],
    pub poll_cq: Option<PollCq>,
    pub req_notify_cq: Option<ReqNotifyCq>,
    _before_post_srq_recv: [*mut c_void; 7],
    pub post_srq_recv: Option<PostSrqRecv>,
    _before_post_send: [*mut c_void; 4],
    pub post_send: Option<PostSend>,
    pub post_recv: Option<PostRecv>,
    _behind: [*mut c_void; 5],
}

/// `struct ibv_context`, up to what is in use.
#[repr(C)]
pub(crate) struct IbvContext {
    pub device: *mut IbvDevice,
    pub ops: IbvContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
}

/// `struct ibv_pd`, `struct ibv_srq`: only their first field is in use.
#[repr(C)]
pub(crate) struct IbvPd {
    pub context: *mut IbvContext,
}

#[repr(C)]
pub(crate) struct IbvSrq {
    pub context: *mut IbvContext,
}

/// `struct ibv_cq`, up to what is in use.
#[repr(C)]
pub(crate) struct IbvCq {
    pub context: *mut IbvContext,
    pub channel: *mut IbvCompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
}

#[repr(C)]
pub(crate) struct IbvCompChannel {
    pub context: *mut IbvContext,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// `struct ibv_qp`, up to what is in use.
#[repr(C)]
pub(crate) struct IbvQp {
    pub context: *mut IbvContext,
    pub qp_context: *mut c_void,
    pub pd: *mut IbvPd,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub handle: u32,
    pub qp_num: u32,
}

#[repr(C)]
pub(crate) struct IbvMr {
    pub context: *mut IbvContext,
    pub pd: *mut IbvPd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IbvSge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_send_wr`. Of its unions only the member for RDMA is here.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct IbvSendWr {
    pub wr_id: u64,
    pub next: *mut IbvSendWr,
    pub sg_list: *mut IbvSge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    /// The key to invalidate with [`WR_SEND_WITH_INV`].
    pub invalidate_rkey: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub _wr: [u64; 2],
    pub _qp_type: u64,
    pub _bind_mw: [u64; 6],
}

impl IbvSendWr {
    pub(crate) const EMPTY: Self = Self {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        invalidate_rkey: 0,
        remote_addr: 0,
        rkey: 0,
        _wr: [0; 2],
        _qp_type: 0,
        _bind_mw: [0; 6],
    };
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct IbvRecvWr {
    pub wr_id: u64,
    pub next: *mut IbvRecvWr,
    pub sg_list: *mut IbvSge,
    pub num_sge: c_int,
}

/// `struct ibv_wc`. Status and operation are numbers here: a library may know more of them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IbvWc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub invalidated_rkey: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IbvQpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct IbvQpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub cap: IbvQpCap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct IbvSrqInitAttr {
    pub srq_context: *mut c_void,
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IbvPortAttr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct IbvDeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_uint,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IbvGlobalRoute {
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IbvAhAttr {
    pub grh: IbvGlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IbvQpAttr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: IbvQpCap,
    pub ah_attr: IbvAhAttr,
    pub alt_ah_attr: IbvAhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `struct ibv_async_event`: an object's address, or a port's number.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct IbvAsyncEvent {
    pub element: u64,
    pub event_type: c_uint,
}

impl IbvAsyncEvent {
    /// The port that the event is about, if its type says that it is about one.
    pub(crate) fn port(&self) -> u8 {
        // The union begins with an `int`; its bytes are the first ones on either byte order.
        let bytes = self.element.to_ne_bytes();
        u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as u8
    }
}

/// `IBV_DEVICE_MEM_MGT_EXTENSIONS`: fast registration, Send with Invalidate, local invalidation.
pub(crate) const DEVICE_MEM_MGT_EXTENSIONS: c_uint = 1 << 21;
pub(crate) const QPT_RC: c_uint = 2;
pub(crate) const WR_RDMA_WRITE: c_uint = 0;
pub(crate) const WR_SEND: c_uint = 2;
pub(crate) const WR_RDMA_READ: c_uint = 4;
pub(crate) const WR_SEND_WITH_INV: c_uint = 9;
pub(crate) const SEND_SIGNALED: c_uint = 1 << 1;
pub(crate) const SEND_INLINE: c_uint = 1 << 3;
pub(crate) const WC_WITH_INV: c_uint = 1 << 3;
pub(crate) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(crate) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(crate) const ACCESS_REMOTE_READ: c_int = 1 << 2;
pub(crate) const QP_AV: c_int = 1 << 7;
pub(crate) const QP_PATH_MTU: c_int = 1 << 8;
pub(crate) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(crate) const PORT_ACTIVE: c_uint = 4;
pub(crate) const EVENT_QP_FATAL: c_uint = 1;
pub(crate) const EVENT_DEVICE_FATAL: c_uint = 8;
pub(crate) const EVENT_PORT_ACTIVE: c_uint = 9;
pub(crate) const EVENT_PORT_ERR: c_uint = 10;
pub(crate) const EVENT_GID_CHANGE: c_uint = 18;
