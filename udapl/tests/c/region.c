/*
 * Regions made of other regions (DAT_MEM_TYPE_LMR): the same memory, with its own zone and rights. Data is moved
 * through both, and either is freed first.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _POSIX_C_SOURCE 200809L
#include "side.h"

#define PORT 0x100000001ULL
#define BYTES 5000

/* A region with its handle and contexts. */
struct region {
	DAT_LMR_HANDLE lmr;
	DAT_LMR_CONTEXT lmr_context;
	DAT_RMR_CONTEXT rmr_context;
	DAT_VLEN size;
	DAT_VADDR address;
};

static struct side client, server;
/* The client's buffer. */
static unsigned char *far;
static struct region far_region;
/* The server's memory, in two regions. */
static unsigned char *memory;

static struct region of_memory(struct side *side, void *address)
{
	DAT_REGION_DESCRIPTION description;
	struct region made;

	description.for_va = address;
	TRY(dat_lmr_create(side->ia, DAT_MEM_TYPE_VIRTUAL, description, BYTES, side->pz, DAT_MEM_PRIV_ALL_FLAG, &made.lmr,
			   &made.lmr_context, &made.rmr_context, &made.size, &made.address));
	return made;
}

static DAT_RETURN try_of_region(DAT_IA_HANDLE ia, DAT_PZ_HANDLE pz, DAT_LMR_HANDLE source, DAT_VLEN length,
				DAT_MEM_PRIV_FLAGS rights, struct region *made)
{
	DAT_REGION_DESCRIPTION description;

	description.for_lmr_handle = source;
	return dat_lmr_create(ia, DAT_MEM_TYPE_LMR, description, length, pz, rights, &made->lmr, &made->lmr_context,
			      &made->rmr_context, &made->size, &made->address);
}

static struct region of_region(const struct region *source, DAT_PZ_HANDLE pz, DAT_MEM_PRIV_FLAGS rights)
{
	struct region made;

	/* The length is the source's; the given one is ignored. */
	TRY(try_of_region(server.ia, pz, source->lmr, 17, rights, &made));
	return made;
}

static void connect_both(void)
{
	DAT_PSP_HANDLE psp;
	DAT_EVENT event;

	make_endpoint(&client);
	make_endpoint(&server);
	TRY(dat_psp_create(server.ia, PORT, server.evd, DAT_PSP_CONSUMER_FLAG, &psp));
	TRY(dat_ep_connect(client.ep, address_of(&server), PORT, PATIENCE, 0, NULL, DAT_QOS_BEST_EFFORT,
			   DAT_CONNECT_DEFAULT_FLAG));
	event = event_of(&server, DAT_CONNECTION_REQUEST_EVENT);
	TRY(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, server.ep, 0, NULL));
	event_of(&client, DAT_CONNECTION_EVENT_ESTABLISHED);
	event_of(&server, DAT_CONNECTION_EVENT_ESTABLISHED);
	TRY(dat_psp_free(psp));
}

static void part(void)
{
	DAT_EVENT event;
	DAT_EP_STATE state;

	/* A refused RDMA has ended the connection, or we end it. */
	TRY(dat_ep_get_status(client.ep, &state, NULL, NULL));
	if (state == DAT_EP_STATE_CONNECTED)
		TRY(dat_ep_disconnect(client.ep, DAT_CLOSE_ABRUPT_FLAG));
	TRY(dat_ep_free(client.ep));
	TRY(dat_ep_free(server.ep));
	while (dat_evd_dequeue(client.evd, &event) == DAT_SUCCESS || dat_evd_dequeue(server.evd, &event) == DAT_SUCCESS)
		;
}

static void fill(unsigned char *at, size_t bytes, int seed)
{
	size_t byte;

	for (byte = 0; byte < bytes; byte++)
		at[byte] = (unsigned char)(byte * 11 + seed);
}

static DAT_DTO_COMPLETION_STATUS rdma(int write, DAT_RMR_CONTEXT context, size_t offset, size_t bytes)
{
	DAT_LMR_TRIPLET here = local(far_region.lmr_context, far, bytes);
	DAT_RMR_TRIPLET there = remote(context, memory + offset, bytes);
	DAT_DTO_COMPLETION_STATUS status;
	DAT_EVENT event;

	TRY(write ? dat_ep_post_rdma_write(client.ep, 1, &here, cookie(1), &there, DAT_COMPLETION_DEFAULT_FLAG)
		  : dat_ep_post_rdma_read(client.ep, 1, &here, cookie(1), &there, DAT_COMPLETION_DEFAULT_FLAG));
	event = event_of(&client, DAT_DTO_COMPLETION_EVENT);
	EXPECT(event.event_data.dto_completion_event_data.user_cookie.as_64 == 1);
	status = event.event_data.dto_completion_event_data.status;
	return status;
}

