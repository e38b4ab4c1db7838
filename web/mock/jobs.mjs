// Jobs of the mock server: results of the form that `lunet doctor`, `lunet tune` and `lunet bench` print.

import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));

const finding = (check, layer, severity, about, looked, found, why, fix) => ({ check, layer, severity, about, looked, found, why, fix });

function report(state) {
  const findings = [
    finding(
      "zfs-pool-degraded", "zfs", "risk", "tank",
      "pool tank: DEGRADED, raidz1-0 has 3 of 4 drives",
      "The pool tank is DEGRADED: nvme3n1 of raidz1-0 is FAULTED.",
      "raidz1-0 has no redundancy left: the next drive that fails takes the pool with it, and every volume on it.",
      "zpool replace tank nvme3n1 /dev/disk/by-id/NEW",
    ),
    ...["nvme0n1", "nvme1n1", "nvme2n1", "nvme4n1", "nvme5n1"].map((drive) =>
      finding(
        "drive-512-format", "drives", "slow", drive,
        `${drive}: blocks of 512 bytes, 4096 are possible`,
        `${drive} (WD_BLACK SN850X 4000GB) is formatted with blocks of 512 bytes; it supports 4096.`,
        "The drive maps its flash in units of 4096 bytes: smaller writes cost a read-modify-write, and each large request is handled in eight times as many blocks.",
        `nvme format /dev/${drive} --lbaf=1    # THIS ERASES THE DRIVE: remove it from its pool first, one drive at a time`,
      ),
    ),
    ...(state.tuned
      ? []
      : [
          finding(
            "sysctl-rmem-max", "sysctl", "slow", null,
            "net.core.rmem_max is 212992",
            "Receive buffers of sockets are limited to 208 KiB.",
            "At 100 Gbit/s and 0.2 ms a connection needs 2.4 MiB in flight.",
            "lunet tune apply --only network.rmem-max --persist",
          ),
        ]),
    finding(
      "nic-mtu", "nic", "note", "enp23s0np0",
      "enp23s0np0: MTU 1500",
      "enp23s0np0 has an MTU of 1500 bytes at 100 Gbit/s.",
      "Six times as many packets as with 9000 bytes.",
      "ip link set enp23s0np0 mtu 9000    # and on every switch and initiator",
    ),
  ];
  return {
    machine: "TrueNAS SCALE 23.10.2, Linux 6.1.74-production+truenas",
    checks: 169,
    could_look: true,
    findings,
    looked: [
      { check: "drive-temperature", layer: "drives", about: "nvme0n1", state: "healthy", text: "nvme0n1: 41 degrees, warning from 90" },
      { check: "memory-ecc", layer: "memory-cpu", about: null, state: "healthy", text: "memory corrects errors" },
      { check: "nic-errors", layer: "nic", about: "enp23s0np0", state: "unknown", text: "the counters of enp23s0np0 are not known" },
    ],
  };
}

const ceilings = () => ({
  layers: [
    { name: "drives of tank", read: 24.9e9, write: 18.6e9, both: 6.22e9, steps: ["raidz1-0: raidz1 of 4 drives, 3 of them for data; in long runs it reads 4 x 3.11 GB/s = 12.4 GB/s.", "All vdevs together: reads 24.9 GB/s, writes 18.6 GB/s."], missing: null, one_session: false },
    { name: "memory", read: 20.5e9, write: 17.1e9, both: 9.31e9, steps: ["6 modules could move 128 GB/s; programs reach about 80 % of that: 102 GB/s."], missing: null, one_session: false },
    { name: "processor", read: 72e9, write: 45.8e9, both: 28e9, steps: ["12 cores of 4200 MHz; a byte that is read costs 0.70 cycles, one that is written 1.10."], missing: null, one_session: false },
    { name: "PCIe of enp23s0np0", read: 12.4e9, write: 12.4e9, both: 12.4e9, steps: ["PCIe 3.0 x16 carries 15.8 GB/s after line coding; 87.7 % of the rest are data."], missing: null, one_session: false },
    { name: "network", read: 12.3e9, write: 12.3e9, both: 12.3e9, steps: ["enp23s0np0: 100 Gbit/s = 12.5 GB/s; 98.0 % are data."], missing: null, one_session: false },
    { name: "one session", read: 4.19e9, write: 4.19e9, both: 4.19e9, steps: ["32 commands at once, each of 128 KiB and 1 ms: 4.19 GB/s."], missing: null, one_session: true },
  ],
  binds_reads: "network",
  binds_writes: "network",
  binds_both: "drives of tank",
  binds_one_session: "one session",
});

