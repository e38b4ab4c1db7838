//! What a connection has to send, for both transports.

use std::collections::VecDeque;
use std::ops::Range;

use arrayvec::ArrayVec;
use lunet_ring::{Payload, TxChain};
use lunet_verbs::Remote;
use lunet_volume::Timed;

/// Room for what almost every Send has: both headers, and a little data.
pub(crate) const HEAD: usize = 128;

/// Something to be done over RDMA.
pub enum Post {
    /// A message to the client.
    Send {
        /// Its first bytes.
        head: ArrayVec<u8, HEAD>,
        /// The bytes behind them, of a long message.
        rest: Vec<u8>,
        /// The key of the client's memory that it takes back.
        invalidate: Option<u32>,
    },
    /// Data for the client's memory.
    Write {
        /// Where the data lies.
        payload: Payload,
        /// Which part of it.
        range: Range<usize>,
        /// Where it goes.
        to: Remote,
    },
}

impl Post {
    /// Bytes that leave with it.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Send { head, rest, .. } => head.len() + rest.len(),
            Self::Write { range, .. } => range.len(),
        }
    }

    /// True for a message.
    pub(crate) fn is_send(&self) -> bool {
        matches!(self, Self::Send { .. })
    }

    /// True if all of its bytes lie where a device can reach them.
    pub(crate) fn is_in_place(&self) -> bool {
        match self {
            Self::Send { rest, .. } => rest.is_empty(),
            Self::Write { payload, .. } => matches!(payload, Payload::Buf(_)),
        }
    }
}

/// What a connection has to send, in wire order. On a stream it is all in the chain. Over RDMA the chain
/// gathers one Send, or one payload, and the list has what is complete.
#[derive(Default)]
pub struct Outgoing {
    /// Over TCP: the bytes of the stream, in order.
    pub chain: TxChain,
    /// An operation that was timed whose answer is in the chain.
    pub timed: Option<Timed>,
    /// Over RDMA: Sends and RDMA Writes, in order.
    pub posts: VecDeque<Post>,
    /// Bytes in that list.
    waiting: usize,
    /// Sends in that list.
    sends: usize,
}

impl Outgoing {
    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.chain.len() + self.waiting
    }

    /// Sends that wait.
    pub(crate) fn sends(&self) -> usize {
        self.sends
    }

    /// Takes the first of the list.
    pub(crate) fn pop(&mut self) -> Option<Post> {
        let post = self.posts.pop_front()?;
        self.waiting -= post.bytes();
        self.sends -= usize::from(post.is_send());
        Some(post)
    }

    /// Puts one back that could not be done.
    pub(crate) fn put_back(&mut self, post: Post) {
        self.waiting += post.bytes();
        self.sends += usize::from(post.is_send());
        self.posts.push_front(post);
    }

    fn push(&mut self, post: Post) {
        self.waiting += post.bytes();
        self.sends += usize::from(post.is_send());
        self.posts.push_back(post);
    }

    /// Over RDMA: what the chain has gathered is a message.
    pub fn end_send(&mut self, invalidate: Option<u32>) {
        let bytes = self.chain.plain();
        let (first, rest) = bytes.split_at(bytes.len().min(HEAD));
        let mut head = ArrayVec::new();
        head.extend(first.iter().copied());
        let post = Post::Send { head, rest: rest.to_vec(), invalidate };
        self.chain.clear();
        self.push(post);
    }

    /// Over RDMA: a part of the payload that was handed to the chain just now goes to the client's memory.
    pub fn write(&mut self, id: usize, range: Range<usize>, to: Remote) {
        debug_assert_eq!(id + 1, self.chain.payloads(), "the payload was handed over just now");
        if let Some(payload) = self.chain.take_payload() {
            self.push(Post::Write { payload, range, to });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_and_writes_are_kept_in_order() {
        let mut out = Outgoing::default();
        out.chain.bytes(&[1; 76]);
        out.end_send(None);
        let id = out.chain.payload(Payload::Bytes(vec![9; 4096]));
        out.write(id, 512..4096, Remote { key: 7, address: 1 << 40 });
        out.chain.bytes(&[2; 76]);
        out.chain.bytes(&[3; 300]);
        out.end_send(Some(7));
        assert_eq!((out.bytes(), out.posts.len(), out.chain.len()), (76 + 3584 + 376, 3, 0));
        let first = out.pop().expect("the first Send");
        assert!(
            first.is_in_place()
                && matches!(&first, Post::Send { head, rest, invalidate: None }
            if head.as_slice() == [1; 76] && rest.is_empty())
        );
        let write = out.pop().expect("the Write");
        assert!(!write.is_in_place(), "plain bytes are not registered");
        assert!(matches!(&write, Post::Write { payload, range, to }
            if payload.len() == 4096 && *range == (512..4096) && to.key == 7));
        assert_eq!(out.bytes(), 376);
        out.put_back(write);
        assert_eq!(out.bytes(), 376 + 3584);
        out.pop();
        let long = out.pop().expect("the second Send");
        assert!(
            !long.is_in_place()
                && matches!(&long, Post::Send { head, rest, invalidate: Some(7) }
            if head.len() == HEAD && rest.len() == 376 - HEAD && rest[0] == 3)
        );
        assert!(out.bytes() == 0 && out.pop().is_none());
    }

    #[test]
    fn a_stream_goes_into_the_chain() {
        let mut out = Outgoing::default();
        out.chain.bytes(b"header");
        let id = out.chain.payload(Payload::Bytes(vec![9; 10]));
        out.chain.slice(id, 2..6);
        assert_eq!((out.bytes(), out.chain.len(), out.posts.len()), (10, 10, 0));
    }
}
