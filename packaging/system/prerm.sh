#!/bin/sh
# Before the files go: the server ends, unless this is an upgrade.
set -e
case "$1" in
  upgrade | failed-upgrade | 1) upgrade=yes ;;
  *) upgrade=no ;;
esac
if [ "$upgrade" = no ] && [ -d /run/systemd/system ]; then
  systemctl disable --now gpupool.service gpupool-keeper.socket || true
fi
if [ "$upgrade" = no ]; then
  find /opt/gpupool -name __pycache__ -prune -exec rm -rf {} +
fi
