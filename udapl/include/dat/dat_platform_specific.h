/*
 * Declarations that DAT leaves to the platform: here 64-bit Linux.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef DAT_PLATFORM_SPECIFIC_H
#define DAT_PLATFORM_SPECIFIC_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

typedef uint32_t DAT_UINT32;
typedef uint64_t DAT_UINT64;
/* C89 and C++98 have no such type, but their compilers do; this suppresses the warning. */
#ifdef __GNUC__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wlong-long"
#endif
typedef unsigned long long DAT_UVERYLONG;
#ifdef __GNUC__
#pragma GCC diagnostic pop
#endif
typedef void *DAT_PVOID;
typedef int DAT_COUNT;
typedef DAT_UINT64 DAT_PADDR;

typedef struct sockaddr DAT_SOCK_ADDR;
typedef struct sockaddr_in6 DAT_SOCK_ADDR6;
#define DAT_AF_INET AF_INET
#define DAT_AF_INET6 AF_INET6

/* A string with a NUL at its end; DAT_NAME_MAX_LENGTH includes the NUL. */
typedef char *DAT_NAME_PTR;
#define DAT_NAME_MAX_LENGTH 256

#endif
