//! The two libraries of Ceph, opened at run time.

use std::ffi::OsStr;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Missing;
use crate::ffi::{RadosTable, RbdTable};

const RADOS: &str = "librados.so.2";
const RBD: &str = "librbd.so.1";

/// librados and librbd. They stay open until the process ends: they have threads of their own.
pub struct Library {
    pub(crate) rados: RadosTable,
    pub(crate) rbd: RbdTable,
    _open: [ManuallyDrop<libloading::Library>; 2],
}

impl Library {
    /// Opens the system's libraries, once for the process. What was missing is looked for again.
    ///
    /// # Errors
    /// [`Missing`] says in one sentence which one is not there, and how to install it.
    pub fn open() -> Result<Arc<Self>, Missing> {
        static OPEN: Mutex<Option<Arc<Library>>> = Mutex::new(None);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = &*open {
            return Ok(library.clone());
        }
        let library = Self::open_files(RADOS.as_ref(), RBD.as_ref())?;
        Ok(open.insert(library).clone())
    }

    fn open_files(rados: &OsStr, rbd: &OsStr) -> Result<Arc<Self>, Missing> {
        let (rados_file, rbd_file) = (load(rados)?, load(rbd)?);
        // SAFETY: the files are libraries of these names and interface versions, so the functions are those of the headers;
        // they are never closed.
        let tables = unsafe {
            (
                RadosTable::load(&rados_file, &rados.to_string_lossy())?,
                RbdTable::load(&rbd_file, &rbd.to_string_lossy())?,
            )
        };
        let (rados, rbd) = tables;
        Ok(Arc::new(Self { rados, rbd, _open: [rados_file, rbd_file] }))
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}

fn load(file: &OsStr) -> Result<ManuallyDrop<libloading::Library>, Missing> {
    // SAFETY: initialisers of the file run. Its name is that of a library of Ceph; whoever can put another file in its place
    // can do so with any library of the system.
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
    fn a_missing_library_is_one_sentence_that_names_the_packages() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [rados, rbd] = [RADOS, RBD].map(|file| folder.path().join(file));
        let missing = Library::open_files(rados.as_os_str(), rbd.as_os_str());
        let missing = missing.expect_err("the folder is empty");
        let text = missing.to_string();
        assert!(text.contains("librados.so.2, which cannot be opened (No such file"), "{text}");
        assert!(text.contains("librados2 and librbd1") && !text.contains('\n'), "{text}");
    }

    #[test]
    fn a_library_without_the_functions_is_too_old() {
        let any = OsStr::new("libc.so.6");
        let missing = Library::open_files(any, any).expect_err("libc knows no Ceph");
        let function = "rados_create";
        assert_eq!(missing, Missing::Function { file: "libc.so.6".into(), function });
    }
}
