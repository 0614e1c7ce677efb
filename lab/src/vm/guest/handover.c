/*
 * A function of vfio-pci that one process opens and another one goes on with. The first process sets up memory and the
 * command queue, passes its descriptors and ends by _exit(2). The second one finds that the function was not reset, that
 * the device still reaches the memory of the first, that new memory can be mapped, and that a vector's eventfd keeps its
 * count and is still signalled by the kernel. It has no code of the project, so that what it shows is the kernel's
 * doing.
 *
 *   handover wait SOCKET            waits for the descriptors, and goes on with the function
 *   handover give SOCKET PCI GROUP  opens the function and gives the descriptors away
 *   handover unit PCI GROUP         both, one after the other: the descriptors stay in systemd's store in between
 *
 * Prints a line for each step. `give` waits for a line of input before it gives, `wait` before it ends, `unit` for
 * SIGTERM. The layouts are those of Linux: mlx5/device.h (struct mlx5_init_seg, mlx5_cmd_layout, mlx5_cmd_prot_block),
 * mlx5_ifc.h (ENABLE_HCA, QUERY_PAGES, QUERY_ISSI).
 */
#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define DIE(...) (fprintf(stderr, "handover: " __VA_ARGS__), fprintf(stderr, " (errno %d)\n", errno), exit(1))
#define SAY(...) (printf(__VA_ARGS__), putchar('\n'), fflush(stdout))
#define MUST(call) ({ __typeof__(call) _got = (call); if (_got < 0) DIE("%s", #call); _got; })

enum {
	SIZE = 1 << 21,
	/* Bytes of the initialization segment. */
	CMDQ_ADDRESS_HIGH = 0x10,
	CMDQ_ADDRESS_LOW = 0x14,
	DOORBELL = 0x18,
	INITIALIZING = 0x1fc,
	ENABLE_HCA = 0x104,
	QUERY_PAGES = 0x107,
	QUERY_ISSI = 0x10a,
	BOOT_PAGES = 1,
	/* Bytes of QUERY_ISSI's output, of which the first 16 are in the queue's entry. */
	ISSI_OUTPUT = 0x70,
	BAD_SYS_STATE = 4,
	PATIENCE_S = 30,
	TYPE_PCI = 7,
	COMMAND = 4,
	MEMORY_AND_MASTER = 6,
};

/* I/O addresses of the memory of either process. */
static const uint64_t FIRST = 0x10000000, SECOND = 0x20000000;

/* Descriptors, in the order in which they are passed. */
enum { CONTAINER, GROUP, DEVICE, MEMORY, EVENT, DESCRIPTORS };
static const char *const NAMES[DESCRIPTORS] = { "container", "group", "device", "memory", "event" };
static int fds[DESCRIPTORS];

struct entry {
	uint8_t type, reserved[3];
	uint32_t input_length;
	uint64_t input_mailbox;
	uint32_t input[4];
	uint32_t output[4];
	uint64_t output_mailbox;
	uint32_t output_length;
	uint8_t token, signature, reserved1, status_own;
};
_Static_assert(sizeof(struct entry) == 64, "the entry");

struct mailbox {
	uint8_t data[512], reserved[48];
	uint64_t next;
	uint32_t number;
	uint8_t reserved1, token, control_signature, signature;
};
_Static_assert(sizeof(struct mailbox) == 576, "the mailbox");

static volatile uint8_t *bar;
static volatile struct entry *queue;

static uint32_t reg(int at)
{
	return be32toh(*(volatile uint32_t *)(bar + at));
}

static void set_reg(int at, uint32_t value)
{
	*(volatile uint32_t *)(bar + at) = htobe32(value);
}

static time_t seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec;
}

static void *mapped(int memory)
{
	void *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);

	if (at == MAP_FAILED)
		DIE("mmap of the memory");
	return at;
}

