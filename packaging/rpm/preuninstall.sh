if [ "$1" -eq 0 ] && [ -d /run/systemd/system ]; then
    systemctl disable --now lunet.service lunet-reapply.service >/dev/null 2>&1 || :
fi
