//! What this machine has: initiators and their names, modules, RDMA, sessions.

use lunet_host::source::Source;

use crate::address::Transport;
use crate::disk::{self, Known};

/// Where programs are.
const FOLDERS: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Where open-iscsi keeps its records: Debian's place, and that of Red Hat.
pub const RECORDS: [&str; 2] = ["/etc/iscsi/nodes", "/var/lib/iscsi/nodes"];

/// Whose packages this machine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// Debian, Ubuntu, Proxmox VE.
    Debian,
    /// Red Hat Enterprise Linux, those that are built from it, Fedora.
    RedHat,
    /// Another one.
    #[default]
    Other,
}

/// A session of open-iscsi.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionFact {
    /// `session3`.
    pub id: String,
    /// Name of the target.
    pub target: String,
    /// Address of the portal.
    pub address: String,
    /// Port of the portal.
    pub port: u16,
    /// Portal group, if the kernel shows it.
    pub tag: Option<u16>,
    /// Name of the interface: `default`, `iser`.
    pub iface: String,
    /// `LOGGED_IN`, `FAILED`.
    pub state: String,
}

/// A controller of the NVMe host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerFact {
    /// `nvme3`.
    pub id: String,
    /// SUBNQN.
    pub nqn: String,
    /// `tcp`, `rdma`.
    pub transport: String,
    /// Address of the portal.
    pub address: String,
    /// Port of the portal.
    pub port: u16,
    /// `live`, `connecting`.
    pub state: String,
}

/// What this machine has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Whose packages it has.
    pub family: Family,
    /// systemd is process 1.
    pub systemd: bool,
    /// Version of the kernel.
    pub kernel: (u32, u32),
    /// InitiatorName of open-iscsi.
    pub initiator_name: Option<String>,
    /// It has a name that this user may not read.
    pub hidden_name: bool,
    /// HOSTNQN.
    pub host_nqn: Option<String>,
    /// HOSTID, a UUID.
    pub host_id: Option<String>,
    /// Programs that there are, of those that are asked for.
    pub programs: Vec<String>,
    /// Modules that there are, of those that are asked for.
    pub modules: Vec<String>,
    /// RDMA devices with an active port.
    pub rdma: Vec<String>,
    /// One disk is made of several paths of an NVMe subsystem.
    pub native_multipath: bool,
    /// multipathd runs.
    pub multipathd: bool,
    /// Sessions of open-iscsi.
    pub sessions: Vec<SessionFact>,
    /// Controllers over a network.
    pub controllers: Vec<ControllerFact>,
    /// Disks that have a name, and maps of dm-multipath.
    pub disks: Vec<Known>,
}

impl Host {
    /// Looks at a machine. What cannot be read is not there.
    #[must_use]
    pub fn look(source: &dyn Source) -> Self {
        let initiator = source.read("/etc/iscsi/initiatorname.iscsi");
        let there = source.names("/etc/iscsi").iter().any(|file| file == "initiatorname.iscsi");
        let hidden_name = initiator.is_none() && there;
        let initiator = initiator.unwrap_or_default();
        let name = initiator.lines().find_map(|line| line.trim().strip_prefix("InitiatorName="));
        Self {
            family: family(source),
            systemd: source.list("/run/systemd/system").is_some(),
            kernel: kernel(source),
            initiator_name: name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()),
            hidden_name,
            host_nqn: source.text("/etc/nvme/hostnqn"),
            host_id: source.text("/etc/nvme/hostid"),
            programs: programs(source),
            modules: modules(source),
            rdma: rdma(source),
            native_multipath: source.flag("/sys/module/nvme_core/parameters/multipath")
                != Some(false),
            multipathd: source
                .read("/proc/net/unix")
                .is_some_and(|text| text.contains("/multipathd")),
            sessions: sessions(source),
            controllers: controllers(source),
            disks: disk::known(source),
        }
    }

    /// Whether there is a program.
    #[must_use]
    pub fn has_program(&self, name: &str) -> bool {
        self.programs.iter().any(|have| have == name)
    }

    /// Whether there is a module, loaded or not.
    #[must_use]
    pub fn has_module(&self, name: &str) -> bool {
        self.modules.iter().any(|have| have == name)
    }

    /// What is missing here for a transport, in words.
    #[must_use]
    pub fn lacks(&self, transport: Transport) -> Option<String> {
        let module = module(transport);
        if transport.is_rdma() && self.rdma.is_empty() {
            return Some("this machine has no RDMA device with an active port".to_owned());
        }
        if !self.has_module(module) {
            let package = match self.family {
                Family::RedHat => "`dnf install kernel-modules` for the kernel that runs",
                _ => {
                    "kernels for clouds come without it: the package linux-image-amd64 of Debian, \
                     linux-modules-extra-$(uname -r) of Ubuntu has it"
                }
            };
            return Some(format!("this machine's kernel has no module {module} ({package})"));
        }
        let (program, package) = match transport.is_nvme() {
            true => ("nvme", "nvme-cli"),
            false => ("iscsiadm", self.open_iscsi()),
        };
        let missing = !self.has_program(program);
        missing.then(|| format!("the package {package} is missing: {}", self.install(package)))
    }

    /// What is missing here for TLS over a transport, in words.
    #[must_use]
    pub fn lacks_tls(&self, transport: Transport) -> Option<String> {
        if transport != Transport::NvmeTcp {
            return Some(format!("a key of TLS is given, and {transport} has no TLS here"));
        }
        if !self.has_module(KEYRING) {
            return Some(format!(
                "this machine's kernel has no TLS for NVMe over TCP (module {KEYRING}): Linux 6.7 and later may have it, as that of Debian 13"
            ));
        }
        let missing = !self.has_program("tlshd");
        missing.then(|| {
            format!(
                "tlshd is missing, which makes the handshakes for the kernel: {}",
                self.install("ktls-utils")
            )
        })
    }

    /// Name of the package of open-iscsi.
    #[must_use]
    pub const fn open_iscsi(&self) -> &'static str {
        match self.family {
            Family::RedHat => "iscsi-initiator-utils",
            _ => "open-iscsi",
        }
    }

    /// Name of the package of dm-multipath.
    #[must_use]
    pub const fn multipath(&self) -> &'static str {
        match self.family {
            Family::RedHat => "device-mapper-multipath",
            _ => "multipath-tools",
        }
    }

    /// The unit that logs in to targets when the machine starts.
    #[must_use]
    pub const fn boot_unit(&self) -> &'static str {
        match self.family {
            Family::RedHat => "iscsi.service",
            _ => "open-iscsi.service",
        }
    }

    /// The command that installs a package.
    #[must_use]
    pub fn install(&self, package: &str) -> String {
        match self.family {
            Family::Debian => format!("`apt install {package}`"),
            Family::RedHat => format!("`dnf install {package}`"),
            Family::Other => format!("install {package} as your distribution does"),
        }
    }
}

