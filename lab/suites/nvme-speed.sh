# NVMe over TCP by lunet and by the kernel's nvmet, and iSCSI over TCP by lunet, in one boot, in turns: with the kernel's host and initiator.
#
# By itself this is one short round, which shows that everything runs and every byte is right. LAB_ROUNDS=7 makes as many rounds, and
# leaves a table of ratios in table.md beside the results.
# client: nvme-tcp, against nvmet
# run: -c 2 -t 3600
# minutes: 2
# speed

SIZE=64
RUNTIME=2
ROUNDS=1
[ "$LAB_ROUNDS" -le 5 ] || RUNTIME=3 ROUNDS=$LAB_ROUNDS
WAYS="lunet nvmet lunet-iscsi"
# Blocks and direction, the number of requests at a time, the number of processes.
LOADS="4k-read:1:1 4k-read:32:1 4k-read:32:4 4k-write:1:1 4k-write:32:1 4k-write:32:4 128k-read:16:1 128k-write:16:1"

# The three ways to a disk in memory, as $disk[WAY]. That of lunet is one volume.
three_ways() {
    (
        NQN=nqn.2026-11.local.nvmet:lab
        LAB_TARGET=lio nvme_start memory=1 size=$SIZE portals=127.0.0.1:4421
    )
    LAB_TARGET=lunet nvme_start memory=1 size=$SIZE both=1
    disk[lunet]=$(attach)
    disk[nvmet]=$(NQN=nqn.2026-11.local.nvmet:lab attach 127.0.0.1:4421)
    disk[lunet-iscsi]=$(login 127.0.0.1:3260)
    same "$(printf '%s\n' "${disk[@]}" | sort -u | wc -l)" 3 "disks"
    for way in $WAYS; do same "$(blockdev --getsize64 "${disk[$way]}")" $((SIZE << 20)) "size by $way"; done
}

# Reads or writes at random for a while: DISK LOAD
load() {
    local blocks depth jobs
    IFS=: read -r blocks depth jobs <<<"$2"
    fio --name="$2" --filename="$1" --rw=rand${blocks#*-} --bs=${blocks%-*} --iodepth="$depth" --numjobs="$jobs" --group_reporting \
        --direct=1 --ioengine=libaio --time_based --runtime=$RUNTIME --minimal >/run/fio-load 2>&1
}

# What was measured, as a table of medians and of ratios within a round.
table() {
    PYTHONPATH=/host/guest python3 - "$1" $LOADS <<'PY'
import sys
from figures import *
measured = Measured()
with open(sys.argv[1], 'w') as out:
    print('| random | throughput, lunet / nvmet | CPU per GiB of the guest, lunet / nvmet '
          '| throughput, lunet, NVMe / iSCSI | CPU per GiB of the guest, lunet, NVMe / iSCSI | CPU per GiB of lunet, NVMe / iSCSI |', file=out)
    print('|---|---|---|---|---|---|', file=out)
    for load in sys.argv[2:]:
        blocks, depth, jobs = load.split(':')
        name = f"{blocks.replace('-', ' ')}s, depth {depth}, processes {jobs}"
        nvmet = [measured.ratio(load, 'lunet', 'nvmet', figure) for figure in (RATE, GUEST)]
        iscsi = [measured.ratio(load, 'lunet', 'lunet-iscsi', figure) for figure in (RATE, GUEST, TARGET)]
        print(f"| {name} | {' | '.join(nvmet + iscsi)} |", file=out)
        print(f"note: {name}: throughput {nvmet[0]} of nvmet's, {iscsi[0]} of iSCSI's")
PY
}

test_the_same_load_to_lunet_and_to_nvmet_and_over_iscsi() {
    local way ways load round
    local -A disk
    lunet_only "both targets are in this test"
    three_ways
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
}
