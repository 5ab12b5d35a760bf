/* A libcuda for tests: copies when it is told to, and fails when it is told to. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { NOT_READY = 600, LAUNCH_FAILED = 719, INVALID = 1, OUT_OF_MEMORY = 2, MOST = 4096 };

/* What goes wrong: so many copies are taken before one fails, so many events are recorded before
 * one can't be, so many queries say that nothing is ready yet, or that all is lost. -1: never. */
static int copies_left = -1, records_left = -1, slow_queries, failing_queries;
static int lose_copies, registrations_left = -1, contexts;
/* A context is current on a thread. */
static __thread int context_depth;

struct copy { void *to; const void *from; size_t len; };
struct event { int recorded; };
static struct copy queue[MOST];
static int queued;
static struct range { char *at; size_t len; } registered[MOST];
static int registrations;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void fake_set(int copies, int records, int slow, int failing, int lose, int registers) {
    pthread_mutex_lock(&lock);
    copies_left = copies, records_left = records, slow_queries = slow, failing_queries = failing;
    lose_copies = lose, registrations_left = registers;
    pthread_mutex_unlock(&lock);
}

size_t fake_registrations(void) { return registrations; }
size_t fake_contexts(void) { return contexts; }
size_t fake_longest(void) {
    size_t most = 0;
    for (int i = 0; i < registrations; i++)
        if (registered[i].len > most) most = registered[i].len;
    return most;
}

int cuInit(unsigned flags) { return flags ? INVALID : 0; }
int cuDeviceGet(int *device, int which) { *device = which; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { contexts++; *context = &queue[device]; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; contexts--; return 0; }
int cuCtxPushCurrent_v2(void *context) { context_depth++; return context ? 0 : INVALID; }
int cuCtxPopCurrent_v2(void **context) { context_depth--; *context = 0; return 0; }
int cuMemHostRegister_v2(void *at, size_t len, unsigned flags) {
    if (flags != 1 || registrations == MOST || registrations_left == 0) return INVALID;
    if (registrations_left > 0) registrations_left--;
    /* As the driver: all of it has to be there. Not for what is larger than a test would touch. */
    if (len <= (1ul << 30)) mlock(at, len);
    registered[registrations].at = at, registered[registrations++].len = len;
    return 0;
}
int cuMemHostUnregister(void *at) {
    for (int i = 0; i < registrations; i++)
        if (registered[i].at == at) {
            if (registered[i].len <= (1ul << 30)) munlock(at, registered[i].len);
            registered[i] = registered[--registrations];
            return 0;
        }
    return INVALID;
}
int cuMemHostAlloc(void **at, size_t len, unsigned flags) {
    (void)flags;
    size_t *block = mmap(0, len + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return OUT_OF_MEMORY;
    *block = len;
    *at = (char *)block + 4096;
    memset(*at, 0, len);
    mlock(*at, len);
    return 0;
}
int cuMemFreeHost(void *at) { size_t *block = (size_t *)((char *)at - 4096); return munmap(block, *block + 4096) ? INVALID : 0; }
/* Not zero, as the driver's need not be. */
int cuMemAlloc_v2(uint64_t *at, size_t len) {
    void *memory = malloc(len);
    *at = (uintptr_t)memory;
    return memory ? memset(memory, 0x5a, len), 0 : OUT_OF_MEMORY;
}
/* Of device memory, on the NULL stream: over when that is waited for, and ordered with no stream of the others. */
static struct { void *at; size_t len; unsigned char byte; } fill;
int cuMemFree_v2(uint64_t at) { fill.at = 0; free((void *)(uintptr_t)at); return 0; }
int cuMemsetD8_v2(uint64_t at, unsigned char byte, size_t len) {
    fill.at = (void *)(uintptr_t)at, fill.byte = byte, fill.len = len;
    return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t len, void *stream) {
    int code = stream && context_depth > 0 ? 0 : INVALID, is_in_one = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < registrations; i++)
        is_in_one |= registered[i].at <= (char *)to && (char *)to + len <= registered[i].at + registered[i].len;
    if (!is_in_one) code = INVALID;
    if (copies_left == 0 || queued == MOST) code = LAUNCH_FAILED;
    else if (!code) {
        if (copies_left > 0) copies_left--;
        queue[queued++] = (struct copy){to, (void *)(uintptr_t)from, len};
    }
    pthread_mutex_unlock(&lock);
    return code;
}
int cuStreamCreate(void **stream, unsigned flags) { *stream = &lock; return flags == 1 ? 0 : INVALID; }
int cuStreamDestroy_v2(void *stream) { return stream == &lock ? 0 : INVALID; }
static void work(void) {
    for (int i = 0; i < queued; i++) memcpy(queue[i].to, queue[i].from, queue[i].len);
    queued = 0;
}
int cuStreamSynchronize(void *stream) {
    pthread_mutex_lock(&lock);
    if (!stream && fill.at) memset(fill.at, fill.byte, fill.len), fill.at = 0;
    if (!lose_copies) work();
    pthread_mutex_unlock(&lock);
    return 0;
}
int cuEventCreate(void **event, unsigned flags) { *event = calloc(1, sizeof(struct event)); return flags == 2 ? 0 : INVALID; }
int cuEventDestroy_v2(void *event) { free(event); return 0; }
int cuEventRecord(void *event, void *stream) {
    if (!stream || records_left == 0) return LAUNCH_FAILED;
    if (records_left > 0) records_left--;
    ((struct event *)event)->recorded = 1;
    return 0;
}
int cuEventQuery(void *event) {
    int code = 0;
    pthread_mutex_lock(&lock);
    if (!((struct event *)event)->recorded) { /* as the driver: nothing is over of nothing */ }
    else if (lose_copies) code = NOT_READY;
    else if (failing_queries > 0) failing_queries--, code = LAUNCH_FAILED;
    else if (slow_queries > 0) slow_queries--, code = NOT_READY;
    else work();
    pthread_mutex_unlock(&lock);
    return code;
}
