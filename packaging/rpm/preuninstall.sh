# In a tree where no systemd runs, too: what is left enabled points to nothing.
if [ "$1" -eq 0 ]; then
    if [ -s /var/lib/lunet-tune/journal.json ]; then
        echo "lunet: what 'lunet tune' has set on this machine stays set: 'lunet tune rollback' takes it back, before the removal or with lunet installed again" >&2
    fi
    if [ -n "$(find /var/lib/lunet-attach -name '*.json' 2>/dev/null)" ]; then
        echo "lunet: what 'lunet attach' has attached to this machine stays so: 'lunet detach' takes it back, before the removal or with lunet installed again" >&2
    fi
    systemctl --no-reload disable --now lunet.socket lunet-admin.socket lunet-read.socket lunet.service lunet-reapply.service >/dev/null 2>&1 || :
fi
