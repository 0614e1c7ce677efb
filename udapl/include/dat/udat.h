/*
 * uDAPL 1.2, complete. Link with -ldat (pkg-config: dat).
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef UDAT_H
#define UDAT_H

#include <dat/dat.h>
#include <dat/udat_config.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Processes. Adapters are not inherited. If a process has opened an adapter, then in its children of fork() every
 * handle of the parent is DAT_INVALID_HANDLE, and opening and registry calls fail with DAT_INSUFFICIENT_RESOURCES and
 * DAT_RESOURCE_DEVICE, until the child executes a program. Until then the child also keeps the parent's descriptors
 * open, so the device keeps running even if the parent ends. On kernels before 5.12 the program must call
 * madvise(MADV_DONTFORK) for registered memory.
 *
 * Threads. Deferred cancellation (pthread_cancel) of a thread takes effect when its call has returned, so it does not
 * end a thread blocked in dat_evd_wait or dat_cno_wait; a signal with a handler ends such a wait. Posts and
 * dat_evd_dequeue do not delay cancellation: do not cancel a thread in one of them. Asynchronous cancellation is not
 * supported.
 *
 * Signals. No DAT call is async-signal-safe (signal-safety(7)): a handler that makes one may block for ever.
 */

#define DAT_VERSION_MAJOR 1
#define DAT_VERSION_MINOR 2

/* In: another instance has an asynchronous EVD, make none. */
#define DAT_EVD_ASYNC_EXISTS ((DAT_EVD_HANDLE)0x1)
/* Out: another consumer has one. */
#define DAT_EVD_OUT_OF_SCOPE ((DAT_EVD_HANDLE)0x2)

typedef enum dat_mem_type {
	DAT_MEM_TYPE_VIRTUAL = 0x00,
	DAT_MEM_TYPE_LMR = 0x01,
	DAT_MEM_TYPE_SHARED_VIRTUAL = 0x02,
	/* Beyond DAT 1.2: the library allocates the memory, and dat_lmr_free frees it. */
	DAT_MEM_TYPE_ALLOCATED = 0x100
} DAT_MEM_TYPE;

/* The name of shared memory; all bytes are significant. */
#define DAT_LMR_COOKIE_SIZE 40
typedef char (*DAT_LMR_COOKIE)[DAT_LMR_COOKIE_SIZE];

typedef struct dat_shared_memory {
	DAT_PVOID virtual_address;
	DAT_LMR_COOKIE shared_memory_id;
} DAT_SHARED_MEMORY;

typedef union dat_region_description {
	DAT_PVOID for_va;
	DAT_LMR_HANDLE for_lmr_handle;
	DAT_SHARED_MEMORY for_shared_memory;
} DAT_REGION_DESCRIPTION;

typedef struct dat_lmr_param {
	DAT_IA_HANDLE ia_handle;
	DAT_MEM_TYPE mem_type;
	DAT_REGION_DESCRIPTION region_desc;
	DAT_VLEN length;
	DAT_PZ_HANDLE pz_handle;
	DAT_MEM_PRIV_FLAGS mem_priv;
	DAT_LMR_CONTEXT lmr_context;
	DAT_RMR_CONTEXT rmr_context;
	DAT_VLEN registered_size;
	DAT_VADDR registered_address;
} DAT_LMR_PARAM;

typedef enum dat_lmr_param_mask {
	DAT_LMR_FIELD_IA_HANDLE = 0x001,
	DAT_LMR_FIELD_MEM_TYPE = 0x002,
	DAT_LMR_FIELD_REGION_DESC = 0x004,
	DAT_LMR_FIELD_LENGTH = 0x008,
	DAT_LMR_FIELD_PZ_HANDLE = 0x010,
	DAT_LMR_FIELD_MEM_PRIV = 0x020,
	DAT_LMR_FIELD_LMR_CONTEXT = 0x040,
	DAT_LMR_FIELD_RMR_CONTEXT = 0x080,
	DAT_LMR_FIELD_REGISTERED_SIZE = 0x100,
	DAT_LMR_FIELD_REGISTERED_ADDRESS = 0x200,
	DAT_LMR_FIELD_ALL = 0x3ff
} DAT_LMR_PARAM_MASK;

typedef enum dat_evd_state {
	DAT_EVD_STATE_ENABLED = 0x01,
	DAT_EVD_STATE_DISABLED = 0x02,
	DAT_EVD_STATE_WAITABLE = 0x04,
	DAT_EVD_STATE_UNWAITABLE = 0x08,
	DAT_EVD_STATE_CONFIG_NOTIFY = 0x10,
	DAT_EVD_STATE_CONFIG_SOLICITED = 0x20,
	DAT_EVD_STATE_CONFIG_THRESHOLD = 0x30
} DAT_EVD_STATE;

typedef struct dat_evd_param {
	DAT_IA_HANDLE ia_handle;
	DAT_COUNT evd_qlen;
	DAT_EVD_STATE evd_state;
	DAT_CNO_HANDLE cno_handle;
	DAT_EVD_FLAGS evd_flags;
} DAT_EVD_PARAM;

typedef enum dat_evd_param_mask {
	DAT_EVD_FIELD_IA_HANDLE = 0x01,
	DAT_EVD_FIELD_EVD_QLEN = 0x02,
	DAT_EVD_FIELD_EVD_STATE = 0x04,
	DAT_EVD_FIELD_CNO = 0x08,
	DAT_EVD_FIELD_EVD_FLAGS = 0x10,
	DAT_EVD_FIELD_ALL = 0x1f
} DAT_EVD_PARAM_MASK;

/*
 * An upcall. The library calls it on a thread of its own, once, when the CNO is triggered, with the EVD that
 * triggered it, or with null when the CNO's last EVD or the IA was closed. It may call DAT. dat_ia_close returns
 * after all called agents have returned, however long they take, so that the program may then free what they use; the
 * exception is a dat_ia_close that an agent calls. So an agent must not wait for a thread that closes the IA.
 */
