/*
 * forge INTERFACE FRAMES MAC PAUSE: frames that nobody should believe, to the function with that MAC: in its addresses' names,
 * in its peer's, and in those of strangers; a pause of so many microseconds after each ten. The addresses are those of
 * guest/network.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define OURS_4 0x0a000002u
#define PEER_4 0x0a000001u

static const uint8_t ours_6[16] = {0xfd, [15] = 2};
static const uint8_t peer_6[16] = {0xfd, [15] = 1};
static const uint8_t all_6[16] = {0xff, 2, [15] = 1};
static const uint8_t everybody[6] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
static const uint8_t all_nodes[6] = {0x33, 0x33, 0, 0, 0, 1};

/* Any generator would do: what is random is who is claimed to have sent it. */
static uint32_t draw(void)
{
	static uint32_t state = 0x5eed;

	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return state;
}

static void put32(uint8_t *at, uint32_t value)
{
	value = htonl(value);
	memcpy(at, &value, 4);
}

static void put16(uint8_t *at, uint16_t value)
{
	value = htons(value);
	memcpy(at, &value, 2);
}

/* RFC 826. */
static size_t arp(uint8_t *frame, const uint8_t *to, const uint8_t *from, int operation, uint32_t sender, uint32_t target)
{
	memset(frame, 0, 60);
	memcpy(frame, to, 6);
	memcpy(frame + 6, from, 6);
	put16(frame + 12, ETH_P_ARP);
	put16(frame + 14, 1);
	put16(frame + 16, ETH_P_IP);
	frame[18] = 6;
	frame[19] = 4;
	put16(frame + 20, (uint16_t)operation);
	memcpy(frame + 22, from, 6);
	put32(frame + 28, sender);
	put32(frame + 38, target);
	return 60;
}

/* RFC 4443, 2.3. */
static uint16_t checksum(const uint8_t *ip, const uint8_t *icmp, size_t bytes)
{
	uint32_t sum = (uint32_t)bytes + 58;
	size_t i;

	for (i = 8; i < 40; i += 2)
		sum += (uint32_t)ip[i] << 8 | ip[i + 1];
	for (i = 0; i < bytes; i += 2)
		sum += (uint32_t)icmp[i] << 8 | icmp[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

/* RFC 4861, 4.3 and 4.4: a solicitation (135) or an advertisement (136); with the MAC of its sender, unless that detects. */
static size_t ndisc(uint8_t *frame, const uint8_t *to, const uint8_t *from, int type, uint32_t flags, const uint8_t *source,
		    const uint8_t *target)
{
	static const uint8_t nobody[16];
	uint8_t *ip = frame + 14, *icmp = ip + 40;
	int detects = !memcmp(source, nobody, 16);
	size_t bytes = detects ? 24 : 32;

	memset(frame, 0, 14 + 40 + 32);
	memcpy(frame, to, 6);
	memcpy(frame + 6, from, 6);
	put16(frame + 12, ETH_P_IPV6);
	ip[0] = 0x60;
	put16(ip + 4, (uint16_t)bytes);
	ip[6] = 58;
	ip[7] = 255;
	memcpy(ip + 8, source, 16);
	if (type == 135) {
		const uint8_t group[13] = {0xff, 2, [11] = 1, [12] = 0xff};

		memcpy(ip + 24, group, 13);
		memcpy(ip + 37, target + 13, 3);
		put16(frame, 0x3333);
		memcpy(frame + 2, ip + 36, 4);
	} else {
		memcpy(ip + 24, all_6, 16);
	}
	icmp[0] = (uint8_t)type;
	put32(icmp + 4, flags);
	memcpy(icmp + 8, target, 16);
	if (!detects) {
		icmp[24] = type == 135 ? 1 : 2;
		icmp[25] = 1;
		memcpy(icmp + 26, from, 6);
	}
	put16(icmp + 2, checksum(ip, icmp, bytes));
	return 14 + 40 + bytes;
}

int main(int count, char **arguments)
{
	uint8_t frame[128], to[6], nobody[16] = {0};
	struct sockaddr_ll link = {.sll_family = AF_PACKET};
	long frames;
	useconds_t pause;
	int wire;

	if (count != 5 || sscanf(arguments[3], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &to[0], &to[1], &to[2], &to[3], &to[4], &to[5]) != 6) {
		fprintf(stderr, "forge INTERFACE FRAMES MAC PAUSE\n");
		return 2;
	}
	frames = atol(arguments[2]);
	pause = (useconds_t)atol(arguments[4]);
	link.sll_ifindex = (int)if_nametoindex(arguments[1]);
	wire = socket(AF_PACKET, SOCK_RAW, 0);
	if (wire < 0 || !link.sll_ifindex) {
		perror("forge");
		return 1;
	}
	for (long number = 0; number < frames; number++) {
		uint8_t from[6] = {2, 0x66}, stranger[16] = {0xfd};
		uint32_t random = draw(), net = 0x0a000000u;
		size_t bytes;

		put32(from + 2, random);
		put32(stranger + 12, draw() | 0x100);
		switch (number % 10) {
		case 0: /* the peer's address, announced */
			bytes = arp(frame, everybody, from, 1, PEER_4, PEER_4);
			break;
		case 1: /* the same as an answer that nobody asked for */
			bytes = arp(frame, to, from, 2, PEER_4, OURS_4);
			break;
		case 2: /* ours, announced */
			bytes = arp(frame, everybody, from, 1, OURS_4, OURS_4);
			break;
		case 3: /* who asks for ours comes from anywhere */
			bytes = arp(frame, everybody, from, 1, net | (random & 0xffffff) | 0x10000, OURS_4);
			break;
		case 4: /* ours, looked for */
			bytes = arp(frame, everybody, from, 1, 0, OURS_4);
			break;
		case 5: /* answers in strangers' names */
			bytes = arp(frame, to, from, 2, net | (random & 0xff) | 0x40, OURS_4);
			break;
		case 6: /* the peer's address, overriding */
			bytes = ndisc(frame, all_nodes, from, 136, 0x20000000, peer_6, peer_6);
			break;
		case 7: /* ours, overriding */
			bytes = ndisc(frame, all_nodes, from, 136, 0x20000000, ours_6, ours_6);
			break;
		case 8: /* ours, looked for */
			bytes = ndisc(frame, to, from, 135, 0, nobody, ours_6);
			break;
		default: /* who asks for ours comes from anywhere */
			bytes = ndisc(frame, to, from, 135, 0, stranger, ours_6);
			break;
		}
		link.sll_protocol = htons((uint16_t)(frame[12] << 8 | frame[13]));
		while (sendto(wire, frame, bytes, 0, (struct sockaddr *)&link, sizeof link) < 0) {
			if (errno != ENOBUFS && errno != EAGAIN && errno != EINTR) {
				perror("forge: sendto");
				return 1;
			}
			usleep(100);
		}
		if (number % 10 == 9 && pause)
			usleep(pause);
	}
	return 0;
}
