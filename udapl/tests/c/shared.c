/*
 * Shared memory of two processes under one name (DAT_MEM_TYPE_SHARED_VIRTUAL). Each process has a function of its
 * own, on one wire, and registers the memory at its own mapping. Whatever either process writes, into the other's
 * region or its own mapping, both see. Argument: a folder for the wire.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include "side.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT 0x100000001ULL
#define BYTES 8192

static char id[DAT_LMR_COOKIE_SIZE] = "forty bytes, and every one of them count";

/* A process's region, as sent to the other process. */
struct offer {
	DAT_RMR_CONTEXT context;
	DAT_UINT32 pad;
	DAT_VADDR address;
};

struct process {
	struct side side;
	/* The other process. */
	int other;
	unsigned char *memory;
	DAT_LMR_HANDLE lmr;
	DAT_LMR_CONTEXT lmr_context;
	struct offer mine, theirs;
	/* Not shared. */
	unsigned char *own;
	DAT_LMR_HANDLE own_lmr;
	DAT_LMR_CONTEXT own_context;
};

/* Synchronizes both processes: neither continues before both are here. */
static void meet(const struct process *process)
{
	char byte = 0;

	EXPECT(write(process->other, &byte, 1) == 1);
	EXPECT(read(process->other, &byte, 1) == 1);
}

static DAT_RETURN share(struct process *process, void *address, char (*name)[DAT_LMR_COOKIE_SIZE], DAT_VLEN bytes,
			DAT_PZ_HANDLE pz, DAT_MEM_PRIV_FLAGS rights, DAT_LMR_HANDLE *lmr)
{
	DAT_REGION_DESCRIPTION region;

	region.for_shared_memory.virtual_address = address;
	region.for_shared_memory.shared_memory_id = name;
	return dat_lmr_create(process->side.ia, DAT_MEM_TYPE_SHARED_VIRTUAL, region, bytes, pz, rights, lmr,
			      &process->lmr_context, &process->mine.context, NULL, NULL);
}

