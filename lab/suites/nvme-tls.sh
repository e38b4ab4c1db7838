# TLS of NVMe over TCP with a host as Debian 13 has it: a current kernel, tlshd and nvme-cli. With LAB_TARGET=lio the target is nvmet.
# client: tlshd
# guest: trixie
# minutes: 3
# only in long runs
# run: -c 2

# A key as nvme-cli makes it, several queues, and digests within the records.
test_verified_loads_with_a_key_of_nvme_cli() {
    local key d
    key=$(nvme gen-tls-key -n "${HOSTNQN[0]}" -c $NQN -m 1 -I 1 | grep -o 'NVMeTLSkey-1:.*')
    nvme_start "tls=$key" portal_tls=required
    tlshd_begin
    tls_key "$key"
    d=$(attach 127.0.0.1:4420 --tls --nr-io-queues=2 --nr-write-queues=1)
    # An admin queue and three others, at both ends.
    sealed 8
    [ "$LAB_TARGET" != lunet ] || says TLS ask sessions
    verified "$d" 16M --numjobs=2 --offset_increment=32M --iodepth=32
    verified "$d" 8M --bsrange=4k-1M --iodepth=8
    detach
    within 20 sealed 0
    d=$(attach 127.0.0.1:4420 --tls --hdr-digest --data-digest)
    verified "$d" 8M --bsrange=4k-256k --iodepth=8
}

# tlshd of Debian 13 makes binders by SHA-256 always, and has ChaCha20-Poly1305 for such a key, which NVMe over TCP has not.
test_a_key_that_tlshd_cannot_use_is_explained() {
    lunet_only "nvmet has the same tlshd"
    nvme_start tls=$TLS_KEY_384
    tlshd_begin
    tls_key $TLS_KEY_384
    fails attach 127.0.0.1:4420 --tls
    logged "give the host a key for SHA-256"
}

# A host with a key comes by TLS, and with that key.
test_a_host_without_its_key_is_refused() {
    lunet_only "both ends of nvmet have one keyring"
    nvme_start tls=$TLS_KEY
    tlshd_begin
    fails attach
    logged "has to connect by TLS"
    # The host finds none that it could use.
    fails attach 127.0.0.1:4420 --tls
    tls_key $TLS_KEY_OTHER
    fails attach 127.0.0.1:4420 --tls
    logged "the host's key of TLS, or its hash, is another one"
    tls_forget
    tls_key $TLS_KEY
    attach 127.0.0.1:4420 --tls
}

# One that has none keeps coming as before, where the portal lets it.
test_plain_hosts_and_a_portal_that_requires_tls() {
    lunet_only "nvmet has no such hosts"
    nvme_start tls=$TLS_KEY portal_tls=required
    fails attach
    logged "the portal is for TLS"
    fails nvme discover -t tcp -a 127.0.0.1 -s 4420 -q "${HOSTNQN[0]}"
    sed -i 's/^tls = "required"/tls = "allowed"/; s/^hosts = .*/open = true/' $LUNET_RUN/lunet.toml
    ask config apply
    attach
}

test_discovery_by_tls() {
    nvme_start tls=$TLS_KEY portal_tls=required
    tlshd_begin
    tls_key $TLS_KEY $DISCOVERY
    nvme discover -t tcp -a 127.0.0.1 -s 4420 -q "${HOSTNQN[0]}" -I "${HOSTNQN[0]##*uuid:}" --tls >/run/discovery
    grep -x "subnqn: *$NQN" /run/discovery
    grep -E "^sectype: *tls13" /run/discovery
    grep -E "^treq: *required" /run/discovery
}

# What is acknowledged by a flush is there after the server was killed, and the load goes on by TLS when it is back.
test_a_killed_server_is_found_again() {
    local d
    lunet_only
    nvme_start tls=$TLS_KEY
    tlshd_begin
    tls_key $TLS_KEY
    d=$(attach 127.0.0.1:4420 --tls)
    load_begin main "$d" 8M --rw=randwrite --bs=16k --fdatasync=8
    within 40 test -s /run/load.main.rounds
    stop -9
    sleep 2
    start_again
    within 60 controller_is "$(controllers)" state live
    load_end main
    says TLS ask sessions
    sealed 6
}

# Secure channel concatenation: an authentication in the clear makes a key, by which the host comes back, on every queue. For each
# controller there is another key.
test_an_authentication_makes_a_key() {
    local d secret made
    secret=$(nvme gen-dhchap-key -m 1 -n "${HOSTNQN[0]}")
    nvme_start "secret=$secret" host_tls=required
    tlshd_begin
    d=$(attach 127.0.0.1:4420 "--dhchap-secret=$secret" --concat)
    sealed 6
    made=$(tls_made)
    [[ $made == "NVMe1G01 ${HOSTNQN[0]} $NQN "* ]]
    verified "$d" 8M --bsrange=4k-1M --iodepth=8
    # The host makes another one when it comes back from an error, or from a reset.
    nvme reset "/dev/$(controllers)"
    within 40 controller_is "$(controllers)" state live
    within 20 eval '[ "$(tls_made)" != "'"$made"'" ]'
    sealed 6
    verified "$d" 4M
    detach
    within 20 sealed 0
}

# long
test_a_host_that_has_to_make_a_key_and_a_killed_server() {
    local d secret
    lunet_only "nvmet does not ask for it"
    secret=$(nvme gen-dhchap-key -m 1 -n "${HOSTNQN[0]}")
    nvme_start "secret=$secret" host_tls=required
    tlshd_begin
    fails attach 127.0.0.1:4420 "--dhchap-secret=$secret"
    d=$(attach 127.0.0.1:4420 "--dhchap-secret=$secret" --concat)
    says "TLS" ask sessions
    load_begin main "$d" 8M --rw=randwrite --bs=16k --fdatasync=8
    within 40 test -s /run/load.main.rounds
    stop -9
    sleep 2
    start_again
    within 60 controller_is "$(controllers)" state live
    load_end main
    sealed 6
    # Who may do so need not.
    sed -i 's/, tls = "required"//' $LUNET_RUN/lunet.toml
    detach
    ask config apply
    attach 127.0.0.1:4420 "--dhchap-secret=$secret"
    sealed 0
}

# The host of the doctor and the benchmark, with the kernel's records at both ends.
# client: lunet's own host
test_lunets_own_host_by_tls() {
    local way=nvme-tcp://127.0.0.1:4420/$NQN/1 as="--host-nqn ${HOSTNQN[0]}"
    lunet_only "nvmet's keys are in the kernel's keyring, and lunet's host takes a file"
    nvme_start tls=$TLS_KEY portal_tls=required
    (umask 077; echo $TLS_KEY >/run/own.key; echo $TLS_KEY_OTHER >/run/other.key)
    $LUNET bench verify "$way" $as --tls-key-file /run/own.key --size 8MiB --runtime 2s --jobs 2 --destroy "$way" >/run/bench
    fails $LUNET bench "$way" $as --tls-key-file /run/other.key --read-only --runtime 1s
    fails $LUNET bench "$way" $as --read-only --runtime 1s
    $LUNET doctor "$way" $as --tls-key-file /run/own.key >/run/doctor || [ $? = 1 ]
    grep -q "$NQN" /run/doctor
}
