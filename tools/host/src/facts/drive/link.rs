//! The link and the adapter of SATA and SAS drives, and how long requests take.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Drive;
use crate::facts::parse::{leading, sorted};
use crate::source::Source;

/// What a drive has done since start (Documentation/admin-guide/iostats.rst).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DriveIo {
    /// Reads that are done.
    pub reads: i64,
    /// Writes that are done.
    pub writes: i64,
    /// Average time of a read, in microseconds.
    pub read_us: Option<i64>,
    /// Average time of a write, in microseconds.
    pub write_us: Option<i64>,
    /// Average time of a flush, in microseconds.
    pub flush_us: Option<i64>,
    /// Time of all reads together, in milliseconds.
    pub read_ms: Option<i64>,
    /// Time of all writes together, in milliseconds.
    pub write_ms: Option<i64>,
    /// Flushes that are done.
    pub flushes: Option<i64>,
    /// Time of all flushes together, in milliseconds.
    pub flush_ms: Option<i64>,
    /// Requests that are waiting now.
    pub in_flight: i64,
}

/// An adapter for SAS, SATA or RAID.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hba {
    /// `host7`.
    pub name: String,
    /// Its driver: `mpt3sas`, `megaraid_sas`, `ahci`.
    pub driver: Option<String>,
    /// `SAS9300-8i`.
    pub board: Option<String>,
    /// Version of its firmware.
    pub firmware: Option<String>,
    /// `running`, `recovery`, `offline`...
    pub state: Option<String>,
    /// Commands at once.
    pub can_queue: Option<i64>,
    /// What it says of batteries and virtual drives (storcli or perccli), in its own lines.
    pub report: Vec<String>,
}

/// A link between an adapter or expander and a drive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SasPhy {
    /// `phy-7:0`.
    pub name: String,
    /// Speed now, in Mbit/s; `null` = none.
    pub link_mbit: Option<i64>,
    /// Speed that its hardware could have.
    pub link_max_mbit: Option<i64>,
    /// `invalid_dword_count`, `running_disparity_error_count`, `loss_of_dword_sync_count`,
    /// `phy_reset_problem_count`.
    pub errors: BTreeMap<String, i64>,
}

/// Fills in link, state and times.
pub(super) fn read(source: &dyn Source, place: &str, drive: &mut Drive) {
    let at = format!("/sys/block/{}/device", drive.name);
    drive.state = source.text(&format!("{at}/state"));
    // In hexadecimal: 0x1f.
    drive.errors = source
        .text(&format!("{at}/ioerr_cnt"))
        .and_then(|text| i64::from_str_radix(text.trim_start_matches("0x"), 16).ok());
    drive.read_only = source.flag(&format!("/sys/block/{}/ro", drive.name));
    drive.zoned = source.text(&format!("/sys/block/{}/queue/zoned", drive.name));
    drive.io = times(source, &drive.name);
    let part = |start: &str| place.split('/').find_map(|part| part.strip_prefix(start));
    drive.host = part("host").map(|number| format!("host{number}"));
    if let Some(port) = part("ata").filter(|_| drive.transport.as_deref() == Some("sata")) {
        let speed = |file: &str| {
            let text = source.text(&format!("/sys/class/ata_link/link{port}/{file}"))?;
            mbit(&text)
        };
        drive.ata_port = Some(format!("ata{port}"));
        drive.link_mbit = speed("sata_spd");
        drive.link_max_mbit = speed("hw_sata_spd_limit");
        drive.link_limit_mbit = speed("sata_spd_limit");
    }
}

/// `6.0 Gbps`, `12.0 Gbit`; `<unknown>` is none.
fn mbit(text: &str) -> Option<i64> {
    let number: f64 = leading(text)?;
    // At most 22.5: no digit is lost.
    Some((number * 1000.0).round() as i64)
}

/// The file `stat`, or the line of /proc/diskstats, which has three columns in front.
fn times(source: &dyn Source, name: &str) -> Option<DriveIo> {
    let stat = source.text(&format!("/sys/block/{name}/stat")).or_else(|| {
        let all = source.read("/proc/diskstats")?;
        let line = all.lines().find(|line| line.split_whitespace().nth(2) == Some(name))?;
        Some(line.split_whitespace().skip(3).collect::<Vec<_>>().join(" "))
    })?;
    let numbers: Vec<i64> = stat.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let get = |index: usize| numbers.get(index).copied();
    let average = |count: usize, milliseconds: usize| {
        let count = get(count).filter(|&count| count > 0)?;
        Some(get(milliseconds)?.saturating_mul(1000) / count)
    };
    Some(DriveIo {
        reads: get(0)?,
        writes: get(4)?,
        read_us: average(0, 3),
        write_us: average(4, 7),
        flush_us: average(15, 16),
        read_ms: get(3),
        write_ms: get(7),
        flushes: get(15),
        flush_ms: get(16),
        in_flight: get(8)?,
    })
}

