/*
 * Two threads, each with a function of its own, and a wire between the two: the client sends a message to the server.
 * Arguments: the names of the adapters. Functions with ,link= have threads and real time.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include "side.h"

#include <pthread.h>

#define SERVICE 0x100000001ULL
#define BYTES 4096

static pthread_barrier_t listening, over;
static struct sockaddr_storage server_address;
static char *client_name, *server_name;

/* Allocates and registers memory. */
static char *buffer(struct side *side, DAT_LMR_CONTEXT *context)
{
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_HANDLE lmr;
	char *memory = aligned_alloc(4096, BYTES);

	EXPECT(memory != NULL);
	memset(memory, 0, BYTES);
	region.for_va = memory;
	TRY(dat_lmr_create(side->ia, DAT_MEM_TYPE_VIRTUAL, region, BYTES, side->pz, DAT_MEM_PRIV_ALL_FLAG, &lmr,
			   context, NULL, NULL, NULL));
	return memory;
}

static void *serve(void *unused)
{
	struct side side;
	DAT_LMR_CONTEXT context;
	DAT_LMR_TRIPLET part;
	DAT_PSP_HANDLE psp;
	DAT_EVENT request;
	char *memory;

	(void)unused;
	open_side(&side, server_name);
	make_endpoint(&side);
	memory = buffer(&side, &context);
	part = local(context, memory, BYTES);
	TRY(dat_ep_post_recv(side.ep, 1, &part, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	TRY(dat_psp_create(side.ia, SERVICE, side.evd, DAT_PSP_CONSUMER_FLAG, &psp));
	memcpy(&server_address, address_of(&side), sizeof(struct sockaddr_in6));
	pthread_barrier_wait(&listening);
	request = event_of(&side, DAT_CONNECTION_REQUEST_EVENT);
	TRY(dat_cr_accept(request.event_data.cr_arrival_event_data.cr_handle, side.ep, 0, NULL));
	event_of(&side, DAT_CONNECTION_EVENT_ESTABLISHED);
	completion(&side, 1, DAT_DTO_SUCCESS);
	EXPECT(strcmp(memory, "over the wire") == 0);
	pthread_barrier_wait(&over);
	TRY(dat_ia_close(side.ia, DAT_CLOSE_ABRUPT_FLAG));
	free(memory);
	return NULL;
}

static void *call(void *unused)
{
	struct side side;
	DAT_LMR_CONTEXT context;
	DAT_LMR_TRIPLET part;
	char *memory;

	(void)unused;
	open_side(&side, client_name);
	make_endpoint(&side);
	memory = buffer(&side, &context);
	strcpy(memory, "over the wire");
	pthread_barrier_wait(&listening);
	TRY(dat_ep_connect(side.ep, (DAT_IA_ADDRESS_PTR)&server_address, SERVICE, PATIENCE, 0, NULL,
			   DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	event_of(&side, DAT_CONNECTION_EVENT_ESTABLISHED);
	part = local(context, memory, BYTES);
	TRY(dat_ep_post_send(side.ep, 1, &part, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	completion(&side, 2, DAT_DTO_SUCCESS);
	pthread_barrier_wait(&over);
	TRY(dat_ia_close(side.ia, DAT_CLOSE_ABRUPT_FLAG));
	free(memory);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t server, client;

	EXPECT(argc == 3);
	client_name = argv[1];
	server_name = argv[2];
	EXPECT(pthread_barrier_init(&listening, NULL, 2) == 0);
	EXPECT(pthread_barrier_init(&over, NULL, 2) == 0);
	EXPECT(pthread_create(&server, NULL, serve, NULL) == 0);
	EXPECT(pthread_create(&client, NULL, call, NULL) == 0);
	EXPECT(pthread_join(client, NULL) == 0);
	EXPECT(pthread_join(server, NULL) == 0);
	printf("over the wire\n");
	return 0;
}
