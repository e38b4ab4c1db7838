//! Which image, of which cluster, and as whom.

use std::ffi::CString;
use std::fmt;
use std::path::{Path, PathBuf};

/// The name of an image: `rbd://POOL[/NAMESPACE]/IMAGE`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageName {
    pool: String,
    namespace: String,
    image: String,
}

/// Why something is no name of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be \"rbd://POOL/IMAGE\" or \"rbd://POOL/NAMESPACE/IMAGE\", without @, spaces or snapshots"
)]
pub struct Refusal;

impl ImageName {
    /// Takes a name apart.
    ///
    /// # Errors
    /// It has not the form, or parts that Ceph does not take in names of images.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let rest = text.strip_prefix("rbd://").ok_or(Refusal)?;
        let parts: Vec<&str> = rest.split('/').collect();
        if !parts.iter().all(|part| is_part(part)) {
            return Err(Refusal);
        }
        let (pool, namespace, image) = match parts.as_slice() {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] => (pool, *namespace, image),
            _ => return Err(Refusal),
        };
        let (pool, image) = ((*pool).to_owned(), (*image).to_owned());
        Ok(Self { pool, namespace: namespace.to_owned(), image })
    }

    /// The pool.
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// The namespace in the pool; empty for the one without a name.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The image in the namespace.
    pub fn image(&self) -> &str {
        &self.image
    }

    /// Another image of the same pool and namespace.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse).
    pub fn beside(&self, image: &str) -> Result<Self, Refusal> {
        if !is_part(image) {
            return Err(Refusal);
        }
        Ok(Self { image: image.to_owned(), ..self.clone() })
    }

    /// The name as the `rbd` command takes it: `POOL[/NAMESPACE]/IMAGE`.
    pub fn plain(&self) -> String {
        self.to_string().split_off("rbd://".len())
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool, namespace, image } = self;
        if namespace.is_empty() {
            write!(f, "rbd://{pool}/{image}")
        } else {
            write!(f, "rbd://{pool}/{namespace}/{image}")
        }
    }
}

/// Parts of a name. `@` begins a snapshot's name and `/` another part; the rest keeps sentences, paths and logs readable.
fn is_part(part: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || "._-+:".contains(c);
    !part.is_empty() && part.len() <= 96 && !part.starts_with('-') && part.chars().all(known)
}

/// An image to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which image.
    pub name: ImageName,
    /// The file that says where the cluster is. `None`: /etc/ceph/ceph.conf.
    pub conf: Option<PathBuf>,
    /// The user of the cluster, without `client.`. `None`: admin.
    pub user: Option<String>,
    /// The file with the user's key. `None`: what the configuration of Ceph says. Its content is a secret, and is read by
    /// librados alone.
    pub keyring: Option<PathBuf>,
    /// For reading only: without the lock.
    pub read_only: bool,
    /// The owner of the lock that this server's last process was, as [`Image::owner`](crate::Image::owner) told it. The
    /// process is known to be gone.
    pub before: Option<String>,
    /// That owner is no process that is gone, but a client of this one, which has lost the lock and has the image open
    /// still: it is shut out in any case, also if nobody has the lock.
    pub is_open: bool,
}

impl Place {
    /// An image, as a configuration has it: the file that says where the cluster is, the user and its keyring.
    pub fn configured(
        name: ImageName,
        conf: Option<&Path>,
        user: Option<&str>,
        keyring: Option<&Path>,
    ) -> Self {
        Self {
            conf: conf.map(Path::to_owned),
            user: user.map(str::to_owned),
            keyring: keyring.map(Path::to_owned),
            ..Self::new(name)
        }
    }

    /// An image of the cluster of /etc/ceph/ceph.conf, as its administrator.
    pub const fn new(name: ImageName) -> Self {
        Self {
            name,
            conf: None,
            user: None,
            keyring: None,
            read_only: false,
            before: None,
            is_open: false,
        }
    }

    /// The configuration of Ceph that is read.
    pub fn conf_path(&self) -> PathBuf {
        self.conf.clone().unwrap_or_else(|| PathBuf::from("/etc/ceph/ceph.conf"))
    }

    /// The user, without `client.`.
    pub fn user_name(&self) -> &str {
        self.user.as_deref().unwrap_or("admin")
    }
}

/// Text for the libraries. What has a NUL inside is cut there; names and paths were checked to have none.
pub(crate) fn c_string(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_written() {
        for (text, pool, namespace, image) in [
            ("rbd://rbd/vm-100-disk-0", "rbd", "", "vm-100-disk-0"),
            ("rbd://ssd.pool/tenant_1/a", "ssd.pool", "tenant_1", "a"),
        ] {
            let name = ImageName::parse(text).expect(text);
            assert_eq!((name.pool(), name.namespace(), name.image()), (pool, namespace, image));
            assert_eq!(name.to_string(), text);
            assert_eq!(format!("rbd://{}", name.plain()), text);
            assert_eq!(name.beside("b").map(|name| name.image().to_owned()), Ok("b".to_owned()));
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for text in [
            "",
            "rbd://",
            "rbd://pool",
            "rbd://pool/",
            "rbd:///image",
            "rbd://a/b/c/d",
            "pool/image",
            "rbd://pool/image@snap",
            "rbd://pool/-o",
            "rbd://po ol/image",
            "rbd:pool/image",
            "rbd://pool//image",
            "rbd://pool/im\0age",
            "http://pool/image",
        ] {
            assert_eq!(ImageName::parse(text), Err(Refusal), "{text:?}");
        }
    }
}
