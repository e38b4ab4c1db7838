//! The kernel's NFS server, and what NFS and SMB could do over RDMA.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::source::Source;

/// The kernel's NFS server, where something is exported or it runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Nfs {
    /// Its threads; 0 = it is stopped, `null` = it was never started.
    pub threads: Option<i64>,
    /// What it listens on now, as the kernel says; `null` if that cannot be seen.
    pub listens: Option<Vec<NfsListener>>,
    /// What it exports.
    pub exports: Vec<NfsExport>,
    /// `rdma` in the section `[nfsd]` of /etc/nfs.conf and the files of /etc/nfs.conf.d.
    pub conf_rdma: Option<bool>,
    /// `rdma-port` there.
    pub conf_rdma_port: Option<i64>,
    /// The file and line of `rdma` there: `/etc/nfs.conf, line 41`.
    pub conf_place: Option<String>,
    /// Requests over RDMA since the module was loaded.
    pub rdma_requests: Option<i64>,
    /// Addresses of its clients over TCP.
    pub tcp_clients: Vec<String>,
    /// Whether TrueNAS is told to serve NFS over RDMA.
    pub truenas_rdma: Option<bool>,
}

/// Something that the server listens on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NfsListener {
    /// `tcp`, `udp`, `rdma`.
    pub transport: String,
    /// Its port.
    pub port: i64,
}

/// A directory that is exported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NfsExport {
    /// The directory.
    pub path: String,
    /// To whom, as the file says it.
    pub to: String,
}

/// Reads the server; `None` if nothing is exported and it does not run.
pub(super) fn read(source: &dyn Source) -> Option<Nfs> {
    let threads = source.int("/proc/fs/nfsd/threads");
    let exports = exports(source);
    if exports.is_empty() && threads.unwrap_or(0) == 0 {
        return None;
    }
    let list = source.read("/proc/fs/nfsd/portlist");
    let conf = conf(source);
    let truenas = source.output("midclt", &["call", "nfs.config"]);
    let truenas = truenas.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    Some(Nfs {
        threads,
        listens: list.map(|list| list.lines().filter_map(listener).collect()),
        exports,
        conf_rdma: conf.get("rdma").map(|(_, value)| on(value)),
        conf_rdma_port: conf.get("rdma-port").and_then(|(_, value)| value.parse().ok()),
        conf_place: conf.get("rdma").map(|(place, _)| place.clone()),
        rdma_requests: source.int("/proc/sys/sunrpc/svc_rdma/rdma_stat_recv"),
        tcp_clients: tcp_clients(source),
        truenas_rdma: truenas.and_then(|config| config["rdma"].as_bool()),
    })
}

/// `rdma 20049`
fn listener(line: &str) -> Option<NfsListener> {
    let (transport, port) = line.trim().split_once(' ')?;
    Some(NfsListener { transport: transport.to_owned(), port: port.trim().parse().ok()? })
}

/// `ESTAB 0 0 10.0.0.1:2049 10.0.0.5:822`
fn tcp_clients(source: &dyn Source) -> Vec<String> {
    let text = source.output("ss", &["-tinH"]).unwrap_or_default();
    let client = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [state, _, _, own, other, ..] = words[..] else { return None };
        let (address, _) = other.rsplit_once(':')?;
        let served = state == "ESTAB" && own.ends_with(":2049");
        let plain = address.trim_matches(['[', ']']).trim_start_matches("::ffff:");
        served.then(|| plain.to_owned())
    };
    let clients: BTreeSet<String> = text.lines().filter_map(client).collect();
    clients.into_iter().collect()
}

/// What nfs.conf takes for true (nfs-utils, support/nfs/conffile.c).
fn on(value: &str) -> bool {
    ["1", "t", "true", "y", "yes", "on"].contains(&value.to_ascii_lowercase().as_str())
}

/// The section `[nfsd]`: each name with the place and the value that count.
fn conf(source: &dyn Source) -> BTreeMap<String, (String, String)> {
    let directory = "/etc/nfs.conf.d";
    let more = source.names(directory).into_iter().filter(|name| name.ends_with(".conf"));
    let files = std::iter::once("/etc/nfs.conf".to_owned())
        .chain(more.map(|name| format!("{directory}/{name}")));
    let mut all = BTreeMap::new();
    for file in files {
        let text = source.read(&file).unwrap_or_default();
        let mut inside = false;
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if let Some(section) = line.strip_prefix('[') {
                inside = section.split(']').next().is_some_and(|name| name.trim() == "nfsd");
                continue;
            }
            let setting = line.split_once('=').filter(|_| inside && !line.starts_with(['#', ';']));
            if let Some((name, value)) = setting {
                let place = format!("{file}, line {number}");
                all.insert(name.trim().to_owned(), (place, value.trim().to_owned()));
            }
        }
    }
    all
}

