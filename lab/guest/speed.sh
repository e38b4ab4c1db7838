# Comparing targets: throughput, and what it costs the guest's processors. Sourced by lib.sh.
#
# Absolute figures of an emulated machine mean nothing. What is measured in turns, in one boot, can be told as a ratio of each round:
# figures.py makes a table of it.

# One measurement: WHERE TARGET LOAD [ARGUMENT ...]. LOAD runs fio with --minimal, and leaves what each of them says in /run/fio-*.
# Adds a line to /run/measured: MiB/s, CPU seconds of the whole guest per GiB, and of the target alone.
measure() {
    local where=$1 target=$2 whole own kib=0 rate=0 out line
    shift 2
    rm -f /run/fio-*
    sync
    whole=$(busy) own=$(busy_target "$target")
    "$@" || { cat /run/fio-*; return 1; }
    whole=$(($(busy) - whole)) own=$(($(busy_target "$target") - own))
    for out in /run/fio-*; do
        # Error, KiB read, KiB/s read, KiB written, KiB/s written.
        line=$(grep '^3;' "$out" | cut -d';' -f5-7,47,48)
        [[ $line == 0\;* ]] || { cat "$out"; return 1; }
        kib=$((kib + $(awk -F';' '{print $2 + $4}' <<<"$line")))
        rate=$((rate + $(awk -F';' '{print $3 + $5}' <<<"$line")))
    done
    [ $kib -gt 0 ] || { echo "    nothing was read or written: $*"; return 1; }
    # Ticks are hundredths of a second.
    awk -v w="$where" -v t="$target" -v k=$kib -v r=$rate -v a=$whole -v o=$own \
        'BEGIN {print w, t, r / 1024, a / 100 / k * 1048576, o / 100 / k * 1048576}' | tee -a /run/measured
}

# Ticks that the guest's processors were not idle.
busy() { awk '$1 == "cpu" {print $2 + $3 + $4 + $7 + $8}' /proc/stat; }

# Ticks that a target has used: lunet's process (of that build, if there are two), or the threads of LIO's connections. What work queues do for LIO is in neither; over
# iSER that is all it does.
busy_target() {
    case $1 in
        lunet*-before | lunet*-after) awk '{print $14 + $15}' "/proc/$(cat "/run/lunet/lunet-${1##*-}.pid")/stat" ;;
        lunet*) awk '{print $14 + $15}' "/proc/$(cat /run/lunet/lunet.pid)/stat" ;;
        lio)
            # A process may end in between, which is none of these.
            cat $({ grep -ls '^iscsi_t[rt]x$' /proc/[0-9]*/comm || true; } | sed 's/comm$/stat/') | awk '{sum += $14 + $15} END {print sum}'
            ;;
        *) echo 0 ;;
    esac
}
