/*
 * A program that forks. The adapters belong to the parent: in the child each group of calls fails with an error that
 * says so, and no call blocks or crashes. The parent continues meanwhile and afterwards. Arguments: the names of two
 * adapters on a wire.
 *
 * The program also checks that the text of an error is known only to the thread that got it.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include "side.h"

#include <sys/wait.h>
#include <unistd.h>

#define SERVICE 0x100000001ULL

/* Seconds after which a signal ends a child that hangs. */
#define LONG 600

static struct side client, server;
static DAT_LMR_HANDLE lmr;
static DAT_LMR_CONTEXT lmr_context;
static DAT_RMR_CONTEXT rmr_context;
static DAT_PSP_HANDLE psp;
static char *memory;

/* Checks that the text of the last error contains this part. */
static void told(DAT_RETURN refused, const char *part, int line)
{
	DAT_RETURN with = 0;
	const char *text = NULL;

	TRY(dat_last_error_text(&with, &text));
	if (with == refused && strstr(text, part))
		return;
	fprintf(stderr, "line %d: 0x%08x, not 0x%08x: %s\n", line, with, refused, text);
	exit(1);
}

#define TOLD(refused, part) told((refused), (part), __LINE__)

/* In the child: a call on a handle of the parent. */
#define NOT_OURS(call, subtype)                                                                                       \
	do {                                                                                                          \
		REFUSED(call, DAT_INVALID_HANDLE, subtype);                                                           \
		TOLD(DAT_CLASS_ERROR | DAT_INVALID_HANDLE | (subtype), "not inherited by fork");                      \
	} while (0)

