# Two ways to one disk: dm-multipath over two sessions, each over a wire of its own, set up as docs/multipath.md says.
#
# What is cut is cut under a verified load on a file system: blocks are written over and over, so that a write that comes late, over
# the way that was given up, is found. No error may reach the file system. The limits are shorter than those of the page: a
# silent path is given up after about 6 seconds instead of 15.
# client: dm-multipath
# minutes: 3

suite_setup() { udev_rules 55-scsi-sg3_id.rules 58-scsi-sg3_symlink.rules 60-multipath.rules; }

# The target with a portal group for each wire, two sessions, and the map over their disks: sets $disk and $map. [STATE-OF-GROUP-2]
begin() {
    local n
    network_far
    if [ "$LAB_TARGET" = lio ]; then
        target_start net=far size=64 portals=${FAR[0]}:3260,${FAR[1]}:3260
    else
        configuration optimized "${1:-optimized}" | net=far serve
    fi
    for n in 0 1; do
        disk[n]=$(login "${FAR[n]}:3260" "node.conn[0].timeo.noop_out_interval=2" "node.conn[0].timeo.noop_out_timeout=2")
    done
    multipath_start "reservation_key 0x1ab"
    map=$(multipath_map 2)
    mark=$(dmesg | wc -l)
}

configuration() {
    cat <<TOML
[[portal]]
address = "${FAR[0]}:3260"
tag = 1
group-state = "$1"
[[portal]]
address = "${FAR[1]}:3260"
tag = 2
group-state = "$2"
[volumes.disk0]
backend = "file"
path = "/var/lib/lab/disk0"
size = "64MiB"
[[target]]
name = "$IQN"
open = true
luns = ["disk0"]
TOML
}

# Cuts one link in one way and restores it: the load goes on over the other meanwhile, and over both afterwards.
cut_and_mend() {
    local wire=$1 how=$2
    wire_cut "$wire" "$how"
    if [ "$how" != kill ]; then
        within 60 is state "$wire" failed
        carries $((1 - wire))
    fi
    wires_mend
    within 60 is state "$wire" active
    carries "$wire"
}

# Linux names the disk by its NAA designator, as docs/multipath.md says: udev for aliases and /dev/disk/by-id, multipath for its map.
named_by_naa() {
    local naa path
    naa=$(sg_vpd --page=di "${disk[0]}" | grep -o '0x6[0-9a-f]\{31\}' | head -n 1)
    naa=${naa#0x}
    [[ $naa =~ ^6024c4e[0-9a-f]{25}$ ]]
    for path in "${disk[@]}"; do
        says "ID_SERIAL=3$naa" udevadm info --query=property --name="$path"
        same "$(cat "/sys/block/${path#/dev/}/device/wwid")" "naa.$naa"
    done
    grep -q "3$naa" /run/map
}

# --- access states -------------------------------------------------------------------------------------------------------------

test_two_paths_are_one_disk() {
    begin
    multipath -ll >/run/map
    grep -q "hwhandler='1 alua'" /run/map
    grep -q "features='[0-9]* queue_if_no_path" /run/map
    same "$(grep -c 'active ready running' /run/map)" 2
    [ "$LAB_TARGET" = lio ] || named_by_naa
    same "$(blockdev --getsize64 "$map")" $((64 << 20))
    # Both as good: one group of paths, and both of them carry.
    same "$(grep -c policy= /run/map)" 1
    [ "$LAB_TARGET" = lio ] || same "$(priority 0) $(priority 1)" "50 50"
    load_begin main "$map" 4M
    carries 0
    carries 1
    load_end main
    cmp "$map" /var/lib/lab/disk0
}

# long
test_the_better_group_is_used_first() {
    lunet_only "LIO has one target port group here"
    begin non-optimized
    same "$(priority 0) $(priority 1)" "50 10"
    same "$(multipath -ll | grep -c policy=)" 2
    load ext4
    idle=$(carried 1)
    carries 0
    [ $(($(carried 1) - idle)) -lt 50 ]
    # The states change places, on the server. The initiator is not told by anybody else.
    configuration non-optimized optimized >/run/lunet/lunet.toml
    ask config apply
    within 60 is priority 0 10
    within 60 is priority 1 50
    carries 1
    idle=$(carried 0)
    carries 1
    [ $(($(carried 0) - idle)) -lt 50 ]
    # And an initiator may say so, too (SET TARGET PORT GROUPS).
    sg_stpg --tp=1 --state=ao "${disk[1]}"
    within 60 is priority 0 50
    carries 0
    no_harm_done ext4
}

# --- paths fail ----------------------------------------------------------------------------------------------------------------

test_one_path_cut_under_ext4() {
    begin
    load ext4
    cut_and_mend 0 silent
    cut_and_mend 1 reset
    no_harm_done ext4
}

# long
test_one_path_cut_under_xfs() {
    begin
    load xfs
    cut_and_mend 1 down
    cut_and_mend 0 kill
    no_harm_done xfs
}

# long
test_a_better_path_is_left_and_returned_to() {
    lunet_only "LIO has one target port group here"
    begin non-optimized
    load xfs
    cut_and_mend 0 reset
    no_harm_done xfs
}

# I/O waits while there is no path (no_path_retry), and nobody is told of an error.
# long
test_both_paths_cut_for_a_while() {
    local rounds
    begin
    load ext4
    wire_cut 0 reset
    wire_cut 1 silent
    within 60 is state 0 failed
    within 60 is state 1 failed
    sleep 3
    rounds=$(wc -l </run/load.main.rounds)
    wires_mend
    within 60 is state 0 active
    within 60 is state 1 active
    within 60 eval "[ \$(wc -l </run/load.main.rounds) -gt $rounds ]"
    no_harm_done ext4
}

test_a_killed_server_comes_back() {
    local n
    lunet_only
    begin
    load xfs
    for n in 0 1; do
        stop -9
        sleep 1
        start_again
        within 60 is state 0 active
        within 60 is state 1 active
        carries 0
        carries 1
    done
    no_harm_done xfs
}

# --- reservations --------------------------------------------------------------------------------------------------------------

# Another initiator, without a part in the reservation, reads for a second.
stranger_reads() { iscsi-perf -i iqn.2026-11.local.lab:stranger -m 1 -b 8 -t 1 "iscsi://${FAR[1]}/$IQN/0"; }

# long
test_reservations_through_the_map() {
    local registrants=6
    begin
    stranger_reads
    mpathpersist --out --register --param-sark=0x1ab "$map"
    mpathpersist --out --reserve --param-rk=0x1ab --prout-type=$registrants "$map"
    mpathpersist --in -k "$map" >/run/keys
    same "$(grep -ci '0x0*1ab' /run/keys)" 2 "registered paths"
    fails stranger_reads
    # The holders work over each path, before and after one was away.
    load ext4
    carries 0
    carries 1
    cut_and_mend 1 reset
    no_harm_done ext4
    says '0x0*1ab' mpathpersist --in -r "$map"
    fails stranger_reads
    mpathpersist --out --release --param-rk=0x1ab --prout-type=$registrants "$map"
    stranger_reads
    mpathpersist --out --clear --param-rk=0x1ab "$map"
    # A unit attention tells of the end of the reservation, if the target sees it so.
    sg_turs "${disk[0]}" || true
    says 'no registered' sg_persist -k "${disk[0]}"
}
