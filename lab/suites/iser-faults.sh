# iSER when things break: cables, devices, initiators. The kernel's initiator, and the program `iser` of tests/, which does what
# the kernel's never would.
#
# Both ends are in this machine, as soft RoCE wants it, and yet at the two ends of a cable: rdma0 and rdma1 are a pair of virtual
# cards with a device on each, and rules for routes make the kernel send what it could keep to itself.
# run: -p iser
# client: open-iscsi over rdma_rxe
# minutes: 5
# only in long runs

PORTAL=$THERE:3260

suite_setup() {
    rdma_cable
    # Not before ib_uverbs is there: a device that is deleted would wait for lunet to close it before lunet was told.
    modprobe ib_iser
}

# Instead of the helpers' own: what a failed test has left undone.
network_mend() { rdma_cable_mend; }

served() {
    lunet_only "about lunet's own iSER"
    target_start portals=$PORTAL "$@"
}

# Logs in by TCP or by iSER, and notices soon when nobody answers: TRANSPORT [NAME=VALUE ...]
login_by() {
    local iface
    iface=$([ "$1" = tcp ] && echo default || echo iser)
    shift
    iface=$iface login $PORTAL "node.conn[0].timeo.noop_out_interval=2" "node.conn[0].timeo.noop_out_timeout=2" "$@"
}

# One of the raw initiator's trials: TRIAL [NUMBER]
raw() { (ulimit -l unlimited && exec /run/programs/iser $HERE $PORTAL $IQN "$@"); }

# Starts a raw initiator with commands under way, as $raw.
raw_holds() {
    rm -f /run/raw
    (ulimit -l unlimited && exec /run/programs/iser $HERE $PORTAL $IQN hold) >/run/raw 2>&1 &
    raw=$!
    within 20 grep -q holding /run/raw
}

# Starts lunet, and a load over TCP that goes on whatever happens beside it: [NAME=VALUE ...]
served_with_a_load_over_tcp() {
    local d
    served "$@"
    d=$(login_by tcp)
    load_begin tcp "$d" 4M --bs=16k --offset=8M
    within 30 test -s /run/load.tcp.rounds
}

# What the kernel has of all RDMA programs and drivers.
has() { rdma resource show; }
has_again() { [ "$(has)" = "$1" ] || { has; return 1; }; }

# A load that is going on goes on: NAME
goes_on() {
    local rounds
    rounds=$(wc -l <"/run/load.$1.rounds")
    within 60 eval "[ \$(wc -l </run/load.$1.rounds) -gt $((rounds + 1)) ]"
}

# --- cables -------------------------------------------------------------------------------------------------------------------

test_what_the_cable_carries_is_rdma() {
    local d
    served
    d=$(login_by iser)
    logged "iSER: established $HERE.* at $PORTAL (device rxe1, GID ::ffff:$THERE"
    iptables -I INPUT -i rdma1 -p udp --dport 4791
    verified "$d" 4M --bs=128k
    [ "$(iptables -nvxL INPUT | awk '/dpt:4791/ {print $2}')" -gt $((1 << 20)) ]
}

test_twenty_seconds_without_a_cable() {
    local d
    served
    d=$(login_by iser)
    patience 120
    load_begin main "$d" 4M --bs=16k
    within 30 test -s /run/load.main.rounds
    cable_loses rdma
    sleep 20
    restore_network
    goes_on main
    load_end main
    dd if="$d" of=/run/read bs=256k iflag=direct status=none
    cmp /run/read /var/lib/lab/disk0
    logged 'iSER: established' 2
}

# Soft RoCE's own management queue does not outlive a packet that cannot be sent: after that it connects nobody, neither to lunet nor to
# LIO. So its devices are made anew, at both ends.
# long
test_twenty_seconds_without_a_link() {
    local d n
    served
    d=$(login_by iser)
    patience 120
    load_begin main "$d" 4M --bs=16k
    within 30 test -s /run/load.main.rounds
    ip link set rdma1 down
    sleep 20
    ip link set rdma1 up
    ways
    for n in 0 1; do
        timeout 30 rdma link del rxe$n
        rdma link add rxe$n type rxe netdev rdma$n
    done
    goes_on main
    load_end main
    dd if="$d" of=/run/read bs=256k iflag=direct status=none
    cmp /run/read /var/lib/lab/disk0
    logged 'WARN iSER: port 1 of rxe1 has lost its link'
    logged 'iSER: port 1 of rxe1 has a link again'
}

# Two paths to one LUN, by TCP and by iSER, and a file system on both; one is cut and restored: TRANSPORT
one_path_cut() {
    local carries_on gone
    served
    disk[0]=$(login_by tcp)
    disk[1]=$(login_by iser)
    multipath_start
    map=$(multipath_map 2)
    mark=$(dmesg | wc -l)
    load ext4
    carries 0
    carries 1
    gone=$([ "$1" = tcp ] && echo 0 || echo 1)
    cable_loses "$1"
    within 60 is state "$gone" failed
    carries $((1 - gone))
    restore_network
    within 90 is state "$gone" active
    carries "$gone"
    no_harm_done ext4
}

