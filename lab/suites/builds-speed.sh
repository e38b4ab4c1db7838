# Two builds of lunet by all four transports: NVMe over RDMA, iSER, NVMe over TCP, iSCSI over TCP. In one boot, in turns, over soft RoCE and
# the interface below it, with the kernel's host and initiator.
#
# The build to compare with is the program `lunet-before` in the folder $LUNET_LAB_PROGRAMS. By itself this is one short round.
# LAB_ROUNDS=7 makes as many rounds, and leaves a table of ratios in table.md beside the results.
# client: nvme-rdma and open-iscsi over rdma_rxe
# run: -c 2 -t 3600 -p lunet-before
# minutes: 4
# speed

ADDRESS=192.0.2.1
SIZE=64
RUNTIME=2
ROUNDS=1
[ "$LAB_ROUNDS" -le 5 ] || ROUNDS=$LAB_ROUNDS
TRANSPORTS="rdma iser tcp iscsi"
# Blocks and direction, and the number of requests at a time.
LOADS="4k-read:1 4k-read:32 4k-write:32 128k-read:16 128k-write:16"

suite_setup() {
    [ -x /run/programs/lunet-before ] || { echo "there is no program lunet-before to compare with"; return 1; }
    modprobe nvme-core multipath=N
    modprobe -a ib_iser nvme-tcp nvme-rdma
    rdma_network $ADDRESS/24
}

# The configuration of one build: NUMBER
build_toml() {
    cat <<TOML
[server]
shards = 1
[[portal]]
address = "$ADDRESS:$((3260 + $1))"
[[portal]]
address = "$ADDRESS:$((4420 + $1))"
transport = ["nvme-tcp", "nvme-rdma"]
[volumes.disk0]
backend = "memory"
size = "${SIZE}MiB"
[[target]]
name = "$IQN"
protocols = ["iscsi", "nvme"]
open = true
nqn = "$NQN:$1"
luns = ["disk0"]
TOML
}

# The four ways to the disk of a build, as $disk[TRANSPORT-BUILD]: BUILD NUMBER
four_ways() {
    local nqn=$NQN
    build_toml "$2" | serve "lunet-$1"
    disk[iser-$1]=$(iface=iser login "$ADDRESS:$((3260 + $2))")
    disk[iscsi-$1]=$(login "$ADDRESS:$((3260 + $2))")
    NQN=$nqn:$2
    disk[rdma-$1]=$(way=rdma attach "$ADDRESS:$((4420 + $2))")
    disk[tcp-$1]=$(as=1 attach "$ADDRESS:$((4420 + $2))")
    NQN=$nqn
}

# Reads or writes at random for a while: DISK LOAD
load() {
    local blocks=${2%:*}
    fio --name="$2" --filename="$1" --rw=rand${blocks#*-} --bs=${blocks%-*} --iodepth="${2#*:}" --direct=1 --ioengine=libaio \
        --time_based --runtime=$RUNTIME --minimal >/run/fio-load 2>&1
}

# What was measured, as a table of medians and of ratios within a round.
table() {
    PYTHONPATH=/host/guest python3 - "$1" "$TRANSPORTS" $LOADS <<'PY'
import sys
from figures import *
measured = Measured()
names = {'rdma': 'NVMe over RDMA', 'iser': 'iSER', 'tcp': 'NVMe over TCP', 'iscsi': 'iSCSI over TCP'}
transports = sys.argv[2].split()
with open(sys.argv[1], 'w') as out:
    print(f"| random, after / before: throughput, and CPU per GiB of lunet | {' | '.join(names[t] for t in transports)} |", file=out)
    print('|---' * (len(transports) + 1) + '|', file=out)
    for load in sys.argv[3:]:
        where, depth = load.split(':')
        cells = []
        for transport in transports:
            pair = f'lunet-{transport}-after', f'lunet-{transport}-before'
            rate, own = (measured.ratio(load, *pair, figure) for figure in (RATE, TARGET))
            cells.append(f'{rate}, {own}')
            print(f'note: {where}s, depth {depth}, {names[transport]}: throughput {rate}, CPU of lunet {own}')
        print(f"| {where.replace('-', ' ')}s, depth {depth} | {' | '.join(cells)} |", file=out)
PY
}

test_the_same_load_by_two_builds() {
    local transport build builds load round
    local -A disk
    lunet_only "both are lunet"
    LUNET=/run/programs/lunet-before four_ways before 1
    four_ways after 0
    same "$(printf '%s\n' "${disk[@]}" | sort -u | wc -l)" 8 "disks"
    for build in before after; do
        # A page of memory is there from its first write on.
        dd if=/dev/urandom of="${disk[iscsi-$build]}" bs=1M count=$SIZE oflag=direct status=none
        for transport in $TRANSPORTS; do verified "${disk[$transport-$build]}" 4M --io_size=4M; done
    done
    for round in $(seq $ROUNDS); do
        # Whoever is first finds another machine than who is last.
        builds="before after"
        [ $((round % 2)) = 1 ] || builds="after before"
        for load in $LOADS; do
            for transport in $TRANSPORTS; do
                for build in $builds; do
                    measure "$load" "lunet-$transport-$build" load "${disk[$transport-$build]}" "$load"
                done
            done
        done
    done
    table /host/table.md
    note "receivers that were not ready: $(roce send_rnr_err)"
}