/// The module that keeps keys of TLS for NVMe.
const KEYRING: &str = "nvme-keyring";

/// The module of a transport.
#[must_use]
pub const fn module(transport: Transport) -> &'static str {
    match transport {
        Transport::NvmeRdma => "nvme-rdma",
        Transport::Iser => "ib_iser",
        Transport::NvmeTcp => "nvme-tcp",
        Transport::Iscsi => "iscsi_tcp",
    }
}

fn family(source: &dyn Source) -> Family {
    let text = source.read("/etc/os-release").unwrap_or_default();
    let words: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")))
        .flat_map(|value| value.split(['"', ' ']))
        .collect();
    let any = |names: &[&str]| words.iter().any(|word| names.contains(word));
    if any(&["debian", "ubuntu"]) {
        Family::Debian
    } else if any(&["rhel", "fedora", "centos"]) {
        Family::RedHat
    } else {
        Family::Other
    }
}

fn kernel(source: &dyn Source) -> (u32, u32) {
    let release = source.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn programs(source: &dyn Source) -> Vec<String> {
    let wanted =
        ["iscsiadm", "nvme", "multipath", "multipathd", "blkid", "mkfs.ext4", "mkfs.xfs", "tlshd"];
    let there: Vec<Vec<String>> = FOLDERS.iter().map(|folder| source.names(folder)).collect();
    let has = |name: &&str| there.iter().flatten().any(|have| have == name);
    wanted.into_iter().filter(has).map(str::to_owned).collect()
}

fn modules(source: &dyn Source) -> Vec<String> {
    let release = source.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let known = ["modules.dep", "modules.builtin"]
        .map(|file| source.read(&format!("/lib/modules/{release}/{file}")).unwrap_or_default())
        .concat();
    let has = |name: &str| {
        known.contains(&format!("/{name}.ko"))
            || source.list(&format!("/sys/module/{}", name.replace('-', "_"))).is_some()
    };
    let wanted = Transport::ALL.map(module).into_iter().chain([KEYRING]);
    wanted.filter(|name| has(name)).map(str::to_owned).collect()
}

fn rdma(source: &dyn Source) -> Vec<String> {
    let mut devices = source.names("/sys/class/infiniband");
    devices.retain(|device| {
        let ports = format!("/sys/class/infiniband/{device}/ports");
        source.names(&ports).iter().any(|port| {
            source
                .text(&format!("{ports}/{port}/state"))
                .is_some_and(|text| text.contains("ACTIVE"))
        })
    });
    devices
}

/// Sessions of open-iscsi.
#[must_use]
pub fn sessions(source: &dyn Source) -> Vec<SessionFact> {
    let mut found = Vec::new();
    for id in source.names("/sys/class/iscsi_session") {
        let of = |name: &str| source.text(&format!("/sys/class/iscsi_session/{id}/{name}"));
        let number = id.trim_start_matches("session");
        let connection = format!("/sys/class/iscsi_connection/connection{number}:0");
        let port = source.int(&format!("{connection}/persistent_port"));
        found.push(SessionFact {
            target: of("targetname").unwrap_or_default(),
            address: source.text(&format!("{connection}/persistent_address")).unwrap_or_default(),
            port: port.and_then(|port| u16::try_from(port).ok()).unwrap_or(0),
            tag: of("tpgt").and_then(|tag| tag.parse().ok()),
            iface: of("ifacename").unwrap_or_else(|| "default".to_owned()),
            state: of("state").unwrap_or_default(),
            id,
        });
    }
    found
}

/// Controllers over a network.
#[must_use]
pub fn controllers(source: &dyn Source) -> Vec<ControllerFact> {
    let mut found = Vec::new();
    for id in source.names("/sys/class/nvme") {
        let of =
            |name: &str| source.text(&format!("/sys/class/nvme/{id}/{name}")).unwrap_or_default();
        let address = of("address");
        let part = |name: &str| {
            address
                .split(',')
                .find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
                .unwrap_or_default()
        };
        let transport = of("transport");
        if transport != "tcp" && transport != "rdma" {
            continue;
        }
        found.push(ControllerFact {
            nqn: of("subsysnqn"),
            address: part("traddr").to_owned(),
            port: part("trsvcid").parse().unwrap_or(0),
            state: of("state"),
            transport,
            id,
        });
    }
    found
}
