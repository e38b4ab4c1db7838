//! The server for NVMe. Its place among the servers of the process is known from the start; its threads, event loops and
//! buffers begin with the first portal for it, be that at the start of lunet or while iSCSI is served.

use std::net::SocketAddr;
use std::sync::{OnceLock, PoisonError};

use lunet_front_iscsi::LogicalUnit;
use lunet_os::sync::Mutex;
use lunet_server::{Member, Processors, StartError};

/// A server that serves NVMe.
pub type Server = lunet_front_nvme::Server<LogicalUnit>;

/// Asks it.
pub type Handle = lunet_front_nvme::Handle<LogicalUnit>;

/// A server that is ready to serve NVMe.
pub type Standby = lunet_front_nvme::Standby<LogicalUnit>;

/// The server for NVMe, or the place for it. It goes on when its last portal goes: hosts may not have left yet, and the
/// next portal is its own.
pub struct Second {
    member: Member,
    processors: Processors,
    handle: OnceLock<Handle>,
    server: Mutex<Option<Server>>,
}

impl Second {
    /// The place for a server that has not begun.
    pub fn new(member: Member, processors: Processors) -> Self {
        Self { member, processors, handle: OnceLock::new(), server: Mutex::new(None) }
    }

    /// Asks the server, if it has begun.
    pub fn handle(&self) -> Option<&Handle> {
        self.handle.get()
    }

    /// Has it listen, and ready to begin. It has not begun yet.
    ///
    /// # Errors
    /// The first thing that failed; nothing is left then.
    pub fn prepare(
        &self,
        mut config: lunet_front_nvme::Config<LogicalUnit>,
    ) -> Result<Standby, StartError> {
        debug_assert!(self.handle.get().is_none(), "it begins once");
        config.limits.processors.clone_from(&self.processors);
        lunet_front_nvme::prepare(self.member.clone(), config)
    }

    /// It begins to serve.
    pub fn begin(&self, standby: Standby) {
        let server = standby.begin();
        let fresh = self.handle.set(server.handle()).is_ok();
        debug_assert!(fresh, "it begins once");
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
    }

    /// The addresses that it listens on.
    pub fn portals(&self) -> Vec<SocketAddr> {
        self.handle().map_or_else(Vec::new, Handle::portals)
    }

    /// True if an event loop has failed.
    pub fn failed(&self) -> bool {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        server.as_ref().is_some_and(Server::failed)
    }

    /// The server, if it has begun: whoever takes it stops it.
    pub fn take(&self) -> Option<Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