static int child(void)
{
	DAT_IA_HANDLE ia;
	DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL, evd;
	DAT_PZ_HANDLE pz;
	DAT_CNO_HANDLE cno;
	DAT_EVENT event;
	DAT_COUNT count;
	DAT_EP_PARAM param;
	DAT_IA_ATTR attr;
	DAT_RMR_HANDLE rmr;
	DAT_LMR_TRIPLET part = local(lmr_context, memory, 64);
	DAT_RMR_TRIPLET place = remote(rmr_context, memory, 64);
	DAT_REGION_DESCRIPTION region = {.for_va = memory};
	DAT_OS_WAIT_PROXY_AGENT agent = DAT_OS_WAIT_PROXY_AGENT_NULL;

	alarm(LONG);
	/* Posts and dequeues, which use the hot path. */
	NOT_OURS(dat_ep_post_send(client.ep, 1, &part, cookie(1), DAT_COMPLETION_DEFAULT_FLAG), DAT_INVALID_HANDLE_EP);
	NOT_OURS(dat_ep_post_recv(client.ep, 1, &part, cookie(1), DAT_COMPLETION_DEFAULT_FLAG), DAT_INVALID_HANDLE_EP);
	NOT_OURS(dat_ep_post_rdma_write(client.ep, 1, &part, cookie(1), &place, DAT_COMPLETION_DEFAULT_FLAG),
		 DAT_INVALID_HANDLE_EP);
	NOT_OURS(dat_evd_dequeue(client.evd, &event), DAT_INVALID_HANDLE1);
	/* Waits. */
	NOT_OURS(dat_evd_wait(client.evd, PATIENCE, 1, &event, &count), DAT_INVALID_HANDLE1);
	NOT_OURS(dat_evd_set_unwaitable(client.evd), DAT_INVALID_HANDLE1);
	/* The adapter. */
	NOT_OURS(dat_ia_query(client.ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &attr, DAT_PROVIDER_FIELD_NONE, NULL),
		 DAT_INVALID_HANDLE_IA);
	NOT_OURS(dat_pz_create(client.ia, &pz), DAT_INVALID_HANDLE_IA);
	NOT_OURS(dat_evd_create(client.ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &evd), DAT_INVALID_HANDLE_IA);
	NOT_OURS(dat_cno_create(client.ia, agent, &cno), DAT_INVALID_HANDLE_IA);
	/* Connections. */
	NOT_OURS(dat_ep_query(client.ep, DAT_EP_FIELD_ALL, &param), DAT_INVALID_HANDLE_EP);
	NOT_OURS(dat_ep_disconnect(client.ep, DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_HANDLE_EP);
	NOT_OURS(dat_psp_free(psp), DAT_INVALID_HANDLE_PSP);
	/* Memory. */
	NOT_OURS(dat_lmr_create(client.ia, DAT_MEM_TYPE_VIRTUAL, region, 64, client.pz, DAT_MEM_PRIV_ALL_FLAG, NULL,
				NULL, NULL, NULL, NULL),
		 DAT_INVALID_HANDLE_IA);
	NOT_OURS(dat_lmr_free(lmr), DAT_INVALID_HANDLE_LMR);
	NOT_OURS(dat_rmr_create(client.pz, &rmr), DAT_INVALID_HANDLE_PZ);
	NOT_OURS(dat_pz_free(client.pz), DAT_INVALID_HANDLE_PZ);
	NOT_OURS(dat_ep_free(client.ep), DAT_INVALID_HANDLE_EP);
	NOT_OURS(dat_evd_free(client.evd), DAT_INVALID_HANDLE1);
	NOT_OURS(dat_ia_close(client.ia, DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_HANDLE_IA);
	/* Opening fails, too: the child has neither the library's threads nor the device's state. */
	REFUSED(dat_ia_open((DAT_NAME_PTR) "sim:child", 8, &async_evd, &ia), DAT_INSUFFICIENT_RESOURCES,
		DAT_RESOURCE_DEVICE);
	TOLD(DAT_CLASS_ERROR | DAT_INSUFFICIENT_RESOURCES | DAT_RESOURCE_DEVICE, "was forked from one with adapters open");
	REFUSED(dat_registry_list_providers(0, &count, NULL), DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_DEVICE);
	return 0;
}

static void connect_both(void)
{
	DAT_IA_ATTR attr;
	DAT_EVENT request;

	TRY(dat_psp_create(server.ia, SERVICE, server.evd, DAT_PSP_CONSUMER_FLAG, &psp));
	TRY(dat_ia_query(server.ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &attr, DAT_PROVIDER_FIELD_NONE, NULL));
	TRY(dat_ep_connect(client.ep, attr.ia_address_ptr, SERVICE, PATIENCE, 0, NULL, DAT_QOS_BEST_EFFORT,
			   DAT_CONNECT_DEFAULT_FLAG));
	request = event_of(&server, DAT_CONNECTION_REQUEST_EVENT);
	TRY(dat_cr_accept(request.event_data.cr_arrival_event_data.cr_handle, server.ep, 0, NULL));
	event_of(&client, DAT_CONNECTION_EVENT_ESTABLISHED);
	event_of(&server, DAT_CONNECTION_EVENT_ESTABLISHED);
}

/* Sends a message from the client to the server. */
static void send_one(void)
{
	DAT_LMR_TRIPLET from, to;
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_HANDLE theirs;
	char *inbox = aligned_alloc(4096, 4096);

	EXPECT(inbox != NULL);
	memset(inbox, 0, 4096);
	region.for_va = inbox;
	TRY(dat_lmr_create(server.ia, DAT_MEM_TYPE_VIRTUAL, region, 4096, server.pz, DAT_MEM_PRIV_ALL_FLAG, &theirs,
			   &to.lmr_context, NULL, NULL, NULL));
	to = local(to.lmr_context, inbox, 64);
	from = local(lmr_context, memory, 64);
	memset(memory, 'x', 64);
	TRY(dat_ep_post_recv(server.ep, 1, &to, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	TRY(dat_ep_post_send(client.ep, 1, &from, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	event_of(&server, DAT_DTO_COMPLETION_EVENT);
	event_of(&client, DAT_DTO_COMPLETION_EVENT);
	EXPECT(memcmp(inbox, memory, 64) == 0);
	TRY(dat_lmr_free(theirs));
	free(inbox);
}

int main(int argc, char **argv)
{
	DAT_REGION_DESCRIPTION region;
	DAT_IA_HANDLE ia;
	DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL;
	DAT_RETURN refused;
	const char *text;
	pid_t pid;
	int status;

	EXPECT(argc == 3);
	TRY(dat_last_error_text(&refused, &text));
	EXPECT(refused == 0 && *text == '\0');
	REFUSED(dat_ia_open((DAT_NAME_PTR) "sim:a,colour=red", 8, &async_evd, &ia), DAT_PROVIDER_NOT_FOUND,
		DAT_NAME_NOT_REGISTERED);
	TOLD(DAT_CLASS_ERROR | DAT_PROVIDER_NOT_FOUND | DAT_NAME_NOT_REGISTERED, "\"colour\" is no option; there are ");
	TRY(dat_last_error_text(NULL, NULL));
	printf("the reason is told\n");

	open_side(&client, argv[1]);
	open_side(&server, argv[2]);
	make_endpoint(&client);
	make_endpoint(&server);
	memory = aligned_alloc(4096, 4096);
	EXPECT(memory != NULL);
	memset(memory, 0, 4096);
	region.for_va = memory;
	TRY(dat_lmr_create(client.ia, DAT_MEM_TYPE_VIRTUAL, region, 4096, client.pz, DAT_MEM_PRIV_ALL_FLAG, &lmr,
			   &lmr_context, &rmr_context, NULL, NULL));
	connect_both();
	send_one();
	fflush(NULL);
	pid = fork();
	EXPECT(pid >= 0);
	if (pid == 0)
		_exit(child());
	send_one();
	EXPECT(waitpid(pid, &status, 0) == pid);
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	printf("the child is refused\n");
	send_one();
	TRY(dat_ia_close(client.ia, DAT_CLOSE_ABRUPT_FLAG));
	TRY(dat_ia_close(server.ia, DAT_CLOSE_ABRUPT_FLAG));
	free(memory);
	printf("the parent goes on\n");
	return 0;
}
