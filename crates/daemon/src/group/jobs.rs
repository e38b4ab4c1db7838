//! What this server does as the owner of a group for administrators, whichever gateway they have asked, and the marks by which
//! the record says that a rollback is under way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use lunet_gateway::{Answer, Change, Contents, Sanitize};
use lunet_group::Handle;
use lunet_os::sync::{Mutex, MutexGuard};

use super::serving::Kept;
use crate::live::{Mark, Owner};

/// The numbers of requests of this server, and not of its shards.
const OWN: u64 = 1 << 63;
/// How long a mark has to get into the record. Another change of it takes milliseconds.
const MARKED: Duration = Duration::from_secs(15);
/// After how long it is tried again when there is one.
const AGAIN: Duration = Duration::from_millis(20);
/// The first byte of a mark's bytes; requests of shards have others.
const VERSION: u8 = 4;

/// What the record is to say of a rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marking {
    /// The volume, by its NAA designator.
    pub naa: [u8; 16],
    pub mark: Mark,
}

impl Marking {
    fn encode(&self) -> Vec<u8> {
        let mark = match self.mark {
            Mark::Begun => 0,
            Mark::Done => 1,
            Mark::Failed => 2,
        };
        [&[VERSION, mark], &self.naa[..]].concat()
    }

    /// Reads it. `None` if it is something else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[VERSION, mark], naa) = bytes.split_first_chunk()? else { return None };
        let mark = match mark {
            0 => Mark::Begun,
            1 => Mark::Done,
            2 => Mark::Failed,
            _ => return None,
        };
        Some(Self { naa: naa.try_into().ok()?, mark })
    }

    /// What the record says of the volume then; `None` if that is not for a rollback to say.
    pub(super) fn sanitize(&self, contents: &Contents) -> Option<Sanitize> {
        let volume = contents.volumes.iter().find(|volume| volume.naa == self.naa)?;
        match (self.mark, volume.sanitize) {
            (Mark::Begun | Mark::Failed, Sanitize::None | Sanitize::RollingBack) => {
                Some(Sanitize::RollingBack)
            }
            (Mark::Done, Sanitize::RollingBack) => Some(Sanitize::None),
            _ => None,
        }
    }

    /// The contents of the record with it, and whether it is in them.
    pub(super) fn apply(&self, contents: &Contents) -> (Contents, bool) {
        let mut next = contents.clone();
        let sanitize = self.sanitize(contents);
        let is_in = sanitize.is_some_and(|it| next.change(self.naa, Change::Sanitize(it)));
        (next, is_in)
    }
}

/// Requests of this server that wait for the record, and the volumes that are rolled back.
#[derive(Default)]
pub(super) struct Jobs {
    waiting: Mutex<BTreeMap<u64, SyncSender<Answer>>>,
    numbers: AtomicU64,
    rolled: Mutex<BTreeSet<[u8; 16]>>,
}

impl Jobs {
    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, SyncSender<Answer>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rolled(&self) -> MutexGuard<'_, BTreeSet<[u8; 16]>> {
        self.rolled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if a volume is rolled back now.
    pub(super) fn rolls(&self, naa: [u8; 16]) -> bool {
        self.rolled().contains(&naa)
    }

    /// Takes an answer that is for a request of this server; gives others back.
    pub(super) fn answered(&self, id: u64, answer: Answer) -> Option<Answer> {
        if id & OWN == 0 {
            return Some(answer);
        }
        // Whoever waited may have gone.
        if let Some(waits) = self.waiting().remove(&id) {
            drop(waits.send(answer));
        }
        None
    }

    /// A request is given up: whoever waits for it need not.
    pub(super) fn given_up(&self, id: u64) {
        drop(self.waiting().remove(&id));
    }

    /// Has the record say something, once: true if it does now, false if it is to be tried again.
    fn ask(&self, thread: &Handle, marking: Marking) -> Result<bool> {
        let id = OWN | self.numbers.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = sync_channel(1);
        self.waiting().insert(id, sender);
        thread.reserve(id, marking.encode());
        match answer.recv_timeout(MARKED) {
            Ok(Answer::Body(body)) if body == [1] => Ok(true),
            Ok(Answer::Body(_)) => {
                bail!(
                    "the volume is being sanitized or formatted, or was not to the end: have a host let that end, or repeat it"
                )
            }
            Ok(_) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => bail!("{NO_OWNER}: {ELSEWHERE}"),
            Err(RecvTimeoutError::Timeout) => {
                self.given_up(id);
                bail!("the cluster has not answered: `ceph -s` says why; try again when it does")
            }
        }
    }
}

