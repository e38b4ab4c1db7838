# Networks that are not as they should be. Sourced by lib.sh.

# A second machine in the guest: the network namespace `far`, reached over two wires, which are pairs of virtual cards:
#
#   wire 0   near0 192.0.2.1      far0 192.0.2.2
#   wire 1   near1 198.51.100.1   far1 198.51.100.2
#
# A target that is started with net=far is behind them, and what is done to a wire is done to nothing else.
FAR=(192.0.2.2 198.51.100.2)

network_far() {
    local n
    ip netns add far
    ip -n far link set lo up
    for n in 0 1; do
        ip link add near$n type veth peer name far$n netns far
        ip addr add "${FAR[n]%.2}.1/24" dev near$n
        ip link set near$n up
        ip -n far addr add "${FAR[n]}/24" dev far$n
        ip -n far link set far$n up
    done
}

# A command on the far machine. Not by `ip netns exec`: that has a /sys of its own, in which LIO's part is missing.
far() { nsenter --net=/run/netns/far "$@"; }

# What netem does on wire 0, there and back: NETEM_OPTIONS, e.g. delay 20ms loss 1%
network_bad() {
    modprobe sch_netem
    touch /run/network
    tc qdisc replace dev near0 root netem limit 2000 "$@"
    far tc qdisc replace dev far0 root netem limit 2000 "$@"
}

# Changes one byte in some of the larger packets of wire 0, both ways: PROBABILITY, up to 1. TCP does not find it: these cards leave
# its checksum out, as between them nothing can happen. So it is like a bad memory in a switch: only digests help.
network_lies() {
    local at
    modprobe -a sch_ingress cls_fw act_pedit
    touch /run/network
    for at in near far; do
        "on_$at" iptables -t mangle -A OUTPUT -o ${at}0 -p tcp -m length --length 400:65535 \
            -m statistic --mode random --probability "$1" -j MARK --set-mark 7
        "on_$at" tc qdisc add dev ${at}0 clsact
        "on_$at" tc filter add dev ${at}0 egress protocol ip handle 7 fw action pedit munge offset 300 u8 invert
    done
}

# Both ends of wire 0 send packets of 9000 bytes. Without the offloads: what is on the wire are packets, and not what a card would
# make packets of.
network_jumbo() {
    local at
    for at in near far; do
        "on_$at" ethtool -K ${at}0 tso off gso off gro off
        "on_$at" ip link set ${at}0 mtu 9000
    done
}

# Packets beyond an Ethernet's 1500 bytes are lost on wire 0, and no router says so.
network_swallows_large_packets() {
    local at
    touch /run/network
    for at in near far; do
        "on_$at" iptables -I INPUT -i ${at}0 -m length --length 1501:65535 -j DROP
    done
}

on_near() { "$@"; }
on_far() { far "$@"; }

# Wire 0 as it was, but for its MTU. What was not done to it need not be undone.
network_good() {
    local at
    for at in near far; do
        "on_$at" tc qdisc del dev ${at}0 root || true
        "on_$at" tc qdisc del dev ${at}0 clsact || true
        "on_$at" iptables -t mangle -F
    done
} 2>/dev/null

# Puts a wire out of order: WIRE HOW
#
#   silent   everything on it is lost, and nobody is told: a cable that is pulled somewhere in between
#   down     the far end has lost its link
#   reset    connections and new ones are refused: a firewall, or a machine that has taken over the address
#   kill     the connections of today end; new ones are welcome
wire_cut() {
    touch /run/network
    case $2 in
        silent)
            iptables -I INPUT -i "near$1" -j DROP
            far iptables -I INPUT -i "far$1" -j DROP
            ;;
        down) ip -n far link set "far$1" down ;;
        reset) far iptables -I INPUT -i "far$1" -p tcp -j REJECT --reject-with tcp-reset ;;
        kill) far ss -K src "${FAR[$1]}:3260" >/dev/null ;;
    esac
}

# Mends all wires, whatever was done to them by wire_cut.
wires_mend() {
    iptables -F INPUT
    far iptables -F INPUT
    ip -n far link set far0 up
    ip -n far link set far1 up
}

# Undoes whatever was done to the wires. Also before anything is cleared up: a session ends sooner over a wire that works.
network_mend() {
    [ -e /run/network ] || return 0
    wires_mend
    network_good
    rm /run/network
}

network_restore() {
    [ -e /run/netns/far ] || return 0
    # The wires first: those of a network that goes are taken away some time later.
    ip link del near0
    ip link del near1
    ip netns del far
}
