//! How the processes of a server talk: messages and open files over a pair of sockets.
//!
//! A message is its length in bytes, 32 bits with the least first, and JSON. Both ends are the same program, so there are
//! no versions.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

/// The longest message, in bytes: the sessions of a full server have a hundredth of that.
const LONGEST: usize = 64 << 20;

/// The most open files that are handed over at one time.
pub const SOCKETS: usize = 64;

/// Room for a message before it grows. What grows leaves a copy behind, which may have a secret in it.
const ROOM: usize = 8192;

/// Writes a message.
///
/// # Errors
/// The other end is gone, or the message is too long.
pub fn send(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(ROOM));
    bytes.extend_from_slice(&[0; 4]);
    serde_json::to_writer(&mut *bytes, message)?;
    let length = bytes.len() - 4;
    if length > LONGEST {
        return Err(ErrorKind::InvalidData.into());
    }
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    stream.write_all(&bytes)
}

/// Reads a message.
///
/// # Errors
/// The other end is gone, or says what is none.
pub fn receive<T: DeserializeOwned>(mut stream: &UnixStream) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut bytes = Zeroizing::new(vec![0; length]);
    stream.read_exact(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// True if nobody is at the other end any more.
pub fn is_left(stream: &UnixStream) -> bool {
    // It is told in any case.
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(1..))
}

/// Hands sockets over, at most [`SOCKETS`].
///
/// # Errors
/// The other end is gone.
pub fn send_sockets(stream: &UnixStream, sockets: &[OwnedFd]) -> io::Result<()> {
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    send_with(stream, &[1], &sockets)
}

/// Sends bytes over a Unix socket of any kind, and at most [`SOCKETS`] open files with them.
///
/// # Errors
/// The other end is gone.
pub fn send_with(to: impl AsFd, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    sendmsg(to, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

/// Takes the sockets that the other end hands over.
///
/// # Errors
/// The other end is gone.
pub fn receive_sockets(stream: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let got = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if got.bytes == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
        _ => None,
    });
    Ok(rights.flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_or_no_message_is_an_error() {
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert_eq!(receive::<String>(&there).unwrap_err().kind(), ErrorKind::InvalidData);
        here.write_all(&[2, 0, 0, 0, b'{', b'}']).unwrap();
        assert!(receive::<String>(&there).is_err());
    }
}
