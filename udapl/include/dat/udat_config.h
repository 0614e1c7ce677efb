/*
 * Settings that a program may define before it includes udat.h.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef UDAT_CONFIG_H
#define UDAT_CONFIG_H

/*
 * If true, dat_ia_open asks for an adapter whose calls may come from several threads at once. Every adapter of this
 * library can be opened either way. If false, the program makes one call at a time for one adapter, except while a
 * thread is blocked in dat_evd_wait or dat_cno_wait; posts and dequeues then take no lock.
 */
#ifndef DAT_THREADSAFE
#define DAT_THREADSAFE DAT_FALSE
#endif

#endif
