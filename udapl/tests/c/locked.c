/*
 * A program that locks its memory, as storage daemons do: unused parts of the handle tables take no memory.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include "side.h"

#include <dlfcn.h>
#include <errno.h>
#include <sys/mman.h>

/* Returns the resident KiB of the library's zero-initialized variables: the anonymous mapping after its file. */
static long resident(void)
{
	char line[512], path[256];
	unsigned long from, to, base, inode;
	long all = 0, part;
	int counts = 0;
	Dl_info library;
	FILE *maps = fopen("/proc/self/smaps", "r");

	EXPECT(maps != NULL);
	EXPECT(dladdr((void *)dat_ia_openv, &library) != 0);
	base = (unsigned long)library.dli_fbase;
	while (fgets(line, sizeof line, maps)) {
		path[0] = 0;
		if (sscanf(line, "%lx-%lx %*s %*x %*s %lu %255s", &from, &to, &inode, path) >= 3)
			counts = inode == 0 && from >= base && from < base + (256ul << 20);
		else if (counts && sscanf(line, "Rss: %ld kB", &part) == 1)
			all += part;
	}
	fclose(maps);
	return all;
}

int main(void)
{
	struct side side;
	long before, after;

	if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) {
		printf("left out: mlockall: %s\n", strerror(errno));
		return 0;
	}
	before = resident();
	open_side(&side, "sim:locked");
	after = resident();
	fprintf(stderr, "locked: %ld KiB before the first adapter is open, %ld KiB then\n", before, after);
	/* The resident tables: all of them before, and afterwards some pages, which may be huge pages. */
	EXPECT(before > 64 << 10);
	EXPECT(after < 32 << 10);
	close_side(&side);
	puts("locked, and small");
	return 0;
}
