//! RDMA connections from the connect request to the established connection.

use lunet_verbs::{CmEvent, CmEventKind, CmId, ConnParams, Error};

use super::super::Shard;
use crate::conn::{Conn, ConnId, Wire};
use crate::front::{AcceptedRdma, Front, RdmaRequest};
use crate::mail::Mail;
use crate::rationed::Topic;
use crate::rdma::{CONNECTION, Endpoint, QueuePair, Refused, Request, token};
use crate::stats::Counts;

/// Rejects a connection for this reason, and tells its client so much of it.
fn reject(id: CmId, private: &[u8], why: Refused) -> Refused {
    // The client may have given up already.
    let _ = id.reject(private);
    why
}

impl<F: Front> Shard<F> {
    /// Handles the events of the listeners: connect requests, and devices that are removed.
    pub(super) fn rdma_requests(&mut self) {
        let mut n = 0;
        loop {
            let listeners = self.rdma.as_mut().and_then(|rdma| rdma.listeners.get_mut(n));
            let Some((listeners, id)) = listeners else { return };
            let CmEvent { token, kind, private, .. } = match listeners.channel.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => {
                    // Listeners that were not readable are still watched: for them this changes nothing.
                    self.front.exec.storage.ring.watch_again(*id);
                    n += 1;
                    continue;
                }
                Err(error) => {
                    return tracing::error!("{}: no more connections: {error}", F::NAMES.rdma);
                }
            };
            match kind {
                CmEventKind::ConnectRequest { id, reads, reads_served } => {
                    // Without addresses it has ended already: dropping the id is enough.
                    let (Some(peer), Some(local)) = (id.peer(), id.local()) else { continue };
                    self.front.protocol.connected();
                    let entry = self.enter(peer.ip(), None);
                    let portal = token as usize;
                    let reads = (reads, reads_served);
                    let logged = self.may_log();
                    let request =
                        Request { id, peer, local, entry, portal, reads, logged, private };
                    self.rdma_request(request);
                }
                CmEventKind::DeviceRemoval => {
                    for device in self.core.rdma.devices(token as usize) {
                        self.lose_named(&device);
                    }
                    // Another shard may have been told before.
                    self.end_listeners();
                }
                // Of a connect request that the client has given up.
                _ => {}
            }
        }
    }

    /// True if this connection may be logged: unknown clients cannot fill the log.
    pub fn may_log(&self) -> bool {
        let kept_back = self.core.rations.grants(Topic::Rdma, self.front.exec.storage.now);
        if let Some(count @ 1..) = kept_back {
            tracing::info!("{}: {count} connections were not logged", F::NAMES.rdma);
        }
        kept_back.is_some()
    }

    /// Passes a connect request to the shard with the fewest connections.
    fn rdma_request(&mut self, request: Request<F>) {
        let Request { peer, local, logged, .. } = request;
        if logged {
            tracing::info!("{}: connect request from {peer} to {local}", F::NAMES.rdma);
        }
        let shard = request.entry.shard();
        if shard == self.number {
            return self.adopt_request(request);
        }
        if self.core.mailboxes()[shard].send(Mail::RdmaRequest(Box::new(request))).is_err() {
            self.front.protocol.turned_away();
        }
    }

    /// Accepts a connection on this shard, or logs why it is refused.
    pub(in crate::shard) fn adopt_request(&mut self, request: Request<F>) {
        let Request { peer, local, logged, .. } = request;
        if let Err(why) = self.accept(request) {
            if logged {
                tracing::warn!("{}: refused {peer} at {local}: {why}", F::NAMES.rdma);
            }
            self.front.protocol.turned_away();
        }
    }

    fn accept(&mut self, request: Request<F>) -> Result<(), Refused> {
        let Request { id, peer, local, entry, portal, reads, logged, private } = request;
        let (reads, reads_served) = reads;
        if self.stopping.is_some() {
            return Err(reject(id, &[], Refused::Stopping));
        }
        let invalidates = match self.invalidates(&id) {
            Some(invalidates) => invalidates,
            None => return Err(reject(id, &F::no_room_for_rdma(), Refused::Gone)),
        };
        let asked = RdmaRequest { private: &private, invalidates, reads };
        let AcceptedRdma { front, private } = match self.front.accept_rdma(asked) {
            Ok(accepted) => accepted,
            Err(rejected) => {
                return Err(reject(id, &rejected.private, Refused::Protocol(rejected.why)));
            }
        };
        let serial = entry.serial();
        id.set_token(CONNECTION | serial);
        let opened = self.open_endpoint(id);
        let (device, endpoint) =
            opened.map_err(|(why, id)| reject(id, &F::no_room_for_rdma(), why))?;
        let limit = self.rdma.as_mut().and_then(|rdma| rdma.pool(device));
        let limit = limit.map_or(reads, |pool| pool.adapter.reads());
        let mut qp = QueuePair::new(device, endpoint, reads.min(limit));
        qp.logged = logged;
        let wire = Wire::Rdma(Box::new(qp));
        let conn = Conn::new(serial, (peer, local, portal), wire, front);
        let slot = self.attach(conn)?;
        let params = ConnParams { reads_served, reads, private: &private };
        let rdma = self.rdma.as_mut();
        let pool = rdma.and_then(|rdma| rdma.pool(device)).ok_or(Refused::Gone)?;
        if let Err(error) = pool.adapter.accept(endpoint, params) {
            pool.close(endpoint);
            self.conns.remove(slot);
            self.front.exec.storage.connections -= 1;
            return Err(error.into());
        }
        entry.keep();
        if logged {
            tracing::info!("{}: accepted {peer} at {local}", F::NAMES.rdma);
        }
        Ok(())
    }

    /// True if Sends to a client that wants to connect may take back its keys. `None`: its device is not in use.
    fn invalidates(&self, id: &CmId) -> Option<bool> {
        let mut devices = self.rdma.as_ref()?.devices.iter().flatten();
        let own = devices.find(|device| device.pool.adapter.is_of(id))?;
        let allowed = self.core.rdma.may_invalidate(own.name());
        Some(allowed && own.pool.adapter.invalidates())
    }

    /// Creates the queue pair of a connection. Returns the index of its device, and its endpoint there. An error
    /// comes with the connection.
    fn open_endpoint(&mut self, mut id: CmId) -> Result<(usize, Endpoint), (Refused, CmId)> {
        let Some(rdma) = &mut self.rdma else { return Err((Refused::Gone, id)) };
        let Some((channel, _)) = &rdma.channel else { return Err((Refused::Gone, id)) };
        if let Err(error) = id.migrate(channel) {
            return Err((error.into(), id));
        }
        let mut devices = rdma.devices.iter_mut().enumerate();
        let own = devices.find_map(|(index, device)| {
            let device = device.as_mut().filter(|device| device.pool.adapter.is_of(&id))?;
            Some((index, &mut device.pool))
        });
        let Some((index, pool)) = own else { return Err((Refused::Gone, id)) };
        match pool.open(id) {
            Ok(endpoint) => Ok((index, endpoint)),
            Err(not) => Err((not.why.into(), not.id)),
        }
    }

    /// Posts the receives of a connection, and adds it to the shard's connections.
    ///
    /// # Errors
    /// Why it is refused; its queue pair is closed.
    pub fn attach(&mut self, conn: Conn<F::Conn>) -> Result<ConnId, Refused> {
        let Wire::Rdma(qp) = &conn.wire else { return Err(Refused::Gone) };
        let (index, endpoint) = (qp.device, qp.endpoint);
        let slot = self.conns.next_id();
        let arena = self.front.exec.storage.ring.arena();
        let rdma = self.rdma.as_mut().ok_or(Refused::Gone)?;
        let taken: usize = rdma.devices.iter().flatten().map(|device| device.pool.memory()).sum();
        let pool = rdma.pool(index).ok_or(Refused::Gone)?;
        let needed = pool.needed(endpoint);
        if taken + needed > arena.total_bytes() / 2 {
            pool.adapter.reject(endpoint, &F::no_room_for_rdma());
            return Err(Refused::Memory { needed, fewer: F::NAMES.fewer });
        }
        if !pool.attach(endpoint, token(slot, 0), arena) {
            return Err(Error::NoBuffers.into());
        }
        self.conns.insert(conn);
        self.front.exec.storage.connections += 1;
        self.touch(slot);
        Ok(slot)
    }

    /// A connection is established.
    pub(super) fn established(&mut self, slot: ConnId) {
        let conn = &mut self.conns[slot];
        let (Wire::Rdma(qp), Some(rdma)) = (&mut conn.wire, &self.rdma) else { return };
        let device = rdma.devices.get(qp.device).and_then(Option::as_ref);
        let path = device.and_then(|device| device.pool.adapter.path(qp.endpoint));
        if let (Some(path), Some(info)) = (path, device.and_then(|device| device.info.as_ref())) {
            qp.facts.device = info.device.name().to_owned();
            qp.facts.gid = info.gid(path.port, path.gid_index);
            qp.facts.path_mtu = path.mtu.bytes();
        }
        if qp.logged {
            self.log_established(slot);
        }
    }

    /// A session has logged in: its connection and its end are logged, however many others connect.
    pub fn log_session(&mut self, slot: ConnId) {
        let Wire::Rdma(qp) = &mut self.conns[slot].wire else { return };
        // Without facts, the event that the connection is established is still to come.
        if !std::mem::replace(&mut qp.logged, true) && !qp.facts.device.is_empty() {
            self.log_established(slot);
        }
    }

    fn log_established(&self, slot: ConnId) {
        let conn = &self.conns[slot];
        let Wire::Rdma(qp) = &conn.wire else { return };
        let (peer, local, facts) = (conn.peer, conn.local, &qp.facts);
        tracing::info!(
            "{}: established {peer} at {local} (device {}, GID {}, path MTU {} bytes, queue depth {})",
            F::NAMES.rdma,
            facts.device,
            facts.gid,
            facts.path_mtu,
            F::queue_depth(&self.core)
        );
    }
}
