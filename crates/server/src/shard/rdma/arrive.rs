//! How connections over RDMA come to a shard.

use lunet_verbs::{CmEvent, CmEventKind, CmId, ConnParams, Error};

use super::super::Shard;
use crate::conn::{Conn, ConnId, Wire};
use crate::front::{AcceptedRdma, Front};
use crate::mail::Mail;
use crate::rationed::Topic;
use crate::rdma::{CONNECTION, Endpoint, Link, Refused, Request, token};
use crate::stats::Counts;

impl<F: Front> Shard<F> {
    /// Somebody wants to connect.
    pub(super) fn rdma_requests(&mut self) {
        let mut n = 0;
        loop {
            let listening = self.rdma.as_mut().and_then(|rdma| rdma.listening.get_mut(n));
            let Some((listening, id)) = listening else { return };
            let CmEvent { token, kind, private, .. } = match listening.channel.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => {
                    // Those that were not readable are watched still.
                    self.front.exec.storage.ring.watch_again(*id);
                    n += 1;
                    continue;
                }
                Err(error) => {
                    return tracing::error!("{}: no more connections: {error}", F::WORDS.rdma);
                }
            };
            match kind {
                CmEventKind::ConnectRequest { id, reads, reads_served } => {
                    // One without addresses has ended already: dropping it is the answer.
                    let (Some(peer), Some(local)) = (id.peer(), id.local()) else { continue };
                    self.front.protocol.connected();
                    let entry = self.enter(peer.ip());
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
                // Of a connection that was given up before it began.
                _ => {}
            }
        }
    }

    /// True if the steps of a connection may be logged: strangers cannot fill the log.
    pub fn may_log(&self) -> bool {
        let kept_back = self.core.rations.grants(Topic::Rdma, self.front.exec.storage.now);
        if let Some(count @ 1..) = kept_back {
            tracing::info!("{}: {count} connections were not logged", F::WORDS.rdma);
        }
        kept_back.is_some()
    }

    /// A connect request: it goes to the shard with the fewest connections.
    fn rdma_request(&mut self, request: Request<F>) {
        let Request { peer, local, logged, .. } = request;
        if logged {
            tracing::info!("{}: connect request from {peer} to {local}", F::WORDS.rdma);
        }
        let shard = request.entry.shard();
        if shard == self.number {
            return self.adopt_request(request);
        }
        if self.core.mailboxes()[shard].send(Mail::RdmaRequest(Box::new(request))).is_err() {
            self.front.protocol.turned_away();
        }
    }

    /// Takes a connection in.
    pub(in crate::shard) fn adopt_request(&mut self, request: Request<F>) {
        let Request { peer, local, logged, .. } = request;
        if let Err(why) = self.accept(request) {
            if logged {
                tracing::warn!("{}: refused {peer} at {local}: {why}", F::WORDS.rdma);
            }
            self.front.protocol.turned_away();
        }
    }

    fn accept(&mut self, request: Request<F>) -> Result<(), Refused> {
        let Request { id, peer, local, entry, portal, reads, logged, private } = request;
        let (reads, reads_served) = reads;
        if self.stopping.is_some() {
            // It may have gone by itself.
            let _ = id.reject(&[]);
            return Err(Refused::Stopping);
        }
        let serial = entry.serial();
        id.set_token(CONNECTION | serial);
        let opened = self.open_endpoint(id);
        let (port, endpoint, invalidates) = opened.map_err(|(why, id)| {
            // It may have gone by itself.
            let _ = id.reject(&[]);
            why
        })?;
        let accepted = self.front.accept_rdma(&private, invalidates);
        let Some(AcceptedRdma { front, private }) = accepted else {
            let plug = self.rdma.as_mut().and_then(|rdma| rdma.plug(port));
            plug.into_iter().for_each(|plug| plug.port.close(endpoint));
            return Err(Refused::NotServed);
        };
        let mut link = Link::new(port, endpoint, reads);
        link.logged = logged;
        let wire = Wire::Rdma(Box::new(link));
        let conn = Conn::new(serial, (peer, local, portal), wire, front);
        let slot = self.join(conn)?;
        let params = ConnParams { reads_served, reads, private: &private };
        let rdma = self.rdma.as_mut();
        let plug = rdma.and_then(|rdma| rdma.plug(port)).ok_or(Refused::Gone)?;
        if let Err(error) = plug.port.accept(endpoint, params) {
            plug.close(endpoint);
            self.conns.remove(slot);
            self.front.exec.storage.connections -= 1;
            return Err(error.into());
        }
        entry.keep();
        if logged {
            tracing::info!("{}: accepted {peer} at {local}", F::WORDS.rdma);
        }
        Ok(())
    }

