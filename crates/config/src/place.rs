//! Where a server has its files and its control socket, and the variables of the environment that name them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The name of the control socket in the data directory.
const SOCKET: &str = "lunet.sock";

/// The longest path of a Unix socket, in bytes: `sun_path` has 108 with the zero behind it.
const MAX_PATH: usize = 107;

/// The variable of the environment that names the data directory.
pub const VARIABLE: &str = "LUNET_DATA";

/// The variable of the environment that names the lunet of another machine.
pub const SERVER_VARIABLE: &str = "LUNET_SERVER";

/// The variable of the environment by which a job is told to write its progress line by line: `lines`.
pub const PROGRESS_VARIABLE: &str = "LUNET_PROGRESS";

/// The variable of a job's environment that has the number of the process whose job it is.
pub const JOB_VARIABLE: &str = "LUNET_JOB_OF";

/// Where the server of an installed system has its control socket: the service's, and that of a server with the system's
/// data directory alone.
pub const SYSTEM: [&str; 2] = ["/run/lunet/lunet.sock", "/var/lib/lunet/lunet.sock"];

/// The Unix socket of the REST interface for those who read, beside the control socket.
pub const READ: &str = "read.sock";

/// The same for those who do everything.
pub const ADMIN: &str = "admin.sock";

/// Where a server that was started as the machine's service has its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The configuration file.
    pub config: PathBuf,
    /// The data directory, unless the configuration names another one.
    pub data: PathBuf,
    /// The control socket, unless the configuration names another one.
    pub socket: PathBuf,
}

impl Layout {
    /// The layout of the machine's service. `variable` reads the environment: a service manager names the directories
    /// that it has made by `CONFIGURATION_DIRECTORY`, `STATE_DIRECTORY` and `RUNTIME_DIRECTORY` (systemd.exec(5)).
    pub fn of_service(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let directory = |name: &str, otherwise: &str| {
            let named = variable(name).unwrap_or_default();
            // Several are separated by colons; the first is the service's own.
            let first = named.as_bytes().split(|byte| *byte == b':').next().unwrap_or_default();
            let first = if first.is_empty() { otherwise.as_bytes() } else { first };
            PathBuf::from(OsStr::from_bytes(first))
        };
        Self {
            config: directory("CONFIGURATION_DIRECTORY", "/etc/lunet").join("lunet.toml"),
            data: directory("STATE_DIRECTORY", "/var/lib/lunet"),
            socket: default_path(&directory("RUNTIME_DIRECTORY", "/run/lunet")),
        }
    }
}

/// The control socket of a server with this data directory, if it is given no other.
pub fn default_path(data: &Path) -> PathBuf {
    data.join(SOCKET)
}

/// The path of a Unix socket does not fit into an address.
#[derive(Debug, thiserror::Error)]
#[error(
    "the control socket's path {path} is {length} bytes long, and {MAX_PATH} are allowed: \
     give a shorter one with --socket"
)]
pub struct PathTooLong {
    /// The path.
    pub path: PathBuf,
    /// Its length in bytes.
    pub length: usize,
}

/// Checks that the path of a Unix socket fits into an address.
///
/// # Errors
/// It is too long.
pub fn check_length(path: &Path) -> Result<(), PathTooLong> {
    let length = path.as_os_str().len();
    if length > MAX_PATH {
        return Err(PathTooLong { path: path.to_owned(), length });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_manager_names_the_directories() {
        let layout = Layout::of_service(|_| None);
        assert_eq!(layout.config, Path::new("/etc/lunet/lunet.toml"));
        assert_eq!(layout.data, Path::new("/var/lib/lunet"));
        assert_eq!(layout.socket, Path::new(SYSTEM[0]));
        let layout = Layout::of_service(|name| {
            Some(OsString::from(match name {
                "CONFIGURATION_DIRECTORY" => "/c",
                "STATE_DIRECTORY" => "/s:/t",
                _ => "",
            }))
        });
        assert_eq!((layout.config, layout.data), ("/c/lunet.toml".into(), "/s".into()));
        assert_eq!(layout.socket, Path::new(SYSTEM[0]));
    }
}
