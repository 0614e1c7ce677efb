#!/bin/sh
# The steps of the workflow and of the container in an empty Debian, as a user who is not root.
#
#   clean-root.sh FOLDER SIMNIC          the program alone
#   clean-root.sh FOLDER PACKAGE.deb...  Debian's packages of it and what they need of this repository, installed by apt
#
# FOLDER is where the empty Debian is made (mmdebstrap; some 200 MB, and 1 GB of what simnic unpacks in it). Needs root, for
# chroot and for nothing else. With the packages, their examples and rdma-core's own tests are run besides.
set -eu
root=$1
shift
[ -e "$root/etc/debian_version" ] ||
    mmdebstrap --quiet --variant=apt --include=debian-archive-keyring trixie "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
cp /etc/resolv.conf "$root/etc/resolv.conf" || true
# inside COMMAND...: runs it in that Debian, with /proc and /dev mounted while it runs.
inside() {
    unshare --mount --propagation private sh -euc '
        root=$1; shift
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        exec chroot "$root" "$@"' sh "$root" "$@"
}
rm -rf "$root/packages" "$root/usr/local/bin/simnic"
examples=
case $1 in
    *.deb)
        mkdir -p "$root/packages"
        cp "$@" "$root/packages"
        inside sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends /packages/*.deb' > /dev/null
        examples=/usr/share/doc/udapl-sim/examples
        ;;
    *) cp "$1" "$root/usr/local/bin/simnic" ;;
esac
mkdir -p "$root/home/user"
chown 1000:1000 "$root/home/user"
# step STATUS COMMAND...: by that user, in an empty environment; it is to end with that status. How long that takes is said.
failed=0
step() {
    wanted=$1 began=$(date +%s) status=0
    shift
    inside setpriv --reuid 1000 --regid 1000 --clear-groups \
        env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/home/user DEBIAN_MIRROR="${DEBIAN_MIRROR:-http://deb.debian.org/debian}" http_proxy="${http_proxy:-}" \
        sh -euc 'cd; ulimit -n 1024; ulimit -l 8192; exec "$@"' sh "$@" || status=$?
    echo "== $*: status $status, wanted $wanted, after $(($(date +%s) - began)) s"
    [ "$status" -eq "$wanted" ] || failed=1
}
step 0 simnic run --timeout 600 -- ibv_devinfo
step 0 simnic run --timeout 600 -- sh -c 'peer ibv_rc_pingpong -g 3 & sleep 2; ibv_rc_pingpong -g 3 192.0.2.2'
step 3 simnic run --timeout 600 -- sh -c 'exit 3'
[ -n "$examples" ] || exit $failed
step 0 sh -euc "cp $examples/nvme-fio.sh $examples/late-write.py ."
# One fails: paging on demand, which the card does not have.
step 1 simnic run --timeout 1200 -- python3 /usr/share/doc/rdma-core/tests/run_tests.py --dev mlx5_0 --gid 3
step 0 simnic run --timeout 600 -- sh nvme-fio.sh
# Its failure is what it shows.
step 1 simnic run --timeout 600 --record late.rec -- sh -c 'peer python3 late-write.py & python3 late-write.py 192.0.2.2'
step 0 simnic replay late.rec
exit $failed
