/*
 * The registry's interface for providers.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef DAT_REGISTRY_H
#define DAT_REGISTRY_H

#include <dat/udat.h>
#include <dat/udat_redirection.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * From dat_registry_add_provider until dat_registry_remove_provider, the provider opens adapters of this name, and
 * calls on its handles go to its functions. Removing fails while an adapter is open. The table of functions is copied
 * when it is added.
 */
DAT_RETURN dat_registry_add_provider(DAT_PROVIDER *provider, const DAT_PROVIDER_INFO *provider_info);
DAT_RETURN dat_registry_remove_provider(DAT_PROVIDER *provider, const DAT_PROVIDER_INFO *provider_info);

/* Exported by a provider's library. This library's own functions register the device that instance_data names. */
void dat_provider_init(const DAT_PROVIDER_INFO *provider_info, const char *instance_data);
void dat_provider_fini(const DAT_PROVIDER_INFO *provider_info);

#ifdef __cplusplus
}
#endif

#endif