typedef void (*DAT_AGENT_FUNC)(DAT_PVOID instance_data, DAT_EVD_HANDLE evd_handle);

typedef struct dat_os_wait_proxy_agent {
	DAT_PVOID instance_data;
	DAT_AGENT_FUNC proxy_agent_func;
} DAT_OS_WAIT_PROXY_AGENT;

#if defined(__cplusplus) && __cplusplus >= 201103L
#define DAT_OS_WAIT_PROXY_AGENT_NULL (DAT_OS_WAIT_PROXY_AGENT{NULL, NULL})
#elif !defined(__cplusplus) && defined(__STDC_VERSION__) && __STDC_VERSION__ >= 199901L
#define DAT_OS_WAIT_PROXY_AGENT_NULL ((DAT_OS_WAIT_PROXY_AGENT){NULL, NULL})
#else
/* C89 and C++98 have no compound literals. */
static const DAT_OS_WAIT_PROXY_AGENT DAT_OS_WAIT_PROXY_AGENT_NULL = {NULL, NULL};
#endif

typedef struct dat_cno_param {
	DAT_IA_HANDLE ia_handle;
	DAT_OS_WAIT_PROXY_AGENT agent;
} DAT_CNO_PARAM;

typedef enum dat_cno_param_mask {
	DAT_CNO_FIELD_IA_HANDLE = 0x1,
	DAT_CNO_FIELD_AGENT = 0x2,
	DAT_CNO_FIELD_ALL = 0x3
} DAT_CNO_PARAM_MASK;

/* The pointers are valid while the IA is open. */
typedef struct dat_ia_attr {
	char adapter_name[DAT_NAME_MAX_LENGTH];
	char vendor_name[DAT_NAME_MAX_LENGTH];
	DAT_UINT32 hardware_version_major;
	DAT_UINT32 hardware_version_minor;
	DAT_UINT32 firmware_version_major;
	DAT_UINT32 firmware_version_minor;
	DAT_IA_ADDRESS_PTR ia_address_ptr;
	DAT_COUNT max_eps;
	DAT_COUNT max_dto_per_ep;
	DAT_COUNT max_rdma_read_per_ep_in;
	DAT_COUNT max_rdma_read_per_ep_out;
	DAT_COUNT max_evds;
	DAT_COUNT max_evd_qlen;
	DAT_COUNT max_iov_segments_per_dto;
	DAT_COUNT max_lmrs;
	DAT_VLEN max_lmr_block_size;
	DAT_VADDR max_lmr_virtual_address;
	DAT_COUNT max_pzs;
	DAT_VLEN max_message_size;
	DAT_VLEN max_rdma_size;
	DAT_COUNT max_rmrs;
	DAT_VADDR max_rmr_target_address;
	DAT_COUNT max_srqs;
	DAT_COUNT max_ep_per_srq;
	DAT_COUNT max_recv_per_srq;
	DAT_COUNT max_iov_segments_per_rdma_read;
	DAT_COUNT max_iov_segments_per_rdma_write;
	DAT_COUNT max_rdma_read_in;
	DAT_COUNT max_rdma_read_out;
	DAT_BOOLEAN max_rdma_read_per_ep_in_guaranteed;
	DAT_BOOLEAN max_rdma_read_per_ep_out_guaranteed;
	DAT_COUNT num_transport_attr;
	DAT_NAMED_ATTR *transport_attr;
	DAT_COUNT num_vendor_attr;
	DAT_NAMED_ATTR *vendor_attr;
} DAT_IA_ATTR;
#define max_mtu_size max_message_size
#define max_rdma_read_per_ep max_rdma_read_per_ep_in

typedef DAT_UINT64 DAT_IA_ATTR_MASK;
#define DAT_IA_FIELD_NONE 0x0UL
#define DAT_IA_FIELD_IA_ADAPTER_NAME 0x000000001UL
#define DAT_IA_FIELD_IA_VENDOR_NAME 0x000000002UL
#define DAT_IA_FIELD_IA_HARDWARE_MAJOR_VERSION 0x000000004UL
#define DAT_IA_FIELD_IA_HARDWARE_MINOR_VERSION 0x000000008UL
#define DAT_IA_FIELD_IA_FIRMWARE_MAJOR_VERSION 0x000000010UL
#define DAT_IA_FIELD_IA_FIRMWARE_MINOR_VERSION 0x000000020UL
#define DAT_IA_FIELD_IA_ADDRESS_PTR 0x000000040UL
#define DAT_IA_FIELD_IA_MAX_EPS 0x000000080UL
#define DAT_IA_FIELD_IA_MAX_DTO_PER_EP 0x000000100UL
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN 0x000000200UL
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT 0x000000400UL
#define DAT_IA_FIELD_IA_MAX_EVDS 0x000000800UL
#define DAT_IA_FIELD_IA_MAX_EVD_QLEN 0x000001000UL
#define DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_DTO 0x000002000UL
#define DAT_IA_FIELD_IA_MAX_LMRS 0x000004000UL
#define DAT_IA_FIELD_IA_MAX_LMR_BLOCK_SIZE 0x000008000UL
#define DAT_IA_FIELD_IA_MAX_LMR_VIRTUAL_ADDRESS 0x000010000UL
#define DAT_IA_FIELD_IA_MAX_PZS 0x000020000UL
#define DAT_IA_FIELD_IA_MAX_MESSAGE_SIZE 0x000040000UL
#define DAT_IA_FIELD_IA_MAX_RDMA_SIZE 0x000080000UL
#define DAT_IA_FIELD_IA_MAX_RMRS 0x000100000UL
#define DAT_IA_FIELD_IA_MAX_RMR_TARGET_ADDRESS 0x000200000UL
#define DAT_IA_FIELD_IA_MAX_SRQS 0x000400000UL
#define DAT_IA_FIELD_IA_MAX_EP_PER_SRQ 0x000800000UL
#define DAT_IA_FIELD_IA_MAX_RECV_PER_SRQ 0x001000000UL
#define DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_READ 0x002000000UL
#define DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_WRITE 0x004000000UL
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_IN 0x008000000UL
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_OUT 0x010000000UL
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN_GUARANTEED 0x020000000UL
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT_GUARANTEED 0x040000000UL
#define DAT_IA_FIELD_IA_NUM_TRANSPORT_ATTR 0x080000000UL
#define DAT_IA_FIELD_IA_TRANSPORT_ATTR 0x100000000UL
#define DAT_IA_FIELD_IA_NUM_VENDOR_ATTR 0x200000000UL
#define DAT_IA_FIELD_IA_VENDOR_ATTR 0x400000000UL
#define DAT_IA_FIELD_IA_MAX_MTU_SIZE DAT_IA_FIELD_IA_MAX_MESSAGE_SIZE
#define DAT_IA_FIELD_ALL 0x7ffffffffUL
#define DAT_IA_ALL DAT_IA_FIELD_ALL

