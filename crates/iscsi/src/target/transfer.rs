//! Solicited data transfers and their Target Transfer Tags.

use super::task::Tag;
use slab::Slab;

/// Bits of a Target Transfer Tag that are the index; the others are a generation.
const INDEX_BITS: u32 = 22;

/// Data that was asked for.
#[derive(Debug)]
pub(super) struct Transfer<B> {
    pub(super) task: Tag,
    /// The buffer; away while data is received into it, and dropped when the task failed.
    pub(super) buf: Option<B>,
    /// Where the data belongs in the command's transfer.
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) received: u32,
    /// End of the part that the current R2T asks for.
    pub(super) asked: u32,
    /// Target Transfer Tag of the current R2T; the reserved one over RDMA.
    pub(super) ttt: u32,
    /// Its place among all R2Ts.
    pub(super) order: u64,
    /// DataSN of the next Data-Out.
    pub(super) data_sn: u32,
    /// Number of the RDMA Read.
    pub(super) read: u32,
    /// The current R2T is not answered yet; over RDMA: the buffer is lent out.
    pub(super) in_flight: bool,
    /// The transfer that waits behind this one.
    pub(super) next: Option<usize>,
}

/// The transfers of a connection.
#[derive(Debug)]
pub(super) struct Transfers<B> {
    slots: Slab<Transfer<B>>,
    generation: u32,
    r2ts: u64,
}

impl<B> Transfers<B> {
    pub(super) fn new() -> Self {
        Self { slots: Slab::new(), generation: 0, r2ts: 0 }
    }

    /// Adds a transfer for which no R2T was sent.
    pub(super) fn insert(&mut self, task: Tag, offset: u32, len: u32, buf: B) -> usize {
        self.slots.insert(Transfer {
            task,
            buf: Some(buf),
            offset,
            len,
            received: 0,
            asked: 0,
            ttt: crate::pdu::RESERVED_TAG,
            order: 0,
            data_sn: 0,
            read: 0,
            in_flight: false,
            next: None,
        })
    }

    /// Gives the transfer a new Target Transfer Tag.
    pub(super) fn new_ttt(&mut self, index: usize) -> u32 {
        // The generation stays below its highest value, so that no tag is the reserved one.
        self.generation = (self.generation + 1) % ((1 << (32 - INDEX_BITS)) - 1);
        let ttt = self.generation << INDEX_BITS | (index as u32 & ((1 << INDEX_BITS) - 1));
        if let Some(transfer) = self.slots.get_mut(index) {
            transfer.ttt = ttt;
            self.r2ts += 1;
            transfer.order = self.r2ts;
        }
        ttt
    }

    /// The transfer whose R2T carried this tag.
    pub(super) fn find(&self, ttt: u32) -> Option<usize> {
        let index = (ttt & ((1 << INDEX_BITS) - 1)) as usize;
        self.slots.get(index).filter(|transfer| transfer.ttt == ttt).map(|_| index)
    }

    /// The transfer whose R2T is the oldest that has not been answered in full: its index, its place among
    /// all, and how much has come.
    pub(super) fn oldest(&self) -> Option<(usize, &Transfer<B>)> {
        let asked = self.slots.iter().filter(|(_, transfer)| transfer.in_flight);
        asked.min_by_key(|(_, transfer)| transfer.order)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Transfer<B>> {
        self.slots.get_mut(index)
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<Transfer<B>> {
        self.slots.try_remove(index)
    }

    /// Number of transfers.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Drops all transfers of a task. Gives how many of them were in flight.
    pub(super) fn remove_task(&mut self, task: Tag) -> u32 {
        let mut in_flight = 0;
        self.slots.retain(|_, transfer| {
            in_flight += u32::from(transfer.task == task && transfer.in_flight);
            transfer.task != task
        });
        in_flight
    }

    /// Drops the transfers of a task whose buffers are here. Gives how many there were.
    pub(super) fn remove_unlent(&mut self, task: Tag) -> u32 {
        let before = self.slots.len();
        self.slots.retain(|_, transfer| transfer.task != task || transfer.in_flight);
        (before - self.slots.len()) as u32
    }
}
