//! Keeps reservations through power loss (APTPL): a file per volume, written anew and renamed.
//!
//! A thread of its own does it, because writing to stable storage takes as long as it takes, and no
//! shard may wait for that. A command whose effect has to be kept is carried out here: on a copy of the
//! state first; the copy is made stable; then it counts, and the command is answered. If it cannot be made
//! stable, nothing has changed.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lunet_scsi::reserve::{
    InitiatorPort, Kind, NexusId, Request, Reservations, Saved, SavedRegistration, Seat, TargetPort,
};
use lunet_scsi::{Designator, Reply, Sanitation, status};
use lunet_volume::{VolumeId, files};
use serde::{Deserialize, Serialize};

use crate::core::Core;
use crate::mail::{AbortOrder, Asking, Owed, Preempted};
use crate::marks;
use crate::world::ScsiVolume;

/// How many orders may wait; the next command is answered BUSY.
const ORDERS: usize = 256;

/// How often a command is tried, should the reservations change while its effect is being stored.
const TRIES: usize = 8;

/// A larger file is none of ours: it has room for every registration that there may be.
const MAX_FILE: u64 = 1 << 20;

const VERSION: u32 = 1;

/// What the keeper is told.
pub enum Order {
    /// Carry out a command on reservations that are to be kept, then tell the shard so.
    Keep(Box<Command>),
    /// Make it stable that a volume is being sanitized or formatted, or that it is not, then tell the shard so.
    Mark {
        /// The volume.
        volume: Arc<ScsiVolume>,
        /// Where the volume stands if that is cut off; [`Sanitation::None`] takes the mark away.
        mark: Sanitation,
        /// Who waits.
        shard: usize,
        /// The ticket of the operation that waits.
        ticket: u64,
    },
    /// End.
    Stop,
}

/// A command on reservations.
pub struct Command {
    /// The volume.
    pub volume: Arc<ScsiVolume>,
    /// The slot of the volume.
    pub slot: VolumeId,
    /// Who asks.
    pub nexus: Arc<NexusId>,
    /// Where that nexus sits.
    pub seat: Seat,
    /// What it asks for.
    pub request: Request,
    /// The command itself, which waits.
    pub asking: Asking,
}

/// What became of a command on reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carried {
    /// It has taken effect, and that is on stable storage.
    Done {
        /// Shards that abort commands before the answer may go out; each of them tells.
        aborting: usize,
    },
    /// It was refused with this answer.
    Refused(Reply),
    /// The reservations have changed again and again meanwhile: nothing has come of it.
    Busy,
    /// It cannot be made stable, or its nexus is gone: nothing has come of it.
    Failed,
}

