/* realloc of memory with attributes, in a process that has about as many mappings as it may, while another thread takes
   each mapping that comes free. The kernel fails in the middle of a move there. */
#define _GNU_SOURCE
#include "mappings.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SPARE = 2500, ROUNDS = 4 };

static const size_t size = 16 << 20;
static atomic_int go, stop;

static char *taken[2 * SPARE];
static size_t count;

static void *take(void *unused) {
    while (!atomic_load(&go)) ;
    while (!atomic_load(&stop) && count < 2 * SPARE) {
        char *at = mmap(NULL, PAGE, count & 1 ? PROT_READ : PROT_NONE, ANON, -1, 0);
        if (at != MAP_FAILED) taken[count++] = at;
    }
    return unused;
}

int main(void) {
    guard(100);
    if (!begin_filling()) return skip("too many mappings are allowed here");
    for (int round = 0; round < ROUNDS; round++) {
        char *at = malloc(size), *wall = malloc(size);
        CHECK(at && wall);
        memset(at, 0x5a, size);
        memset(wall, 1, size);
        char *first = (char *)(((size_t)at + PAGE - 1) & -PAGE);
        for (size_t page = 0; page < size / PAGE - 1; page += 2)
            CHECK(madvise(first + page * PAGE, PAGE, MADV_DONTFORK) == 0);
        fill_up();
        make_room(SPARE / 2);
        pthread_t thread;
        count = 0, go = 0, stop = 0;
        CHECK(pthread_create(&thread, NULL, take, NULL) == 0);
        atomic_store(&go, 1);
        char *now = realloc(at, size + size / 2);
        atomic_store(&stop, 1);
        CHECK(pthread_join(thread, NULL) == 0);
        if (!now) now = at;
        CHECK(is_all(now, 0x5a, size));
        for (size_t nth = 0; nth < count; nth++) CHECK(munmap(taken[nth], PAGE) == 0);
        make_room(split);
        for (int nth = 0; nth < 4; nth++) {
            char *zeros = calloc(1, size + size / 2);
            CHECK(zeros);
            CHECK(is_zero(zeros, size + size / 2));
            memset(zeros, 7, size + size / 2);
            free(zeros);
        }
        free(now);
        free(wall);
    }
    puts("done");
    return 0;
}
