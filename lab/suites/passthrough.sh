# Volumes on emulated NVMe drives whose reads and writes are NVMe commands, past the block layer (`passthrough`).
# client: open-iscsi
# minutes: 2
# run: -d 2 -z 64 -i 60

# The name of a drive's controller, by its serial number: which is found first differs.
controller() { basename "$(dirname "$(grep -lx "$1 *" /sys/class/nvme/nvme*/serial)")"; }

# The drives anew, with so many queues each that can be polled: NUMBER. $drive and $slow are their names, in every test.
probed() {
    within 20 modprobe -r nvme
    modprobe nvme poll_queues="$1"
    within 20 controller LAB0
    within 20 controller LAB1
    drive=$(controller LAB0) slow=$(controller LAB1)
    within 20 test -b "/dev/${drive}n1" -a -c "/dev/ng${drive#nvme}n1"
    within 20 test -b "/dev/${slow}n1" -a -c "/dev/ng${slow#nvme}n1"
    echo "drive=$drive slow=$slow" >/run/drives
}
[ ! -e /run/drives ] || . /run/drives

suite_setup() {
    probed 1
    same "$(cat "/sys/block/${drive}n1/queue/io_poll")" 1
}

# What the block layer has counted of the drive: 3 sectors read, 7 sectors written, 16 flushes, each of which may count as a write of
# nothing. FIELD
block_layer() { awk -v field="$1" '{print $field}' "/sys/block/${drive}n1/stat"; }

# Serves a drive, and sets $d to the initiator's disk: DRIVE WORD
passing() {
    udevadm settle
    target_start path="/dev/${1}n1" passthrough="$2"
    d=$(login 127.0.0.1:3260)
}

# Everything that is read and written goes by commands, a flush reaches the drive, and the drive has what was written: WORD
passes_by() {
    local reads writes flushes
    passing "$drive" "$1"
    reads=$(block_layer 3) writes=$(block_layer 7) flushes=$(block_layer 16)
    verified "$d" 4M --io_size=4M
    dd if=/dev/urandom of=/run/data bs=1M count=2 status=none
    dd if=/run/data of="$d" bs=256k oflag=direct conv=fsync status=none
    dd if="$d" of=/run/back bs=256k count=8 iflag=direct status=none
    cmp /run/data /run/back
    [ "$(counted passthrough_commands)" -gt 1000 ]
    same "$(counted passthrough_failed)" 0 "commands that have failed"
    same "$(block_layer 3) $(block_layer 7)" "$reads $writes" "sectors read and written by the block layer"
    [ "$(block_layer 16)" -gt "$flushes" ]
    says 'NVMe commands past the block layer' ask stats
    # Nothing is under way: nobody polls, whatever the way is. The initiator's pings and the questions are some waits.
    writes=$(counted waits)
    sleep 2
    [ $(($(counted waits) - writes)) -lt 100 ] || { echo "the server does not sleep"; return 1; }
    logout
    stop
    dd if="/dev/${drive}n1" of=/run/back bs=256k count=8 iflag=direct status=none
    cmp /run/data /run/back
}

# The block size that the drive has from now on: FORMAT BYTES. The last step of `nvme format`, to tell the block device so, fails on one that
# is served; what counts is what the kernel says in the end.
formatted() {
    nvme format "/dev/${drive}n1" --lbaf="$1" --force >/dev/null || true
    echo 1 >"/sys/class/nvme/$drive/rescan_controller"
    within 20 eval "[ -b /dev/${drive}n1 ] && [ \"\$(blockdev --getss /dev/${drive}n1)\" = $2 ]"
}

# Resets the controller of the slow drive; true once that has ended a command without the drive.
reset_under_load() {
    echo 1 >"/sys/class/nvme/$slow/reset_controller"
    [ "$(counted passthrough_failed)" -gt 0 ]
}

test_commands_with_interrupts() {
    lunet_only
    passes_by interrupt
}

# long
test_commands_that_are_polled_for() {
    lunet_only
    passes_by polled
}

# long
test_blocks_of_4096_bytes() {
    lunet_only
    formatted 4 4096
    passes_by interrupt
    formatted 0 512
}

# The kernel ends the commands under way when a controller is reset, and repeats none of them. The drive is slow, so that some are.
# long
test_a_controller_that_is_reset_loses_no_command() {
    local how
    lunet_only
    for how in interrupt polled; do
        passing "$slow" $how
        load_begin drive "$d" 512k --io_size=512k
        within 60 test -s /run/load.drive.rounds
        within 60 reset_under_load
        echo 1 >"/sys/class/nvme/$slow/reset_controller"
        load_end drive
        note "$how: $(counted passthrough_failed) of $(counted passthrough_commands) commands were done again"
        logout
        stop
    done
}

# Its commands under way end when the drive has done them, and nobody has the drive before.
# long
test_a_server_that_is_killed_comes_back_to_its_drive() {
    lunet_only
    passing "$slow" interrupt
    load_begin drive "$d" 512k --io_size=512k
    within 60 test -s /run/load.drive.rounds
    stop -9
    start_again
    load_end drive
    [ "$(counted passthrough_commands)" -gt 0 ]
    logout
    stop
}

# A volume that cannot have it is served all the same, and the log says why.
# long
test_what_takes_no_commands_goes_through_the_block_layer() {
    lunet_only
    formatted 1 512
    passing "$drive" polled
    logged 'passthrough: the namespace has metadata'
    dd if=/dev/urandom of="$d" bs=64k count=1 oflag=direct conv=fsync status=none
    same "$(counted passthrough_commands)" 0
    logout
    stop
    formatted 0 512
    probed 0
    passing "$drive" polled
    logged 'no queues that can be polled'
    dd if=/dev/urandom of="$d" bs=64k count=1 oflag=direct conv=fsync status=none
    [ "$(counted passthrough_commands)" -gt 0 ]
}

# Whoever formats a served drive has lost its data; commands by numbers of the blocks of before would end elsewhere, though.
# long
test_a_drive_that_is_formatted_anew_has_no_more_commands() {
    lunet_only
    passing "$drive" interrupt
    dd if=/dev/urandom of="$d" bs=64k count=1 oflag=direct conv=fsync status=none
    local before
    [ "$(counted passthrough_commands)" -gt 0 ]
    formatted 4 4096
    logged 'passthrough: its blocks have 4096 bytes'
    before=$(counted passthrough_commands)
    dd if="$d" of=/dev/null bs=64k count=1 iflag=direct status=none
    same "$(counted passthrough_commands)" "$before"
    logout
    stop
    formatted 0 512
}
