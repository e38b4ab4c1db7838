# Words that tests say, in the guest and on the host. What they have to say of a failure goes to standard error: standard output may be
# taken for data, as a list of disks.

# The target that the suites are run against: lunet, or the kernel's LIO, which tells whose fault a failure is.
LAB_TARGET=${LAB_TARGET:-lunet}
# How much a test does where more is better: rounds of 2 in CI, of 100 in a long run.
LAB_ROUNDS=${LAB_ROUNDS:-2}
# Where a test may leave its files.
LAB_SCRATCH=${LAB_SCRATCH:-/run}

# A word about what was measured, shown beside a passed test.
note() { echo "note: $*"; }

# Ends the test: it makes no sense here, for this reason.
skip() { echo "skip: $*"; exit 77; }

# First line of a test that is about lunet's own commands, or kills it: LIO has no process that could be killed.
lunet_only() { [ "$LAB_TARGET" = lunet ] || skip "${*:-about lunet itself}"; }

# Says what was expected if the two are not the same.
same() { [ "$1" = "$2" ] || { echo "    ${3:-values differ}: got '$1', wanted '$2'" >&2; return 1; }; }

# Says so if the command succeeds. A line that begins with `!` would end no test, whatever comes of it: bash leaves those out of -e.
fails() { ! "$@" || { echo "    should have failed: $*" >&2; return 1; }; }

# Says what a command said if it fails, or has not this in its words (letters of any case): PATTERN COMMAND [ARGUMENT ...]
# Not `COMMAND | grep -q`: grep leaves at the first match, and the command fails for want of a reader.
says() {
    local pattern=$1
    shift
    "$@" >"$LAB_SCRATCH/said" 2>&1 || { { echo "    failed with $?: $*"; cat "$LAB_SCRATCH/said"; } >&2; return 1; }
    grep -qi -e "$pattern" "$LAB_SCRATCH/said" || { { echo "    '$pattern' was not said by: $*"; cat "$LAB_SCRATCH/said"; } >&2; return 1; }
}

# The tests of a suite in their order, with the word `long` behind those that stand below a comment which says so: FILE
tests() { sed -n '/^# long/{N;s/.*\n\(test_[a-z0-9_]*\)() {.*/\1 long/p;d};s/^\(test_[a-z0-9_]*\)() {.*/\1/p' "$1"; }

# True if a short run goes without ZFS, as that is not built: LAB. In the guest nobody asks.
zfs_is_left_out() { [ -n "${LAB_SHORT:-}" ] && ! "$1/zfs" --cached >/dev/null 2>&1; }

# How much longer than on a quiet machine a test may wait before it gives up.
LAB_PATIENCE=${LAB_PATIENCE:-5}

# Retries a command until it succeeds, for so many seconds at the most on a quiet machine.
within() {
    local end=$((SECONDS + $1 * LAB_PATIENCE)) silent=
    shift
    until "$@" >"$LAB_SCRATCH/within" 2>&1; do
        [ $SECONDS -lt $end ] || { { echo "    not within time: $*"; cat "$LAB_SCRATCH/within"; } >&2; return 1; }
        # A pipe that nobody writes to: to start `sleep` takes an emulated processor longer than most that is asked here.
        [ -n "$silent" ] || exec {silent}<> <(:)
        read -rt 0.2 -u "$silent" || true
    done
    [ -z "$silent" ] || exec {silent}>&-
}

# Waits for udev to be done with what has come and gone.
settled() { udevadm settle -t $((40 * LAB_PATIENCE)); }

# Did the emulator stumble? Nothing that a test could cause, and rare: CONSOLE
#
# A kernel that patches its own code puts a breakpoint there meanwhile, and QEMU before 8.1 may run the breakpoint from a stale
# translation, after the kernel has taken it away again. And a kernel that measures its clock at the moment when the host has something
# else to do gets one that runs ten times too fast, so that all time limits are over at once.
stumbled() { grep -qsE 'Oops: int3|PIT calibration deviates|APIC calibration not consistent' "$1"; }