/*
 * evd_stream_merging_supported is indexed by stream: software, connection request, DTO, connection, RMR bind,
 * asynchronous.
 */
typedef struct dat_provider_attr {
	char provider_name[DAT_NAME_MAX_LENGTH];
	DAT_UINT32 provider_version_major;
	DAT_UINT32 provider_version_minor;
	DAT_UINT32 dapl_version_major;
	DAT_UINT32 dapl_version_minor;
	DAT_MEM_TYPE lmr_mem_types_supported;
	DAT_IOV_OWNERSHIP iov_ownership_on_return;
	DAT_QOS dat_qos_supported;
	DAT_COMPLETION_FLAGS completion_flags_supported;
	DAT_BOOLEAN is_thread_safe;
	DAT_COUNT max_private_data_size;
	DAT_BOOLEAN supports_multipath;
	DAT_EP_CREATOR_FOR_PSP ep_creator;
	DAT_PZ_SUPPORT pz_support;
	DAT_UINT32 optimal_buffer_alignment;
	DAT_BOOLEAN evd_stream_merging_supported[6][6];
	DAT_BOOLEAN srq_supported;
	DAT_COUNT srq_watermarks_supported;
	DAT_BOOLEAN srq_ep_pz_difference_supported;
	DAT_COUNT srq_info_supported;
	DAT_COUNT ep_recv_info_supported;
	DAT_BOOLEAN lmr_sync_req;
	DAT_BOOLEAN dto_async_return_guaranteed;
	DAT_BOOLEAN rdma_write_for_rdma_read_req;
	DAT_COUNT num_provider_specific_attr;
	DAT_NAMED_ATTR *provider_specific_attr;
} DAT_PROVIDER_ATTR;

typedef DAT_UINT64 DAT_PROVIDER_ATTR_MASK;
#define DAT_PROVIDER_FIELD_NONE 0x0UL
#define DAT_PROVIDER_FIELD_PROVIDER_NAME 0x0000001UL
#define DAT_PROVIDER_FIELD_PROVIDER_VERSION_MAJOR 0x0000002UL
#define DAT_PROVIDER_FIELD_PROVIDER_VERSION_MINOR 0x0000004UL
#define DAT_PROVIDER_FIELD_DAPL_VERSION_MAJOR 0x0000008UL
#define DAT_PROVIDER_FIELD_DAPL_VERSION_MINOR 0x0000010UL
#define DAT_PROVIDER_FIELD_LMR_MEM_TYPE_SUPPORTED 0x0000020UL
#define DAT_PROVIDER_FIELD_IOV_OWNERSHIP 0x0000040UL
#define DAT_PROVIDER_FIELD_DAT_QOS_SUPPORTED 0x0000080UL
#define DAT_PROVIDER_FIELD_COMPLETION_FLAGS_SUPPORTED 0x0000100UL
#define DAT_PROVIDER_FIELD_IS_THREAD_SAFE 0x0000200UL
#define DAT_PROVIDER_FIELD_MAX_PRIVATE_DATA_SIZE 0x0000400UL
#define DAT_PROVIDER_FIELD_SUPPORTS_MULTIPATH 0x0000800UL
#define DAT_PROVIDER_FIELD_EP_CREATOR 0x0001000UL
#define DAT_PROVIDER_FIELD_PZ_SUPPORT 0x0002000UL
#define DAT_PROVIDER_FIELD_OPTIMAL_BUFFER_ALIGNMENT 0x0004000UL
#define DAT_PROVIDER_FIELD_EVD_STREAM_MERGING_SUPPORTED 0x0008000UL
#define DAT_PROVIDER_FIELD_SRQ_SUPPORTED 0x0010000UL
#define DAT_PROVIDER_FIELD_SRQ_WATERMARKS_SUPPORTED 0x0020000UL
#define DAT_PROVIDER_FIELD_SRQ_EP_PZ_DIFFERENCE_SUPPORTED 0x0040000UL
#define DAT_PROVIDER_FIELD_SRQ_INFO_SUPPORTED 0x0080000UL
#define DAT_PROVIDER_FIELD_EP_RECV_INFO_SUPPORTED 0x0100000UL
#define DAT_PROVIDER_FIELD_LMR_SYNC_REQ 0x0200000UL
#define DAT_PROVIDER_FIELD_DTO_ASYNC_RETURN_GUARANTEED 0x0400000UL
#define DAT_PROVIDER_FIELD_RDMA_WRITE_FOR_RDMA_READ_REQ 0x0800000UL
#define DAT_PROVIDER_FIELD_NUM_PROVIDER_SPECIFIC_ATTR 0x1000000UL
#define DAT_PROVIDER_FIELD_PROVIDER_SPECIFIC_ATTR 0x2000000UL
#define DAT_PROVIDER_FIELD_ALL 0x3ffffffUL

