//! How connections over RDMA come to a shard.

use lunet_iscsi::iser::ConnectData;
use lunet_verbs::{CmEvent, CmEventKind, CmId, ConnParams, Error};

use super::super::Shard;
use crate::conn::{Conn, ConnId, Wire};
use crate::mail::Mail;
use crate::rationed::Topic;
use crate::rdma::{self, CONNECTION, Endpoint, Link, Request, token};

/// Why a connection of a device that was lost meanwhile is refused.
const GONE: &str = "the RDMA device is gone";

impl Shard {
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
                    self.engine.exec.storage.ring.watch_again(*id);
                    n += 1;
                    continue;
                }
                Err(error) => return tracing::error!("iSER: no more connections: {error}"),
            };
            match kind {
                CmEventKind::ConnectRequest { id, reads, reads_served } => {
                    let data = ConnectData::parse(&private);
                    // One without addresses has ended already: dropping it is the answer.
                    let (Some(peer), Some(local)) = (id.peer(), id.local()) else { continue };
                    self.engine.protocol.connections += 1;
                    let entry = self.enter(peer.ip());
                    let portal = token as usize;
                    let reads = (reads, reads_served);
                    let logged = self.may_log();
                    let request = Request { id, peer, local, entry, portal, reads, logged, data };
                    self.rdma_request(request);
                }
                CmEventKind::DeviceRemoval => {
                    for device in self.core.iser.devices(token as usize) {
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
    pub(super) fn may_log(&self) -> bool {
        let kept_back = self.core.rations.grants(Topic::Iser, self.engine.exec.storage.now);
        if let Some(count @ 1..) = kept_back {
            tracing::info!("iSER: {count} connections were not logged");
        }
        kept_back.is_some()
    }

    /// A connect request: it goes to the shard with the fewest connections.
    fn rdma_request(&mut self, request: Request) {
        let Request { peer, local, logged, .. } = request;
        if logged {
            tracing::info!("iSER: connect request from {peer} to {local}");
        }
        let shard = request.entry.shard();
        if shard == self.number {
            return self.adopt_request(request);
        }
        if self.core.mailboxes()[shard].send(Mail::RdmaRequest(Box::new(request))).is_err() {
            self.engine.protocol.turned_away += 1;
        }
    }

    /// Takes a connection in.
    pub(in crate::shard) fn adopt_request(&mut self, request: Request) {
        let Request { peer, local, logged, .. } = request;
        if let Err(why) = self.accept(request) {
            if logged {
                tracing::warn!("iSER: refused {peer} at {local}: {why}");
            }
            self.engine.protocol.turned_away += 1;
        }
    }

    fn accept(&mut self, request: Request) -> Result<(), String> {
        let Request { id, peer, local, entry, portal, reads, logged, data } = request;
        let (reads, reads_served) = reads;
        if self.stopping.is_some() {
            // It may have gone by itself.
            let _ = id.reject(&[]);
            return Err("this server stops".into());
        }
        let serial = entry.serial();
        id.set_token(CONNECTION | serial);
        let opened = self.open_endpoint(id);
        let (port, endpoint, invalidates) = opened.map_err(|(why, id)| {
            // It may have gone by itself.
            let _ = id.reject(&[]);
            why
        })?;
        let reply = data.reply(invalidates);
        let proto =
            rdma::connection(&self.core.options, reply.invalidate, self.engine.exec.storage.now);
        let mut link = Link::new(port, endpoint, reads);
        link.logged = logged;
        let conn = Conn::new(serial, (peer, local, portal), Wire::Rdma(Box::new(link)), proto);
        let slot = self.join(conn)?;
        let private = reply.to_bytes();
        let params = ConnParams { reads_served, reads, private: &private };
        let rdma = self.rdma.as_mut();
        let plug = rdma.and_then(|rdma| rdma.plug(port)).ok_or(GONE)?;
        if let Err(error) = plug.port.accept(endpoint, params) {
            plug.close(endpoint);
            self.conns.remove(slot);
            self.engine.exec.storage.connections -= 1;
            return Err(error.to_string());
        }
        entry.keep();
        if logged {
            tracing::info!("iSER: accepted {peer} at {local}");
        }
        Ok(())
    }

    /// Makes the queue pair of a connection, and tells its port, its name there, and whether its Sends may
    /// take back keys. An error comes with the connection.
    fn open_endpoint(&mut self, mut id: CmId) -> Result<(usize, Endpoint, bool), (String, CmId)> {
        let Some(rdma) = &mut self.rdma else { return Err((GONE.into(), id)) };
        let Some((channel, _)) = &rdma.channel else { return Err((GONE.into(), id)) };
        if let Err(error) = id.migrate(channel) {
            return Err((error.to_string(), id));
        }
        let mut ports = rdma.ports.iter_mut().enumerate();
        let own = ports.find_map(|(index, port)| {
            let place = port.as_mut().filter(|place| place.plug.port.is_of(&id))?;
            Some((index, &mut place.plug))
        });
        let Some((index, plug)) = own else { return Err((GONE.into(), id)) };
        match plug.open(id) {
            Ok(endpoint) => Ok((index, endpoint, plug.port.invalidates())),
            Err(not) => Err((not.why.to_string(), not.id)),
        }
    }

    /// Gives a connection its receives, and a place on the shard. What was refused leaves nothing behind.
    pub(super) fn join(&mut self, conn: Conn) -> Result<ConnId, String> {
        let Wire::Rdma(link) = &conn.wire else { return Err(GONE.into()) };
        let (index, endpoint) = (link.port, link.endpoint);
        let slot = self.conns.next_id();
        let arena = self.engine.exec.storage.ring.arena();
        let rdma = self.rdma.as_mut().ok_or(GONE)?;
        let taken: usize = rdma.ports.iter().flatten().map(|place| place.plug.memory()).sum();
        let plug = rdma.plug(index).ok_or(GONE)?;
        let needed = plug.needed(endpoint);
        if taken + needed > arena.total_bytes() / 2 {
            plug.port.close(endpoint);
            return Err(format!(
                "its queues need {} KiB, and half of this shard's buffer memory is for data: give \
                 server.buffer-memory more, or iscsi.queue-depth less",
                needed / 1024
            ));
        }
        if !plug.join(endpoint, token(slot, 0), arena) {
            return Err(Error::NoBuffers.to_string());
        }
        self.conns.insert(conn);
        self.engine.exec.storage.connections += 1;
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
    pub(in crate::shard) fn log_session(&mut self, slot: ConnId) {
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
            "iSER: established {peer} at {local} (device {}, GID {}, path MTU {} bytes, queue depth {})",
            facts.device,
            facts.gid,
            facts.path_mtu,
            self.core.options.queue_depth
        );
    }
}
