/* Threads that map, change, hand to each other and unmap, and handlers of signals that do. The
   argument is how many mappings each thread makes. */
#define _GNU_SOURCE
#include "mmap.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/time.h>

enum { THREADS = 8, MAILBOXES = 32, MOST = 900 };

static int rounds = 200;

/* What was mapped and is on its way to another thread; it lies in the mapping's first page. */
struct parcel {
    uint64_t pages, seed;
};
static _Atomic(char *) mailboxes[MAILBOXES];

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void mark(char *p, uint64_t pages, uint64_t seed) {
    *(struct parcel *)p = (struct parcel){pages, seed};
    for (uint64_t i = 1; i < pages; i++) put(p + i * PAGE, seed + i);
}

static void check_and_unmap(char *p, uint64_t *state) {
    struct parcel parcel = *(struct parcel *)p;
    for (uint64_t i = 1; i < parcel.pages; i++) CHECK(content(p + i * PAGE) == parcel.seed + i);
    size_t head = next_random(state) % 3 ? 0 : next_random(state) % (parcel.pages - 1) + 1;
    if (head) CHECK(munmap(p, head * PAGE) == 0);
    CHECK(munmap(p + head * PAGE, (parcel.pages - head) * PAGE) == 0);
}

/* Does one thing to a piece, and makes up for it. */
static char *change(char *p, uint64_t *pages, uint64_t seed, uint64_t *state) {
    uint64_t first = 1 + next_random(state) % (*pages - 1), count = next_random(state) % (*pages - first) + 1;
    char *at = p + first * PAGE;
    if (first + count > *pages) return p;
    switch (next_random(state) % 6) {
    case 0:
        CHECK(madvise(at, count * PAGE, MADV_DONTNEED) == 0);
        check_fresh(at, count);
        break;
    case 1:
        CHECK(mprotect(at, count * PAGE, PROT_READ) == 0);
        CHECK(content(at) == seed + first && faults(at, WRITE));
        CHECK(mprotect(at, count * PAGE, RW) == 0);
        break;
    case 2:
        put_fixed(at, count, RW, ANON, 0);
        check_fresh(at, count);
        break;
    case 3:
        /* Shorter from now on. */
        CHECK(munmap(at, (*pages - first) * PAGE) == 0);
        *pages = first;
        return p;
    case 4:
        p = mremap(p, *pages * PAGE, (*pages + 50) * PAGE, MREMAP_MAYMOVE);
        CHECK(p != MAP_FAILED);
        check_fresh(p + *pages * PAGE, 50);
        *pages += 50;
        return p;
    default:
        madvise(at, count * PAGE, next_random(state) % 2 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    }
    return p;
}

static void *work(void *argument) {
    uint64_t state = (uintptr_t)argument * 0x2545f4914f6cdd1du + 1;
    for (int round = 0; round < rounds; round++) {
        uint64_t pages = 10 + next_random(&state) % MOST, seed = next_random(&state) | 1 << 20;
        char *p = map(pages * PAGE);
        check_fresh(p, pages);
        mark(p, pages, seed);
        p = change(p, &pages, seed, &state);
        if (pages < 2) {
            CHECK(munmap(p, pages * PAGE) == 0);
            continue;
        }
        mark(p, pages, seed);
        p = atomic_exchange(&mailboxes[next_random(&state) % MAILBOXES], p);
        if (p) check_and_unmap(p, &state);
        if (round % 16 == 0) {
            char *block = calloc(1, 300000);
            CHECK(is_zero(block, 300000));
            memset(block, 1, 300000);
            free(block);
        }
    }
    return NULL;
}

static void test_threads(void) {
    for (int life = 0; life < 2; life++) {
        pthread_t threads[THREADS];
        for (uintptr_t i = 0; i < THREADS; i++)
            CHECK(pthread_create(&threads[i], NULL, work, (void *)(life * THREADS + i)) == 0);
        for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    }
    uint64_t state = 1;
    for (int i = 0; i < MAILBOXES; i++)
        if (mailboxes[i]) check_and_unmap(mailboxes[i], &state);
    puts("threads: ok");
}

/* Mappings of a handler's own, whatever it interrupted. */
static volatile sig_atomic_t signals;
static char *kept_by_handler;

static void handle(int number) {
    (void)number;
    int error = errno;
    size_t pages = 256 + signals * 37 % 400;
    char *p = map(pages * PAGE);
    for (size_t i = 0; i < pages; i += 5) {
        CHECK(content(p + i * PAGE) == 0);
        put(p + i * PAGE, 3);
    }
    CHECK(mprotect(p, 10 * PAGE, PROT_READ) == 0);
    CHECK(madvise(p + 10 * PAGE, 20 * PAGE, MADV_DONTNEED) == 0 && content(p + 10 * PAGE) == 0);
    CHECK(munmap(p + 100 * PAGE, 50 * PAGE) == 0);
    CHECK(munmap(p, 100 * PAGE) == 0 && munmap(p + 150 * PAGE, (pages - 150) * PAGE) == 0);
    /* And one that outlives the call. */
    if (kept_by_handler) {
        CHECK(content(kept_by_handler) == 9 && munmap(kept_by_handler, 300 * PAGE) == 0);
        kept_by_handler = NULL;
    } else {
        kept_by_handler = map(300 * PAGE);
        CHECK(content(kept_by_handler) == 0);
        put(kept_by_handler, 9);
    }
    signals++;
    errno = error;
}

static void test_signals(void) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    uint64_t state = 7;
    for (int i = 0; signals < 100 || i < 200; i++) {
        uint64_t pages = 256 + next_random(&state) % 300, seed = (uint64_t)i << 32;
        char *p = map(pages * PAGE);
        for (size_t page = 0; page < pages; page += 3) CHECK(content(p + page * PAGE) == 0);
        mark(p, pages, seed);
        p = change(p, &pages, seed, &state);
        if (pages > 1) {
            mark(p, pages, seed);
            check_and_unmap(p, &state);
        } else CHECK(munmap(p, PAGE) == 0);
        if (i % 4 == 0) free(malloc(1 << 20));
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    if (kept_by_handler) CHECK(munmap(kept_by_handler, 300 * PAGE) == 0);
    puts("signals: ok");
}

int main(int count, char **arguments) {
    if (count > 1) rounds = atoi(arguments[1]);
    begin();
    test_threads();
    test_signals();
    return end();
}
