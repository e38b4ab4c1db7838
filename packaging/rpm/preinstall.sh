# The latest form of a data directory that this lunet knows. One of a later form is left to the lunet that is installed.
form=1
found=$(head -n 1 /var/lib/lunet/form 2>/dev/null || :)
case "${found:-0}" in *[!0-9]* | ??????*) found=999999 ;; esac
if [ "${found:-0}" -gt "$form" ]; then
    echo "lunet: /var/lib/lunet has form $found, which this lunet does not know (it knows up to $form): keep the lunet that is installed" >&2
    exit 1
fi
