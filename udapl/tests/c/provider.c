/*
 * A provider of DAT 1.2 that records its calls and does nothing else, for tests of a registry. Built as a library (cc
 * -shared), or included.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <dat/dat_registry.h>

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define W(value) ((uint64_t)(value))

/* The last call, its arguments, and how the library was loaded. */
struct record {
	const char *call;
	uint64_t words[12];
	unsigned calls, inits, finis;
	DAT_PROVIDER_INFO info;
	char params[64];
	DAT_RETURN answers[2];
};

struct record their_record;

/* Any object. */
struct object {
	struct dat_provider *provider;
	int in_use;
};

static struct object objects[4];

/* Returns a code that no other code returns: a warning with the number of the call. */
static DAT_RETURN note(const char *call, const uint64_t *words, size_t count)
{
	their_record.call = call;
	memset(their_record.words, 0, sizeof(their_record.words));
	memcpy(their_record.words, words, count * sizeof(*words));
	return DAT_CLASS_WARNING | ++their_record.calls;
}

#define CALL(name, parameters, ...) \
	static DAT_RETURN their_##name parameters \
	{ \
		const uint64_t words[] = {__VA_ARGS__}; \
		return note(#name, words, sizeof(words) / sizeof(*words)); \
	}

CALL(ia_query, (DAT_IA_HANDLE a, DAT_EVD_HANDLE *b, DAT_IA_ATTR_MASK c, DAT_IA_ATTR *d, DAT_PROVIDER_ATTR_MASK e,
     DAT_PROVIDER_ATTR *f),
     W(a), W(b), W(c), W(d), W(e), W(f))
CALL(set_consumer_context, (DAT_HANDLE a, DAT_CONTEXT b),
     W(a), b.as_64)
CALL(get_consumer_context, (DAT_HANDLE a, DAT_CONTEXT *b),
     W(a), W(b))
CALL(get_handle_type, (DAT_HANDLE a, DAT_HANDLE_TYPE *b),
     W(a), W(b))
CALL(cno_create, (DAT_IA_HANDLE a, DAT_OS_WAIT_PROXY_AGENT b, DAT_CNO_HANDLE *c),
     W(a), W(b.instance_data), W(b.proxy_agent_func), W(c))
CALL(cno_modify_agent, (DAT_CNO_HANDLE a, DAT_OS_WAIT_PROXY_AGENT b),
     W(a), W(b.instance_data), W(b.proxy_agent_func))
CALL(cno_query, (DAT_CNO_HANDLE a, DAT_CNO_PARAM_MASK b, DAT_CNO_PARAM *c),
     W(a), W(b), W(c))
CALL(cno_free, (DAT_CNO_HANDLE a),
     W(a))
CALL(cno_wait, (DAT_CNO_HANDLE a, DAT_TIMEOUT b, DAT_EVD_HANDLE *c),
     W(a), W(b), W(c))
CALL(cr_query, (DAT_CR_HANDLE a, DAT_CR_PARAM_MASK b, DAT_CR_PARAM *c),
     W(a), W(b), W(c))
CALL(cr_accept, (DAT_CR_HANDLE a, DAT_EP_HANDLE b, DAT_COUNT c, const DAT_PVOID d),
     W(a), W(b), W(c), W(d))
CALL(cr_reject, (DAT_CR_HANDLE a),
     W(a))
CALL(cr_handoff, (DAT_CR_HANDLE a, DAT_CONN_QUAL b),
     W(a), W(b))
CALL(evd_create, (DAT_IA_HANDLE a, DAT_COUNT b, DAT_CNO_HANDLE c, DAT_EVD_FLAGS d, DAT_EVD_HANDLE *e),
     W(a), W(b), W(c), W(d), W(e))
CALL(evd_query, (DAT_EVD_HANDLE a, DAT_EVD_PARAM_MASK b, DAT_EVD_PARAM *c),
     W(a), W(b), W(c))
CALL(evd_modify_cno, (DAT_EVD_HANDLE a, DAT_CNO_HANDLE b),
     W(a), W(b))
CALL(evd_enable, (DAT_EVD_HANDLE a),
     W(a))
CALL(evd_disable, (DAT_EVD_HANDLE a),
     W(a))
CALL(evd_wait, (DAT_EVD_HANDLE a, DAT_TIMEOUT b, DAT_COUNT c, DAT_EVENT *d, DAT_COUNT *e),
     W(a), W(b), W(c), W(d), W(e))
CALL(evd_resize, (DAT_EVD_HANDLE a, DAT_COUNT b),
     W(a), W(b))
CALL(evd_post_se, (DAT_EVD_HANDLE a, const DAT_EVENT *b),
     W(a), W(b))
CALL(evd_dequeue, (DAT_EVD_HANDLE a, DAT_EVENT *b),
     W(a), W(b))
CALL(evd_free, (DAT_EVD_HANDLE a),
     W(a))
CALL(ep_create, (DAT_IA_HANDLE a, DAT_PZ_HANDLE b, DAT_EVD_HANDLE c, DAT_EVD_HANDLE d, DAT_EVD_HANDLE e,
     const DAT_EP_ATTR *f, DAT_EP_HANDLE *g),
     W(a), W(b), W(c), W(d), W(e), W(f), W(g))
CALL(ep_query, (DAT_EP_HANDLE a, DAT_EP_PARAM_MASK b, DAT_EP_PARAM *c),
     W(a), W(b), W(c))
CALL(ep_modify, (DAT_EP_HANDLE a, DAT_EP_PARAM_MASK b, const DAT_EP_PARAM *c),
     W(a), W(b), W(c))
CALL(ep_connect, (DAT_EP_HANDLE a, DAT_IA_ADDRESS_PTR b, DAT_CONN_QUAL c, DAT_TIMEOUT d, DAT_COUNT e,
     const DAT_PVOID f, DAT_QOS g, DAT_CONNECT_FLAGS h),
     W(a), W(b), W(c), W(d), W(e), W(f), W(g), W(h))
CALL(ep_dup_connect, (DAT_EP_HANDLE a, DAT_EP_HANDLE b, DAT_TIMEOUT c, DAT_COUNT d, const DAT_PVOID e, DAT_QOS f),
     W(a), W(b), W(c), W(d), W(e), W(f))
CALL(ep_disconnect, (DAT_EP_HANDLE a, DAT_CLOSE_FLAGS b),
     W(a), W(b))
CALL(ep_post_send, (DAT_EP_HANDLE a, DAT_COUNT b, DAT_LMR_TRIPLET *c, DAT_DTO_COOKIE d, DAT_COMPLETION_FLAGS e),
     W(a), W(b), W(c), d.as_64, W(e))
CALL(ep_post_recv, (DAT_EP_HANDLE a, DAT_COUNT b, DAT_LMR_TRIPLET *c, DAT_DTO_COOKIE d, DAT_COMPLETION_FLAGS e),
     W(a), W(b), W(c), d.as_64, W(e))
CALL(ep_post_rdma_read, (DAT_EP_HANDLE a, DAT_COUNT b, DAT_LMR_TRIPLET *c, DAT_DTO_COOKIE d,
     const DAT_RMR_TRIPLET *e, DAT_COMPLETION_FLAGS f),
     W(a), W(b), W(c), d.as_64, W(e), W(f))
CALL(ep_post_rdma_write, (DAT_EP_HANDLE a, DAT_COUNT b, DAT_LMR_TRIPLET *c, DAT_DTO_COOKIE d,
     const DAT_RMR_TRIPLET *e, DAT_COMPLETION_FLAGS f),
     W(a), W(b), W(c), d.as_64, W(e), W(f))
CALL(ep_get_status, (DAT_EP_HANDLE a, DAT_EP_STATE *b, DAT_BOOLEAN *c, DAT_BOOLEAN *d),
     W(a), W(b), W(c), W(d))
CALL(ep_free, (DAT_EP_HANDLE a),
     W(a))
CALL(lmr_create, (DAT_IA_HANDLE a, DAT_MEM_TYPE b, DAT_REGION_DESCRIPTION c, DAT_VLEN d, DAT_PZ_HANDLE e,
     DAT_MEM_PRIV_FLAGS f, DAT_LMR_HANDLE *g, DAT_LMR_CONTEXT *h, DAT_RMR_CONTEXT *i, DAT_VLEN *j, DAT_VADDR *k),
     W(a), W(b), W(c.for_shared_memory.virtual_address), W(c.for_shared_memory.shared_memory_id), W(d), W(e), W(f),
     W(g), W(h), W(i), W(j), W(k))
CALL(lmr_query, (DAT_LMR_HANDLE a, DAT_LMR_PARAM_MASK b, DAT_LMR_PARAM *c),
     W(a), W(b), W(c))
CALL(lmr_free, (DAT_LMR_HANDLE a),
     W(a))
CALL(rmr_create, (DAT_PZ_HANDLE a, DAT_RMR_HANDLE *b),
     W(a), W(b))
CALL(rmr_query, (DAT_RMR_HANDLE a, DAT_RMR_PARAM_MASK b, DAT_RMR_PARAM *c),
     W(a), W(b), W(c))
CALL(rmr_bind, (DAT_RMR_HANDLE a, const DAT_LMR_TRIPLET *b, DAT_MEM_PRIV_FLAGS c, DAT_EP_HANDLE d, DAT_RMR_COOKIE e,
     DAT_COMPLETION_FLAGS f, DAT_RMR_CONTEXT *g),
     W(a), W(b), W(c), W(d), e.as_64, W(f), W(g))
CALL(rmr_free, (DAT_RMR_HANDLE a),
     W(a))
CALL(psp_create, (DAT_IA_HANDLE a, DAT_CONN_QUAL b, DAT_EVD_HANDLE c, DAT_PSP_FLAGS d, DAT_PSP_HANDLE *e),
     W(a), W(b), W(c), W(d), W(e))
CALL(psp_query, (DAT_PSP_HANDLE a, DAT_PSP_PARAM_MASK b, DAT_PSP_PARAM *c),
     W(a), W(b), W(c))
CALL(psp_free, (DAT_PSP_HANDLE a),
     W(a))
CALL(rsp_create, (DAT_IA_HANDLE a, DAT_CONN_QUAL b, DAT_EP_HANDLE c, DAT_EVD_HANDLE d, DAT_RSP_HANDLE *e),
     W(a), W(b), W(c), W(d), W(e))
CALL(rsp_query, (DAT_RSP_HANDLE a, DAT_RSP_PARAM_MASK b, DAT_RSP_PARAM *c),
     W(a), W(b), W(c))
CALL(rsp_free, (DAT_RSP_HANDLE a),
     W(a))
CALL(pz_create, (DAT_IA_HANDLE a, DAT_PZ_HANDLE *b),
     W(a), W(b))
CALL(pz_query, (DAT_PZ_HANDLE a, DAT_PZ_PARAM_MASK b, DAT_PZ_PARAM *c),
     W(a), W(b), W(c))
CALL(pz_free, (DAT_PZ_HANDLE a),
     W(a))
CALL(psp_create_any, (DAT_IA_HANDLE a, DAT_CONN_QUAL *b, DAT_EVD_HANDLE c, DAT_PSP_FLAGS d, DAT_PSP_HANDLE *e),
     W(a), W(b), W(c), W(d), W(e))
CALL(ep_reset, (DAT_EP_HANDLE a),
     W(a))
CALL(evd_set_unwaitable, (DAT_EVD_HANDLE a),
     W(a))
CALL(evd_clear_unwaitable, (DAT_EVD_HANDLE a),
     W(a))
CALL(lmr_sync_rdma_read, (DAT_IA_HANDLE a, const DAT_LMR_TRIPLET *b, DAT_VLEN c),
     W(a), W(b), W(c))
CALL(lmr_sync_rdma_write, (DAT_IA_HANDLE a, const DAT_LMR_TRIPLET *b, DAT_VLEN c),
     W(a), W(b), W(c))
CALL(ep_create_with_srq, (DAT_IA_HANDLE a, DAT_PZ_HANDLE b, DAT_EVD_HANDLE c, DAT_EVD_HANDLE d, DAT_EVD_HANDLE e,
     DAT_SRQ_HANDLE f, const DAT_EP_ATTR *g, DAT_EP_HANDLE *h),
     W(a), W(b), W(c), W(d), W(e), W(f), W(g), W(h))
CALL(ep_recv_query, (DAT_EP_HANDLE a, DAT_COUNT *b, DAT_COUNT *c),
     W(a), W(b), W(c))
CALL(ep_set_watermark, (DAT_EP_HANDLE a, DAT_COUNT b, DAT_COUNT c),
     W(a), W(b), W(c))
CALL(srq_create, (DAT_IA_HANDLE a, DAT_PZ_HANDLE b, DAT_SRQ_ATTR *c, DAT_SRQ_HANDLE *d),
     W(a), W(b), W(c), W(d))
CALL(srq_free, (DAT_SRQ_HANDLE a),
     W(a))
CALL(srq_post_recv, (DAT_SRQ_HANDLE a, DAT_COUNT b, DAT_LMR_TRIPLET *c, DAT_DTO_COOKIE d),
     W(a), W(b), W(c), d.as_64)
CALL(srq_query, (DAT_SRQ_HANDLE a, DAT_SRQ_PARAM_MASK b, DAT_SRQ_PARAM *c),
     W(a), W(b), W(c))
CALL(srq_resize, (DAT_SRQ_HANDLE a, DAT_COUNT b),
     W(a), W(b))
CALL(srq_set_lw, (DAT_SRQ_HANDLE a, DAT_COUNT b),
     W(a), W(b))

static struct dat_provider their_provider;

static DAT_RETURN their_ia_open(const DAT_NAME_PTR name, DAT_COUNT qlen, DAT_EVD_HANDLE *async_evd, DAT_IA_HANDLE *ia)
{
	const uint64_t words[] = {W(name), W(qlen), W(async_evd)};

	note("ia_open", words, 3);
	for (size_t i = 0; i < sizeof(objects) / sizeof(*objects); i++) {
		if (!objects[i].in_use) {
			objects[i].in_use = 1;
			DAT_HANDLE_SET_PROVIDER(&objects[i], &their_provider);
			*ia = &objects[i];
			return DAT_SUCCESS;
		}
	}
	return DAT_CLASS_ERROR | DAT_INSUFFICIENT_RESOURCES;
}

/* Overwrites the closed adapter, as if another program used its memory. */
static DAT_RETURN their_ia_close(DAT_IA_HANDLE ia, DAT_CLOSE_FLAGS flags)
{
	const uint64_t words[] = {W(ia), W(flags)};

	note("ia_close", words, 2);
	memset(ia, 0, sizeof(struct object));
	return DAT_SUCCESS;
}

static struct dat_provider their_provider = {
	.device_name = "elsewhere",
	.ia_open_func = their_ia_open,
	.ia_query_func = their_ia_query,
	.ia_close_func = their_ia_close,
	.set_consumer_context_func = their_set_consumer_context,
	.get_consumer_context_func = their_get_consumer_context,
	.get_handle_type_func = their_get_handle_type,
	.cno_create_func = their_cno_create,
	.cno_modify_agent_func = their_cno_modify_agent,
	.cno_query_func = their_cno_query,
	.cno_free_func = their_cno_free,
	.cno_wait_func = their_cno_wait,
	.cr_query_func = their_cr_query,
	.cr_accept_func = their_cr_accept,
	.cr_reject_func = their_cr_reject,
	.cr_handoff_func = their_cr_handoff,
	.evd_create_func = their_evd_create,
	.evd_query_func = their_evd_query,
	.evd_modify_cno_func = their_evd_modify_cno,
	.evd_enable_func = their_evd_enable,
	.evd_disable_func = their_evd_disable,
	.evd_wait_func = their_evd_wait,
	.evd_resize_func = their_evd_resize,
	.evd_post_se_func = their_evd_post_se,
	.evd_dequeue_func = their_evd_dequeue,
	.evd_free_func = their_evd_free,
	.ep_create_func = their_ep_create,
	.ep_query_func = their_ep_query,
	.ep_modify_func = their_ep_modify,
	.ep_connect_func = their_ep_connect,
	.ep_dup_connect_func = their_ep_dup_connect,
	.ep_disconnect_func = their_ep_disconnect,
	.ep_post_send_func = their_ep_post_send,
	.ep_post_recv_func = their_ep_post_recv,
	.ep_post_rdma_read_func = their_ep_post_rdma_read,
	.ep_post_rdma_write_func = their_ep_post_rdma_write,
	.ep_get_status_func = their_ep_get_status,
	.ep_free_func = their_ep_free,
	.lmr_create_func = their_lmr_create,
	.lmr_query_func = their_lmr_query,
	.lmr_free_func = their_lmr_free,
	.rmr_create_func = their_rmr_create,
	.rmr_query_func = their_rmr_query,
	.rmr_bind_func = their_rmr_bind,
	.rmr_free_func = their_rmr_free,
	.psp_create_func = their_psp_create,
	.psp_query_func = their_psp_query,
	.psp_free_func = their_psp_free,
	.rsp_create_func = their_rsp_create,
	.rsp_query_func = their_rsp_query,
	.rsp_free_func = their_rsp_free,
	.pz_create_func = their_pz_create,
	.pz_query_func = their_pz_query,
	.pz_free_func = their_pz_free,
	.psp_create_any_func = their_psp_create_any,
	.ep_reset_func = their_ep_reset,
	.evd_set_unwaitable_func = their_evd_set_unwaitable,
	.evd_clear_unwaitable_func = their_evd_clear_unwaitable,
	.lmr_sync_rdma_read_func = their_lmr_sync_rdma_read,
	.lmr_sync_rdma_write_func = their_lmr_sync_rdma_write,
	.ep_create_with_srq_func = their_ep_create_with_srq,
	.ep_recv_query_func = their_ep_recv_query,
	.ep_set_watermark_func = their_ep_set_watermark,
	.srq_create_func = their_srq_create,
	.srq_free_func = their_srq_free,
	.srq_post_recv_func = their_srq_post_recv,
	.srq_query_func = their_srq_query,
	.srq_resize_func = their_srq_resize,
	.srq_set_lw_func = their_srq_set_lw,};

#ifndef INCLUDED
/* Opens and closes the adapters named by two words. */
static void open_two(const char *names)
{
	char name[2][32];

	if (sscanf(names, "%31s %31s %c", name[0], name[1], (char[1]){0}) != 2)
		return;
	for (int i = 0; i < 2; i++) {
		DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL;
		DAT_IA_HANDLE ia;

		their_record.answers[i] = dat_ia_openv(name[i], 8, &async_evd, &ia, 1, 2, DAT_TRUE);
		if (their_record.answers[i] == DAT_SUCCESS)
			dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG);
	}
}

void dat_provider_init(const DAT_PROVIDER_INFO *info, const char *params)
{
	their_record.inits++;
	their_record.info = *info;
	strncpy(their_record.params, params, sizeof(their_record.params) - 1);
	open_two(params);
	dat_registry_add_provider(&their_provider, info);
}

void dat_provider_fini(const DAT_PROVIDER_INFO *info)
{
	their_record.finis++;
	dat_registry_remove_provider(&their_provider, info);
}
#endif
