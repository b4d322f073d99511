#!/bin/bash
# chroot.sh [DIR]           make (or mount again) a Debian 13 chroot with PyTorch
# chroot.sh --umount [DIR]  unmount what it needs, leaving the files
#
# Debian 12's own PyTorch is 1.13 and built without Kineto, so a second, newer
# PyTorch has to come from somewhere; Debian 13 packages 2.6 with Kineto.
set -euo pipefail

umount_only=
if [ "${1:-}" = --umount ]; then umount_only=1; shift; fi
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/weft/trixie}

unmount() {
    local m
    for m in dev sys proc; do
        if mountpoint -q "$dir/$m"; then umount -R -l "$dir/$m"; fi
    done
}

mount_all() {
    mountpoint -q "$dir/proc" || mount -t proc proc "$dir/proc"
    local m
    for m in sys dev; do
        if ! mountpoint -q "$dir/$m"; then
            mount --rbind "/$m" "$dir/$m"
            # Without this, unmounting the copy would unmount the host's own.
            mount --make-rslave "$dir/$m"
        fi
    done
}

if [ -n "$umount_only" ]; then unmount; exit; fi
if [ "$(id -u)" != 0 ]; then echo "chroot.sh: needs root" >&2; exit 1; fi

if [ ! -e "$dir/.complete" ]; then
    if ! command -v debootstrap >/dev/null; then
        apt-get update -q
        DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends debootstrap
    fi
    # The mirror this host is set up to use, rather than one written down here.
    mirror=
    if [ -r /etc/apt/sources.list.d/debian.sources ]; then
        mirror=$(awk '/^URIs:/{print $2; exit}' /etc/apt/sources.list.d/debian.sources)
    fi
    if [ -z "$mirror" ] && [ -r /etc/apt/sources.list ]; then
        mirror=$(awk '$1=="deb"{for(i=2;i<=NF;i++) if($i ~ /^[a-z+]+:\/\//){print $i; exit}}' /etc/apt/sources.list)
    fi
    if [ -z "$mirror" ]; then echo "chroot.sh: no mirror in apt's configuration" >&2; exit 1; fi

    # A half-made tree makes debootstrap fail in odd ways: start over. Never
    # delete below a mount, which would reach into the host's /dev.
    unmount
    if [ -d "$dir/dev" ] && mountpoint -q "$dir/dev"; then echo "chroot.sh: $dir/dev is still mounted" >&2; exit 1; fi
    if [ -d "$dir" ] && [ -n "$(ls -A "$dir")" ] && [ ! -d "$dir/debootstrap" ] && [ ! -e "$dir/etc/debian_version" ]; then
        echo "chroot.sh: $dir is neither empty nor a chroot" >&2; exit 1
    fi
    rm -rf --one-file-system "$dir"
    mkdir -p "$dir"
    trap unmount ERR INT TERM
    debootstrap --variant=minbase --include=ca-certificates trixie "$dir" "$mirror"
    # Proxy and certificate settings, where the host needs some.
    for f in /etc/apt/apt.conf.d/99*; do
        if [ -e "$f" ]; then cp "$f" "$dir/etc/apt/apt.conf.d/"; fi
    done
    cp -L /etc/resolv.conf /etc/hosts "$dir/etc/"
    mount_all
    chroot "$dir" apt-get update -q
    # OpenBLAS, or matrix products fall back to the reference BLAS, tens of
    # times slower; jemalloc for the reason given in lib.sh.
    DEBIAN_FRONTEND=noninteractive chroot "$dir" \
        apt-get install -qy --no-install-recommends python3-torch libopenblas0-pthread libjemalloc2
    chroot "$dir" python3 -c 'import torch; print("torch", torch.__version__)'
    touch "$dir/.complete"
    trap - ERR INT TERM
fi
mount_all
echo "$dir"
