/*
 * A function driven by rdma-core alone: libmlx5 over vfio-pci, no kernel driver of the device's.
 *
 *   userspace PCI-NAME ROUNDS
 *
 * A round opens the function, asks the port for its state in three ways, and creates everything by DEVX: an event queue with
 * an interrupt of its own, a completion queue and two queue pairs, all in user memory. A message then travels from one queue
 * pair to the other and back, changed on each way, while the program sleeps on the interrupt; the port goes down and up;
 * everything is destroyed and the function closed. Prints one line per round, or what failed.
 *
 * Commands are written as the PRM prints them: dword offset, highest and lowest bit, value.
 */
#include <endian.h>
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	OP_CREATE_EQ = 0x301,
	OP_CREATE_CQ = 0x400,
	OP_CREATE_QP = 0x500,
	OP_RST2INIT_QP = 0x502,
	OP_INIT2RTR_QP = 0x503,
	OP_RTR2RTS_QP = 0x504,
	OP_QUERY_QP = 0x50b,
	OP_MAD_IFC = 0x50d,
	OP_QUERY_HCA_VPORT_CONTEXT = 0x762,
	OP_ACCESS_REG = 0x805,
	REG_PAOS = 0x5006,
	PORT_UP = 1,
	PORT_DOWN = 2,
	EVENT_COMPLETION = 0,
	EVENT_PORT_CHANGE = 9,
	PORT_CHANGE_DOWN = 1,
	PORT_CHANGE_ACTIVE = 4,
	OPCODE_SEND_IMM = 0x0b,
	CQE_REQ = 0,
	CQE_RESP_SEND_IMM = 3,
	STATE_RTS = 3,
};

enum {
	PAGE = 4096,
	LOG_EQ = 6,
	LOG_CQ = 4,
	LOG_QUEUE = 3, /* entries of a receive queue, blocks of a send queue */
	MESSAGE = 3000,
	TRIPS = 40, /* many times around every ring */
	SLEEP_MS = 5000,
};

#define DIE(...) (fprintf(stderr, "userspace: " __VA_ARGS__), fprintf(stderr, " (errno %d)\n", errno), exit(1))

/* Sets bits high:low of the big-endian dword at that offset. */
static void put(void *command, int dword, int high, int low, uint32_t value)
{
	uint32_t *at = (uint32_t *)((char *)command + dword);
	uint32_t mask = (high - low == 31 ? ~0u : (1u << (high - low + 1)) - 1) << low;

	*at = htobe32((be32toh(*at) & ~mask) | (value << low & mask));
}

static void put64(void *command, int dword, uint64_t value)
{
	put(command, dword, 31, 0, value >> 32);
	put(command, dword + 4, 31, 0, (uint32_t)value);
}

static uint32_t get(const void *answer, int dword, int high, int low)
{
	uint32_t value = be32toh(*(const uint32_t *)((const char *)answer + dword)) >> low;

	return high - low == 31 ? value : value & ((1u << (high - low + 1)) - 1);
}

/* User memory and what it is for. */
struct memory {
	char *start;
	struct mlx5dv_devx_umem *umem;
};

struct queue_pair {
	struct memory ring, record;
	struct mlx5dv_devx_obj *object;
	uint32_t number;
	uint16_t sent, posted;
	char *buffer; /* what it sends from and receives into */
};

struct function {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct mlx5dv_devx_uar *uar;
	uint32_t pdn, lid;

	struct mlx5dv_devx_msi_vector *vector;
	struct mlx5dv_devx_eq *eq;
	uint32_t eqn, eq_taken;

	struct memory ring, record;
	struct mlx5dv_devx_obj *cq;
	uint32_t cqn, cq_taken, arms;

	struct queue_pair pairs[2];
	struct ibv_mr *region;
	char *data;

	unsigned completions, sleeps, port_events;
};

