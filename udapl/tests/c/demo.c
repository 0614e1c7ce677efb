/*
 * Two simulated functions in one process, and every kind of data transfer between them: Send and Receive, RDMA Write,
 * RDMA Read, a shared receive queue, a memory window (RMR).
 *
 * Built with nothing but: cc demo.c $(pkg-config --cflags --libs dat)
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <dat/udat.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT 0x100000001ULL
#define BYTES 4096
/* Limit of every wait. Long, so that no busy machine and no valgrind(1) exceeds it. */
#define PATIENCE 600000000

static void check(DAT_RETURN answer, const char *what)
{
	const char *major = "", *minor = "";

	if (answer == DAT_SUCCESS)
		return;
	dat_strerror(answer, &major, &minor);
	fprintf(stderr, "%s: %s %s (0x%08x)\n", what, major, minor, answer);
	exit(1);
}

#define TRY(call) check((call), #call)

static void expect(int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "not so: %s\n", what);
		exit(1);
	}
}

#define EXPECT(what) expect((what), #what)

/* One end of the wire. */
struct side {
	DAT_IA_HANDLE ia;
	DAT_EVD_HANDLE async_evd;
	DAT_PZ_HANDLE pz;
	DAT_EVD_HANDLE evd;
	DAT_EP_HANDLE ep;
	DAT_SRQ_HANDLE srq;
	DAT_LMR_HANDLE lmr;
	DAT_LMR_CONTEXT lmr_context;
	DAT_RMR_CONTEXT rmr_context;
	unsigned char *memory;
};

static DAT_LMR_TRIPLET part(const struct side *side, size_t offset, size_t bytes)
{
	DAT_LMR_TRIPLET triplet = {0};

	triplet.lmr_context = side->lmr_context;
	triplet.virtual_address = (DAT_VADDR)(uintptr_t)(side->memory + offset);
	triplet.segment_length = bytes;
	return triplet;
}

static DAT_DTO_COOKIE cookie(DAT_UINT64 number)
{
	DAT_DTO_COOKIE cookie;

	cookie.as_64 = number;
	return cookie;
}

static void open_side(struct side *side, const char *name, int with_srq)
{
	DAT_REGION_DESCRIPTION region;
	DAT_EP_ATTR attr;
	DAT_EP_PARAM param;
	DAT_SRQ_ATTR srq_attr = {16, 2, DAT_SRQ_LW_DEFAULT};
	DAT_EVD_FLAGS flags = DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG | DAT_EVD_CR_FLAG | DAT_EVD_RMR_BIND_FLAG;

	memset(side, 0, sizeof *side);
	side->async_evd = DAT_HANDLE_NULL;
	TRY(dat_ia_open((DAT_NAME_PTR)name, 8, &side->async_evd, &side->ia));
	TRY(dat_pz_create(side->ia, &side->pz));
	TRY(dat_evd_create(side->ia, 64, DAT_HANDLE_NULL, flags, &side->evd));
	TRY(dat_ep_create(side->ia, side->pz, side->evd, side->evd, side->evd, NULL, &side->ep));
	TRY(dat_ep_query(side->ep, DAT_EP_FIELD_ALL, &param));
	EXPECT(param.ep_state == DAT_EP_STATE_UNCONNECTED && param.pz_handle == side->pz);
	EXPECT(param.request_evd_handle == side->evd && param.ia_handle == side->ia);
	attr = param.ep_attr;
	attr.max_rdma_read_in = 4;
	attr.max_rdma_read_out = 4;
	param.ep_attr = attr;
	if (with_srq) {
		TRY(dat_srq_create(side->ia, side->pz, &srq_attr, &side->srq));
		TRY(dat_ep_free(side->ep));
		attr.srq_soft_hw = DAT_HW_DEFAULT;
		TRY(dat_ep_create_with_srq(side->ia, side->pz, side->evd, side->evd, side->evd, side->srq, &attr,
					   &side->ep));
	} else {
		TRY(dat_ep_modify(side->ep,
				  DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IN | DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT,
				  &param));
	}
	side->memory = aligned_alloc(4096, BYTES);
	memset(side->memory, 0, BYTES);
	region.for_va = side->memory;
	TRY(dat_lmr_create(side->ia, DAT_MEM_TYPE_VIRTUAL, region, BYTES, side->pz, DAT_MEM_PRIV_ALL_FLAG, &side->lmr,
			   &side->lmr_context, &side->rmr_context, NULL, NULL));
}

static void close_side(struct side *side)
{
	TRY(dat_ep_free(side->ep));
	if (side->srq)
		TRY(dat_srq_free(side->srq));
	TRY(dat_lmr_free(side->lmr));
	TRY(dat_evd_free(side->evd));
	TRY(dat_pz_free(side->pz));
	TRY(dat_ia_close(side->ia, DAT_CLOSE_GRACEFUL_FLAG));
	EXPECT(DAT_GET_TYPE(dat_ia_close(side->ia, DAT_CLOSE_ABRUPT_FLAG)) == DAT_INVALID_HANDLE);
	free(side->memory);
}

