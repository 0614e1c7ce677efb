/*
 * Two programs that talk over a wire: a server that answers one message, and a client that sends one.
 *
 *     cc greet.c $(pkg-config --cflags --libs dat) -o greet
 *     ./greet server sim:s,link=unix:/tmp/wire,mac=02:00:00:00:00:01,address=192.0.2.1/24
 *     ./greet client sim:c,link=unix:/tmp/wire,mac=02:00:00:00:00:02,address=192.0.2.2/24 192.0.2.1 'hello there'
 *
 * Start the server first, each in a terminal of its own. With cards the names are 0000:3b:00.2,address=192.0.2.1/24
 * and the like. Both sides can also run together, with these names and the given wire:
 *
 *     ./greet fork /tmp/wire 'hello there'         two processes
 *     ./greet threads /tmp/wire 'hello there'      two threads of one
 *
 * An adapter belongs to the process that opened it: fork first, then open. Each thread opens its own adapter. The
 * text of an error is known to the thread that got the error.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _POSIX_C_SOURCE 200809L
#include <dat/udat.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SERVICE 0x100000001ULL /* where the server listens */
#define PATIENCE 60000000      /* microseconds: the longest time to wait for anything */
#define ROOM 256               /* bytes that a message may have */

/* The objects of one side. */
struct side {
	DAT_IA_HANDLE ia;
	DAT_EVD_HANDLE async_evd, events;
	DAT_EP_HANDLE ep;
	char *memory; /* the first half for receiving, the second for sending */
	DAT_LMR_CONTEXT lmr;
};

/* Every call returns 0 or an error code. The text has the names and the reason of this thread's last error. */
static void check(DAT_RETURN answer, const char *call)
{
	const char *why;

	if (answer == DAT_SUCCESS)
		return;
	dat_last_error_text(NULL, &why);
	fprintf(stderr, "greet: %s: %s\n", call, why);
	exit(1);
}

#define TRY(call) check((call), #call)

static void fail(const char *what)
{
	fprintf(stderr, "greet: %s\n", what);
	exit(1);
}

static DAT_LMR_TRIPLET piece(const struct side *side, size_t offset, size_t bytes)
{
	DAT_LMR_TRIPLET piece = {0};

	piece.lmr_context = side->lmr;
	piece.virtual_address = (DAT_VADDR)(uintptr_t)(side->memory + offset);
	piece.segment_length = bytes;
	return piece;
}

/* Opens the adapter and makes everything in it. Posts a receive before a peer connects. */
static void open_side(struct side *side, const char *name)
{
	DAT_EVD_FLAGS streams = DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG | DAT_EVD_DTO_FLAG;
	DAT_DTO_COOKIE cookie = {.as_64 = 1};
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_HANDLE lmr;
	DAT_LMR_TRIPLET room;
	DAT_PZ_HANDLE zone;

	side->async_evd = DAT_HANDLE_NULL;
	TRY(dat_ia_open((DAT_NAME_PTR)name, 8, &side->async_evd, &side->ia));
	TRY(dat_pz_create(side->ia, &zone));
	TRY(dat_evd_create(side->ia, 16, DAT_HANDLE_NULL, streams, &side->events));
	TRY(dat_ep_create(side->ia, zone, side->events, side->events, side->events, NULL, &side->ep));
	side->memory = aligned_alloc(4096, 4096);
	if (!side->memory)
		fail("no memory");
	memset(side->memory, 0, 4096);
	region.for_va = side->memory;
	TRY(dat_lmr_create(side->ia, DAT_MEM_TYPE_VIRTUAL, region, 2 * ROOM, zone,
			   DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG, &lmr, &side->lmr, NULL, NULL,
			   NULL));
	room = piece(side, 0, ROOM);
	TRY(dat_ep_post_recv(side->ep, 1, &room, cookie, DAT_COMPLETION_DEFAULT_FLAG));
}

static void close_side(struct side *side)
{
	TRY(dat_ia_close(side->ia, DAT_CLOSE_ABRUPT_FLAG));
	free(side->memory);
}

/* Waits for the next event. */
static DAT_EVENT event_of(const struct side *side)
{
	DAT_EVENT event;
	DAT_COUNT left;

	TRY(dat_evd_wait(side->events, PATIENCE, 1, &event, &left));
	return event;
}

static void connected(const struct side *side)
{
	DAT_EVENT event = event_of(side);

	switch (event.event_number) {
	case DAT_CONNECTION_EVENT_ESTABLISHED:
		return;
	case DAT_CONNECTION_EVENT_UNREACHABLE:
		fail("no connection: nobody answers at that address, or nobody is at the other end of the wire");
		break;
	case DAT_CONNECTION_EVENT_NON_PEER_REJECTED:
		fail("no connection: somebody has that address, and nothing listens there");
		break;
	default:
		fprintf(stderr, "greet: no connection: `datctl explain 0x%x` says why\n", event.event_number);
		exit(1);
	}
}

/* Sends a text, from the second half of the memory. */
static void send_text(const struct side *side, const char *text)
{
	size_t bytes = strlen(text);
	DAT_DTO_COOKIE cookie = {.as_64 = 2};
	DAT_LMR_TRIPLET message;

	if (bytes > ROOM)
		fail("the text is too long");
	memcpy(side->memory + ROOM, text, bytes);
	message = piece(side, ROOM, bytes);
	/* Suppressed: success gives no event, failure does. */
	TRY(dat_ep_post_send(side->ep, 1, &message, cookie, DAT_COMPLETION_SUPPRESS_FLAG));
}

