//! `lunet sessions`

use std::time::Duration;

use lunet_api::{Controller, OverTcp, Queue, RdmaPath, Session};

use super::layout::harmless;
use lunet_config::units;

/// The width of wrapped lines, in characters.
const WIDTH: usize = 100;

/// Describes the sessions, one paragraph each.
pub fn sessions(sessions: &[Session]) -> String {
    let mut out = match sessions.len() {
        0 => "no sessions\n".to_owned(),
        1 => "1 session\n".to_owned(),
        n => format!("{n} sessions\n"),
    };
    for session in sessions {
        out.push('\n');
        paragraph(&mut out, session);
    }
    out
}

fn paragraph(out: &mut String, session: &Session) {
    let target = session.target.as_deref().unwrap_or("(discovery)");
    let user = session.user.as_deref().map(|user| format!(" as {}", harmless(user)));
    let user = user.unwrap_or_default();
    out.push_str(&format!("{}{user} -> {}\n", harmless(&session.initiator), harmless(target)));
    let (peer, portal, transport) = (&session.peer, &session.portal, &session.transport);
    out.push_str(&format!("  from {peer} to {portal} over {transport}, "));
    match &session.controller {
        Some(controller) => self::controller(out, controller),
        None => out.push_str(&format!(
            "shard {}, ISID {}, TSIH {}\n",
            session.shard, session.isid, session.tsih
        )),
    }
    if let Some(rdma) = &session.rdma {
        let (device, gid) = (harmless(&rdma.device), harmless(&rdma.gid));
        out.push_str(&format!(
            "  device {device}, GID {gid}, path MTU {} bytes, queue depth {}",
            rdma.path_mtu_bytes, rdma.queue_depth
        ));
        if session.controller.is_none() {
            let RdmaPath { rdma_reads, rdma_writes, .. } = rdma;
            out.push_str(&format!(", {rdma_reads} RDMA reads, {rdma_writes} RDMA writes"));
        }
        out.push('\n');
    }
    if let Some(OverTcp { iser_offered, nvme_rdma_offered, why: Some(why), .. }) = &session.tcp {
        let offered = *iser_offered || *nvme_rdma_offered;
        let what = match (session.controller.is_some(), offered) {
            (false, true) => "could use iSER",
            (false, false) => "no iSER here",
            (true, true) => "could use RDMA",
            (true, false) => "no RDMA here",
        };
        out.push_str(&format!("  {what}: {}\n", harmless(why)));
    }
    let commands = match session.commands_in_flight {
        1 => "1 command".to_owned(),
        n => format!("{n} commands"),
    };
    let time = units::duration(Duration::from_secs(session.connected_seconds));
    match session.controller {
        Some(_) => out.push_str(&format!("  connected for {time}\n")),
        None => out.push_str(&format!("  connected for {time}, {commands} at work\n")),
    }
    let keys = session.keys.iter().map(|(key, value)| harmless(&format!("{key}={value}")));
    let keys: Vec<String> = keys.collect();
    if !keys.is_empty() {
        out.push_str(&wrapped(&keys.join(" ")));
    }
}

/// The rest of the line of a controller, and the line of its queues.
fn controller(out: &mut String, controller: &Controller) {
    let Controller { cntlid, host_id, namespaces, keep_alive_ms, .. } = controller;
    let keep_alive = match keep_alive_ms {
        0 => "no keep alive timer".to_owned(),
        ms => format!("keep alive {}", units::duration(Duration::from_millis(*ms))),
    };
    let namespaces = match namespaces {
        1 => "1 namespace".to_owned(),
        n => format!("{n} namespaces"),
    };
    let proved = if controller.authenticated { ", authenticated" } else { "" };
    let tls = if controller.tls.is_some() { ", TLS" } else { "" };
    let host = harmless(host_id);
    out.push_str(&format!("controller {cntlid}, {namespaces}, {keep_alive}{proved}{tls}\n"));
    out.push_str(&format!("  host {host}\n"));
    let queue = |queue: &Queue| match queue.qid {
        0 => format!("admin queue on shard {}", queue.shard),
        qid => format!("{qid} on {}", queue.shard),
    };
    let queues: Vec<String> = controller.queues.iter().map(queue).collect();
    if !queues.is_empty() {
        out.push_str(&wrapped(&format!("queues: {}", queues.join(", "))));
    }
}

