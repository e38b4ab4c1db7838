# Soft RoCE. Sourced by lib.sh.

# Makes the RDMA device rxe0 with these addresses: ADDRESS/BITS ...
#
# It is on a dummy interface, whose MTU gives RoCE its largest path MTU. Not on the loopback: rdma_cm finds no route there.
rdma_network() {
    local address
    modprobe -a rdma_rxe rdma_ucm dummy
    ip link add rdma0 type dummy
    for address in "$@"; do ip addr add "$address" dev rdma0 $([[ $address != *:* ]] || echo nodad); done
    ip link set rdma0 mtu 4200 up
    rdma link add rxe0 type rxe netdev rdma0
}

# One of soft RoCE's counters: NAME
roce() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/"$1"; }
