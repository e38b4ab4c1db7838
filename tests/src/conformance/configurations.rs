//! The configurations that the suite runs on.
//!
//! A grid of backend, block size, event loop and digests, and one configuration for each thing that the suite asks for or
//! that changes what it sees.

/// Large enough for every test, and small enough for READ(6) to reach beyond the end.
pub(super) const SIZE: u64 = 512 << 20;

pub(super) const TARGET: &str = "iqn.2026-11.local.lunet:conformance";

/// How the second of the two paths that the tool is given leads to the logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Second {
    /// The same address again: a second session.
    Session,
    /// Another portal of the same target.
    Portal,
    /// Another target, which has the same volume.
    Target,
}

/// A way to serve the volume, and to reach it.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Short, for the command line and the page.
    pub name: String,
    /// What is special about it.
    pub about: String,
    /// Lines of `[server]`.
    pub(super) server: String,
    /// Lines of `[iscsi]`.
    pub(super) iscsi: String,
    /// Lines of `[volumes.a]`. `{dir}` is the server's directory, `{device}` the loop device.
    pub(super) volume: String,
    /// Lines of the first `[[target]]`, beside its name.
    pub(super) target: String,
    /// Further tables.
    pub(super) more: String,
    /// A loop device of this sector size is the volume.
    pub(super) sector: Option<u32>,
    /// The volume's file exists already.
    pub(super) image: bool,
    /// An initiator protects it from writing before the first test.
    pub(super) protect: bool,
    pub(super) lun: u16,
    pub(super) second: Second,
    /// `user%secret@` and `?target_user=..` of the URL.
    pub(super) chap: (&'static str, &'static str),
    /// A relay gives the tool data digests.
    pub(super) data_digest: bool,
    pub(super) slow: bool,
    pub(super) leaves_out: fn(&str) -> Option<&'static str>,
}

impl Configuration {
    fn new(name: impl Into<String>, about: impl Into<String>, volume: &str) -> Configuration {
        Configuration {
            name: name.into(),
            about: about.into(),
            server: String::new(),
            iscsi: String::new(),
            volume: volume.to_owned(),
            target: "luns = [\"a\"]".into(),
            more: String::new(),
            sector: None,
            image: false,
            protect: false,
            lun: 0,
            second: Second::Session,
            chap: ("", ""),
            data_digest: false,
            slow: false,
            leaves_out: needs_delay,
        }
    }
}

/// All configurations, those that stand for something special first.
pub fn all() -> Vec<Configuration> {
    [kinds(), ways(), grid()].concat()
}

/// The grid: each backend, block size and event loop, with digests and without.
fn grid() -> Vec<Configuration> {
    let mut grid = Vec::new();
    for backend in ["file", "block", "memory"] {
        for (geometry, logical, physical) in
            [("512n", 512, 512), ("512e", 512, 4096), ("4kn", 4096, 4096)]
        {
            for driver in ["io_uring", "epoll"] {
                for digests in [false, true] {
                    grid.push(cell(backend, (geometry, logical, physical), driver, digests));
                }
            }
        }
    }
    grid
}

fn cell(
    backend: &str,
    (geometry, logical, physical): (&str, u32, u32),
    driver: &str,
    digests: bool,
) -> Configuration {
    let place = match backend {
        "block" => "path = \"{device}\"".to_owned(),
        _ => format!("size = {SIZE}\nblock-size = {logical}"),
    };
    let volume = format!("backend = \"{backend}\"\n{place}\nphysical-block-size = {physical}");
    let (suffix, words) =
        if digests { ("-digests", ", header and data digests") } else { ("", ", no digests") };
    let name = format!("{backend}-{geometry}-{driver}{suffix}");
    let about = format!("{backend}, {logical} bytes in {physical}, {driver}{words}");
    let digest = |on: bool| if on { "require" } else { "forbid" };
    Configuration {
        server: format!("driver = \"{driver}\""),
        iscsi: format!("header-digest = \"{0}\"\ndata-digest = \"{0}\"", digest(digests)),
        sector: (backend == "block").then_some(logical),
        data_digest: digests,
        leaves_out: match (backend, logical) {
            ("block", 512) => cannot_tell,
            ("block", _) => |name| half_blocks(name).or_else(|| cannot_tell(name)),
            (_, 512) => needs_delay,
            _ => |name| half_blocks(name).or_else(|| needs_delay(name)),
        },
        ..Configuration::new(name, about, &volume)
    }
}

