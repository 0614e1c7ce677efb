/*
 * Completion queues that change their size while completions wait in them, and queue pairs that fail and start again, by plain
 * verbs on the kernel's driver.
 *
 *   verbs DEVICE
 *
 * Two queue pairs of one port are connected to each other. Prints a line per thing tried, or what failed.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	QUEUE = 64,
	MESSAGE = 256,
	PATIENCE_S = 5,
};

#define DIE(...) (fprintf(stderr, "verbs: " __VA_ARGS__), fprintf(stderr, " (errno %d)\n", errno), exit(1))

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *region;
static struct ibv_cq *cq;
static struct ibv_qp *pairs[2];
static char *data;
static uint16_t lid;
static uint64_t next_id;

static struct ibv_qp *create_qp(void)
{
	struct ibv_qp_init_attr attributes = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = QUEUE, .max_recv_wr = QUEUE, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attributes);

	if (!qp)
		DIE("queue pair");
	return qp;
}

static void modify(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask)
{
	int failed = ibv_modify_qp(qp, attributes, mask);

	if (failed)
		DIE("queue pair to state %d: %d", attributes->qp_state, failed);
}

static void to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attributes = { .qp_state = state };
	struct ibv_qp_init_attr created;

	modify(qp, &attributes, IBV_QP_STATE);
	if (ibv_query_qp(qp, &attributes, IBV_QP_STATE, &created))
		DIE("querying a queue pair");
	if (attributes.qp_state != state)
		DIE("state %d, not %d", attributes.qp_state, state);
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp_attr receive = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.rq_psn = 7,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .dlid = lid, .port_num = 1 },
	};
	struct ibv_qp_attr send = {
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.sq_psn = 7,
		.max_rd_atomic = 1,
	};

	modify(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	modify(qp, &receive, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	modify(qp, &send, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				  IBV_QP_MAX_QP_RD_ATOMIC);
}

static void post_receive(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge segment = { .addr = (uintptr_t)data + MESSAGE, .length = MESSAGE, .lkey = region->lkey };
	struct ibv_recv_wr request = { .wr_id = id, .sg_list = &segment, .num_sge = 1 }, *bad;

	if (ibv_post_recv(qp, &request, &bad))
		DIE("posting a receive");
}

static void post_send(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_sge segment = { .addr = (uintptr_t)data, .length = MESSAGE, .lkey = region->lkey };
	struct ibv_send_wr request = {
		.wr_id = id,
		.sg_list = &segment,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	if (ibv_post_send(qp, &request, &bad))
		DIE("posting a send");
}

/* The next completion, within PATIENCE_S. */
static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + PATIENCE_S;
	int got;

	while (!(got = ibv_poll_cq(cq, 1, &wc)))
		if (time(NULL) > end)
			DIE("no completion within %d s", PATIENCE_S);
	if (got < 0)
		DIE("polling");
	return wc;
}

/* Messages whose completions wait: 2 each, with numbers that go on from call to call. */
static void send_messages(int count)
{
	for (int i = 0; i < count; i++, next_id++) {
		post_receive(pairs[1], next_id);
		post_send(pairs[0], next_id);
	}
}

/* Takes the completions of `count` messages, the first of them `first`: each in order, none twice. */
static void take_messages(uint64_t first, int count)
{
	uint64_t sent = first, received = first;

	while (sent < first + count || received < first + count) {
		struct ibv_wc wc = completion();
		uint64_t *expected = wc.qp_num == pairs[0]->qp_num ? &sent : &received;

		if (wc.status != IBV_WC_SUCCESS)
			DIE("completion %llu: %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
		if (wc.wr_id != *expected)
			DIE("completion %llu, not %llu", (unsigned long long)wc.wr_id, (unsigned long long)*expected);
		++*expected;
	}
}

static void resize(int entries)
{
	int failed = ibv_resize_cq(cq, entries);

	if (failed)
		DIE("resizing to %d: %d", entries, failed);
	if (cq->cqe < entries)
		DIE("%d entries after resizing to %d", cq->cqe, entries);
}

static void wait_until_written(void)
{
	/* The last message's acknowledgement is what its sender's completion waits for; nothing polls meanwhile. */
	struct timespec pause = { .tv_nsec = 200 * 1000 * 1000 };

	nanosleep(&pause, NULL);
}

static void resizes(void)
{
	static const struct {
		int messages, entries;
	} steps[] = { { 0, 31 }, { 5, 255 }, { 60, 127 }, { 30, 1023 }, { 4, 15 }, { 3, 255 } };

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		uint64_t first = next_id;

		/* Before, so that they wait in the old ring; behind, so that they go into the new one. */
		send_messages(steps[i].messages);
		wait_until_written();
		resize(steps[i].entries);
		send_messages(2);
		take_messages(first, steps[i].messages + 2);
		printf("resize %d with %d waiting\n", cq->cqe, 2 * steps[i].messages);
	}
}

/* What is posted on a failed queue pair is flushed; after a reset it works as before. */
static void fails_and_starts_again(void)
{
	for (int round = 0; round < 3; round++) {
		uint64_t first;

		for (int i = 0; i < 5; i++)
			post_receive(pairs[1], 1000 + i);
		to_state(pairs[1], IBV_QPS_ERR);
		post_receive(pairs[1], 1005);
		for (int i = 0; i < 6; i++) {
			struct ibv_wc wc = completion();

			if (wc.status != IBV_WC_WR_FLUSH_ERR || wc.wr_id != (uint64_t)(1000 + i))
				DIE("receive %llu: %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
		}
		to_state(pairs[0], IBV_QPS_ERR);
		post_send(pairs[0], 2000);
		struct ibv_wc wc = completion();

		if (wc.status != IBV_WC_WR_FLUSH_ERR || wc.wr_id != 2000)
			DIE("send %llu: %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
		to_state(pairs[0], IBV_QPS_RESET);
		to_state(pairs[1], IBV_QPS_RESET);
		connect_to(pairs[0], pairs[1]);
		connect_to(pairs[1], pairs[0]);
		first = next_id;
		send_messages(10);
		take_messages(first, 10);
		printf("error, reset and %d messages\n", 10);
	}
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_port_attr port;

	for (int i = 0; list && list[i] && argc == 2; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
			context = ibv_open_device(list[i]);
	if (!context)
		DIE("no device");
	pd = ibv_alloc_pd(context);
	data = aligned_alloc(4096, 4096);
	if (!pd || !data)
		DIE("protection domain");
	memset(data, 0x5a, 4096);
	region = ibv_reg_mr(pd, data, 4096, IBV_ACCESS_LOCAL_WRITE);
	cq = ibv_create_cq(context, 15, NULL, NULL, 0);
	if (!region || !cq || ibv_query_port(context, 1, &port))
		DIE("region, completion queue, port");
	lid = port.lid;
	pairs[0] = create_qp();
	pairs[1] = create_qp();
	connect_to(pairs[0], pairs[1]);
	connect_to(pairs[1], pairs[0]);
	resizes();
	fails_and_starts_again();
	if (ibv_destroy_qp(pairs[0]) || ibv_destroy_qp(pairs[1]) || ibv_destroy_cq(cq) || ibv_dereg_mr(region) ||
	    ibv_dealloc_pd(pd) || ibv_close_device(context))
		DIE("freeing");
	printf("all freed\n");
	return 0;
}
