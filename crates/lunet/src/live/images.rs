//! What others do with images of Ceph that are served.

use lunet_api::Change;
use lunet_backends::rbd::{self, News};
use lunet_volume::Cause;

use super::Manager;

impl Manager {
    /// The volumes whose images were changed by somebody since this was asked last. One that was lost is found to be at fault.
    /// Does not wait for a cluster.
    pub fn images(&self) -> Vec<String> {
        let now = self.now();
        let mut changed = Vec::new();
        for (name, open) in &now.open {
            match rbd::news(&open.volume) {
                Some(News::Changed) => changed.push(name.clone()),
                Some(News::Lost { errno }) => drop(open.health.fail(Cause::TakenOver { errno })),
                None => {}
            }
        }
        changed
    }

    /// Takes over the new size of an image. Waits for the cluster.
    pub fn image_changed(&self, name: &str) {
        let now = self.now();
        let Some(open) = now.open.get(name) else { return };
        let before = open.volume.caps().bytes();
        match rbd::size(&open.volume) {
            Ok(size) if size > before => {
                let change = Change::ResizeVolume { name: name.to_owned(), size: None };
                match self.change(&change) {
                    Ok(done) => {
                        tracing::info!(volume = name, "its image was resized: {}", done.done)
                    }
                    Err(error) => tracing::warn!(volume = name, "its image was resized: {error:#}"),
                }
            }
            Ok(size) if size < before => drop(open.health.fail(Cause::CutShort { bytes: size })),
            Ok(_) => {}
            Err(error) => tracing::warn!(volume = name, "{error}"),
        }
    }
}
