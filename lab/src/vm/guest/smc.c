/*
 * Sockets of the family SMC: bytes go by RDMA where both ends can, by TCP where they cannot.
 *
 *   smc listen ADDRESS
 *   smc connect ADDRESS
 *
 * The connecting end sends 8 MiB in pieces of odd lengths, the listening one sends them back, the first compares. What the
 * kernel made of the connection is for its counters to say.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	FAMILY = 43,
	PORT = 7200,
	BYTES = 8 << 20,
	PIECE = 16381,
	PATIENCE_S = 40,
};

#define DIE(...) (fprintf(stderr, "smc: " __VA_ARGS__), fprintf(stderr, " (errno %d)\n", errno), exit(1))

static uint8_t byte_at(size_t at)
{
	return at * 7 + (at >> 8) + (at >> 16);
}

static void ready(int socket, short events)
{
	struct pollfd waited = { .fd = socket, .events = events };

	if (poll(&waited, 1, PATIENCE_S * 1000) != 1)
		DIE("nothing happens for %d s", PATIENCE_S);
}

static size_t received(int socket, uint8_t *bytes, size_t room)
{
	ssize_t got;

	ready(socket, POLLIN);
	got = read(socket, bytes, room);
	if (got < 0)
		DIE("reading");
	return got;
}

static void all_sent(int socket, const uint8_t *bytes, size_t count)
{
	while (count) {
		ssize_t sent;

		ready(socket, POLLOUT);
		sent = write(socket, bytes, count);
		if (sent < 0)
			DIE("writing");
		bytes += sent;
		count -= sent;
	}
}

static void serve(int listening)
{
	static uint8_t piece[PIECE];
	int socket;
	size_t got, echoed = 0;

	ready(listening, POLLIN);
	socket = accept(listening, NULL, NULL);
	if (socket < 0)
		DIE("accepting");
	while ((got = received(socket, piece, PIECE))) {
		all_sent(socket, piece, got);
		echoed += got;
	}
	printf("echoed %zu bytes\n", echoed);
	close(socket);
}

static void ask(int socket)
{
	static uint8_t piece[PIECE];
	size_t back = 0;

	for (size_t sent = 0; sent < BYTES;) {
		size_t count = BYTES - sent < PIECE ? BYTES - sent : PIECE;

		for (size_t i = 0; i < count; i++)
			piece[i] = byte_at(sent + i);
		all_sent(socket, piece, count);
		sent += count;
		while (back < sent) {
			size_t got = received(socket, piece, PIECE);

			if (!got)
				DIE("the other end is gone after %zu bytes", back);
			for (size_t i = 0; i < got; i++, back++)
				if (piece[i] != byte_at(back))
					DIE("byte %zu is another", back);
		}
	}
	printf("%zu bytes came back as they were\n", back);
}

int main(int count, char **arguments)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int end = socket(FAMILY, SOCK_STREAM, 0);

	if (count != 3 || inet_pton(AF_INET, arguments[2], &address.sin_addr) != 1)
		DIE("listen ADDRESS or connect ADDRESS");
	if (end < 0)
		DIE("no sockets of this family");
	if (!strcmp(arguments[1], "listen")) {
		if (bind(end, (struct sockaddr *)&address, sizeof(address)) || listen(end, 1))
			DIE("listening");
		serve(end);
	} else {
		if (connect(end, (struct sockaddr *)&address, sizeof(address)))
			DIE("connecting");
		ask(end);
	}
	close(end);
	return 0;
}
