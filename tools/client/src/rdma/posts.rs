//! Sends that wait to be handed to the device.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use lunet_ring::Region;

use crate::front::Source;

/// A Send: what it begins with, and data behind that.
#[derive(Debug)]
pub(crate) struct Post {
    pub head: Range<usize>,
    pub data: Option<(Source, Range<usize>)>,
}

/// What a connection under load has to send, in order. Nothing is allocated for a Send, once this has
/// grown.
#[derive(Debug, Default)]
pub struct Posts {
    bytes: Vec<u8>,
    data: Option<(Source, Range<usize>)>,
    begun: usize,
    posts: VecDeque<Post>,
}

impl Posts {
    /// Appends bytes, which are copied: headers.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a part of a write's data; nothing follows it in its Send.
    pub fn data(&mut self, data: &Source, range: Range<usize>) {
        self.data = Some((data.clone(), range));
    }

    /// What was appended since the last call is a Send.
    pub fn end_send(&mut self) {
        let end = self.bytes.len();
        self.posts.push_back(Post { head: self.begun..end, data: self.data.take() });
        self.begun = end;
    }

    /// The next Send, and the bytes that its head is in.
    pub(crate) fn first(&self) -> Option<(&Post, &[u8])> {
        self.posts.front().map(|post| (post, &self.bytes[..]))
    }

    /// The next Send was taken.
    pub(crate) fn taken(&mut self) {
        self.posts.pop_front();
        if self.posts.is_empty() {
            // What was begun and not ended stays.
            self.bytes.drain(..self.begun);
            self.begun = 0;
        }
    }
}

/// What goes out as plain bytes, over a stream or as Sends: all there is before a load begins.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    pub bytes: Vec<u8>,
    /// Where Sends end.
    pub ends: Vec<usize>,
    /// The memory for data of the connection's own commands, at its beginning.
    pub own: Option<Arc<Region>>,
}

impl Plain {
    /// The Sends.
    pub fn sends(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }

    /// All of it was sent.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// See `Transmit::keep` of `lunet-nvme`.
    pub fn keep(&self, bytes: &[u8]) {
        if let Some(own) = &self.own {
            own.write(0, bytes);
        }
    }

    /// See `Transmit::kept` of `lunet-nvme`.
    pub fn kept(&self, into: &mut [u8]) {
        if let Some(own) = &self.own {
            own.read(0, into);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_are_taken_in_order() {
        let source = Source { bytes: vec![7; 8].into(), start: 2, len: 4, constant: false };
        let mut posts = Posts::default();
        posts.bytes(&[1, 2]);
        posts.data(&source, 1..3);
        posts.end_send();
        posts.bytes(&[3]);
        posts.end_send();
        let (post, bytes) = posts.first().expect("two wait");
        let (data, range) = post.data.as_ref().expect("with data");
        assert_eq!(
            (&bytes[post.head.clone()], &data.as_ref()[range.clone()]),
            (&[1, 2][..], &[7; 2][..])
        );
        posts.taken();
        posts.bytes(&[4]);
        let (post, bytes) = posts.first().expect("one waits");
        assert!(bytes[post.head.clone()] == [3] && post.data.is_none());
        posts.taken();
        assert!(posts.first().is_none());
        posts.end_send();
        let (post, bytes) = posts.first().expect("the last one");
        assert_eq!(bytes[post.head.clone()], [4]);
    }

    #[test]
    fn plain_bytes_are_cut_into_sends() {
        let mut plain = Plain { bytes: vec![1, 2, 3], ends: vec![1, 3], own: None };
        assert_eq!(plain.sends().collect::<Vec<_>>(), [&[1][..], &[2, 3]]);
        plain.clear();
        assert_eq!(plain.sends().count(), 0);
    }
}
