# Nodes that are namespaces of this machine, with one disk for both. Sourced by run.

for program in pacemakerd corosync crm mkfs.ext4; do
    command -v $program >/dev/null || { echo "ha: $program is missing: apt-get install pacemaker corosync crmsh resource-agents" >&2; exit 1; }
done
program=$lunet slower=1 device=

disk_made() {
    truncate -s 256M "$dir/disk"
    mkfs.ext4 -q "$dir/disk"
    device=$(losetup --find --show "$dir/disk")
    mkdir "$dir/disk.mounted"
    mount "$device" "$dir/disk.mounted"
    fill_disk "$dir/disk.mounted"
    umount "$dir/disk.mounted"
}
disk_gone() { [ -z "$device" ] || losetup --detach "$device"; }
# Nothing but the file system.
disk_of_cluster() { :; }

# Boots a node. Its first process is seen from here by its number.
boot() {
    local outer inner
    ip link delete "$1" 2>/dev/null || true
    rm -rf "$dir/$1.agents"
    unshare --net --mount --uts --ipc --pid --fork --kill-child=KILL -- lab/ha/node "$1" "$dir" "$PWD/packaging/ocf/lunet" >"$dir/$1.log" 2>&1 &
    outer=$!
    until inner=$(pgrep -P $outer); do sleep 0.05; done
    echo "$inner" >"$dir/$1.pid"
    ip link add "$1" type veth peer name eth0 netns "$inner"
    ip link set "$1" master lab up
}
# A node ends with its first process.
die() {
    local pid
    pid=$(cat "$dir/$1.pid" 2>/dev/null) || return 0
    kill -9 "$pid" 2>/dev/null || true
    while [ -e "/proc/$pid" ]; do sleep 0.02; done
}
# In a node's namespaces.
on() { local node=$1; shift; nsenter --target "$(cat "$dir/$node.pid")" --all -- "$@"; }