static void *new_memory(int *memory, const char *name, uint64_t address)
{
	struct vfio_iommu_type1_dma_map map = { .argsz = sizeof map, .flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE };
	void *at;

	*memory = MUST(memfd_create(name, MFD_CLOEXEC));
	MUST(ftruncate(*memory, SIZE));
	at = mapped(*memory);
	map.vaddr = (uintptr_t)at;
	map.iova = address;
	map.size = SIZE;
	MUST(ioctl(fds[CONTAINER], VFIO_IOMMU_MAP_DMA, &map));
	return at;
}

static void map_bar(void)
{
	struct vfio_region_info region = { .argsz = sizeof region, .index = VFIO_PCI_BAR0_REGION_INDEX };
	void *at;

	MUST(ioctl(fds[DEVICE], VFIO_DEVICE_GET_REGION_INFO, &region));
	at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[DEVICE], region.offset);
	if (at == MAP_FAILED)
		DIE("mmap of the BAR");
	bar = at;
}

/*
 * Executes a command in the first entry of the queue, and returns its status: that of the command interface from 0x100
 * on, otherwise that of the output. Output beyond 16 bytes goes to a mailbox.
 */
static int command(int opcode, int op_mod, struct mailbox *mailbox, uint64_t mailbox_address, int output_length)
{
	static uint8_t token;
	time_t until = seconds() + PATIENCE_S;

	memset((void *)queue, 0, sizeof *queue);
	queue->type = TYPE_PCI;
	queue->input_length = htobe32(16);
	queue->input[0] = htobe32((uint32_t)opcode << 16);
	queue->input[1] = htobe32(op_mod);
	queue->output_length = htobe32(output_length);
	queue->output_mailbox = htobe64(mailbox_address);
	queue->token = ++token;
	if (mailbox) {
		memset(mailbox, 0, sizeof *mailbox);
		mailbox->token = token;
	}
	__sync_synchronize();
	queue->status_own = 1;
	__sync_synchronize();
	set_reg(DOORBELL, 1);
	while (queue->status_own & 1)
		if (seconds() > until)
			DIE("command 0x%x was never answered", opcode);
	__sync_synchronize();
	return queue->status_own >> 1 ? 0x100 + (queue->status_own >> 1) : (int)(be32toh(queue->output[0]) >> 24);
}

static void set_vector(void)
{
	struct {
		struct vfio_irq_set set;
		int32_t event;
	} irq = { { sizeof irq, VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_PCI_MSIX_IRQ_INDEX, 0, 1 }, 0 };

	irq.event = fds[EVENT];
	MUST(ioctl(fds[DEVICE], VFIO_DEVICE_SET_IRQS, &irq));
}

/* Has the kernel signal the first vector's eventfd. */
static void raise_vector(void)
{
	struct vfio_irq_set set = { sizeof set, VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_PCI_MSIX_IRQ_INDEX, 0, 1 };

	MUST(ioctl(fds[DEVICE], VFIO_DEVICE_SET_IRQS, &set));
}

