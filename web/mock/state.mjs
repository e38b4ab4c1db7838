// What the mock server knows at its start, and rates that look as those of a server at work.

import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const GIB = 2 ** 30;
export const now = () => Math.floor(Date.now() / 1000);

/** The facts of one of the machines that the tuner's tests use. */
export function facts() {
  const machine = join(here, "../../tools/host/tests/machines/truenas-23.10/facts.json");
  return JSON.parse(readFileSync(machine, "utf8"));
}

export const DEMO = "iqn.2026-11.local.lunet:demo";
export const VMS = "iqn.2026-11.local.lunet:vms";

const volume = (name, more) => ({
  name,
  backend: "file",
  size_bytes: 40 * GIB,
  used_bytes: 0,
  block_size: 512,
  read_only: false,
  write_cache: "on",
  faults: [],
  erasure: null,
  limits: [],
  path: `/var/lib/lunet/${name}.img`,
  luns: [],
  sessions: 0,
  snapshots: 0,
  ...more,
});

export { volume };

const session = (initiator, target, peer, more) => ({
  initiator,
  target,
  user: null,
  peer,
  portal: "10.100.0.20:3260",
  transport: "tcp",
  rdma: null,
  tcp: { rdma_device: "mlx5_0", iser_offered: true, why: "the initiator chose TCP, although iSER is offered at this address" },
  isid: "00023d000001",
  tsih: 1,
  shard: 0,
  connected_seconds: 93600,
  commands_in_flight: 0,
  commands: 1840221,
  read_bytes: 812 * GIB,
  written_bytes: 233 * GIB,
  keys: [
    ["HeaderDigest", "None"],
    ["DataDigest", "None"],
    ["MaxBurstLength", "16776192"],
    ["FirstBurstLength", "262144"],
    ["MaxRecvDataSegmentLength", "262144"],
    ["ImmediateData", "Yes"],
    ["InitialR2T", "No"],
    ["ErrorRecoveryLevel", "0"],
  ],
  ...more,
});

export { session };

export const CONFIG = `# lunet.toml

[server]
data = "/var/lib/lunet"

[[portal]]
address = "127.0.0.1:3260"

[[portal]]
address = "10.100.0.20:3260"
transport = ["tcp", "iser"]

[volumes.vm1]            # a sparse file, /var/lib/lunet/vm1.img
backend = "file"
size = "200GiB"

[volumes.db]             # a ZFS volume
backend = "block"
path = "/dev/zvol/tank/db"

[volumes.scratch]
backend = "memory"
size = "4GiB"

[[target]]
name = "${VMS}"
alias = "virtual machines"
luns = { 0 = "vm1", 1 = { volume = "db", initiators = ["*:esx1"] } }
initiators = ["iqn.1998-01.com.vmware:esx1", "iqn.1998-01.com.vmware:esx2"]

[[target]]
name = "${DEMO}"
luns = { 0 = "scratch" }
`;

/** A server with some work to do; `empty` is one that has just been installed. */
const SHARED = `[volumes.far]
backend = "rbd"
image = "rbd://vms/far"

[[target]]
name = "iqn.2026-11.local.lunet:ceph"
luns = ["far"]
initiators = ["iqn.1998-01.com.vmware:esx1"]
`;

const group = () => ({
  name: "ceph",
  record: "rbd://vms/ceph",
  gateway: 2,
  state: "standby",
  owner: 1,
  heir: null,
  epoch: 7,
  config: 4,
  trouble: null,
  notices: [],
  shared: true,
  target: "iqn.2026-11.local.lunet:ceph",
  gateways: [1, 2, 3],
  volumes: [{ name: "far", image: "rbd://vms/far", lun: 0 }],
  protocols: [
    { protocol: "iscsi", access: "passes-on", owner: "192.0.2.11:3260", connections: 2, commands: 40211 },
    { protocol: "nvme", access: "refuses", owner: null, connections: 0, commands: 0 },
  ],
  takeovers: 0,
  deposed: 0,
});

