/*
 * A peer that does what rping never does, by plain librdmacm and libibverbs: it posts receives late or never, hangs up
 * first, rejects, and compares private data. The other end is ours, udapl/examples/peer; what the cases are stands there.
 *
 *   peer connect ADDRESS CASE
 *   peer listen ADDRESS CASE
 *
 * Prints a line for what it has seen, or what was wrong.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	PORT = 7180,
	MESSAGES = 4,
	MESSAGE = 3000,
	PATIENCE_S = 20,
	LATE_S = 1,
	FEW = 3,
	FOREVER = 7,
	/* What rdma_cm carries, and what ours does. */
	REQUEST = 56,
	ACCEPT = 196,
	OUR_ACCEPT = 64,
	REJECT = 148,
	/* IBTA volume 1, "REJ reasons": consumer reject. */
	CONSUMER = 28,
	/* Named in a request of an id that has none. */
	NO_QP = 0x777777,
	/* Where the messages lie: those that are sent, then those that come, one more than there are. */
	INBOX = MESSAGES * MESSAGE,
	MEMORY = INBOX + (MESSAGES + 1) * MESSAGE,
};

#define DIE(...) (fprintf(stderr, "peer: " __VA_ARGS__), fprintf(stderr, " (errno %d)\n", errno), exit(1))

static struct rdma_event_channel *channel;
static struct rdma_cm_id *connection;
static struct ibv_mr *region;
static uint8_t *memory;
static int late, never, reject, decline;

/* Bytes that tell whose they are, and how many: the first is their number. */
static void pattern(uint8_t *bytes, int count, int tag)
{
	for (int i = 0; i < count; i++)
		bytes[i] = i ? tag + 7 * i : count;
}

/* An event, which has to be this one. Whoever gets it acknowledges it. */
static struct rdma_cm_event *expect(enum rdma_cm_event_type type)
{
	struct pollfd waited = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	if (poll(&waited, 1, PATIENCE_S * 1000) != 1)
		DIE("no event within %d s, not even %s", PATIENCE_S, rdma_event_str(type));
	if (rdma_get_cm_event(channel, &event))
		DIE("taking an event");
	if (event->event != type)
		DIE("%s, status %d, instead of %s", rdma_event_str(event->event), event->status, rdma_event_str(type));
	return event;
}

static void passes(enum rdma_cm_event_type type)
{
	rdma_ack_cm_event(expect(type));
}

/* Private data is padded to what the message has room for. */
static void compare(const char *what, const struct rdma_conn_param *param, int room, int count, int tag)
{
	uint8_t expected[256] = { 0 };

	pattern(expected, count, tag);
	if (param->private_data_len != room || memcmp(param->private_data, expected, room))
		DIE("%s: %d bytes of private data, not %d, or others", what, param->private_data_len, room);
	printf("%s: %d bytes of private data as they were given\n", what, count);
}

static void post_receives(int count)
{
	for (int i = 0; i < count; i++) {
		struct ibv_sge segment = {
			.addr = (uintptr_t)memory + INBOX + i * MESSAGE,
			.length = MESSAGE,
			.lkey = region->lkey,
		};
		struct ibv_recv_wr request = { .wr_id = 100 + i, .sg_list = &segment, .num_sge = 1 }, *bad;

		if (ibv_post_recv(connection->qp, &request, &bad))
			DIE("posting a receive");
	}
}

static void post_sends(int count)
{
	for (int i = 0; i < count; i++) {
		struct ibv_sge segment = {
			.addr = (uintptr_t)memory + i * MESSAGE,
			.length = MESSAGE,
			.lkey = region->lkey,
		};
		struct ibv_send_wr request = {
			.wr_id = i,
			.sg_list = &segment,
			.num_sge = 1,
			.opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED,
		}, *bad;

		pattern(memory + i * MESSAGE, MESSAGE, i);
		if (ibv_post_send(connection->qp, &request, &bad))
			DIE("posting a send");
	}
}

