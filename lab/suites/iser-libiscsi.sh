# libiscsi's initiator over iSER (iser://) and over TCP, over soft RoCE: its tools say the same over both.
# client: libiscsi over rdma_rxe
# minutes: 1
# only in long runs

ADDRESS=192.0.2.1

suite_setup() { rdma_network $ADDRESS/24; }

# Starts lunet on the RDMA device's address; what libiscsi registers is more than a shell may lock.
served() {
    lunet_only "about lunet's own iSER"
    target_start size=64 portals=$ADDRESS:3260
    ulimit -l unlimited
}

# The LUN's address: SCHEME
lun() { echo "$1://$ADDRESS/$IQN/0"; }

# Sessions over iSER that the log has.
by_iser() { grep -c 'iSER: established' "$LUNET_RUN/lunet.log"; }

test_its_tools_say_the_same_over_both() {
    local tool
    served
    for tool in iscsi-inq "iscsi-inq -e 1 -c 131" iscsi-readcapacity16 iscsi-swp; do
        # shellcheck disable=SC2086 # words
        timeout 20 $tool "$(lun iscsi)" >/run/tcp
        # shellcheck disable=SC2086 # words
        timeout 20 $tool "$(lun iser)" >/run/iser
        [ -s /run/tcp ]
        cmp /run/tcp /run/iser
    done
    same "$(by_iser)" 4 "sessions over iSER"
}

test_a_load_of_random_reads() {
    served
    # It has no end of its own.
    timeout -s INT 5 iscsi-perf -m 32 -b 8 -r "$(lun iser)" >/run/perf 2>&1 || same $? 124 "exit code"
    grep -q 'iops average [1-9]' /run/perf
    fails grep -qi 'fail\|error' /run/perf
    same "$(by_iser)" 1 "sessions over iSER"
    note "$(tr '\r' '\n' </run/perf | grep -o 'iops average [0-9]*' | tail -n 1)"
}

# The test suite of libiscsi 1.19 asks the target what it has in one session, ends it, and tests in the next. Over iSER a process of
# libiscsi 1.19 has no second session, whatever the target: docs/iser.md says why. What the server owes is that it is none the worse.
test_its_test_suite_does_not_get_to_its_tests() {
    served
    timeout 30 iscsi-test-cu -d -S -v -V --test=ALL.Inquiry.Standard "$(lun iser)" >/run/said 2>&1 || true
    grep -q '\[OK\] MODESENSE6' /run/said
    within 20 eval '[ "$(rdma resource show qp | grep -c "comm lunet")" = 0 ]'
    timeout 20 iscsi-inq "$(lun iser)" >/run/inq
    # One that can is to be compared with TCP.
    fails grep -qE '^ *tests +1 +1 +1' /run/said
    note "$(grep -m 1 -o 'Login Failed.*' /run/said || echo 'the tool crashed')"
}