/// An indented paragraph of lines that end between words.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::from(" ")];
    for word in text.split(' ') {
        let line = lines.last_mut().filter(|line| {
            let begun = line.trim_start() != "";
            !begun || line.chars().count() + 1 + word.chars().count() <= WIDTH
        });
        match line {
            Some(line) => line.extend([" ", word]),
            None => lines.push(format!("  {word}")),
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    fn told(answer: &Value) -> String {
        sessions(&Vec::deserialize(answer).expect("an answer"))
    }

    #[test]
    fn a_session_is_a_paragraph() {
        let answer = json!([{
            "initiator": "iqn.2008-11.org.linux-kvm:vm1", "target": "iqn.2026-11.local.lunet:demo",
            "peer": "127.0.0.1:51234", "portal": "127.0.0.1:3260", "transport": "tcp",
            "isid": "0x800000000001", "tsih": 3, "shard": 1, "connected_seconds": 200,
            "user": "vm1", "commands_in_flight": 1, "keys": [["HeaderDigest", "None"], ["DataDigest", "CRC32C"]],
            "added_later": true,
        }]);
        assert_eq!(
            told(&answer),
            "1 session\n\
             \n\
             iqn.2008-11.org.linux-kvm:vm1 as vm1 -> iqn.2026-11.local.lunet:demo\n  \
               from 127.0.0.1:51234 to 127.0.0.1:3260 over tcp, shard 1, ISID 0x800000000001, TSIH 3\n  \
               connected for 3 min 20 s, 1 command at work\n  \
               HeaderDigest=None DataDigest=CRC32C\n"
        );
        let mut tcp = answer.clone();
        tcp[0]["tcp"] = json!({"rdma_device": "mlx5_0", "iser_offered": true, "why": "chose TCP"});
        let text = told(&tcp);
        assert!(text.contains("\n  could use iSER: chose TCP\n  connected for"), "{text}");
        tcp[0]["tcp"] = json!({"rdma_device": null, "iser_offered": false, "why": "no device"});
        let text = told(&tcp);
        assert!(text.contains("\n  no iSER here: no device\n"), "{text}");
        tcp[0]["tcp"]["why"] = json!(null);
        assert!(!told(&tcp).contains("iSER"), "nothing is expected there");
        let mut iser = answer;
        iser[0]["transport"] = json!("iser");
        iser[0]["rdma"] = json!({
            "device": "mlx5_0", "gid": "::ffff:192.0.2.10", "path_mtu_bytes": 4096,
            "queue_depth": 128, "rdma_reads": 7, "rdma_writes": 900,
        });
        let text = told(&iser);
        assert!(text.contains(" over iser, shard 1"), "{text}");
        assert!(
            text.contains(
                "\n  device mlx5_0, GID ::ffff:192.0.2.10, path MTU 4096 bytes, queue depth 128, \
                 7 RDMA reads, 900 RDMA writes\n"
            ),
            "{text}"
        );
        assert_eq!(told(&json!([])), "no sessions\n");
    }

    #[test]
    fn a_controller_is_a_paragraph() {
        let answer = json!([{
            "initiator": "nqn.2026-11.l:h", "target": "nqn.2026-11.l:s", "peer": "192.0.2.7:51234",
            "portal": "192.0.2.1:4420", "transport": "nvme-tcp", "shard": 2, "connected_seconds": 9,
            "controller": {
                "cntlid": 4, "host_id": "0f01fb42-9f7f-4856-b0b3-51e60b8de349", "namespaces": 2,
                "keep_alive_ms": 5000, "queues": [{"qid": 0, "shard": 2}, {"qid": 1, "shard": 3}],
            },
        }]);
        assert_eq!(
            told(&answer),
            "1 session\n\n\
             nqn.2026-11.l:h -> nqn.2026-11.l:s\n  \
               from 192.0.2.7:51234 to 192.0.2.1:4420 over nvme-tcp, controller 4, 2 namespaces, keep alive 5 s\n  \
               host 0f01fb42-9f7f-4856-b0b3-51e60b8de349\n  \
               queues: admin queue on shard 2, 1 on 3\n  \
               connected for 9 s\n"
        );
        let mut tcp = answer.clone();
        tcp[0]["tcp"] =
            json!({"rdma_device": "mlx5_0", "nvme_rdma_offered": true, "why": "chose TCP"});
        assert!(told(&tcp).contains("  could use RDMA: chose TCP\n"), "{}", told(&tcp));
        tcp[0]["tcp"] = json!({"rdma_device": null, "why": "no device"});
        assert!(told(&tcp).contains("  no RDMA here: no device\n"), "{}", told(&tcp));
        let mut rdma = answer;
        rdma[0]["transport"] = json!("nvme-rdma");
        rdma[0]["rdma"] = json!({
            "device": "mlx5_0", "gid": "::ffff:192.0.2.10", "path_mtu_bytes": 4096, "queue_depth": 128,
        });
        let text = told(&rdma);
        let path =
            "\n  device mlx5_0, GID ::ffff:192.0.2.10, path MTU 4096 bytes, queue depth 128\n";
        assert!(text.contains(" over nvme-rdma, controller 4") && text.contains(path), "{text}");
    }
}
