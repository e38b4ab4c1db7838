//! The commands that facts are read from.

use std::fmt;

/// One of the commands that look and change nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Command {
    program: String,
    args: Vec<String>,
}

/// What a command said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Exit code; 0 = it went well.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
}

/// The programs with the first arguments that make them only look. `*` stands for any argument.
/// Nothing else is ever run to find facts.
const LOOKS: &[&[&str]] = &[
    &["ceph", "config", "get", "*", "*", "--connect-timeout=5"],
    &["ceph", "osd", "dump", "--format=json"],
    &["ceph", "osd", "tree", "--format=json"],
    &["ceph", "status", "--format=json"],
    &["chronyc", "-n", "sources"],
    &["chronyc", "tracking"],
    &["date", "+%s"],
    &["dcb", "pfc", "show", "dev"],
    &["dmesg"],
    &["dmidecode", "-t"],
    &["dmsetup", "status"],
    &["dmsetup", "table"],
    &["drbdadm", "status"],
    &["ethtool", "*"],
    &["ethtool", "-I", "--show-fec"],
    &["ethtool", "-a"],
    &["ethtool", "-c"],
    &["ethtool", "-g"],
    &["ethtool", "-i"],
    &["ethtool", "-k"],
    &["ethtool", "-l"],
    &["ethtool", "-m"],
    &["ethtool", "-S"],
    &["ethtool", "-x"],
    &["getconf", "PAGESIZE"],
    &[
        "grep",
        "-hE",
        "CONFIG_(SUNRPC_XPRT_RDMA|SMB_SERVER|SMB_SERVER_SMBDIRECT|CIFS|CIFS_SMB_DIRECT)[^_A-Z]",
        "*",
    ],
    &["ibv_devinfo"],
    &["ip", "-d", "-j", "addr"],
    &["ip", "route", "get"],
    &["ipmitool", "sdr", "type"],
    &["ipmitool", "sel", "elist"],
    &["iscsiadm", "--version"],
    &["iscsiadm", "-m", "node", "-P", "1"],
    &["iscsiadm", "-m", "session", "-P", "3"],
    &["lspci", "-vv", "-s"],
    &["midclt", "call", "initshutdownscript.query"],
    &["midclt", "call", "iscsi.global.config"],
    &["midclt", "call", "iscsi.global.sessions"],
    &["midclt", "call", "nfs.config"],
    &["midclt", "call", "system.advanced.config"],
    &["midclt", "call", "system.product_type"],
    &["midclt", "call", "system.version"],
    &["midclt", "call", "tunable.query"],
    &["lunet", "config", "show"],
    &["lunet", "sessions", "--json"],
    &["lunet", "stats", "--json"],
    &["lunet", "target", "list", "--json"],
    &["lunet", "volume", "list", "--json"],
    &["lvs"],
    &["mlnx_qos", "-i", "*"],
    &["multipath", "-ll"],
    &["multipathd", "show"],
    &["nvme", "id-ctrl"],
    &["nvme", "id-ns"],
    &["nvme", "list-subsys"],
    &["nvme", "smart-log"],
    &["nvme", "version"],
    &["perccli64", "/c0", "show"],
    &["pveversion"],
    &["pvs"],
    &["smartctl", "-a", "*"],
    &["smartctl", "-a", "-j", "*"],
    &["ss"],
    &["storcli", "/c0", "show"],
    &["storcli64", "/c0", "show"],
    &["systemctl", "is-active"],
    &["systemd-detect-virt"],
    &["tc", "-s", "qdisc", "show", "dev"],
    &["timedatectl", "show"],
    &["tgtadm", "--mode", "target", "--op", "show"],
    &["tuned-adm", "active"],
    &["uname"],
    &["vgs"],
    &["zfs", "get"],
    &["zfs", "list"],
    &["zfs", "version"],
    &["zpool", "events", "-H"],
    &["zpool", "get"],
    &["zpool", "list"],
    &["zpool", "status"],
];

impl Command {
    /// The command with these arguments.
    pub fn new(program: &str, args: &[&str]) -> Self {
        Self { program: program.to_owned(), args: args.iter().map(|&arg| arg.to_owned()).collect() }
    }

    /// The program's name.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// The arguments, without the program.
    pub fn args(&self) -> &[String] {
        &self.args
    }

    /// Whether it is one of those that change nothing.
    pub fn only_looks(&self) -> bool {
        LOOKS.iter().any(|known| {
            let (program, first) = (known[0], &known[1..]);
            self.program == program
                && self.args.len() >= first.len()
                && first
                    .iter()
                    .zip(&self.args)
                    .all(|(&want, have)| want == have || (want == "*" && !have.starts_with('-')))
        })
    }
}

/// As it would be typed; in a captured tree this is the command's name.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {arg}"))
    }
}
