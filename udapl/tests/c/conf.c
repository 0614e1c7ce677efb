/*
 * Opens adapters by the names of the dat.conf that DAT_OVERRIDE names. A process reads the registry only once, so
 * this program runs as a process of its own; "none" runs it without a file.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _POSIX_C_SOURCE 200809L
#include "side.h"

#include <unistd.h>

static const char conf[] =
	"# name    API  thread safety section library      provider parameters\n"
	"\n"
	"  \t # a comment behind blanks\n"
	"roce0     u1.2 nonthreadsafe default libdat.so.1  mlx5.0.1 \"sim:conf-plain\" \"\" # behind a record\n"
	"roce0     u1.2 nonthreadsafe default libdat.so.1  mlx5.0.1 \"sim:conf-twice\" \"\"\n"
	"roce0     u1.2 threadsafe    default libdat.so    mlx5.0.1 \"sim:conf-threads\" \"the platform's\"\n"
	"\"two words\"\tu1.2\tnonthreadsafe\tdefault\t/usr/lib/libdat.so.1\tmlx5.0.1\t"
	"\"sim:conf-\\\"quoted\\\",address=192.0.2.7\"\t\"\"\n"
	"sim:conf-named u1.2 nonthreadsafe default libdat.so mlx5.0.1 \"\" \"\"\n"
	"sim:conf-alias u1.2 nonthreadsafe default libdat.so mlx5.0.1 \"sim:conf-other\" \"\"\n"
	"kernel    k1.2 nonthreadsafe default    libdat.so mlx5.0.1 \"sim:conf-never\" \"\"\n"
	"aside     u1.2 nonthreadsafe nondefault libdat.so mlx5.0.1 \"sim:conf-never\" \"\"\n"
	"older     u1.1 nonthreadsafe default    libdat.so mlx5.0.1 \"sim:conf-older\" \"\"\n"
	"newer     u1.9 nonthreadsafe default    libdat.so mlx5.0.1 \"sim:conf-newest\" \"\"\n"
	"newer     u1.3 nonthreadsafe default    libdat.so mlx5.0.1 \"sim:conf-newer\" \"\"\n"
	"newer     u1.0 nonthreadsafe default    libdat.so mlx5.0.1 \"sim:conf-older\" \"\"\n"
	"second    u2.0 threadsafe    default    libdat.so mlx5.0.1 \"sim:conf-never\" \"\"\n"
	"foreign   u1.2 nonthreadsafe default    libdaplofa.so.2 dapl.1.2 \"mlx5_0 1\" \"\"\n"
	"nowhere   u1.2 nonthreadsafe default    libdat.so mlx5.0.1 \"no such device\" \"\"\n"
	"short     u1.2 nonthreadsafe default    libdat.so mlx5.0.1 \"sim:conf-never\"\n"
	"long      u1.2 nonthreadsafe default    libdat.so mlx5.0.1 \"sim:conf-never\" \"\" more\n"
	"open      u1.2 nonthreadsafe default    libdat.so mlx5.0.1 \"sim:conf-never\" \"\n"
	"versions  u1.  nonthreadsafe default    libdat.so mlx5.0.1 \"sim:conf-never\" \"\"\n"
	"versions  1.2  nonthreadsafe default    libdat.so mlx5.0.1 \"sim:conf-never\" \"\"\n"
	"versions  u1.2 nonthreadsafe default    libdat.so mlx5     \"sim:conf-never\" \"\"\n"
	"versions  u1.2 safe          default    libdat.so mlx5.0.1 \"sim:conf-never\" \"\"\n";

/* The listed records, in order. Malformed, kernel, non-default and duplicate records are not listed. */
static const DAT_PROVIDER_INFO listed[] = {
	{"roce0", 1, 2, DAT_FALSE},	     {"roce0", 1, 2, DAT_TRUE},	       {"two words", 1, 2, DAT_FALSE},
	{"sim:conf-named", 1, 2, DAT_FALSE}, {"sim:conf-alias", 1, 2, DAT_FALSE}, {"older", 1, 1, DAT_FALSE},
	{"newer", 1, 9, DAT_FALSE},	     {"newer", 1, 3, DAT_FALSE},       {"newer", 1, 0, DAT_FALSE},
	{"second", 2, 0, DAT_TRUE},	     {"foreign", 1, 2, DAT_FALSE},     {"nowhere", 1, 2, DAT_FALSE},
};
#define LISTED ((DAT_COUNT)(sizeof listed / sizeof listed[0]))

