systemd-sysusers lunet.conf
systemd-tmpfiles --create lunet.conf || :
# In /etc/lunet as its user, whose folder it is: root writes nothing where another user decides what the names are.
as_lunet() { timeout -k 5 60 setpriv --reuid=lunet --regid=lunet --init-groups -- "$@"; }
# Commands change the configuration, so it is no conffile: nobody is asked about it at an upgrade, and whoever has removed it
# does not get it again.
if [ "$1" -eq 1 ] && [ ! -L /etc/lunet/lunet.toml ] && [ ! -e /etc/lunet/lunet.toml ]; then
    install -d -m 750 -o lunet -g lunet /etc/lunet
    as_lunet sh -c 'umask 027 && set -C && cat /usr/share/lunet/lunet.toml >/etc/lunet/lunet.toml' ||
        echo "lunet: /etc/lunet/lunet.toml was not made: copy /usr/share/lunet/lunet.toml there as the user lunet" >&2
fi
# Keys of earlier versions are taken out, and a copy is kept. What cannot be done is told, and holds up nothing.
[ ! -e /etc/lunet/lunet.toml ] || as_lunet lunet config migrate /etc/lunet/lunet.toml || :
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload >/dev/null || :
    # After an upgrade, if it runs.
    # A configuration that this lunet refuses ends no server that works: that goes on until it is right.
    if [ "$1" -lt 2 ] || ! systemctl --quiet is-active lunet.service; then
        :
    elif as_lunet lunet config check /etc/lunet/lunet.toml >/dev/null; then
        systemctl try-restart lunet.service >/dev/null || :
    else
        echo "lunet: the server that runs was not restarted, because this version refuses /etc/lunet/lunet.toml: mend it, and \`systemctl restart lunet\`" >&2
    fi
fi