    /// Makes the queue pair of a connection, and tells its port, its name there, and whether its Sends may
    /// take back keys. An error comes with the connection.
    fn open_endpoint(&mut self, mut id: CmId) -> Result<(usize, Endpoint, bool), (Refused, CmId)> {
        let Some(rdma) = &mut self.rdma else { return Err((Refused::Gone, id)) };
        let Some((channel, _)) = &rdma.channel else { return Err((Refused::Gone, id)) };
        if let Err(error) = id.migrate(channel) {
            return Err((error.into(), id));
        }
        let mut ports = rdma.ports.iter_mut().enumerate();
        let own = ports.find_map(|(index, port)| {
            let place = port.as_mut().filter(|place| place.plug.port.is_of(&id))?;
            Some((index, &mut place.plug))
        });
        let Some((index, plug)) = own else { return Err((Refused::Gone, id)) };
        match plug.open(id) {
            Ok(endpoint) => Ok((index, endpoint, plug.port.invalidates())),
            Err(not) => Err((not.why.into(), not.id)),
        }
    }

    /// Gives a connection its receives, and a place on the shard.
    ///
    /// # Errors
    /// Why it is refused; it leaves nothing behind.
    pub fn join(&mut self, conn: Conn<F::Conn>) -> Result<ConnId, Refused> {
        let Wire::Rdma(link) = &conn.wire else { return Err(Refused::Gone) };
        let (index, endpoint) = (link.port, link.endpoint);
        let slot = self.conns.next_id();
        let arena = self.front.exec.storage.ring.arena();
        let rdma = self.rdma.as_mut().ok_or(Refused::Gone)?;
        let taken: usize = rdma.ports.iter().flatten().map(|place| place.plug.memory()).sum();
        let plug = rdma.plug(index).ok_or(Refused::Gone)?;
        let needed = plug.needed(endpoint);
        if taken + needed > arena.total_bytes() / 2 {
            plug.port.close(endpoint);
            return Err(Refused::Memory { needed, fewer: F::WORDS.fewer });
        }
        if !plug.join(endpoint, token(slot, 0), arena) {
            return Err(Error::NoBuffers.into());
        }
        self.conns.insert(conn);
        self.front.exec.storage.connections += 1;
        self.touch(slot);
        Ok(slot)
    }

    /// A connection stands.
    pub(super) fn established(&mut self, slot: ConnId) {
        let conn = &mut self.conns[slot];
        let (Wire::Rdma(link), Some(rdma)) = (&mut conn.wire, &self.rdma) else { return };
        let place = rdma.ports.get(link.port).and_then(Option::as_ref);
        let path = place.and_then(|place| place.plug.port.path(link.endpoint));
        if let (Some(path), Some(opened)) = (path, place.and_then(|place| place.opened.as_ref())) {
            link.facts.device = opened.device.name().to_owned();
            link.facts.gid = opened.gid(path.port, path.gid_index);
            link.facts.path_mtu = path.mtu.bytes();
        }
        if link.logged {
            self.log_established(slot);
        }
    }

    /// A session has logged in: the log has its way, and its end, whoever else connects.
    pub fn log_session(&mut self, slot: ConnId) {
        let Wire::Rdma(link) = &mut self.conns[slot].wire else { return };
        // Without facts, it is yet to be told that the connection stands.
        if !std::mem::replace(&mut link.logged, true) && !link.facts.device.is_empty() {
            self.log_established(slot);
        }
    }

    fn log_established(&self, slot: ConnId) {
        let conn = &self.conns[slot];
        let Wire::Rdma(link) = &conn.wire else { return };
        let (peer, local, facts) = (conn.peer, conn.local, &link.facts);
        tracing::info!(
            "{}: established {peer} at {local} (device {}, GID {}, path MTU {} bytes, queue depth {})",
            F::WORDS.rdma,
            facts.device,
            facts.gid,
            facts.path_mtu,
            F::queue_depth(&self.core)
        );
    }
}
