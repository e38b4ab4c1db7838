//! The two libraries of rdma-core, opened at run time.

use std::ffi::OsStr;
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;

use crate::ffi::{CmTable, VerbsTable};
use crate::{Device, Error, Missing, Sysfs};

const VERBS: &str = "libibverbs.so.1";
const CM: &str = "librdmacm.so.1";

/// libibverbs and librdmacm. They stay open until the process ends: a driver that they have loaded
/// may have threads and handlers of its own.
pub struct Library {
    pub(crate) verbs: VerbsTable,
    pub(crate) cm: CmTable,
    _open: Vec<ManuallyDrop<libloading::Library>>,
}

impl Library {
    /// Opens the system's libraries.
    ///
    /// # Errors
    /// [`Missing`] says in one sentence which one is not there, and how to install it.
    pub fn open() -> Result<Arc<Self>, Missing> {
        #[cfg(feature = "simulated")]
        if let Some(library) = crate::simulated::library() {
            return Ok(library);
        }
        Self::open_files(VERBS.as_ref(), CM.as_ref())
    }

    /// Opens the libraries of a folder instead of the system's.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_in(folder: &Path) -> Result<Arc<Self>, Missing> {
        Self::open_files(folder.join(VERBS).as_os_str(), folder.join(CM).as_os_str())
    }

    fn open_files(verbs: &OsStr, cm: &OsStr) -> Result<Arc<Self>, Missing> {
        let (verbs_file, cm_file) = (load(verbs)?, load(cm)?);
        // SAFETY: the files are libraries of these names and interface versions (`.so.1`), so the
        // functions are those of the headers; they are never closed.
        let tables = unsafe {
            (
                VerbsTable::load(&verbs_file, &verbs.to_string_lossy())?,
                CmTable::load(&cm_file, &cm.to_string_lossy())?,
            )
        };
        let (verbs, cm) = tables;
        // SAFETY: called before anything else of the library, as it wants to be. It only has the
        // kernel keep registered pages out of a child's way; an error means that it cannot, and
        // then programs that this one starts (fork and exec) are no worse off than without it.
        unsafe { (verbs.ibv_fork_init)() };
        Ok(Arc::new(Self { verbs, cm, _open: vec![verbs_file, cm_file] }))
    }

    /// Other functions in place of the libraries'.
    #[cfg(any(test, feature = "simulated"))]
    pub(crate) fn fake(verbs: VerbsTable, cm: CmTable) -> Arc<Self> {
        Arc::new(Self { verbs, cm, _open: Vec::new() })
    }

    /// All devices that rdma-core can drive, opened.
    ///
    /// # Errors
    /// The kernel has no RDMA at all, or a device cannot be opened.
    pub fn devices(self: &Arc<Self>) -> Result<Vec<Device>, Error> {
        Device::all(self)
    }

    /// The first device that the kernel has and rdma-core cannot drive, as an error that says what
    /// to install.
    ///
    /// # Errors
    /// [`Error::NoProvider`].
    pub fn check_providers(devices: &[Device], sysfs: &Sysfs) -> Result<(), Error> {
        let known = |name: &String| devices.iter().any(|device| device.name() == name);
        match sysfs.devices().into_iter().find(|name| !known(name)) {
            Some(device) => Err(Error::NoProvider { device }),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}

fn load(file: &OsStr) -> Result<ManuallyDrop<libloading::Library>, Missing> {
    // SAFETY: initialisers of the file run. Its name is that of a library of rdma-core; whoever can
    // put another file in its place can do so with any library of the system.
    match unsafe { libloading::Library::new(file) } {
        Ok(library) => Ok(ManuallyDrop::new(library)),
        Err(error) => Err(Missing::File {
            file: file.to_string_lossy().into_owned(),
            reason: reason(&error.to_string()),
        }),
    }
}

/// The loader repeats the file's name, and some of its versions end with a line break.
fn reason(text: &str) -> String {
    let text = text.trim();
    text.rsplit(": ").next().unwrap_or(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_one_sentence_with_advice() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let missing = Library::open_in(folder.path()).expect_err("the folder is empty");
        let text = missing.to_string();
        assert!(matches!(missing, Missing::File { .. }), "{missing:?}");
        assert!(text.contains("libibverbs.so.1 cannot be opened (No such file"), "{text}");
        assert!(text.contains("librdmacm1") && !text.contains('\n'), "{text}");
    }

    #[test]
    fn a_file_that_is_no_library_says_so() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join(VERBS), "nonsense").expect("a file");
        let missing = Library::open_in(folder.path()).expect_err("no library");
        assert!(missing.to_string().contains("libibverbs.so.1 cannot be opened"), "{missing}");
    }

    #[test]
    fn a_library_without_the_functions_is_too_old() {
        let any = OsStr::new("libc.so.6");
        let missing = Library::open_files(any, any).expect_err("libc knows no RDMA");
        let function = "ibv_fork_init";
        assert_eq!(missing, Missing::Function { file: "libc.so.6".into(), function });
    }
}
