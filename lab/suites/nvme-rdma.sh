# NVMe over soft RoCE: the kernel's host (nvme-rdma) against the target, both in the guest, at the two ends of a cable. With
# LAB_TARGET=lio the target is the kernel's nvmet.
#
# Soft RoCE shows that it is right, not how fast it is.
# The kernel's host, and the program `nvme-rdma` of tests/, which does what the kernel's never would.
# run: -p nvme-rdma
# client: nvme-rdma over rdma_rxe
# minutes: 6

PORTAL=$THERE:4420

suite_setup() { rdma_cable; }

# Instead of the helpers' own: what a failed test has left undone.
network_mend() { rdma_cable_mend; }

served() { nvme_start portals=$PORTAL over=rdma "$@"; }

# Connects over RDMA, and prints the disks: [OPTION of nvme connect ...]
rdma_attach() { way=rdma attach $PORTAL "$@"; }

# One of the raw host's trials: TRIAL [NUMBER]
raw() { (ulimit -l unlimited && exec /run/programs/nvme-rdma $HERE $PORTAL $NQN "$@"); }

# A load that is going on goes on: NAME
goes_on() {
    local rounds
    rounds=$(wc -l <"/run/load.$1.rounds")
    within 90 eval "[ \$(wc -l </run/load.$1.rounds) -gt $((rounds + 1)) ]"
}

# Pages of the server in memory, in KiB.
resident() { awk '/^VmRSS/ {print $2}' "/proc/$(cat "$LUNET_RUN/lunet.pid")/status"; }

# The controller that is reached by this transport.
controller_by() { grep -lx "$1" /sys/class/nvme/nvme*/transport | cut -d/ -f5; }

# The state of a path: CONTROLLER STATE
path_is() { [ "$(cat "/sys/class/nvme/$1"/nvme*c*n1/ana_state)" = "$2" ]; }

# The load goes by this path from now on: CONTROLLER
carries() {
    local path before
    path=$(echo "/sys/class/nvme/$1"/nvme*c*n1)
    before=$(awk '{print $5}' "$path/stat")
    within 60 eval "[ \$(awk '{print \$5}' '$path/stat') -gt $((before + 20)) ]"
}

# What the disk has is what the target has.
sound() {
    blockdev --flushbufs "$disk"
    dd if="$disk" of=/run/read bs=256k iflag=direct status=none
    cmp /run/read /var/lib/lab/disk0
}

# What rdma knows of lunet's queue pairs: the number of lines.
held() { rdma resource show qp 2>/dev/null | grep -c 'comm lunet'; }

test_it_says_where_it_listens() {
    lunet_only "about lunet's log"
    served
    logged "NVMe over RDMA: listening on $PORTAL (device rxe1, GID ::ffff:$THERE)"
    ask stats >/run/stats
    grep -q "$PORTAL serves NVMe over RDMA (device rxe1)" /run/stats
}

test_discovery_names_the_transport() {
    served
    nvme discover -t rdma -a $THERE -s 4420 -q "${HOSTNQN[0]}" >/run/discovery
    same "$(awk '/subnqn/ {print $2}' /run/discovery | grep -c -x "$NQN")" 1
    same "$(grep -c 'trtype:  rdma' /run/discovery)" "$(grep -c '^=====' /run/discovery)"
    grep -q 'rdma_qptype: connected' /run/discovery
    grep -q 'rdma_cms:    rdma-cm' /run/discovery
}

# long
test_connect_all() {
    served
    nvme connect-all -t rdma -a $THERE -s 4420 -q "${HOSTNQN[0]}" -I "${HOSTNQN[0]##*uuid:}"
    within 30 namespaces_are "$(controllers)" 1
    same "$(cat "/sys/class/nvme/$(controllers)/transport")" rdma
    verified "$(namespaces "$(controllers)")" 2M --bs=64k
}

test_connect_and_disconnect() {
    local d
    served size=64
    d=$(rdma_attach)
    same "$(blockdev --getsize64 "$d")" $((64 << 20))
    if [ "$LAB_TARGET" = lunet ]; then
        logged "NVMe over RDMA: established $HERE.*device rxe1, GID ::ffff:$THERE, path MTU 4096 bytes"
        ask sessions >/run/sessions
        grep -q ' over nvme-rdma, controller' /run/sessions
        grep -q "device rxe1, GID ::ffff:$THERE, path MTU 4096 bytes, queue depth 128" /run/sessions
    fi
    detach
    same "$(controllers)" ""
    [ "$LAB_TARGET" != lunet ] || within 20 eval '[ "$(held)" = 0 ]'
}

