/*
 * Signals that come while a thread is blocked in dat_evd_wait or dat_cno_wait. Arguments: the names of adapters.
 *
 * The signal is sent once, when the kernel reports that the thread sleeps or blocks the signal, which it does only in
 * a wait. So if the wait missed the signal, the thread would block for ever.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include "side.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FOR_EVER DAT_TIMEOUT_INFINITE

static atomic_int handled;

static void handler(int number)
{
	(void)number;
	atomic_fetch_add(&handled, 1);
}

static void handle(int flags)
{
	struct sigaction action = {0};

	action.sa_handler = handler;
	action.sa_flags = flags;
	EXPECT(sigaction(SIGUSR1, &action, NULL) == 0);
}

/* A thread in a wait, and the result of the wait. */
struct waiter {
	DAT_EVD_HANDLE evd;
	DAT_CNO_HANDLE cno;
	DAT_COUNT threshold;
	atomic_int tid;
	pthread_t thread;
	DAT_RETURN answer;
	DAT_COUNT nmore;
	DAT_EVENT event;
	DAT_EVD_HANDLE told;
};

static void *wait_in_thread(void *given)
{
	struct waiter *waiter = given;
	sigset_t mine;

	sigemptyset(&mine);
	sigaddset(&mine, SIGUSR1);
	pthread_sigmask(SIG_UNBLOCK, &mine, NULL);
	atomic_store(&waiter->tid, (int)syscall(SYS_gettid));
	if (waiter->cno)
		waiter->answer = dat_cno_wait(waiter->cno, FOR_EVER, &waiter->told);
	else
		waiter->answer =
			dat_evd_wait(waiter->evd, FOR_EVER, waiter->threshold, &waiter->event, &waiter->nmore);
	return NULL;
}

/* Finds a line of a file in the thread's /proc folder by its beginning, and copies the rest of the line. */
static int line_of(int tid, const char *name, const char *begin, char *rest, size_t room)
{
	char path[64], line[256];
	int found = 0;
	FILE *file;

	snprintf(path, sizeof path, "/proc/self/task/%d/%s", tid, name);
	file = fopen(path, "r");
	if (!file)
		return 0;
	while (!found && fgets(line, sizeof line, file))
		found = strncmp(line, begin, strlen(begin)) == 0;
	fclose(file);
	if (found)
		snprintf(rest, room, "%s", line + strlen(begin));
	return found;
}

/* Returns whether the thread is in the wait: asleep in ppoll with all signals unblocked, or running with all signals blocked. */
static int in_the_wait(int tid)
{
	char text[256];

	if (line_of(tid, "syscall", "", text, sizeof text) && strtol(text, NULL, 0) == SYS_ppoll)
		return 1;
	return line_of(tid, "status", "SigBlk:", text, sizeof text) &&
	       strtoull(text, NULL, 16) & (1ULL << (SIGUSR1 - 1));
}

static struct timespec in_20_seconds(void)
{
	struct timespec time;

	clock_gettime(CLOCK_REALTIME, &time);
	time.tv_sec += 20;
	return time;
}

static void block(struct waiter *waiter)
{
	struct timespec end = in_20_seconds(), now;

	waiter->nmore = -1;
	waiter->answer = 1;
	waiter->told = waiter->evd;
	EXPECT(pthread_create(&waiter->thread, NULL, wait_in_thread, waiter) == 0);
	while (!atomic_load(&waiter->tid) || !in_the_wait(atomic_load(&waiter->tid))) {
		clock_gettime(CLOCK_REALTIME, &now);
		EXPECT(now.tv_sec < end.tv_sec);
		sched_yield();
	}
}

static void returns(struct waiter *waiter, DAT_RETURN answer)
{
	struct timespec end = in_20_seconds();

	EXPECT(pthread_timedjoin_np(waiter->thread, NULL, &end) == 0);
	if (waiter->answer != answer)
		fprintf(stderr, "the wait answers 0x%08x, not 0x%08x\n", waiter->answer, answer);
	EXPECT(waiter->answer == answer);
}

#define INTERRUPTED (DAT_CLASS_ERROR | DAT_INTERRUPTED_CALL)

static void post(DAT_EVD_HANDLE evd, int number)
{
	DAT_EVENT event = {0};

	event.event_number = DAT_SOFTWARE_EVENT;
	event.event_data.software_event_data.pointer = (DAT_PVOID)(uintptr_t)number;
	TRY(dat_evd_post_se(evd, &event));
}

static void next_is(DAT_EVD_HANDLE evd, int number)
{
	DAT_EVENT event;
	DAT_COUNT nmore;

	TRY(dat_evd_wait(evd, PATIENCE, 1, &event, &nmore));
	EXPECT(event.event_data.software_event_data.pointer == (DAT_PVOID)(uintptr_t)number);
}

