//! Files of an event loop whose operations are done by others than the kernel's ring.

use std::fs::File;
use std::sync::Arc;

use crate::slots::Slots;
use crate::{DropElsewhere, FileId};

/// A file in use.
struct OpenFile {
    /// Closing it may take long.
    file: DropElsewhere<Arc<File>>,
    /// Operations that wait or are under way, and know the file.
    in_flight: u32,
    /// To be let go with the last of them.
    leaving: bool,
}

/// The files in use. One that is removed stays until its last operation has ended.
pub(crate) struct Files(Slots<OpenFile>);

impl Files {
    pub(crate) const fn new() -> Self {
        Self(Slots::new())
    }

    pub(crate) fn add(&mut self, file: Arc<File>) -> FileId {
        let file = DropElsewhere::new(file);
        FileId(self.0.insert(OpenFile { file, in_flight: 0, leaving: false }))
    }

    pub(crate) fn remove(&mut self, id: FileId) {
        let Some(open) = self.0.get_mut(id.0) else { return };
        open.leaving = true;
        self.release(id.0.index);
    }

    /// An operation begins. `None` if there is no such file, or it leaves.
    pub(crate) fn begin(&mut self, id: FileId) -> Option<&Arc<File>> {
        let open = self.0.get_mut(id.0).filter(|open| !open.leaving)?;
        open.in_flight += 1;
        Some(&*open.file)
    }

    /// The file at a place, for an operation that is under way.
    #[cfg(feature = "simulated")]
    pub(crate) fn at(&mut self, place: u32) -> Option<&Arc<File>> {
        self.0.at(place).map(|open| &*open.file)
    }

    /// An operation on the file at a place has ended.
    pub(crate) fn ends(&mut self, place: u32) {
        if let Some(open) = self.0.at(place) {
            open.in_flight -= 1;
            self.release(place);
        }
    }

    fn release(&mut self, place: u32) {
        if self.0.at(place).is_some_and(|open| open.leaving && open.in_flight == 0) {
            self.0.remove_at(place);
        }
    }
}