/* So many completions of sends from 0 on, or of receives from 100 on, the first with one status, the others with another. */
static void take(struct ibv_cq *cq, int count, uint64_t id, enum ibv_wc_status first, enum ibv_wc_status others)
{
	time_t end = time(NULL) + PATIENCE_S;

	for (int i = 0; i < count; i++, id++) {
		enum ibv_wc_status status = i ? others : first;
		struct ibv_wc wc;
		int got;

		while (!(got = ibv_poll_cq(cq, 1, &wc))) {
			struct timespec pause = { .tv_nsec = 1000 * 1000 };

			if (time(NULL) > end)
				DIE("no completion of %llu within %d s", (unsigned long long)id, PATIENCE_S);
			nanosleep(&pause, NULL);
		}
		if (got < 0 || wc.wr_id != id || wc.status != status)
			DIE("completion %llu, %s, instead of %llu, %s", (unsigned long long)wc.wr_id,
			    ibv_wc_status_str(wc.status), (unsigned long long)id, ibv_wc_status_str(status));
	}
}

static void take_sent(int count)
{
	take(connection->send_cq, count, 0, IBV_WC_SUCCESS, IBV_WC_SUCCESS);
}

static void take_received(int count)
{
	take(connection->recv_cq, count, 100, IBV_WC_SUCCESS, IBV_WC_SUCCESS);
	for (int i = 0; i < count; i++) {
		uint8_t expected[MESSAGE];

		pattern(expected, MESSAGE, i);
		if (memcmp(memory + INBOX + i * MESSAGE, expected, MESSAGE))
			DIE("message %d has other bytes", i);
	}
}

/* The one receive that got no message. */
static void take_flushed(int number)
{
	take(connection->recv_cq, 1, 100 + number, IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR);
}

static void create_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = MESSAGES,
			.max_recv_wr = MESSAGES + 1,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
	};

	connection = id;
	if (rdma_create_qp(id, NULL, &attributes))
		DIE("queue pair");
	region = ibv_reg_mr(id->qp->pd, memory, MEMORY, IBV_ACCESS_LOCAL_WRITE);
	if (!region)
		DIE("region");
}

static struct rdma_conn_param parameters(const uint8_t *private_data, int bytes)
{
	return (struct rdma_conn_param){
		.private_data = private_data,
		.private_data_len = bytes,
		.responder_resources = 1,
		.initiator_depth = 1,
		.retry_count = 7,
		.rnr_retry_count = never ? FEW : FOREVER,
	};
}

/* Ends the connection, or answers to its end: one call, and the event that the other end knows. */
static void disconnect(void)
{
	if (rdma_disconnect(connection))
		DIE("disconnecting");
}

static void free_everything(void)
{
	rdma_destroy_qp(connection);
	if (ibv_dereg_mr(region) || rdma_destroy_id(connection))
		DIE("freeing");
}

/* Without a queue pair of ours the answer to the request is for us to confirm, or to reject. */
static void declines(struct rdma_cm_id *id)
{
	uint8_t data[REJECT];
	struct rdma_cm_event *event = expect(RDMA_CM_EVENT_CONNECT_RESPONSE);

	compare("REP", &event->param.conn, ACCEPT, OUR_ACCEPT, 2);
	rdma_ack_cm_event(event);
	pattern(data, REJECT, 3);
	if (rdma_reject(id, data, REJECT) || rdma_destroy_id(id))
		DIE("rejecting");
	printf("rejected with %d bytes of private data\n", REJECT);
}

