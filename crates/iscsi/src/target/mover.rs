//! What the target's datamover over RDMA keeps.

use super::event::Wanted;
use super::rdma::ReadId;
use super::{Site, Tag};
use crate::iser::{Header, Remote};
use crate::pdu::{RejectReason, TmfResponse};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Most answers to task management functions that wait for RDMA Reads.
const MAX_HELD: usize = 64;

/// An answer that waits for RDMA Reads.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u8,
    pub(super) sense: Vec<u8>,
    pub(super) wanted: Option<Wanted>,
}

/// What a connection over RDMA keeps.
#[derive(Debug)]
pub(super) struct Mover<B> {
    /// What the PDU that is being received opens.
    pub(super) opened: Header,
    /// What the commands have opened, by the slots of their tags. Not in the tasks, which would
    /// grow for streams as well.
    memory: Vec<Header>,
    invalidate: bool,
    /// RDMA Reads to post.
    pub(super) reads: VecDeque<(ReadId, Remote)>,
    pub(super) next_read: u32,
    /// RDMA Reads under way whose task is gone.
    pub(super) orphans: u32,
    /// Answers that wait for the RDMA Reads of their commands.
    pub(super) late: Vec<(Tag, Answer)>,
    /// Answers to task management functions that wait for them.
    pub(super) held: Vec<(u32, TmfResponse)>,
    /// The buffer with the immediate data of the PDU that is being received, which its command may keep.
    pub(super) offered: Option<B>,
}

impl<B> Mover<B> {
    /// Nothing was received yet; `invalidate`: responses take steering tags back.
    pub(super) fn new(invalidate: bool) -> Self {
        Self {
            opened: Header::default(),
            memory: Vec::new(),
            invalidate,
            reads: VecDeque::new(),
            next_read: 0,
            orphans: 0,
            late: Vec::new(),
            held: Vec::new(),
            offered: None,
        }
    }

    /// The buffer with the immediate data of this PDU, for its command to keep.
    pub(super) fn keep<S: Site<Buf = B>>(&mut self, site: &mut S) -> Option<B> {
        let keeps = site.keep(self.offered.as_mut()?);
        self.offered.take_if(|_| keeps)
    }

    /// An error if the current command does not open the memory that it needs.
    pub(super) fn check_memory(&self, reads: bool, writes: bool) -> Result<(), RejectReason> {
        let opened = self.opened;
        if (reads && opened.read.is_none()) || (writes && opened.write.is_none()) {
            return Err(RejectReason::InvalidPduField);
        }
        Ok(())
    }

    /// Keeps what the current command opens.
    pub(super) fn remember_memory(&mut self, tag: Tag) {
        let slot = tag.slot();
        if self.memory.len() <= slot {
            self.memory.resize(slot + 1, Header::default());
        }
        self.memory[slot] = self.opened;
    }

    /// What a command has opened.
    pub(super) fn memory(&self, tag: Tag) -> Header {
        self.memory.get(tag.slot()).copied().unwrap_or_default()
    }

    /// The steering tag that the response to a command takes back.
    pub(super) fn takes_back(&self, tag: Tag) -> Option<u32> {
        let memory = self.memory(tag);
        let memory = memory.read.or(memory.write).filter(|_| self.invalidate)?;
        // Linux gives tag 0 with a write that has no data beyond the unsolicited.
        Some(memory.stag).filter(|stag| *stag != 0)
    }

    /// A task has gone, and left so many RDMA Reads under way.
    pub(super) fn gone(&mut self, tag: Tag, reads: u32) {
        self.late.retain(|(late, _)| *late != tag);
        self.orphans += reads;
    }

    /// True while RDMA Reads are under way whose commands are over for the layer above.
    pub(super) fn is_busy(&self) -> bool {
        self.orphans > 0 || !self.late.is_empty()
    }

    /// Keeps an answer back while RDMA Reads of commands are under way that it may end, for the
    /// initiator. Gives what is to be answered now: nothing, or that the function is rejected if
    /// too many are kept.
    pub(super) fn hold(&mut self, itt: u32, response: TmfResponse) -> Option<TmfResponse> {
        if !self.is_busy() {
            return Some(response);
        }
        if self.held.len() >= MAX_HELD {
            return Some(TmfResponse::Rejected);
        }
        self.held.push((itt, response));
        None
    }
}