static void command(struct function *f, const char *what, const void *in, size_t in_bytes, void *out, size_t out_bytes)
{
	int failed = mlx5dv_devx_general_cmd(f->context, in, in_bytes, out, out_bytes);

	if (failed)
		DIE("%s: %d, status %#x syndrome %#x", what, failed, get(out, 0, 31, 24), get(out, 4, 31, 0));
}

/* Offset and length are such that nothing begins at a page, unless the queue has to. */
static struct memory memory(struct function *f, size_t bytes, size_t offset)
{
	struct memory m;
	void *pages;

	if (posix_memalign(&pages, PAGE, PAGE + bytes))
		DIE("no memory");
	memset(pages, 0, PAGE + bytes);
	m.start = (char *)pages + offset;
	m.umem = mlx5dv_devx_umem_reg(f->context, m.start, bytes, IBV_ACCESS_LOCAL_WRITE);
	if (!m.umem)
		DIE("user memory of %zu bytes", bytes);
	return m;
}

static void release(struct memory *m, size_t offset)
{
	if (mlx5dv_devx_umem_dereg(m->umem))
		DIE("destroying user memory");
	free(m->start - offset);
}

/* ---- The port ---- */

static void set_port(struct function *f, uint32_t state)
{
	uint32_t in[8] = {}, out[8] = {};

	put(in, 0x00, 31, 16, OP_ACCESS_REG);
	put(in, 0x08, 15, 0, REG_PAOS);
	put(in, 0x10, 23, 16, 1);     /* local_port */
	put(in, 0x10, 11, 8, state);  /* admin_status */
	put(in, 0x14, 31, 31, 1);     /* ase */
	command(f, "PAOS", in, sizeof(in), out, sizeof(out));
}

static uint32_t port_by_register(struct function *f)
{
	uint32_t in[8] = {}, out[8] = {};

	put(in, 0x00, 31, 16, OP_ACCESS_REG);
	put(in, 0x04, 15, 0, 1); /* read */
	put(in, 0x08, 15, 0, REG_PAOS);
	put(in, 0x10, 23, 16, 1);
	command(f, "PAOS", in, sizeof(in), out, sizeof(out));
	return get(out, 0x10, 3, 0); /* oper_status */
}

/* PortState by a Get of PortInfo. */
static uint32_t port_by_mad(struct function *f)
{
	uint32_t in[68] = {}, out[68] = {};

	put(in, 0x00, 31, 16, OP_MAD_IFC);
	put(in, 0x04, 15, 0, 3);               /* neither M_Key nor B_Key */
	put(in, 0x08, 7, 0, 1);                /* port */
	put(in, 0x10, 31, 0, 0x01010101);      /* version, LID routed, version, Get */
	put(in, 0x20, 31, 16, 0x15);           /* PortInfo */
	put(in, 0x24, 31, 0, 1);               /* port */
	command(f, "MAD_IFC", in, sizeof(in), out, sizeof(out));
	return get(out, 0x70, 27, 24);
}

static uint32_t lid(struct function *f)
{
	uint32_t in[4] = {}, out[132] = {};

	put(in, 0x00, 31, 16, OP_QUERY_HCA_VPORT_CONTEXT);
	command(f, "QUERY_HCA_VPORT_CONTEXT", in, sizeof(in), out, sizeof(out));
	return get(out, 0x10 + 0x60, 31, 16);
}

/* ---- Events ---- */

static void write_register(void *base, size_t offset, uint64_t value, size_t bytes)
{
	__sync_synchronize(); /* memory before the register that points at it */
	if (bytes == 8)
		*(volatile uint64_t *)((char *)base + offset) = htobe64(value);
	else
		*(volatile uint32_t *)((char *)base + offset) = htobe32((uint32_t)value);
	__sync_synchronize();
}