static void list(void)
{
	DAT_PROVIDER_INFO found[LISTED + 1], *places[LISTED + 1];
	DAT_COUNT count = -1, at, room;

	for (at = 0; at <= LISTED; at++) {
		memset(&found[at], 0x5a, sizeof found[at]);
		places[at] = &found[at];
	}
	/* A list that is too short is not written; the call returns the length needed. */
	for (room = 0; room < LISTED; room++) {
		count = -1;
		REFUSED(dat_registry_list_providers(room, &count, room ? places : NULL), DAT_INVALID_PARAMETER,
			DAT_INVALID_ARG1);
		EXPECT(count == LISTED);
		EXPECT(found[0].ia_name[0] == 0x5a);
	}
	REFUSED(dat_registry_list_providers(-1, &count, places), DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
	REFUSED(dat_registry_list_providers(LISTED, NULL, places), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	REFUSED(dat_registry_list_providers(LISTED, &count, NULL), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
	for (room = LISTED; room <= LISTED + 1; room++) {
		count = -1;
		TRY(dat_registry_list_providers(room, &count, places));
		EXPECT(count == LISTED);
		for (at = 0; at < LISTED; at++) {
			EXPECT(strcmp(found[at].ia_name, listed[at].ia_name) == 0);
			EXPECT(found[at].dapl_version_major == listed[at].dapl_version_major);
			EXPECT(found[at].dapl_version_minor == listed[at].dapl_version_minor);
			EXPECT(found[at].is_thread_safe == listed[at].is_thread_safe);
		}
		EXPECT(found[LISTED].ia_name[0] == 0x5a);
	}
	puts("listed");
}

static DAT_RETURN open_as(const char *name, DAT_UINT32 major, DAT_UINT32 minor, DAT_BOOLEAN thread_safe,
			  DAT_IA_HANDLE *ia)
{
	DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL;

	return dat_ia_openv((DAT_NAME_PTR)name, 8, &async_evd, ia, major, minor, thread_safe);
}

/* Opens an adapter, checks its device, and closes it. */
static void leads_to(const char *name, DAT_UINT32 minor, DAT_BOOLEAN thread_safe, const char *device)
{
	DAT_IA_HANDLE ia;
	DAT_IA_ATTR attr;
	DAT_PROVIDER_ATTR provider;

	TRY(open_as(name, 1, minor, thread_safe, &ia));
	TRY(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &attr, DAT_PROVIDER_FIELD_ALL, &provider));
	if (strcmp(attr.adapter_name, device))
		fprintf(stderr, "%s leads to %s\n", name, attr.adapter_name);
	EXPECT(strcmp(attr.adapter_name, device) == 0);
	EXPECT(provider.is_thread_safe == thread_safe);
	TRY(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
}

static void opens(void)
{
	DAT_IA_HANDLE plain, threads;
	int again;

	for (again = 0; again < 2; again++) {
		leads_to("roce0", 2, DAT_FALSE, "sim:conf-plain");
		leads_to("roce0", 2, DAT_TRUE, "sim:conf-threads");
		/* A larger minor version serves a request for a smaller one; of several, the smallest is used. */
		leads_to("roce0", 0, DAT_FALSE, "sim:conf-plain");
		leads_to("newer", 0, DAT_FALSE, "sim:conf-older");
		leads_to("newer", 1, DAT_FALSE, "sim:conf-newer");
		leads_to("newer", 3, DAT_FALSE, "sim:conf-newer");
		leads_to("newer", 4, DAT_FALSE, "sim:conf-newest");
		leads_to("older", 1, DAT_FALSE, "sim:conf-older");
		leads_to("two words", 2, DAT_FALSE, "sim:conf-\"quoted\"");
		/* Without parameters the record's name is the device; with them the name can look like anything. */
		leads_to("sim:conf-named", 2, DAT_FALSE, "sim:conf-named");
		leads_to("sim:conf-alias", 2, DAT_FALSE, "sim:conf-other");
		/* A name without a record is a device. */
		leads_to("sim:conf-device", 2, DAT_TRUE, "sim:conf-device");
	}
	/* Two records of one name are two adapters, which can be open at the same time. */
	TRY(open_as("roce0", 1, 2, DAT_FALSE, &plain));
	TRY(open_as("roce0", 1, 2, DAT_TRUE, &threads));
	EXPECT(plain != threads);
	TRY(dat_ia_close(plain, DAT_CLOSE_GRACEFUL_FLAG));
	TRY(dat_ia_close(threads, DAT_CLOSE_GRACEFUL_FLAG));
	puts("opened");
}

static void misses(void)
{
	static const struct miss {
		const char *name;
		DAT_UINT32 major, minor;
		DAT_BOOLEAN thread_safe;
		DAT_RETURN type, subtype;
	} misses[] = {
		{"nobody", 1, 2, DAT_FALSE, DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED},
		{"kernel", 1, 2, DAT_FALSE, DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED},
		{"aside", 1, 2, DAT_FALSE, DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED},
		{"foreign", 1, 2, DAT_FALSE, DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED},
		{"short", 1, 2, DAT_FALSE, DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED},
		{"versions", 1, 2, DAT_FALSE, DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED},
		{"ROCE0", 1, 2, DAT_FALSE, DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED},
		/* The record's device does not exist. */
		{"nowhere", 1, 2, DAT_FALSE, DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED},
		{"second", 1, 2, DAT_TRUE, DAT_PROVIDER_NOT_FOUND, DAT_MAJOR_NOT_FOUND},
		{"roce0", 2, 0, DAT_FALSE, DAT_PROVIDER_NOT_FOUND, DAT_MAJOR_NOT_FOUND},
		{"roce0", 0, 2, DAT_FALSE, DAT_PROVIDER_NOT_FOUND, DAT_MAJOR_NOT_FOUND},
		{"two words", 1, 2, DAT_TRUE, DAT_PROVIDER_NOT_FOUND, DAT_THREAD_SAFETY_NOT_FOUND},
		{"older", 1, 2, DAT_FALSE, DAT_PROVIDER_NOT_FOUND, DAT_MINOR_NOT_FOUND},
		{"roce0", 1, 3, DAT_TRUE, DAT_PROVIDER_NOT_FOUND, DAT_MINOR_NOT_FOUND},
		/* Devices without a record have DAT 1.0 to 1.2, thread safe or not. */
		{"sim:conf-device", 1, 3, DAT_FALSE, DAT_PROVIDER_NOT_FOUND, DAT_MINOR_NOT_FOUND},
		{"sim:conf-device", 2, 0, DAT_FALSE, DAT_PROVIDER_NOT_FOUND, DAT_MAJOR_NOT_FOUND},
		{"", 1, 2, DAT_FALSE, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1},
		{NULL, 1, 2, DAT_FALSE, DAT_INVALID_PARAMETER, DAT_INVALID_ARG1},
	};
	char name[DAT_NAME_MAX_LENGTH + 1];
	DAT_IA_HANDLE ia = DAT_HANDLE_NULL;
	size_t at;

	for (at = 0; at < sizeof misses / sizeof misses[0]; at++) {
		const struct miss *miss = &misses[at];
		DAT_RETURN answer = open_as(miss->name, miss->major, miss->minor, miss->thread_safe, &ia);

		if (answer != (DAT_CLASS_ERROR | miss->type | miss->subtype))
			fprintf(stderr, "%s %u.%u: 0x%08x\n", miss->name, miss->major, miss->minor, answer);
		EXPECT(answer == (DAT_CLASS_ERROR | miss->type | miss->subtype));
		EXPECT(ia == DAT_HANDLE_NULL);
	}
	memset(name, 'x', DAT_NAME_MAX_LENGTH);
	name[DAT_NAME_MAX_LENGTH] = 0;
	REFUSED(open_as(name, 1, 2, DAT_FALSE, &ia), DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
	name[DAT_NAME_MAX_LENGTH - 1] = 0;
	REFUSED(open_as(name, 1, 2, DAT_FALSE, &ia), DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED);
	puts("refused");
}

/* If the named file does not exist, listing fails, and devices can be opened. */
static void without_its_file(void)
{
	DAT_PROVIDER_INFO info, *place = &info;
	DAT_COUNT count = -1;
	DAT_IA_HANDLE ia = DAT_HANDLE_NULL;

	setenv("DAT_OVERRIDE", "/nowhere/dat.conf", 1);
	answered(dat_registry_list_providers(1, &count, &place), DAT_CLASS_ERROR | DAT_INTERNAL_ERROR, "list", __LINE__);
	EXPECT(count == 0);
	leads_to("sim:conf-device", 2, DAT_FALSE, "sim:conf-device");
	REFUSED(open_as("roce0", 1, 2, DAT_FALSE, &ia), DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED);
	puts("nothing listed");
}

int main(int count, char **arguments)
{
	char path[] = "/tmp/dat-conf-XXXXXX";
	int file;

	if (count > 1 && strcmp(arguments[1], "none") == 0) {
		without_its_file();
		return 0;
	}
	file = mkstemp(path);
	EXPECT(file >= 0);
	EXPECT(write(file, conf, sizeof conf - 1) == (ssize_t)(sizeof conf - 1));
	EXPECT(close(file) == 0);
	EXPECT(setenv("DAT_OVERRIDE", path, 1) == 0);
	list();
	/* The file was read, and is not read again. */
	EXPECT(unlink(path) == 0);
	opens();
	misses();
	return 0;
}
