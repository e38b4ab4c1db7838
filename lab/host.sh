# Helpers of the suites that run here, on the host, and boot guests: host-suite reads them. All files of a test are in $LAB_SCRATCH,
# which is empty when it begins.

LAB=$(dirname "$LAB_LIB")
IQN=iqn.2026-11.local.lunet:lab
LUNET=${LUNET_BIN:-$LAB/../target/release/lunet} LUNET_RUN=$LAB_SCRATCH LUNET_DATA=$LAB_SCRATCH/data
. "$LAB/guest/words.sh"
. "$LAB/guest/lunet.sh"

# A port of 127.0.0.1 that nobody listens on. lunet would find one itself (port 0), but not the same again after a restart.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Boots a guest that runs the script of standard input, and prints what that prints; ends with its exit code. Options of lab/run.
guest() { "$LAB/run" "$@" -s "$LAB_SCRATCH/share" -; }

# The same in the background, for a test that goes on meanwhile: its output is in $LAB_SCRATCH/guest.out, and `wait $machine` gives
# its exit code.
guest_starts() {
    cat >"$LAB_SCRATCH/guest.script"
    "$LAB/run" "$@" -s "$LAB_SCRATCH/share" "$LAB_SCRATCH/guest.script" >"$LAB_SCRATCH/guest.out" 2>&1 &
    machine=$!
    echo $machine >"$LAB_SCRATCH/guest.pid"
}

# What a failed test shows, before anything is cleared up.
show_state() {
    local file
    for file in "$LAB_SCRATCH"/*.sock; do
        [ ! -S "$file" ] || timeout 10 "$LUNET" sessions --json --socket "$file" 2>&1
    done
    cp "$LAB_SCRATCH"/share/{console,dmesg} "$LAB_OUT/"
    for file in "$LAB_SCRATCH"/guest.out "$LAB_SCRATCH"/*.log "$LAB_SCRATCH"/share/{console,dmesg}; do
        case $file in */test.log | */state.log | */clear.log) continue ;; esac
        [ ! -e "$file" ] || { echo "--- ${file##*/}"; tail -n 40 "$file"; }
    done
    true
}

# What the suites are run with, for the table of clients.
versions() {
    "$("$LAB/qemu")" --version | sed -n 's/.*(Debian \(.*\))/qemu-system-x86\t\1/p'
    dpkg-query -W -f '${Package}\t${Version}\n' libvirt-clients chromium
}

# Takes away whatever a test left behind: servers, guests, files.
clear_up() {
    local file
    for file in "$LAB_SCRATCH"/*.pid; do
        [ -e "$file" ] || continue
        # lab/run ends its guest if it is asked to end.
        case $file in */guest.pid) kill "$(cat "$file")" && gone "$(cat "$file")" ;; *) kill -9 "$(cat "$file")" ;; esac
    done 2>/dev/null
    find "$LAB_SCRATCH" -mindepth 1 -maxdepth 1 ! -name '*.log' -exec rm -rf {} +
    # A log of lunet belongs to the test that it was written in.
    find "$LAB_SCRATCH" -maxdepth 1 -name '*.log' ! -name test.log ! -name state.log ! -name clear.log -delete
    true
}