/* Waits for a text in the first half of the memory, and adds a NUL. */
static const char *receive(const struct side *side)
{
	DAT_EVENT event = event_of(side);
	const DAT_DTO_COMPLETION_EVENT_DATA *done = &event.event_data.dto_completion_event_data;

	if (event.event_number != DAT_DTO_COMPLETION_EVENT || done->status != DAT_DTO_SUCCESS)
		fail("no message: the connection has ended");
	side->memory[done->transfered_length < ROOM ? done->transfered_length : ROOM - 1] = 0;
	return side->memory;
}

/* Writes a byte to `ready` when the server listens, unless `ready` is negative. */
static void server(const char *name, int ready)
{
	struct side side;
	DAT_PSP_HANDLE psp;
	DAT_EVENT request;
	char answer[ROOM];
	const char *text;

	open_side(&side, name);
	TRY(dat_psp_create(side.ia, SERVICE, side.events, DAT_PSP_CONSUMER_FLAG, &psp));
	printf("server: listening\n");
	fflush(stdout);
	if (ready >= 0 && write(ready, "!", 1) != 1)
		fail("nobody wants to know that the server listens");
	request = event_of(&side);
	if (request.event_number != DAT_CONNECTION_REQUEST_EVENT)
		fail("no request to connect");
	TRY(dat_cr_accept(request.event_data.cr_arrival_event_data.cr_handle, side.ep, 0, NULL));
	connected(&side);
	text = receive(&side);
	printf("server: received: %s\n", text);
	fflush(stdout);
	snprintf(answer, sizeof answer, "you said: %.*s", ROOM - 16, text);
	send_text(&side, answer);
	/* The client disconnects when it has the answer. */
	if (event_of(&side).event_number != DAT_CONNECTION_EVENT_DISCONNECTED)
		fail("the connection broke");
	close_side(&side);
}

static void client(const char *name, const char *address, const char *text)
{
	struct sockaddr_in to = {.sin_family = AF_INET}; /* its port is ignored: SERVICE is used */
	struct side side;

	if (inet_pton(AF_INET, address, &to.sin_addr) != 1)
		fail("the address is none of IPv4");
	open_side(&side, name);
	TRY(dat_ep_connect(side.ep, (DAT_IA_ADDRESS_PTR)&to, SERVICE, PATIENCE, 0, NULL, DAT_QOS_BEST_EFFORT,
			   DAT_CONNECT_DEFAULT_FLAG));
	connected(&side);
	send_text(&side, text);
	printf("client: received: %s\n", receive(&side));
	fflush(stdout);
	TRY(dat_ep_disconnect(side.ep, DAT_CLOSE_GRACEFUL_FLAG));
	if (event_of(&side).event_number != DAT_CONNECTION_EVENT_DISCONNECTED)
		fail("the connection broke");
	close_side(&side);
}

/* Both sides of a wire, and a pipe through which the server reports that it listens. */
struct both {
	char names[2][512];
	int ready[2];
	const char *text;
};

static void prepare(struct both *both, const char *wire, const char *text)
{
	static const char *const form = "sim:%c,link=unix:%s,mac=02:00:00:00:00:0%d,address=192.0.2.%d/24";
	int side;

	for (side = 0; side < 2; side++)
		snprintf(both->names[side], sizeof both->names[side], form, "sc"[side], wire, side + 1, side + 1);
	both->text = text;
	if (pipe(both->ready))
		fail("no pipe");
}

static void client_of(const struct both *both)
{
	char ready;

	if (read(both->ready[0], &ready, 1) != 1)
		fail("the server has ended before it listened");
	client(both->names[1], "192.0.2.1", both->text);
}

static void *client_thread(void *both)
{
	client_of(both);
	return NULL;
}

static int as_threads(struct both *both)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, client_thread, both))
		fail("no thread");
	server(both->names[0], both->ready[1]);
	pthread_join(thread, NULL);
	return 0;
}

/* No adapter was opened before, so the child inherits nothing. */
static int as_processes(struct both *both)
{
	pid_t child = fork();
	int status;

	if (child < 0)
		fail("no process");
	if (child == 0) {
		close(both->ready[1]);
		client_of(both);
		return 0;
	}
	server(both->names[0], both->ready[1]);
	return waitpid(child, &status, 0) != child || status != 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	struct both both;

	if (strcmp(what, "server") == 0 && argc == 3) {
		server(argv[2], -1);
		return 0;
	}
	if (strcmp(what, "client") == 0 && argc == 5) {
		client(argv[2], argv[3], argv[4]);
		return 0;
	}
	if (strcmp(what, "fork") == 0 && argc == 4) {
		prepare(&both, argv[2], argv[3]);
		return as_processes(&both);
	}
	if (strcmp(what, "threads") == 0 && argc == 4) {
		prepare(&both, argv[2], argv[3]);
		return as_threads(&both);
	}
	fprintf(stderr, "greet server NAME, greet client NAME ADDRESS TEXT, greet fork WIRE TEXT, or greet threads WIRE TEXT\n");
	return 2;
}
