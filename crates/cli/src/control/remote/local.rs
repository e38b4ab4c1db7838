//! Connections to the REST interface over a Unix socket.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

/// Looks up nothing: the socket has a path. The address that has to be there is not used.
#[derive(Debug)]
pub(super) struct Nowhere;

impl Resolver for Nowhere {
    fn resolve(
        &self,
        _: &Uri,
        _: &ureq::config::Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut one = self.empty();
        one.push(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        Ok(one)
    }
}

/// Connects to the socket with this path.
pub(super) struct Local {
    pub(super) path: PathBuf,
    /// Whether whoever listens there is to be asked.
    pub(super) trusted: fn(&UnixStream) -> bool,
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Connector for Local {
    type Out = Stream;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<Stream>, ureq::Error> {
        let stream = UnixStream::connect(&self.path)?;
        if !(self.trusted)(&stream) {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied).into());
        }
        let (most_in, most_out) =
            (details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Stream { stream, buffers: LazyBuffers::new(most_in, most_out) }))
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Stream {
    stream: UnixStream,
    buffers: LazyBuffers,
}

/// What is left of a time limit; none: no limit.
fn limit(timeout: NextTimeout) -> Option<Duration> {
    timeout.not_zero().map(|left| *left)
}

impl Transport for Stream {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.set_write_timeout(limit(timeout))?;
        Ok(self.stream.write_all(&self.buffers.output()[..amount])?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.set_read_timeout(limit(timeout))?;
        let amount = loop {
            match self.stream.read(self.buffers.input_append_buf()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    /// A server says nothing unasked: a connection that can be read from has ended.
    fn is_open(&mut self) -> bool {
        let quiet = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.stream.set_nonblocking(true).is_ok()
            && self.stream.read(&mut [0]).is_err_and(quiet)
            && self.stream.set_nonblocking(false).is_ok()
    }
}
