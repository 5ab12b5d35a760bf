/* Threads ask for memory while the kernel refuses it now and then: at vm.max_map_count ("maps"), or under a limit on
   data that a child lowers and raises ("data"). What each gets is its own, and zero. */
#include "limits.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

enum { THREADS = 10, KEPT = 64, TURNS = 60, MOST_MAPS = 70000 };

static atomic_int has_begun, done, bad;
static int maps;

struct block {
    char *at;
    size_t size;
};

static char *get(size_t size) {
    if (!maps) return calloc(1, size);
    char *at = mmap(NULL, size, RW, ANON, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* Each MiB says whose it is. */
static int has(const struct block *block, uint64_t tag) {
    for (size_t offset = 0; offset < block->size; offset += MIB)
        if (*(uint64_t *)(block->at + offset) != tag) return 0;
    return 1;
}

static void *work(void *argument) {
    uint64_t own = (uint64_t)(size_t)argument;
    unsigned state = own * 7919;
    struct block blocks[KEPT] = {0};
    while (!atomic_load(&has_begun)) usleep(100);
    for (int turn = 0; turn < TURNS; turn++) {
        int which = rand_r(&state) % KEPT;
        struct block *block = &blocks[which];
        if (block->at) {
            if (!has(block, own << 32 | which)) atomic_fetch_add(&bad, 1);
            continue;
        }
        size_t size = (rand_r(&state) % 7 + 1) * 2 * MIB;
        char *at = get(size);
        if (!at) {
            usleep(20);
            continue;
        }
        *block = (struct block){at, size};
        if (!has(block, 0)) atomic_fetch_add(&bad, 1);
        for (size_t offset = 0; offset < size; offset += MIB) *(uint64_t *)(at + offset) = own << 32 | which;
    }
    for (int which = 0; which < KEPT; which++)
        if (blocks[which].at && !has(&blocks[which], own << 32 | which)) atomic_fetch_add(&bad, 1);
    atomic_fetch_add(&done, 1);
    return NULL;
}

static void refuse_by_maps(void) {
    const size_t step = 2 * 4 * KIB;
    char *all = mmap(NULL, MOST_MAPS * step, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
    CHECK(all != MAP_FAILED);
    size_t count = 0;
    while (count < MOST_MAPS && mprotect(all + count * step, 4 * KIB, RW) == 0) count++;
    CHECK(count > 100);
    atomic_store(&has_begun, 1);
    while (atomic_load(&done) < THREADS) {
        size_t some = rand() % 30 + 2;
        usleep(rand() % 300);
        for (size_t nth = 1; nth <= some; nth++) mprotect(all + (count - nth) * step, 4 * KIB, PROT_NONE);
        usleep(rand() % 300);
        for (size_t nth = some; nth >= 1; nth--)
            if (mprotect(all + (count - nth) * step, 4 * KIB, RW) != 0) break;
    }
}

static void refuse_by_data(void) {
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct rlimit low = {8 * MIB, RLIM_INFINITY}, high = {RLIM_INFINITY, RLIM_INFINITY};
        for (;;) {
            prlimit(parent, RLIMIT_DATA, &low, NULL);
            usleep(rand() % 60);
            prlimit(parent, RLIMIT_DATA, &high, NULL);
            usleep(rand() % 120);
        }
    }
    CHECK(child > 0);
    atomic_store(&has_begun, 1);
    while (atomic_load(&done) < THREADS) usleep(1000);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

int main(int count, char **args) {
    guard();
    maps = count > 1 && strcmp(args[1], "maps") == 0;
    char *volatile first = get(4 * MIB);
    CHECK(first);
    *first = 1;
    pthread_t threads[THREADS];
    for (long nth = 0; nth < THREADS; nth++) CHECK(pthread_create(&threads[nth], NULL, work, (void *)(nth + 1)) == 0);
    if (maps) refuse_by_maps();
    else refuse_by_data();
    for (int nth = 0; nth < THREADS; nth++) CHECK(pthread_join(threads[nth], NULL) == 0);
    if (bad) printf("%d blocks are somebody else's as well\n", bad);
    puts("done");
    return 0;
}
