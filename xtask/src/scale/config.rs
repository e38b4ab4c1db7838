//! What the servers serve.

use std::fmt::Write as _;
use std::path::PathBuf;

/// Targets; the first one has more LUNs than fit into the simple form of their addresses.
pub const TARGETS: usize = 8;

/// The LUNs of the first target.
const WIDE: usize = 300;

/// The LUN of the volume in memory, in every target.
pub const MEMORY: u8 = 0;

/// The LUN of the volume of 4 PiB, in the last target.
pub const LARGE: u8 = 255;

/// What the names of targets begin with.
pub const NAMES: &str = "iqn.2026-11.local.lunet:scale-";

/// The size of the large volume.
pub const LARGE_BYTES: u64 = 4 << 50;

/// How large it all is.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Volumes in files.
    pub luns: usize,
    /// Shards.
    pub shards: usize,
    /// Sessions.
    pub sessions: usize,
    /// The file of the large volume.
    pub large: PathBuf,
}

/// The name of a target.
pub fn target(number: usize) -> String {
    format!("{NAMES}{}", number % TARGETS)
}

/// The same over NVMe.
pub fn subsystem(number: usize) -> String {
    format!("nqn.2026-11.local.lunet:scale-{}", number % TARGETS)
}

/// How many LUNs with files each target has.
pub fn luns(all: usize, target: usize) -> usize {
    let wide = WIDE.min(all);
    match target % TARGETS {
        0 => wide,
        number => {
            let (left, others) = (all - wide, TARGETS - 1);
            left / others + usize::from(number <= left % others)
        }
    }
}

impl Shape {
    /// The configuration. The port is for NVMe/TCP.
    pub fn text(&self, nvme: u16) -> String {
        // Room for a second login of each, and for what an address may not have.
        let most = (self.sessions * 3 / 2).clamp(1024, 65_535);
        let mut text = format!(
            "[server]\nlog-level = \"warn\"\nshards = {}\nmax-sessions = {most}\n\
             [[portal]]\naddress = \"127.0.0.1:0\"\n\
             [[portal]]\naddress = \"127.0.0.1:{nvme}\"\ntransport = [\"nvme-tcp\"]\n\
             [volumes.memory]\nbackend = \"memory\"\nsize = \"64MiB\"\n\
             [volumes.large]\nbackend = \"file\"\nsize = {LARGE_BYTES}\npath = {:?}\n",
            self.shards, self.large
        );
        for number in 0..self.luns {
            let _ = writeln!(text, "[volumes.v{number}]\nbackend = \"file\"\nsize = \"64MiB\"");
        }
        let mut next = 0;
        for number in 0..TARGETS {
            let _ = write!(
                text,
                "[[target]]\nname = \"{}\"\nopen = true\nprotocols = [\"iscsi\", \"nvme\"]\nnqn = \"{}\"\n[target.luns]\n{MEMORY} = \"memory\"\n",
                target(number),
                subsystem(number)
            );
            if number == TARGETS - 1 {
                let _ = writeln!(text, "{LARGE} = \"large\"");
            }
            for lun in 1..=luns(self.luns, number) {
                let _ = writeln!(text, "{lun} = \"v{next}\"");
                next += 1;
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_volume_is_a_lun_once() {
        for all in [10, 299, 300, 301, 1000, 1003] {
            let each = (0..TARGETS).map(|number| luns(all, number));
            assert_eq!(each.sum::<usize>(), all);
        }
    }
}