static DAT_EVENT event_of(const struct side *side, DAT_EVENT_NUMBER number)
{
	DAT_EVENT event;
	DAT_COUNT left;
	DAT_RETURN answer = dat_evd_wait(side->evd, PATIENCE, 1, &event, &left);

	if (answer != DAT_SUCCESS)
		fprintf(stderr, "waited for event 0x%x\n", number);
	TRY(answer);
	EXPECT(event.event_number == number);
	EXPECT(event.evd_handle == side->evd);
	return event;
}

static void completion(const struct side *side, DAT_UINT64 number, DAT_VLEN bytes)
{
	DAT_EVENT event = event_of(side, DAT_DTO_COMPLETION_EVENT);
	DAT_DTO_COMPLETION_EVENT_DATA *done = &event.event_data.dto_completion_event_data;

	EXPECT(done->status == DAT_DTO_SUCCESS);
	EXPECT(done->ep_handle == side->ep);
	EXPECT(done->user_cookie.as_64 == number);
	EXPECT(done->transfered_length == bytes);
}

static void connect_sides(struct side *client, struct side *server)
{
	DAT_PSP_HANDLE psp;
	DAT_IA_ATTR attr;
	DAT_CR_PARAM request;
	DAT_EVENT event;
	DAT_CR_ARRIVAL_EVENT_DATA *arrival;
	DAT_HANDLE_TYPE type;
	char hello[] = "hello", welcome[] = "welcome";

	TRY(dat_psp_create(server->ia, PORT, server->evd, DAT_PSP_CONSUMER_FLAG, &psp));
	TRY(dat_ia_query(server->ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &attr, DAT_PROVIDER_FIELD_NONE, NULL));
	TRY(dat_ep_connect(client->ep, attr.ia_address_ptr, PORT, PATIENCE, sizeof hello, hello, DAT_QOS_BEST_EFFORT,
			   DAT_CONNECT_DEFAULT_FLAG));
	event = event_of(server, DAT_CONNECTION_REQUEST_EVENT);
	arrival = &event.event_data.cr_arrival_event_data;
	EXPECT(arrival->sp_handle.psp_handle == psp && arrival->conn_qual == PORT);
	TRY(dat_get_handle_type(arrival->cr_handle, &type));
	EXPECT(type == DAT_HANDLE_TYPE_CR);
	TRY(dat_cr_query(arrival->cr_handle, DAT_CR_FIELD_ALL, &request));
	EXPECT(memcmp(request.private_data, hello, sizeof hello) == 0);
	EXPECT(request.remote_ia_address_ptr->sa_family == AF_INET6);
	TRY(dat_cr_accept(arrival->cr_handle, server->ep, sizeof welcome, welcome));
	event = event_of(client, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(event.event_data.connect_event_data.ep_handle == client->ep);
	EXPECT(memcmp(event.event_data.connect_event_data.private_data, welcome, sizeof welcome) == 0);
	event_of(server, DAT_CONNECTION_EVENT_ESTABLISHED);
	TRY(dat_psp_free(psp));
	puts("connected");
}

static void send_and_receive(struct side *client, struct side *server)
{
	DAT_LMR_TRIPLET message[2] = {part(client, 0, 6), part(client, 6, 4)}, room = part(server, 1024, 64);

	memcpy(client->memory, "a message", 10);
	if (server->srq)
		TRY(dat_srq_post_recv(server->srq, 1, &room, cookie(1)));
	else
		TRY(dat_ep_post_recv(server->ep, 1, &room, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	TRY(dat_ep_post_send(client->ep, 2, message, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	completion(server, 1, 10);
	completion(client, 2, 10);
	EXPECT(strcmp((char *)server->memory + 1024, "a message") == 0);
	puts(server->srq ? "sent to a shared receive queue" : "sent and received");
}

static DAT_RMR_TRIPLET remote(const struct side *side, DAT_RMR_CONTEXT context, size_t offset, size_t bytes)
{
	DAT_RMR_TRIPLET triplet = {0};

	triplet.rmr_context = context;
	triplet.target_address = (DAT_VADDR)(uintptr_t)(side->memory + offset);
	triplet.segment_length = bytes;
	return triplet;
}

static void write_and_read(struct side *client, struct side *server, DAT_RMR_CONTEXT context, const char *how)
{
	DAT_RMR_TRIPLET target = remote(server, context, 2048, 512);
	DAT_LMR_TRIPLET source = part(client, 512, 512), sink = part(client, 2048, 512);
	int at;

	for (at = 0; at < 512; at++)
		client->memory[512 + at] = (unsigned char)(at * 7 + context);
	TRY(dat_ep_post_rdma_write(client->ep, 1, &source, cookie(3), &target, DAT_COMPLETION_DEFAULT_FLAG));
	completion(client, 3, 512);
	EXPECT(memcmp(server->memory + 2048, client->memory + 512, 512) == 0);
	TRY(dat_ep_post_rdma_read(client->ep, 1, &sink, cookie(4), &target, DAT_COMPLETION_DEFAULT_FLAG));
	completion(client, 4, 512);
	EXPECT(memcmp(client->memory + 2048, client->memory + 512, 512) == 0);
	printf("written and read %s\n", how);
}

static void window(struct side *client, struct side *server)
{
	DAT_RMR_HANDLE rmr;
	DAT_RMR_PARAM param;
	DAT_RMR_CONTEXT context;
	DAT_LMR_TRIPLET range = part(server, 2048, 512);
	DAT_EVENT event;

	TRY(dat_rmr_create(server->pz, &rmr));
	TRY(dat_rmr_bind(rmr, &range, DAT_MEM_PRIV_REMOTE_READ_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG, server->ep,
			 cookie(5), DAT_COMPLETION_DEFAULT_FLAG, &context));
	event = event_of(server, DAT_RMR_BIND_COMPLETION_EVENT);
	EXPECT(event.event_data.rmr_completion_event_data.status == DAT_RMR_BIND_SUCCESS);
	EXPECT(event.event_data.rmr_completion_event_data.rmr_handle == rmr);
	EXPECT(event.event_data.rmr_completion_event_data.user_cookie.as_64 == 5);
	TRY(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
	EXPECT(param.rmr_context == context && param.lmr_triplet.segment_length == 512);
	write_and_read(client, server, context, "through a window");
	EXPECT(DAT_GET_SUBTYPE(dat_lmr_free(server->lmr)) == DAT_INVALID_STATE_LMR_IN_USE);
	TRY(dat_rmr_free(rmr));
}

static void disconnect(struct side *client, struct side *server)
{
	DAT_EP_STATE state;
	DAT_BOOLEAN recv_idle, request_idle;

	int rounds = 0;

	TRY(dat_ep_disconnect(client->ep, DAT_CLOSE_GRACEFUL_FLAG));
	/* Polling only the state makes progress, too. */
	do {
		TRY(dat_ep_get_status(client->ep, &state, &recv_idle, &request_idle));
		TRY(dat_ep_get_status(server->ep, &state, &recv_idle, &request_idle));
	} while (state != DAT_EP_STATE_DISCONNECTED && ++rounds < 1000);
	EXPECT(state == DAT_EP_STATE_DISCONNECTED);
	event_of(client, DAT_CONNECTION_EVENT_DISCONNECTED);
	event_of(server, DAT_CONNECTION_EVENT_DISCONNECTED);
	TRY(dat_ep_get_status(client->ep, &state, &recv_idle, &request_idle));
	EXPECT(state == DAT_EP_STATE_DISCONNECTED && request_idle == DAT_TRUE);
}

/* Invalid handles are refused, of any value. */
static void bad_handles(struct side *side)
{
	DAT_EVENT event;
	DAT_LMR_TRIPLET triplet = part(side, 0, 1);
	DAT_PZ_HANDLE freed;

	TRY(dat_pz_create(side->ia, &freed));
	TRY(dat_pz_free(freed));
	EXPECT(dat_pz_free(freed) == (DAT_CLASS_ERROR | DAT_INVALID_HANDLE | DAT_INVALID_HANDLE_PZ));
	EXPECT(dat_pz_free(side->ep) == (DAT_CLASS_ERROR | DAT_INVALID_HANDLE | DAT_INVALID_HANDLE_PZ));
	EXPECT(DAT_GET_TYPE(dat_evd_dequeue(DAT_HANDLE_NULL, &event)) == DAT_INVALID_HANDLE);
	EXPECT(DAT_GET_TYPE(dat_evd_dequeue(&event, &event)) == DAT_INVALID_HANDLE);
	EXPECT(dat_ep_post_send(side->pz, 1, &triplet, cookie(0), 0) ==
	       (DAT_CLASS_ERROR | DAT_INVALID_HANDLE | DAT_INVALID_HANDLE_EP));
	EXPECT(DAT_GET_TYPE(dat_evd_dequeue(side->evd, NULL)) == DAT_INVALID_PARAMETER);
	EXPECT(DAT_GET_TYPE(dat_evd_dequeue(side->evd, &event)) == DAT_QUEUE_EMPTY);
}

static void run(int with_srq)
{
	struct side client, server;

	open_side(&client, "sim:client", 0);
	open_side(&server, "sim:server", with_srq);
	bad_handles(&client);
	connect_sides(&client, &server);
	send_and_receive(&client, &server);
	write_and_read(&client, &server, server.rmr_context, "directly");
	window(&client, &server);
	disconnect(&client, &server);
	close_side(&client);
	close_side(&server);
}

int main(void)
{
	run(0);
	run(1);
	puts("done");
	return 0;
}
