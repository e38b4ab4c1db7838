//! What a disk is for, and the settings that follow.

use serde::{Deserialize, Serialize};

use crate::address::Transport;

/// What the disk is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Disks of virtual machines, which would rather wait than see an error.
    #[default]
    Vm,
    /// A database: short queues, and an error in the kernel's usual time.
    Database,
    /// Large sequential reads and writes.
    Backup,
}

/// A setting with its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// Name of the setting, as the initiator has it.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Why this value.
    pub why: &'static str,
}

fn choice(name: &str, value: impl ToString, why: &'static str) -> Choice {
    Choice { name: name.to_owned(), value: value.to_string(), why }
}

impl Profile {
    /// The name that options have.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Database => "database",
            Self::Backup => "backup",
        }
    }

    /// Settings of a session of open-iscsi, with one path or with several.
    #[must_use]
    pub fn of_session(self, several: bool) -> Vec<Choice> {
        let mut choices = match self {
            Self::Database => vec![
                choice("node.session.cmds_max", 128, "open-iscsi's own: short queues, short waits"),
                choice(
                    "node.session.queue_depth",
                    32,
                    "open-iscsi's own: a request waits behind few others",
                ),
            ],
            Self::Vm | Self::Backup => vec![
                choice(
                    "node.session.cmds_max",
                    512,
                    "128 are shared by all disks of a session; HPE recommends 512",
                ),
                choice(
                    "node.session.queue_depth",
                    256,
                    "32 keep one drive busy, not a pool; HPE recommends 256",
                ),
            ],
        };
        choices.push(match (several, self) {
            (true, _) => {
                let why = "I/O of a lost path goes to another one after 15 s, not 120";
                choice("node.session.timeo.replacement_timeout", 15, why)
            }
            (false, Self::Database) => choice(
                "node.session.timeo.replacement_timeout",
                120,
                "open-iscsi's own: then I/O fails",
            ),
            (false, _) => {
                let why =
                    "there is no other path: I/O waits ten minutes for the server, and then fails";
                choice("node.session.timeo.replacement_timeout", 600, why)
            }
        });
        let silent = "a path that is silent is noticed within 10 s";
        choices.push(choice("node.conn[0].timeo.noop_out_interval", 5, silent));
        choices.push(choice("node.conn[0].timeo.noop_out_timeout", 5, silent));
        choices
    }

    /// Options of `nvme connect`.
    #[must_use]
    pub fn of_controller(self, transport: Transport) -> Vec<Choice> {
        let mut choices = vec![match self {
            Self::Database => choice(
                "ctrl-loss-tmo",
                600,
                "the kernel's own: after ten minutes I/O fails and the disk is gone",
            ),
            Self::Vm | Self::Backup => choice(
                "ctrl-loss-tmo",
                -1,
                "the disk comes back however long the server is away; I/O waits",
            ),
        }];
        if transport == Transport::NvmeTcp {
            choices.push(choice(
                "reconnect-delay",
                2,
                "a restart of the server takes a second, not ten",
            ));
        }
        choices
    }

    /// How the kernel chooses among several paths of an NVMe subsystem: `kernel` is its version.
    #[must_use]
    pub fn io_policy(self, kernel: (u32, u32)) -> Choice {
        if self != Self::Backup && kernel >= (6, 11) {
            let why =
                "the path with the shortest queue; the kernel's own, numa, uses one path only";
            return choice("iopolicy", "queue-depth", why);
        }
        choice(
            "iopolicy",
            "round-robin",
            "all paths carry; the kernel's own, numa, uses one path only",
        )
    }

    /// Read-ahead of the disk in KiB, if it is not the kernel's own.
    #[must_use]
    pub fn read_ahead(self) -> Option<Choice> {
        let why = "long sequential reads of files keep the server busy; the kernel's own is 128";
        (self == Self::Backup).then(|| choice("read_ahead_kb", 4096, why))
    }
}
