#!/bin/sh
# fio on a disk by NVMe over RDMA: the kernel's target behind the second port, its initiator behind the first.
#   simnic run -- sh simnic/examples/nvme-fio.sh
set -eu
ports-together
modprobe -a nvmet-rdma nvme-rdma
modprobe brd rd_nr=1 rd_size=131072
mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
cd /sys/kernel/config/nvmet
mkdir subsystems/disk subsystems/disk/namespaces/1 ports/1
echo 1 > subsystems/disk/attr_allow_any_host
echo /dev/ram0 > subsystems/disk/namespaces/1/device_path
echo 1 > subsystems/disk/namespaces/1/enable
echo rdma > ports/1/addr_trtype
echo ipv4 > ports/1/addr_adrfam
echo 192.0.2.2 > ports/1/addr_traddr
echo 4420 > ports/1/addr_trsvcid
ln -s "$PWD/subsystems/disk" ports/1/subsystems/disk
cd /tmp
nvme connect --transport rdma --traddr 192.0.2.2 --host-traddr 192.0.2.1 --trsvcid 4420 --nqn disk --nr-io-queues 2
tries=100
until [ -b /dev/nvme0n1 ]; do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || { echo "no /dev/nvme0n1"; exit 1; }
    sleep 0.1
done
nvme list
fio --name write-and-verify --filename /dev/nvme0n1 --size 32M --rw randwrite --bs 64k --iodepth 4 --ioengine libaio \
    --direct 1 --verify crc32c --do_verify 1
nvme disconnect --nqn disk