static void connects(struct sockaddr_in *address)
{
	uint8_t data[REQUEST];
	struct rdma_conn_param param;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(id, NULL, (struct sockaddr *)address, PATIENCE_S * 1000))
		DIE("address");
	passes(RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(id, PATIENCE_S * 1000))
		DIE("route");
	passes(RDMA_CM_EVENT_ROUTE_RESOLVED);
	if (!decline) {
		create_qp(id);
		post_receives(2);
	}
	pattern(data, REQUEST, 1);
	param = parameters(data, REQUEST);
	param.qp_num = NO_QP;
	if (rdma_connect(id, &param))
		DIE("connecting");
	if (decline) {
		declines(id);
		return;
	}
	if (reject) {
		/* DAT 1.2 gives a rejection no private data. */
		event = expect(RDMA_CM_EVENT_REJECTED);
		if (event->status != CONSUMER)
			DIE("rejected for reason %d", event->status);
		for (int i = 0; i < event->param.conn.private_data_len; i++)
			if (((uint8_t *)event->param.conn.private_data)[i])
				DIE("a rejection with private data");
		rdma_ack_cm_event(event);
		printf("REJ: reason %d\n", CONSUMER);
		free_everything();
		return;
	}
	event = expect(RDMA_CM_EVENT_ESTABLISHED);
	compare("REP", &event->param.conn, ACCEPT, OUR_ACCEPT, 2);
	rdma_ack_cm_event(event);
	post_sends(MESSAGES);
	if (never) {
		take(connection->send_cq, MESSAGES, 0, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR);
		printf("the first send: %s\n", ibv_wc_status_str(IBV_WC_RNR_RETRY_EXC_ERR));
		disconnect();
		passes(RDMA_CM_EVENT_DISCONNECTED);
		printf("disconnected by us\n");
	} else {
		take_sent(MESSAGES);
		take_received(1);
		printf("%d messages sent, 1 received\n", MESSAGES);
		passes(RDMA_CM_EVENT_DISCONNECTED);
		disconnect();
		take_flushed(1);
		printf("disconnected by the peer\n");
	}
	free_everything();
}

static void listens(struct sockaddr_in *address)
{
	uint8_t data[ACCEPT];
	struct rdma_conn_param param;
	struct rdma_cm_event *event;
	struct rdma_cm_id *listener, *id;

	if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, (struct sockaddr *)address) || rdma_listen(listener, 1))
		DIE("listening");
	printf("listening on %s\n", inet_ntoa(address->sin_addr));
	fflush(stdout);
	event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	id = event->id;
	compare("REQ", &event->param.conn, REQUEST, REQUEST, 1);
	rdma_ack_cm_event(event);
	if (reject) {
		pattern(data, REJECT, 3);
		if (rdma_reject(id, data, REJECT) || rdma_destroy_id(id) || rdma_destroy_id(listener))
			DIE("rejecting");
		printf("rejected with %d bytes of private data\n", REJECT);
		return;
	}
	create_qp(id);
	if (!late && !never)
		post_receives(MESSAGES + 1);
	pattern(data, ACCEPT, 2);
	param = parameters(data, ACCEPT);
	if (rdma_accept(id, &param))
		DIE("accepting");
	passes(RDMA_CM_EVENT_ESTABLISHED);
	if (never) {
		passes(RDMA_CM_EVENT_DISCONNECTED);
		disconnect();
		printf("disconnected by the peer\n");
	} else {
		if (late) {
			sleep(LATE_S);
			post_receives(MESSAGES + 1);
		}
		take_received(MESSAGES);
		post_sends(1);
		take_sent(1);
		printf("%d messages received, 1 sent\n", MESSAGES);
		disconnect();
		passes(RDMA_CM_EVENT_DISCONNECTED);
		take_flushed(MESSAGES);
		printf("disconnected by us\n");
	}
	free_everything();
	rdma_destroy_id(listener);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };

	if (argc != 4 || !inet_aton(argv[2], &address.sin_addr))
		DIE("peer connect|listen ADDRESS CASE");
	late = !strcmp(argv[3], "late");
	never = !strcmp(argv[3], "never");
	reject = !strcmp(argv[3], "reject");
	decline = !strcmp(argv[3], "decline");
	if (!late && !never && !reject && !decline && strcmp(argv[3], "prompt"))
		DIE("case %s", argv[3]);
	memory = calloc(1, MEMORY);
	channel = rdma_create_event_channel();
	if (!memory || !channel)
		DIE("event channel");
	if (!strcmp(argv[1], "connect"))
		connects(&address);
	else
		listens(&address);
	rdma_destroy_event_channel(channel);
	return 0;
}
