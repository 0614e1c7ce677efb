/*
 * Providers of other libraries in the registry: a program that registers its own, and a library that dat.conf names.
 *
 * providers DIRECTORY: the folder of libprovider.so, in which dat.conf is written.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#define INCLUDED
#include "provider.c"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define INVALID(kind) (DAT_CLASS_ERROR | DAT_INVALID_HANDLE | DAT_INVALID_HANDLE_##kind)

static void expect_at(int line, int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "line %d, not so: %s (last call: %s)\n", line, what, their_record.call);
		exit(1);
	}
}

#define EXPECT(what) expect_at(__LINE__, (what), #what)

static DAT_PROVIDER_INFO info(const char *name, DAT_UINT32 minor)
{
	DAT_PROVIDER_INFO info = {.dapl_version_major = 1, .dapl_version_minor = minor, .is_thread_safe = DAT_TRUE};

	strncpy(info.ia_name, name, sizeof(info.ia_name) - 1);
	return info;
}

static DAT_RETURN open_ia(const char *name, DAT_IA_HANDLE *ia)
{
	DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL;

	return dat_ia_openv((DAT_NAME_PTR)name, 8, &async_evd, ia, 1, 2, DAT_TRUE);
}

/* Checks that a call arrived with every argument, and that its code was returned. */
static void arrived(int line, DAT_RETURN answer, const char *call, const uint64_t *words, size_t bytes)
{
	expect_at(line, answer == (DAT_CLASS_WARNING | their_record.calls), "the provider's answer");
	expect_at(line, strcmp(their_record.call, call) == 0, call);
	expect_at(line, memcmp(their_record.words, words, bytes) == 0, "the arguments");
}

static unsigned reached;

