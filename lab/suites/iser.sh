# iSER over soft RoCE: the kernel's initiator (ib_iser) against the target, both in the guest.
#
# Soft RoCE shows that it is right, not how fast it is.
# client: open-iscsi over rdma_rxe
# minutes: 5

ADDRESS=192.0.2.1

suite_setup() {
    modprobe ib_iser
    rdma_network $ADDRESS/24
}

# Starts lunet on the RDMA device's address: [target_start's NAME=VALUE ...]
served() {
    lunet_only "about lunet's own iSER"
    target_start portals=$ADDRESS:3260 "$@"
}

# Logs in by iSER and prints the disks.
rdma_login() { iface=iser login $ADDRESS:3260 "$@"; }

# What rdma knows of lunet's queue pairs, regions and queues: the number of lines.
held() { rdma resource show qp 2>/dev/null | grep -c 'comm lunet'; }

test_it_says_where_it_listens() {
    served
    logged "iSER: listening on $ADDRESS:3260 (device rxe0, GID ::ffff:$ADDRESS)"
}

test_login_and_logout() {
    local d
    served size=64
    d=$(rdma_login)
    same "$(blockdev --getsize64 "$d")" $((64 << 20))
    logged "iSER: connect request from $ADDRESS"
    logged "iSER: accepted $ADDRESS"
    logged "iSER: established $ADDRESS.*device rxe0, GID ::ffff:$ADDRESS, path MTU 4096 bytes"
    ask sessions >/run/sessions
    grep -q ' over iser' /run/sessions
    grep -q 'device rxe0, GID ::ffff:192.0.2.1, path MTU 4096 bytes' /run/sessions
    logout
    same "$(disks)" ""
    logged "iSER: disconnected $ADDRESS"
    within 20 eval '[ "$(held)" = 0 ]'
}

