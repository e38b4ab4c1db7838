//! fio, as a client and as the measure of a drive.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use lunet_e2e::process::output;

const LIMIT: Duration = Duration::from_secs(60);

/// What one job of fio reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// Operations per second.
    pub iops: f64,
    /// From submission to completion, microseconds.
    pub mean_us: f64,
}

/// Random reads, or writes, of `block` bytes, `depth` at once, for the time that `command` has got; `command` is fio with what else it is to be told.
pub fn random(command: &mut Command, reads: bool, block: u64, depth: u32) -> Result<Flow> {
    let (rw, direction) = if reads { ("randread", "read") } else { ("randwrite", "write") };
    command.args(["--name=xtask", "--time_based", "--output-format=json", "--norandommap"]);
    command.arg(format!("--rw={rw}")).arg(format!("--bs={block}"));
    let text = output(command.arg(format!("--iodepth={depth}")), LIMIT)?;
    flow_of(&text, direction).with_context(|| text.clone())
}

/// What fio says of one direction of its first job.
fn flow_of(text: &str, direction: &str) -> Option<Flow> {
    // A note may stand in front of it.
    let json: serde_json::Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let flow = json.get("jobs")?.get(0)?.get(direction)?;
    let iops = flow.get("iops")?.as_f64()?;
    let mean_us = flow.get("lat_ns")?.get("mean")?.as_f64()? / 1e3;
    (iops > 0.0 && mean_us > 0.0).then_some(Flow { iops, mean_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_is_understood() {
        let text = "note: x\n{\"jobs\": [{\"read\": {\"iops\": 6000.5, \"lat_ns\": {\"mean\": 5250000.0}}, \
                    \"write\": {\"iops\": 0.0, \"lat_ns\": {\"mean\": 0.0}}}]}";
        assert_eq!(flow_of(text, "read"), Some(Flow { iops: 6000.5, mean_us: 5250.0 }));
        assert_eq!(flow_of(text, "write"), None, "it did nothing");
    }
}
