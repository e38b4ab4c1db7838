//! What a namespace says about itself.

use std::time::Duration;

use lunet_client::nvme::{Admin, AnaGroup, Answer, Error, Queue};
use lunet_nvme::command::Range;
use lunet_nvme::identify::{NMIC_SHARED, NSATTR_WRITE_PROTECTED, NSFEAT_THIN};
use serde::{Deserialize, Serialize};

/// A namespace that is busy is read so often.
const TRIES: usize = 5;
/// Between two of those.
const PAUSE: Duration = Duration::from_millis(100);

/// What a namespace says about itself. Sizes are in bytes, `null` = it does not say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceProbe {
    /// Namespace identifier.
    pub nsid: u32,
    /// Size; `null` if there is no such namespace.
    pub size_bytes: Option<i64>,
    /// Logical block.
    pub block_bytes: Option<i64>,
    /// Metadata of each block.
    pub metadata_bytes: i64,
    /// NGUID in hexadecimal digits; `null` if it is zero.
    pub nguid: Option<String>,
    /// UUID.
    pub uuid: Option<String>,
    /// EUI-64.
    pub eui64: Option<String>,
    /// Whether it takes no writes.
    pub write_protected: bool,
    /// Whether several controllers may have it (NMIC).
    pub shared: bool,
    /// Whether blocks are allocated when they are written.
    pub thin: bool,
    /// Whether it has reservations (RESCAP).
    pub reservations: bool,
    /// ANAGRPID.
    pub ana_group: i64,
    /// State of this path to it: `optimized`, `inaccessible` ...; `null` without ANA.
    pub path: Option<String>,
    /// What a read of its first block shows, in a word: `not ready`, `failed`, `reserved`, `sanitizing`, `busy`, `path`,
    /// `gone`, `damaged`, `other`; `null` if it was read, or not tried.
    pub trouble: Option<String>,
    /// The status of that read, what it means and the next step.
    pub status: Option<String>,
}

impl NamespaceProbe {
    /// Whether blocks of it can be read here.
    pub(super) fn is_readable(&self) -> bool {
        let path = self.path.as_deref().unwrap_or("optimized");
        self.size_bytes.is_some_and(|bytes| bytes >= 4096)
            && self.block_bytes.is_some()
            && self.metadata_bytes == 0
            && ["optimized", "non-optimized"].contains(&path)
            && self.trouble.is_none()
    }
}

/// Asks for everything. `None`: the controller has no such namespace.
pub(super) fn look(
    admin: &mut Admin,
    nsid: u32,
    paths: &[AnaGroup],
) -> Result<Option<NamespaceProbe>, Error> {
    let page = match admin.namespace(nsid) {
        Err(Error::Command { .. }) => return Ok(None),
        page => page?,
    };
    let names = admin.names(nsid)?;
    let hex = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let block = page.block_size().map(i64::from);
    let size = block.zip(i64::try_from(page.nsze.get()).ok()).filter(|(_, blocks)| *blocks > 0);
    if size.is_none() && page.nsze.get() == 0 {
        return Ok(None);
    }
    let group = page.anagrpid.get();
    let path = paths.iter().find(|path| path.id == group);
    Ok(Some(NamespaceProbe {
        nsid,
        size_bytes: size.and_then(|(block, blocks)| blocks.checked_mul(block)),
        block_bytes: block,
        metadata_bytes: page.format().ms.get().into(),
        nguid: names.nguid.map(|id| hex(&id)),
        uuid: names.uuid.map(|id| hex(&id)),
        eui64: names.eui64.map(|id| hex(&id)),
        write_protected: page.nsattr & NSATTR_WRITE_PROTECTED != 0,
        shared: page.nmic & NMIC_SHARED != 0,
        thin: page.nsfeat & NSFEAT_THIN != 0,
        reservations: page.rescap & 0x7e != 0,
        ana_group: group.into(),
        path: path.map(|path| super::state(path.state).to_owned()),
        trouble: None,
        status: None,
    }))
}

/// Finds out whether the first block is read, and if not, why.
pub(super) fn try_out(queue: &mut Queue, namespace: &mut NamespaceProbe) -> Result<(), Error> {
    for left in (0..TRIES).rev() {
        let Some(failure) = read(queue, namespace, 0)?.failure else { return Ok(()) };
        if failure.is_busy() && left > 0 {
            std::thread::sleep(PAUSE);
            continue;
        }
        namespace.trouble = Some(failure.state().word().to_owned());
        namespace.status = Some(failure.to_string());
        return Ok(());
    }
    Ok(())
}

/// How long the reading of 4 KiB at a block took, if it was read.
pub(super) fn time(
    queue: &mut Queue,
    namespace: &NamespaceProbe,
    lba: u64,
) -> Result<Option<Duration>, Error> {
    let answer = read(queue, namespace, lba)?;
    Ok(answer.failure.is_none().then_some(answer.took))
}

fn read(queue: &mut Queue, namespace: &NamespaceProbe, lba: u64) -> Result<Answer, Error> {
    let block = namespace.block_bytes.unwrap_or(512).max(1);
    let (blocks, block) = ((4096 / block).max(1) as u32, block as u32);
    queue.read(namespace.nsid, Range { lba, blocks }, block)
}