#define REACHES(name, arguments, ...) \
	do { \
		const uint64_t words[] = {__VA_ARGS__}; \
		arrived(__LINE__, dat_##name arguments, #name, words, sizeof(words)); \
		reached++; \
	} while (0)

static void nobody(DAT_PVOID data, DAT_EVD_HANDLE evd)
{
	(void)data;
	(void)evd;
}

static void every_call_reaches_the_provider_of_its_handle(DAT_HANDLE handle, DAT_HANDLE second)
{
	const DAT_OS_WAIT_PROXY_AGENT agent = {(DAT_PVOID)0x201, nobody};
	const DAT_REGION_DESCRIPTION region = {.for_shared_memory = {(DAT_PVOID)0x301, (DAT_LMR_COOKIE)0x302}};
	const uint64_t object = W(handle), other = W(second);

	reached = 0;
	REACHES(ia_query, (handle, (void *)0x101, 0x102, (void *)0x103, 0x104, (void *)0x105),
		object, 0x101, 0x102, 0x103, 0x104, 0x105);
	REACHES(set_consumer_context, (handle, (DAT_CONTEXT){.as_64 = 0x101}), object, 0x101);
	REACHES(get_consumer_context, (handle, (void *)0x101), object, 0x101);
	REACHES(get_handle_type, (handle, (void *)0x101), object, 0x101);
	REACHES(cno_create, (handle, agent, (void *)0x102), object, 0x201, W(agent.proxy_agent_func), 0x102);
	REACHES(cno_modify_agent, (handle, agent), object, 0x201, W(agent.proxy_agent_func));
	REACHES(cno_query, (handle, 0x101, (void *)0x102), object, 0x101, 0x102);
	REACHES(cno_free, (handle), object);
	REACHES(cno_wait, (handle, 0x101, (void *)0x102), object, 0x101, 0x102);
	REACHES(cr_query, (handle, 0x101, (void *)0x102), object, 0x101, 0x102);
	REACHES(cr_accept, (handle, second, 0x102, (void *)0x103), object, other, 0x102, 0x103);
	REACHES(cr_reject, (handle), object);
	REACHES(cr_handoff, (handle, 0x101), object, 0x101);
	REACHES(evd_create, (handle, 0x101, second, 0x103, (void *)0x104), object, 0x101, other, 0x103, 0x104);
	REACHES(evd_query, (handle, 0x101, (void *)0x102), object, 0x101, 0x102);
	REACHES(evd_modify_cno, (handle, second), object, other);
	REACHES(evd_enable, (handle), object);
	REACHES(evd_disable, (handle), object);
	REACHES(evd_wait, (handle, 0x101, 0x102, (void *)0x103, (void *)0x104), object, 0x101, 0x102, 0x103, 0x104);
	REACHES(evd_resize, (handle, 0x101), object, 0x101);
	REACHES(evd_post_se, (handle, (void *)0x101), object, 0x101);
	REACHES(evd_dequeue, (handle, (void *)0x101), object, 0x101);
	REACHES(evd_free, (handle), object);
	REACHES(ep_create, (handle, second, second, second, second, (void *)0x105, (void *)0x106),
		object, other, other, other, other, 0x105, 0x106);
	REACHES(ep_query, (handle, 0x101, (void *)0x102), object, 0x101, 0x102);
	REACHES(ep_modify, (handle, 0x101, (void *)0x102), object, 0x101, 0x102);
	REACHES(ep_connect, (handle, (void *)0x101, 0x102, 0x103, 0x104, (void *)0x105, 0x106, 0x107),
		object, 0x101, 0x102, 0x103, 0x104, 0x105, 0x106, 0x107);
	REACHES(ep_dup_connect, (handle, second, 0x102, 0x103, (void *)0x104, 0x105),
		object, other, 0x102, 0x103, 0x104, 0x105);
	REACHES(ep_disconnect, (handle, 0x101), object, 0x101);
	REACHES(ep_post_send, (handle, 0x101, (void *)0x102, (DAT_CONTEXT){.as_64 = 0x103}, 0x104),
		object, 0x101, 0x102, 0x103, 0x104);
	REACHES(ep_post_recv, (handle, 0x101, (void *)0x102, (DAT_CONTEXT){.as_64 = 0x103}, 0x104),
		object, 0x101, 0x102, 0x103, 0x104);
	REACHES(ep_post_rdma_read, (handle, 0x101, (void *)0x102, (DAT_CONTEXT){.as_64 = 0x103}, (void *)0x104,
		0x105),
		object, 0x101, 0x102, 0x103, 0x104, 0x105);
	REACHES(ep_post_rdma_write, (handle, 0x101, (void *)0x102, (DAT_CONTEXT){.as_64 = 0x103}, (void *)0x104,
		0x105),
		object, 0x101, 0x102, 0x103, 0x104, 0x105);
	REACHES(ep_get_status, (handle, (void *)0x101, (void *)0x102, (void *)0x103), object, 0x101, 0x102, 0x103);
	REACHES(ep_free, (handle), object);
	REACHES(lmr_create, (handle, 0x101, region, 0x103, second, 0x105, (void *)0x106, (void *)0x107,
		(void *)0x108, (void *)0x109, (void *)0x10a),
		object, 0x101, 0x301, 0x302, 0x103, other, 0x105, 0x106, 0x107, 0x108, 0x109, 0x10a);
	REACHES(lmr_query, (handle, 0x101, (void *)0x102), object, 0x101, 0x102);
	REACHES(lmr_free, (handle), object);
	REACHES(rmr_create, (handle, (void *)0x101), object, 0x101);
	REACHES(rmr_query, (handle, 0x101, (void *)0x102), object, 0x101, 0x102);
	REACHES(rmr_bind, (handle, (void *)0x101, 0x102, second, (DAT_CONTEXT){.as_64 = 0x104}, 0x105,
		(void *)0x106),
		object, 0x101, 0x102, other, 0x104, 0x105, 0x106);
	REACHES(rmr_free, (handle), object);
	REACHES(psp_create, (handle, 0x101, second, 0x103, (void *)0x104), object, 0x101, other, 0x103, 0x104);
	REACHES(psp_query, (handle, 0x101, (void *)0x102), object, 0x101, 0x102);
	REACHES(psp_free, (handle), object);
	REACHES(rsp_create, (handle, 0x101, second, second, (void *)0x104), object, 0x101, other, other, 0x104);
	REACHES(rsp_query, (handle, 0x101, (void *)0x102), object, 0x101, 0x102);
	REACHES(rsp_free, (handle), object);
	REACHES(pz_create, (handle, (void *)0x101), object, 0x101);
	REACHES(pz_query, (handle, 0x101, (void *)0x102), object, 0x101, 0x102);
	REACHES(pz_free, (handle), object);
	REACHES(psp_create_any, (handle, (void *)0x101, second, 0x103, (void *)0x104),
		object, 0x101, other, 0x103, 0x104);
	REACHES(ep_reset, (handle), object);
	REACHES(evd_set_unwaitable, (handle), object);
	REACHES(evd_clear_unwaitable, (handle), object);
	REACHES(lmr_sync_rdma_read, (handle, (void *)0x101, 0x102), object, 0x101, 0x102);
	REACHES(lmr_sync_rdma_write, (handle, (void *)0x101, 0x102), object, 0x101, 0x102);
	REACHES(ep_create_with_srq, (handle, second, second, second, second, second, (void *)0x106, (void *)0x107),
		object, other, other, other, other, other, 0x106, 0x107);
	REACHES(ep_recv_query, (handle, (void *)0x101, (void *)0x102), object, 0x101, 0x102);
	REACHES(ep_set_watermark, (handle, 0x101, 0x102), object, 0x101, 0x102);
	REACHES(srq_create, (handle, second, (void *)0x102, (void *)0x103), object, other, 0x102, 0x103);
	REACHES(srq_free, (handle), object);
	REACHES(srq_post_recv, (handle, 0x101, (void *)0x102, (DAT_CONTEXT){.as_64 = 0x103}),
		object, 0x101, 0x102, 0x103);
	REACHES(srq_query, (handle, 0x101, (void *)0x102), object, 0x101, 0x102);
	REACHES(srq_resize, (handle, 0x101), object, 0x101);
	REACHES(srq_set_lw, (handle, 0x101), object, 0x101);
	/* All functions of the table but ia_open and ia_close. */
	EXPECT(reached == (sizeof(struct dat_provider) - 2 * sizeof(void *)) / sizeof(void *) - 2);
}

static void posts_of_one_segment_without_flags_too(DAT_EP_HANDLE ep)
{
	DAT_LMR_TRIPLET local = {.segment_length = 1};
	const DAT_RMR_TRIPLET remote = {.segment_length = 1};
	const DAT_DTO_COOKIE cookie = {.as_64 = 7};

	reached = 0;
	REACHES(ep_post_send, (ep, 1, &local, cookie, 0), W(ep), 1, W(&local), 7, 0);
	REACHES(ep_post_recv, (ep, 1, &local, cookie, 0), W(ep), 1, W(&local), 7, 0);
	REACHES(ep_post_rdma_read, (ep, 1, &local, cookie, &remote, 0), W(ep), 1, W(&local), 7, W(&remote), 0);
	REACHES(ep_post_rdma_write, (ep, 1, &local, cookie, &remote, 0), W(ep), 1, W(&local), 7, W(&remote), 0);
}

static void handles_of_others_are_no_handles(DAT_IA_HANDLE theirs, DAT_IA_HANDLE ours)
{
	const unsigned calls = their_record.calls;
	char *gone = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct object stranger = {0};
	DAT_PZ_HANDLE pz, our_pz;
	DAT_EVD_HANDLE evd;
	DAT_EP_HANDLE ep;

	EXPECT(gone != MAP_FAILED);
	EXPECT(dat_pz_create(gone, &pz) == INVALID(IA));
	munmap(gone, 4096);
	EXPECT(dat_pz_create(gone, &pz) == INVALID(IA));
	EXPECT(dat_pz_create(&stranger, &pz) == INVALID(IA));
	EXPECT(dat_pz_create((char *)theirs + 2, &pz) == INVALID(IA));
	EXPECT(dat_pz_create((DAT_IA_HANDLE)0x10, &pz) == INVALID(IA));
	EXPECT(dat_pz_create(NULL, &pz) == INVALID(IA));
	EXPECT(dat_ep_free((DAT_EP_HANDLE)0x7fffffffffffff8) == INVALID(EP));

	/* The provider's handles among the arguments of a call on our handle, and the other way round. */
	EXPECT(dat_pz_create(ours, &our_pz) == DAT_SUCCESS);
	EXPECT(dat_evd_create(ours, 8, theirs, DAT_EVD_DTO_FLAG, &evd) == INVALID(CNO));
	evd = our_pz;
	EXPECT(dat_ia_openv("inside", 8, &evd, &ep, 1, 2, DAT_TRUE) == INVALID(EVD_ASYNC));
	EXPECT(dat_ep_create(ours, theirs, NULL, NULL, NULL, NULL, &ep) == INVALID(PZ));
	EXPECT(dat_ep_create(theirs, our_pz, NULL, NULL, NULL, NULL, &ep) == INVALID(PZ));
	EXPECT(dat_ep_create(theirs, NULL, our_pz, NULL, NULL, NULL, &ep) == INVALID(EVD_RECV));
	EXPECT(dat_ep_create(theirs, NULL, NULL, (DAT_EVD_HANDLE)64, NULL, NULL, &ep) == INVALID(EVD_REQUEST));
	EXPECT(dat_ep_create(theirs, NULL, NULL, NULL, &stranger, NULL, &ep) == INVALID(EVD_CONN));
	EXPECT(dat_pz_free(our_pz) == DAT_SUCCESS);
	EXPECT(their_record.calls == calls);
}

static void an_entry_is_added_and_removed_once_and_kept_while_it_is_open(void)
{
	const DAT_PROVIDER_INFO name = info("inside", 2), other = info("outside", 2), far = info("inside", 3);
	const DAT_PROVIDER_INFO old = info("inside", 0);
	DAT_PROVIDER_INFO second = name;
	struct dat_provider another = their_provider;
	DAT_IA_HANDLE first_open, second_open, ours;

	EXPECT(open_ia("inside", &first_open) == (DAT_CLASS_ERROR | DAT_PROVIDER_NOT_FOUND | DAT_NAME_NOT_REGISTERED));
	EXPECT(DAT_GET_TYPE(dat_registry_add_provider(NULL, &name)) == DAT_INVALID_PARAMETER);
	EXPECT(DAT_GET_TYPE(dat_registry_add_provider(&their_provider, NULL)) == DAT_INVALID_PARAMETER);
	memset(second.ia_name, 'n', sizeof(second.ia_name));
	EXPECT(DAT_GET_TYPE(dat_registry_add_provider(&their_provider, &second)) == DAT_INVALID_PARAMETER);
	second = info("", 2);
	EXPECT(DAT_GET_TYPE(dat_registry_add_provider(&their_provider, &second)) == DAT_INVALID_PARAMETER);
	second = name;
	second.dapl_version_major = 2;
	EXPECT(DAT_GET_TYPE(dat_registry_add_provider(&their_provider, &second)) == DAT_INVALID_PARAMETER);
	EXPECT(dat_registry_add_provider(&their_provider, &name) == DAT_SUCCESS);
	EXPECT(DAT_GET_TYPE(dat_registry_add_provider(&another, &name)) == DAT_PROVIDER_ALREADY_REGISTERED);
	EXPECT(dat_registry_add_provider(&their_provider, &far) == DAT_SUCCESS);

	EXPECT(open_ia("inside", &first_open) == DAT_SUCCESS);
	EXPECT(strcmp((const char *)their_record.words[0], "inside") == 0 && their_record.words[1] == 8);
	EXPECT(open_ia("inside", &second_open) == DAT_SUCCESS && second_open != first_open);
	EXPECT(open_ia("sim:providers", &ours) == DAT_SUCCESS);
	every_call_reaches_the_provider_of_its_handle(first_open, second_open);
	posts_of_one_segment_without_flags_too(first_open);
	handles_of_others_are_no_handles(first_open, ours);
	EXPECT(dat_ia_close(ours, DAT_CLOSE_GRACEFUL_FLAG) == DAT_SUCCESS);
	/* The table can also be registered for an older DAT. */
	EXPECT(dat_registry_add_provider(&their_provider, &old) == DAT_SUCCESS);
	EXPECT(dat_srq_free(first_open) == (DAT_CLASS_WARNING | their_record.calls));
	EXPECT(dat_registry_remove_provider(&their_provider, &old) == DAT_SUCCESS);

	EXPECT(DAT_GET_TYPE(dat_registry_remove_provider(&their_provider, &name)) == DAT_PROVIDER_IN_USE);
	EXPECT(dat_ia_close(first_open, DAT_CLOSE_ABRUPT_FLAG) == DAT_SUCCESS);
	EXPECT(their_record.words[1] == DAT_CLOSE_ABRUPT_FLAG);
	EXPECT(dat_ia_close(first_open, DAT_CLOSE_ABRUPT_FLAG) == INVALID(IA));
	EXPECT(DAT_GET_TYPE(dat_registry_remove_provider(&their_provider, &name)) == DAT_PROVIDER_IN_USE);
	EXPECT(dat_ia_close(second_open, DAT_CLOSE_GRACEFUL_FLAG) == DAT_SUCCESS);
	EXPECT(DAT_GET_TYPE(dat_registry_remove_provider(&another, &name)) == DAT_INVALID_PARAMETER);
	EXPECT(DAT_GET_TYPE(dat_registry_remove_provider(&their_provider, &other)) == DAT_INVALID_PARAMETER);
	EXPECT(dat_registry_remove_provider(&their_provider, &name) == DAT_SUCCESS);
	EXPECT(DAT_GET_TYPE(dat_registry_remove_provider(&their_provider, &name)) == DAT_INVALID_PARAMETER);

	/* The entry with the larger minor version is used. */
	EXPECT(open_ia("inside", &first_open) == DAT_SUCCESS);
	EXPECT(dat_ia_close(first_open, DAT_CLOSE_ABRUPT_FLAG) == DAT_SUCCESS);
	EXPECT(dat_registry_remove_provider(&their_provider, &far) == DAT_SUCCESS);
	EXPECT(DAT_GET_TYPE(open_ia("inside", &first_open)) == DAT_PROVIDER_NOT_FOUND);
}

/* A table of DAT 1.0 is not read beyond its end, and functions it lacks are not called. */
static void a_provider_of_an_older_dat_has_the_calls_of_its_time(void)
{
	const size_t bytes = offsetof(struct dat_provider, psp_create_any_func);
	const DAT_PROVIDER_INFO name = info("older", 0);
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct dat_provider *older = (struct dat_provider *)(pages + 4096 - bytes);
	DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL;
	struct object object;
	DAT_IA_HANDLE ia;

	EXPECT(pages != MAP_FAILED && munmap(pages + 4096, 4096) == 0);
	memcpy(older, &their_provider, bytes);
	older->pz_free_func = NULL;
	object.provider = older;
	EXPECT(dat_registry_add_provider(older, &name) == DAT_SUCCESS);
	EXPECT(dat_ia_openv("older", 8, &async_evd, &ia, 1, 0, DAT_TRUE) == DAT_SUCCESS);
	EXPECT(dat_ep_free(&object) == (DAT_CLASS_WARNING | their_record.calls));
	EXPECT(DAT_GET_TYPE(dat_ep_reset(&object)) == DAT_NOT_IMPLEMENTED);
	EXPECT(DAT_GET_TYPE(dat_srq_free(&object)) == DAT_NOT_IMPLEMENTED);
	EXPECT(DAT_GET_TYPE(dat_pz_free(&object)) == DAT_NOT_IMPLEMENTED);
	/* The older provider gets a handle made by the newer one. */
	DAT_HANDLE_SET_PROVIDER(ia, older);
	EXPECT(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG) == DAT_SUCCESS);
	EXPECT(dat_registry_remove_provider(older, &name) == DAT_SUCCESS);
	munmap(pages, 4096);
}