/// The thread that keeps reservations.
pub struct Keeper {
    orders: SyncSender<Order>,
    thread: JoinHandle<()>,
}

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start(core: Arc<Core>) -> io::Result<Self> {
        let (orders, received) = sync_channel(ORDERS);
        core.set_keeper(orders.clone());
        let thread = std::thread::Builder::new()
            .name("lunet-keeper".into())
            .spawn(move || work(&core, &received))?;
        Ok(Self { orders, thread })
    }

    /// Ends the thread, once it has done what it was told before. If that takes longer than `limit`, because the
    /// data directory hangs, it goes with the process.
    pub fn stop(self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut told = false;
        while !self.thread.is_finished() {
            // Nobody orders anything any more, so there is room as soon as one order has been done.
            told = told || !matches!(self.orders.try_send(Order::Stop), Err(TrySendError::Full(_)));
            if Instant::now() >= until {
                tracing::error!("what is kept in the data directory may not be what was in force");
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.thread.join();
    }
}

fn work(core: &Core, orders: &Receiver<Order>) {
    while let Ok(order) = orders.recv() {
        match order {
            Order::Keep(command) => keep_for(core, &command),
            Order::Mark { volume, mark, shard, ticket } => {
                mark_for(core, &volume, mark, (shard, ticket));
            }
            Order::Stop => return,
        }
    }
}

fn keep_for(core: &Core, command: &Command) {
    let (result, order) = match carry_out(command) {
        Ok(aborts) => (Carried::Done { aborting: 0 }, AbortOrder::from(aborts)),
        Err(result) => (result, AbortOrder::default()),
    };
    let Command { slot: volume, asking, .. } = *command;
    let mailboxes = core.mailboxes();
    let aborts = result == Carried::Done { aborting: 0 } && command.request.aborts();
    let result = if aborts { Carried::Done { aborting: mailboxes.len() } } else { result };
    // First, so that the command knows for how many it waits before the first of them tells.
    mailboxes[asking.shard].deliver(Owed::Kept { ticket: asking.ticket, result });
    if aborts {
        Preempted::tell(mailboxes, volume, &order, asking);
    }
}

/// Makes the effect of a command stable, then lets it take effect. Gives back whose commands to abort.
fn carry_out(command: &Command) -> Result<Vec<Arc<NexusId>>, Carried> {
    let Command { volume, nexus, seat, request, .. } = command;
    let mut stored = false;
    let mut result = Err(Carried::Busy);
    for _ in 0..TRIES {
        let before = volume.face.reservations.with(|state| state.clone());
        if before.nexus(*seat) != Some(nexus) {
            // The session is over, and so is its command.
            result = Err(Carried::Failed);
            break;
        }
        let mut trial = before.clone();
        let reply = trial.execute(*seat, request).reply;
        if reply.status != status::GOOD {
            result = Err(Carried::Refused(reply));
            break;
        }
        stored = true;
        if let Err(error) = store(volume, trial.saved().as_ref()) {
            tracing::error!(
                volume = %volume.name, %error,
                "reservations cannot be kept: PERSISTENT RESERVE OUT fails, and nothing has changed"
            );
            result = Err(Carried::Failed);
            break;
        }
        // Others were not held up meanwhile.
        let same = |state: &mut Reservations| {
            state.decides_like(&before, *seat).then(|| state.execute(*seat, request).aborts)
        };
        if let Some(aborts) = volume.face.reservations.with(same) {
            return Ok(aborts);
        }
    }
    if stored {
        let saved = volume.face.reservations.with(|state| state.saved());
        if let Err(error) = store(volume, saved.as_ref()) {
            tracing::error!(
                volume = %volume.name, %error,
                "what is kept of the reservations may be something else than what is in force"
            );
        }
    }
    result
}

fn store(volume: &ScsiVolume, saved: Option<&Saved>) -> io::Result<()> {
    match &volume.face.kept {
        Some(path) => keep(path, &volume.face.unit.identity.naa, saved),
        None => Ok(()),
    }
}

fn mark_for(core: &Core, volume: &ScsiVolume, mark: Sanitation, (shard, ticket): (usize, u64)) {
    let marked = match &volume.face.kept {
        Some(path) => marks::set(path, &volume.face.unit.identity.naa, mark),
        None => Ok(()),
    };
    if let Err(error) = &marked {
        tracing::error!(volume = %volume.name, %error, "the mark of SANITIZE or FORMAT UNIT cannot be kept");
    }
    core.mailboxes()[shard].deliver(Owed::Settled { ticket, done: marked.is_ok() });
}

/// The file of one volume.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    /// The NAA designator: another volume by the same name does not inherit.
    unit: String,
    /// TYPE; 0 without reservation.
    kind: u8,
    holder: Option<usize>,
    registrations: Vec<KeptRegistration>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptRegistration {
    initiator: String,
    isid: [u8; 6],
    target: String,
    port: u16,
    key: u64,
}

/// Makes this state stable, or, if there is none, that there is none.
fn keep(path: &Path, naa: &Designator, saved: Option<&Saved>) -> io::Result<()> {
    let Some(saved) = saved else { return Ok(files::remove(path).map(drop)?) };
    let registrations = saved.registrations.iter().map(|r| KeptRegistration {
        initiator: r.nexus.initiator.name.clone(),
        isid: r.nexus.initiator.isid,
        target: r.nexus.port.target.to_string(),
        port: r.nexus.port.tag,
        key: r.key,
    });
    let kept = Kept {
        version: VERSION,
        unit: naa.to_string(),
        kind: saved.kind.map_or(0, |kind| kind as u8),
        holder: saved.holder,
        registrations: registrations.collect(),
    };
    Ok(files::replace(path, &serde_json::to_vec_pretty(&kept)?)?)
}

/// What was kept for a volume; `None` if nothing was.
///
/// # Errors
/// A plain sentence: the file cannot be read, or is damaged. Without it nobody knows who may write.
pub fn load(path: &Path, naa: &Designator) -> Result<Option<Saved>, String> {
    let name = path.display();
    let Some(text) = files::read(path, MAX_FILE)? else { return Ok(None) };
    let kept: Kept =
        serde_json::from_slice(&text).map_err(|error| format!("{name} is damaged: {error}"))?;
    if kept.version != VERSION {
        return Err(format!("{name} is of version {}, not {VERSION}", kept.version));
    }
    if kept.unit != naa.to_string() {
        tracing::warn!(file = %name, "reservations of another volume are not taken up");
        return Ok(None);
    }
    let kind = match kept.kind {
        0 => None,
        number => Some(Kind::from_number(number).ok_or(format!("{name} is damaged: kind"))?),
    };
    let registrations = kept.registrations.into_iter().map(|r| SavedRegistration {
        nexus: NexusId {
            initiator: InitiatorPort { name: r.initiator, isid: r.isid },
            port: TargetPort { target: r.target.into(), tag: r.port },
        },
        key: r.key,
    });
    Ok(Some(Saved { registrations: registrations.collect(), kind, holder: kept.holder }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    const NAA: &Designator = &Designator::eight([0x30, 1, 2, 3, 4, 5, 6, 7]);

    fn saved() -> Saved {
        let registration = |name: &str, key| SavedRegistration {
            nexus: NexusId {
                initiator: InitiatorPort { name: name.into(), isid: [0x40, 0, 0, 1, 2, 3] },
                port: TargetPort { target: "iqn.t".into(), tag: 7 },
            },
            key,
        };
        Saved {
            registrations: vec![registration("iqn.a", 1), registration("quote\" \n", u64::MAX)],
            kind: Some(Kind::ExclusiveAccess),
            holder: Some(1),
        }
    }

    #[test]
    fn what_is_kept_is_found_again_until_it_is_forgotten() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("v.reservations");
        assert_eq!(load(&path, NAA), Ok(None));
        keep(&path, NAA, None).expect("nothing to forget");
        for kind in [Some(Kind::ExclusiveAccess), None] {
            let saved = Saved { kind, ..saved() };
            keep(&path, NAA, Some(&saved)).expect("it is kept");
            assert_eq!(load(&path, NAA), Ok(Some(saved)));
        }
        assert_eq!(load(&path, &Designator::eight([1; 8])), Ok(None), "another volume");
        keep(&path, NAA, None).expect("it is forgotten");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 0);
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("v.reservations");
        keep(&path, NAA, Some(&saved())).expect("it is kept");
        let text = fs::read_to_string(&path).expect("text");
        for (from, to) in [
            ("\"kind\": 3", "\"kind\": 2"),
            ("\"version\": 1", "\"version\": 2"),
            ("\"holder\"", "\"other\""),
            ("{", ""),
        ] {
            assert!(text.contains(from), "{text}");
            fs::write(&path, text.replacen(from, to, 1)).expect("written");
            let error = load(&path, NAA).expect_err(from);
            assert!(error.contains("v.reservations"), "{error}");
        }
        File::options()
            .write(true)
            .open(&path)
            .and_then(|f| f.set_len(MAX_FILE + 1))
            .expect("grown");
        assert!(load(&path, NAA).is_err());
    }

    #[test]
    fn a_failure_to_keep_leaves_the_last_state() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("v.reservations");
        keep(&path, NAA, Some(&saved())).expect("it is kept");
        fs::create_dir(files::fresh(&path)).expect("something in the way");
        assert!(keep(&path, NAA, Some(&Saved { kind: None, holder: None, ..saved() })).is_err());
        assert_eq!(load(&path, NAA), Ok(Some(saved())));
    }
}
