/* Allocations of which the program has sealed a part: nobody can unmap that, so free and realloc leave it, and no
   other allocation suffers from it. */
#define _GNU_SOURCE
#include "defect.h"

#include <malloc.h>

#define MSEAL 462

enum { FREE, GROW, SHRINK, LEAST, WAYS };

static const size_t size = 16 * MIB;

static void check_after(int way, size_t from, size_t len) {
    char *at = malloc(size), *wall = malloc(size);
    CHECK(at && wall);
    memset(at, 1, size);
    memset(wall, 2, size);
    char *page = (char *)(((size_t)at + PAGE - 1) & -PAGE);
    CHECK(syscall(MSEAL, page + from, len, 0) == 0);
    size_t now = way == GROW ? 40 * MIB : way == SHRINK ? 8 * MIB : 100000;
    if (way != FREE) {
        at = realloc(at, now);
        CHECK(at);
        CHECK(is_all(at, 1, now < size ? now : size));
        at[now - 1] = 1;
    }
    free(at);
    char *later[48];
    for (int i = 0; i < 48; i++) {
        size_t len = (1 + i % 8) * MIB;
        later[i] = i % 2 ? calloc(1, len) : malloc(len);
        CHECK(later[i] && malloc_usable_size(later[i]) >= len);
        if (i % 2) CHECK(is_zero(later[i], len));
        memset(later[i], 9, len);
    }
    for (int i = 0; i < 48; i++) free(later[i]);
    CHECK(is_all(wall, 2, size));
    free(wall);
}

/* The kernel refuses a call of which a part is sealed, and then nothing of it is done. */
static void check_mapping(void) {
    char *at = mmap(NULL, size, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    memset(at, 1, size);
    CHECK(syscall(MSEAL, at + 4 * MIB, 2 * MIB, 0) == 0);
    CHECK(munmap(at, size) == -1 && errno == EPERM);
    CHECK(munmap(at + 5 * MIB, 5 * MIB) == -1 && errno == EPERM);
    for (int shared = 0; shared < 2; shared++) {
        int flags = (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS | MAP_FIXED;
        CHECK(mmap(at, size, RW, flags, -1, 0) == MAP_FAILED && errno == EPERM);
    }
    CHECK(is_all(at, 1, size));
    CHECK(munmap(at, 4 * MIB) == 0 && munmap(at + 6 * MIB, size - 6 * MIB) == 0);
    CHECK(is_all(at + 4 * MIB, 1, 2 * MIB));
}

int main(void) {
    guard(100);
    if (syscall(MSEAL, NULL, 0, 0) != 0) return skip("no mseal(2) here");
    CHECK(mallopt(M_MMAP_THRESHOLD, 128 << 10) == 1);
    for (int i = 0; i < 6; i++) {
        char *at = malloc(size);
        CHECK(at);
        memset(at, 1, size);
        free(at);
    }
    for (int way = 0; way < WAYS; way++) {
        check_after(way, 0, 12 * MIB);
        check_after(way, 3 * MIB, PAGE);
        check_after(way, 12 * MIB, 2 * MIB);
    }
    check_mapping();
    puts("left alone");
    return 0;
}
