//! What a machine is, as far as it tells.
//!
//! Rules and checks are expressions over these structures, by the names of their fields. So:
//! everything unknown is `None` (`null` in expressions and in JSON), never a guess; every whole
//! number is an `i64`, because expressions do not mix signed and unsigned ones; units are in the
//! names.

mod block;
mod ceph;
mod clock;
mod config_files;
mod cpu;
mod dmesg;
mod drive;
mod freebsd;
mod initiator;
mod load;
mod lunet;
mod memory;
mod network;
mod nfs;
mod nic;
mod numa;
mod page;
mod parse;
mod pcie;
mod platform;
mod rdma;
mod relations;
mod sensors;
mod service;
mod sysctl;
mod target;
mod truenas;
mod tuner;
mod value;
mod zfs;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::source::{Masked, Source};

pub use block::{
    Array, ArrayMember, Block, DmDevice, DmTarget, Drbd, LogicalVolume, Mount, Partition,
    PhysicalVolume, Swap, ThinPool, VolumeGroup,
};
pub use ceph::{Ceph, CephBlocked, CephPool, CephWarning};
pub use clock::Clock;
pub use config_files::{ConfigFiles, ModprobeOption, SysctlLine, UdevRule};
pub use cpu::{CState, Cpu};
pub use dmesg::{Dmesg, DmesgHit};
pub use drive::{Drive, DriveIo, Hba, LbaFormat, PowerState, SasPhy, Smart};
pub use freebsd::{
    AuthGroup, CtlConf, CtlLun, CtlPort, CtlSession, CtlTarget, FreeBsd, FreeBsdDisk, Interface,
    Label, Lagg, LaggPort, LogHit, Mbufs, NotInForce, NvmeController, PartitionStart, PathState,
    PciFunction, PortalGroup, TcpCounters,
};
pub use initiator::{
    Initiators, IscsiDisk, IscsiSession, MapPath, Multipath, MultipathMap, NvmeHost, NvmePath,
    OpenIscsi, PathGroup, Route,
};
pub use load::{Load, Softnet};
pub use lunet::{Lunet, LunetPortal};
pub use memory::{Dimm, Memory};
pub use network::{Listener, TcpConnection};
pub use nfs::{Nfs, NfsExport, NfsListener};
pub use nic::{Bond, BondMember, Coalesce, Ecn, Fec, Irqs, Nic, Optics, Pfc, Qdisc, Rss};
pub use numa::NumaNode;
pub use page::page;
pub use parse::version_num;
pub(crate) use parse::{in_network, ip};
pub use pcie::Pcie;
pub(crate) use pcie::bytes_per_second as lanes_bytes_per_second;
pub use platform::Platform;
pub use rdma::{Gid, Rdma};
pub(crate) use relations::{drives_of, rdma_used, storage_nics};
pub use sensors::{Edac, Fan, PowerLimit, Sensors, Temperature};
pub use service::Service;
pub use target::{Lun, NvmetPort, Portal, Target, TargetSession, View};
pub use truenas::{InitScript, TrueNas, Tunable};
pub use tuner::Tuner;
pub use value::Value;
pub use zfs::{Arc, Dataset, Pool, Scan, Vdev, VdevDisk, Zfs, Zvol};

/// Everything that is known about a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// What kind of machine with what system.
    pub platform: Platform,
    /// The kernel's command line: `"pcie_aspm": "off"`. A word without `=` has the value `""`.
    /// Dashes in the names are underscores.
    pub cmdline: BTreeMap<String, String>,
    /// Processors.
    pub cpu: Cpu,
    /// NUMA nodes that have processors or memory.
    pub numa: Vec<NumaNode>,
    /// Memory.
    pub memory: Memory,
    /// Network interfaces, `lo` left out.
    pub nics: Vec<Nic>,
    /// RDMA devices, one entry for each port.
    pub rdma: Vec<Rdma>,
    /// Whole block devices, without loop devices, zvols, RAM disks and mappings.
    pub drives: Vec<Drive>,
    /// Adapters for SAS, SATA and RAID.
    pub hbas: Vec<Hba>,
    /// Links of SAS.
    pub sas_phys: Vec<SasPhy>,
    /// What lies above the drives: arrays, LVM, file systems, swap.
    pub block: Block,
    /// OpenZFS; `null` if it is neither loaded nor installed.
    pub zfs: Option<Zfs>,
    /// What this machine serves: one entry for each iSCSI target or NVMe subsystem.
    pub targets: Vec<Target>,
    /// Ports of the kernel's NVMe target.
    pub nvmet_ports: Vec<NvmetPort>,
    /// The lunet servers of this machine.
    pub lunets: Vec<Lunet>,
    /// Which targets this machine uses.
    pub initiators: Initiators,
    /// The kernel's NFS server; `null` if nothing is exported and it does not run.
    pub nfs: Option<Nfs>,
    /// The Ceph cluster that it uses or is a part of; `null` if it has no configuration of Ceph.
    pub ceph: Option<Ceph>,
    /// What the kernel was built with of NFS and SMB over RDMA: `CONFIG_SMB_SERVER_SMBDIRECT` is `y`, `m` or `n`. Only
    /// asked where there is an RDMA device; empty if it cannot be seen.
    pub kernel_config: BTreeMap<String, String>,
    /// Kernel settings: `sysctls["net.core.rmem_max"]`. Several numbers are a list.
    pub sysctls: BTreeMap<String, Value>,
    /// Kernel modules in use, loaded or built in (those that /sys/module shows).
    pub modules: Vec<String>,
    /// Parameters of modules other than ZFS: `module_params["nvme_core.io_timeout"]`.
    pub module_params: BTreeMap<String, Value>,
    /// Lines of the kernel's log that mean something here.
    pub dmesg: Dmesg,
    /// TCP ports of storage protocols that somebody listens on.
    pub listeners: Vec<Listener>,
    /// TCP connections of storage protocols.
    pub tcp_connections: Vec<TcpConnection>,
    /// The kernel's clock.
    pub clock: Clock,
    /// Counters since start: processor time, memory, TCP.
    pub load: Load,
    /// What the hardware measures of itself.
    pub sensors: Sensors,
    /// Limits of storage services.
    pub services: Vec<Service>,
    /// Other programs that tune the machine, as far as they are installed.
    pub tuners: Vec<Tuner>,
    /// What configuration files say.
    pub config_files: ConfigFiles,
    /// A machine with FreeBSD or TrueNAS CORE; `null` on Linux. Of such a machine nothing else is known but `platform`
    /// and `memory.total_bytes`.
    pub freebsd: Option<FreeBsd>,
}

