"""A mistake that passes on a quiet day: who writes still has the key of a region that the other side has let go.

    simnic run --record late-write.rec -- sh -c 'peer python3 late-write.py & python3 late-write.py 192.0.2.2'

The server (without an argument) offers one region after the other; Python frees the one before when its name has the
next one. The client writes into the first, into the second, and into the first once more.
"""

import socket
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

BYTES, GID_INDEX, TCP_PORT = 4096, 3, 4711

server = len(sys.argv) == 1
if server:
    stream = socket.create_server(("", TCP_PORT)).accept()[0]
else:
    while True:
        try:
            stream = socket.create_connection((sys.argv[1], TCP_PORT))
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
text = stream.makefile("rw")


def tell(*words):
    print(*words, file=text, flush=True)


def told():
    return text.readline().split()


context = Context(name=get_device_list()[0].name.decode())
pd = PD(context)
cq = CQ(context, 16)
capacity = QPCap(max_send_wr=16, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
attr = QPAttr(port_num=1)
attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=capacity), attr)
tell(context.query_gid(1, GID_INDEX), qp.qp_num)
gid, number = told()
attr = QPAttr(port_num=1)
attr.dest_qp_num, attr.path_mtu = int(number), e.IBV_MTU_1024
attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
route = GlobalRoute(dgid=GID(gid), sgid_index=GID_INDEX)
attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
qp.to_rts(attr)

access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
if server:
    while told() == ["offer"]:
        region = MR(pd, BYTES, access)
        tell(region.buf, region.rkey)
    sys.exit()

local = MR(pd, BYTES, access)


def offer():
    tell("offer")
    return [int(word) for word in told()]


def write(name, address, key):
    request = SendWR(num_sge=1, sg=[SGE(local.buf, BYTES, local.lkey)], opcode=e.IBV_WR_RDMA_WRITE)
    request.set_wr_rdma(key, address)
    qp.post_send(request)
    count = 0
    while count == 0:
        count, done = cq.poll(1)
    status = done[0].status
    print(f"{name}: status {status}")
    return status == e.IBV_WC_SUCCESS


one = offer()
good = write("the first", *one)
good &= write("the second", *offer())
good &= write("the first again", *one)
tell("over")
sys.exit(0 if good else 1)
