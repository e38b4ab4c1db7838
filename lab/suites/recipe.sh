# The machine that lunet set out from, in small: eight NVMe drives in two raidz1 vdevs, zvols, a target, initiators, fio; and the same
# with LIO for a target, on the same pool, in the same boot, in turns.
# client: fio
# run: -c 2 -d 8 -Z -m 4096 -t 3600
#
# In CI this is one round, which shows that everything runs and every byte is right. LAB_ROUNDS=9 makes as many rounds, and leaves a
# table of ratios in table.md beside the results. Absolute figures of an emulated machine mean nothing.

# The fio line of the recipe, with size and time cut to the guest: twelve files of $SIZE for $RUNTIME seconds.
RECIPE="--bs=128k --direct=1 --gtod_reduce=1 --ioengine=posixaio --iodepth=32 --group_reporting --name=randrw --numjobs=12 --rw=randrw"
SIZE=4M
RUNTIME=3
ROUNDS=1
[ "$LAB_ROUNDS" -le 5 ] || SIZE=16M RUNTIME=8 ROUNDS=$LAB_ROUNDS
TARGETS="lunet lio"

# lunet and LIO at once, each on two zvols of its own and at its own port; two initiators at each, of which each has a file system on a
# LUN of its own: /mnt/lunet1, /mnt/lunet2, /mnt/lio1, /mnt/lio2.
two_targets_with_two_initiators() {
    local target port=3260 who disk
    initiator
    for who in 1 2; do
        iscsiadm -m iface -I lab$who -o new
        iscsiadm -m iface -I lab$who -o update -n iface.initiatorname -v "$INITIATOR$who"
    done
    for target in $TARGETS; do
        LAB_TARGET=$target target_start portals=127.0.0.1:$port path="$(zvol "${target}1" 512M -s),$(zvol "${target}2" 512M -s)"
        for who in 1 2; do
            disk=$(iface=lab$who login 127.0.0.1:$port | sed -n "${who}p")
            mkfs.xfs -q "$disk"
            mkdir -p "/mnt/$target$who"
            mount "$disk" "/mnt/$target$who"
        done
        port=$((port + 1))
    done
    # They are two initiators to the target, and not one with two sessions.
    same "$(ask sessions --json | grep -o "$INITIATOR[12]" | sort -u | wc -l)" 2 "initiators at lunet"
    same "$(grep -ao "$INITIATOR[12]" /sys/kernel/config/target/iscsi/$IQN/tpgt_1/dynamic_sessions | sort -u | wc -l)" 2 "initiators at LIO"
}

# The recipe in these folders at once, with every block that was written read again and compared.
is_right() {
    local folder jobs=()
    for folder in "$@"; do
        # shellcheck disable=SC2086 # words
        fio $RECIPE --directory="$folder" --size=$SIZE --verify=crc32c --verify_fatal=1 --minimal >"/run/fio-${folder##*/}" 2>&1 &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job" || { cat /run/fio-*; return 1; }; done
}

# One measurement: WHERE TARGET FOLDER ...; a line of MiB/s, CPU seconds of the whole guest per GiB, and of the target alone.
measure() {
    local where=$1 target=$2 folder whole own kib=0 rate=0 jobs=() line
    shift 2
    sync
    whole=$(busy) own=$(busy_target "$target")
    for folder in "$@"; do
        # shellcheck disable=SC2086 # words
        fio $RECIPE --directory="$folder" --size=$SIZE --time_based --runtime=$RUNTIME --minimal >"/run/fio-${folder##*/}" 2>&1 &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job" || { cat /run/fio-*; return 1; }; done
    whole=$(($(busy) - whole)) own=$(($(busy_target "$target") - own))
    for folder in "$@"; do
        # Error, KiB read, KiB/s read, KiB written, KiB/s written.
        line=$(grep '^3;' "/run/fio-${folder##*/}" | cut -d';' -f5-7,47,48)
        [[ $line == 0\;* ]] || { cat "/run/fio-${folder##*/}"; return 1; }
        kib=$((kib + $(awk -F';' '{print $2 + $4}' <<<"$line")))
        rate=$((rate + $(awk -F';' '{print $3 + $5}' <<<"$line")))
    done
    [ $kib -gt 0 ] || { echo "    nothing was read or written in $*"; return 1; }
    # Ticks are hundredths of a second.
    awk -v w="$where" -v t="$target" -v k=$kib -v r=$rate -v a=$whole -v o=$own \
        'BEGIN {print w, t, r / 1024, a / 100 / k * 1048576, o / 100 / k * 1048576}' | tee -a /run/measured
}

# Ticks that the guest's processors were not idle.
busy() { awk '$1 == "cpu" {print $2 + $3 + $4 + $7 + $8}' /proc/stat; }

# Ticks that a target has used: lunet's process, or the threads of LIO's connections. What work queues do for LIO is in neither.
busy_target() {
    case $1 in
        lunet) awk '{print $14 + $15}' "/proc/$(cat /run/lunet/lunet.pid)/stat" ;;
        lio) cat $(grep -l '^iscsi_t[rt]x$' /proc/[0-9]*/comm | sed 's/comm$/stat/') | awk '{sum += $14 + $15} END {print sum}' ;;
        *) echo 0 ;;
    esac
}

# What was measured, as a table of medians and of ratios within a round.
table() {
    python3 - "$1" <<'PY'
import sys
rounds, found = 0, {}
for line in open('/run/measured'):
    where, target, *figures = line.split()
    found.setdefault((where, target), []).append([float(figure) for figure in figures])

def median(values):
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2

def ratios(where, n):
    every = [a[n] / b[n] for a, b in zip(found[where, 'lunet'], found[where, 'lio']) if b[n]]
    spread = f' ({min(every):.2f}-{max(every):.2f})' if len(every) > 1 else ''
    return f'{median(every):.2f}{spread}' if every else 'none'

pool = median([f[0] for f in found['pool', 'none']])
with open(sys.argv[1], 'w') as out:
    print('| the recipe on | of the pool: lunet | LIO | throughput, lunet / LIO | CPU per GiB of the guest | of the target |', file=out)
    print('|---|---|---|---|---|---|', file=out)
    for where, name in (('one', 'one initiator'), ('two', 'two initiators at once')):
        shares = [f"{median([f[0] for f in found[where, target]]) / pool:.2f}" for target in ('lunet', 'lio')]
        print(f"| {name} | {' | '.join(shares)} | {' | '.join(ratios(where, n) for n in range(3))} |", file=out)
        print(f"note: {name}, lunet / LIO: throughput {ratios(where, 0)}, CPU of the guest per GiB {ratios(where, 1)}")
PY
}

test_the_recipe_on_the_pool_and_through_lunet_and_lio() {
    local round target
    lunet_only "both targets are in this test"
    zfs_pool
    zfs create $POOL/recipe
    is_right /$POOL/recipe
    two_targets_with_two_initiators
    for target in $TARGETS; do is_right /mnt/${target}1 /mnt/${target}2; done
    for round in $(seq $ROUNDS); do
        measure pool none /$POOL/recipe
        for target in $TARGETS; do measure one $target /mnt/${target}1; done
        for target in $TARGETS; do measure two $target /mnt/${target}1 /mnt/${target}2; done
    done
    table /host/table.md
    for target in $TARGETS; do
        umount /mnt/${target}1 /mnt/${target}2
        xfs_repair -n "/dev/zvol/$POOL/${target}1"
        xfs_repair -n "/dev/zvol/$POOL/${target}2"
    done
    zpool scrub $POOL
    zfs_quiet
    says 'is healthy' zpool status -x $POOL
}
