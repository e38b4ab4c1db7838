# The machine that lunet set out from, in small: eight NVMe drives in two raidz1 vdevs, zvols, a target, initiators, fio; and the same
# with LIO for a target, on the same pool, in the same boot, in turns.
# client: fio
# run: -c 2 -d 8 -Z -m 4096 -t 3600
#
# By itself this is one round, which shows that everything runs and every byte is right. LAB_ROUNDS=9 makes as many rounds, and leaves a
# table of ratios in table.md beside the results. Absolute figures of an emulated machine mean nothing.
# minutes: 3
# speed

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

# The recipe in these folders at once: OPTIONS FOLDER ...
recipe() {
    local options=$1 folder jobs=() job
    shift
    for folder in "$@"; do
        # shellcheck disable=SC2086 # words
        fio $RECIPE --directory="$folder" --size=$SIZE $options --minimal >"/run/fio-${folder##*/}" 2>&1 &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job" || return 1; done
}

# The same, with every block that was written read again and compared.
is_right() { recipe "--verify=crc32c --verify_fatal=1" "$@" || { cat /run/fio-*; return 1; }; }

# One measurement of it: WHERE TARGET FOLDER ...
measure_recipe() { measure "$1" "$2" recipe "--time_based --runtime=$RUNTIME" "${@:3}"; }

# What was measured, as a table of medians and of ratios within a round.
table() {
    PYTHONPATH=/host/guest python3 - "$1" <<'PY'
import sys
from figures import *
measured = Measured()
ratio = lambda where, figure: measured.ratio(where, 'lunet', 'lio', figure)
pool = measured.median('pool', 'none', RATE)
with open(sys.argv[1], 'w') as out:
    print('| the recipe on | lunet / pool | LIO / pool | throughput, lunet / LIO | CPU per GiB of the guest, lunet / LIO | CPU per GiB of the target, lunet / LIO |', file=out)
    print('|---|---|---|---|---|---|', file=out)
    for where, name in (('one', 'one initiator'), ('two', 'two initiators at once')):
        shares = [f"{measured.median(where, target, RATE) / pool:.2f}" for target in ('lunet', 'lio')]
        print(f"| {name} | {' | '.join(shares)} | {' | '.join(ratio(where, n) for n in (RATE, GUEST, TARGET))} |", file=out)
        print(f"note: {name}, lunet / LIO: throughput {ratio(where, RATE)}, CPU of the guest per GiB {ratio(where, GUEST)}")
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
        measure_recipe pool none /$POOL/recipe
        for target in $TARGETS; do measure_recipe one $target /mnt/${target}1; done
        for target in $TARGETS; do measure_recipe two $target /mnt/${target}1 /mnt/${target}2; done
    done
    table /host/table.md
    for target in $TARGETS; do
        umount /mnt/${target}1 /mnt/${target}2
        xfs_repair -n "/dev/zvol/$POOL/${target}1"
        xfs_repair -n "/dev/zvol/$POOL/${target}2"
    done
    zfs_scrub
    says 'is healthy' zpool status -x $POOL
}