/*
 * Interface adapters. A name is one of the registry, or a device:
 *
 *   sim:NAME                  a simulated function of this process; the first two are linked
 *   vfio-user:SOCKET          a function that another process serves there
 *   0000:3b:00.2              a PCI function bound to vfio-pci
 *
 * followed by options such as ",address=IP" (an address of the adapter) and ",neighbour=IP/MAC" (a peer whose address
 * does not contain its MAC).
 */
DAT_RETURN dat_ia_openv(const DAT_NAME_PTR name, DAT_COUNT async_evd_min_qlen, DAT_EVD_HANDLE *async_evd_handle,
			DAT_IA_HANDLE *ia_handle, DAT_UINT32 dapl_major, DAT_UINT32 dapl_minor,
			DAT_BOOLEAN thread_safety);
#define dat_ia_open(name, qlen, async_evd, ia) \
	dat_ia_openv((name), (qlen), (async_evd), (ia), DAT_VERSION_MAJOR, DAT_VERSION_MINOR, DAT_THREADSAFE)
DAT_RETURN dat_ia_close(DAT_IA_HANDLE ia_handle, DAT_CLOSE_FLAGS ia_flags);
DAT_RETURN dat_ia_query(DAT_IA_HANDLE ia_handle, DAT_EVD_HANDLE *async_evd_handle, DAT_IA_ATTR_MASK ia_attr_mask,
			DAT_IA_ATTR *ia_attributes, DAT_PROVIDER_ATTR_MASK provider_attr_mask,
			DAT_PROVIDER_ATTR *provider_attributes);

/* Any object. */
DAT_RETURN dat_set_consumer_context(DAT_HANDLE dat_handle, DAT_CONTEXT context);
DAT_RETURN dat_get_consumer_context(DAT_HANDLE dat_handle, DAT_CONTEXT *context);
DAT_RETURN dat_get_handle_type(DAT_HANDLE dat_handle, DAT_HANDLE_TYPE *handle_type);

/* Consumer notification objects. */
DAT_RETURN dat_cno_create(DAT_IA_HANDLE ia_handle, DAT_OS_WAIT_PROXY_AGENT agent, DAT_CNO_HANDLE *cno_handle);
DAT_RETURN dat_cno_modify_agent(DAT_CNO_HANDLE cno_handle, DAT_OS_WAIT_PROXY_AGENT agent);
DAT_RETURN dat_cno_query(DAT_CNO_HANDLE cno_handle, DAT_CNO_PARAM_MASK cno_param_mask, DAT_CNO_PARAM *cno_param);
DAT_RETURN dat_cno_free(DAT_CNO_HANDLE cno_handle);
DAT_RETURN dat_cno_wait(DAT_CNO_HANDLE cno_handle, DAT_TIMEOUT timeout, DAT_EVD_HANDLE *evd_handle);

/* Connection requests. */
DAT_RETURN dat_cr_query(DAT_CR_HANDLE cr_handle, DAT_CR_PARAM_MASK cr_param_mask, DAT_CR_PARAM *cr_param);
DAT_RETURN dat_cr_accept(DAT_CR_HANDLE cr_handle, DAT_EP_HANDLE ep_handle, DAT_COUNT private_data_size,
			 const DAT_PVOID private_data);
DAT_RETURN dat_cr_reject(DAT_CR_HANDLE cr_handle);
DAT_RETURN dat_cr_handoff(DAT_CR_HANDLE cr_handle, DAT_CONN_QUAL handoff);
/* Not in DAT 1.2: the peer finds private data with DAT_CONNECTION_EVENT_PEER_REJECTED. From an RDMA-CM port up to 148 bytes, and the
 * peer gets all 148, with zeros at the end; else up to 144, and the peer gets as many as were given. Requests of other providers are
 * not taken. */
DAT_RETURN dat_cr_reject_with(DAT_CR_HANDLE cr_handle, DAT_COUNT private_data_size, const DAT_PVOID private_data);

/* Event dispatchers. */
DAT_RETURN dat_evd_create(DAT_IA_HANDLE ia_handle, DAT_COUNT evd_min_qlen, DAT_CNO_HANDLE cno_handle,
			  DAT_EVD_FLAGS evd_flags, DAT_EVD_HANDLE *evd_handle);
DAT_RETURN dat_evd_query(DAT_EVD_HANDLE evd_handle, DAT_EVD_PARAM_MASK evd_param_mask, DAT_EVD_PARAM *evd_param);
DAT_RETURN dat_evd_modify_cno(DAT_EVD_HANDLE evd_handle, DAT_CNO_HANDLE cno_handle);
DAT_RETURN dat_evd_enable(DAT_EVD_HANDLE evd_handle);
DAT_RETURN dat_evd_disable(DAT_EVD_HANDLE evd_handle);
DAT_RETURN dat_evd_set_unwaitable(DAT_EVD_HANDLE evd_handle);
DAT_RETURN dat_evd_clear_unwaitable(DAT_EVD_HANDLE evd_handle);
DAT_RETURN dat_evd_wait(DAT_EVD_HANDLE evd_handle, DAT_TIMEOUT timeout, DAT_COUNT threshold, DAT_EVENT *event,
			DAT_COUNT *nmore);
DAT_RETURN dat_evd_resize(DAT_EVD_HANDLE evd_handle, DAT_COUNT evd_min_qlen);
DAT_RETURN dat_evd_post_se(DAT_EVD_HANDLE evd_handle, const DAT_EVENT *event);
DAT_RETURN dat_evd_dequeue(DAT_EVD_HANDLE evd_handle, DAT_EVENT *event);
DAT_RETURN dat_evd_free(DAT_EVD_HANDLE evd_handle);

