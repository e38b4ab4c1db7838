//! What the server says of itself, in the types of the API.

use lunet_api::{
    Bucket, Controller, Fault, FaultState, LimitWaits, NoIser, NvmeCounts, Operations, OverTcp,
    Percentile, Portal, Protocol, Queue, RdmaPath, Session, ShardLoad, ShardOperations,
    SilentShard, StageTime, Stats, Transport, VolumeStats, VolumeTime,
};
use lunet_front_iscsi::SessionInfo;
use lunet_front_nvme::{QueueInfo, SessionInfo as ControllerInfo};
use lunet_nvme::name::DISCOVERY_NQN;
use lunet_server::{OpStats, PortalStatus, Reason};
use lunet_volume::{Cause, Stage, Whose};

use crate::identity;

/// Sessions as the API reports them.
pub fn sessions(all: Vec<SessionInfo>) -> Vec<Session> {
    all.into_iter().map(session).collect()
}

fn session(info: SessionInfo) -> Session {
    Session {
        initiator: info.initiator,
        target: info.target,
        user: info.user,
        peer: info.peer,
        portal: info.portal,
        transport: Transport::from(info.transport),
        rdma: info.rdma.map(|path| RdmaPath {
            device: path.device,
            gid: path.gid,
            path_mtu_bytes: path.path_mtu_bytes,
            queue_depth: path.queue_depth,
            rdma_reads: path.rdma_reads,
            rdma_writes: path.rdma_writes,
        }),
        tcp: info.tcp.map(|tcp| OverTcp {
            rdma_device: tcp.rdma_device,
            iser_offered: tcp.rdma_offered,
            nvme_rdma_offered: false,
            why: tcp.why,
        }),
        isid: info.isid,
        tsih: info.tsih,
        shard: info.shard as u64,
        connected_seconds: info.connected_seconds,
        commands_in_flight: info.commands_in_flight as u64,
        commands: info.commands,
        read_bytes: info.read_bytes,
        written_bytes: info.written_bytes,
        keys: info.keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        controller: None,
    }
}

/// Controllers as the API reports them. `first`: the number of the first shard of their server.
pub fn controllers(all: Vec<ControllerInfo>, first: usize) -> Vec<Session> {
    all.into_iter().map(|info| controller(info, first)).collect()
}

fn controller(info: ControllerInfo, first: usize) -> Session {
    let queue = |queue: &QueueInfo| Queue { qid: queue.qid, shard: (first + queue.shard) as u64 };
    let queues: Vec<Queue> = info.queues.iter().map(queue).collect();
    let digest =
        |name: &str, used: bool| (name.to_owned(), if used { "CRC32C" } else { "None" }.to_owned());
    Session {
        initiator: info.host_nqn,
        target: (info.subsystem != DISCOVERY_NQN).then_some(info.subsystem),
        peer: info.peer.to_string(),
        portal: info.local.to_string(),
        transport: if info.rdma.is_some() { Transport::NvmeRdma } else { Transport::NvmeTcp },
        rdma: info.rdma.map(|path| RdmaPath {
            device: path.device,
            gid: path.gid,
            path_mtu_bytes: path.path_mtu_bytes,
            queue_depth: path.queue_depth,
            ..RdmaPath::default()
        }),
        tcp: info.tcp.map(|tcp| OverTcp {
            rdma_device: tcp.rdma_device,
            iser_offered: false,
            nvme_rdma_offered: tcp.rdma_offered,
            why: tcp.why,
        }),
        shard: queues.first().map_or(0, |queue| queue.shard),
        connected_seconds: info.age.as_secs(),
        keys: vec![digest("HeaderDigest", info.digests.0), digest("DataDigest", info.digests.1)],
        controller: Some(Controller {
            cntlid: info.cntlid,
            host_id: identity::written(info.host_id),
            authenticated: info.authenticated,
            tls: info.tls.map(str::to_owned),
            keep_alive_ms: info.kato.as_millis() as u64,
            namespaces: info.namespaces as u64,
            queues,
        }),
        ..Session::default()
    }
}

/// Portals as the API reports them.
pub fn portals(all: Vec<PortalStatus>) -> Vec<Portal> {
    all.into_iter().map(portal).collect()
}

