"""Recomputes the ICRC of every RoCEv2 packet in a capture and compares it with the one on the wire.

IPv4 packets are rebuilt by scapy, whose RoCE layer computes the field itself. Scapy does not know
ICRCs over IPv6; those are computed here from the RoCEv2 annex, with Python's CRC-32.
"""

import logging
import sys
import zlib

logging.getLogger("scapy").setLevel(logging.CRITICAL)
from scapy.all import IP, PcapNgReader, UDP  # noqa: E402
from scapy.contrib.roce import BTH  # noqa: E402
from scapy.layers.inet6 import IPv6  # noqa: E402


def icrc_ipv6(raw):
    """The annex: eight bytes of ones, then the packet from the IP header on, variant fields as ones."""
    packet = bytearray(raw[14:-4])
    packet[0] |= 0x0F  # traffic class, high half
    packet[1:4] = b"\xff\xff\xff"  # traffic class, low half, and flow label
    packet[7] = 0xFF  # hop limit
    packet[46:48] = b"\xff\xff"  # UDP checksum
    packet[52] = 0xFF  # BTH: FECN, BECN, reserved
    return zlib.crc32(b"\xff" * 8 + bytes(packet)).to_bytes(4, "little")


def icrc_ipv4(packet):
    rebuilt = packet.copy()
    rebuilt[BTH].icrc = None
    return bytes(rebuilt)[-4:]


counts = {"IPv4": 0, "IPv6": 0, "other": 0}
wrong = 0
for number, packet in enumerate(PcapNgReader(sys.argv[1]), start=1):
    raw = bytes(packet.original)
    if UDP in packet and packet[UDP].dport == 4791 and IP in packet:
        kind, want = "IPv4", icrc_ipv4(packet)
    elif UDP in packet and packet[UDP].dport == 4791 and IPv6 in packet:
        kind, want = "IPv6", icrc_ipv6(raw)
    else:
        kind, want = "other", raw[-4:]
    counts[kind] += 1
    if raw[-4:] != want:
        wrong += 1
        if wrong <= 10:
            print(f"packet {number} ({kind}): wire {raw[-4:].hex()}, computed {want.hex()}", file=sys.stderr)
print(f"{counts['IPv4']} over IPv4 (scapy), {counts['IPv6']} over IPv6 (annex), {counts['other']} other, {wrong} wrong")
sys.exit(1 if wrong or counts["IPv4"] + counts["IPv6"] == 0 else 0)