/// Who may log in.
const USER: &str = "user = [{ name = \"tester\", secret-file = \"{dir}/user.secret\" }]";

/// How the target shows that it is the right one.
const MUTUAL: &str = "mutual = { name = \"storage\", secret-file = \"{dir}/target.secret\" }";

/// One volume of each kind.
fn kinds() -> Vec<Configuration> {
    let thin = thin();
    let more = |line: &str| format!("{thin}\n{line}");
    let delays = "layers = [{ delay = \"500ms\", on = \"write\", to = \"4KiB\" }, \
                  { delay = \"5ms\", on = \"write\" }]";
    // Not on a disk, which other tests may keep busy: the delay is all there is.
    let slow = format!("backend = \"memory\"\nsize = {SIZE}\n{delays}");
    let read_only = "backend = \"file\"\nread-only = true";
    vec![
        Configuration::new("thin", "a thin file, all defaults", &thin),
        Configuration::new("full", "a fully provisioned file", &more("provisioning = \"full\"")),
        Configuration::new("direct", "a file with direct I/O", &more("cache = \"direct\"")),
        Configuration {
            leaves_out: |name| {
                let why = "it expects a stopped unit (START = 0) to be ready: SBC-4 says NOT READY";
                (name == "StartStopUnit.NoLoej").then_some(why).or_else(|| needs_delay(name))
            },
            ..Configuration::new("removable", "a removable medium", &more("removable = true"))
        },
        Configuration {
            image: true,
            leaves_out: writes,
            ..Configuration::new("read-only", "a read-only file", read_only)
        },
        Configuration {
            protect: true,
            leaves_out: |name| {
                (!name.starts_with("ReadOnly.")).then_some("as on a read-only volume")
            },
            ..Configuration::new(
                "write-protected",
                "a thin file that an initiator has switched to read-only (SWP)",
                &thin,
            )
        },
        Configuration {
            server: "shards = 1".into(),
            // `Sanitize.Reset` sleeps a minute, in which the tool answers no ping, and goes on for ever if
            // the connection has been closed: a ping after 30 s that has 30 s leaves that to chance.
            iscsi: "ping-interval = \"0s\"".into(),
            slow: true,
            leaves_out: need_no_delay,
            ..Configuration::new("slow", "memory that is slow to write", &slow)
        },
    ]
}

/// A thin file.
fn thin() -> String {
    format!("backend = \"file\"\nsize = {SIZE}")
}

