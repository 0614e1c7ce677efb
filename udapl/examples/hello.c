/*
 * The shortest useful program: a client writes into a server's memory, and then sends it a message.
 *
 *     cc hello.c $(pkg-config --cflags --libs dat) -o hello
 *     ./hello                                      two simulated functions on a wire
 *     ./hello 0000:3b:00.2 0000:3b:00.3            the client's function and the server's
 *
 * Both ends run in one thread here, so the code is in the order of events. docs/guide.md explains each step.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <dat/udat.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERVICE 0x100000001ULL /* where the server listens: above 0xffff it is an InfiniBand service ID */
#define PATIENCE 60000000      /* microseconds */
#define BYTES 4096
#define TEXT 13 /* bytes of either text */

/* An end: an adapter, one EVD for all events, an endpoint, and memory that the device can reach. */
struct end {
	DAT_IA_HANDLE ia;
	DAT_EVD_HANDLE async_evd, events;
	DAT_EP_HANDLE ep;
	char *memory;
	DAT_LMR_CONTEXT lmr;
	DAT_RMR_CONTEXT rmr;
};

/* Every call returns 0 or an error code. The text has its names and the reason. */
static void check(DAT_RETURN answer, const char *call)
{
	const char *why;

	if (answer == DAT_SUCCESS)
		return;
	dat_last_error_text(NULL, &why);
	fprintf(stderr, "hello: %s: 0x%08x: %s\n", call, answer, why);
	exit(1);
}

#define TRY(call) check((call), #call)

static void open_end(struct end *end, const char *name)
{
	DAT_PZ_HANDLE zone;
	DAT_LMR_HANDLE lmr;
	DAT_REGION_DESCRIPTION region;
	DAT_EVD_FLAGS streams = DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG | DAT_EVD_DTO_FLAG;

	end->async_evd = DAT_HANDLE_NULL;
	TRY(dat_ia_open((DAT_NAME_PTR)name, 8, &end->async_evd, &end->ia));
	TRY(dat_pz_create(end->ia, &zone));
	TRY(dat_evd_create(end->ia, 16, DAT_HANDLE_NULL, streams, &end->events));
	TRY(dat_ep_create(end->ia, zone, end->events, end->events, end->events, NULL, &end->ep));
	end->memory = aligned_alloc(4096, BYTES);
	if (!end->memory)
		exit(1);
	memset(end->memory, 0, BYTES);
	region.for_va = end->memory;
	TRY(dat_lmr_create(end->ia, DAT_MEM_TYPE_VIRTUAL, region, BYTES, zone, DAT_MEM_PRIV_ALL_FLAG, &lmr, &end->lmr,
			   &end->rmr, NULL, NULL));
}

/* Waits for the next event, which must be this one. */
static DAT_EVENT event(const struct end *end, DAT_EVENT_NUMBER number)
{
	DAT_EVENT event;
	DAT_COUNT left;
	DAT_RETURN answer = dat_evd_wait(end->events, PATIENCE, 1, &event, &left);

	if (answer != DAT_SUCCESS)
		fprintf(stderr, "hello: waited for event 0x%x\n", number);
	check(answer, "dat_evd_wait");
	if (event.event_number != number ||
	    (number == DAT_DTO_COMPLETION_EVENT &&
	     event.event_data.dto_completion_event_data.status != DAT_DTO_SUCCESS)) {
		fprintf(stderr, "hello: event 0x%x instead of 0x%x, or no success\n", event.event_number, number);
		exit(1);
	}
	return event;
}

static DAT_LMR_TRIPLET text_at(const struct end *end, size_t offset)
{
	DAT_LMR_TRIPLET part = {0};

	part.lmr_context = end->lmr;
	part.virtual_address = (DAT_VADDR)(uintptr_t)(end->memory + offset);
	part.segment_length = TEXT;
	return part;
}

int main(int argc, char **argv)
{
	struct end client, server;
	DAT_PSP_HANDLE psp;
	DAT_IA_ATTR attr;
	DAT_EVENT request, established;
	DAT_RMR_TRIPLET place = {0};
	DAT_LMR_TRIPLET part;
	DAT_DTO_COOKIE cookie = {.as_64 = 1};

	open_end(&client, argc > 2 ? argv[1] : "sim:client");
	open_end(&server, argc > 2 ? argv[2] : "sim:server");

	/* The server listens. It posts a buffer before the client can send to it. */
	TRY(dat_psp_create(server.ia, SERVICE, server.events, DAT_PSP_CONSUMER_FLAG, &psp));
	part = text_at(&server, 0);
	TRY(dat_ep_post_recv(server.ep, 1, &part, cookie, DAT_COMPLETION_DEFAULT_FLAG));

	/* The client connects. The reply has the address of the server's memory. */
	TRY(dat_ia_query(server.ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &attr, DAT_PROVIDER_FIELD_NONE, NULL));
	TRY(dat_ep_connect(client.ep, attr.ia_address_ptr, SERVICE, PATIENCE, 0, NULL, DAT_QOS_BEST_EFFORT,
			   DAT_CONNECT_DEFAULT_FLAG));
	request = event(&server, DAT_CONNECTION_REQUEST_EVENT);
	place.rmr_context = server.rmr;
	place.target_address = (DAT_VADDR)(uintptr_t)(server.memory + 64);
	place.segment_length = TEXT;
	TRY(dat_cr_accept(request.event_data.cr_arrival_event_data.cr_handle, server.ep, sizeof place, &place));
	established = event(&client, DAT_CONNECTION_EVENT_ESTABLISHED);
	event(&server, DAT_CONNECTION_EVENT_ESTABLISHED);

	/* The client writes, then sends. When the message arrives, the written bytes are in place. */
	memcpy(&place, established.event_data.connect_event_data.private_data, sizeof place);
	memcpy(client.memory, "Hello, memory", TEXT);
	memcpy(client.memory + 64, "Hello, server", TEXT);
	part = text_at(&client, 0);
	TRY(dat_ep_post_rdma_write(client.ep, 1, &part, cookie, &place, DAT_COMPLETION_DEFAULT_FLAG));
	part = text_at(&client, 64);
	TRY(dat_ep_post_send(client.ep, 1, &part, cookie, DAT_COMPLETION_DEFAULT_FLAG));
	event(&server, DAT_DTO_COMPLETION_EVENT);
	event(&client, DAT_DTO_COMPLETION_EVENT);
	event(&client, DAT_DTO_COMPLETION_EVENT);
	printf("written into the server's memory: %.*s\n", TEXT, server.memory + 64);
	printf("sent to the server: %.*s\n", TEXT, server.memory);

	TRY(dat_ia_close(client.ia, DAT_CLOSE_ABRUPT_FLAG));
	TRY(dat_ia_close(server.ia, DAT_CLOSE_ABRUPT_FLAG));
	free(client.memory);
	free(server.memory);
	return 0;
}