static void create_eq(struct function *f)
{
	uint32_t in[0x110 / 4] = {}, out[4] = {};

	f->vector = mlx5dv_devx_alloc_msi_vector(f->context);
	if (!f->vector)
		DIE("no interrupt");
	put(in, 0x00, 31, 16, OP_CREATE_EQ);
	put(in, 0x10 + 0x0c, 28, 24, LOG_EQ);
	put(in, 0x10 + 0x0c, 23, 0, f->uar->page_id);
	put(in, 0x10 + 0x14, 7, 0, f->vector->vector);
	put64(in, 0x58, 1 << EVENT_PORT_CHANGE);
	f->eq = mlx5dv_devx_create_eq(f->context, in, sizeof(in), out, sizeof(out));
	if (!f->eq)
		DIE("event queue: status %#x syndrome %#x", get(out, 0, 31, 24), get(out, 4, 31, 0));
	f->eqn = get(out, 0x08, 7, 0);
	for (int entry = 0; entry < 1 << LOG_EQ; entry++)
		((volatile uint8_t *)f->eq->vaddr)[64 * entry + 63] = 1;
}

static void arm_eq(struct function *f)
{
	write_register(f->uar->base_addr, 0x40, f->eqn << 24 | (f->eq_taken & 0xffffff), 4);
}

/* Sleeps until the interrupt comes, then takes every event. Counts them; the last port event's kind, or 0. */
static int sleep_for_events(struct function *f)
{
	struct pollfd fd = { .fd = f->vector->fd, .events = POLLIN };
	uint64_t count;
	int kind = 0;

	if (poll(&fd, 1, SLEEP_MS) != 1)
		DIE("no interrupt within %d ms", SLEEP_MS);
	if (read(fd.fd, &count, sizeof(count)) != sizeof(count))
		DIE("reading the interrupt");
	f->sleeps++;
	for (;;) {
		volatile uint8_t *entry = (volatile uint8_t *)f->eq->vaddr + 64 * (f->eq_taken % (1 << LOG_EQ));

		if ((entry[63] & 1) != (f->eq_taken >> LOG_EQ & 1))
			break;
		__sync_synchronize(); /* nothing of the entry before its owner bit */
		if (entry[1] == EVENT_COMPLETION && get((void *)entry, 56, 23, 0) == f->cqn) {
			f->completions++;
		} else if (entry[1] == EVENT_PORT_CHANGE) {
			f->port_events++;
			kind = entry[3];
		} else {
			DIE("event of type %#x", entry[1]);
		}
		f->eq_taken++;
	}
	arm_eq(f);
	return kind;
}

/* ---- Completions ---- */

static void create_cq(struct function *f)
{
	uint32_t in[0x110 / 4] = {}, out[4] = {};

	f->ring = memory(f, 64 << LOG_CQ, 128);
	f->record = memory(f, 8, 24);
	for (int entry = 0; entry < 1 << LOG_CQ; entry++)
		f->ring.start[64 * entry + 63] = (char)0xf1; /* never written */
	put(in, 0x00, 31, 16, OP_CREATE_CQ);
	put(in, 0x10 + 0x00, 25, 25, 1); /* dbr_umem_valid */
	put(in, 0x10 + 0x04, 31, 0, f->record.umem->umem_id);
	put(in, 0x10 + 0x0c, 28, 24, LOG_CQ);
	put(in, 0x10 + 0x0c, 23, 0, f->uar->page_id);
	put(in, 0x10 + 0x14, 31, 0, f->eqn);
	put(in, 0x58, 31, 0, f->ring.umem->umem_id);
	put(in, 0x5c, 31, 31, 1); /* cq_umem_valid */
	f->cq = mlx5dv_devx_obj_create(f->context, in, sizeof(in), out, sizeof(out));
	if (!f->cq)
		DIE("completion queue: status %#x syndrome %#x", get(out, 0, 31, 24), get(out, 4, 31, 0));
	f->cqn = get(out, 0x08, 23, 0);
}

/* Asks for one completion event. */
static void arm_cq(struct function *f)
{
	uint32_t word = (f->arms & 3) << 28 | (f->cq_taken & 0xffffff);

	((volatile uint32_t *)f->record.start)[1] = htobe32(word);
	write_register(f->uar->base_addr, 0x20, (uint64_t)word << 32 | f->cqn, 8);
	f->arms++;
}

