#!/bin/sh
# The steps of the workflow and of the container in an empty Debian, as a user who is not root.
#
#   clean-root.sh SIMNIC FOLDER: the program, and where the empty Debian is made (mmdebstrap; some 200 MB, and 600 MB of what
#   simnic unpacks in it). Needs root, for chroot and for nothing else.
set -eu
simnic=$1 root=$2
[ -e "$root/etc/debian_version" ] ||
    mmdebstrap --quiet --variant=apt --include=debian-archive-keyring trixie "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
cp "$simnic" "$root/usr/local/bin/simnic"
cp /etc/resolv.conf "$root/etc/resolv.conf" || true
mkdir -p "$root/home/user"
chown 1000:1000 "$root/home/user"
# in_root COMMAND...: as that user, in an empty environment. /proc and /dev are not there but for what programs ask for.
in_root() {
    unshare --mount --propagation private sh -euc '
        root=$1; shift
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        exec chroot "$root" setpriv --reuid 1000 --regid 1000 --clear-groups \
            env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/home/user DEBIAN_MIRROR="${DEBIAN_MIRROR:-http://deb.debian.org/debian}" http_proxy="${http_proxy:-}" \
            sh -euc "cd; exec \"\$@\"" sh "$@"' sh "$root" "$@"
}
for step in 'ibv_devinfo' 'peer ibv_rc_pingpong -g 3 & sleep 2; ibv_rc_pingpong -g 3 192.0.2.2' 'exit 3'; do
    began=$(date +%s) status=0
    in_root simnic run --timeout 600 -- sh -c "$step" || status=$?
    echo "== $step: status $status after $(($(date +%s) - began)) s"
done
