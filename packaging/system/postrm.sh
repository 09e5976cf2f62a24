#!/bin/sh
# After the files are gone. "purge" (of Debian) forgets the server, whose pool still knows it.
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
case "$1" in
  remove | purge | 0) rm -rf /opt/gpupool ;;
esac
if [ "$1" = purge ]; then
  rm -rf /var/lib/gpupool /var/lib/gpupool-keeper /etc/gpupool
fi