/* Endpoints. */
DAT_RETURN dat_ep_create(DAT_IA_HANDLE ia_handle, DAT_PZ_HANDLE pz_handle, DAT_EVD_HANDLE recv_evd_handle,
			 DAT_EVD_HANDLE request_evd_handle, DAT_EVD_HANDLE connect_evd_handle,
			 const DAT_EP_ATTR *ep_attributes, DAT_EP_HANDLE *ep_handle);
DAT_RETURN dat_ep_create_with_srq(DAT_IA_HANDLE ia_handle, DAT_PZ_HANDLE pz_handle, DAT_EVD_HANDLE recv_evd_handle,
				  DAT_EVD_HANDLE request_evd_handle, DAT_EVD_HANDLE connect_evd_handle,
				  DAT_SRQ_HANDLE srq_handle, const DAT_EP_ATTR *ep_attributes,
				  DAT_EP_HANDLE *ep_handle);
DAT_RETURN dat_ep_query(DAT_EP_HANDLE ep_handle, DAT_EP_PARAM_MASK ep_param_mask, DAT_EP_PARAM *ep_param);
DAT_RETURN dat_ep_modify(DAT_EP_HANDLE ep_handle, DAT_EP_PARAM_MASK ep_param_mask, const DAT_EP_PARAM *ep_param);
DAT_RETURN dat_ep_connect(DAT_EP_HANDLE ep_handle, DAT_IA_ADDRESS_PTR remote_ia_address,
			  DAT_CONN_QUAL remote_conn_qual, DAT_TIMEOUT timeout, DAT_COUNT private_data_size,
			  const DAT_PVOID private_data, DAT_QOS qos, DAT_CONNECT_FLAGS connect_flags);
DAT_RETURN dat_ep_dup_connect(DAT_EP_HANDLE ep_handle, DAT_EP_HANDLE dup_ep_handle, DAT_TIMEOUT timeout,
			      DAT_COUNT private_data_size, const DAT_PVOID private_data, DAT_QOS qos);
DAT_RETURN dat_ep_disconnect(DAT_EP_HANDLE ep_handle, DAT_CLOSE_FLAGS disconnect_flags);
DAT_RETURN dat_ep_post_send(DAT_EP_HANDLE ep_handle, DAT_COUNT num_segments, DAT_LMR_TRIPLET *local_iov,
			    DAT_DTO_COOKIE user_cookie, DAT_COMPLETION_FLAGS completion_flags);
DAT_RETURN dat_ep_post_recv(DAT_EP_HANDLE ep_handle, DAT_COUNT num_segments, DAT_LMR_TRIPLET *local_iov,
			    DAT_DTO_COOKIE user_cookie, DAT_COMPLETION_FLAGS completion_flags);
DAT_RETURN dat_ep_post_rdma_read(DAT_EP_HANDLE ep_handle, DAT_COUNT num_segments, DAT_LMR_TRIPLET *local_iov,
				 DAT_DTO_COOKIE user_cookie, const DAT_RMR_TRIPLET *remote_buffer,
				 DAT_COMPLETION_FLAGS completion_flags);
DAT_RETURN dat_ep_post_rdma_write(DAT_EP_HANDLE ep_handle, DAT_COUNT num_segments, DAT_LMR_TRIPLET *local_iov,
				  DAT_DTO_COOKIE user_cookie, const DAT_RMR_TRIPLET *remote_buffer,
				  DAT_COMPLETION_FLAGS completion_flags);
DAT_RETURN dat_ep_get_status(DAT_EP_HANDLE ep_handle, DAT_EP_STATE *ep_state, DAT_BOOLEAN *recv_idle,
			     DAT_BOOLEAN *request_idle);
DAT_RETURN dat_ep_recv_query(DAT_EP_HANDLE ep_handle, DAT_COUNT *nbufs_allocated, DAT_COUNT *bufs_alloc_span);
DAT_RETURN dat_ep_set_watermark(DAT_EP_HANDLE ep_handle, DAT_COUNT soft_high_watermark,
				DAT_COUNT hard_high_watermark);
DAT_RETURN dat_ep_reset(DAT_EP_HANDLE ep_handle);
DAT_RETURN dat_ep_free(DAT_EP_HANDLE ep_handle);

/*
 * Memory. The program must not free registered memory before its LMR is freed; the device writes to it at the request
 * of this program or of a peer. With DAT_MEM_TYPE_ALLOCATED, dat_lmr_create allocates length bytes, zeroed, ignores
 * region_description, and returns the address as *registered_address, which may not be null; dat_lmr_query then
 * reports DAT_MEM_TYPE_VIRTUAL with that address. Such memory goes along when an IA is parked: it is then unmapped in
 * this process, until the IA is resumed.
 */
DAT_RETURN dat_lmr_create(DAT_IA_HANDLE ia_handle, DAT_MEM_TYPE mem_type, DAT_REGION_DESCRIPTION region_description,
			  DAT_VLEN length, DAT_PZ_HANDLE pz_handle, DAT_MEM_PRIV_FLAGS mem_privileges,
			  DAT_LMR_HANDLE *lmr_handle, DAT_LMR_CONTEXT *lmr_context, DAT_RMR_CONTEXT *rmr_context,
			  DAT_VLEN *registered_size, DAT_VADDR *registered_address);
DAT_RETURN dat_lmr_query(DAT_LMR_HANDLE lmr_handle, DAT_LMR_PARAM_MASK lmr_param_mask, DAT_LMR_PARAM *lmr_param);
DAT_RETURN dat_lmr_free(DAT_LMR_HANDLE lmr_handle);
DAT_RETURN dat_lmr_sync_rdma_read(DAT_IA_HANDLE ia_handle, const DAT_LMR_TRIPLET *local_segments,
				  DAT_VLEN num_segments);
DAT_RETURN dat_lmr_sync_rdma_write(DAT_IA_HANDLE ia_handle, const DAT_LMR_TRIPLET *local_segments,
				   DAT_VLEN num_segments);
