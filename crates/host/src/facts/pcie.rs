//! PCIe links.

use serde::{Deserialize, Serialize};

/// The link of a PCIe device, now and at most.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pcie {
    /// `0000:41:00.0`.
    pub address: String,
    /// The device's own name for itself, as numbers: `15b3:1017`.
    pub id: Option<String>,
    /// Generation of the link now: 3 = 8 GT/s, 4 = 16 GT/s, 5 = 32 GT/s.
    #[serde(rename = "gen")]
    pub generation: Option<i64>,
    /// Lanes in use.
    pub width: Option<i64>,
    /// Generation that the device could have.
    pub gen_max: Option<i64>,
    /// Lanes that the device could use.
    pub width_max: Option<i64>,
    /// Generation that the port above it could have: a slot may be older than the card in it.
    pub port_gen_max: Option<i64>,
    /// Lanes that the port above it could use.
    pub port_width_max: Option<i64>,
    /// What the link carries in one direction now, in bytes per second, after line coding and
    /// before packet headers.
    pub bytes_per_second: Option<i64>,
    /// What it could carry by the device's own maximum.
    pub bytes_per_second_max: Option<i64>,
    /// Whether the link may save power (ASPM L1).
    pub aspm_l1: Option<bool>,
    /// Largest packet of data, in bytes (only root may see it).
    pub max_payload_bytes: Option<i64>,
    /// Largest read that the device asks for, in bytes (only root may see it).
    pub max_read_request_bytes: Option<i64>,
    /// Power state now: `D0` = awake.
    pub power_state: Option<String>,
}
