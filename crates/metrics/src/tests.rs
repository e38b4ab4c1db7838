use std::collections::BTreeSet;

use lunet_api::{
    AtLimit, Binding, BoundBy, Group, LimitKind, Session, Stats, Verdict, Volume, VolumeBinding,
};
use serde_json::json;

use super::{Format, MOST_INITIATORS, Snapshot, render, render_as};

fn stats() -> Stats {
    let read = json!({"ops": 3, "bytes": 12288, "mean_us": 100.0,
                      "histogram": [{"up_to_us": 63, "count": 1}, {"up_to_us": 127, "count": 2}]});
    let stats = json!({
        "uptime_seconds": 61, "driver": "io_uring", "shards": 1, "sessions": 1,
        "loads": [{"shard": 0, "cpu_us": 1_500_000, "ready_us": 250_000, "buffer_used_bytes": 10, "buffer_bytes": 100}],
        "protocol": {"logins": 3, "login_failures": 5, "login_auth_failures": 2, "login_throttled": 1},
        "nvme": {"controllers": 2, "refused": 4, "refused_hosts": 1},
        "parts": [{"kind": "drive", "name": "sda", "counted": ["sda"], "read_bytes": 7, "writes_at_most": 9},
                  {"kind": "pool", "name": "tank", "counted": ["sda"]}],
        "portals": [{"address": "10.0.0.1:3260", "tcp": true, "iser_wanted": true, "reason": "link-down"}],
        "volumes": [{"name": "vm", "size_bytes": 1024, "read": read, "flushes": 2, "errors": 1, "commands_in_flight": 7,
                     "faults": [{"state": "write-back-failed", "since": 1, "text": "failed"}],
                     "time": {"timed": 3, "busy_us": 500, "sent": 1, "sent_ns": 500_000_000, "memory_waits": 9,
                              "stages": [{"stage": "storage", "ns": 2_000_000_000u64}, {"stage": "network-out", "ns": 0}]}}],
    });
    serde_json::from_value(stats).expect("statistics")
}

fn session(initiator: &str) -> Session {
    let session = json!({"initiator": initiator, "transport": "tcp", "commands_in_flight": 2});
    serde_json::from_value(session).expect("a session")
}

fn group() -> Group {
    let group = json!({"name": "vms", "gateway": 2, "state": "standby", "owner": 1, "epoch": 7, "config": 8,
                       "notices": ["why"], "takeovers": 3, "deposed": 4,
                       "protocols": [{"protocol": "iscsi", "access": "passes-on", "connections": 5, "commands": 6}]});
    serde_json::from_value(group).expect("a group")
}

fn verdict() -> Verdict {
    let at_limit =
        Some(AtLimit { kind: LimitKind::Drive, name: "sda".to_owned(), ..AtLimit::default() });
    let binding = Binding { bound_by: BoundBy::Storage, at_limit, ..Binding::default() };
    let volumes = vec![VolumeBinding { name: "vm".to_owned(), binding: binding.clone() }];
    Verdict { server: binding, volumes, ..Verdict::default() }
}

