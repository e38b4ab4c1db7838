//! The keys of `lunet.toml`: their tables, types and defaults. The reader refuses every other
//! key, and a test holds docs/configuration.md to this list.

/// One key of a table.
#[derive(Debug)]
pub struct Key {
    /// The name, as written in the file.
    pub name: &'static str,
    /// The type, in the words of docs/configuration.md.
    pub kind: &'static str,
    /// The value that is used if the key is left out, as it would be written in the file, or
    /// words in parentheses where no value can be written down.
    pub default: &'static str,
}

/// One kind of table.
#[derive(Debug)]
pub struct Table {
    /// The heading, as written in the file; `NAME` stands for a name that is the user's own.
    pub heading: &'static str,
    /// Keys that the table may have, in the order of the documentation.
    pub keys: &'static [Key],
}

impl Table {
    /// True if the table has a key with this name.
    pub fn has(&self, name: &str) -> bool {
        self.keys.iter().any(|key| key.name == name)
    }

    /// The names of all keys.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }
}

/// A key that was once there. Files that still have it are read as if they had not, with a note, so that no
/// server stays down after an upgrade because of a line that does nothing.
#[derive(Debug)]
pub struct Retired {
    /// Heading of its table: `[server]`.
    pub heading: &'static str,
    /// The name, as written in the file.
    pub name: &'static str,
    /// Why it is gone, in one sentence without a full stop.
    pub why: &'static str,
}

/// All of them.
pub const RETIRED: &[Retired] = &[Retired {
    heading: "[server]",
    name: "coalesce",
    why: "has no effect any more: letting commands gather cost more than it saved; remove the line, or \
          let `lunet config migrate` do it",
}];

/// The version of the file that this lunet writes and reads, and that a file has which says none. It rises when a key
/// goes or changes its meaning; a key that comes does not change it.
pub const VERSION: u32 = 2;

/// What became of a key that is in no table any more.
pub fn retired(heading: &str, name: &str) -> Option<&'static Retired> {
    RETIRED.iter().find(|key| (key.heading, key.name) == (heading, name))
}

const fn key(name: &'static str, kind: &'static str, default: &'static str) -> Key {
    Key { name, kind, default }
}

/// The tables at the top of the file.
pub const ROOT: Table = Table {
    heading: "",
    keys: &[
        key("version", "integer", "(2)"),
        key("server", "table", "(all defaults)"),
        key("iscsi", "table", "(all defaults)"),
        key("portal", "array of tables", "(127.0.0.1:3260)"),
        key("volumes", "table of tables", "(none)"),
        key("target", "array of tables", "(required, or subsystem)"),
        key("subsystem", "array of tables", "(none)"),
        key("group", "table of tables", "(none)"),
        key("limit", "array of tables", "(none)"),
        key("nvme", "table", "(all defaults)"),
        key("control", "table", "(all defaults)"),
        key("sandbox", "table", "(all defaults)"),
        key("discovery", "table", "(for everybody)"),
    ],
};

/// `[server]`
pub const SERVER: Table = Table {
    heading: "[server]",
    keys: &[
        key("data", "path", "\"./lunet-data\""),
        key("control-socket", "path", "(lunet.sock in data)"),
        key("shards", "integer", "(by links and cores)"),
        key("processors", "string", "(any)"),
        key("driver", "string", "\"auto\""),
        key("busy-poll", "`\"auto\"` or duration", "\"auto\""),
        key("send-with-invalidate", "string", "\"auto\""),
        key("zero-copy-send", "string", "\"auto\""),
        key("buffer-memory", "size", "\"64MiB\""),
        key("max-sessions", "integer", "1024"),
        key("login-timeout", "duration", "\"15s\""),
        key("shutdown-grace", "duration", "\"3s\""),
        key("alua", "string", "\"explicit\""),
        key("log-level", "string", "\"info\""),
    ],
};

/// `[iscsi]`
pub const ISCSI: Table = Table {
    heading: "[iscsi]",
    keys: &[
        key("max-recv-data-segment-length", "size", "\"256KiB\""),
        key("first-burst-length", "size", "\"256KiB\""),
        key("max-burst-length", "size", "\"16MiB\""),
        key("max-outstanding-r2t", "integer", "8"),
        key("initial-r2t", "boolean", "false"),
        key("immediate-data", "boolean", "true"),
        key("header-digest", "string", "\"allow\""),
        key("data-digest", "string", "\"allow\""),
        key("queue-depth", "integer", "128"),
        key("ping-interval", "duration", "\"30s\""),
        key("ping-timeout", "duration", "\"30s\""),
        key("data-timeout", "duration", "\"30s\""),
    ],
};

