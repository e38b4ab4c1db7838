//! Sizes and offsets as a C compiler has them, on x86-64 and arm64 alike: rdma-core 44 (and later:
//! both headers are frozen, what is new comes in other structures).

use std::mem::{offset_of, size_of};

use super::*;

/// Compares offsets of fields: `Type { field = offset, ... }`.
macro_rules! offsets {
    ($type:ty { $($field:ident = $offset:literal),+ $(,)? }) => {
        $(assert_eq!(offset_of!($type, $field), $offset, stringify!($type.$field));)+
    };
}

#[test]
fn structures_that_this_crate_makes_have_their_whole_size() {
    assert_eq!(size_of::<IbvSge>(), 16);
    assert_eq!(size_of::<IbvSendWr>(), 128);
    assert_eq!(size_of::<IbvRecvWr>(), 32);
    assert_eq!(size_of::<IbvWc>(), 48);
    assert_eq!(size_of::<IbvQpInitAttr>(), 64);
    assert_eq!(size_of::<IbvSrqInitAttr>(), 24);
    assert_eq!(size_of::<IbvPortAttr>(), 52);
    assert_eq!(size_of::<IbvDeviceAttr>(), 232);
    assert_eq!(size_of::<IbvQpAttr>(), 144);
    assert_eq!(size_of::<IbvAhAttr>(), 32);
    assert_eq!(size_of::<IbvGlobalRoute>(), 24);
    assert_eq!(size_of::<IbvAsyncEvent>(), 16);
    assert_eq!(size_of::<RdmaConnParam>(), 24);
}

#[test]
fn work_and_completions_have_their_fields_in_place() {
    offsets!(IbvSendWr {
        sg_list = 16,
        opcode = 28,
        send_flags = 32,
        invalidate_rkey = 36,
        remote_addr = 40,
        rkey = 48,
    });
    offsets!(IbvRecvWr { sg_list = 16, num_sge = 24 });
    offsets!(IbvWc {
        status = 8,
        opcode = 12,
        byte_len = 20,
        invalidated_rkey = 24,
        qp_num = 28,
        wc_flags = 36,
    });
    offsets!(IbvSge { length = 8, lkey = 12 });
}

#[test]
fn attributes_have_their_fields_in_place() {
    offsets!(IbvQpInitAttr { srq = 24, cap = 32, qp_type = 52, sq_sig_all = 56 });
    offsets!(IbvSrqInitAttr { max_wr = 8 });
    offsets!(IbvPortAttr {
        active_mtu = 8,
        gid_tbl_len = 12,
        phys_state = 45,
        link_layer = 46,
        port_cap_flags2 = 48,
    });
    offsets!(IbvDeviceAttr {
        max_mr_size = 80,
        max_qp = 108,
        device_cap_flags = 116,
        max_sge = 120,
        max_cqe = 132,
        max_qp_rd_atom = 144,
        max_qp_init_rd_atom = 156,
        max_srq = 212,
        max_srq_wr = 216,
        phys_port_cnt = 227,
    });
    offsets!(IbvQpAttr {
        path_mtu = 8,
        ah_attr = 56,
        alt_ah_attr = 88,
        pkey_index = 120,
        port_num = 129,
        rate_limit = 136,
    });
    offsets!(IbvGlobalRoute { sgid_index = 20 });
}

#[test]
fn objects_of_the_libraries_have_their_fields_in_place() {
    offsets!(IbvContext { ops = 8, cmd_fd = 264, async_fd = 268, num_comp_vectors = 272 });
    // From the beginning of `struct ibv_context`, as the compiler was asked.
    assert_eq!(8 + offset_of!(IbvContextOps, poll_cq), 96);
    assert_eq!(8 + offset_of!(IbvContextOps, req_notify_cq), 104);
    assert_eq!(8 + offset_of!(IbvContextOps, post_srq_recv), 168);
    assert_eq!(8 + offset_of!(IbvContextOps, post_send), 208);
    assert_eq!(8 + offset_of!(IbvContextOps, post_recv), 216);
    offsets!(IbvDevice { node_type = 16, transport_type = 20, name = 24 });
    offsets!(IbvQp { context = 0, qp_num = 52 });
    offsets!(IbvMr { addr = 16, lkey = 36, rkey = 40 });
    offsets!(IbvCompChannel { fd = 8 });
    offsets!(IbvCq { cqe = 28 });
    offsets!(IbvAsyncEvent { event_type = 8 });
}

#[test]
fn structures_of_the_connection_manager_have_their_fields_in_place() {
    offsets!(RdmaConnParam {
        private_data_len = 8,
        rnr_retry_count = 13,
        srq = 14,
        qp_num = 16,
    });
    offsets!(RdmaCmEvent { listen_id = 8, event = 16, status = 20, conn = 24 });
    offsets!(RdmaCmId { channel = 8, context = 16, qp = 24, route = 32, ps = 344, port_num = 348 });
    offsets!(RdmaRoute { path_rec = 296 });
    offsets!(RdmaAddr { dst = 128 });
}