/* The next entry, or none. */
static const char *next_cqe(struct function *f)
{
	const char *entry = f->ring.start + 64 * (f->cq_taken % (1 << LOG_CQ));
	uint8_t owner = *(const volatile uint8_t *)(entry + 63);

	if (owner >> 4 == 0xf || (owner & 1) != (f->cq_taken >> LOG_CQ & 1))
		return NULL;
	__sync_synchronize();
	f->cq_taken++;
	*(volatile uint32_t *)f->record.start = htobe32(f->cq_taken & 0xffffff);
	return entry;
}

/* ---- Queue pairs: the receive queue, and behind it the send queue ---- */

static void create_qp(struct function *f, struct queue_pair *pair)
{
	uint32_t in[0x110 / 4] = {}, out[4] = {};

	pair->ring = memory(f, (16 + 64) << LOG_QUEUE, 192);
	pair->record = memory(f, 8, 8);
	put(in, 0x00, 31, 16, OP_CREATE_QP);
	put(in, 0x18 + 0x00, 12, 11, 3); /* migrated */
	put(in, 0x18 + 0x04, 23, 0, f->pdn);
	put(in, 0x18 + 0x08, 22, 19, LOG_QUEUE);
	put(in, 0x18 + 0x08, 14, 11, LOG_QUEUE);
	put(in, 0x18 + 0x0c, 23, 0, f->uar->page_id);
	put(in, 0x18 + 0x7c, 23, 0, f->cqn);
	put(in, 0x18 + 0x9c, 23, 0, f->cqn);
	put(in, 0x18 + 0xd0, 28, 28, 1); /* dbr_umem_valid */
	put(in, 0x18 + 0xe4, 31, 0, pair->record.umem->umem_id);
	put(in, 0x108, 31, 0, pair->ring.umem->umem_id);
	put(in, 0x10c, 31, 31, 1); /* wq_umem_valid */
	pair->object = mlx5dv_devx_obj_create(f->context, in, sizeof(in), out, sizeof(out));
	if (!pair->object)
		DIE("queue pair: status %#x syndrome %#x", get(out, 0, 31, 24), get(out, 4, 31, 0));
	pair->number = get(out, 0x08, 23, 0);
}

static void modify(struct queue_pair *pair, uint16_t opcode, uint32_t *in, size_t bytes)
{
	uint32_t out[4] = {};

	put(in, 0x00, 31, 16, opcode);
	put(in, 0x08, 23, 0, pair->number);
	put(in, 0x18 + 0x3c, 23, 16, 1); /* port */
	if (mlx5dv_devx_obj_modify(pair->object, in, bytes, out, sizeof(out)))
		DIE("command %#x: status %#x syndrome %#x", opcode, get(out, 0, 31, 24), get(out, 4, 31, 0));
}

static void connect_to(struct function *f, struct queue_pair *pair, const struct queue_pair *peer)
{
	uint32_t init[0x110 / 4] = {}, receive[0x110 / 4] = {}, send[0x110 / 4] = {};
	uint32_t query[4] = {}, answer[0x110 / 4] = {};

	modify(pair, OP_RST2INIT_QP, init, sizeof(init));
	put(receive, 0x18 + 0x08, 31, 29, 3);  /* 1024 bytes */
	put(receive, 0x18 + 0x08, 28, 24, 20); /* messages of a MiB at most */
	put(receive, 0x18 + 0x14, 23, 0, peer->number);
	put(receive, 0x18 + 0x1c, 15, 0, f->lid);
	put(receive, 0x18 + 0x94, 28, 24, 12); /* RNR timer */
	modify(pair, OP_INIT2RTR_QP, receive, sizeof(receive));
	put(send, 0x18 + 0x20, 31, 27, 14); /* ack_timeout */
	put(send, 0x18 + 0x70, 18, 16, 6);
	put(send, 0x18 + 0x70, 15, 13, 6);
	modify(pair, OP_RTR2RTS_QP, send, sizeof(send));
	put(query, 0x00, 31, 16, OP_QUERY_QP);
	put(query, 0x08, 23, 0, pair->number);
	if (mlx5dv_devx_obj_query(pair->object, query, sizeof(query), answer, sizeof(answer)))
		DIE("QUERY_QP: status %#x", get(answer, 0, 31, 24));
	if (get(answer, 0x18, 31, 28) != STATE_RTS)
		DIE("queue pair is in state %u", get(answer, 0x18, 31, 28));
}