/// What is exported: /var/lib/nfs/etab has what is in force, /etc/exports what is wanted.
fn exports(source: &dyn Source) -> Vec<NfsExport> {
    let wanted = || {
        let more = source.names("/etc/exports.d").into_iter();
        let more = more.filter(|name| name.ends_with(".exports"));
        let files = more.map(|name| format!("/etc/exports.d/{name}"));
        let files = std::iter::once("/etc/exports".to_owned()).chain(files);
        let texts = files.filter_map(|file| source.read(&file));
        // A line that ends in a backslash goes on.
        texts.collect::<Vec<_>>().join("\n").replace("\\\n", " ")
    };
    let text = source.read("/var/lib/nfs/etab").filter(|text| !text.trim().is_empty());
    let text = text.unwrap_or_else(wanted);
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let export = |line: &str| {
        // A path with white space is quoted.
        let (path, to) = match line.strip_prefix('"') {
            Some(rest) => rest.split_once('"')?,
            None => line.split_once(char::is_whitespace)?,
        };
        path.starts_with('/').then(|| NfsExport { path: path.to_owned(), to: to.trim().to_owned() })
    };
    lines.filter_map(export).collect()
}

/// What the kernel was built with of NFS and SMB over RDMA: `CONFIG_SMB_SERVER_SMBDIRECT` is `y`, `m` or `n`.
/// Empty if the kernel's configuration cannot be seen.
pub(super) fn kernel_config(source: &dyn Source) -> BTreeMap<String, String> {
    let Some(release) = source.text("/proc/sys/kernel/osrelease") else { return BTreeMap::new() };
    if source.names("/sys/class/infiniband").is_empty() {
        return BTreeMap::new();
    }
    let files = [format!("/boot/config-{release}"), format!("/lib/modules/{release}/config")];
    let ask = |file: &String| source.output("grep", &["-hE", KERNEL_CONFIG, file]);
    let text = files.iter().find_map(ask).unwrap_or_default();
    let option = |line: &str| {
        let unset = line.strip_prefix("# ").and_then(|line| line.strip_suffix(" is not set"));
        let set = || line.split_once('=').filter(|_| line.starts_with("CONFIG_"));
        let (name, value) = unset.map(|name| (name, "n")).or_else(set)?;
        Some((name.to_owned(), value.to_owned()))
    };
    text.lines().filter_map(option).collect()
}

/// The options that are asked for.
const KERNEL_CONFIG: &str =
    "CONFIG_(SUNRPC_XPRT_RDMA|SMB_SERVER|SMB_SERVER_SMBDIRECT|CIFS|CIFS_SMB_DIRECT)[^_A-Z]";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_the_server_and_its_configuration() {
        let tree = Tree::parse(
            "/proc/fs/nfsd/threads: 16
/proc/fs/nfsd/portlist:
| rdma 20049
| tcp 2049
/etc/nfs.conf:
| [general]
| rdma = n
| [nfsd]
| # rdma=n
| rdma=y
| rdma-port = 20050
| [mountd]
| rdma = n
/etc/nfs.conf.d/local.conf:
| [nfsd]
| rdma = off
/etc/exports:
| # nothing
| /srv/a 10.0.0.0/24(rw) \\
|   10.1.0.0/24(ro)
| \"/srv/b c\" *(ro)
| not-a-path x
$ ss -tinH
| ESTAB 0 0 10.0.0.1:2049 10.0.0.9:822
| ESTAB 0 0 [::ffff:10.0.0.1]:2049 [::ffff:10.0.0.5]:990
| ESTAB 0 0 10.0.0.1:990 10.0.0.7:2049
",
        )
        .unwrap();
        let nfs = read(&tree).expect("it runs");
        assert_eq!(nfs.threads, Some(16));
        let listens = nfs.listens.expect("it is seen");
        assert_eq!((listens[0].transport.as_str(), listens[0].port), ("rdma", 20049));
        assert_eq!((nfs.conf_rdma, nfs.conf_rdma_port), (Some(false), Some(20050)));
        assert_eq!(nfs.conf_place.as_deref(), Some("/etc/nfs.conf.d/local.conf, line 2"));
        let paths: Vec<&str> = nfs.exports.iter().map(|export| export.path.as_str()).collect();
        assert_eq!(paths, ["/srv/a", "/srv/b c"]);
        assert_eq!(nfs.tcp_clients, ["10.0.0.5", "10.0.0.9"]);
        assert!(nfs.exports[0].to.contains("10.1.0.0/24(ro)"));
        let idle = Tree::parse("/proc/fs/nfsd/threads: 0\n/etc/exports: # none\n").unwrap();
        assert_eq!(read(&idle), None);
    }

    #[test]
    fn reads_what_the_kernel_was_built_with() {
        let tree = Tree::parse(&format!(
            "/proc/sys/kernel/osrelease: 6.12.9
/sys/class/infiniband/mlx5_0/fw_ver: 1
$ grep -hE {KERNEL_CONFIG} /boot/config-6.12.9
| CONFIG_SUNRPC_XPRT_RDMA=m
| # CONFIG_CIFS_SMB_DIRECT is not set
"
        ))
        .unwrap();
        let config = kernel_config(&tree);
        assert_eq!(config.get("CONFIG_CIFS_SMB_DIRECT").map(String::as_str), Some("n"));
        assert_eq!(config.get("CONFIG_SUNRPC_XPRT_RDMA").map(String::as_str), Some("m"));
    }
}
