/*
 * Code shared by the programs in this folder: reporting a failed check, and one end of a connection.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef SIDE_H
#define SIDE_H

#include <dat/udat.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND 1000000
/* Limit of every wait. Long, so that no busy machine and no valgrind(1) exceeds it. */
#define PATIENCE (600 * SECOND)

static inline void answered(DAT_RETURN answer, DAT_RETURN expected, const char *call, int line)
{
	const char *major = "success", *minor = "";

	if (answer == expected)
		return;
	if (answer != DAT_SUCCESS)
		dat_strerror(answer, &major, &minor);
	fprintf(stderr, "line %d: %s: %s %s (0x%08x), not 0x%08x\n", line, call, major, minor, answer, expected);
	exit(1);
}

/* A call that must succeed. */
#define TRY(call) answered((call), DAT_SUCCESS, #call, __LINE__)
/* A call that must fail with this type and subtype. */
#define REFUSED(call, type, subtype) answered((call), DAT_CLASS_ERROR | (type) | (subtype), #call, __LINE__)

static inline void expect(int holds, const char *what, int line)
{
	if (holds)
		return;
	fprintf(stderr, "line %d: not so: %s\n", line, what);
	exit(1);
}

#define EXPECT(what) expect((what), #what, __LINE__)

/* One end. */
struct side {
	DAT_IA_HANDLE ia;
	DAT_EVD_HANDLE async_evd;
	DAT_PZ_HANDLE pz;
	DAT_EVD_HANDLE evd;
	DAT_EP_HANDLE ep;
};

static inline void open_side(struct side *side, const char *name)
{
	memset(side, 0, sizeof *side);
	side->async_evd = DAT_HANDLE_NULL;
	TRY(dat_ia_open((DAT_NAME_PTR)name, 8, &side->async_evd, &side->ia));
	TRY(dat_pz_create(side->ia, &side->pz));
	TRY(dat_evd_create(side->ia, 64, DAT_HANDLE_NULL,
			   DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG | DAT_EVD_CR_FLAG | DAT_EVD_SOFTWARE_FLAG,
			   &side->evd));
}

/* Makes an endpoint that can issue and answer RDMA Reads. */
static inline void make_endpoint(struct side *side)
{
	DAT_EP_PARAM param;

	TRY(dat_ep_create(side->ia, side->pz, side->evd, side->evd, side->evd, NULL, &side->ep));
	TRY(dat_ep_query(side->ep, DAT_EP_FIELD_ALL, &param));
	param.ep_attr.max_rdma_read_in = 4;
	param.ep_attr.max_rdma_read_out = 4;
	TRY(dat_ep_modify(side->ep, DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IN | DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT,
			  &param));
}

static inline void close_side(struct side *side)
{
	TRY(dat_evd_free(side->evd));
	TRY(dat_pz_free(side->pz));
	TRY(dat_ia_close(side->ia, DAT_CLOSE_GRACEFUL_FLAG));
}

static inline DAT_DTO_COOKIE cookie(DAT_UINT64 number)
{
	DAT_DTO_COOKIE cookie;

	cookie.as_64 = number;
	return cookie;
}

static inline DAT_LMR_TRIPLET local(DAT_LMR_CONTEXT context, const void *address, DAT_VLEN bytes)
{
	DAT_LMR_TRIPLET triplet = {0};

	triplet.lmr_context = context;
	triplet.virtual_address = (DAT_VADDR)(uintptr_t)address;
	triplet.segment_length = bytes;
	return triplet;
}

static inline DAT_RMR_TRIPLET remote(DAT_RMR_CONTEXT context, const void *address, DAT_VLEN bytes)
{
	DAT_RMR_TRIPLET triplet = {0};

	triplet.rmr_context = context;
	triplet.target_address = (DAT_VADDR)(uintptr_t)address;
	triplet.segment_length = bytes;
	return triplet;
}

/* Waits for the next event, which must be of this kind. */
static inline DAT_EVENT event_of(const struct side *side, DAT_EVENT_NUMBER number)
{
	DAT_EVENT event;
	DAT_COUNT left;
	DAT_RETURN answer = dat_evd_wait(side->evd, PATIENCE, 1, &event, &left);

	if (answer != DAT_SUCCESS)
		fprintf(stderr, "waited for event 0x%x\n", number);
	TRY(answer);
	if (event.event_number != number)
		fprintf(stderr, "event 0x%x, not 0x%x\n", event.event_number, number);
	EXPECT(event.event_number == number);
	EXPECT(event.evd_handle == side->evd);
	return event;
}

/* Waits for the completion of a DTO, which must be this one. */
static inline void completion(const struct side *side, DAT_UINT64 number, DAT_DTO_COMPLETION_STATUS status)
{
	DAT_EVENT event = event_of(side, DAT_DTO_COMPLETION_EVENT);
	DAT_DTO_COMPLETION_EVENT_DATA *done = &event.event_data.dto_completion_event_data;

	EXPECT(done->user_cookie.as_64 == number);
	EXPECT(done->status == status);
}

static inline DAT_IA_ADDRESS_PTR address_of(const struct side *side)
{
	DAT_IA_ATTR attr;

	TRY(dat_ia_query(side->ia, NULL, DAT_IA_FIELD_IA_ADDRESS_PTR, &attr, DAT_PROVIDER_FIELD_NONE, NULL));
	return attr.ia_address_ptr;
}

#endif