static void put_segment(struct function *f, char *wqe, const char *buffer)
{
	put(wqe, 0, 31, 0, MESSAGE);
	put(wqe, 4, 31, 0, f->region->lkey);
	put64(wqe, 8, (uintptr_t)buffer);
}

static void post_receive(struct function *f, struct queue_pair *pair)
{
	put_segment(f, pair->ring.start + 16 * (pair->posted % (1 << LOG_QUEUE)), pair->buffer);
	pair->posted++;
	__sync_synchronize(); /* the WQE before the record that announces it */
	((volatile uint32_t *)pair->record.start)[0] = htobe32(pair->posted);
}

static void post_send(struct function *f, struct queue_pair *pair, uint32_t immediate)
{
	char *wqe = pair->ring.start + (16 << LOG_QUEUE) + 64 * (pair->sent % (1 << LOG_QUEUE));
	uint64_t first;

	memset(wqe, 0, 64);
	put(wqe, 0, 31, 0, (uint32_t)pair->sent << 8 | OPCODE_SEND_IMM);
	put(wqe, 4, 31, 0, pair->number << 8 | 2);
	put(wqe, 8, 3, 2, 2); /* a completion, please */
	put(wqe, 12, 31, 0, immediate);
	put_segment(f, wqe + 16, pair->buffer);
	pair->sent++;
	memcpy(&first, wqe, sizeof(first));
	__sync_synchronize(); /* the WQE before the record that announces it */
	((volatile uint32_t *)pair->record.start)[1] = htobe32(pair->sent);
	write_register(f->uar->reg_addr, 0, be64toh(first), 8);
}

/* One way: the message changes, travels, arrives as it was sent; both ends are told. */
static void travel(struct function *f, int from, uint32_t trip)
{
	struct queue_pair *sender = &f->pairs[from], *receiver = &f->pairs[!from];
	bool sent = false, received = false;

	for (int at = 0; at < MESSAGE; at++)
		sender->buffer[at] = (char)(sender->buffer[at] * 5 + at + (int)trip);
	memset(receiver->buffer, 0, MESSAGE);
	post_receive(f, receiver);
	arm_cq(f);
	post_send(f, sender, trip);
	while (!sent || !received) {
		const char *cqe = next_cqe(f);

		if (!cqe) {
			sleep_for_events(f);
			arm_cq(f);
			continue;
		}
		uint32_t opcode = get(cqe, 60, 7, 4), number = get(cqe, 56, 23, 0);

		if (opcode == CQE_REQ && number == sender->number) {
			sent = true;
		} else if (opcode == CQE_RESP_SEND_IMM && number == receiver->number) {
			if (get(cqe, 44, 31, 0) != MESSAGE || get(cqe, 36, 31, 0) != trip)
				DIE("trip %u: %u bytes, immediate %#x", trip, get(cqe, 44, 31, 0), get(cqe, 36, 31, 0));
			received = true;
		} else {
			DIE("trip %u: completion %#x of QP %#x, syndrome %#x", trip, opcode, number, get(cqe, 52, 7, 0));
		}
	}
	if (memcmp(sender->buffer, receiver->buffer, MESSAGE))
		DIE("trip %u: other bytes arrived", trip);
}

static void wait_for_port(struct function *f, int kind)
{
	for (int tries = 0; sleep_for_events(f) != kind; tries++)
		if (tries == 3)
			DIE("no port event %d", kind);
}

/* ---- A round ---- */