# long
test_tcp_carries_on_when_the_iser_path_is_cut() { one_path_cut rdma; }
# long
test_iser_carries_on_when_the_tcp_path_is_cut() { one_path_cut tcp; }

# --- initiators ---------------------------------------------------------------------------------------------------------------

# The volume is slow, so that a killed initiator's commands are under way for sure.
slow_served() {
    lunet_only "about lunet's own iSER"
    serve <<TOML
[server]
shards = 2
[iscsi]
ping-interval = "3s"
ping-timeout = "3s"
[[portal]]
address = "$PORTAL"
[volumes.disk]
backend = "file"
size = "64MiB"
layers = [{ delay = "3s" }]
[[target]]
name = "$IQN"
open = true
luns = ["disk"]
TOML
}

test_a_killed_initiator_leaves_nothing() {
    local before
    slow_served
    before=$(has)
    raw_holds
    fails has_again "$before" >/dev/null
    kill -9 $raw
    wait $raw || true
    within 30 has_again "$before"
    logged "iSER: disconnected $HERE"
}

test_a_logout_with_commands_under_way_leaves_nothing() {
    local before
    slow_served
    before=$(has)
    raw logout
    within 30 has_again "$before"
    logged 'reason=the initiator logged out'
}

# A machine that loses its power says no farewell: here its cable goes first.
test_an_initiator_that_falls_silent_leaves_nothing() {
    local before
    slow_served
    before=$(has)
    raw_holds
    cable_loses rdma
    kill -9 $raw
    wait $raw || true
    within 90 has_again "$before"
    note "$(grep -o 'iSER: disconnected.*' "$LUNET_RUN/lunet.log" | cut -d: -f4-)"
}

test_wrong_keys_end_their_connection_alone() {
    local before
    served_with_a_load_over_tcp
    before=$(has)
    raw wrong-key
    logged "disconnected $HERE.*the peer's key or address is wrong" 2
    within 20 has_again "$before"
    goes_on tcp
    load_end tcp
}

# Pages of the server in memory, in KiB.
resident() { awk '/^VmRSS/ {print $2}' "/proc/$(cat "$LUNET_RUN/lunet.pid")/status"; }

# Ten thousand with LAB_ROUNDS=50.
# long
test_connects_and_disconnects_leave_memory_flat() {
    local before early count=$((LAB_ROUNDS * 200))
    served
    # What is made once is made by then.
    raw many $((count / 4))
    before=$(has)
    early=$(resident)
    raw many $count
    within 30 has_again "$before"
    note "$count connections, $(($(resident) - early)) KiB more after them than before"
    [ $(($(resident) - early)) -lt 2048 ]
}

# Connections share their receives: with queues of their own two dozen would fit. Soft RoCE has room for 128 on each shard.
# long
test_two_hundred_and_forty_sessions_at_once() {
    local before
    served_with_a_load_over_tcp
    before=$(has)
    raw crowd 240 | tee /run/crowd
    same "$(tail -1 /run/crowd)" "240 sessions"
    within 20 has_again "$before"
    goes_on tcp
    load_end tcp
}

# --- devices ------------------------------------------------------------------------------------------------------------------

# long
test_a_device_that_comes_beside_another() {
    local d
    rdma link del rxe1
    served_with_a_load_over_tcp portals=0.0.0.0:3260
    logged 'iSER: listening on 0.0.0.0:3260 (device rxe0'
    rdma link add rxe1 type rxe netdev rdma1
    logged 'iSER: listening on 0.0.0.0:3260 (device rxe1'
    d=$(login_by iser)
    logged "iSER: established $HERE.* at $PORTAL (device rxe1, GID ::ffff:$THERE"
    verified "$d" 4M --bs=128k
    goes_on tcp
    # One that goes does not take the listener with it, which is on all addresses.
    timeout 60 rdma link del rxe1
    rdma link add rxe1 type rxe netdev rdma1
    logged 'iSER: listening on 0.0.0.0:3260 (device rxe1' 2
    verified "$d" 4M --bs=128k
    goes_on tcp
    load_end tcp
}

# long
test_a_device_that_vanishes_takes_its_own_sessions_alone() {
    local by_tcp by_rdma del
    served
    by_tcp=$(login_by tcp)
    by_rdma=$(login_by iser)
    patience 120
    load_begin tcp "$by_tcp" 4M --bs=16k
    load_begin rdma "$by_rdma" 4M --bs=16k --offset=8M
    within 30 test -s /run/load.tcp.rounds
    within 30 test -s /run/load.rdma.rounds
    # Soft RoCE waits for all programs to let go of the device.
    rdma link del rxe1 &
    del=$!
    logged 'iSER: disconnected .*: the RDMA device goes away'
    logged 'iSER: the RDMA device rxe1 is lost (it goes away): it is served again when it is back'
    goes_on tcp
    logged 'goes away' 2
    same "$(grep -c 'goes away' "$LUNET_RUN/lunet.log")" 2 "lines about the device"
    within 30 eval "! kill -0 $del 2>/dev/null"
    wait $del
    rdma link add rxe1 type rxe netdev rdma1
    logged 'iSER: listening on' 2
    # The session comes back by itself, and nobody has started lunet again.
    goes_on rdma
    goes_on tcp
    load_end rdma
    load_end tcp
}
