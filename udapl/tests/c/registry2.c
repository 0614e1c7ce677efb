/*
 * What a provider of DAT 2.0 needs of its registry, libdat2.so.2: somebody who takes its table of functions. Built as a library
 * of that name (cc -shared -Wl,-soname,libdat2.so.2), for programs that look what the functions do.
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

/* The table that was registered last and is not yet removed. */
const void *registered_table(void)
{
	return table;
}