/* Sends a signal to the thread, or to the process in which only this thread takes it. */
static void signal_to(const struct waiter *waiter, int process)
{
	EXPECT((process ? kill(getpid(), SIGUSR1) : pthread_kill(waiter->thread, SIGUSR1)) == 0);
}

static void evd_waits(struct side *side, int process)
{
	struct waiter waiter = {.evd = side->evd, .threshold = 1};
	int before = atomic_load(&handled);

	block(&waiter);
	signal_to(&waiter, process);
	returns(&waiter, INTERRUPTED);
	EXPECT(waiter.nmore == 0 && atomic_load(&handled) == before + 1);
	/* The next event arrives as usual. */
	post(side->evd, 1);
	next_is(side->evd, 1);
	/* Events below the threshold are counted and stay in the EVD. */
	post(side->evd, 2);
	waiter = (struct waiter){.evd = side->evd, .threshold = 3};
	block(&waiter);
	post(side->evd, 3);
	signal_to(&waiter, process);
	returns(&waiter, INTERRUPTED);
	EXPECT(waiter.nmore == 2);
	next_is(side->evd, 2);
	next_is(side->evd, 3);
}

static void cno_waits(struct side *side, int process)
{
	struct waiter waiter = {0}, other = {0};
	DAT_EVD_HANDLE told = DAT_HANDLE_NULL;
	DAT_CNO_HANDLE cno;

	TRY(dat_cno_create(side->ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	TRY(dat_evd_modify_cno(side->evd, cno));
	waiter.cno = cno;
	waiter.evd = side->evd;
	block(&waiter);
	signal_to(&waiter, process);
	returns(&waiter, INTERRUPTED);
	EXPECT(waiter.told == DAT_HANDLE_NULL);
	post(side->evd, 4);
	TRY(dat_cno_wait(cno, PATIENCE, &told));
	EXPECT(told == side->evd);
	next_is(side->evd, 4);
	/* One of two waiting threads is interrupted; the other one gets the trigger that comes then. */
	waiter = (struct waiter){.cno = cno, .evd = side->evd};
	block(&waiter);
	other.cno = cno;
	block(&other);
	EXPECT(pthread_kill(waiter.thread, SIGUSR1) == 0);
	returns(&waiter, INTERRUPTED);
	post(side->evd, 5);
	returns(&other, DAT_SUCCESS);
	EXPECT(other.told == side->evd);
	next_is(side->evd, 5);
	/* No thread waits for it any more. */
	TRY(dat_evd_modify_cno(side->evd, DAT_HANDLE_NULL));
	TRY(dat_cno_free(cno));
}

/* Signals without a handler do not end a wait. */
static void without_a_handler(struct side *side)
{
	struct waiter waiter = {.evd = side->evd, .threshold = 1};

	EXPECT(signal(SIGUSR1, SIG_IGN) != SIG_ERR);
	block(&waiter);
	EXPECT(pthread_kill(waiter.thread, SIGUSR1) == 0);
	EXPECT(pthread_kill(waiter.thread, SIGCONT) == 0);
	post(side->evd, 6);
	returns(&waiter, DAT_SUCCESS);
	EXPECT(waiter.event.event_data.software_event_data.pointer == (DAT_PVOID)6);
}

static void agent(DAT_PVOID instance_data, DAT_EVD_HANDLE evd)
{
	(void)instance_data;
	(void)evd;
}

/* The library's own threads, including that of upcalls, take no signals of the program. */
static DAT_CNO_HANDLE with_upcalls(struct side *side)
{
	DAT_OS_WAIT_PROXY_AGENT called = {NULL, agent};
	DAT_CNO_HANDLE cno;

	TRY(dat_cno_create(side->ia, called, &cno));
	return cno;
}

int main(int count, char **names)
{
	sigset_t mine;
	int at, flags, process;

	/* The waiter unblocks them; all other threads block them. */
	sigemptyset(&mine);
	sigaddset(&mine, SIGUSR1);
	for (at = 1; at < count; at++) {
		struct side side;
		DAT_CNO_HANDLE upcalls;

		open_side(&side, names[at]);
		upcalls = with_upcalls(&side);
		EXPECT(pthread_sigmask(SIG_BLOCK, &mine, NULL) == 0);
		for (flags = 0; flags < 2; flags++)
			for (process = 0; process < 2; process++) {
				handle(flags ? SA_RESTART : 0);
				evd_waits(&side, process);
				cno_waits(&side, process);
			}
		without_a_handler(&side);
		EXPECT(pthread_sigmask(SIG_UNBLOCK, &mine, NULL) == 0);
		TRY(dat_cno_free(upcalls));
		close_side(&side);
		puts("interrupted");
	}
	return 0;
}
