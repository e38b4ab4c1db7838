# One volume of lunet by four transports: NVMe over RDMA, iSER, NVMe over TCP, iSCSI over TCP; and NVMe over RDMA by the kernel's nvmet. In
# one boot, in turns, over soft RoCE and the interface below it, with the kernel's host and initiator.
#
# By itself this is one short round, which shows that everything runs and every byte is right. LAB_ROUNDS=7 makes as many rounds, and
# leaves tables of ratios in table.md beside the results. What soft RoCE can show: docs/performance.md.
# client: nvme-rdma over rdma_rxe, against nvmet
# run: -c 2 -t 3600
# minutes: 3
# speed

ADDRESS=192.0.2.1
SIZE=64
RUNTIME=2
ROUNDS=1
[ "$LAB_ROUNDS" -le 5 ] || RUNTIME=3 ROUNDS=$LAB_ROUNDS
WAYS="lunet nvmet lunet-iser lunet-tcp lunet-iscsi"
# Blocks and direction, the number of requests at a time, the number of processes.
LOADS="4k-read:1:1 4k-read:32:1 4k-read:32:4 4k-write:1:1 4k-write:32:1 4k-write:32:4 128k-read:16:1 128k-write:16:1"

suite_setup() {
    modprobe ib_iser
    rdma_network $ADDRESS/24
}

# The five ways to a disk in memory, as $disk[WAY]. Those of lunet are one volume.
five_ways() {
    (
        NQN=nqn.2026-11.local.nvmet:lab
        LAB_TARGET=lio nvme_start memory=1 size=$SIZE portals=$ADDRESS:4421 over=rdma native=N
    )
    serve <<TOML
[server]
shards = 2
[[portal]]
address = "$ADDRESS:3260"
[[portal]]
address = "$ADDRESS:4420"
transport = ["nvme-tcp", "nvme-rdma"]
[volumes.disk0]
backend = "memory"
size = "${SIZE}MiB"
[[target]]
name = "$IQN"
protocols = ["iscsi", "nvme"]
open = true
nqn = "$NQN"
luns = ["disk0"]
TOML
    disk[lunet]=$(way=rdma attach $ADDRESS:4420)
    disk[lunet-tcp]=$(as=1 attach $ADDRESS:4420)
    disk[nvmet]=$(NQN=nqn.2026-11.local.nvmet:lab way=rdma attach $ADDRESS:4421)
    disk[lunet-iser]=$(iface=iser login $ADDRESS:3260)
    disk[lunet-iscsi]=$(login $ADDRESS:3260)
    for way in $WAYS; do same "$(blockdev --getsize64 "${disk[$way]}")" $((SIZE << 20)) "size by $way"; done
    ask sessions >/run/sessions
    same "$(printf '%s\n' "${disk[@]}" | sort -u | wc -l)" 5 "disks"
    for way in nvme-rdma nvme-tcp iser tcp; do same "$(grep -c " over $way" /run/sessions)" 1 "sessions over $way"; done
}

# Reads or writes at random for a while: DISK LOAD
load() {
    local blocks depth jobs
    IFS=: read -r blocks depth jobs <<<"$2"
    fio --name="$2" --filename="$1" --rw=rand${blocks#*-} --bs=${blocks%-*} --iodepth="$depth" --numjobs="$jobs" --group_reporting \
        --direct=1 --ioengine=libaio --time_based --runtime=$RUNTIME --minimal >/run/fio-load 2>&1
}

# What was measured, as tables of medians and of ratios within a round.
table() {
    PYTHONPATH=/host/guest python3 - "$1" $LOADS <<'PY'
import sys
from figures import *
measured = Measured()
loads = []
for load in sys.argv[2:]:
    blocks, depth, jobs = load.split(':')
    loads.append((load, f"{blocks.replace('-', ' ')}s, depth {depth}, processes {jobs}"))
others = [('lunet-iser', 'iSER'), ('lunet-tcp', 'NVMe over TCP'), ('lunet-iscsi', 'iSCSI over TCP')]
with open(sys.argv[1], 'w') as out:
    print('| random, NVMe over RDMA | throughput, lunet / nvmet | CPU per GiB of the guest, lunet / nvmet |', file=out)
    print('|---|---|---|', file=out)
    for load, name in loads:
        nvmet = [measured.ratio(load, 'lunet', 'nvmet', figure) for figure in (RATE, GUEST)]
        print(f"| {name} | {' | '.join(nvmet)} |", file=out)
        print(f"note: {name}: throughput {nvmet[0]} of nvmet's, CPU per GiB {nvmet[1]}")
    for figure, title in ((RATE, 'throughput'), (GUEST, 'CPU per GiB of the guest'), (TARGET, 'CPU per GiB of lunet')):
        print(f"\n| random, lunet: {title}, NVMe over RDMA / | {' | '.join(name for _, name in others)} |", file=out)
        print('|---|---|---|---|', file=out)
        for load, name in loads:
            ratios = [measured.ratio(load, 'lunet', other, figure) for other, _ in others]
            print(f"| {name} | {' | '.join(ratios)} |", file=out)
PY
}

test_the_same_load_by_four_transports_and_to_nvmet() {
    local way ways load round
    local -A disk
    lunet_only "both targets are in this test"
    five_ways
    for way in $WAYS; do
        dd if=/dev/urandom of="${disk[$way]}" bs=1M count=$SIZE oflag=direct status=none
        verified "${disk[$way]}" 4M --bs=4k --iodepth=32
        verified "${disk[$way]}" 32M --bs=128k
    done
    for round in $(seq $ROUNDS); do
        # Whoever is first finds another machine than who is last.
        ways=$WAYS
        [ $((round % 2)) = 1 ] || ways=$(tr ' ' '\n' <<<"$WAYS" | tac)
        for load in $LOADS; do
            for way in $ways; do measure $load $way load "${disk[$way]}" $load; done
        done
    done
    table /host/table.md
    note "receivers that were not ready: $(roce send_rnr_err)"
}