#[test]
fn everything_is_there_with_its_value() {
    let (stats, verdict) = (stats(), verdict());
    let volumes = [Volume { name: "vm".to_owned(), used_bytes: Some(512), ..Volume::default() }];
    let text = render(&Snapshot {
        version: "1.2.3",
        stats: &stats,
        volumes: &volumes,
        groups: &[group()],
        sessions: &[session("iqn.a")],
        verdict: Some(&verdict),
        findings: Some(&[("risk", 1), ("slow", 0)]),
        by_initiator: false,
    });
    for line in [
        "lunet_build_info{version=\"1.2.3\",driver=\"io_uring\"} 1",
        "lunet_uptime_seconds 61",
        "lunet_doctor_findings{severity=\"risk\"} 1",
        "lunet_sessions{transport=\"tcp\"} 1",
        "lunet_sessions{transport=\"nvme-rdma\"} 0",
        "lunet_logins_total{protocol=\"iscsi\"} 3",
        "lunet_logins_total{protocol=\"nvme\"} 2",
        "lunet_login_failures_total{protocol=\"iscsi\",reason=\"authentication\"} 2",
        "lunet_login_failures_total{protocol=\"iscsi\",reason=\"other\"} 2",
        "lunet_login_failures_total{protocol=\"nvme\",reason=\"other\"} 3",
        "lunet_shard_cpu_seconds_total{shard=\"0\"} 1.5",
        "lunet_shard_ready_seconds_total{shard=\"0\"} 0.25",
        "lunet_portal_up{address=\"10.0.0.1:3260\",transport=\"tcp\"} 1",
        "lunet_portal_up{address=\"10.0.0.1:3260\",transport=\"iser\"} 0",
        "lunet_portal_without_rdma{address=\"10.0.0.1:3260\",reason=\"link-down\",wanted=\"true\"} 1",
        "lunet_volume_operations_total{volume=\"vm\",operation=\"read\"} 3",
        "lunet_volume_operations_total{volume=\"vm\",operation=\"flush\"} 2",
        "lunet_volume_bytes_total{volume=\"vm\",operation=\"read\"} 12288",
        "lunet_volume_operation_duration_seconds_bucket{volume=\"vm\",operation=\"read\",le=\"0.000015\"} 0",
        "lunet_volume_operation_duration_seconds_bucket{volume=\"vm\",operation=\"read\",le=\"0.000063\"} 1",
        "lunet_volume_operation_duration_seconds_bucket{volume=\"vm\",operation=\"read\",le=\"0.000255\"} 3",
        "lunet_volume_operation_duration_seconds_bucket{volume=\"vm\",operation=\"read\",le=\"+Inf\"} 3",
        "lunet_volume_operation_duration_seconds_count{volume=\"vm\",operation=\"write\"} 0",
        "lunet_volume_errors_total{volume=\"vm\"} 1",
        "lunet_volume_operations_in_flight{volume=\"vm\"} 7",
        "lunet_volume_size_bytes{volume=\"vm\"} 1024",
        "lunet_volume_used_bytes{volume=\"vm\"} 512",
        "lunet_volume_write_back_failed{volume=\"vm\"} 1",
        "lunet_volume_fault{volume=\"vm\",state=\"write-back-failed\"} 1",
        "lunet_volume_stage_seconds_total{volume=\"vm\",stage=\"storage\"} 2",
        "lunet_volume_stage_seconds_total{volume=\"vm\",stage=\"network-out\"} 0.5",
        "lunet_volume_memory_waits_total{volume=\"vm\"} 9",
        "lunet_server_bound_by{resource=\"storage\"} 1",
        "lunet_bound_by{volume=\"vm\",resource=\"storage\"} 1",
        "lunet_server_at_limit{kind=\"drive\",name=\"sda\"} 1",
        "lunet_at_limit{volume=\"vm\",kind=\"drive\",name=\"sda\"} 1",
        "lunet_group_state{group=\"vms\",state=\"standby\"} 1",
        "lunet_group_state{group=\"vms\",state=\"owner\"} 0",
        "lunet_group_owner{group=\"vms\"} 1",
        "lunet_group_epoch{group=\"vms\"} 7",
        "lunet_group_config_revision{group=\"vms\"} 8",
        "lunet_group_notices{group=\"vms\"} 1",
        "lunet_group_takeovers_total{group=\"vms\"} 3",
        "lunet_group_deposed_total{group=\"vms\"} 4",
        "lunet_group_passed_on_operations_total{group=\"vms\",protocol=\"iscsi\"} 6",
        "lunet_group_connections{group=\"vms\",protocol=\"iscsi\"} 5",
        "lunet_part_bytes_total{kind=\"drive\",part=\"sda\",direction=\"read\"} 7",
        "lunet_part_most_bytes_per_second{kind=\"drive\",part=\"sda\",direction=\"write\"} 9",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    // Each metric once, and each sample once.
    let heads: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    assert_eq!(heads.iter().collect::<BTreeSet<_>>().len(), heads.len());
    let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let names = samples.iter().map(|line| line.rsplit_once(' ').expect("a value").0);
    assert_eq!(names.collect::<BTreeSet<_>>().len(), samples.len());
}

#[test]
fn initiators_are_named_on_request_and_not_without_bound() {
    let stats = Stats::default();
    let sessions: Vec<Session> =
        (0..MOST_INITIATORS + 10).map(|n| session(&format!("iqn.{n}"))).collect();
    let snapshot = Snapshot {
        version: "1",
        stats: &stats,
        volumes: &[],
        groups: &[],
        sessions: &sessions,
        verdict: None,
        findings: None,
        by_initiator: false,
    };
    assert!(!render(&snapshot).contains("iqn."));
    let text = render_as(&Snapshot { by_initiator: true, ..snapshot }, Format::Prometheus);
    let of_initiators = text.lines().filter(|line| line.starts_with("lunet_initiator_sessions{"));
    assert_eq!(of_initiators.count(), MOST_INITIATORS + 1);
    assert!(text.contains("lunet_initiator_sessions{initiator=\"\"} 10\n"), "{text}");
    // What is not known is not there.
    assert!(!text.contains("bound_by") && !text.contains("doctor") && !text.contains("group"));
}
