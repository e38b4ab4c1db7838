//! The epoll driver.
use crate::disk::{DiskOp, Refused};
use crate::*;
use std::{fs::File, io, net::TcpListener, os::fd::OwnedFd, sync::Arc, time::Duration};
pub(crate) struct Epoll {}
impl Epoll {
    pub(crate) fn new(_config: &Config, _waker: Waker) -> io::Result<Self> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }
    pub(crate) const fn counters(&self) -> Counters {
        Counters { waits: 0, operations: 0, polled_receives: 0, partial_sends: 0 }
    }
    pub(crate) fn add_listener(&mut self, _: TcpListener, _: Token) -> io::Result<()> {
        unimplemented!()
    }
    pub(crate) fn stop_accepting(&mut self) {}
    pub(crate) fn add_socket(&mut self, _: OwnedFd) -> SocketId {
        unimplemented!()
    }
    pub(crate) fn close_socket(&mut self, _: SocketId) {}
    pub(crate) fn add_file(&mut self, _: Arc<File>) -> FileId {
        unimplemented!()
    }
    pub(crate) fn recv(&mut self, _: SocketId, b: RxBufs, _: Token) -> Result<(), (RxBufs, i32)> {
        Err((b, libc::ENOSYS))
    }
    pub(crate) fn send(&mut self, _: SocketId, c: TxChain, _: Token) -> Result<(), (TxChain, i32)> {
        Err((c, libc::ENOSYS))
    }
    pub(crate) fn disk(
        &mut self,
        _: FileId,
        _: DiskOp,
        buf: Option<Buf>,
        _: Token,
    ) -> Result<(), Refused> {
        Err(Refused { buf, errno: libc::ENOSYS })
    }
    pub(crate) fn cancel(&mut self, _: Token) {}
    pub(crate) fn wait(&mut self, _: Option<Duration>, _: &mut Vec<Event>) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }
}
