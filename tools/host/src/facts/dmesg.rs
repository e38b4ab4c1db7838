//! Lines of the kernel's log that mean something here.

use serde::{Deserialize, Serialize};

use crate::source::Source;
use crate::source::kernel_log::{kind, without_time};

/// What the kernel's log says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dmesg {
    /// Whether it could be read: often only root may. It holds what has happened since start,
    /// unless newer lines have pushed the older ones out.
    pub readable: bool,
    /// The lines that mean something.
    pub hits: Vec<DmesgHit>,
}

/// Lines of one kind about one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DmesgHit {
    /// What they mean: `iser_registered`, `nvme_timeout`, `io_error`... (all are in src/source/kernel_log.rs).
    pub kind: String,
    /// The device that the lines name: `nvme0`, `0000:41:00.0`, `mlx5_0`.
    pub device: Option<String>,
    /// The last of them, without its time.
    pub text: String,
    /// How many there are.
    pub count: i64,
}

/// Reads the log.
pub(super) fn read(source: &dyn Source) -> Dmesg {
    let Some(log) = source.output("dmesg", &[]) else { return Dmesg::default() };
    let mut hits: Vec<DmesgHit> = Vec::new();
    for line in log.lines() {
        let text = without_time(line);
        let Some(kind) = kind(text) else { continue };
        let device = device(text);
        match hits.iter_mut().find(|hit| hit.kind == kind && hit.device == device) {
            Some(hit) => {
                hit.count += 1;
                text.clone_into(&mut hit.text);
            }
            None => hits.push(DmesgHit {
                kind: kind.to_owned(),
                device,
                text: text.to_owned(),
                count: 1,
            }),
        }
    }
    Dmesg { readable: true, hits }
}

/// The first word that names a device.
fn device(text: &str) -> Option<String> {
    let starts = [
        "nvme",
        "mlx",
        "sd",
        "en",
        "eth",
        "bond",
        "ib",
        "rxe",
        "irdma",
        "md",
        "dm-",
        "ata",
        "mpt3sas_cm",
        "vmbr",
        "vd",
    ];
    let words =
        || text.split([' ', ',', '(', ')', '[', ']']).map(|word| word.trim_matches([':', '\'']));
    let named = |word: &&str| {
        word.bytes().any(|byte| byte.is_ascii_digit())
            && !word.contains([':', '/', '='])
            && starts.iter().any(|start| word.starts_with(start))
    };
    let address = words().find(|word| super::pcie::is_address(word)).map(str::to_owned);
    // Intel's IOMMU leaves the first domain out: `Request device [3b:00.0]`.
    let short =
        || words().map(|word| format!("0000:{word}")).find(|word| super::pcie::is_address(word));
    let named = words().find(named).filter(|word| *word != "mlx5_core").map(str::to_owned);
    named.or(address).or_else(short)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    const LOG: &str = "\
$ dmesg
| [    3.100000] mlx5_core 0000:41:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:40:01.1 (capable of 126.016 Gb/s with 8.0 GT/s PCIe x16 link)
| [   20.000000] iscsi-scst: Registered iSCSI transport: iSCSI-TCP
| [   21.000000] iscsi-scst: Registered iSCSI transport: iSER
| [  100.000000] nvme nvme3: I/O 512 QID 4 timeout, aborting
| [  130.000000] nvme nvme3: I/O 513 QID 4 timeout, reset controller
| [  131.000000] nvme nvme3: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff
| [  140.000000] TCP: request_sock_TCP: Possible SYN flooding on port 3260. Sending cookies.
| [  145.000000] DMAR: DRHD: handling fault status reg 2
| [  145.100000] DMAR: [DMA Read NO_PASID] Request device [3b:00.0] fault addr 0xfe7e9000 [fault reason 0x06] PTE Read access is not set
| [  150.000000] usb 1-1: new high-speed USB device
";

    #[test]
    fn finds_the_lines_that_mean_something() {
        let log = read(&Tree::parse(LOG).unwrap());
        assert!(log.readable);
        let seen: Vec<_> = log
            .hits
            .iter()
            .map(|hit| (hit.kind.as_str(), hit.device.as_deref(), hit.count))
            .collect();
        assert_eq!(
            seen,
            [
                ("pcie_limited", Some("0000:41:00.0"), 1),
                ("iser_registered", None, 1),
                ("nvme_timeout", Some("nvme3"), 2),
                ("nvme_lost", Some("nvme3"), 1),
                ("syn_flood", None, 1),
                ("iommu_fault", None, 1),
                ("iommu_fault", Some("0000:3b:00.0"), 1),
            ]
        );
        assert!(log.hits[2].text.starts_with("nvme nvme3: I/O 513"), "the last, without its time");
    }

    #[test]
    fn a_log_that_nobody_may_read_is_not_an_empty_one() {
        assert!(!read(&Tree::new()).readable);
        assert!(!read(&Tree::parse("$ dmesg\nexit 1\n").unwrap()).readable);
    }
}
