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

# Soft RoCE at the two ends of a cable, both in this machine: rdma0 and rdma1 are a pair of virtual cards with a device on each,
# and rules for routes make the kernel send what it could keep to itself.
HERE=192.0.2.1 THERE=192.0.2.2
rdma_cable() {
    local n
    modprobe -a rdma_rxe rdma_ucm veth
    ip link add rdma0 mtu 4200 type veth peer name rdma1 mtu 4200
    ip addr add $HERE/24 dev rdma0
    ip addr add $THERE/24 dev rdma1
    # What comes by the cable is for this machine; what goes to its own addresses takes the cable.
    for n in 0 1; do
        echo 1 >/proc/sys/net/ipv4/conf/rdma$n/accept_local
        echo 0 >/proc/sys/net/ipv4/conf/rdma$n/rp_filter
        ip rule add pref 1 iif rdma$n lookup local
    done
    ip rule add pref 2 to 192.0.2.0/24 lookup 100
    ip rule add pref 3 lookup local
    ip rule del pref 0
    for n in 0 1; do ip link set rdma$n up; done
    ways
    rdma link add rxe0 type rxe netdev rdma0
    rdma link add rxe1 type rxe netdev rdma1
}

# What goes with a link: routes, and neighbours, which the kernel does not find out on behalf of RDMA alone.
ways() {
    ip route replace $THERE dev rdma0 src $HERE table 100
    ip route replace $HERE dev rdma1 src $THERE table 100
    ip neigh replace $THERE dev rdma0 lladdr "$(cat /sys/class/net/rdma1/address)" nud permanent
    ip neigh replace $HERE dev rdma1 lladdr "$(cat /sys/class/net/rdma0/address)" nud permanent
}

# Loses whatever of one kind is on the cable: tcp or rdma. The other kind gets through.
cable_loses() {
    case $1 in
        tcp) iptables -I INPUT -i rdma+ -p tcp -j DROP ;;
        rdma) iptables -I INPUT -i rdma+ -p udp --dport 4791 -j DROP ;;
    esac
}
restore_network() { iptables -F INPUT; }

# What a failed test has left undone.
rdma_cable_mend() {
    restore_network
    [ -e /sys/class/infiniband/rxe1 ] || rdma link add rxe1 type rxe netdev rdma1
}

# Data out of the middle of memory pages, in one piece and in several: memory that RDMA cannot describe in one registration. A
# disk of 8 MiB is compared with what it should have, which /run/image has afterwards: DISK
unaligned_io() {
    local align
    align=$(($(cat "/sys/block/${1#/dev/}/queue/dma_alignment") + 1))
    python3 - "$1" $align <<'PY'
import mmap, os, random, sys
disk, align = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT), int(sys.argv[2])
random.seed(7)
memory, half = memoryview(mmap.mmap(-1, 8 << 20)), 4 << 20
image = bytearray(8 << 20)
places = [p for p in (align, 3 * align, 512 - align, 512, 512 + align, 2048, 4096 - align) if p % align == 0]
count = 0
for place in places:
    for length in (512, 1024, 4096, 8704, 65536, 131584, 1 << 20):
        data = random.randbytes(length)
        at = random.randrange((len(image) - length) // 512) * 512
        image[at:at + length] = data
        memory[place:place + length] = data
        assert os.pwritev(disk, [memory[place:place + length]], at) == length
        back = half + random.choice(places)
        memory[back - align:back + length + align] = b'\xee' * (length + 2 * align)
        assert os.preadv(disk, [memory[back:back + length]], at) == length
        assert memory[back:back + length] == data, f'{length} bytes at offset {place} of a page'
        edges = bytes(memory[back - align:back]) + bytes(memory[back + length:back + length + align])
        assert edges == b'\xee' * (2 * align), f'{length} bytes were read beyond their buffer'
        count += 2
for _ in range(20):
    lengths = random.choices((512, 1024, 4096, 12800), k=random.randrange(2, 40))
    data = [random.randbytes(length) for length in lengths]
    whole, pieces, at = b''.join(data), [], 0
    for part in data:
        at += random.choice(places)
        at -= at % align
        memory[at:at + len(part)] = part
        pieces.append(memory[at:at + len(part)])
        at += len(part)
    at = random.randrange((len(image) - len(whole)) // 512) * 512
    image[at:at + len(whole)] = whole
    assert os.pwritev(disk, pieces, at) == len(whole)
    memory[0:half] = bytes(half)
    assert os.preadv(disk, pieces, at) == len(whole)
    assert b''.join(bytes(piece) for piece in pieces) == whole, f'{len(pieces)} pieces'
    count += 2
open('/run/image', 'wb').write(image)
print(f'note: {count} reads and writes, memory at multiples of {align} bytes')
PY
}