/// Portals for NVMe as the API reports them.
pub fn nvme_portals(all: Vec<PortalStatus>) -> Vec<Portal> {
    let over_nvme = |status: PortalStatus| Portal {
        address: status.address,
        tag: status.tag,
        nvme_tcp: status.tcp,
        nvme_rdma: status.rdma,
        nvme_rdma_wanted: status.rdma_wanted,
        devices: status.devices,
        without_invalidate: status.without_invalidate,
        // TCP alone is what NVMe has unless RDMA is asked for.
        reason: status.reason.filter(|_| status.rdma_wanted).map(no_iser),
        why: status.why.filter(|_| status.rdma_wanted),
        ..Portal::default()
    };
    all.into_iter().map(over_nvme).collect()
}

fn portal(status: PortalStatus) -> Portal {
    Portal {
        address: status.address,
        tag: status.tag,
        tcp: status.tcp,
        iser: status.rdma,
        iser_wanted: status.rdma_wanted,
        devices: status.devices,
        without_invalidate: status.without_invalidate,
        reason: status.reason.map(no_iser),
        why: status.why,
        ..Portal::default()
    }
}

const fn no_iser(reason: Reason) -> NoIser {
    match reason {
        Reason::SwitchedOff => NoIser::SwitchedOff,
        Reason::NoDevice => NoIser::NoDevice,
        Reason::NoRoceV2 => NoIser::NoRoceV2,
        Reason::LinkDown => NoIser::LinkDown,
        Reason::NoLibrary => NoIser::NoLibrary,
        Reason::NoProvider => NoIser::NoProvider,
        Reason::NoConnectionManager => NoIser::NoConnectionManager,
        Reason::LockedMemory => NoIser::LockedMemory,
        Reason::DeviceGone => NoIser::DeviceGone,
        Reason::NextStart => NoIser::NextStart,
        Reason::Removed => NoIser::Removed,
        Reason::Other => NoIser::Unnamed,
    }
}

/// What the server has counted.
pub fn stats(stats: lunet_front_iscsi::Stats) -> Stats {
    Stats {
        uptime_seconds: stats.uptime_seconds,
        driver: stats.driver.to_owned(),
        shards: stats.shards as u64,
        sessions: stats.sessions as u64,
        portals: portals(stats.portals),
        loads: stats.loads.iter().map(load).collect(),
        silent_shards: stats.silent.iter().map(silent).collect(),
        protocol: protocol(&stats.protocol),
        nvme: None,
        volumes: stats.volumes.into_iter().map(volume).collect(),
        ..Stats::default()
    }
}

/// The same with what is served over NVMe. Volumes are counted for both in the first.
pub fn stats_of_both((iscsi, nvme): (lunet_front_iscsi::Stats, lunet_front_nvme::Stats)) -> Stats {
    let mut all = stats(iscsi);
    all.shards += nvme.shards as u64;
    all.sessions += nvme.sessions as u64;
    all.portals.extend(nvme_portals(nvme.portals));
    all.loads.extend(nvme.loads.iter().map(load));
    all.silent_shards.extend(nvme.silent.iter().map(silent));
    all.nvme = Some(nvme_counts(&nvme.protocol));
    all
}

const fn nvme_counts(counts: &lunet_front_nvme::Protocol) -> NvmeCounts {
    NvmeCounts {
        connections: counts.connections,
        turned_away: counts.turned_away,
        controllers: counts.controllers,
        refused: counts.refused,
        refused_hosts: counts.refused_hosts,
        keep_alive_expired: counts.keep_alive_expired,
        dropped: counts.dropped,
        aborted: counts.aborted,
        busy: counts.busy,
        pdus: counts.pdus_in,
        digest_errors: counts.data_digest_errors,
    }
}

fn silent(one: &lunet_server::stats::SilentShard) -> SilentShard {
    let silent_ms = u64::try_from(one.silence.as_millis()).unwrap_or(u64::MAX);
    SilentShard { shard: one.shard as u64, silent_ms }
}

fn load(load: &lunet_server::stats::ShardLoad) -> ShardLoad {
    ShardLoad {
        shard: load.shard as u64,
        time_us: load.time_us,
        cpu_us: load.cpu_us,
        polled_us: load.polled_us,
        ready_us: load.ready_us,
        waits: load.waits,
        operations: load.operations,
        messages: load.messages,
        zero_copy_bytes: load.zero_copy_bytes,
        zero_copy_copied_bytes: load.zero_copy_copied_bytes,
        passthrough_commands: load.passthrough_commands,
        passthrough_failed: load.passthrough_failed,
        connections: load.connections as u64,
        commands_in_flight: load.commands_in_flight as u64,
        buffer_used_bytes: load.buffer_used_bytes as u64,
        buffer_resident_bytes: load.buffer_resident_bytes as u64,
        buffer_bytes: load.buffer_bytes as u64,
    }
}