const NO_OWNER: &str = "this gateway owns the group no more";
const ELSEWHERE: &str = "try again when `lunet group list` shows an owner";

/// This server as the owner of a group, for one job.
pub(super) struct Work {
    pub(super) thread: Handle,
    pub(super) contents: Arc<Mutex<Kept>>,
    pub(super) jobs: Arc<Jobs>,
}

impl Work {
    fn naa(&self, image: &str) -> Result<[u8; 16]> {
        let kept = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        kept.naa(image).ok_or_else(|| {
            anyhow!("the group has no image {image} any more: `lunet group list` shows its volumes")
        })
    }
}

impl Owner for Work {
    fn look_at_sizes(&self) {
        self.thread.look_at_sizes();
    }

    fn rolls(&self, image: &str, rolls: bool) {
        let Ok(naa) = self.naa(image) else { return };
        let mut rolled = self.jobs.rolled();
        match rolls {
            true => rolled.insert(naa),
            false => rolled.remove(&naa),
        };
        self.thread.images_roll(!rolled.is_empty());
    }

    fn mark(&self, image: &str, mark: Mark) -> Result<()> {
        let marking = Marking { naa: self.naa(image)?, mark };
        let until = lunet_os::time::now() + MARKED;
        while !self.jobs.ask(&self.thread, marking)? {
            if lunet_os::time::now() >= until {
                bail!(
                    "the record of the group is being changed all the time, or {NO_OWNER}: {ELSEWHERE}"
                );
            }
            lunet_os::thread::sleep(AGAIN);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lunet_gateway::{Reserved, Volume};

    use super::*;

    fn contents(sanitize: Sanitize) -> Contents {
        let volume = Volume {
            image: "rbd/a".into(),
            id: "1".into(),
            bytes: 512,
            naa: [6; 16],
            serial: String::new(),
            reserved: Reserved::default(),
            modes: Vec::new(),
            sanitize,
        };
        Contents { volumes: vec![volume] }
    }

    #[test]
    fn a_marking_is_read_as_it_was_written_and_nothing_else_is_one() {
        for mark in [Mark::Begun, Mark::Done, Mark::Failed] {
            let marking = Marking { naa: [6; 16], mark };
            let bytes = marking.encode();
            assert_eq!(Marking::decode(&bytes), Some(marking));
            for len in 0..bytes.len() {
                assert_eq!(Marking::decode(&bytes[..len]), None);
            }
            assert_eq!(Marking::decode(&[&bytes[..], &[0]].concat()), None);
        }
        assert_eq!(Marking::decode(&[&[3, 0][..], &[6; 16]].concat()), None);
        assert_eq!(Marking::decode(&[&[4, 3][..], &[6; 16]].concat()), None);
    }

    #[test]
    fn a_rollback_ends_its_own_mark_and_no_other() {
        let formats = Sanitize::Formatting;
        for (mark, before, after) in [
            (Mark::Begun, Sanitize::None, Some(Sanitize::RollingBack)),
            (Mark::Begun, Sanitize::RollingBack, Some(Sanitize::RollingBack)),
            (Mark::Failed, Sanitize::RollingBack, Some(Sanitize::RollingBack)),
            (Mark::Done, Sanitize::RollingBack, Some(Sanitize::None)),
            (Mark::Begun, formats, None),
            (Mark::Done, formats, None),
            (Mark::Done, Sanitize::None, None),
        ] {
            let (next, is_in) = Marking { naa: [6; 16], mark }.apply(&contents(before));
            assert_eq!(is_in, after.is_some(), "{mark:?} {before:?}");
            assert_eq!(next.volumes[0].sanitize, after.unwrap_or(before));
            let (next, is_in) = Marking { naa: [7; 16], mark }.apply(&contents(before));
            assert_eq!((next, is_in), (contents(before), false), "another volume");
        }
    }

    #[test]
    fn only_answers_to_requests_of_the_server_are_its_own() {
        let jobs = Jobs::default();
        assert_eq!(jobs.answered(7, Answer::Busy), Some(Answer::Busy));
        let (sender, answer) = sync_channel(1);
        jobs.waiting().insert(OWN | 1, sender);
        assert_eq!(jobs.answered(OWN | 1, Answer::Busy), None);
        assert_eq!(answer.recv(), Ok(Answer::Busy));
        assert_eq!(jobs.answered(OWN | 1, Answer::Busy), None, "nobody waits any more");
    }
}