/// Reads the adapters that drives hang on; iSCSI's and USB's are none.
pub(in crate::facts) fn adapters(source: &dyn Source) -> Vec<Hba> {
    let not = ["iscsi_tcp", "iscsi_iser", "ib_iser", "iser", "usb-storage", "uas", "virtio_scsi"];
    let mut all: Vec<Hba> = Vec::new();
    for name in sorted(source.names("/sys/class/scsi_host")) {
        let at = format!("/sys/class/scsi_host/{name}");
        let text = |file: &str| source.text(&format!("{at}/{file}"));
        let driver = text("proc_name").filter(|driver| driver != "<NULL>");
        if driver.as_deref().is_none_or(|driver| not.contains(&driver)) {
            continue;
        }
        all.push(Hba {
            board: text("board_name").or_else(|| text("model_name")).or_else(|| text("modelname")),
            firmware: text("version_fw").or_else(|| text("fw_version")),
            state: text("state"),
            can_queue: source.int(&format!("{at}/can_queue")),
            report: Vec::new(),
            driver,
            name,
        });
    }
    if let Some(raid) = all.iter_mut().find(|hba| hba.driver.as_deref() == Some("megaraid_sas")) {
        let told = ["storcli64", "perccli64", "storcli"]
            .into_iter()
            .find_map(|program| source.output(program, &["/c0", "show"]));
        let lines = told.unwrap_or_default();
        raid.report = lines
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect();
    }
    all
}

/// Reads the links of SAS.
pub(in crate::facts) fn phys(source: &dyn Source) -> Vec<SasPhy> {
    let counters = [
        "invalid_dword_count",
        "running_disparity_error_count",
        "loss_of_dword_sync_count",
        "phy_reset_problem_count",
    ];
    let read = |name: String| {
        let at = format!("/sys/class/sas_phy/{name}");
        let rate = |file: &str| mbit(&source.text(&format!("{at}/{file}"))?);
        let errors = counters.iter().filter_map(|counter| {
            Some(((*counter).to_owned(), source.int(&format!("{at}/{counter}"))?))
        });
        SasPhy {
            link_mbit: rate("negotiated_linkrate"),
            link_max_mbit: rate("maximum_linkrate_hw").or_else(|| rate("maximum_linkrate")),
            errors: errors.collect(),
            name,
        }
    };
    sorted(source.names("/sys/class/sas_phy")).into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_links_and_times() {
        let tree = Tree::parse(
            "/sys/class/ata_link/link1/sata_spd: 1.5 Gbps
/sys/class/ata_link/link1/hw_sata_spd_limit: 6.0 Gbps
/proc/diskstats:
|    8       0 sda 1000 0 8000 250 500 0 4000 5000 2 100 5250 0 0 0 0 10 40
/sys/class/sas_phy/phy-7:0/negotiated_linkrate: 6.0 Gbit
/sys/class/sas_phy/phy-7:0/maximum_linkrate_hw: 12.0 Gbit
/sys/class/sas_phy/phy-7:0/invalid_dword_count: 812
/sys/class/scsi_host/host7/proc_name: mpt3sas
/sys/class/scsi_host/host7/board_name: SAS9300-8i
/sys/class/scsi_host/host9/proc_name: iscsi_tcp
",
        )
        .unwrap();
        let transport = Some("sata".to_owned());
        let mut drive = Drive { name: "sda".to_owned(), transport, ..Drive::default() };
        read(&tree, "../devices/x/ata1/host1/target1:0:0/1:0:0:0/block/sda", &mut drive);
        assert_eq!((drive.link_mbit, drive.link_max_mbit), (Some(1500), Some(6000)));
        let io = drive.io.unwrap();
        assert_eq!((io.read_us, io.write_us, io.flush_us), (Some(250), Some(10_000), Some(4000)));
        assert_eq!(phys(&tree)[0].errors["invalid_dword_count"], 812);
        let hbas = adapters(&tree);
        assert_eq!((hbas.len(), hbas[0].board.as_deref()), (1, Some("SAS9300-8i")));
    }
}
