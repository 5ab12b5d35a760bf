/* Memory with guard pages that grows, shrinks and moves: the C library has the kernel move page tables, guards and all.
   So it does here, or a copy goes around them. With an argument, all this after a limit on addresses. */
#define _GNU_SOURCE
#include "defect.h"

#include <malloc.h>
#include <sys/resource.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

static int pipe_of[2];

/* The kernel reads a page of a guard for nobody. */
static int is_guarded(const char *at) {
    char byte;
    if (write(pipe_of[1], at, 1) < 0) return errno == EFAULT;
    CHECK(read(pipe_of[0], &byte, 1) == 1);
    return 0;
}

static char *page_in(char *at, size_t from) { return (char *)(((size_t)at + from + PAGE - 1) & -PAGE); }

/* Every page but the guard's: `touched` says whether it holds anything. */
static void check_around(char *at, size_t len, char *guard, int touched) {
    for (size_t i = 0; i < len; i += 512)
        if (at + i < guard || at + i >= guard + PAGE) CHECK(at[i] == (touched ? (char)(i / 512 % 100 + 1) : 0));
}

static void fill_around(char *at, size_t len, char *guard) {
    for (size_t i = 0; i < len; i += 512)
        if (at + i < guard || at + i >= guard + PAGE) at[i] = (char)(i / 512 % 100 + 1);
}

static void check_block(char *given, size_t size, size_t from, int touched) {
    char *at = given ? given : touched ? malloc(size) : calloc(1, size);
    char *wall = malloc(size);
    CHECK(at && wall);
    memset(wall, 2, size);
    char *guard = page_in(at, from);
    size_t where = guard - at;
    CHECK(madvise(guard, PAGE, MADV_GUARD_INSTALL) == 0);
    if (touched) fill_around(at, size, guard);
    size_t sizes[] = {2 * size, 2 * size + 4096, 5 * size, size, 2 * size};
    for (int i = 0; i < 5; i++) {
        at = realloc(at, sizes[i]);
        CHECK(at);
        check_around(at, size, at + where, touched);
        CHECK(is_guarded(at + where));
    }
    if (!given) {
        CHECK(madvise(at + where, PAGE, MADV_GUARD_REMOVE) == 0);
        CHECK(is_zero(at + where, PAGE) && !is_guarded(at + where));
        CHECK(madvise(at + where, PAGE, MADV_GUARD_INSTALL) == 0);
    }
    free(at);
    /* Nobody else's memory has one. */
    for (int i = 0; i < 8; i++) {
        char *later = i % 2 ? malloc(size) : calloc(1, size);
        CHECK(later && (i % 2 == 0 || memset(later, 3, size)) && (i % 2 || is_zero(later, size)));
        free(later);
    }
    CHECK(is_all(wall, 2, size));
    free(wall);
}

static void check_mapping(size_t size) {
    char *at = mmap(NULL, size, RW, ANON, -1, 0);
    CHECK(at != MAP_FAILED);
    char *guard = page_in(at, size / 2);
    size_t where = guard - at;
    CHECK(madvise(guard, PAGE, MADV_GUARD_INSTALL) == 0);
    fill_around(at, size, guard);
    for (int i = 2; i < 5; i++) {
        at = mremap(at, (i - 1) * size, i * size, MREMAP_MAYMOVE);
        CHECK(at != MAP_FAILED);
        check_around(at, size, at + where, 1);
        CHECK(is_guarded(at + where));
    }
    CHECK(munmap(at, 4 * size) == 0);
}

int main(int count, char **arguments) {
    (void)arguments;
    guard(60);
    CHECK(pipe(pipe_of) == 0);
    char *probe = mmap(NULL, PAGE, RW, ANON, -1, 0);
    if (madvise(probe, PAGE, MADV_GUARD_INSTALL) != 0) return skip("no guard pages here");
    CHECK(mallopt(M_MMAP_THRESHOLD, 128 << 10) == 1);
    size_t sizes[] = {200000, 300000, MIB, 3 * MIB, 7 * MIB, 16 * MIB};
    char *before[6];
    for (int i = 0; i < 6; i++) CHECK(before[i] = malloc(sizes[i]));
    struct rlimit limit = {(size_t)1 << 36, RLIM_INFINITY};
    CHECK(count == 1 || setrlimit(RLIMIT_AS, &limit) == 0);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 6; i++) {
            check_block(NULL, sizes[i], sizes[i] / 2, round != 1);
            check_block(NULL, sizes[i], 100, round != 1);
            check_mapping(sizes[i] & -PAGE);
        }
    for (int i = 0; i < 6; i++) check_block(before[i], sizes[i], sizes[i] / 2, 1);
    puts("guarded");
    return 0;
}
