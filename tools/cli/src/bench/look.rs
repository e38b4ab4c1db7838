//! Whether targets may be written to: asked before anything is written.

use std::io;
use std::path::{Path, PathBuf};

use super::given::Given;
use super::remote::{Logins, Reader, Remote, Unit};
use super::{Options, scale};
use lunet_bench::model::Workload;
use lunet_bench::safety::{self, Blocks, Destroy, Guard};

/// A target that may be measured.
#[derive(Debug)]
pub(super) enum Looked {
    /// A path.
    Path {
        /// A file, directory or block device.
        path: PathBuf,
        /// Held until this is dropped: nobody can mount it meanwhile.
        _held: Option<Guard>,
    },
    /// A LUN or a namespace.
    Lun(Box<Remote>, Unit),
}

/// Looks at all of them.
///
/// # Errors
/// A sentence: what holds data and was not named, is in use, or cannot be reached.
pub(super) fn all(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Looked>, String> {
    let known = |name: &String| options.targets.iter().any(|one| one.name() == *name);
    if let Some(strange) = options.destroy.iter().find(|name| !known(name)) {
        return Err(format!(
            "--destroy {strange} names no target of this run: write it as the target is written"
        ));
    }
    let destroy = Destroy::new(options.destroy.iter().cloned());
    if let Some(Given::Url(null)) = &options.null {
        lun(null, options, &Destroy::default(), notes)?;
    }
    let look = |one: &Given| match one {
        Given::Path(path) => local(path, options, &destroy, notes),
        Given::Url(target) => {
            Ok(Looked::Lun(target.clone(), lun(target, options, &destroy, notes)?))
        }
    };
    options.targets.iter().map(look).collect()
}

fn local(
    path: &Path,
    options: &Options,
    destroy: &Destroy,
    notes: &mut Vec<String>,
) -> Result<Looked, String> {
    let name = path.display().to_string();
    missing(path, options.create)?;
    if let Some(bytes) = file_size(path) {
        large_enough(&name, bytes, &options.profile.workloads)?;
    }
    let reads = !options.profile.workloads.iter().any(Workload::writes);
    // What was there before is only read: whatever it holds stays.
    let keeps = reads && path.exists() && !path.is_dir();
    if keeps {
        notes.push(format!("{name} was read as it is: holes in it are read faster than data."));
        return Ok(Looked::Path { path: path.to_owned(), _held: None });
    }
    let bytes = scale::bytes(&options.profile);
    let guard = safety::path(&name, bytes, destroy).map_err(|refusal| refusal.to_string())?;
    Ok(Looked::Path { path: path.to_owned(), _held: Some(guard) })
}

/// A name that was mistyped does not become a file, and one in /dev never does.
fn missing(path: &Path, create: bool) -> Result<(), String> {
    // What cannot be looked at is refused with the reason.
    let gone =
        matches!(path.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound);
    let device = path.starts_with("/dev") && !path.starts_with("/dev/shm");
    if !gone || (create && !device) {
        return Ok(());
    }
    let next = match device {
        true => "check the name: lsblk shows the block devices",
        false => "check the name, or add --create to have a file made there and removed at the end",
    };
    Err(format!("{} is not there: {next}", path.display()))
}

fn lun(
    target: &Remote,
    options: &Options,
    destroy: &Destroy,
    notes: &mut Vec<String>,
) -> Result<Unit, String> {
    let writes = options.profile.workloads.iter().any(Workload::writes);
    let name = target.to_string();
    let unit = unit(target, &options.login, writes.then_some(destroy))?;
    if writes && unit.read_only {
        return Err(format!("{name} takes no writes: measure it with --read-only"));
    }
    if !writes {
        notes.push(format!(
            "{name} was read as it is: blocks that were never written are read faster than data."
        ));
    }
    small(&name, &unit, options, notes)?;
    Ok(unit)
}

/// Looks at a LUN or a namespace. With `destroy` it is to be written to, and must hold no data unless it is named there.
///
/// # Errors
/// A sentence: it cannot be reached, or holds data.
pub(super) fn unit(
    target: &Remote,
    login: &Logins,
    destroy: Option<&Destroy>,
) -> Result<Unit, String> {
    let failed = |error: lunet_client::Error| format!("{target}: {error}");
    let reader = Reader::open(target, login).map_err(failed)?;
    let unit = reader.unit();
    let mut blocks = Lun(reader);
    if let Some(destroy) = destroy.filter(|_| !unit.read_only) {
        let name = target.to_string();
        safety::lun(&name, &mut blocks, destroy).map_err(|refusal| refusal.to_string())?;
    }
    blocks.0.close();
    Ok(unit)
}

/// The size of a file that is there: it is used as it is.
fn file_size(path: &Path) -> Option<u64> {
    path.metadata().ok().filter(std::fs::Metadata::is_file).map(|about| about.len())
}

/// Refuses what is smaller than one block of a workload.
fn large_enough(name: &str, bytes: u64, loads: &[Workload]) -> Result<(), String> {
    match loads.iter().max_by_key(|load| load.block_bytes) {
        Some(load) if load.block_bytes > bytes => Err(format!(
            "{name} has {}, which is too small for {}: {} are the least, and what is measured should be larger than caches",
            lunet_config::units::size(bytes),
            load.name,
            lunet_config::units::size(load.block_bytes)
        )),
        _ => Ok(()),
    }
}

/// A unit that is smaller than what the workloads ask for is measured all the same.
fn small(
    name: &str,
    unit: &Unit,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<(), String> {
    let size = lunet_config::units::size(unit.bytes);
    let loads = &options.profile.workloads;
    large_enough(name, unit.bytes, loads)?;
    let asked = loads.iter().filter_map(|load| Some(load.size_bytes? * u64::from(load.jobs))).max();
    if asked.is_some_and(|asked| asked > unit.bytes) {
        notes.push(format!(
            "{name} has {size}: workloads that ask for more work on all of it, which a cache may hold."
        ));
    }
    Ok(())
}

/// A LUN or a namespace, as the look at what it holds wants it.
struct Lun(Reader);

impl Blocks for Lun {
    fn size(&self) -> u64 {
        self.0.unit().bytes
    }

    fn read(&mut self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read(at, buffer).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_smaller_than_a_block_is_refused_by_its_true_size() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("data");
        std::fs::write(&file, "12345").expect("it can");
        assert_eq!((file_size(&file), file_size(folder.path())), (Some(5), None));
        let loads = lunet_bench::profiles::Profile::named("quick").expect("a profile").workloads;
        let refused = large_enough("data", 5, &loads).expect_err("5 bytes");
        assert!(refused.starts_with("data has 5 B, which is too small for "), "{refused}");
        let most = loads.iter().map(|load| load.block_bytes).max().expect("workloads");
        let needed = lunet_config::units::size(most);
        assert!(refused.contains(&format!(": {needed} are the least")), "{refused}");
        assert_eq!(large_enough("data", most, &loads), Ok(()));
    }

    #[test]
    fn only_who_asks_for_it_has_a_file_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let (there, typo) = (folder.path().join("data"), folder.path().join("dtaa"));
        std::fs::write(&there, "x").expect("it can");
        for create in [false, true] {
            assert_eq!(missing(&there, create), Ok(()));
            assert_eq!(missing(folder.path(), create), Ok(()));
            let error = missing(Path::new("/dev/no-such-disk"), create).expect_err("no device");
            assert!(error.ends_with("is not there: check the name: lsblk shows the block devices"));
        }
        let error = missing(&typo, false).expect_err("it is not there");
        assert!(error.contains("--create"), "{error}");
        assert_eq!(missing(&typo, true), Ok(()));
    }
}