function plan(state, profile) {
  const item = (rule, title, setting, nowValue, wanted, reason, effect, about) => ({
    rule, title, ...(about ? { about } : {}), setting, now: state.tuned ? wanted : nowValue, wanted,
    verdict: state.tuned ? "good" : "change", reason, effect,
    risk: "Buffers of many connections take more memory.",
    source: "Linux kernel, Documentation/admin-guide/sysctl/net.rst",
  });
  return {
    profile,
    items: [
      item("network.rmem-max", "receive buffers", { kind: "sysctl", name: "net.core.rmem_max" }, "212992", "16777216", "At 100 Gbit/s and 0.2 ms a connection needs 2.4 MiB in flight; the limit is 208 KiB.", "live"),
      item("network.wmem-max", "send buffers", { kind: "sysctl", name: "net.core.wmem_max" }, "212992", "16777216", "The same in the other direction.", "live"),
      ...["nvme0n1", "nvme1n1"].map((drive) =>
        item("drive.scheduler", "I/O scheduler of NVMe drives", { kind: "sysfs", path: `/sys/block/${drive}/queue/scheduler` }, "mq-deadline", "none", `${drive} has its own queues: a scheduler above them costs time and orders nothing better.`, "live", drive),
      ),
      item("zfs.arc-max", "size of ZFS's cache", { kind: "module", module: "zfs", name: "zfs_arc_max" }, "0", "51539607552", "OpenZFS 2.2 takes half of the memory only; this machine serves storage and little else.", "live"),
      {
        rule: "transport.iser", title: "iSER in the place of TCP", verdict: "advice",
        advice: "Both ends and the fabric must take part: an RDMA card in the initiator, a portal with iSER here, lossless Ethernet (PFC) or at least ECN on every switch.",
        reason: "mlx5_0 does RDMA.", risk: "", source: "docs/roce.md", effect: "live",
      },
      { rule: "cmdline.pcie-aspm", title: "power saving of PCIe", verdict: "not-applicable", because: "the kernel's log reports no PCIe error", reason: "", risk: "", source: "", effect: "reboot" },
    ],
  };
}

/** A benchmark of two targets, scaled from the example of docs/bench-json.md. */
function bench(targets) {
  const example = JSON.parse(readFileSync(join(here, "../../docs/bench-example.json"), "utf8"));
  const names = example.targets.map((it) => it.name);
  const wanted = targets.length > 1 ? names : names.slice(-1);
  const of = (list) => list.filter((it) => !it.target || wanted.includes(it.target));
  const timeline = (factor) =>
    Array.from({ length: 20 }, (_, at) => ({
      at_s: at + 1,
      read_mib_per_s: 35 * factor,
      write_mib_per_s: 4 * factor,
      read_iops: Math.round(9000 * factor * (1 + 0.1 * Math.sin(at))),
      write_iops: Math.round(1000 * factor),
      latency_us: 100,
    }));
  return {
    ...example,
    started: new Date().toISOString(),
    targets: example.targets
      .filter((it) => wanted.includes(it.name))
      .map((it, at) => ({ ...it, location: targets[at] ?? it.location })),
    runs: of(example.runs).map((it) => ({ ...it, timeline: timeline(it.target === "local" ? 1.1 : 1) })),
    summaries: of(example.summaries),
    verdicts: of(example.verdicts),
  };
}

