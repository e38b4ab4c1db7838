if [ -d /run/systemd/system ]; then
    systemctl daemon-reload >/dev/null || :
fi
# Folders that hold nothing but the package's files belong to no package.
if [ "$1" -eq 0 ]; then
    for folder in /usr/libexec/lunet /usr/share/lunet /usr/share/doc/lunet /usr/share/licenses/lunet; do
        [ ! -d $folder ] || find $folder -depth -type d -empty -delete
    done
fi
