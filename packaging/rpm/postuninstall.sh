if [ -d /run/systemd/system ]; then
    systemctl daemon-reload >/dev/null || :
fi
