/* mremap where the process has about as many mappings as it may: whether it is done or refused, all is there
   afterwards, at the one place or the other. */
#define _GNU_SOURCE
#include "mappings.h"

enum { LEAST_ROOM = 0, MOST_ROOM = 12, SIZE = 2 << 20 };

enum { PIECES = 4 };

/* A word for each page, whatever its protection. */
static void stamp_all(char *at) { stamp(at, 0, SIZE / PAGE); }

static int holds_all(char *at) {
    for (int i = 0; i < SIZE / PAGE; i++)
        if (content(at + i * PAGE) != OLD_WORD + i) return 0;
    return 1;
}

static void try(size_t room, int several, int fixed, int grown) {
    make_room(16);
    char *at = map(SIZE), *to = map(2 * SIZE);
    stamp_all(at);
    for (int i = 0; i < PIECES && several; i++)
        CHECK(mprotect(at + i * (SIZE / PIECES) + PAGE, 4 * PAGE, PROT_READ) == 0);
    fill_up();
    make_room(room);
    size_t size = grown ? 2 * SIZE : SIZE;
    char *moved = mremap(at, SIZE, size, MREMAP_MAYMOVE | (fixed ? MREMAP_FIXED : 0), to);
    int is_moved = moved != MAP_FAILED;
    if (!is_moved) CHECK(errno == ENOMEM || errno == EFAULT);
    make_room(24);
    if (is_moved) {
        CHECK(holds_all(moved));
        if (grown) CHECK(is_zero(moved + SIZE, SIZE));
    } else {
        /* Several mappings may have moved in part, each of them whole. */
        char *there = fixed ? to : at;
        unsigned char seen;
        for (int i = 0; i < SIZE / PAGE; i++) {
            int is_here = mincore(at + i * PAGE, PAGE, &seen) == 0 && content(at + i * PAGE) == OLD_WORD + i;
            CHECK(is_here || (mincore(there + i * PAGE, PAGE, &seen) == 0
                              && content(there + i * PAGE) == OLD_WORD + i));
        }
    }
    munmap(at, SIZE), munmap(to, 2 * SIZE);
    if (is_moved) CHECK(munmap(moved, size) == 0);
    char *next = map(SIZE);
    CHECK(is_zero(next, SIZE) && mprotect(next, SIZE, RW) == 0);
    memset(next, 1, SIZE);
    CHECK(munmap(next, SIZE) == 0);
}

/* Blocks of malloc's, which may grow by being moved. */
static void try_realloc(size_t room) {
    make_room(16);
    char *at = malloc(4 * SIZE), *behind = malloc(4 * SIZE);
    fill(at, 4 * SIZE, 5);
    CHECK(madvise((char *)(((uintptr_t)at + MIB) / PAGE * PAGE), PAGE, MADV_DONTFORK) == 0);
    fill_up();
    make_room(room);
    char *moved = realloc(at, 8 * SIZE);
    CHECK(holds(moved ? moved : at, 4 * SIZE, 5));
    make_room(24);
    free(moved ? moved : at), free(behind);
    CHECK(is_zero(at = calloc(1, 4 * SIZE), 4 * SIZE));
    free(at);
}

int main(void) {
    guard(150);
    if (!begin_filling()) return skip("too many mappings are allowed here");
    free(memset(malloc(3 << 20), 1, 3 << 20));
    for (int i = 0; i < 2; i++) CHECK(munmap(memset(map(SIZE), 1, SIZE), SIZE) == 0);
    fill_up();
    for (size_t room = LEAST_ROOM; room < MOST_ROOM; room += room < 6 ? 1 : 3) {
        for (int kind = 0; kind < 8; kind++) try(room, kind & 1, kind >> 1 & 1, kind >> 2);
        try_realloc(room);
    }
    puts("done");
    return 0;
}