/* Opens the function and brings it as far as ENABLE_HCA. Its vector has counted 1 afterwards. */
static void open_function(const char *pci, const char *group)
{
	struct vfio_region_info config = { .argsz = sizeof config, .index = VFIO_PCI_CONFIG_REGION_INDEX };
	uint16_t command_register = MEMORY_AND_MASTER;
	time_t until = seconds() + PATIENCE_S;

	fds[CONTAINER] = MUST(open("/dev/vfio/vfio", O_RDWR | O_CLOEXEC));
	fds[GROUP] = MUST(open(group, O_RDWR | O_CLOEXEC));
	MUST(ioctl(fds[GROUP], VFIO_GROUP_SET_CONTAINER, &fds[CONTAINER]));
	MUST(ioctl(fds[CONTAINER], VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU));
	fds[DEVICE] = MUST(ioctl(fds[GROUP], VFIO_GROUP_GET_DEVICE_FD, pci));
	MUST(ioctl(fds[DEVICE], VFIO_DEVICE_GET_REGION_INFO, &config));
	if (pwrite(fds[DEVICE], &command_register, 2, config.offset + COMMAND) != 2)
		DIE("the command register");
	fds[EVENT] = MUST(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	set_vector();
	raise_vector();
	queue = new_memory(&fds[MEMORY], "first", FIRST);
	map_bar();
	while (reg(INITIALIZING) >> 31)
		if (seconds() > until)
			DIE("the firmware never came up");
	set_reg(CMDQ_ADDRESS_HIGH, FIRST >> 32);
	set_reg(CMDQ_ADDRESS_LOW, (uint32_t)FIRST);
	while (reg(INITIALIZING) >> 31)
		if (seconds() > until)
			DIE("the firmware never took the queue");
	if (command(QUERY_PAGES, BOOT_PAGES, NULL, 0, 16) != BAD_SYS_STATE)
		DIE("QUERY_PAGES before ENABLE_HCA was not refused");
	if (command(ENABLE_HCA, 0, NULL, 0, 16) != 0)
		DIE("ENABLE_HCA: syndrome 0x%x", be32toh(queue->output[1]));
	SAY("opened by %d", getpid());
}

/* Goes on with a function whose descriptors another process has left. */
static void go_on(void)
{
	struct vfio_iommu_type1_dma_unmap unmap = { .argsz = sizeof unmap, .iova = FIRST, .size = SIZE };
	struct mailbox *mailbox;
	uint64_t counted = 0;
	int memory, status;

	map_bar();
	queue = mapped(fds[MEMORY]);
	if (be32toh(queue->input[0]) >> 16 != ENABLE_HCA || queue->status_own)
		DIE("the memory is not that of the one before");
	if (reg(CMDQ_ADDRESS_HIGH) != FIRST >> 32 || (reg(CMDQ_ADDRESS_LOW) & ~0xfffu) != (uint32_t)FIRST)
		DIE("the queue's address reads 0x%08x%08x: it was reset", reg(CMDQ_ADDRESS_HIGH), reg(CMDQ_ADDRESS_LOW));
	SAY("the queue's address reads 0x%08x", reg(CMDQ_ADDRESS_LOW) & ~0xfffu);
	status = command(QUERY_PAGES, BOOT_PAGES, NULL, 0, 16);
	if (status != 0)
		DIE("QUERY_PAGES: status 0x%x", status);
	SAY("the device wrote into the first memory: %d boot pages", (int)be32toh(queue->output[3]));
	mailbox = new_memory(&memory, "second", SECOND);
	status = command(QUERY_ISSI, 0, mailbox, SECOND, ISSI_OUTPUT);
	if (status != 0)
		DIE("QUERY_ISSI: status 0x%x", status);
	if (be32toh(*(uint32_t *)(mailbox->data + 0x5c)) == 0)
		DIE("QUERY_ISSI names no interface step");
	SAY("the device wrote into memory of %d", getpid());
	raise_vector();
	if (read(fds[EVENT], &counted, sizeof counted) != sizeof counted || counted != 2)
		DIE("the vector has counted %d", (int)counted);
	SAY("the vector has counted %d", (int)counted);
	MUST(ioctl(fds[CONTAINER], VFIO_IOMMU_UNMAP_DMA, &unmap));
	if (unmap.size != SIZE)
		DIE("%llu bytes were unmapped", (unsigned long long)unmap.size);
	SAY("the first memory is unmapped");
}

static struct sockaddr_un address_of(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	strncpy(address.sun_path, path, sizeof address.sun_path - 1);
	return address;
}

/* Sends or receives all descriptors in one message. */
static void pass(int socket, int sends)
{
	union {
		char bytes[CMSG_SPACE(sizeof fds)];
		struct cmsghdr align;
	} control = { .bytes = { 0 } };
	char byte = 0;
	struct iovec vector = { &byte, 1 };
	struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	if (sends) {
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof fds);
		memcpy(CMSG_DATA(header), fds, sizeof fds);
		MUST(sendmsg(socket, &message, 0));
		return;
	}
	MUST(recvmsg(socket, &message, MSG_CMSG_CLOEXEC));
	header = CMSG_FIRSTHDR(&message);
	if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof fds))
		DIE("no descriptors came");
	memcpy(fds, CMSG_DATA(header), sizeof fds);
}

static void heard(void)
{
	char byte;

	if (read(0, &byte, 1) != 1)
		DIE("nothing was said");
}

