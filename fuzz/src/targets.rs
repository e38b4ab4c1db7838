//! The fuzz targets: each takes any bytes, and panics if something is wrong.

pub mod cdb;
pub mod config;
pub mod group;
pub mod initiator_stream;
pub mod iser;
pub mod nvme_auth;
pub mod nvme_controller;
pub mod nvme_host;
pub mod nvme_pdu;
pub mod nvme_rdma;
pub mod pdu;
pub mod target_stream;
pub mod text;
pub mod tls;
pub mod what_if;

/// A target: its name, and what runs one input.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const ALL: [Target; 15] = [
    ("cdb", cdb::run),
    ("config", config::run),
    ("group", group::run),
    ("initiator_stream", initiator_stream::run),
    ("iser", iser::run),
    ("nvme_auth", nvme_auth::run),
    ("nvme_controller", nvme_controller::run),
    ("nvme_host", nvme_host::run),
    ("nvme_pdu", nvme_pdu::run),
    ("nvme_rdma", nvme_rdma::run),
    ("pdu", pdu::run),
    ("target_stream", target_stream::run),
    ("text", text::run),
    ("tls", tls::run),
    ("what_if", what_if::run),
];
