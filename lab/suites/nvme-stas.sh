# nvme-stas against lunet's discovery controllers: what is served comes and goes, and the host follows.
# client: nvme-stas
# guest: trixie
# minutes: 2
# run: -c 2

# Another subsystem with the same volume: ENDING
subsystem_more() { printf '[[subsystem]]\nnqn = "%s"\nnamespaces = ["disk0"]\nopen = true\n' "$NQN$1" >>$LUNET_RUN/lunet.toml; }

# long
test_a_subsystem_that_comes_is_connected_and_one_that_goes_is_not() {
    lunet_only "about lunet's own commands"
    nvme_start
    cp $LUNET_RUN/lunet.toml /run/before.toml
    stas_begin
    within 30 stas_has ''
    subsystem_more -two
    ask config apply
    within 30 stas_has '' -two
    cp /run/before.toml $LUNET_RUN/lunet.toml
    ask config apply --force
    within 30 stas_has ''
}

# The discovery controller is connected again by the kernel, and its log read again.
# long
test_what_came_while_the_server_was_down_is_connected() {
    lunet_only
    nvme_start
    stas_begin
    within 30 stas_has ''
    stop -9
    subsystem_more -two
    sleep 2
    start_again
    within 60 stas_has '' -two
}
