# lunet's RDMA library (crates/verbs) over soft RoCE: the program `verbs` of tests/ connects to itself.
# run: -p verbs
# client: rdma_rxe
# minutes: 1
# only in long runs

ADDRESS=192.0.2.1 ADDRESS6=2001:db8::1

suite_setup() { rdma_network $ADDRESS/24 $ADDRESS6/64; }

# One of the program's trials: TRIAL [NUMBER]. Whatever becomes of it, the kernel has nothing of it afterwards.
trial() {
    local before after
    lunet_only "about lunet's own library"
    before=$(rdma resource)
    (
        ulimit -l unlimited
        /run/programs/verbs $ADDRESS "$@"
    ) >/run/trial || { cat /run/trial; return 1; }
    after=$(rdma resource)
    same "$after" "$before" "left behind"
}

test_without_libraries_one_sentence_says_so() {
    lunet_only "about lunet's own library"
    # Another root without them: the program's own libraries are those of the guest.
    mkdir -p /run/bare/{lib,lib64,usr/lib/x86_64-linux-gnu}
    local file
    for file in $(ldd /run/programs/verbs | grep -o '/lib[^ ]*'); do
        mkdir -p "/run/bare${file%/*}"
        cp "$file" "/run/bare$file"
    done
    cp /run/programs/verbs /run/bare/
    fails chroot /run/bare /verbs $ADDRESS facts 2>/run/said
    grep -q 'libibverbs.so.1 cannot be opened.*install rdma-core' /run/said
    same "$(wc -l </run/said)" 1
}

test_device_port_and_gid() {
    trial facts
    grep -q 'rxe0 port 1 RoceV2 GID' /run/trial
    grep -q 'MTU 4096' /run/trial
    note "$(cut -d, -f1,2 /run/trial)"
}

test_an_address_without_a_device() {
    lunet_only "about lunet's own library"
    says 'no RDMA device carries the address 10.0.2.15' /run/programs/verbs 10.0.2.15 no-device
}

test_messages_both_ways() { trial talk 1000; }

test_messages_over_ipv6() {
    ADDRESS=$ADDRESS6 trial talk 200
    grep -q "peer: Some(\[$ADDRESS6\]" /run/trial
}

test_a_listener_for_all_addresses_of_both_kinds() {
    trial everywhere
    ADDRESS=$ADDRESS6 trial everywhere
}

test_connections_are_served_by_other_threads() { trial spread 20; }

test_remote_writes_and_reads() { trial data; }

test_invalidation_of_foreign_memory_is_refused() {
    trial invalidate
    note "$(paste -sd';' /run/trial)"
}

test_wrong_keys_kill_their_connection_alone() { trial wrong-key; }

test_abrupt_ends_free_everything() { trial abrupt; }

test_refusals_and_a_port_in_use() {
    trial refused
    grep -q "the program at the other end refused it" /run/trial
    grep -q 'is there already' /run/trial
}

test_a_shared_receive_queue() { trial shared 1000; }

test_connects_and_disconnects() {
    trial many $((LAB_ROUNDS * 200))
    note "$(cat /run/trial)"
}

test_limit_of_locked_memory() {
    lunet_only "about lunet's own library"
    # Not as root, who may lock what he wants.
    chmod 666 /dev/infiniband/*
    (
        ulimit -l 1024
        says '32 MiB of memory cannot be registered with rxe0, because this process may lock 1 MiB' \
            setpriv --reuid=nobody --clear-groups --inh-caps=-all /run/programs/verbs $ADDRESS locked
    )
}

test_link_down_is_told() {
    lunet_only "about lunet's own library"
    ip link set rdma0 down
    /run/programs/verbs $ADDRESS link-down >/run/said || { ip link set rdma0 up; cat /run/said; return 1; }
    ip link set rdma0 up
    note "$(cat /run/said)"
    trial talk 10
}

# Starts a trial that stays, as $held, when it has a connection.
held() {
    rm -f /run/held
    (ulimit -l unlimited && exec /run/programs/verbs $ADDRESS "$1") >/run/held 2>&1 &
    held=$!
    within 20 grep -q holding /run/held
}

test_a_killed_process_leaves_nothing() {
    lunet_only "about lunet's own library"
    local before
    before=$(rdma resource)
    held hold
    fails same "$(rdma resource)" "$before" >/dev/null
    kill -9 $held
    wait $held || true
    within 20 eval "[ '$before' = \"\$(rdma resource)\" ]"
}

test_a_device_that_goes_away() {
    lunet_only "about lunet's own library"
    held removed
    timeout 30 rdma link del rxe0
    wait $held
    grep -q 'let go' /run/held
    rdma link add rxe0 type rxe netdev rdma0
    trial talk 10
}
