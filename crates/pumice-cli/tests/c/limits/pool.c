/* Requests that the pool has no room for, thousands of them, beside GiB of what is not used. Each must cost about
   what it costs plainly; alarm(2) ends a program for which it costs milliseconds. */
#include "limits.h"
#include <pthread.h>

/* As LTP's fork14: the address space fills, GiB by GiB, with what nobody touches. */
static void fill_space(size_t count, int protection, int flags) {
    char *maps[2000];
    for (size_t i = 0; i < count; i++) {
        maps[i] = mmap(NULL, GIB, protection, ANON | flags, -1, 0);
        CHECK(maps[i] != MAP_FAILED);
        if (i % 64 == 0 && protection == RW) maps[i][i * 4096] = i;
    }
    /* And a request while they are all there. */
    for (int i = 0; i < 2000; i++) {
        char *p = mmap(NULL, 3 * MIB, RW, ANON, -1, 0), *q = malloc(200 * KIB);
        CHECK(p != MAP_FAILED && q);
        p[i] = q[i] = 1;
        CHECK(munmap(p, 3 * MIB) == 0);
        free(q);
    }
    for (size_t i = 0; i < count; i++) CHECK(munmap(maps[i], GIB) == 0);
}

/* Above what the pool may hold, by both doors. */
static void above_most(void) {
    enum { HELD = 100 };
    char *held[HELD];
    for (int i = 0; i < HELD; i++) {
        held[i] = malloc(MIB);
        CHECK(held[i]);
        memset(held[i], i + 1, 4096);
    }
    for (int i = 0; i < 20000; i++) {
        size_t size = 64 * KIB + i % 50 * 40 * KIB;
        if (i % 2) {
            char *p = malloc(size);
            CHECK(p);
            p[0] = p[size - 1] = 1;
            free(p);
        } else {
            char *p = mmap(NULL, size + MIB, RW, ANON, -1, 0);
            CHECK(p != MAP_FAILED);
            p[0] = 1;
            CHECK(munmap(p, size + MIB) == 0);
        }
    }
    for (int i = 0; i < HELD; i++) {
        CHECK(held[i][0] == i + 1 && held[i][4095] == i + 1);
        free(held[i]);
    }
}

/* As LTP's mallocstress: threads that hold much, of sizes that grow, until all have it. */
static void *stress(void *seed) {
    enum { COUNT = 200 };
    unsigned state = (uintptr_t)seed;
    for (int round = 0; round < 6; round++) {
        char *blocks[COUNT];
        for (int i = 0; i < COUNT; i++) {
            state = state * 1103515245 + 12345;
            size_t size = 1 + (state >> 8) % (600 * KIB);
            blocks[i] = i % 3 ? malloc(size) : realloc(malloc(size / 3 + 1), size);
            CHECK(blocks[i]);
            blocks[i][0] = blocks[i][size / 2] = i;
        }
        for (int i = 0; i < COUNT; i++) {
            CHECK(blocks[i][0] == (char)i);
            free(blocks[i]);
        }
    }
    return NULL;
}

int main(void) {
    guard();
    fill_space(2000, PROT_NONE, 0);
    fill_space(2000, RW, MAP_NORESERVE);
    /* Where commitment is limited, what the kernel refuses is not our business. */
    above_most();
    pthread_t threads[8];
    for (uintptr_t i = 0; i < 8; i++) CHECK(pthread_create(&threads[i], NULL, stress, (void *)(i + 1)) == 0);
    for (int i = 0; i < 8; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    puts("done");
    return 0;
}
