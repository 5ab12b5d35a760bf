/* For programs that have about as many mappings as they may. */
#ifndef MAPPINGS_H
#define MAPPINGS_H

#include "defect.h"

enum { MOST_COUNT = 100000 };

static char *filler;
static size_t split;

/* Before all else: 0 where so many are allowed that it would take long. */
static inline int begin_filling(void) {
    FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
    long most = 0;
    CHECK(file && fscanf(file, "%ld", &most) == 1);
    fclose(file);
    if (most > MOST_COUNT) return 0;
    filler = mmap(NULL, (most + 2) * PAGE, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
    CHECK(filler != MAP_FAILED);
    return 1;
}

/* Every other page becomes readable, until there is no room for another mapping. */
static inline void fill_up(void) {
    while (mprotect(filler + 2 * split * PAGE, PAGE, PROT_READ) == 0) split++;
    CHECK(errno == ENOMEM);
}

/* Each gives room for two mappings. */
static inline void make_room(size_t count) {
    for (; count; count--) {
        split--;
        CHECK(mprotect(filler + 2 * split * PAGE, PAGE, PROT_NONE) == 0);
    }
}

#endif
