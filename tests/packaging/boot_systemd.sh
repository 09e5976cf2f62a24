#!/bin/bash
# Boots systemd in namespaces of its own, on a copy of this machine's root that is thrown away.
#
#     boot_systemd.sh FOLDER root      makes FOLDER/root, an overlay of / in memory
#     boot_systemd.sh FOLDER boot      becomes that systemd, which starts trial.target
#
# As root, on a machine with systemd and cgroups v1 or v2. Nothing outside of FOLDER and of cgroups named
# gpupool-trial changes, but for the controllers of cgroup v2 that are switched on for that one.
set -e
folder=$1 root=$1/root
case $2 in
root)
    mount -t tmpfs -o size=4g tmpfs "$folder"
    mkdir "$folder/upper" "$folder/work" "$root"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$root"
    ;;
boot)
    unified=/sys/fs/cgroup
    if [ -e "$unified/cgroup.controllers" ]; then
        for each in cpu cpuset io memory pids; do
            echo "+$each" > "$unified/cgroup.subtree_control" || true
        done
        mkdir -p "$unified/gpupool-trial"
        # That group becomes the root of the namespace, where only groups may be: this process leaves it.
        before=$unified$(sed -n 's/^0:://p' /proc/self/cgroup)
        setsid --fork bash -c 'until [ -s "/proc/$1/task/$1/children" ]; do sleep 0.01; done
            echo "$1" > "$2/cgroup.procs"' - $$ "$before"
        echo $$ > "$unified/gpupool-trial/cgroup.procs"
        exec unshare --pid --fork --mount --uts --ipc --net --cgroup "$0" "$folder" inside
    fi
    for each in /sys/fs/cgroup/*/; do
        group=${each}gpupool-trial
        mkdir -p "$group" 2>/dev/null || continue
        for name in cpuset.cpus cpuset.mems; do
            [ -e "$each$name" ] && cat "$each$name" > "$group/$name"
        done
        echo $$ > "$group/cgroup.procs" || true
    done
    exec unshare --pid --fork --mount --uts --ipc --net --cgroup "$0" "$folder" inside
    ;;
inside)
    mount --make-rprivate /
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
        # Processes of other namespaces are 0 there.
        while grep -qx 0 "$root/sys/fs/cgroup/cgroup.procs"; do sleep 0.01; done
    else
        mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
        for each in cpu cpuacct cpuset memory devices freezer blkio pids; do
            mkdir "$root/sys/fs/cgroup/$each"
            mount -t cgroup -o "$each" cgroup "$root/sys/fs/cgroup/$each" || rmdir "$root/sys/fs/cgroup/$each"
        done
        mkdir "$root/sys/fs/cgroup/systemd"
        mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
    fi
    for each in run tmp dev; do mount -t tmpfs -o mode=755 tmpfs "$root/$each"; done
    chmod 1777 "$root/tmp"
    for each in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0"; do
        set -- $each
        mknod -m 666 "$root/dev/$1" c "$2" "$3"
    done
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    ip link set lo up
    hostname trial
    cd "$root"
    mkdir -p .old
    pivot_root . .old # and no chroot: workers' mounts are entered by setns(2), which goes to the root
    umount -l /.old
    export container=lxc
    exec /lib/systemd/systemd --system --unit=trial.target --log-target=null
    ;;
esac
