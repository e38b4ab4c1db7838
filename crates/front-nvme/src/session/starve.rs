//! Data of command capsules that waits for memory.
//!
//! A host may send the data of many commands at once, and more of it than there is memory for. It cannot be told to send
//! it later: a command that is to be tried again is, five times by Linux, and has failed then. So nothing more is
//! received on its queue until there is memory, which is the case when commands of that queue have ended, at the latest:
//! what is set aside for the queue is not given to data that was asked for and is behind this.

use std::time::Duration;

use lunet_server::conn::ConnId;
use lunet_volume::Face;

use super::{Conn, Shard, drive};
use crate::connection::Starved;

/// How long data waits if nothing of its queue can end before it has come.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often is looked whether others have given memory back.
const LOOK: Duration = Duration::from_millis(100);

/// Data begins to wait, with what has come behind it.
pub(super) fn begin(now: Duration, conn: &mut Conn, rest: &[u8]) {
    conn.front.starved = Some(Starved { since: now, look_at: now + LOOK, unread: rest.into() });
}

/// Sees whether there is memory now.
pub(super) fn look<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId) {
    let engine = &shard.front;
    let now = engine.exec.storage.now;
    let Some(conn) = shard.conns.get_mut(slot) else { return };
    let Some(Starved { since, unread, .. }) = conn.front.starved.take() else { return };
    if let Some(queue) = &mut conn.front.queue {
        // Its host may well have sent something that was not received.
        queue.member.heard(now, &mut queue.told);
    }
    let over = now >= since + PATIENCE && is_in_vain(conn);
    let mut taken = 0;
    drive(conn, engine, |proto, cx| {
        if !proto.feed(cx.site) && over {
            proto.refuse_starved();
        }
        taken = proto.rx_bytes(&unread, cx);
    });
    if !conn.front.proto.is_starved() {
        return shard.touch(slot);
    }
    begin(if taken == 0 { since } else { now }, conn, &unread[taken..]);
    if let Some(starved) = &mut conn.front.starved {
        starved.look_at = now + LOOK;
    }
}

/// True if no command of the queue can end and give memory back: there is none, or its data is behind that which waits.
fn is_in_vain(conn: &Conn) -> bool {
    conn.front.proto.outstanding() <= 1 || conn.front.proto.owes_data()
}
