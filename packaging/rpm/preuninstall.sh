if [ "$1" -eq 0 ] && [ -d /run/systemd/system ]; then
    systemctl disable --now lunet.socket lunet-admin.socket lunet-read.socket lunet.service lunet-reapply.service >/dev/null 2>&1 || :
fi