DAT_RETURN dat_rmr_create(DAT_PZ_HANDLE pz_handle, DAT_RMR_HANDLE *rmr_handle);
DAT_RETURN dat_rmr_query(DAT_RMR_HANDLE rmr_handle, DAT_RMR_PARAM_MASK rmr_param_mask, DAT_RMR_PARAM *rmr_param);
DAT_RETURN dat_rmr_bind(DAT_RMR_HANDLE rmr_handle, const DAT_LMR_TRIPLET *lmr_triplet,
			DAT_MEM_PRIV_FLAGS mem_privileges, DAT_EP_HANDLE ep_handle, DAT_RMR_COOKIE user_cookie,
			DAT_COMPLETION_FLAGS completion_flags, DAT_RMR_CONTEXT *rmr_context);
DAT_RETURN dat_rmr_free(DAT_RMR_HANDLE rmr_handle);
DAT_RETURN dat_pz_create(DAT_IA_HANDLE ia_handle, DAT_PZ_HANDLE *pz_handle);
DAT_RETURN dat_pz_query(DAT_PZ_HANDLE pz_handle, DAT_PZ_PARAM_MASK pz_param_mask, DAT_PZ_PARAM *pz_param);
DAT_RETURN dat_pz_free(DAT_PZ_HANDLE pz_handle);

/* Service points. */
DAT_RETURN dat_psp_create(DAT_IA_HANDLE ia_handle, DAT_CONN_QUAL conn_qual, DAT_EVD_HANDLE evd_handle,
			  DAT_PSP_FLAGS psp_flags, DAT_PSP_HANDLE *psp_handle);
DAT_RETURN dat_psp_create_any(DAT_IA_HANDLE ia_handle, DAT_CONN_QUAL *conn_qual, DAT_EVD_HANDLE evd_handle,
			      DAT_PSP_FLAGS psp_flags, DAT_PSP_HANDLE *psp_handle);
DAT_RETURN dat_psp_query(DAT_PSP_HANDLE psp_handle, DAT_PSP_PARAM_MASK psp_param_mask, DAT_PSP_PARAM *psp_param);
DAT_RETURN dat_psp_free(DAT_PSP_HANDLE psp_handle);
DAT_RETURN dat_rsp_create(DAT_IA_HANDLE ia_handle, DAT_CONN_QUAL conn_qual, DAT_EP_HANDLE ep_handle,
			  DAT_EVD_HANDLE evd_handle, DAT_RSP_HANDLE *rsp_handle);
DAT_RETURN dat_rsp_query(DAT_RSP_HANDLE rsp_handle, DAT_RSP_PARAM_MASK rsp_param_mask, DAT_RSP_PARAM *rsp_param);
DAT_RETURN dat_rsp_free(DAT_RSP_HANDLE rsp_handle);

/* Shared receive queues. */
DAT_RETURN dat_srq_create(DAT_IA_HANDLE ia_handle, DAT_PZ_HANDLE pz_handle, DAT_SRQ_ATTR *srq_attr,
			  DAT_SRQ_HANDLE *srq_handle);
DAT_RETURN dat_srq_query(DAT_SRQ_HANDLE srq_handle, DAT_SRQ_PARAM_MASK srq_param_mask, DAT_SRQ_PARAM *srq_param);
DAT_RETURN dat_srq_post_recv(DAT_SRQ_HANDLE srq_handle, DAT_COUNT num_segments, DAT_LMR_TRIPLET *local_iov,
			     DAT_DTO_COOKIE user_cookie);
DAT_RETURN dat_srq_resize(DAT_SRQ_HANDLE srq_handle, DAT_COUNT srq_max_recv_dto);
DAT_RETURN dat_srq_set_lw(DAT_SRQ_HANDLE srq_handle, DAT_COUNT low_watermark);
DAT_RETURN dat_srq_free(DAT_SRQ_HANDLE srq_handle);

/*
 * Many at once. DAT 1.2 has no such calls, and other providers are not called. Each works like the single calls, in
 * their order, and stops at the first error, which it returns; *num_posted is the number of successful posts, and
 * num_posted may be null. One doorbell covers all requests, one doorbell record all receives. dat_evd_dequeue_many
 * returns success if there is no event.
 */
typedef enum dat_post_operation {
	DAT_POST_SEND = 0,
	DAT_POST_RDMA_WRITE = 1,
	DAT_POST_RDMA_READ = 2,
	DAT_POST_RECV = 3,
	/* Beyond DAT 1.2: like the calls below with these names. */
	DAT_POST_RDMA_WRITE_IMMEDIATE = 8,
	DAT_POST_FETCH_ADD = 10,
	DAT_POST_COMPARE_SWAP = 11,
	DAT_POST_SEND_IMMEDIATE = 0x100,
	DAT_POST_SEND_INVALIDATE = 0x101
} DAT_POST_OPERATION;

typedef struct dat_post {
	DAT_POST_OPERATION operation;
	DAT_COUNT num_segments;
	DAT_LMR_TRIPLET *local_iov; /* one segment for the result of an atomic operation */
	DAT_DTO_COOKIE user_cookie;
	const DAT_RMR_TRIPLET *remote_buffer; /* for RDMA Writes, RDMA Reads and atomic operations */
	DAT_COMPLETION_FLAGS completion_flags; /* none for an SRQ */
	DAT_UINT32 value; /* the immediate data, or the RMR context to invalidate */
	DAT_UINT64 operand; /* the addend of FETCH_ADD, or the value that COMPARE_SWAP compares with */
	DAT_UINT64 swap; /* the new value of COMPARE_SWAP */
} DAT_POST;

DAT_RETURN dat_ep_post_many(DAT_EP_HANDLE ep_handle, DAT_COUNT num_posts, const DAT_POST *posts,
			    DAT_COUNT *num_posted);
