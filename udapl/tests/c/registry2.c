/*
 * A registry for providers of DAT 2.0, in place of libdat2.so.2: it stores the table of functions. Built as a library
 * of that name (cc -shared -Wl,-soname,libdat2.so.2), for programs that test the functions.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
static const void *table;

unsigned int dat_registry_add_provider(const void *provider, const void *info)
{
	(void)info;
	table = provider;
	return 0;
}

unsigned int dat_registry_remove_provider(const void *provider, const void *info)
{
	(void)info;
	if (table == provider)
		table = 0;
	return 0;
}

/* Returns the table that was registered last, unless it was removed. */
const void *registered_table(void)
{
	return table;
}