export function initial(empty) {
  const esx = (n) => `iqn.1998-01.com.vmware:esx${n}`;
  if (empty) {
    return {
      accounts: [],
      tokens: [],
      audit: [],
      jobs: [],
      refused: [],
      sessions: [],
      snapshots: [],
      volumes: [],
      targets: [],
      portals: [portal("127.0.0.1:3260", { why: null })],
      config: "# lunet.toml\n",
      masks: {},
      lists: {},
      groups: [],
      shared: {},
      silent: [],
    };
  }
  return {
    groups: [group()],
    shared: { ceph: SHARED },
    silent: [3],
    accounts: [
      { name: "admin", role: "administrator", password: "correct horse battery" },
      { name: "vera", role: "viewer", password: "correct horse battery" },
    ],
    tokens: [
      { id: "5f0c2a11", name: "prometheus", role: "metrics", by: "admin", created: now() - 864000, expires: now() + 7000000, last_used: now() - 12 },
    ],
    audit: [
      { time: now() - 3600, who: "admin (session)", address: "10.100.0.5", what: 'create-volume name="vm1"', outcome: "volume vm1 of 200 GiB is created" },
      { time: now() - 7200, who: "root (uid 0, pid 4711)", address: null, what: "apply", outcome: "/etc/lunet/lunet.toml is in effect" },
    ],
    jobs: [],
    refused: [
      {
        time: now() - 300,
        initiator: esx(3),
        target: VMS,
        address: "10.100.0.33",
        why: "the target is for other initiators: its list does not name it",
      },
    ],
    sessions: [
      session(esx(1), VMS, "10.100.0.31:51234", {
        tsih: 3,
        transport: "iser",
        tcp: null,
        rdma: { device: "mlx5_0", gid: "::ffff:10.100.0.20", path_mtu_bytes: 4096, queue_depth: 128, rdma_reads: 90211, rdma_writes: 801223 },
      }),
      session(esx(2), VMS, "10.100.0.32:49152", { tsih: 4, shard: 1, connected_seconds: 4210 }),
    ],
    snapshots: [
      { volume: "vm1", snapshot: "before-upgrade", size_bytes: 200 * GIB, created: now() - 172800 },
      { volume: "vm1", snapshot: "monday", size_bytes: 200 * GIB, created: now() - 86400 },
    ],
    volumes: [
      volume("vm1", { size_bytes: 200 * GIB, used_bytes: 81 * GIB }),
      volume("db", {
        backend: "block",
        path: "/dev/zvol/tank/db",
        used_bytes: null,
        size_bytes: 512 * GIB,
        write_cache: "off",
        limits: [{ on: "write", bytes_per_s: 400 * 2 ** 20 }],
      }),
      volume("scratch", { backend: "memory", path: null, used_bytes: null, size_bytes: 4 * GIB, write_cache: "none" }),
    ],
    targets: [
      { name: VMS, alias: "virtual machines", users: [], mutual: null, open: false, luns: [{ lun: 0, volume: "vm1" }, { lun: 1, volume: "db" }] },
      { name: DEMO, alias: null, users: [], mutual: null, open: false, luns: [{ lun: 0, volume: "scratch" }] },
    ],
    portals: [
      portal("127.0.0.1:3260", { why: null }),
      portal("10.100.0.20:3260", { iser: true, iser_wanted: true, devices: ["mlx5_0"], reason: null, why: null }),
    ],
    config: CONFIG,
    masks: { [VMS]: { 1: ["*:esx1"] } },
    lists: { [VMS]: [esx(1), esx(2)] },
  };
}

export function portal(address, more) {
  return {
    address,
    tag: 1,
    tcp: true,
    iser: false,
    iser_wanted: false,
    devices: [],
    reason: "no-device",
    why: `no RDMA device of this machine carries the address of ${address}`,
    ...more,
  };
}

const round = (value) => Math.round(value * 10) / 10;

function operations(perSecond, block, mean) {
  const ops = round(Math.max(0, perSecond));
  return {
    ops_per_second: ops,
    bytes_per_second: round(ops * block),
    mean_us: ops > 0 ? mean : null,
    p99_us: ops > 0 ? 2 ** Math.ceil(Math.log2(mean * 3)) - 1 : null,
  };
}

/** What the server did in the last second: waves, so that charts have something to show. */
export function interval(state, at) {
  const wave = (period, phase) => 0.6 + 0.4 * Math.sin((at + phase) / period);
  const volumes = state.volumes.map((it, index) => {
    const by = new Set(state.targets.filter((one) => one.luns.some((lun) => lun.volume === it.name)).map((one) => one.name));
    const busy = state.sessions.some((one) => by.has(one.target)) ? 1 / (index + 1) : 0;
    return {
      name: it.name,
      read: operations(busy * 42000 * wave(11, index * 7), 8192, 92),
      write: operations(busy * 9000 * wave(7, index * 3), 16384, 240),
      flushes_per_second: busy ? 12 : 0,
      errors: 0,
      commands_in_flight: Math.round(busy * 40 * wave(5, index)),
    };
  });
  const shards = [0, 1].map((shard) => ({
    shard,
    cpu_percent: round(12 + 30 * wave(9, shard * 4)),
    waits_per_second: 9000,
    operations_per_wait: 7.4,
    connections: state.sessions.filter((it) => it.shard === shard).length,
    commands_in_flight: Math.round(20 * wave(5, shard)),
    buffers_percent: round(8 * wave(6, shard)),
  }));
  const sessions = state.sessions.map((it, index) => ({
    initiator: it.initiator,
    peer: it.peer,
    shard: it.shard,
    commands_per_second: round(21000 * wave(8, index)),
    read_bytes_per_second: round(180e6 * wave(8, index)),
    written_bytes_per_second: round(60e6 * wave(6, index)),
    commands_in_flight: Math.round(20 * wave(5, index)),
  }));
  return { time: at, rates: { seconds: 1, volumes, sessions, shards } };
}

export function verdict(state) {
  const busy = state.sessions.length > 0;
  const binding = busy
    ? {
        bound_by: "storage",
        sentence: "The drives below vm1 limit it: 71 % of an operation's time is spent in the storage.",
        evidence: [
          "reads of vm1 wait 65 us for the file of 92 us in the server",
          "28 of 32 commands of esx1 are in flight",
          "no shard is busier than 42 %",
        ],
        stages: [
          { stage: "network-in", share: 0.06 },
          { stage: "queue", share: 0.09 },
          { stage: "storage", share: 0.71 },
          { stage: "network-out", share: 0.14 },
        ],
        sampled: 4096,
      }
    : { bound_by: "idle", sentence: "Nothing is asked of this server.", evidence: [], stages: [], sampled: 0 };
  return {
    server: binding,
    volumes: state.volumes.map((it) => ({
      name: it.name,
      ...(it.sessions > 0 ? binding : { bound_by: "idle", sentence: "Nothing is asked of it.", evidence: [], stages: [], sampled: 0 }),
    })),
  };
}