# long
test_verified_load_of_all_sizes() {
    local d size
    served size=128
    d=$(rdma_attach)
    # Small blocks take the emulator long.
    for size in 512:512K 4k:4M 16k:8M 128k:16M 1M:32M; do
        verified "$d" ${size#*:} --bs=${size%:*} --iodepth=16
    done
    verified "$d" 16M --rw=randwrite --bsrange=4k-1M --iodepth=8
    # Whoever finds no receive waits.
    note "receivers that were not ready: $(cat /sys/class/infiniband/rxe*/ports/1/hw_counters/send_rnr_err | paste -sd' ')"
}

# long
test_several_queues() {
    local d
    served
    d=$(rdma_attach --nr-io-queues=2 --nr-write-queues=1 --queue-size=32)
    verified "$d" 4M --numjobs=2 --offset_increment=32M --iodepth=32
}

# long
test_unaligned_user_buffers() {
    local d
    served size=8
    d=$(rdma_attach)
    unaligned_io "$d"
    detach
    cmp /run/image /var/lib/lab/disk0
}

test_ext4_with_verified_load() {
    local d size
    served size=400
    d=$(rdma_attach)
    mounted ext4 "$d"
    for size in 4k:4M 128k:16M; do verified /mnt/fs/v${size%:*} ${size#*:} --bs=${size%:*} --fsync=32; done
    unmounted_is_sound ext4 "$d"
}

# long
test_a_host_with_a_secret() {
    local d secret
    lunet_only "nvmet is tried over TCP"
    secret=$(nvme gen-dhchap-key -m 1 -n "${HOSTNQN[0]}")
    served size=64 "secret=$secret"
    fails rdma_attach
    d=$(rdma_attach --dhchap-secret="$secret")
    verified "$d" 8M --bs=16k
    says ', authenticated' ask sessions
}

# long
test_tcp_and_rdma_beside_each_other() {
    local by_rdma by_tcp
    lunet_only "a port of nvmet has one transport"
    nvme_start portals=$PORTAL over=tcp,rdma native=N
    by_rdma=$(rdma_attach)
    by_tcp=$(as=1 attach $PORTAL)
    dd if=/dev/urandom of=/run/data bs=1M count=8 status=none
    dd if=/run/data of="$by_rdma" oflag=direct bs=1M status=none
    blockdev --flushbufs "$by_tcp"
    cmp -n $((8 << 20)) /run/data "$by_tcp"
    ask sessions >/run/sessions
    same "$(grep -c ' over nvme-tcp' /run/sessions) $(grep -c ' over nvme-rdma' /run/sessions)" "1 1"
    grep -q 'could use RDMA: this address is served over NVMe over RDMA too (device rxe1), and the host chose TCP' /run/sessions
    # The kernel wants a host that is there to be the same one.
    nvme discover -t tcp -a $THERE -s 4420 -q "${HOSTNQN[0]}" -I "${HOSTNQN[0]##*uuid:}" >/run/discovery
    same "$(grep -A8 'nvme subsystem' /run/discovery | grep -c -x "subnqn:  $NQN")" 2
}

# long
test_iser_and_nvme_over_one_device() {
    local iser nvme
    lunet_only "two targets of the kernel"
    modprobe ib_iser
    modprobe nvme-core multipath=Y
    modprobe nvme-rdma
    mkdir -p /var/lib/lab
    truncate -s 64M /var/lib/lab/disk0
    serve <<TOML
[server]
shards = 2
[[portal]]
address = "$THERE:3260"
[[portal]]
address = "$PORTAL"
transport = ["nvme-rdma"]
[volumes.disk0]
backend = "file"
path = "/var/lib/lab/disk0"
[[target]]
name = "$IQN"
protocols = ["iscsi", "nvme"]
open = true
nqn = "$NQN"
luns = ["disk0"]
TOML
    iser=$(iface=iser login $THERE:3260)
    nvme=$(rdma_attach)
    dd if=/dev/urandom of=/run/data bs=1M count=8 status=none
    dd if=/run/data of="$iser" oflag=direct bs=1M status=none
    blockdev --flushbufs "$nvme"
    cmp -n $((8 << 20)) /run/data "$nvme"
    verified "$nvme" 16M --bs=64k --iodepth=8
    ask sessions >/run/sessions
    same "$(grep -c ' over iser' /run/sessions) $(grep -c ' over nvme-rdma' /run/sessions)" "1 1"
    detach
    verified "$iser" 16M --bs=64k --iodepth=8
    logout
    within 20 eval '[ "$(held)" = 0 ]'
}

# --- when things break ----------------------------------------------------------------------------------------------------------

test_a_cut_cable_is_survived() {
    local d
    served
    d=$(rdma_attach)
    verified "$d" 24M --bs=16k --rw=randwrite >/run/load 2>&1 &
    load=$!
    sleep 3
    cable_loses rdma
    sleep 12
    restore_network
    wait $load || { cat /run/load; return 1; }
    within 60 controller_is "$(controllers)" state live
}

# long
test_twenty_seconds_without_a_cable() {
    local d
    served
    d=$(rdma_attach)
    load_begin main "$d" 2M --bs=16k
    within 30 test -s /run/load.main.rounds
    cable_loses rdma
    sleep 20
    restore_network
    goes_on main
    load_end main
    blockdev --flushbufs "$d"
    dd if="$d" of=/run/read bs=256k iflag=direct status=none
    cmp /run/read /var/lib/lab/disk0
}

# One path by RDMA and one by TCP to one namespace, the kernel's own multipath over both, and a verified load on it.
served_by_both() {
    if [ "$LAB_TARGET" = lunet ]; then
        served portals=$PORTAL,$THERE:4421 over=rdma
        sed '/:4421"/{n;s/nvme-rdma/nvme-tcp/}' "$LUNET_RUN/lunet.toml" >/run/both.toml
        stop
        serve </run/both.toml
    else
        served
        over=tcp nvmet_port $THERE:4421
    fi
    disk=$(rdma_attach)
    same "$(expects=1 attach $THERE:4421)" "$disk" "the paths make one disk"
    by_rdma=$(controller_by rdma) by_tcp=$(controller_by tcp)
    load_begin main "$disk" 2M --bs=16k
    within 30 test -s /run/load.main.rounds
}

# The state of the paths by one portal, as the target tells it: PORT STATE
path_state() {
    local nvmet=/sys/kernel/config/nvmet/ports
    if [ "$LAB_TARGET" = lunet ]; then
        sed -i "/:$1\"/,/group-state/s/^group-state = .*/group-state = \"${2/inaccessible/unavailable}\"/" "$LUNET_RUN/lunet.toml"
        ask config apply
    else
        echo "$2" >"$(dirname "$(grep -lx "$1" $nvmet/*/addr_trsvcid)")/ana_groups/1/ana_state"
    fi
}

# long
test_ana_moves_the_load_between_rdma_and_tcp() {
    served_by_both
    path_state 4420 inaccessible
    within 30 path_is "$by_rdma" inaccessible
    carries "$by_tcp"
    path_state 4420 optimized
    path_state 4421 inaccessible
    within 30 path_is "$by_rdma" optimized
    within 30 path_is "$by_tcp" inaccessible
    carries "$by_rdma"
    path_state 4421 non-optimized
    within 30 path_is "$by_tcp" non-optimized
    load_end main
    sound
}

# Both ends are on this machine, over soft RoCE, with TCP as a path that is as good.
# long
test_the_doctor_knows_what_is_wrong_here() {
    local check
    served_by_both
    load_end main
    "$LUNET" doctor >/run/doctor || [ $? = 1 ]
    for check in initiator-nvme-soft-rdma initiator-nvme-mixed-transports rdma-in-software; do
        grep -q " $check " /run/doctor || { cat /run/doctor; fails true; }
    done
}

# long
test_either_transport_carries_on_when_the_other_one_is_cut() {
    served_by_both
    cable_loses rdma
    within 60 controller_is "$by_rdma" state connecting
    carries "$by_tcp"
    restore_network
    within 90 controller_is "$by_rdma" state live
    cable_loses tcp
    within 60 controller_is "$by_tcp" state connecting
    carries "$by_rdma"
    restore_network
    within 90 controller_is "$by_tcp" state live
    load_end main
    sound
}

test_a_server_that_was_killed_is_found_again() {
    local d
    lunet_only "nvmet cannot be killed"
    served
    d=$(rdma_attach)
    dd if=/dev/urandom of=/run/data bs=1M count=8 status=none
    dd if=/run/data of="$d" oflag=direct bs=1M status=none
    stop -9
    start_again
    timeout 100 dd if="$d" of=/run/back iflag=direct bs=1M count=8 status=none
    cmp /run/data /run/back
}

# long
test_a_device_that_goes_and_comes_back() {
    local d
    lunet_only "about lunet's own RDMA"
    served
    d=$(rdma_attach)
    dd if=/dev/urandom of=/run/data bs=1M count=8 status=none
    dd if=/run/data of="$d" oflag=direct bs=1M status=none
    timeout 60 rdma link del rxe1
    logged "NVMe over RDMA: the RDMA device rxe1 is lost"
    rdma link add rxe1 type rxe netdev rdma1
    within 60 logged "NVMe over RDMA: listening on $PORTAL.*"
    timeout 100 dd if="$d" of=/run/back iflag=direct bs=1M count=8 status=none
    cmp /run/data /run/back
}

# long
test_the_device_goes_and_comes_back_under_load() {
    local d
    lunet_only "about lunet's own RDMA"
    served
    d=$(rdma_attach)
    load_begin main "$d" 2M --bs=16k
    within 30 test -s /run/load.main.rounds
    timeout 60 rdma link del rxe1
    logged "NVMe over RDMA: the RDMA device rxe1 is lost"
    sleep 5
    rdma link add rxe1 type rxe netdev rdma1
    goes_on main
    load_end main
    blockdev --flushbufs "$d"
    dd if="$d" of=/run/read bs=256k iflag=direct status=none
    cmp /run/read /var/lib/lab/disk0
}

# --- hosts that do what the kernel's never would --------------------------------------------------------------------------------

# Starts lunet, with a load of the kernel's host that goes on whatever happens beside it.
served_with_a_load() {
    lunet_only "about lunet's own RDMA"
    served
    load_begin main "$(rdma_attach)" 2M --bs=16k --offset=8M
    within 30 test -s /run/load.main.rounds
    before=$(held)
}

# The load goes on, and nothing is left of the others.
load_was_not_disturbed() {
    within 30 eval "[ \$(held) = $before ]"
    goes_on main
    load_end main
}

# Memory that is not the host's is neither read nor written, and only the connection that named it ends.
# long
test_wrong_keys_end_their_connection_alone() {
    served_with_a_load
    raw wrong-key
    load_was_not_disturbed
}

test_requests_that_no_host_makes_are_rejected() {
    served_with_a_load
    raw requests
    load_was_not_disturbed
}

# long
test_hostile_capsules_harm_nobody_else() {
    served_with_a_load
    raw capsules | tee /run/capsules
    note "$(tail -n 1 /run/capsules)"
    raw noise $((LAB_ROUNDS * 25))
    load_was_not_disturbed
}

# A thousand with LAB_ROUNDS=20.
# long
test_connects_leave_nothing() {
    local early count=$((LAB_ROUNDS * 25))
    served_with_a_load
    # What is made once is made by then.
    raw many 20
    within 30 eval "[ \$(held) = $before ]"
    early=$(resident)
    raw many $count
    load_was_not_disturbed
    note "$count connects, $(($(resident) - early)) KiB more after them than before"
    [ $(($(resident) - early)) -lt 4096 ]
}

# Of controllers with 16 each, with more rounds of fifteen. Soft RoCE has room for 128 on each shard, and they are not spread evenly.
# long
test_many_queues_at_once() {
    local count=$((LAB_ROUNDS < 5 ? 64 : 240))
    served_with_a_load
    raw crowd $count | tee /run/crowd
    same "$(tail -n 1 /run/crowd)" "$count queues"
    load_was_not_disturbed
}

# long
test_connects_of_the_kernel_leave_nothing() {
    local i
    lunet_only "about lunet's own RDMA"
    served
    for ((i = 0; i < LAB_ROUNDS * 5; i++)); do
        nvme connect -t rdma -a $THERE -s 4420 -n $NQN -q "${HOSTNQN[0]}" -I "${HOSTNQN[0]##*uuid:}" --nr-io-queues=1
        detach
    done
    within 20 eval '[ "$(held)" = 0 ]'
}

test_a_portal_for_rdma_alone_needs_a_device() {
    lunet_only "about lunet's own RDMA"
    mkdir -p /run/alone
    cat >/run/alone/lunet.toml <<TOML
[[portal]]
address = "10.0.2.15:4420"
transport = ["nvme-rdma"]
[volumes.a]
backend = "memory"
size = "1MiB"
[[subsystem]]
nqn = "$NQN"
open = true
namespaces = ["a"]
TOML
    fails "$LUNET" serve --config /run/alone/lunet.toml --data /run/alone --socket /run/alone/sock >/run/said 2>&1
    grep -q 'cannot serve NVMe over RDMA at 10.0.2.15:4420: no RDMA device carries the address' /run/said
}
