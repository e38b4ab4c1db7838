#!/bin/bash
# sandbox.sh DIR SCRIPT: runs SCRIPT in DIR/home with bash, in namespaces of its own (unshare): /etc and /var/lib can be written and
# are as before afterwards, /run is empty, and the addresses of the documentation (RFC 5737) are this machine's.
set -eu
dir=$1 script=$2
mount -t tmpfs tmpfs "$dir/layers"
for tree in etc var/lib; do
    mkdir -p "$dir/layers/$tree/upper" "$dir/layers/$tree/work"
    mount -t overlay overlay \
        -o "lowerdir=/$tree,upperdir=$dir/layers/$tree/upper,workdir=$dir/layers/$tree/work" "/$tree"
done
mount -t tmpfs -o mode=755 tmpfs /run
ip link set lo up
for address in 192.0.2.10 192.0.2.11 198.51.100.10; do ip address add "$address/32" dev lo; done

# Adds a line to a file of /etc. In a user's namespace the file is of somebody else: it is replaced.
add() {
    { cat "/etc/$1" && echo "$2"; } >"$dir/added"
    cp --remove-destination "$dir/added" "/etc/$1"
}

add hosts '192.0.2.10 nas'

# Waits until a command succeeds.
await() {
    for _ in {1..1200}; do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.05
    done
    echo "in vain: $*" >&2
    cat serve.log >&2
    return 1
}

# Starts `lunet serve`, and waits until it is ready. Its output is in serve.log.
serve() {
    # Not in the background: what is there is another server's.
    : >serve.log
    lunet serve "$@" >serve.log 2>&1 &
    server=$!
    await grep 'is ready' serve.log
}

# Ends it in good order.
stop() {
    kill "$server"
    wait "$server" || true
}

# Ends it as a power cut does, but that the machine stays.
crash() {
    kill -KILL "$server"
    wait "$server" 2>/dev/null || true
}

cd "$dir/home"
set -o pipefail
. "$script"
