# NVMe over TCP and RDMA: a target, and the kernel's host. Sourced by lib.sh. LAB_TARGET=lio is nvmet here, the kernel's own target.

NQN=nqn.2026-11.local.lunet:lab
# Two hosts, which are both this kernel.
HOSTNQN=(nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349 nqn.2014-08.org.nvmexpress:uuid:1b7e8a10-5b0c-4f0f-a2b7-6c1d2e3f4a5b)

# Starts the target with disks as namespaces 1, 2, ... of $NQN: [NAME=VALUE ...]
#
#   size=MIB          of each file (default 64)
#   disks=N           so many (default 1)
#   memory=1          one disk, in memory: lunet's volume, or the kernel's RAM disk
#   portals=A:P,B:P   default 127.0.0.1:4420
#   hosts=NQN,NQN     default: every host
#   net=far           on the far machine of network.sh
#   both=1            lunet: over iSCSI too, on 127.0.0.1:3260
#   states=A,B        lunet: the group states of the portals (default: optimized)
#   tls=KEY           for the first host alone, with this key of TLS
#   secret=SECRET     for the first host alone, with this secret of DH-HMAC-CHAP; host_tls=required: it has to come back by TLS
#   portal_tls=WORD   what the portals have of TLS: off, allowed (default), required
#   over=WORDS        transports of the portals: tcp (default), rdma, tcp,rdma
#   native=N          the kernel makes no one disk of several paths: two hosts are two disks then
nvme_start() {
    local size=64 disks=1 memory= portals=127.0.0.1:4420 hosts= net= both= states= tls= secret= host_tls= portal_tls= native=Y over=tcp i
    [ $# = 0 ] || local "$@"
    # The guest's command line says otherwise for its drives.
    modprobe nvme-core multipath=$native
    modprobe nvme-tcp
    [[ $over != *rdma* ]] || modprobe nvme-rdma
    mkdir -p /var/lib/lab
    for ((i = 0; i < disks; i++)); do truncate -s "${size}M" /var/lib/lab/disk$i; done
    if [ "$LAB_TARGET" = lunet ]; then nvme_configuration | serve; else nvme_start_nvmet; fi
}

# What lunet is told: the variables of nvme_start, of which portals and disks have to be there.
nvme_configuration() {
    local i tag=0 portal state over=${over:-tcp} memory=${memory:-} hosts=${hosts:-} both=${both:-} states=${states:-}
    state=(${states//,/ })
    [ -z "${tls:-}" ] || (umask 077; echo "$tls" >/run/tls.key)
    [ -z "${secret:-}" ] || (umask 077; echo "$secret" >/run/host.secret)
    printf '[server]\nshards = 2\n'
    [ -z "$both" ] || printf '[[portal]]\naddress = "127.0.0.1:3260"\n'
    for portal in ${portals//,/ }; do
        printf '[[portal]]\naddress = "%s"\ntransport = ["nvme-%s"]\n' "$portal" "${over//,/\", \"nvme-}"
        printf 'tag = %d\ngroup-state = "%s"\n' $((tag + 1)) "${state[tag]:-optimized}"
        [ -z "${portal_tls:-}" ] || printf 'tls = "%s"\n' "$portal_tls"
        tag=$((tag + 1))
    done
    for ((i = 0; i < disks; i++)); do
        printf '[volumes.disk%d]\n' $i
        if [ -n "$memory" ]; then printf 'backend = "memory"\nsize = "%dMiB"\n' "$size"
        else printf 'backend = "file"\npath = "/var/lib/lab/disk%d"\n' $i; fi
    done
    if [ -n "$both" ]; then printf '[[target]]\nname = "%s"\nprotocols = ["iscsi", "nvme"]\nopen = true\nnqn = "%s"\nluns = [' $IQN $NQN
    else printf '[[subsystem]]\nnqn = "%s"\nnamespaces = [' $NQN; fi
    for ((i = 0; i < disks; i++)); do printf '"disk%d",' $i; done
    echo ']'
    if [ -n "${secret:-}" ]; then
        echo "hosts = [{ nqn = \"${HOSTNQN[0]}\", secret-file = \"/run/host.secret\"${host_tls:+, tls = \"$host_tls\"} }]"
    elif [ -n "${tls:-}" ]; then echo "hosts = [{ nqn = \"${HOSTNQN[0]}\", tls-key-file = \"/run/tls.key\" }]"
    elif [ -n "$hosts" ]; then echo "hosts = [\"${hosts//,/\", \"}\"]"; elif [ -z "$both" ]; then echo 'open = true'; fi
}

nvme_start_nvmet() {
    local nvmet=/sys/kernel/config/nvmet subsystem port host i
    modprobe -a loop nvmet nvmet-tcp
    [[ $over != *rdma* ]] || modprobe nvmet-rdma
    [ -z "$memory" ] || modprobe brd rd_nr=1 rd_size=$((size << 10))
    subsystem=$nvmet/subsystems/$NQN
    mkdir "$subsystem"
    [ -z "$secret" ] || hosts=${HOSTNQN[0]}
    echo $([ -z "$hosts" ] && echo 1 || echo 0) >"$subsystem/attr_allow_any_host"
    for host in ${hosts//,/ }; do mkdir "$nvmet/hosts/$host"; ln -s "$nvmet/hosts/$host" "$subsystem/allowed_hosts/"; done
    if [ -n "$secret" ]; then
        echo "$secret" >"$nvmet/hosts/$hosts/dhchap_key"
        echo ffdhe2048 >"$nvmet/hosts/$hosts/dhchap_dhgroup"
    fi
    for ((i = 0; i < disks; i++)); do
        mkdir "$subsystem/namespaces/$((i + 1))"
        if [ -n "$memory" ]; then
            echo /dev/ram$i >"$subsystem/namespaces/$((i + 1))/device_path"
        else
            echo /var/lib/lab/disk$i >"$subsystem/namespaces/$((i + 1))/device_path"
            echo 1 >"$subsystem/namespaces/$((i + 1))/buffered_io"
        fi
        echo 1 >"$subsystem/namespaces/$((i + 1))/enable"
    done
    for port in ${portals//,/ }; do nvmet_port "$port"; done
}

# Another port of nvmet for the subsystem, which has one transport: ADDRESS:PORT, with the variables of nvme_start.
nvmet_port() {
    local nvmet=/sys/kernel/config/nvmet n port
    # Ports of another subsystem may be there.
    n=$(($(ls "$nvmet/ports" | wc -l) + 1))
    port=$nvmet/ports/$n
    ${net:+nsenter --net=/run/netns/$net} mkdir "$port"
    echo "${over##*,}" >"$port/addr_trtype"
    echo ipv4 >"$port/addr_adrfam"
    echo "${1%:*}" >"$port/addr_traddr"
    echo "${1#*:}" >"$port/addr_trsvcid"
    if [ -n "${tls:-}${secret:-}" ]; then
        echo tls1.3 >"$port/addr_tsas"
        [ "$portal_tls" != required ] || echo required >"$port/addr_treq"
        # Whoever makes a key comes without TLS first.
        [ -z "$secret" ] || echo 'not required' >"$port/addr_treq"
    fi
    # The socket is in the network of the process that links.
    ${net:+nsenter --net=/run/netns/$net} ln -s "$nvmet/subsystems/$NQN" "$port/subsystems/"
}

# As `nvme connect`, up to three times: the kernel gives a connection up after 10 s, which are short on a busy machine that emulates.
nvme_connect() {
    local try
    for try in 1 2 3; do
        if nvme connect "$@" 2>/run/connect.err; then return; fi
        grep -q 'Resource temporarily unavailable' /run/connect.err || break
    done
    cat /run/connect.err >&2
    return 1
}

# Connects, and prints the disks, one a line, by namespace: [ADDRESS:PORT [OPTION of nvme connect ...]]
#
#   way=rdma      before it: over RDMA
#   as=N          before it: as this host (default 0)
#   expects=N     before it: so many disks (default 1)
attach() {
    local portal=${1:-127.0.0.1:4420} host=${HOSTNQN[${as:-0}]} device
    [ $# = 0 ] || shift
    device=$(nvme_connect -t "${way:-tcp}" -a "${portal%:*}" -s "${portal#*:}" -n $NQN -q "$host" -I "${host##*uuid:}" \
        --reconnect-delay=1 --keep-alive-tmo=5 --duplicate-connect -o normal "$@" | sed -n 's/.*device: *//p')
    [ -n "$device" ] || return 1
    within 30 namespaces_are "$device" "${expects:-1}" >&2
    settled
    namespaces "$device"
}

# The disks that a controller shows, by namespace: CONTROLLER
namespaces() {
    local d
    # Of a disk of several paths the subsystem is the home, of another one its controller.
    for d in "$(dirname "/sys/class/nvme-subsystem/"*"/$1")"/nvme*n* "/sys/class/nvme/$1"/nvme*n*; do
        # What has a c is a path.
        if [[ ${d##*/} =~ ^nvme[0-9]+n[0-9]+$ && -e $d/nsid ]]; then echo "$(cat "$d/nsid") /dev/${d##*/}"; fi
    done | sort -un | cut -d' ' -f2
}
namespaces_are() { [ "$(namespaces "$1" | wc -l)" = "$2" ] || { namespaces "$1"; return 1; }; }

# The controllers of the subsystem, one a line.
controllers() {
    local c
    for c in /sys/class/nvme/nvme*; do
        [ ! -e "$c/subsysnqn" ] || [ "$(cat "$c/subsysnqn")" != $NQN ] || echo "${c##*/}"
    done
}

# Whether the paths of the first namespace are in these states, in the order of their controllers: STATE ...
paths_are() {
    local c found=()
    for c in $(controllers); do found+=("$(cat "/sys/class/nvme/$c"/nvme*c*n1/ana_state)"); done
    [ "${found[*]}" = "$*" ] || { echo "${found[*]}"; return 1; }
}

# What the kernel says of a controller: CONTROLLER FILE VALUE
controller_is() { [ "$(cat "/sys/class/nvme/$1/$2")" = "$3" ] || { cat "/sys/class/nvme/$1/$2"; return 1; }; }

# Disconnects from all, or from one.
detach() { if [ $# = 0 ]; then nvme disconnect -n $NQN; else nvme disconnect -d "$1"; fi >/run/detach; }

# TLS for the kernel's host, whose helper (tlshd) bookworm does not have: what comes to 127.0.0.1:4421 goes to the target
# through OpenSSL's client: IDENTITY KEY
tls_way() {
    cat >/run/tls-way <<SH
#!/bin/sh
exec openssl s_client -quiet -no_ign_eof -nocommands -tls1_3 -connect 127.0.0.1:4420 -psk_identity '$1' -psk $2 2>>/run/tls-way.log
SH
    chmod +x /run/tls-way
    socat TCP-LISTEN:4421,bind=127.0.0.1,reuseaddr,nodelay,fork EXEC:/run/tls-way &
    echo $! >/run/tls-way.pid
    within 20 eval "ss -Hltn sport = :4421 | grep -q ."
}

nvme_clear() {
    local nvmet=/sys/kernel/config/nvmet p
    if [ -e /run/tls-way.pid ]; then
        kill "$(cat /run/tls-way.pid)"
        rm -f /run/tls-way.pid
    fi
    stas_clear
    tls_clear
    if [ -e /sys/module/nvme_fabrics ]; then
        timeout 60 nvme disconnect-all >/dev/null
        # Whether paths make one disk is decided when it is loaded. Drives of the guest keep it where it is.
        modprobe -r nvme-rdma nvme-tcp nvme-fabrics nvme-core 2>/dev/null
    fi
    [ -d "$nvmet/subsystems" ] || return 0
    rm -f "$nvmet"/ports/*/subsystems/* "$nvmet"/subsystems/*/allowed_hosts/*
    for p in "$nvmet"/ports/*; do [ ! -d "$p" ] || rmdir "$p"; done
    for p in "$nvmet"/subsystems/*/namespaces/*; do [ ! -d "$p" ] || { echo 0 >"$p/enable"; rmdir "$p"; }; done
    for p in "$nvmet"/subsystems/* "$nvmet"/hosts/*; do [ ! -d "$p" ] || rmdir "$p"; done
    modprobe -r brd 2>/dev/null || true
}
