/** The JSON of the API, as docs/api.md describes it. Words that this page does not know are shown as they are. */

export type Role = "viewer" | "operator" | "administrator";

export interface Me {
  name: string;
  role: Role;
  csrf: string | null;
  kind?: string;
}

export interface Fault {
  state: string;
  since: number;
  text: string;
}

export interface Limit {
  on: string;
  bytes_per_s?: number;
  operations_per_s?: number;
}

export interface VolumeLimits {
  iops?: number;
  bytes_per_s?: number;
  burst_ms?: number;
  weight?: number;
  latency_target_us?: number;
}

export interface Volume {
  name: string;
  backend: string;
  size_bytes: number;
  used_bytes: number | null;
  block_size: number;
  read_only: boolean;
  write_cache: string;
  faults: Fault[] | null;
  erasure: { state: string; progress: number | null } | null;
  limits: Limit[];
  /** Those that are the volume's own; not there if there are none. */
  own_limits?: VolumeLimits;
  path: string | null;
  luns: { target: string; lun: number }[];
  sessions: number;
  snapshots: number;
}

/** What this gateway does over one protocol. */
export interface GroupProtocol {
  protocol: string;
  access: string;
  owner: string | null;
  connections: number;
  commands: number;
}

/** A failover group, as this gateway knows it. */
export interface Group {
  name: string;
  record: string;
  gateway: number;
  state: string;
  owner: number | null;
  heir: number | null;
  epoch: number;
  /** The revision of the shared configuration that is served. */
  config?: number | null;
  notices: string[];
  shared: boolean;
  target: string | null;
  gateways: number[];
  volumes: { name: string; image: string; lun: number }[];
  protocols: GroupProtocol[];
  takeovers: number;
  deposed: number;
}

export interface GroupGateway {
  gateway: number;
  state: string;
  epoch: number;
  config: number | null;
  trouble: string | null;
}

export interface GroupConfig {
  revision: number;
  text: string;
}

export interface Snapshot {
  volume: string;
  snapshot: string;
  size_bytes: number | null;
  created: number;
}

export interface User {
  name: string;
  secret: string;
  file: string | null;
  initiators: string;
}

export interface Target {
  name: string;
  alias: string | null;
  for: string;
  luns: { lun: number; volume: string; size_bytes: number | null }[];
  sessions: number;
  initiators: string | null;
  users: User[];
  mutual: string | null;
  nqn?: string;
  hosts?: string;
}

export interface Portal {
  address: string;
  tag: number;
  tcp: boolean;
  nvme_tcp?: boolean;
  nvme_rdma?: boolean;
  nvme_rdma_wanted?: boolean;
  iser: boolean;
  iser_wanted: boolean;
  devices: string[];
  reason: string | null;
  why: string | null;
}

export interface Session {
  initiator: string;
  target: string | null;
  user: string | null;
  peer: string;
  portal: string;
  transport: string;
  rdma: {
    device: string;
    gid: string;
    path_mtu_bytes: number;
    queue_depth: number;
    rdma_reads: number;
    rdma_writes: number;
  } | null;
  tcp: {
    rdma_device: string | null;
    iser_offered: boolean;
    nvme_rdma_offered?: boolean;
    why: string | null;
  } | null;
  isid: string;
  tsih: number;
  shard: number;
  connected_seconds: number;
  commands_in_flight: number;
  commands: number;
  read_bytes: number;
  written_bytes: number;
  keys: [string, string][];
  controller?: {
    cntlid: number;
    host_id: string;
    authenticated: boolean;
    tls?: string;
    keep_alive_ms: number;
    namespaces: number;
    queues: { qid: number; shard: number }[];
  };
}

export interface SessionChange {
  session: number;
  initiator: string;
  peer: string;
  target: string | null;
  fate: string;
  lun: number | null;
  volume: string | null;
  why: string;
}

export interface Done {
  /** Not every gateway of a failover group serves by it yet. */
  incomplete?: boolean;
  done: string;
  notes: string[];
  sessions: SessionChange[];
}

export interface Preview {
  file: string;
  changes: { what: string; name: string; change: string }[];
  notes: string[];
  sessions: SessionChange[];
  refused: string | null;
}

export interface Configuration {
  file: string;
  embedded: boolean;
  text: string;
  config: Record<string, unknown>;
  data: string;
  socket: string;
}

export interface OperationRates {
  ops_per_second: number;
  bytes_per_second: number;
  mean_us: number | null;
  p99_us: number | null;
}

export interface VolumeRates {
  name: string;
  read: OperationRates;
  write: OperationRates;
  flushes_per_second: number;
  limit_waits_per_second: number;
  errors: number;
  commands_in_flight: number;
}

export interface SessionRates {
  initiator: string;
  peer: string;
  shard: number;
  commands_per_second: number;
  read_bytes_per_second: number;
  written_bytes_per_second: number;
  commands_in_flight: number;
}

export interface ShardRates {
  shard: number;
  cpu_percent: number;
  waits_per_second: number;
  operations_per_wait: number | null;
  connections: number;
  commands_in_flight: number;
  buffers_percent: number;
}

export interface Interval {
  time: number;
  rates: {
    seconds: number;
    volumes: VolumeRates[];
    sessions: SessionRates[];
    shards: ShardRates[];
  };
}

export interface Binding {
  bound_by: string;
  sentence: string;
  evidence: string[];
  stages: { stage: string; share: number }[];
  sampled: number;
}

export interface Verdict {
  server: Binding;
  volumes: (Binding & { name: string })[];
}