DAT_RETURN dat_srq_post_many(DAT_SRQ_HANDLE srq_handle, DAT_COUNT num_posts, const DAT_POST *posts,
			     DAT_COUNT *num_posted);
DAT_RETURN dat_evd_dequeue_many(DAT_EVD_HANDLE evd_handle, DAT_COUNT max_events, DAT_EVENT *events,
				DAT_COUNT *num_events);

/*
 * Operations that InfiniBand has and DAT 1.2 lacks. Other providers are not called. Immediate data is a number. A
 * Send with invalidate ends the access by rmr_context, a context of the peer, if the peer has bound it with
 * DAT_MEM_PRIV_REMOTE_INVALIDATE_FLAG (or its kernel allows it); otherwise the connection breaks. An RDMA Write with
 * immediate data consumes a receive of the peer and leaves its buffer unchanged. An atomic operation changes the
 * first 8 bytes of remote_buffer, at a multiple of 8, in memory registered with DAT_MEM_PRIV_REMOTE_ATOMIC_FLAG; the
 * previous value is stored in result, 8 bytes. It needs a max_rdma_read_out of the endpoint and a max_rdma_read_in of
 * the peer that are not 0.
 */
DAT_RETURN dat_ep_post_send_immediate(DAT_EP_HANDLE ep_handle, DAT_COUNT num_segments, DAT_LMR_TRIPLET *local_iov,
				      DAT_DTO_COOKIE user_cookie, DAT_UINT32 immediate,
				      DAT_COMPLETION_FLAGS completion_flags);
DAT_RETURN dat_ep_post_send_invalidate(DAT_EP_HANDLE ep_handle, DAT_COUNT num_segments, DAT_LMR_TRIPLET *local_iov,
				       DAT_DTO_COOKIE user_cookie, DAT_RMR_CONTEXT rmr_context,
				       DAT_COMPLETION_FLAGS completion_flags);
DAT_RETURN dat_ep_post_rdma_write_immediate(DAT_EP_HANDLE ep_handle, DAT_COUNT num_segments,
					    DAT_LMR_TRIPLET *local_iov, DAT_DTO_COOKIE user_cookie,
					    const DAT_RMR_TRIPLET *remote_buffer, DAT_UINT32 immediate,
					    DAT_COMPLETION_FLAGS completion_flags);
DAT_RETURN dat_ep_post_fetch_add(DAT_EP_HANDLE ep_handle, const DAT_LMR_TRIPLET *result, DAT_DTO_COOKIE user_cookie,
				 const DAT_RMR_TRIPLET *remote_buffer, DAT_UINT64 add,
				 DAT_COMPLETION_FLAGS completion_flags);
DAT_RETURN dat_ep_post_compare_swap(DAT_EP_HANDLE ep_handle, const DAT_LMR_TRIPLET *result, DAT_DTO_COOKIE user_cookie,
				    const DAT_RMR_TRIPLET *remote_buffer, DAT_UINT64 compare, DAT_UINT64 swap,
				    DAT_COMPLETION_FLAGS completion_flags);

/* Details of a completion, for which DAT_EVENT has no field. *detail is of kind NONE for any other event. */
typedef enum dat_dto_detail_kind {
	DAT_DTO_DETAIL_NONE = 0,
	DAT_DTO_DETAIL_FAILED = 1, /* value: the device's syndrome in bits 7:0, its vendor syndrome in 15:8 */
	DAT_DTO_DETAIL_SEND_IMMEDIATE = 2, /* a receive; value: the data */
	DAT_DTO_DETAIL_WRITE_IMMEDIATE = 3, /* a receive without bytes: they are where the peer wrote them; value: the data */
	DAT_DTO_DETAIL_INVALIDATED = 4 /* a receive; value: the RMR context that the peer has invalidated */
} DAT_DTO_DETAIL_KIND;

typedef struct dat_dto_detail {
	DAT_DTO_DETAIL_KIND kind;
	DAT_UINT32 value;
} DAT_DTO_DETAIL;

DAT_RETURN dat_evd_dequeue_with_detail(DAT_EVD_HANDLE evd_handle, DAT_EVENT *event, DAT_DTO_DETAIL *detail);
DAT_RETURN dat_evd_wait_with_detail(DAT_EVD_HANDLE evd_handle, DAT_TIMEOUT timeout, DAT_COUNT threshold,
				    DAT_EVENT *event, DAT_COUNT *nmore, DAT_DTO_DETAIL *detail);

/*
 * The counters of an IA, an endpoint, an EVD or an SRQ, by name (docs/observability.md). num_counters is their
 * number, of which at most max_counters are written. Names are valid while the library is loaded.
 */
typedef struct dat_counter {
	const char *name;
	DAT_UINT64 value;
} DAT_COUNTER;

DAT_RETURN dat_get_counters(DAT_HANDLE dat_handle, DAT_COUNT max_counters, DAT_COUNTER *counters,
			    DAT_COUNT *num_counters);

/*
 * The code of this thread's last error, and its text: the code's names, the number, and the reason in a sentence, for
 * example an error of the device or the system. DAT 1.2 has no such call. Never fails; before a first error the code
 * is 0 and the text empty. DAT_QUEUE_EMPTY and DAT_TIMEOUT_EXPIRED are not recorded, nor are errors of other
 * libraries' providers. Either pointer may be null. The text is valid until the thread calls this again or ends.
 */
DAT_RETURN dat_last_error_text(DAT_RETURN *refused, const char **text);

