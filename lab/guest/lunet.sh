# Starting, asking and ending lunet, in the guest and on the host. Sourced by lib.sh and host.sh, which say where things are:
# the program $LUNET, its configuration, socket, log and process id in $LUNET_RUN, a folder for its own volumes in $LUNET_DATA.

# Starts lunet with the configuration that comes on standard input, under a name; it is ready when this returns. With net=far before
# it, on the far machine of network.sh.
serve() {
    local name=${1:-lunet}
    mkdir -p "$LUNET_RUN" "$LUNET_DATA/$name"
    (umask 077 && cat >"$LUNET_RUN/$name.toml")
    echo "${net:-}" >"$LUNET_RUN/$name.net"
    start_again "$name"
}

# Starts it once more with the configuration that it has.
start_again() {
    local name=${1:-lunet} run=$LUNET_RUN/${1:-lunet} net
    net=$(cat "$run.net")
    # The line of the one before is not taken for this one's.
    : >"$run.out"
    # nsenter becomes lunet: the process is the same.
    ${net:+nsenter --net=/run/netns/$net} \
        "$LUNET" serve --create --config "$run.toml" --data "$LUNET_DATA/$name" --socket "$run.sock" --listen-control none \
        >"$run.out" 2>>"$run.log" &
    echo $! >"$run.pid"
    within 90 grep -q 'is ready' "$run.out" || { cat "$run.log"; return 1; }
}

# lunet's own commands, asked of the running server: COMMAND [ARGUMENT ...]
ask() { "$LUNET" "$@" --socket "$LUNET_RUN/lunet.sock"; }

# One of the server's statistics, summed over everything that has it: NAME
counted() { ask stats --json | tr -d ' \n' | awk -v RS='[,{}]' -F: -v name="\"$1\"" '$1 == name {n += $2} END {print n + 0}'; }

# Waits until lunet's log has a line with this, or so many; a thread of its own writes it. WORDS [NUMBER]
logged() { within 20 log_has "$@"; }
log_has() { [ "$(grep -c -e "$1" "$LUNET_RUN/lunet.log")" -ge "${2:-1}" ]; }

# Ends lunet: by SIGTERM, or with -9 at once.
stop() {
    local pid
    pid=$(cat "$LUNET_RUN/${2:-lunet}.pid")
    kill "${1:--15}" "$pid" || true
    gone "$pid"
}

# Waits until a process has ended.
gone() { within 40 eval "! kill -0 $1 2>/dev/null"; }
