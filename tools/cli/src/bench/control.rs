//! What a lunet server on this machine tells about a volume: through its control socket.

use std::fs;
use std::path::{Path, PathBuf};

use lunet_api::{Limit, Limited};
use lunet_bench::model::{Ceiling, CeilingKind, Unit, Workload};

use super::remote::Unit as Remoted;
use lunet_cli::control::{Client, Error};

/// A volume of a running server.
#[derive(Clone, Debug)]
pub struct Control {
    client: Client,
    volume: String,
    limits: Vec<Limit>,
}

/// Reads and writes of a volume since its server began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    operations: f64,
    /// The time that all of them took inside the server, in microseconds.
    time_us: f64,
}

impl Counts {
    /// The mean time inside the server of the operations since `before`, in microseconds. `None`: there were none, or the
    /// server was started anew.
    pub fn mean_us_since(&self, before: &Self) -> Option<f64> {
        let operations = self.operations - before.operations;
        let time = self.time_us - before.time_us;
        (operations > 0.0 && time >= 0.0).then(|| time / operations)
    }
}

/// What a limit leaves of a workload, of which it may concern a part only: the rest keeps step. `None`: it does not concern it.
fn ceiling(limit: &Limit, volume: &str, target: &str, workload: &Workload) -> Option<Ceiling> {
    let reads = f64::from(workload.read_percent) / 100.0;
    let (part, what) = match limit.on {
        Limited::All => (1.0, "reads and writes"),
        Limited::Read => (reads, "reads"),
        Limited::Write => (1.0 - reads, "writes"),
        Limited::Other(_) => return None,
    };
    let (rate, unit) = match (limit.bytes_per_s, limit.operations_per_s) {
        (Some(bytes), _) => (bytes as f64 / f64::from(1 << 20), Unit::MibPerS),
        (None, Some(operations)) => (operations as f64, Unit::Iops),
        (None, None) => return None,
    };
    (part > 0.0).then(|| Ceiling {
        kind: CeilingKind::Limit,
        name: format!("limit of volume {volume}"),
        value: rate / part,
        unit,
        how: format!(
            "the server's control socket told it: volume {volume} keeps its {what} to {rate:.0} {}",
            unit.text()
        ),
        target: Some(target.to_owned()),
        workload: Some(workload.name.clone()),
        outstanding: None,
        latency_us: None,
        generator_busy: None,
    })
}

/// Whether a LUN, or a namespace of a subsystem that is no target, is this unit. A target that is a subsystem too has the same
/// name behind `nqn.`, and numbers its namespaces from 1; one whose subsystem has a name of its own is not recognised.
fn is_same(unit: &Remoted, target: &str, lun: u16) -> bool {
    let lun = u32::from(lun);
    let of_target = unit.target.strip_prefix("nqn.").zip(target.strip_prefix("iqn."));
    (unit.target == target && unit.number == lun)
        || of_target.is_some_and(|(one, other)| one == other && unit.number == lun + 1)
}

impl Control {
    /// The volume behind a LUN or a namespace of the server that answers at this socket; `None` if it serves no such thing.
    ///
    /// # Errors
    /// No server answers there.
    pub fn find(socket: &Path, unit: &Remoted) -> Result<Option<Self>, Error> {
        let client = Client::new(socket.to_owned());
        let mut volumes = client.volumes()?.into_iter();
        let own = volumes
            .find(|volume| volume.luns.iter().any(|one| is_same(unit, &one.target, one.lun)));
        Ok(own.map(|own| Self { client, volume: own.name, limits: own.limits }))
    }

    /// What its limits leave of each workload.
    pub fn ceilings(&self, target: &str, workloads: &[Workload]) -> Vec<Ceiling> {
        let of = |load| move |limit: &Limit| ceiling(limit, &self.volume, target, load);
        workloads.iter().flat_map(|load| self.limits.iter().filter_map(of(load))).collect()
    }

    /// What the volume has done so far; `None` if the server does not answer any more.
    pub fn counts(&self) -> Option<Counts> {
        let stats = self.client.stats().ok()?;
        let own = stats.volumes.iter().find(|one| one.name == self.volume)?;
        let mut counts = Counts::default();
        for kind in [&own.read, &own.write] {
            counts.operations += kind.ops as f64;
            counts.time_us += kind.ops as f64 * kind.mean_us;
        }
        Some(counts)
    }
}