export interface Refused {
  time: number;
  protocol?: string;
  initiator: string;
  target: string | null;
  address: string;
  why: string;
}

export interface AuditEntry {
  time: number;
  who: string;
  address: string | null;
  what: string;
  outcome: string;
}

export interface Account {
  name: string;
  role: Role;
}

export interface Token {
  id: string;
  name: string;
  role: string;
  created?: number;
  expires?: number | null;
  last_used?: number | null;
}

export interface NewToken {
  id: string;
  token: string;
  expires: number;
}

export type JobState = "running" | "done" | "failed" | "cancelled";

export interface Job {
  id: string;
  kind: string;
  state: JobState | string;
  started: number;
  ended: number | null;
  progress: string[];
  result?: unknown;
  error: string | null;
  exit: number | null;
  by?: string;
}

export interface Finding {
  check: string;
  layer: string;
  severity: "risk" | "slow" | "note" | string;
  about: string | null;
  looked: string;
  found: string;
  why: string;
  fix: string;
}

export interface DoctorReport {
  machine: string;
  checks: number;
  could_look: boolean;
  findings: Finding[];
  looked: { check: string; layer: string; about: string | null; state: string; text: string }[];
}

export interface Layer {
  name: string;
  read: number | null;
  write: number | null;
  both: number | null;
  steps: string[];
  missing: string | null;
  one_session: boolean;
}

export interface Ceilings {
  layers: Layer[];
  binds_reads: string | null;
  binds_writes: string | null;
  binds_both: string | null;
  binds_one_session: string | null;
}

/** What a rule sets: each kind that `tools/host/src/rules/setting.rs` has, which a test there compares. */
export type Setting =
  | { kind: "sysctl"; name: string }
  | { kind: "module"; module: string; name: string }
  | { kind: "sysfs"; path: string }
  | { kind: "cpus"; file: string }
  | { kind: "cmdline"; name: string }
  | { kind: "ring"; nic: string; ring: string }
  | { kind: "zfs"; dataset: string; property: string }
  | { kind: "conf"; file: string; key: string; section?: string }
  | { kind: "freebsd"; name: string; loader?: boolean };

export interface PlanItem {
  rule: string;
  title: string;
  about?: string;
  setting?: Setting;
  now?: string;
  wanted?: string;
  verdict: "change" | "good" | "not-applicable" | "advice" | string;
  because?: string;
  advice?: string;
  reason: string;
  risk: string;
  source: string;
  effect: string;
}

export interface Plan {
  profile: string;
  items: PlanItem[];
}

/** Whether what was applied still holds. */
export interface Verified {
  applied: boolean;
  interrupted: boolean;
  good: number;
  drift: { rule?: string; what: string; wanted: string; is: string }[];
  waiting: string[];
}

/** What a change is worth: parts of what it was without it, 0.1 is a tenth more. */
export interface Effect {
  mean: number;
  low: number;
  high: number;
}

export interface Worth {
  name: string;
  effect: Effect | null;
  /** In the runs that were made because it seemed to help. */
  again: Effect | null;
  judgement: string;
  kept: boolean;
}

export interface Proof {
  baseline: number;
  rounds: number;
  steps: Worth[];
  together: Worth | null;
  confirmed: Worth | null;
  left_out: [string, string][];
  notes: string[];
}

export interface Estimate {
  median: number;
  low: number;
  high: number;
  interval: string;
  rounds: number;
}

export interface BenchResults {
  schema: number;
  lunet: string;
  started: string;
  seconds: number;
  profile: string;
  notes?: string[];
  targets: { name: string; kind: string; location: string; tool: string }[];
  workloads: {
    name: string;
    block_bytes: number;
    read_percent: number;
    pattern: string;
    depth: number;
    jobs: number;
  }[];
  runs: {
    round: number;
    target: string;
    workload: string;
    timeline?: {
      at_s: number;
      read_mib_per_s: number;
      write_mib_per_s: number;
      read_iops: number;
      write_iops: number;
    }[];
  }[];
  verdicts: {
    target: string;
    workload: string;
    bound?: string;
    sentence: string;
    advice: string;
    layers: { bound: string; name: string; share: number; how: string }[];
  }[];
  summaries: {
    target: string;
    workload: string;
    mib_per_s: Estimate;
    iops: Estimate;
    latency_mean_us?: Estimate;
    latency_p99_us?: Estimate;
    errors: number;
  }[];
  choice?: string;
}

/** What /facts has that this page uses. */
export interface Facts {
  platform: {
    name?: string | null;
    kernel?: string | null;
    model?: string | null;
    vendor?: string | null;
  };
  cpu: { model?: string | null; cores?: number | null; threads?: number | null };
  memory: { total_bytes?: number | null; ecc?: boolean | null };
  nics: {
    name: string;
    kind?: string | null;
    virtual?: boolean;
    driver?: string | null;
    operstate?: string | null;
    speed_mbit?: number | null;
    mtu?: number | null;
    addresses: string[];
  }[];
  rdma?: { name?: string }[];
  drives: {
    name: string;
    model?: string | null;
    kind?: string | null;
    remote?: boolean;
    rotational?: boolean | null;
    size_bytes?: number | null;
    zfs_pool?: string | null;
    partitions: string[];
    holders: string[];
  }[];
  zfs?: {
    pools: {
      name: string;
      health?: string | null;
      size_bytes?: number | null;
      free_bytes?: number | null;
      capacity_percent?: number | null;
    }[];
    zvols: { name: string; pool: string; device?: string | null; volsize_bytes?: number | null }[];
  } | null;
}
