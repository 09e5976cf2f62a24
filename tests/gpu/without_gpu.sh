#!/bin/sh
# Runs a command where there is neither a GPU nor a driver: without_gpu.sh COMMAND... (as root)
#
# In a mount namespace of its own, /dev has no NVIDIA device, and the driver's libraries are empty.
exec unshare --mount sh -c '
    set -e
    made=$(mktemp -d)
    mount -t tmpfs -o mode=755 tmpfs "$made"
    for path in /dev/*; do
        name=${path##*/}
        case $name in nvidia*|dri|dxg) continue ;; esac
        if [ -L "$path" ]; then cp -P "$path" "$made/$name"
        elif [ -d "$path" ]; then mkdir "$made/$name" && mount --rbind "$path" "$made/$name"
        elif [ -c "$path" ]; then : >"$made/$name" && mount --bind "$path" "$made/$name"
        fi
    done
    mount --rbind "$made" /dev
    for library in $(ldconfig -p | sed -n "s/.*lib\(cuda\|cudadebugger\|nvcuvid\|nvoptix\|nvidia-[a-z-]*\)\.so.* => //p"); do
        mount --bind /dev/null "$(readlink -f "$library")" || true
    done
    exec "$@"
' without_gpu "$@"
