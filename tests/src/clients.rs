//! The stock clients: libiscsi's tools and QEMU's.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::process::output;
use crate::server::{lun_of, portal_of, target_of};

/// For a client that only asks something.
pub const SHORT: Duration = Duration::from_secs(20);

/// For a client that moves a lot of data on a machine that is busy with other tests.
pub const LONG: Duration = Duration::from_secs(240);

/// `iscsi-inq`: the standard INQUIRY data, or one vital product data page.
pub fn inquiry(url: &str, page: Option<u8>) -> Result<String> {
    let mut command = Command::new("iscsi-inq");
    if let Some(page) = page {
        command.args(["-e", "1", "-c", &page.to_string()]);
    }
    output(command.arg(url), SHORT)
}

/// `iscsi-ls -s`: every target of a portal with its logical units.
pub fn list(portal: &str) -> Result<String> {
    output(Command::new("iscsi-ls").arg("-s").arg(format!("iscsi://{portal}")), SHORT)
}

/// QEMU's name for a logical unit, as `--image-opts` and `--blockdev` take it.
#[derive(Clone, Debug)]
pub struct QemuLun {
    portal: String,
    target: String,
    lun: String,
    header_digest: &'static str,
}

impl QemuLun {
    /// The logical unit at an `iscsi://` URL, without digests.
    pub fn new(url: &str) -> QemuLun {
        QemuLun {
            portal: portal_of(url).to_owned(),
            target: target_of(url).to_owned(),
            lun: lun_of(url).to_owned(),
            header_digest: "none",
        }
    }

    /// The same with CRC32C header digests. QEMU and libiscsi 1.19 know no data digests.
    pub fn with_header_digest(mut self) -> QemuLun {
        self.header_digest = "crc32c";
        self
    }

    /// As the protocol node of a `raw` format node.
    pub fn raw(&self) -> String {
        let QemuLun { portal, target, lun, header_digest } = self;
        format!(
            "driver=raw,file.driver=iscsi,file.transport=tcp,file.portal={portal},\
             file.target={target},file.lun={lun},file.header-digest={header_digest}"
        )
    }
}

impl fmt::Display for QemuLun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QemuLun { portal, target, lun, header_digest } = self;
        write!(
            f,
            "driver=iscsi,transport=tcp,portal={portal},target={target},lun={lun},\
             header-digest={header_digest}"
        )
    }
}

/// `qemu-img convert` of a raw file onto a logical unit, which is at least as large.
pub fn copy_in(file: &Path, lun: &QemuLun) -> Result<()> {
    let source = format!("driver=raw,file.driver=file,file.filename={}", file.display());
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-n", "--image-opts", "--target-image-opts"]);
    output(command.args([source, lun.raw()]), LONG).map(drop)
}

/// `qemu-img convert` of a whole logical unit into a new raw file.
pub fn copy_out(lun: &QemuLun, file: &Path) -> Result<()> {
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-O", "raw", "--image-opts", &lun.raw()]).arg(file);
    output(&mut command, LONG).map(drop)
}

/// `qemu-io` with these commands, each in its own session's order; fails when one of them fails.
pub fn qemu_io(lun: &QemuLun, commands: &[String]) -> Result<String> {
    let mut command = Command::new("qemu-io");
    command.arg("--image-opts");
    for line in commands {
        command.args(["-c", line]);
    }
    output(command.arg(lun.raw()), LONG)
}

/// The size in bytes that QEMU sees.
pub fn size(lun: &QemuLun) -> Result<u64> {
    let mut command = Command::new("qemu-img");
    command.args(["info", "--output=json", "--image-opts", &lun.raw()]);
    let text = output(&mut command, SHORT)?;
    let info: serde_json::Value = serde_json::from_str(&text)?;
    Ok(info["virtual-size"].as_u64().unwrap_or_default())
}