/*
 * Restarting without reconnecting: an IA goes on in the program's next process, with its objects, connections and
 * work (docs/restarting.md). Other providers are not called.
 *
 * dat_ia_park ends this process's use of an IA, the only one of its adapter that the program has open. The device goes
 * on with its work. state is the program's own data, which goes along: at most 16 MiB, together with some 20 bytes for
 * each handle. All memory of the IA must be of type DAT_MEM_TYPE_ALLOCATED; no thread may wait in the IA, and no CNO
 * have an agent. No other call on the IA may be under way. DAT_INVALID_STATE: the IA is not parked and goes on with
 * all of its handles; dat_last_error_text has the reason. If it could not go on, its handle is invalid. After success,
 * the memory of the IA is unmapped in this process until a resume: no thread may touch it.
 *
 * dat_ia_resume goes on with a parked IA, in the next process or in the same one. All handles have the values that they
 * had, and so have consumer contexts, cookies, and the addresses of memory. Pointers that queries and events had
 * returned are no longer valid. The process must not have an IA yet: an object at the place of one of the handles is
 * DAT_INVALID_STATE. *async_evd_handle and *ia_handle are as from dat_ia_open; async_evd_handle may be null. The
 * program closes the IA by dat_ia_close, and cannot open a second one of its adapter. After success, parked is invalid.
 * After an error, it is still valid if the device is unchanged: the call can be repeated. If it was stopped, or another
 * process has the IA, parked is invalid.
 *
 * dat_ia_state returns the program's own data of a resumed IA, valid until the IA is closed or parked; without such
 * data the size is 0.
 *
 * A parked IA is a snapshot and open descriptors. Over a UNIX stream socket, the program needs none of the two:
 *
 *	the old process                                        the next one
 *	dat_receiver_await(socket, timeout, &receiver)         dat_offer_receive(socket, timeout, &offer)
 *	dat_ia_park(ia, size, state, &parked)
 *	dat_parked_send(parked, receiver, timeout)             dat_offer_adopt(offer, &async_evd, &ia)
 *
 * The kernel lets only one process have the IA. dat_parked_send returns when the other process has reported the outcome
 * or the timeout is over, and uses the receiver up. Success: the other process has the IA, and parked is invalid.
 * DAT_INVALID_STATE: this process has it and can resume it, or it is not known who has it; then dat_ia_resume finds out.
 * After a timeout, dat_ia_resume may be refused as long as the other process holds the device, and can be repeated.
 * DAT_INTERNAL_ERROR: the other process has the IA and has not reported success; parked is invalid. dat_offer_adopt
 * checks all that needs no command to the device before it claims the IA. After an error, the offer is still valid if
 * the call can be repeated, otherwise it is invalid. dat_offer_refuse gives the IA back to the process that has offered it; reason is for its
 * log and may be null. The library duplicates the sockets: the program closes its own.
 *
 * Other ways: dat_parked_query returns the snapshot and the names of the descriptors, which stay valid until parked is
 * resumed, sent or freed, and the numbers of the descriptors, which stay valid until then or until a call on parked
 * fails. dat_parked_create makes a parked IA of them again. It copies the bytes and duplicates the descriptors;
 * num_fds is their number, of which at most max_fds are written. The program makes sure that one process alone resumes
 * a snapshot, and once. The device is reset when the last duplicate of its descriptors is closed.
 *
 * dat_handover_free frees a parked IA, a receiver or an offer. DAT_INVALID_HANDLE: the handle is that of nothing, or was
 * used up. A process has at most 64 of them; the calls that make one return DAT_INSUFFICIENT_RESOURCES then, before
 * anything is parked or received.
 */
typedef DAT_HANDLE DAT_PARKED_HANDLE;
typedef DAT_HANDLE DAT_RECEIVER_HANDLE;
typedef DAT_HANDLE DAT_OFFER_HANDLE;

typedef struct dat_named_fd {
	const char *name; /* at most 32 letters, digits and - */
	int fd;
} DAT_NAMED_FD;

DAT_RETURN dat_ia_park(DAT_IA_HANDLE ia_handle, DAT_COUNT state_size, const void *state, DAT_PARKED_HANDLE *parked);
DAT_RETURN dat_ia_resume(DAT_PARKED_HANDLE parked, DAT_EVD_HANDLE *async_evd_handle, DAT_IA_HANDLE *ia_handle);
DAT_RETURN dat_ia_state(DAT_IA_HANDLE ia_handle, DAT_COUNT *state_size, const void **state);

DAT_RETURN dat_receiver_await(int socket, DAT_TIMEOUT timeout, DAT_RECEIVER_HANDLE *receiver);
DAT_RETURN dat_parked_send(DAT_PARKED_HANDLE parked, DAT_RECEIVER_HANDLE receiver, DAT_TIMEOUT timeout);
DAT_RETURN dat_offer_receive(int socket, DAT_TIMEOUT timeout, DAT_OFFER_HANDLE *offer);
DAT_RETURN dat_offer_adopt(DAT_OFFER_HANDLE offer, DAT_EVD_HANDLE *async_evd_handle, DAT_IA_HANDLE *ia_handle);
DAT_RETURN dat_offer_refuse(DAT_OFFER_HANDLE offer, const char *reason);

DAT_RETURN dat_parked_query(DAT_PARKED_HANDLE parked, const void **snapshot, DAT_UINT64 *snapshot_size,
			    DAT_COUNT max_fds, DAT_NAMED_FD *fds, DAT_COUNT *num_fds);
DAT_RETURN dat_parked_create(DAT_UINT64 snapshot_size, const void *snapshot, DAT_COUNT num_fds,
			     const DAT_NAMED_FD *fds, DAT_PARKED_HANDLE *parked);
DAT_RETURN dat_handover_free(DAT_HANDLE handed);

/*
 * The static registry: fills one DAT_PROVIDER_INFO of the caller for each entry. Without a dat.conf there are none.
 * DAT_INTERNAL_ERROR: the file that DAT_OVERRIDE names does not exist, or the file cannot be read.
 */
DAT_RETURN dat_registry_list_providers(DAT_COUNT max_to_return, DAT_COUNT *number_entries,
				       DAT_PROVIDER_INFO *(dat_provider_list[]));

#ifdef __cplusplus
}
#endif

#endif
