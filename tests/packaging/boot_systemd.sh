#!/bin/bash
# Boots systemd in namespaces of its own, on a copy of this machine's root that is thrown away.
#
#     boot_systemd.sh FOLDER root      makes FOLDER/root, an overlay of / in memory
#     boot_systemd.sh FOLDER boot      becomes that systemd, which starts trial.target
#
# As root, on a machine with systemd. Nothing outside of FOLDER and of cgroups named gpupool-trial changes.
set -e
folder=$1 root=$1/root
case $2 in
root)
    mount -t tmpfs -o size=4g tmpfs "$folder"
    mkdir "$folder/upper" "$folder/work" "$root"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$root"
    ;;
boot)
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
    mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
    for each in cpu cpuacct cpuset memory devices freezer blkio pids; do
        mkdir "$root/sys/fs/cgroup/$each"
        mount -t cgroup -o "$each" cgroup "$root/sys/fs/cgroup/$each" || rmdir "$root/sys/fs/cgroup/$each"
    done
    mkdir "$root/sys/fs/cgroup/systemd"
    mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
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