static void wait_for(const char *path)
{
	struct sockaddr_un address = address_of(path);
	int listener = MUST(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
	int other;
	char byte;

	MUST(bind(listener, (struct sockaddr *)&address, sizeof address));
	MUST(listen(listener, 1));
	other = MUST(accept(listener, NULL, NULL));
	pass(other, 0);
	/* The socket of a process that has ended is at its end. */
	if (MUST(read(other, &byte, 1)) != 0)
		DIE("the other process said something");
	go_on();
	SAY("done");
	heard();
}

static void give(const char *path, const char *pci, const char *group)
{
	struct sockaddr_un address = address_of(path);
	int other = MUST(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));

	open_function(pci, group);
	MUST(connect(other, (struct sockaddr *)&address, sizeof address));
	heard();
	munmap((void *)bar, 4096);
	pass(other, 1);
	_exit(0);
}

/* Tells systemd something (sd_notify(3)), with a descriptor or -1. */
static void tell(const char *text, int fd)
{
	union {
		char bytes[CMSG_SPACE(sizeof fd)];
		struct cmsghdr align;
	} control = { .bytes = { 0 } };
	struct sockaddr_un address = address_of(getenv("NOTIFY_SOCKET") ? getenv("NOTIFY_SOCKET") : "");
	struct iovec vector = { (void *)text, strlen(text) };
	struct msghdr message = { .msg_name = &address, .msg_iov = &vector, .msg_iovlen = 1 };
	socklen_t path = strlen(address.sun_path);
	int notify = MUST(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));

	message.msg_namelen = offsetof(struct sockaddr_un, sun_path) + path;
	if (address.sun_path[0] == '@')
		address.sun_path[0] = 0;
	if (fd >= 0) {
		struct cmsghdr *header;

		message.msg_control = &control;
		message.msg_controllen = sizeof control;
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(header), &fd, sizeof fd);
	}
	MUST(sendmsg(notify, &message, 0));
	close(notify);
}

/* Takes the descriptors of the store, by name. Returns whether there are any. */
static int stored(void)
{
	const char *pid = getenv("LISTEN_PID"), *names = getenv("LISTEN_FDNAMES");
	int found = 0, at = 3;
	char *list, *name;

	if (!pid || atoi(pid) != getpid() || !names)
		return 0;
	list = strdup(names);
	for (name = strtok(list, ":"); name; name = strtok(NULL, ":"), at++)
		for (int i = 0; i < DESCRIPTORS; i++)
			if (!strcmp(name, NAMES[i])) {
				fds[i] = at;
				found++;
			}
	if (found && found != DESCRIPTORS)
		DIE("%d of %d descriptors came back: %s", found, DESCRIPTORS, names);
	return found;
}

static void unit(const char *pci, const char *group)
{
	sigset_t term;
	int signal;

	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	sigprocmask(SIG_BLOCK, &term, NULL);
	if (stored()) {
		go_on();
		for (int i = 0; i < DESCRIPTORS; i++) {
			char text[64];

			snprintf(text, sizeof text, "FDSTOREREMOVE=1\nFDNAME=%s", NAMES[i]);
			tell(text, -1);
		}
		SAY("done");
	} else {
		open_function(pci, group);
		for (int i = 0; i < DESCRIPTORS; i++) {
			char text[64];

			snprintf(text, sizeof text, "FDSTORE=1\nFDNAME=%s\nFDPOLL=0", NAMES[i]);
			tell(text, fds[i]);
		}
	}
	tell("READY=1", -1);
	sigwait(&term, &signal);
	_exit(0);
}

int main(int count, char **words)
{
	if (count == 3 && !strcmp(words[1], "wait"))
		wait_for(words[2]);
	else if (count == 5 && !strcmp(words[1], "give"))
		give(words[2], words[3], words[4]);
	else if (count == 4 && !strcmp(words[1], "unit"))
		unit(words[2], words[3]);
	else
		DIE("wait SOCKET | give SOCKET PCI GROUP | unit PCI GROUP");
	return 0;
}