/// `[[portal]]`
pub const PORTAL: Table = Table {
    heading: "[[portal]]",
    keys: &[
        key("address", "string", "(required)"),
        key("tag", "integer", "1"),
        key("group-state", "string", "\"optimized\""),
        key("preferred", "boolean", "false"),
        key(
            "transport",
            "array of strings",
            "(TCP and iSER, where an RDMA device carries the address)",
        ),
        key("tls", "string", "\"allowed\""),
    ],
};

/// `[volumes.NAME]`
pub const VOLUME: Table = Table {
    heading: "[volumes.NAME]",
    keys: &[
        key("backend", "string", "(required)"),
        key("path", "path", "(NAME.img in data)"),
        key("size", "size", "(required)"),
        key("image", "string", "(required for rbd)"),
        key("ceph-conf", "path", "\"/etc/ceph/ceph.conf\""),
        key("ceph-user", "string", "\"admin\""),
        key("ceph-keyring", "path", "(by ceph-conf)"),
        key("block-size", "integer", "512"),
        key("physical-block-size", "integer", "4096"),
        key("read-only", "boolean", "false"),
        key("removable", "boolean", "false"),
        key("cache", "string", "\"buffered\""),
        key("passthrough", "string", "\"never\""),
        key("write-cache", "string", "\"on\""),
        key("provisioning", "string", "\"thin\""),
        key("threshold", "string", "(none)"),
        key("iops", "integer", "(no limit)"),
        key("bandwidth", "size", "(no limit)"),
        key("burst", "duration", "\"100ms\""),
        key("weight", "integer", "100"),
        key("latency-target", "duration", "(none)"),
        key("vendor", "string", "\"LUNET\""),
        key("product", "string", "\"VIRTUAL DISK\""),
        key("serial", "string", "(from the volume's identity)"),
        key("naa", "string", "(from the volume's identity)"),
        key("eui", "string", "(none)"),
        key("layers", "array of tables", "(none)"),
    ],
};

/// `[[volumes.NAME.layers]]`
pub const LAYER: Table = Table {
    heading: "[[volumes.NAME.layers]]",
    keys: &[
        key("fault", "string", "(none)"),
        key("errno", "string", "\"EIO\""),
        key("delay", "duration", "(none)"),
        key("spread", "duration", "\"0s\""),
        key("on", "string", "\"all\""),
        key("hang", "string", "(none)"),
        key("limit", "size", "(none)"),
        key("iops", "integer", "(none)"),
        key("share", "number", "1.0"),
        key("nth", "integer", "(all)"),
        key("from", "size", "(the start)"),
        key("to", "size", "(the end)"),
    ],
};

/// `[[target]]`
pub const TARGET: Table = Table {
    heading: "[[target]]",
    keys: &[
        key("name", "string", "(required)"),
        key("alias", "string", "(none)"),
        key("portals", "array of strings", "(all)"),
        key("luns", "table or array", "(none)"),
        key("open", "boolean", "false"),
        key("initiators", "array of strings", "(none named)"),
        key("chap-algorithms", "array of strings", "(all)"),
        key("user", "array of tables", "(none)"),
        key("mutual", "table", "(none)"),
        key("allow-reset", "boolean", "false"),
        key("protocols", "array of strings", "[\"iscsi\"]"),
        key("nqn", "string", "(the name, with nqn. for iqn.)"),
        key("hosts", "array", "(none named)"),
    ],
};

/// `[[subsystem]]`
pub const SUBSYSTEM: Table = Table {
    heading: "[[subsystem]]",
    keys: &[
        key("nqn", "string", "(required)"),
        key("namespaces", "table or array", "(none)"),
        key("portals", "array of strings", "(all for NVMe)"),
        key("open", "boolean", "false"),
        key("hosts", "array", "(none named)"),
    ],
};

/// `[[subsystem.hosts]]` and `[[target.hosts]]`
pub const HOST: Table = Table {
    heading: "[[subsystem.hosts]]",
    keys: &[
        key("nqn", "string", "(required)"),
        key("secret-file", "path", "(none)"),
        key("secret-env", "string", "(none)"),
        key("secret", "string", "(none)"),
        key("controller-secret-file", "path", "(none)"),
        key("controller-secret-env", "string", "(none)"),
        key("controller-secret", "string", "(none)"),
        key("tls-key-file", "path", "(none)"),
        key("tls-key-env", "string", "(none)"),
        key("tls-key", "string", "(none)"),
        key("tls", "string", "\"required\""),
    ],
};

