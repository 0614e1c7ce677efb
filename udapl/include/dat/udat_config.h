/*
 * What a program may decide before it includes udat.h.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef UDAT_CONFIG_H
#define UDAT_CONFIG_H

/*
 * Whether dat_ia_open asks for an adapter whose calls may come from several threads at once. Every adapter of this
 * library is there both ways. Opened the other way, calls for one adapter are made one at a time, except that a thread
 * may be blocked in dat_evd_wait or dat_cno_wait meanwhile; posts and dequeues lock nothing then.
 */
#ifndef DAT_THREADSAFE
#define DAT_THREADSAFE DAT_FALSE
#endif

#endif
