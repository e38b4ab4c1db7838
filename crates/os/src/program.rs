//! The programs of one installation, which find each other: `lunet` and `lunet-tools`.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program that has the doctor, the tuner, the benchmark and the other tools.
pub const TOOLS: &str = "lunet-tools";

/// The version of this installation's programs.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The variable of the environment by which `lunet` tells [`TOOLS`] its [`VERSION`]: one of another version refuses to run.
pub const VERSION_VARIABLE: &str = "LUNET_EXPECTED_VERSION";

/// What Linux appends to the path of a running program whose file was replaced (proc_pid_exe(5)).
const DELETED: &[u8] = b" (deleted)";

/// The folder of programs that only other programs run (FHS 3.0, section 4.7).
const LIBEXEC: &str = "libexec/lunet";

/// Where a program of this installation may be, in the order in which the places are searched: beside this program, then in
/// `../libexec/lunet`, and for a program that is itself in such a folder, in `../../bin`.
///
/// # Errors
/// The path of this program cannot be read.
pub fn places(name: &str) -> io::Result<Vec<PathBuf>> {
    let exe = std::env::current_exe()?;
    Ok(places_from(&without_mark(exe), name))
}

/// The first of the [`places`] where a file is.
pub fn find(name: &str) -> Option<PathBuf> {
    places(name).ok()?.into_iter().find(|place| place.is_file())
}

/// The command that starts [`TOOLS`].
///
/// # Errors
/// `NotFound` if the program is missing: the message names the places that were searched, and how to get it. `InvalidData` for a file
/// that is empty or damaged.
pub fn tools() -> io::Result<Command> {
    let places = places(TOOLS)?;
    let Some(found) = places.iter().find(|place| place.is_file()) else {
        return Err(io::Error::new(io::ErrorKind::NotFound, missing(&places)));
    };
    if !may_be_program(found) {
        let text = format!("{} is damaged: install the package lunet again", found.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let mut command = Command::new(found);
    command.env(VERSION_VARIABLE, VERSION);
    Ok(command)
}

/// False for a file that no kernel starts. execvp(3) gives such a file to the shell, and an empty one would succeed.
fn may_be_program(path: &Path) -> bool {
    let mut start = [0; 2];
    match File::open(path).and_then(|mut file| file.read_exact(&mut start)) {
        Ok(()) => start == *b"\x7fE" || start == *b"#!",
        // A program need not be readable to be run.
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

fn missing(places: &[PathBuf]) -> String {
    let mut text = format!("the program {TOOLS} is missing: searched ");
    for (at, place) in places.iter().enumerate() {
        let _ = write!(text, "{}{}", if at == 0 { "" } else { " and " }, place.display());
    }
    // Built like this program, and so into the folder that is searched first.
    let profile = if cfg!(debug_assertions) { "" } else { "--release " };
    let _ = write!(
        text,
        "; build it with `cargo build {profile}-p lunet-tools`, or install the package lunet again"
    );
    text
}

fn places_from(exe: &Path, name: &str) -> Vec<PathBuf> {
    let Some(folder) = exe.parent() else { return Vec::new() };
    let mut all = vec![folder.join(name)];
    if folder.ends_with(LIBEXEC) {
        all.extend(folder.ancestors().nth(2).map(|prefix| prefix.join("bin").join(name)));
    } else if let Some(prefix) = folder.parent() {
        all.push(prefix.join(LIBEXEC).join(name));
    }
    all
}

/// The path of a program, also if its file was replaced since it was started.
fn without_mark(exe: PathBuf) -> PathBuf {
    match exe.as_os_str().as_bytes().strip_suffix(DELETED) {
        Some(path) if !exe.exists() => PathBuf::from(OsStr::from_bytes(path)),
        _ => exe,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_searched_beside_this_one_and_in_libexec() {
        let places = |exe: &str, name| places_from(Path::new(exe), name);
        let wanted = ["/usr/bin/lunet-tools", "/usr/libexec/lunet/lunet-tools"];
        assert_eq!(places("/usr/bin/lunet", "lunet-tools"), wanted.map(PathBuf::from));
        let wanted = ["/usr/libexec/lunet/lunet", "/usr/bin/lunet"];
        assert_eq!(places("/usr/libexec/lunet/lunet-tools", "lunet"), wanted.map(PathBuf::from));
    }

    #[test]
    fn a_replaced_program_keeps_its_place() {
        let path = |text: &str| without_mark(PathBuf::from(text));
        assert_eq!(path("/nowhere/lunet (deleted)"), Path::new("/nowhere/lunet"));
        assert_eq!(path("/nowhere/lunet"), Path::new("/nowhere/lunet"));
    }
}