static void readable(const struct region *region)
{
	fill(memory, BYTES, 1);
	memset(far, 0, BYTES);
	EXPECT(rdma(0, region->rmr_context, 0, BYTES) == DAT_DTO_SUCCESS);
	EXPECT(memcmp(far, memory, BYTES) == 0);
}

static void writable(const struct region *region)
{
	fill(far, BYTES, 2);
	memset(memory, 0, BYTES);
	EXPECT(rdma(1, region->rmr_context, 0, BYTES) == DAT_DTO_SUCCESS);
	EXPECT(memcmp(far, memory, BYTES) == 0);
}

/* Sends a message from a region of the server, and receives one into it. */
static void sends(const struct region *region)
{
	DAT_LMR_TRIPLET here = local(far_region.lmr_context, far, 100),
			there = local(region->lmr_context, memory + 50, 100);

	fill(memory + 50, 100, 3);
	TRY(dat_ep_post_recv(client.ep, 1, &here, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	TRY(dat_ep_post_send(server.ep, 1, &there, cookie(3), DAT_COMPLETION_DEFAULT_FLAG));
	completion(&client, 2, DAT_DTO_SUCCESS);
	completion(&server, 3, DAT_DTO_SUCCESS);
	EXPECT(memcmp(far, memory + 50, 100) == 0);
}

static void receives(const struct region *region)
{
	DAT_LMR_TRIPLET here = local(far_region.lmr_context, far, 100),
			there = local(region->lmr_context, memory + 50, 100);

	fill(far, 100, 4);
	TRY(dat_ep_post_recv(server.ep, 1, &there, cookie(4), DAT_COMPLETION_DEFAULT_FLAG));
	TRY(dat_ep_post_send(client.ep, 1, &here, cookie(5), DAT_COMPLETION_DEFAULT_FLAG));
	completion(&client, 5, DAT_DTO_SUCCESS);
	completion(&server, 4, DAT_DTO_SUCCESS);
	EXPECT(memcmp(far, memory + 50, 100) == 0);
}

static void tells(const struct region *region, const struct region *source, DAT_PZ_HANDLE pz, DAT_MEM_PRIV_FLAGS rights)
{
	DAT_LMR_PARAM param;

	TRY(dat_lmr_query(region->lmr, DAT_LMR_FIELD_ALL, &param));
	EXPECT(param.ia_handle == server.ia && param.mem_type == DAT_MEM_TYPE_LMR);
	EXPECT(param.region_desc.for_lmr_handle == source->lmr);
	EXPECT(param.pz_handle == pz && param.mem_priv == rights);
	EXPECT(param.lmr_context == region->lmr_context && param.rmr_context == region->rmr_context);
	EXPECT(param.length == BYTES);
	EXPECT(region->address == source->address && region->size == source->size);
	EXPECT(param.registered_address == source->address && param.registered_size == source->size);
	EXPECT(source->address <= (DAT_VADDR)(uintptr_t)memory && source->size >= BYTES);
}

/* The region has its own zone and rights, independent of the source. */
static void rights(void)
{
	const DAT_MEM_PRIV_FLAGS outward = DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_REMOTE_READ_FLAG;
	struct region whole = of_memory(&server, memory), partly = of_region(&whole, server.pz, outward), in, none;
	DAT_PZ_HANDLE elsewhere;
	DAT_LMR_TRIPLET triplet;

	tells(&partly, &whole, server.pz, outward);
	EXPECT(partly.lmr != whole.lmr && partly.lmr_context != whole.lmr_context);
	EXPECT(partly.rmr_context != 0 && partly.rmr_context != whole.rmr_context);
	connect_both();
	readable(&whole);
	writable(&whole);
	readable(&partly);
	sends(&partly);
	triplet = local(partly.lmr_context, memory, 100);
	REFUSED(dat_ep_post_recv(server.ep, 1, &triplet, cookie(0), DAT_COMPLETION_DEFAULT_FLAG),
		DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_WRITE);
	EXPECT(rdma(1, partly.rmr_context, 0, 100) == DAT_DTO_ERR_REMOTE_ACCESS);
	part();

	/* Rights that the source lacks: the memory has them, so they are granted. */
	in = of_region(&partly, server.pz, DAT_MEM_PRIV_LOCAL_WRITE_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG);
	tells(&in, &partly, server.pz, DAT_MEM_PRIV_LOCAL_WRITE_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG);
	connect_both();
	writable(&in);
	receives(&in);
	EXPECT(rdma(0, in.rmr_context, 0, 100) == DAT_DTO_ERR_REMOTE_ACCESS);
	part();
	TRY(dat_lmr_free(in.lmr));

	/* Beyond the end of the source. */
	connect_both();
	EXPECT(rdma(0, partly.rmr_context, BYTES - 99, 100) == DAT_DTO_ERR_REMOTE_ACCESS);
	part();

	/* In another zone than the endpoint; and without remote rights it has no RMR context. */
	TRY(dat_pz_create(server.ia, &elsewhere));
	none = of_region(&whole, elsewhere, DAT_MEM_PRIV_LOCAL_READ_FLAG);
	tells(&none, &whole, elsewhere, DAT_MEM_PRIV_LOCAL_READ_FLAG);
	EXPECT(none.rmr_context == 0);
	connect_both();
	triplet = local(none.lmr_context, memory, 100);
	EXPECT(DAT_GET_TYPE(dat_ep_post_send(server.ep, 1, &triplet, cookie(0), DAT_COMPLETION_DEFAULT_FLAG)) ==
	       DAT_PROTECTION_VIOLATION);
	part();
	EXPECT(DAT_GET_TYPE(dat_pz_free(elsewhere)) == DAT_INVALID_STATE);
	TRY(dat_lmr_free(none.lmr));
	TRY(dat_pz_free(elsewhere));
	TRY(dat_lmr_free(partly.lmr));
	TRY(dat_lmr_free(whole.lmr));
	puts("zones and rights of their own");
}

/* The source or the derived region is freed first; the other one still works. */
static void lives(void)
{
	int source_first;

	for (source_first = 0; source_first < 2; source_first++) {
		struct region whole = of_memory(&server, memory),
			      made = of_region(&whole, server.pz, DAT_MEM_PRIV_ALL_FLAG);
		const struct region *gone = source_first ? &whole : &made, *left = source_first ? &made : &whole;
		struct region again;
		DAT_LMR_TRIPLET triplet = local(gone->lmr_context, memory, 100);

		connect_both();
		writable(gone);
		TRY(dat_lmr_free(gone->lmr));
		REFUSED(dat_lmr_free(gone->lmr), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_LMR);
		REFUSED(try_of_region(server.ia, server.pz, gone->lmr, BYTES, DAT_MEM_PRIV_ALL_FLAG, &again),
			DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_LMR);
		EXPECT(DAT_GET_TYPE(dat_ep_post_send(server.ep, 1, &triplet, cookie(0), DAT_COMPLETION_DEFAULT_FLAG)) ==
		       DAT_PRIVILEGES_VIOLATION);
		readable(left);
		writable(left);
		sends(left);
		receives(left);
		EXPECT(rdma(1, gone->rmr_context, 0, 100) == DAT_DTO_ERR_REMOTE_ACCESS);
		part();
		/* Another region can be made of it. */
		again = of_region(left, server.pz, DAT_MEM_PRIV_ALL_FLAG);
		connect_both();
		readable(&again);
		part();
		TRY(dat_lmr_free(left->lmr));
		connect_both();
		writable(&again);
		part();
		TRY(dat_lmr_free(again.lmr));
		puts(source_first ? "the source first" : "the source last");
	}
}

static void refusals(void)
{
	struct region whole = of_memory(&server, memory), made;
	int word = 0;

	REFUSED(try_of_region(server.ia, server.pz, DAT_HANDLE_NULL, BYTES, DAT_MEM_PRIV_ALL_FLAG, &made),
		DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_LMR);
	REFUSED(try_of_region(server.ia, server.pz, &word, BYTES, DAT_MEM_PRIV_ALL_FLAG, &made), DAT_INVALID_HANDLE,
		DAT_INVALID_HANDLE_LMR);
	REFUSED(try_of_region(server.ia, server.pz, server.pz, BYTES, DAT_MEM_PRIV_ALL_FLAG, &made), DAT_INVALID_HANDLE,
		DAT_INVALID_HANDLE_LMR);
	/* A region of another adapter. */
	REFUSED(try_of_region(server.ia, server.pz, far_region.lmr, BYTES, DAT_MEM_PRIV_ALL_FLAG, &made),
		DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_LMR);
	REFUSED(try_of_region(server.ia, client.pz, whole.lmr, BYTES, DAT_MEM_PRIV_ALL_FLAG, &made), DAT_INVALID_HANDLE,
		DAT_INVALID_HANDLE_PZ);
	REFUSED(try_of_region(server.ia, server.pz, whole.lmr, BYTES, 0x100, &made), DAT_INVALID_PARAMETER,
		DAT_INVALID_ARG6);
	TRY(dat_lmr_free(whole.lmr));
	puts("refused");
}

int main(void)
{
	open_side(&client, "sim:client");
	open_side(&server, "sim:server");
	far = aligned_alloc(4096, 8192);
	memory = aligned_alloc(4096, 8192);
	memset(far, 0, 8192);
	memset(memory, 0, 8192);
	far_region = of_memory(&client, far);
	refusals();
	rights();
	lives();
	TRY(dat_lmr_free(far_region.lmr));
	close_side(&client);
	close_side(&server);
	free(far);
	free(memory);
	return 0;
}
