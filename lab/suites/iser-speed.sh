# iSER by lunet, iSER by LIO (ib_isert), and lunet's own TCP, over soft RoCE, in one boot, in turns: with the kernel's initiator.
#
# By itself this is one short round, which shows that everything runs and every byte is right. LAB_ROUNDS=7 makes as many rounds, and
# leaves a table of ratios in table.md beside the results. What soft RoCE can show: docs/performance.md.
# client: open-iscsi over rdma_rxe, against LIO's isert
# Two processors: with one, isert (Linux 6.12) may take a session's first command before what was negotiated is noted, and then
# cuts its data into pieces of no bytes for ever.
# run: -c 2 -t 3600
# minutes: 2
# speed

ADDRESS=192.0.2.1
# Both disks are in memory: lunet's volume, and LIO's ramdisk. lunet's is the same one over iSER and over TCP.
SIZE=64
RUNTIME=2
ROUNDS=1
[ "$LAB_ROUNDS" -le 5 ] || RUNTIME=3 ROUNDS=$LAB_ROUNDS
WAYS="lunet lio lunet-tcp"
# Blocks and direction, the number of requests at a time.
LOADS="4k-read:32 4k-write:32 128k-read:16 128k-write:16"

suite_setup() {
    modprobe ib_iser
    rdma_network $ADDRESS/24
}

# The three ways to a disk, as $disk[WAY].
three_ways() {
    LAB_TARGET=lio target_start path=memory:$SIZE portals=$ADDRESS:3261 iser=1
    LAB_TARGET=lunet target_start path=memory:$SIZE portals=$ADDRESS:3260
    disk[lunet]=$(iface=iser login $ADDRESS:3260)
    disk[lio]=$(iface=iser login $ADDRESS:3261)
    disk[lunet-tcp]=$(login $ADDRESS:3260)
    same "$(ask sessions | grep -c ' over iser') $(ask sessions | grep -c ' over tcp')" "1 1" "sessions by iSER and TCP"
    same "$(iscsiadm -m session | grep -c "^iser:")" 2 "sessions by iSER"
}

# Reads or writes at random for a while: DISK LOAD
load() {
    local blocks=${2%:*}
    fio --name="$2" --filename="$1" --rw=rand${blocks#*-} --bs=${blocks%-*} --iodepth="${2#*:}" --direct=1 --ioengine=libaio \
        --time_based --runtime=$RUNTIME --minimal >/run/fio-load 2>&1
}

# What was measured, as a table of medians and of ratios within a round.
table() {
    PYTHONPATH=/host/guest python3 - "$1" $LOADS <<'PY'
import sys
from figures import *
measured = Measured()
with open(sys.argv[1], 'w') as out:
    print('| random | throughput, iSER, lunet / LIO | CPU per GiB of the guest, iSER, lunet / LIO '
          '| throughput, lunet, iSER / TCP | CPU per GiB of the guest, lunet, iSER / TCP | CPU per GiB of lunet, iSER / TCP |', file=out)
    print('|---|---|---|---|---|---|', file=out)
    for load in sys.argv[2:]:
        where, depth = load.split(':')
        name = f"{where.replace('-', ' ')}s, depth {depth}"
        lio = [measured.ratio(where, 'lunet', 'lio', figure) for figure in (RATE, GUEST)]
        tcp = [measured.ratio(where, 'lunet', 'lunet-tcp', figure) for figure in (RATE, GUEST, TARGET)]
        print(f"| {name} | {' | '.join(lio + tcp)} |", file=out)
        print(f"note: {name}: throughput {lio[0]} of LIO's, {tcp[0]} of TCP's")
PY
}

test_the_same_load_over_iser_to_lunet_and_to_lio_and_over_tcp() {
    local way ways load round
    local -A disk
    lunet_only "both targets are in this test"
    three_ways
    for way in $WAYS; do
        # LIO's disk has all of its memory from the start, lunet's takes a page when it is written to.
        dd if=/dev/urandom of="${disk[$way]}" bs=1M count=$SIZE oflag=direct status=none
        verified "${disk[$way]}" 4M --bs=4k --iodepth=32
        verified "${disk[$way]}" 32M --bs=128k
    done
    for round in $(seq $ROUNDS); do
        # Whoever is first finds another machine than who is last.
        ways=$WAYS
        [ $((round % 2)) = 1 ] || ways=$(tr ' ' '\n' <<<"$WAYS" | tac)
        for load in $LOADS; do
            for way in $ways; do measure ${load%:*} $way load "${disk[$way]}" $load; done
        done
    done
    table /host/table.md
    note "receivers that were not ready: $(roce send_rnr_err)"
}