static void a_library_of_dat_conf_begins_with_the_first_adapter_and_ends_after_the_last(const char *library)
{
	DAT_IA_HANDLE first_open, second_open;
	struct record *record;
	void *loaded;

	EXPECT(dlopen(library, RTLD_NOW | RTLD_NOLOAD) == NULL);
	EXPECT(open_ia("elsewhere", &first_open) == DAT_SUCCESS);
	EXPECT(open_ia("elsewhere", &second_open) == DAT_SUCCESS);
	loaded = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
	EXPECT(loaded != NULL);
	record = dlsym(loaded, "their_record");
	EXPECT(record != NULL && record != &their_record);
	EXPECT(record->inits == 1 && strcmp(record->params, "its own \"words\"") == 0);
	EXPECT(strcmp(record->info.ia_name, "elsewhere") == 0 && record->info.dapl_version_minor == 2);
	EXPECT(record->info.is_thread_safe == DAT_TRUE);
	EXPECT(dat_pz_free(first_open) == (DAT_CLASS_WARNING | record->calls));
	EXPECT(dat_ia_close(first_open, DAT_CLOSE_ABRUPT_FLAG) == DAT_SUCCESS);
	EXPECT(record->finis == 0);
	EXPECT(dat_ia_close(second_open, DAT_CLOSE_ABRUPT_FLAG) == DAT_SUCCESS);
	EXPECT(record->finis == 1);
	EXPECT(dat_ia_close(second_open, DAT_CLOSE_ABRUPT_FLAG) == INVALID(IA));

	EXPECT(open_ia("elsewhere", &first_open) == DAT_SUCCESS);
	EXPECT(record->inits == 2);
	EXPECT(dat_ia_close(first_open, DAT_CLOSE_ABRUPT_FLAG) == DAT_SUCCESS);
	EXPECT(record->finis == 2);
	dlclose(loaded);
	EXPECT(DAT_GET_TYPE(open_ia("missing", &first_open)) == DAT_PROVIDER_NOT_FOUND);
	EXPECT(DAT_GET_TYPE(open_ia("no-provider", &first_open)) == DAT_PROVIDER_NOT_FOUND);
}