# long
test_verified_load_of_all_sizes() {
    local d size
    served size=128
    d=$(rdma_login)
    # Small blocks take the emulator long.
    for size in 512:1M 4k:8M 128k:32M 1M:64M 8M:64M; do
        verified "$d" ${size#*:} --bs=${size%:*} --iodepth=16
    done
    verified "$d" 32M --rw=randwrite --bsrange=4k-1M --iodepth=8
    ask sessions --json >/run/sessions
    grep -q '"rdma_reads": *[1-9]' /run/sessions
    grep -q '"rdma_writes": *[1-9]' /run/sessions
    # Whoever finds no receive waits for most of a second.
    note "receivers that were not ready: $(roce send_rnr_err)"
}

# long
test_native_4k_blocks() {
    local d
    served block=4096 physical=4096
    d=$(rdma_login)
    same "$(blockdev --getss "$d")" 4096
    verified "$d" 8M --bs=4k --iodepth=32
}

# long
test_writes_without_immediate_data() {
    local d
    served size=128
    d=$(rdma_login node.session.iscsi.InitialR2T=Yes node.session.iscsi.ImmediateData=No)
    verified "$d" 64M --rw=randwrite --bsrange=4k-1M --iodepth=8
}

test_ext4_with_verified_load() {
    local d size
    served size=400
    d=$(rdma_login)
    mounted ext4 "$d"
    for size in 4k:4M 128k:16M; do verified /mnt/fs/v${size%:*} ${size#*:} --bs=${size%:*} --fsync=32; done
    unmounted_is_sound ext4 "$d"
}

test_tcp_and_iser_beside_each_other() {
    local by_rdma by_tcp
    served size=64
    by_rdma=$(rdma_login)
    by_tcp=$(login $ADDRESS:3260)
    dd if=/dev/urandom of=/run/data bs=1M count=8 status=none
    dd if=/run/data of="$by_rdma" oflag=direct bs=1M status=none
    blockdev --flushbufs "$by_tcp"
    cmp -n $((8 << 20)) /run/data "$by_tcp"
    ask sessions >/run/sessions
    same "$(grep -c ' over tcp' /run/sessions) $(grep -c ' over iser' /run/sessions)" "1 1"
    # Both are of one portal: what clears up between tests ends one of them.
    logout
    within 20 eval '[ -z "$(ls /sys/class/iscsi_session)" ]'
}

test_a_session_on_tcp_says_why_it_is_not_on_iser() {
    served size=64
    [ -n "$(login $ADDRESS:3260)" ]
    ask sessions >/run/sessions
    grep -q 'could use iSER: this address is served over iSER too (device rxe0), and the initiator chose TCP' /run/sessions
    logged "iSER: not used by $ADDRESS:[0-9]* at $ADDRESS:3260: this address is served over iSER too"
    ask stats >/run/stats
    grep -q "$ADDRESS:3260 serves TCP and iSER (device rxe0)" /run/stats
    # And so the doctor sees it.
    "$LUNET" tune facts --json >/run/facts
    python3 -c 'if True:
        import json
        facts = json.load(open("/run/facts"))
        portal = facts["lunets"][0]["portals"][0]
        session = facts["targets"][0]["sessions"][0]
        assert (portal["iser"], portal["devices"]) == (True, ["rxe0"]), portal
        assert (session["transport"], session["iser_offered"]) == ("tcp", True), session'
    logout
    rdma_login >/dev/null
    ask sessions >/run/sessions
    fails grep -q 'could use iSER' /run/sessions
}

test_a_session_comes_back_after_the_server_was_killed() {
    local d
    served size=64
    d=$(rdma_login)
    patience 120
    dd if=/dev/urandom of=/run/data bs=1M count=8 status=none
    dd if=/run/data of="$d" oflag=direct bs=1M status=none
    stop -9
    start_again
    timeout 100 dd if="$d" of=/run/back iflag=direct bs=1M count=8 status=none
    cmp /run/data /run/back
}

test_no_device_is_a_line_and_tcp_is_served() {
    lunet_only "about lunet's own iSER"
    ip addr add 192.0.2.129/32 dev lo
    target_start portals=192.0.2.129:3260
    [ -n "$(login 192.0.2.129:3260)" ]
    logged 'iSER: not served at 192.0.2.129:3260: no RDMA device carries the address'
    ask sessions >/run/sessions
    grep -q 'no iSER here: no RDMA device carries the address 192.0.2.129' /run/sessions
    ip addr del 192.0.2.129/32 dev lo
}

# Starts lunet with something missing, by a program that becomes lunet: it comes on standard input.
hindered() {
    { echo '#!/bin/bash'; cat; } >/run/hindered
    chmod +x /run/hindered
    LUNET=/run/hindered served size=64
}

# What the server, a session on TCP and the doctor say of it: SENTENCE CHECK
says_why() {
    logged "iSER: not served at $ADDRESS:3260: .*$1"
    [ -n "$(login $ADDRESS:3260)" ]
    ask sessions >/run/sessions
    grep -q "no iSER here: .*$1" /run/sessions
    ask stats >/run/stats
    grep -q "no iSER: .*$1" /run/stats
    "$LUNET" doctor --json >/run/doctor || [ $? = 1 ]
    python3 -c 'if True:
        import json, sys
        found = [finding["check"] for finding in json.load(open("/run/doctor"))["findings"]]
        assert sys.argv[1] in found, found' "$2"
}

# long
test_a_low_limit_of_locked_memory_is_named() {
    hindered <<<'ulimit -l 64; exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock /run/programs/lunet "$@"'
    says_why 'this process may lock 0 MiB' iser-locked-memory
}

# long
test_a_missing_library_is_named() {
    hindered <<<'exec unshare -m bash -c "mount --bind /dev/null /usr/lib/x86_64-linux-gnu/libibverbs.so.1 && exec /run/programs/lunet \"\$@\"" sh "$@"'
    says_why 'libibverbs.so.1 cannot be opened' iser-library
}

test_a_portal_for_iser_alone_needs_a_device() {
    lunet_only "about lunet's own iSER"
    mkdir -p /run/alone
    cat >/run/alone/lunet.toml <<TOML
[[portal]]
address = "10.0.2.15:3260"
transport = ["iser"]
[volumes.a]
backend = "memory"
size = "1MiB"
[[target]]
name = "$IQN"
open = true
luns = ["a"]
TOML
    fails "$LUNET" serve --config /run/alone/lunet.toml --data /run/alone --socket /run/alone/sock >/run/said 2>&1
    grep -q 'cannot serve iSER at 10.0.2.15:3260: no RDMA device carries the address' /run/said
}

# --- what a host does -----------------------------------------------------------------------------------------------------------

# long
test_unaligned_user_buffers() {
    local d
    served size=8
    d=$(rdma_login)
    unaligned_io "$d"
    logout
    cmp /run/image /var/lib/lab/disk0
}

# The number of everything that lunet has of RDMA.
objects() { for kind in qp cm_id cq pd mr; do rdma resource show $kind; done | grep -c 'comm lunet'; }

# long
test_sixteen_sessions_at_once() {
    local before d n=0
    served size=128
    before=$(objects)
    initiator
    iface=iser record $ADDRESS:3260 node.session.nr_sessions=16
    iscsiadm -m node -T $IQN -p $ADDRESS:3260 -I iser --login >/dev/null
    within 60 eval '[ "$(disks | wc -l)" = 16 ]'
    settled
    same "$(ask sessions | grep -c ' over iser')" 16
    # Each session has a part of the disk for itself. One fio for all: an emulated processor starts few.
    printf '%s\n' '[global]' allow_file_create=0 direct=1 ioengine=libaio rw=randrw bs=32k iodepth=8 size=1M verify=crc32c verify_fatal=1 >/run/jobs
    for d in $(disks); do
        printf '%s\n' "[session$n]" "filename=$d" "offset=$((n * 8))M" >>/run/jobs
        n=$((n + 1))
    done
    fio --minimal /run/jobs >/run/fio 2>&1 || { cat /run/fio; return 1; }
    same "$(grep -c '^3;' /run/fio)" 16 "sessions that carried load"
    logout
    ask sessions >/run/sessions
    fails grep ' over iser' /run/sessions
    within 30 eval "[ \"\$(objects)\" = $before ]"
}

# --- commands that do not end ---------------------------------------------------------------------------------------------------

# A disk whose part from 30 to 31 MiB is slow to read: TIME. Prints the disk; the rest of it is in use afterwards.
slow_login() {
    serve >&2 <<TOML
[server]
shards = 2
[[portal]]
address = "$ADDRESS:3260"
[volumes.disk]
backend = "file"
size = "64MiB"
layers = [{ delay = "$1", on = "read", from = "30MiB", to = "31MiB" }]
[[target]]
name = "$IQN"
open = true
luns = ["disk"]
TOML
    rdma_login
}

# Reads of the slow part, eight at a time, in the background: DISK. Not with fio: see `verified`.
slow_reads() {
    local i pids=
    {
        for ((i = 0; i < 8; i++)); do
            dd if="$1" of=/dev/null bs=64k count=2 skip=$((480 + i * 2)) iflag=direct status=none &
            pids+=" $!"
        done
        for i in $pids; do wait "$i" || exit; done
    } >/run/slow 2>&1 &
    slow=$!
    within 20 eval "read -r reads _ </sys/block/${1#/dev/}/inflight && [ \"\$reads\" -ge 4 ]"
}

# The kernel's error handler: aborts, then a reset of the LUN, then a new session.
# long
test_aborts_of_commands_that_hang() {
    local d
    lunet_only "needs a disk that hangs"
    d=$(slow_login 12s)
    echo 3 >"/sys/block/${d#/dev/}/device/timeout"
    dd if="$d" of=/dev/null bs=4k count=1 skip=7700 iflag=direct status=none || true
    [ "$(counted aborted)" -gt 0 ]
    verified "$d" 8M --bs=16k
    logout
    d=$(rdma_login)
    verified "$d" 8M --bs=16k
    note "$(counted aborted) commands were aborted"
}

test_reset_of_a_lun_with_commands_under_way() {
    local d
    lunet_only "needs a disk that hangs"
    d=$(slow_login 6s)
    slow_reads "$d"
    sg_reset -d "$d"
    [ "$(counted aborted)" -ge 4 ]
    # The initiator sends them again.
    wait $slow || { cat /run/slow; return 1; }
    verified "$d" 8M --bs=16k
}

# long
test_logout_with_commands_under_way() {
    local d
    lunet_only "needs a disk that hangs"
    d=$(slow_login 12s)
    dd if=/dev/urandom of=/run/data bs=1M count=8 status=none
    dd if=/run/data of="$d" oflag=direct bs=1M status=none
    slow_reads "$d"
    timeout 60 iscsiadm -m node -T $IQN -p $ADDRESS:3260 --logout >/dev/null
    # Linux lets them end before it says so; `iser` of iser-faults.sh does not.
    wait $slow
    same "$(disks)" ""
    within 20 eval '[ "$(held)" = 0 ]'
    d=$(rdma_login)
    cmp -n $((8 << 20)) /run/data "$d"
    verified "$d" 8M --bs=16k
}

# long
test_connects_and_disconnects_leave_nothing() {
    local i
    served
    for ((i = 0; i < LAB_ROUNDS * 2; i++)); do
        rdma_login >/dev/null
        logout
    done
    within 20 eval '[ "$(held)" = 0 ]'
}

test_a_device_that_comes_after_the_server() {
    lunet_only "about lunet's own iSER"
    rdma link del rxe0
    served size=16
    logged "iSER: not served at $ADDRESS:3260: no RDMA device carries the address"
    rdma link add rxe0 type rxe netdev rdma0
    logged "iSER: listening on $ADDRESS:3260"
    [ -n "$(rdma_login)" ]
}