/**
 * The proof of rules. The first seems to help and does so in the second measurement; the second harms; the third seems to help and
 * does not in the second measurement; the others cannot be told from noise.
 */
function proof(rules) {
  const effects = [
    { effect: { mean: 0.181, low: 0.112, high: 0.263 }, again: { mean: 0.164, low: 0.098, high: 0.232 }, judgement: "helps", kept: true },
    { effect: { mean: -0.072, low: -0.131, high: -0.02 }, again: null, judgement: "harms", kept: false },
    { effect: { mean: 0.061, low: 0.012, high: 0.118 }, again: { mean: 0.004, low: -0.038, high: 0.047 }, judgement: "noise", kept: false },
    { effect: { mean: 0.008, low: -0.091, high: 0.072 }, again: null, judgement: "noise", kept: false },
  ];
  const worth = (name, at) => ({ name, ...effects[Math.min(at, effects.length - 1)] });
  return {
    baseline: 744e6,
    rounds: 10,
    steps: rules.map(worth),
    together: { name: "all together", effect: { mean: 0.094, low: 0.031, high: 0.16 }, again: null, judgement: "helps", kept: false },
    confirmed: null,
    left_out: [["drive.apst", "it works after a reboot only"]],
    notes: [],
  };
}

const KINDS = {
  doctor: {
    lines: () => ["looking at the drives", "looking at the network", "169 checks"],
    result: (state, options) => (options.ceilings ? ceilings() : report(state)),
    exit: (state, options) => (options.ceilings ? 0 : 1),
  },
  "tune-plan": {
    lines: () => ["reading facts", "42 rules"],
    result: (state, options) => plan(state, options.profile ?? "mixed"),
    exit: () => 2,
  },
  "tune-apply": {
    lines: () => ["network.rmem-max: net.core.rmem_max: 212992 -> 16777216", "network.wmem-max: net.core.wmem_max: 212992 -> 16777216", "5 settings changed; `lunet tune rollback` undoes it."],
    result: () => null,
    exit: () => 0,
    then: (state) => (state.tuned = true),
  },
  "tune-rollback": {
    lines: () => ["5 steps rolled back: everything is as it was."],
    result: () => null,
    exit: () => 0,
    then: (state) => (state.tuned = false),
  },
  "tune-verify": {
    lines: () => [],
    result: (state) => ({ applied: Boolean(state.tuned), interrupted: false, good: state.tuned ? 5 : 0, drift: [], waiting: [] }),
    exit: () => 0,
  },
  "tune-prove": {
    lines: () => ["run 1 of 44: nothing", "run 2 of 44: network.rmem-max", "run 3 of 44: drive.scheduler"],
    result: (_state, options) => proof(options.only ?? []),
    exit: () => 0,
  },
  bench: {
    lines: () => ["round 1 of 6: local, 4k", "round 2 of 6: served, 4k", "round 3 of 6: local, 4k", "round 4 of 6: served, 4k"],
    result: (_state, options) => bench(options.targets ?? []),
    exit: () => 0,
  },
};

export const knows = (kind) => kind in KINDS;

/** Lets a job go on until its end; `tell` is called with each step. */
export function run(job, options, state, tell, pace) {
  const kind = KINDS[job.kind];
  const lines = kind.lines();
  let at = 0;
  const timer = setInterval(() => {
    if (job.state !== "running") {
      clearInterval(timer);
      return;
    }
    if (at < lines.length) {
      job.progress.push(lines[at]);
      at += 1;
    } else {
      job.state = "done";
      job.ended = Math.floor(Date.now() / 1000);
      job.exit = kind.exit(state, options);
      kind.then?.(state);
      job.result = kind.result(state, options);
      clearInterval(timer);
    }
    tell(job);
  }, pace);
  return timer;
}