static void open_function(struct function *f, const char *name)
{
	struct mlx5dv_vfio_context_attr attributes = { .pci_name = name };
	struct ibv_device **list = mlx5dv_get_vfio_device_list(&attributes);
	struct mlx5dv_pd pd;
	struct mlx5dv_obj object = {};

	if (!list || !list[0])
		DIE("%s is no mlx5 function of vfio-pci", name);
	f->context = ibv_open_device(list[0]);
	if (!f->context)
		DIE("opening %s", name);
	ibv_free_device_list(list);
	f->pd = ibv_alloc_pd(f->context);
	if (!f->pd)
		DIE("protection domain");
	object.pd.in = f->pd;
	object.pd.out = &pd;
	if (mlx5dv_init_obj(&object, MLX5DV_OBJ_PD))
		DIE("number of the protection domain");
	f->pdn = pd.pdn;
	f->uar = mlx5dv_devx_alloc_uar(f->context, MLX5DV_UAR_ALLOC_TYPE_NC);
	if (!f->uar)
		DIE("doorbell page");
	if (posix_memalign((void **)&f->data, PAGE, 2 * PAGE))
		DIE("no memory");
	memset(f->data, 0, 2 * PAGE);
	f->region = ibv_reg_mr(f->pd, f->data + 100, 2 * PAGE - 100, IBV_ACCESS_LOCAL_WRITE);
	if (!f->region)
		DIE("memory region");
	f->pairs[0].buffer = f->data + 100;
	f->pairs[1].buffer = f->data + PAGE + 1;
}

static void close_function(struct function *f)
{
	for (int i = 0; i < 2; i++) {
		if (mlx5dv_devx_obj_destroy(f->pairs[i].object))
			DIE("destroying a queue pair");
		release(&f->pairs[i].ring, 192);
		release(&f->pairs[i].record, 8);
	}
	if (mlx5dv_devx_obj_destroy(f->cq))
		DIE("destroying the completion queue");
	release(&f->ring, 128);
	release(&f->record, 24);
	if (mlx5dv_devx_destroy_eq(f->eq))
		DIE("destroying the event queue");
	if (mlx5dv_devx_free_msi_vector(f->vector))
		DIE("giving the interrupt back");
	mlx5dv_devx_free_uar(f->uar);
	if (ibv_dereg_mr(f->region) || ibv_dealloc_pd(f->pd))
		DIE("freeing region and protection domain");
	free(f->data);
	if (ibv_close_device(f->context))
		DIE("closing");
}

int main(int argc, char **argv)
{
	int rounds = argc == 3 ? atoi(argv[2]) : 0;

	if (rounds <= 0) {
		fprintf(stderr, "userspace PCI-NAME ROUNDS\n");
		return 2;
	}
	for (int round = 1; round <= rounds; round++) {
		struct function f = {};

		open_function(&f, argv[1]);
		f.lid = lid(&f);
		create_eq(&f);
		arm_eq(&f);
		set_port(&f, PORT_DOWN);
		wait_for_port(&f, PORT_CHANGE_DOWN);
		if (port_by_register(&f) != PORT_DOWN || port_by_mad(&f) != 1)
			DIE("port is %u, %u", port_by_register(&f), port_by_mad(&f));
		set_port(&f, PORT_UP);
		wait_for_port(&f, PORT_CHANGE_ACTIVE);
		if (port_by_register(&f) != PORT_UP || port_by_mad(&f) != 4)
			DIE("port is %u, %u", port_by_register(&f), port_by_mad(&f));
		create_cq(&f);
		create_qp(&f, &f.pairs[0]);
		create_qp(&f, &f.pairs[1]);
		connect_to(&f, &f.pairs[0], &f.pairs[1]);
		connect_to(&f, &f.pairs[1], &f.pairs[0]);
		for (uint32_t trip = 0; trip < TRIPS; trip++)
			travel(&f, trip % 2, trip);
		if (mlx5dv_vfio_process_events(f.context))
			DIE("the library's own events");
		close_function(&f);
		printf("round %d: LID %u, %d trips of %d bytes, %u completion events, %u port events\n", round, f.lid,
		       TRIPS, MESSAGE, f.completions, f.port_events);
		fflush(stdout);
	}
	return 0;
}