/* A library that opens other adapters, and one that opens its own: the latter fails and does not block for ever. */
static void a_provider_may_open_adapters_while_it_begins(const char *folder)
{
	char path[4096];
	struct record *record;
	DAT_IA_HANDLE ia;
	void *loaded;

	snprintf(path, sizeof(path), "%s/libprovider-2.so", folder);
	EXPECT(open_ia("layered", &ia) == DAT_SUCCESS);
	loaded = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	EXPECT(loaded != NULL);
	record = dlsym(loaded, "their_record");
	EXPECT(record->inits == 1 && record->answers[0] == DAT_SUCCESS);
	EXPECT(DAT_GET_TYPE(record->answers[1]) == DAT_PROVIDER_NOT_FOUND);
	EXPECT(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG) == DAT_SUCCESS);
	EXPECT(record->finis == 1);
	dlclose(loaded);
}

int main(int count, char **arguments)
{
	char library[4096], conf[4096];
	FILE *file;

	EXPECT(count == 2);
	snprintf(library, sizeof(library), "%s/libprovider.so", arguments[1]);
	snprintf(conf, sizeof(conf), "%s/dat.conf", arguments[1]);
	file = fopen(conf, "w");
	EXPECT(file != NULL);
	fprintf(file, "elsewhere u1.2 threadsafe default %s some.1.0 \"its own \\\"words\\\"\" \"\"\n", library);
	fprintf(file, "layered u1.2 threadsafe default %s/libprovider-2.so some.1.0 \"elsewhere layered\" \"\"\n", arguments[1]);
	fprintf(file, "missing u1.2 threadsafe default /nowhere/libprovider.so some.1.0 \"\" \"\"\n");
	fprintf(file, "no-provider u1.2 threadsafe default libm.so.6 some.1.0 \"\" \"\"\n");
	EXPECT(fclose(file) == 0);
	setenv("DAT_OVERRIDE", conf, 1);

	an_entry_is_added_and_removed_once_and_kept_while_it_is_open();
	a_provider_of_an_older_dat_has_the_calls_of_its_time();
	a_library_of_dat_conf_begins_with_the_first_adapter_and_ends_after_the_last(library);
	a_provider_may_open_adapters_while_it_begins(arguments[1]);
	puts("done");
	return 0;
}
