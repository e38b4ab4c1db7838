# lunet's own client over soft RoCE: `lunet bench`, `bench verify` and `doctor` over NVMe over RDMA and over iSER, at the two ends
# of a cable. With LAB_TARGET=lio the targets are the kernel's, nvmet and LIO.
#
# Soft RoCE shows that it is right, not how fast it is.
# client: lunet bench over rdma_rxe
# minutes: 4
# only in long runs

NVME=$THERE:4420 ISER=$THERE:3260
NVME_URL=nvme-rdma://$NVME/$NQN/1 ISER_URL=iser://$ISER/$IQN/0

suite_setup() { rdma_cable; }

# Instead of the helpers' own: what a failed test has left undone.
network_mend() { rdma_cable_mend; }

# The target over NVMe over RDMA, and over iSER: [NAME=VALUE ...]
nvme_served() { nvme_start portals=$NVME over=rdma "$@"; }
iser_served() { target_start portals=$ISER iser=1 "$@"; }

# One volume over all four transports, which lunet alone can do.
all_served() {
    mkdir -p /var/lib/lab
    serve <<TOML
[server]
shards = 2
[[portal]]
address = "$ISER"
[[portal]]
address = "$NVME"
transport = ["nvme-tcp", "nvme-rdma"]
[volumes.disk0]
backend = "memory"
size = "64MiB"
[[target]]
name = "$IQN"
protocols = ["iscsi", "nvme"]
open = true
nqn = "$NQN"
luns = ["disk0"]
TOML
}

# What lunet's queue pairs are: the number of lines.
held() { rdma resource show qp 2>/dev/null | grep -c 'comm lunet'; }

bench() { "$LUNET" bench "$@" >/run/said 2>&1 || { cat /run/said; return 1; }; }

# Reads, writes and large blocks for a moment, and then verified data: URL
measured_and_verified() {
    "$LUNET" bench "$1" --json --rounds 1 --runtime 300ms --size 32MiB >/run/results 2>/run/said || { cat /run/said; return 1; }
    python3 - <<'PY'
import json
results = json.load(open('/run/results'))
assert results['runs'] and all(run.get('errors', 0) == 0 for run in results['runs']), results['runs']
loads = {run['workload'] for run in results['runs']}
assert len(loads) == 3, loads
moved = sum(flow['operations'] for run in results['runs'] for flow in (run.get('read'), run.get('write')) if flow)
print('note:', moved, 'operations,', results['targets'][0]['kind'])
PY
    bench verify "$1" --destroy "$1" --size 32MiB --runtime 3s --depth 16 --jobs 3
}

test_nvme_over_rdma_is_measured_and_verified() {
    nvme_served
    measured_and_verified $NVME_URL
}

# long
test_iser_is_measured_and_verified() {
    iser_served
    measured_and_verified $ISER_URL
}

test_the_doctor_looks_at_both() {
    iser_served
    "$LUNET" doctor $ISER_URL >/run/said || [ $? -le 2 ]
    grep -q "^LUN 0" /run/said || { cat /run/said; return 1; }
    target_clear
    nvme_served
    "$LUNET" doctor $NVME_URL >/run/said || [ $? -le 2 ]
    grep -q "^namespace 1" /run/said || { cat /run/said; return 1; }
}

# long
test_a_host_with_a_secret() {
    lunet_only "nvmet is tried over TCP"
    nvme gen-dhchap-key -m 1 -n "${HOSTNQN[0]}" >/run/secret
    chmod 600 /run/secret
    nvme_served secret="$(cat /run/secret)"
    bench verify $NVME_URL --host-nqn "${HOSTNQN[0]}" --secret-file /run/secret --size 8MiB --runtime 500ms --jobs 1
    fails "$LUNET" bench verify $NVME_URL --host-nqn "${HOSTNQN[0]}" --size 8MiB --runtime 500ms >/run/said 2>&1
    grep -q -e '--secret-file' /run/said
}

# long
test_four_transports_of_one_volume_are_compared() {
    lunet_only "one volume over four transports"
    all_served
    bench iscsi=iscsi://$ISER/$IQN/0 iser=$ISER_URL tcp=nvme-tcp://$NVME/$NQN/1 rdma=$NVME_URL \
        --only '4k random reads' --rounds 6 --runtime 300ms --size 16MiB
    grep -q 'On this machine use \|no clear difference between ' /run/said || { cat /run/said; return 1; }
    note "$(grep -h -A3 'On this machine use \|no clear difference between ' /run/said | head -3 | paste -sd' ')"
    within 20 eval '[ "$(held)" = 0 ]'
}

test_what_is_missing_is_said() {
    lunet_only "about lunet's own sentences"
    nvme_served
    # The guest's own card has no RDMA device.
    fails "$LUNET" bench nvme-rdma://10.0.2.15:4420/$NQN/1 >/run/said 2>&1
    grep -q 'no RDMA device of this machine leads to 10.0.2.15:4420.*measure over TCP' /run/said || { cat /run/said; return 1; }
    fails "$LUNET" bench iser://$THERE:3999/$IQN/0 >/run/said 2>&1
    grep -q "no RDMA connection to $THERE:3999 (nobody listens there)" /run/said || { cat /run/said; return 1; }
    fails "$LUNET" bench nvme-rdma://$NVME/nqn.2026-11.local.lunet:none/1 >/run/said 2>&1
    grep -q 'no subsystem nqn.2026-11.local.lunet:none' /run/said || { cat /run/said; return 1; }
}
