# Networks that are not as they should be. Sourced by lib.sh.

# A second machine in the guest: the network namespace `far`, reached over a pair of virtual cards, 192.0.2.1 here and 192.0.2.2
# there. A target that is started with `ip netns exec far` is behind that wire, and what netem does to it is done to nothing else.
network_far() {
    ip netns add far
    ip link add near0 type veth peer name far0 netns far
    ip addr add 192.0.2.1/24 dev near0
    ip link set near0 up
    ip -n far addr add 192.0.2.2/24 dev far0
    ip -n far link set far0 up
    ip -n far link set lo up
}

# What netem does on the way to the far machine and back: NETEM_OPTIONS, e.g. delay 20ms loss 1%
network_bad() {
    modprobe sch_netem
    tc qdisc replace dev near0 root netem limit 2000 "$@"
    ip netns exec far tc qdisc replace dev far0 root netem limit 2000 "$@"
}

# The wire as it was.
network_good() {
    tc qdisc del dev near0 root
    ip netns exec far tc qdisc del dev far0 root
}

network_restore() {
    iptables -F
    ip netns del far
    ip link del near0
    tc qdisc del dev lo root
} 2>/dev/null
