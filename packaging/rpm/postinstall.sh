systemd-sysusers lunet.conf
systemd-tmpfiles --create lunet.conf || :
if [ ! -e /etc/lunet/lunet.toml ]; then
    install -d -m 750 -o lunet -g lunet /etc/lunet
    install -m 640 -o lunet -g lunet /usr/share/lunet/lunet.toml /etc/lunet/lunet.toml
fi
# Keys of earlier versions are taken out, and a copy is kept. What cannot be done is told, and holds up nothing.
lunet config migrate /etc/lunet/lunet.toml || :
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload >/dev/null || :
    # After an upgrade, if it runs.
    [ "$1" -lt 2 ] || systemctl try-restart lunet.service >/dev/null || :
fi