const fn protocol(counts: &lunet_front_iscsi::Protocol) -> Protocol {
    Protocol {
        connections: counts.connections,
        turned_away: counts.turned_away,
        logins: counts.logins,
        login_failures: counts.login_failures,
        login_auth_failures: counts.login_auth_failures,
        login_forbidden: counts.login_forbidden,
        login_not_found: counts.login_not_found,
        login_throttled: counts.login_throttled,
        dropped: counts.dropped,
        pdus: counts.pdus,
        rejects: counts.rejects,
        digest_errors: counts.digest_errors,
        task_set_full: counts.task_set_full,
        busy: counts.busy,
        aborted: counts.aborted,
    }
}

fn volume(volume: lunet_server::VolumeStats) -> VolumeStats {
    VolumeStats {
        name: volume.name,
        size_bytes: volume.size_bytes,
        read: operations(&volume.read),
        write: operations(&volume.write),
        flushes: volume.flushes,
        unmaps: volume.unmaps,
        others: volume.others,
        copied_bytes: volume.copied_bytes,
        errors: volume.errors,
        commands_in_flight: volume.commands_in_flight as u64,
        faults: volume.faults.into_iter().map(fault).collect(),
        time: time(&volume.time),
    }
}

fn time(time: &lunet_server::VolumeTime) -> VolumeTime {
    let times = &time.stages;
    let ns = |time: std::time::Duration| time.as_nanos() as u64;
    let waited = |stage: Stage| StageTime { stage: api_stage(stage), ns: ns(times.waited(stage)) };
    let (sent, sending) = times.sent();
    let operations = |of: &(usize, u64)| ShardOperations { shard: of.0 as u64, operations: of.1 };
    VolumeTime {
        operations_us: time.operations_us,
        busy_us: time.busy_us,
        storage_busy_us: time.storage_busy_us,
        memory_waits: time.memory_waits,
        storage_full: time.storage_full,
        limit_waits: time.limits.all(),
        limit_us: u64::try_from(time.limits.time.as_micros()).unwrap_or(u64::MAX),
        limit_waits_of: LimitWaits {
            volume: time.limits.of(Whose::Volume),
            initiator: time.limits.of(Whose::Host),
            session: time.limits.of(Whose::Session),
            share: time.limits.of(Whose::Share),
        },
        timed: times.timed(),
        stages: Stage::ALL.into_iter().map(waited).collect(),
        sent,
        sent_ns: ns(sending),
        shards: time.shards.iter().map(operations).collect(),
    }
}

const fn api_stage(stage: Stage) -> lunet_api::Stage {
    match stage {
        Stage::Arrival => lunet_api::Stage::NetworkIn,
        Stage::Data => lunet_api::Stage::Data,
        Stage::Memory => lunet_api::Stage::BufferMemory,
        Stage::Limit => lunet_api::Stage::Limit,
        Stage::Lock => lunet_api::Stage::Queue,
        Stage::Storage => lunet_api::Stage::Storage,
        Stage::Output => lunet_api::Stage::NetworkOut,
    }
}

fn operations(kind: &OpStats) -> Operations {
    let percentile =
        |p: &lunet_server::Percentile| Percentile { percentile: p.percentile, us: p.us };
    let bucket = |b: &lunet_server::Bucket| Bucket { up_to_us: b.up_to_us, count: b.count };
    Operations {
        ops: kind.ops,
        bytes: kind.bytes,
        mean_us: kind.mean_us,
        percentiles: kind.percentiles.iter().map(percentile).collect(),
        histogram: kind.histogram.iter().map(bucket).collect(),
    }
}

/// What is wrong with the storage of a volume.
pub fn fault(fault: lunet_volume::Fault) -> Fault {
    let state = match fault.cause {
        Cause::WriteBack { .. } => FaultState::WriteBackFailed,
        Cause::NotServed => FaultState::NotServed,
        Cause::Missing => FaultState::StorageMissing,
        Cause::Replaced | Cause::TakenOver { .. } => FaultState::StorageReplaced,
        Cause::CutShort { .. } => FaultState::StorageCutShort,
        Cause::RolledBackInPart => FaultState::RolledBackInPart,
    };
    Fault { state, since: fault.since, text: fault.cause.to_string() }
}
