#!/bin/sh
# After the files are in place: the user, the folders, and Python's compiled files.
set -e
/opt/gpupool/bin/python -m compileall -q /opt/gpupool/lib || true
if command -v systemd-sysusers >/dev/null; then
  systemd-sysusers gpupool.conf
elif ! getent passwd gpupool >/dev/null; then
  useradd --system --home-dir /var/lib/gpupool --shell /usr/sbin/nologin gpupool
fi
if command -v systemd-tmpfiles >/dev/null; then systemd-tmpfiles --create gpupool.conf; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
# An upgrade restarts nothing: docs/upgrade.md says in which order servers are restarted.
