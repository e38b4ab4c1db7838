# Nodes that are guests of the lab, with a drive each, of which DRBD makes one disk. Sourced by run.
#
# The folder of this run is at the same place in the guests: there they find what they run, and ask the power switch.

export LAB_RELEASE=bookworm-ha LUNET_BIN=$lunet
lab/image >/dev/null
[ -c /dev/net/tun ] || { echo "ha: there is no /dev/net/tun for the guests' network" >&2; exit 1; }
# An emulated processor has a tenth of the speed, and a move runs some forty scripts on it.
program=/run/programs/lunet slower=8 device=/dev/drbd0

disk_made() {
    cp lab/ha/{guest,fence} packaging/ocf/lunet "$dir/"
    fill_disk "$dir"
    cat >"$dir/r0.res" <<'IN'
resource r0 {
    protocol C;
    device /dev/drbd0;
    disk /dev/nvme0n1;
    meta-disk internal;
    disk { fencing resource-and-stonith; }
    handlers {
        fence-peer "/usr/lib/drbd/crm-fence-peer.sh";
        after-resync-target "/usr/lib/drbd/crm-unfence-peer.sh";
    }
    on node1 { address 10.99.0.1:7789; }
    on node2 { address 10.99.0.2:7789; }
}
IN
}
disk_gone() { :; }
disk_of_cluster() {
    cat <<'IN'
primitive drbd ocf:linbit:drbd params drbd_resource=r0 op start timeout=240s op promote timeout=120s op stop timeout=120s op monitor interval=20s role=Promoted timeout=60s op monitor interval=21s role=Unpromoted timeout=60s
clone copies drbd meta promotable=true promoted-max=1 clone-max=2 notify=true
colocation with-primary inf: storage copies:Promoted
order behind-primary Mandatory: copies:promote storage:start
IN
}

boot() {
    ip tuntap add "$1" mode tap 2>/dev/null || true
    ip link set "$1" master lab up
    mkdir -p "$dir/$1.share" "$dir/$1.drive"
    lab/run -t 1700 -m 1024 -d 1 -z 192 -D "$dir/$1.drive" -s "$dir/$1.share" \
        -q "-pidfile $dir/$1.pid -netdev tap,id=lab,ifname=$1,script=no,downscript=no -device virtio-net-pci,netdev=lab,mac=52:54:00:99:00:0${1#node},romfile= -virtfs local,path=$dir,mount_tag=lab,security_model=none,multidevs=remap" \
        - <<IN >"$dir/$1.log" 2>&1 &
mkdir -p $dir
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 lab $dir
exec bash $dir/guest $1 $dir
IN
}
# The end of an emulator is that of the guest's power.
die() {
    local pid
    pid=$(cat "$dir/$1.pid" 2>/dev/null) || return 0
    kill -9 "$pid" 2>/dev/null || true
    while [ -e "/proc/$pid" ]; do sleep 0.02; done
    rm -f "$dir/$1.pid"
}
# By the server that each guest has for commands: what it prints comes back, and its exit code at the end.
on() {
    local node=$1 said
    shift
    said=$(printf '%q ' "$@" | socat -t 300 - "TCP:10.99.0.${node#node}:7000,connect-timeout=5" 2>/dev/null) || return 125
    [ "$said" = "${said##*$'\n'}" ] || printf '%s\n' "${said%$'\n'*}"
    return "${said##*$'\n'}"
}