/// Each way to a volume.
fn ways() -> Vec<Configuration> {
    let thin = &thin();
    let another = format!("[volumes.b]\nbackend = \"memory\"\nsize = {SIZE}\n");
    let second_portal = "[[portal]]\naddress = \"{second}\"\ntag = 2\n".to_owned();
    let second_target = format!("[[target]]\nname = \"{TARGET}-2\"\nluns = [\"a\"]\n");
    vec![
        Configuration {
            more: another,
            target: "luns = { 0 = \"b\", 7 = \"a\" }".into(),
            lun: 7,
            ..Configuration::new("two-luns", "a target with two logical units, LUN 7 of it", thin)
        },
        Configuration {
            more: second_portal,
            second: Second::Portal,
            ..Configuration::new("two-portals", "two portals with different tags", thin)
        },
        Configuration {
            more: second_target,
            second: Second::Target,
            ..Configuration::new("two-targets", "two targets with the same volume", thin)
        },
        Configuration {
            target: format!("luns = [\"a\"]\n{USER}"),
            chap: ("tester%secretOfTheUser@", ""),
            ..Configuration::new("chap", "CHAP (MD5, the only algorithm of libiscsi)", thin)
        },
        Configuration {
            target: format!("luns = [\"a\"]\n{USER}\n{MUTUAL}"),
            chap: (
                "tester%secretOfTheUser@",
                "?target_user=storage&target_password=secretOfTheTarget",
            ),
            ..Configuration::new("chap-mutual", "mutual CHAP", thin)
        },
        Configuration {
            iscsi: "header-digest = \"require\"".into(),
            ..Configuration::new("header-digest", "header digests only, without a relay", thin)
        },
        Configuration {
            iscsi: "max-recv-data-segment-length = 4096\nfirst-burst-length = 4096\n\
                    max-burst-length = 8192\nmax-outstanding-r2t = 1\ninitial-r2t = true\n\
                    immediate-data = false\nqueue-depth = 4"
                .into(),
            leaves_out: aborts,
            ..Configuration::new("narrow", "minimal bursts, all data solicited by R2T", thin)
        },
    ]
}

/// The tests that write to the medium without a look at its write protection. On a read-only volume they would fail on
/// every target.
fn writes(name: &str) -> Option<&'static str> {
    const THEY_DO: [&str; 11] = [
        "CompareAndWrite.",
        "ExtendedCopy.",
        "GetLBAStatus.",
        "OrWrite.",
        "ProutReserve.Access",
        "ReceiveCopyResults.CopyStatus",
        "Sanitize.",
        "Unmap.",
        "Write",
        "iSCSIResiduals.Write",
        "iSCSITMF.",
    ];
    let does = THEY_DO.iter().any(|start| name.starts_with(start))
        || (name.starts_with("MultipathIO.") && name != "MultipathIO.Reset");
    does.then_some("it writes without checking for write protection")
}

/// The tests that abort a write for which an R2T may be on its way. libiscsi 1.19 then frees the write twice and crashes, now
/// and then.
fn aborts(name: &str) -> Option<&'static str> {
    let why = "the tool frees an aborted write twice when an R2T comes for it";
    name.starts_with("iSCSITMF.").then_some(why).or_else(|| needs_delay(name))
}

/// All but the tests that a fast volume is done with before they look.
fn need_no_delay(name: &str) -> Option<&'static str> {
    let needs = ["Sanitize.Reset", "iSCSITMF."].iter().any(|start| name.starts_with(start));
    (!needs).then_some("adds nothing on a slow volume")
}

/// `Sanitize.BlockErase` wants GET LBA STATUS to say 'deallocated' afterwards. Of a block device nobody knows what it holds,
/// and the answer is 0h, 'mapped or unknown' (SBC-4 5.9.2).
fn cannot_tell(name: &str) -> Option<&'static str> {
    let why = "a block device does not report what is deallocated";
    (name == "Sanitize.BlockErase").then_some(why).or_else(|| needs_delay(name))
}

/// The tests of reservations send 512 bytes for a WRITE of one block, whatever a block is: of less than a block nothing can be
/// written, and lunet says so (5/0E/03) where it answered GOOD before.
fn half_blocks(name: &str) -> Option<&'static str> {
    let why = "it sends 512 bytes of data for one block, whatever the block size";
    name.starts_with("ProutReserve.Access").then_some(why)
}

/// `Sanitize.Reset` looks after three seconds whether the volume is still being overwritten.
fn needs_delay(name: &str) -> Option<&'static str> {
    (name == "Sanitize.Reset").then_some("it needs a volume that takes 4 s to overwrite")
}

/// The few configurations that together run every test that can run at all.
pub const SELECTION: [&str; 8] = [
    "two-portals",
    "full",
    "removable",
    "read-only",
    "write-protected",
    "slow",
    "memory-512e-epoll-digests",
    "file-4kn-io_uring",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_the_selection_is_among_them() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        assert!(SELECTION.iter().all(|name| names.contains(name)));
    }
}