/// The Unix sockets at which a process listens, as far as the caller may see them, by names that work from here.
pub fn sockets(pid: i32) -> Vec<PathBuf> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let table = fs::read_to_string(process.join("net/unix")).unwrap_or_default();
    let Ok(entries) = fs::read_dir(process.join("fd")) else { return Vec::new() };
    let links: Vec<PathBuf> =
        entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).collect();
    let held = |inode: &str| {
        let link = format!("socket:[{inode}]");
        links.iter().any(|own| own.as_os_str() == link.as_str())
    };
    let named = |(inode, path): (&str, &str)| {
        // The name is of the process: of its directory, below its root.
        let base = if path.starts_with('/') { "root" } else { "cwd" };
        held(inode).then(|| process.join(base).join(path.trim_start_matches('/')))
    };
    listening(&table).filter_map(named).collect()
}

/// Inode and path of the listening sockets of a table (proc_net(5), /proc/net/unix) that have a path.
fn listening(table: &str) -> impl Iterator<Item = (&str, &str)> {
    /// `__SO_ACCEPTCON`: it listens.
    const LISTENS: u32 = 1 << 16;
    let socket = |line| {
        let mut fields = [""; 7];
        let mut rest: &str = line;
        for field in &mut fields {
            (*field, rest) = rest.trim_start().split_once(' ')?;
        }
        let listens = u32::from_str_radix(fields[3], 16).ok()? & LISTENS != 0;
        // A name that begins with @ is no file.
        (listens && !rest.starts_with('@')).then_some((fields[6], rest))
    };
    table.lines().skip(1).filter_map(socket)
}

#[cfg(test)]
mod tests {
    use lunet_bench::profiles::Profile;

    use super::*;

    #[test]
    fn sockets_of_this_process_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("with a space.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        let own = i32::try_from(std::process::id()).expect("it fits");
        let found = |listens: bool| {
            let same = |one: &PathBuf| fs::canonicalize(one).is_ok_and(|one| one == path);
            assert_eq!(sockets(own).iter().any(same), listens);
        };
        found(true);
        drop(listener);
        found(false);
    }

    #[test]
    fn only_listening_sockets_with_a_path_count() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                     0: 00000002 00000000 00010000 0001 01    84 /run/a b.sock\n\
                     0: 00000002 00000000 00010000 0001 01 99 @abstract\n\
                     0: 00000003 00000000 00000000 0001 03 98 /run/connected\n\
                     0: 00000003 00000000 00000000 0001 03 97\n";
        assert_eq!(listening(table).collect::<Vec<_>>(), [("84", "/run/a b.sock")]);
    }

    #[test]
    fn namespaces_of_targets_are_their_luns() {
        let unit = |target: &str, number| Remoted {
            target: target.to_owned(),
            number,
            product: String::new(),
            bytes: 0,
            block_size: 512,
            max_transfer: None,
            read_only: false,
        };
        assert!(is_same(&unit("iqn.x:a", 0), "iqn.x:a", 0));
        assert!(is_same(&unit("nqn.x:a", 1), "iqn.x:a", 0));
        assert!(is_same(&unit("nqn.x:s", 3), "nqn.x:s", 3));
        assert!(!is_same(&unit("nqn.x:a", 1), "iqn.x:a", 1));
        assert!(!is_same(&unit("nqn.x:a", 1), "iqn.x:b", 0));
    }

    #[test]
    fn a_limit_of_reads_leaves_the_writes_that_come_with_them() {
        let bytes = Limit { on: Limited::Read, bytes_per_s: Some(100 << 20), ..Limit::default() };
        let writes = Limit { on: Limited::Write, operations_per_s: Some(50), ..Limit::default() };
        let client = Client::new(PathBuf::new());
        let control = Control { client, volume: "v".to_owned(), limits: vec![bytes, writes] };
        let quick = Profile::named("quick").expect("it is there");
        let told = control.ceilings("t", &quick.workloads[..2]);
        let figures: Vec<(f64, Unit)> = told.iter().map(|one| (one.value, one.unit)).collect();
        let expected = [(100.0, Unit::MibPerS), (200.0, Unit::MibPerS), (100.0, Unit::Iops)];
        assert_eq!(figures, expected, "reads only, then half of each");
        assert!(
            told.iter().all(|one| one.kind == CeilingKind::Limit && one.how.contains("volume v"))
        );
    }

    #[test]
    fn the_mean_is_of_the_operations_between() {
        let before = Counts { operations: 10.0, time_us: 1000.0 };
        let after = Counts { operations: 30.0, time_us: 9000.0 };
        assert_eq!(after.mean_us_since(&before), Some(400.0));
        assert_eq!(before.mean_us_since(&before), None);
        assert_eq!(before.mean_us_since(&after), None, "the server was started anew");
    }
}