/// The system of a machine: checks and rules are for one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// Linux.
    #[default]
    Linux,
    /// FreeBSD, and TrueNAS CORE, which is made of it.
    FreeBsd,
}

impl Facts {
    /// The system of the machine.
    pub fn system(&self) -> System {
        if self.freebsd.is_some() { System::FreeBsd } else { System::Linux }
    }
}

/// Finds out what can be found out. Secrets are masked before anything is looked at.
pub fn facts(source: &dyn Source) -> Facts {
    let source: &dyn Source = &Masked(source);
    // Nothing that Linux answers is asked of another system.
    if let Some(facts) = freebsd::facts(source) {
        return facts;
    }
    let listeners = network::listeners(source);
    let lunets = lunet::read(source);
    let drives = drive::read(source);
    let mut facts = Facts {
        platform: platform::read(source),
        cmdline: platform::cmdline(source),
        cpu: cpu::read(source),
        numa: numa::read(source),
        memory: memory::read(source),
        nics: nic::read(source),
        rdma: rdma::read(source),
        hbas: drive::adapters(source),
        sas_phys: drive::phys(source),
        block: block::read(source, &drives),
        drives,
        zfs: zfs::read(source),
        targets: target::read(source, &listeners, &lunets),
        nvmet_ports: target::nvmet_ports(source),
        lunets,
        initiators: initiator::read(source),
        nfs: nfs::read(source),
        ceph: ceph::read(source),
        kernel_config: nfs::kernel_config(source),
        sysctls: sysctl::read(source),
        modules: source.names("/sys/module"),
        module_params: sysctl::module_params(source),
        dmesg: dmesg::read(source),
        listeners,
        tcp_connections: network::connections(source),
        clock: clock::read(source),
        load: load::read(source),
        sensors: sensors::read(source),
        services: service::read(source),
        tuners: tuner::read(source),
        config_files: config_files::read(source),
        freebsd: None,
    };
    facts.initiators.routes = initiator::routes(source, &facts.initiators, &facts.nics);
    connect(&mut facts);
    facts
}

/// The network interfaces and the RDMA devices alone.
pub fn network_cards(source: &dyn Source) -> (Vec<Nic>, Vec<Rdma>) {
    let source: &dyn Source = &Masked(source);
    (nic::read(source), rdma::read(source))
}

/// What data passes on its way to and from a server that listens on these addresses, and nothing else: no other server is
/// asked, and no log is read.
pub fn of_data_path(source: &dyn Source, portals: &[IpAddr]) -> Facts {
    let source: &dyn Source = &Masked(source);
    let portal = |address: &IpAddr| Portal { address: address.to_string(), ..Portal::default() };
    let served = Target { portals: portals.iter().map(portal).collect(), ..Target::default() };
    let mut facts = Facts {
        nics: nic::read(source),
        rdma: rdma::read(source),
        drives: drive::read(source),
        zfs: zfs::read(source),
        targets: vec![served],
        tcp_connections: network::connections(source),
        ..Facts::default()
    };
    connect(&mut facts);
    facts
}

/// Fills in what one layer says about another.
fn connect(facts: &mut Facts) {
    drive::mark_members(&mut facts.drives, facts.zfs.as_ref());
    target::mark_public(&mut facts.targets, &facts.nics);
    nic::mark_storage(facts);
}