/// `[target.luns.NUMBER]`
pub const LUN: Table = Table {
    heading: "[target.luns.NUMBER]",
    keys: &[key("volume", "string", "(required)"), key("initiators", "array of strings", "(all)")],
};

/// `[[target.user]]` and `[[discovery.user]]`
pub const USER: Table = Table {
    heading: "[[target.user]]",
    keys: &[
        key("name", "string", "(required)"),
        key("secret-file", "path", "(none)"),
        key("secret-env", "string", "(none)"),
        key("secret", "string", "(none)"),
        key("initiators", "array of strings", "(all)"),
    ],
};

/// `[target.mutual]` and `[discovery.mutual]`
pub const MUTUAL: Table = Table {
    heading: "[target.mutual]",
    keys: &[
        key("name", "string", "(required)"),
        key("secret-file", "path", "(none)"),
        key("secret-env", "string", "(none)"),
        key("secret", "string", "(none)"),
    ],
};

/// `[discovery]`
pub const DISCOVERY: Table = Table {
    heading: "[discovery]",
    keys: &[
        key("initiators", "array of strings", "(all)"),
        key("chap-algorithms", "array of strings", "(all)"),
        key("user", "array of tables", "(none)"),
        key("mutual", "table", "(none)"),
    ],
};

/// `[[limit]]`
pub const LIMIT: Table = Table {
    heading: "[[limit]]",
    keys: &[
        key("each", "string", "(required)"),
        key("initiators", "array of strings", "(all)"),
        key("iops", "integer", "(no limit)"),
        key("bandwidth", "size", "(no limit)"),
        key("burst", "duration", "\"100ms\""),
    ],
};

/// `[nvme]`
pub const NVME: Table = Table {
    heading: "[nvme]",
    keys: &[key("referrals", "array of strings", "(none)"), key("announce", "boolean", "false")],
};

/// `[control]`
pub const CONTROL: Table = Table {
    heading: "[control]",
    keys: &[
        key("listen", "array of strings", "[\"127.0.0.1:3261\"]"),
        key("tls-certificate", "path", "(a self-signed one)"),
        key("tls-key", "path", "(that of the self-signed one)"),
        key("names", "array of strings", "(none)"),
        key("read-group", "string", "(none)"),
        key("admin-group", "string", "(none)"),
    ],
};

/// `[group.NAME]`
pub const GROUP: Table = Table {
    heading: "[group.NAME]",
    keys: &[
        key("record", "string", "(required)"),
        key("gateway", "integer", "(required)"),
        key("targets", "array of strings", "(required, but with shared)"),
        key("shared", "boolean", "false"),
        key("rank", "integer", "(gateway, less 1)"),
        key("reach", "string", "(first portal of the target)"),
        key("reach-nvme", "string", "(first NVMe portal of the target)"),
        key("ceph-conf", "path", "\"/etc/ceph/ceph.conf\""),
        key("ceph-user", "string", "\"admin\""),
        key("ceph-keyring", "path", "(by ceph-conf)"),
    ],
};

/// `[sandbox]`
pub const SANDBOX: Table = Table {
    heading: "[sandbox]",
    keys: &[
        key("enabled", "boolean", "true"),
        key("paths", "array of strings", "(all but the system's)"),
    ],
};

/// Every kind of table below the top.
pub const TABLES: &[&Table] = &[
    &SERVER, &ISCSI, &PORTAL, &VOLUME, &LAYER, &TARGET, &LUN, &USER, &MUTUAL, &DISCOVERY, &HOST,
    &SUBSYSTEM, &NVME, &CONTROL, &SANDBOX, &GROUP, &LIMIT,
];

/// The candidate that looks most like `name`, if one looks enough like it.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // An absurdly long key is not a slip of the finger, and comparing is quadratic.
    if name.len() > 64 {
        return None;
    }
    let name = name.to_ascii_lowercase().replace('_', "-");
    let reach = (name.chars().count() / 3).max(1);
    let distance = |candidate: &str| {
        let candidate = candidate.to_ascii_lowercase().replace('_', "-");
        let part = name.len() > 3 && candidate.contains(&name);
        if part { reach } else { strsim::damerau_levenshtein(&name, &candidate) }
    };
    candidates
        .map(|candidate| (distance(candidate), candidate))
        .filter(|(distance, _)| *distance <= reach)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}