/* Checks the errors, and that one process may register the memory twice, with different zones and rights. */
static void rules(struct process *process)
{
	DAT_PZ_HANDLE elsewhere;
	DAT_LMR_HANDLE lmr, longer;
	DAT_LMR_CONTEXT first = process->lmr_context;
	struct offer mine = process->mine;
	DAT_LMR_PARAM param;
	char other[DAT_LMR_COOKIE_SIZE];

	TRY(dat_pz_create(process->side.ia, &elsewhere));
	/* A name stands for memory of one length. */
	REFUSED(share(process, process->memory, &id, BYTES / 2, elsewhere, DAT_MEM_PRIV_ALL_FLAG, &lmr),
		DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
	REFUSED(share(process, process->memory, NULL, BYTES, elsewhere, DAT_MEM_PRIV_ALL_FLAG, &lmr),
		DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
	/* Private memory cannot be shared. */
	memcpy(other, id, sizeof other);
	other[DAT_LMR_COOKIE_SIZE - 1] ^= 1;
	REFUSED(share(process, process->own, &other, BYTES, elsewhere, DAT_MEM_PRIV_ALL_FLAG, &lmr), DAT_INVALID_STATE,
		DAT_NO_SUBTYPE);
	/* All bytes of a name are significant. */
	TRY(share(process, process->memory, &other, BYTES / 2, elsewhere, DAT_MEM_PRIV_LOCAL_READ_FLAG, &longer));
	TRY(share(process, process->memory, &id, BYTES, elsewhere, DAT_MEM_PRIV_LOCAL_READ_FLAG, &lmr));
	EXPECT(process->lmr_context != first && process->mine.context == 0);
	TRY(dat_lmr_query(lmr, DAT_LMR_FIELD_ALL, &param));
	EXPECT(param.mem_type == DAT_MEM_TYPE_SHARED_VIRTUAL && param.length == BYTES);
	EXPECT(param.region_desc.for_shared_memory.virtual_address == process->memory);
	EXPECT(memcmp(param.region_desc.for_shared_memory.shared_memory_id, id, sizeof id) == 0);
	EXPECT(param.pz_handle == elsewhere && param.mem_priv == DAT_MEM_PRIV_LOCAL_READ_FLAG);
	TRY(dat_lmr_free(lmr));
	TRY(dat_lmr_free(longer));
	TRY(dat_pz_free(elsewhere));
	process->lmr_context = first;
	process->mine = mine;
}

static void prepare(struct process *process, int file, const char *name)
{
	DAT_REGION_DESCRIPTION region;

	open_side(&process->side, name);
	make_endpoint(&process->side);
	process->memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	EXPECT(process->memory != MAP_FAILED);
	TRY(share(process, process->memory, &id, BYTES, process->side.pz, DAT_MEM_PRIV_ALL_FLAG, &process->lmr));
	process->mine.address = (DAT_VADDR)(uintptr_t)process->memory;
	process->own = aligned_alloc(4096, BYTES);
	memset(process->own, 0, BYTES);
	region.for_va = process->own;
	TRY(dat_lmr_create(process->side.ia, DAT_MEM_TYPE_VIRTUAL, region, BYTES, process->side.pz,
			   DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG, &process->own_lmr,
			   &process->own_context, NULL, NULL, NULL));
	rules(process);
}

/* Writes by RDMA from private memory into the region of the other process. */
static void write_to_the_other(struct process *process, size_t offset, int seed)
{
	DAT_LMR_TRIPLET source = local(process->own_context, process->own, 1000);
	DAT_RMR_TRIPLET target = {0};
	int at;

	for (at = 0; at < 1000; at++)
		process->own[at] = (unsigned char)(at * 7 + seed);
	target.rmr_context = process->theirs.context;
	target.target_address = process->theirs.address + offset;
	target.segment_length = 1000;
	TRY(dat_ep_post_rdma_write(process->side.ep, 1, &source, cookie(1), &target, DAT_COMPLETION_DEFAULT_FLAG));
	completion(&process->side, 1, DAT_DTO_SUCCESS);
}

static void sees(const struct process *process, size_t offset, int seed)
{
	int at;

	for (at = 0; at < 1000; at++)
		EXPECT(process->memory[offset + at] == (unsigned char)(at * 7 + seed));
}

/* Sends from the shared mapping to the other process, which receives into its mapping. */
static void send_from_the_memory(struct process *process, size_t offset)
{
	DAT_LMR_TRIPLET source = local(process->lmr_context, process->memory + offset, 1000);

	TRY(dat_ep_post_send(process->side.ep, 1, &source, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	completion(&process->side, 2, DAT_DTO_SUCCESS);
}

static void post_receive(struct process *process, size_t offset)
{
	DAT_LMR_TRIPLET sink = local(process->lmr_context, process->memory + offset, 1000);

	TRY(dat_ep_post_recv(process->side.ep, 1, &sink, cookie(3), DAT_COMPLETION_DEFAULT_FLAG));
}

static void finish(struct process *process)
{
	TRY(dat_ep_free(process->side.ep));
	TRY(dat_lmr_free(process->own_lmr));
	TRY(dat_lmr_free(process->lmr));
	close_side(&process->side);
	/* The written bytes remain after the region was freed. */
	sees(process, 0, 3);
	EXPECT(munmap(process->memory, BYTES) == 0);
	free(process->own);
}

static void server(struct process *process)
{
	DAT_PSP_HANDLE psp;
	DAT_EVENT event;
	DAT_CR_PARAM request;
	DAT_CR_HANDLE cr;

	TRY(dat_psp_create(process->side.ia, PORT, process->side.evd, DAT_PSP_CONSUMER_FLAG, &psp));
	EXPECT(write(process->other, address_of(&process->side), sizeof(struct sockaddr_in6)) ==
	       sizeof(struct sockaddr_in6));
	event = event_of(&process->side, DAT_CONNECTION_REQUEST_EVENT);
	cr = event.event_data.cr_arrival_event_data.cr_handle;
	TRY(dat_cr_query(cr, DAT_CR_FIELD_ALL, &request));
	memcpy(&process->theirs, request.private_data, sizeof process->theirs);
	post_receive(process, 4000);
	TRY(dat_cr_accept(cr, process->side.ep, sizeof process->mine, &process->mine));
	event_of(&process->side, DAT_CONNECTION_EVENT_ESTABLISHED);

	write_to_the_other(process, 0, 3);
	sees(process, 0, 3);
	meet(process);
	/* The other process writes. */
	meet(process);
	sees(process, 2000, 5);
	/* The other process sends. */
	completion(&process->side, 3, DAT_DTO_SUCCESS);
	sees(process, 4000, 5);
	meet(process);
	/* The other process disconnects. */
	event_of(&process->side, DAT_CONNECTION_EVENT_DISCONNECTED);
	TRY(dat_psp_free(psp));
	finish(process);
}

static void client(struct process *process)
{
	struct sockaddr_in6 address;
	DAT_EVENT event;

	EXPECT(read(process->other, &address, sizeof address) == sizeof address);
	TRY(dat_ep_connect(process->side.ep, (DAT_IA_ADDRESS_PTR)&address, PORT, PATIENCE, sizeof process->mine,
			   &process->mine, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	event = event_of(&process->side, DAT_CONNECTION_EVENT_ESTABLISHED);
	memcpy(&process->theirs, event.event_data.connect_event_data.private_data, sizeof process->theirs);
	/* The other process writes. */
	meet(process);
	sees(process, 0, 3);
	write_to_the_other(process, 2000, 5);
	sees(process, 2000, 5);
	meet(process);
	send_from_the_memory(process, 2000);
	meet(process);
	sees(process, 4000, 5);
	TRY(dat_ep_disconnect(process->side.ep, DAT_CLOSE_GRACEFUL_FLAG));
	event_of(&process->side, DAT_CONNECTION_EVENT_DISCONNECTED);
	finish(process);
}

int main(int count, char **arguments)
{
	const char *folder = arguments[1];
	char name[256];
	struct process process;
	int ends[2], file, status;
	pid_t child;

	EXPECT(count == 2);
	file = memfd_create("shared", 0);
	EXPECT(file >= 0 && ftruncate(file, BYTES) == 0);
	EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	memset(&process, 0, sizeof process);
	child = fork();
	EXPECT(child >= 0);
	if (child == 0) {
		/* At another address than in the other process. */
		EXPECT(mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
		close(ends[0]);
		process.other = ends[1];
		snprintf(name, sizeof name, "sim:client,mac=02:00:00:00:00:02,link=unix:%s/wire", folder);
		prepare(&process, file, name);
		client(&process);
		return 0;
	}
	close(ends[1]);
	process.other = ends[0];
	snprintf(name, sizeof name, "sim:server,mac=02:00:00:00:00:01,link=unix:%s/wire", folder);
	prepare(&process, file, name);
	server(&process);
	EXPECT(waitpid(child, &status, 0) == child);
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	puts("one memory");
	return 0;
}
