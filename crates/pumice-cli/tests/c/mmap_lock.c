/* mlock and its family: over parts, over everything, over what is yet to come, and without the
   right to. No lock outlives its mapping. */
#define _GNU_SOURCE
#include "mmap.h"
#include <sys/resource.h>

#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif
#ifndef MCL_ONFAULT
#define MCL_ONFAULT 4
#endif

static long lock(char *at, size_t length) {
    return mlock(at, length);
}

static long lock_on_fault(char *at, size_t length) {
    return mlock2(at, length, MLOCK_ONFAULT);
}

static long lock_and_unlock(char *at, size_t length) {
    int result = mlock(at, length), error = errno;
    if (munlock(at, length) != result) return puts("munlock does not agree"), 0;
    errno = error;
    return result;
}

static long unlock(char *at, size_t length) {
    return munlock(at, length);
}

/* What is locked can't be dropped or freed. */
static long lock_and_drop(char *at, size_t length) {
    if (mlock(at, length) != 0) return -1;
    return madvise(at, length, MADV_DONTNEED);
}

static long lock_and_drop_locked(char *at, size_t length) {
    if (mlock(at, length) != 0) return -1;
    return madvise(at, length, 24);
}

/* Whether all pages are resident, which is known of locked pages only. */
static int resident(char *pages, size_t count) {
    static unsigned char bytes[BIGGEST];
    CHECK(mincore(pages, count * PAGE, bytes) == 0);
    for (size_t i = 0; i < count; i++)
        if (!(bytes[i] & 1)) return 0;
    return 1;
}

/* A letter for each page: `l` if it can't be dropped, `u` if it can. */
static void show_locks(char *pages, size_t count) {
    static char letters[BIGGEST];
    for (size_t i = 0; i < count; i++) {
        unsigned char byte;
        int there = mincore(pages + i * PAGE, PAGE, &byte) == 0;
        letters[i] = !there ? '-' : madvise(pages + i * PAGE, PAGE, MADV_DONTNEED) ? 'l' : 'u';
    }
    show_letters(letters, count);
}

static void test_parts(void) {
    over_all("mlock", lock);
    over_some("mlock2", lock_on_fault);
    over_some("mlock and munlock", lock_and_unlock);
    over_all("munlock", unlock);
    over_some("mlock and DONTNEED", lock_and_drop);
    over_some("mlock and DONTNEED_LOCKED", lock_and_drop_locked);
}

static void test_which(void) {
    struct region r = make(EXACT, SMALL);
    char *p = map(SMALL * PAGE);
    printf("mlock %s", TRY(mlock(r.base + 20 * PAGE, 100 * PAGE)));
    printf(", mlock2 %s", TRY(mlock2(r.base + 150 * PAGE + 5, 50 * PAGE, 0)));
    printf(", munlock %s", TRY(munlock(r.base + 50 * PAGE, 10 * PAGE)));
    printf(", bad flags %s", TRY(mlock2(r.base, PAGE, 2)));
    printf(" %s:", TRY(mlock2(r.base, PAGE, -1)));
    show_locks(r.base, SMALL);
    show(r.base, 0, SMALL);
    /* Never touched, and resident all the same. */
    const char *result = TRY(mlock(p, SMALL * PAGE));
    printf(", untouched %s", result);
    if (strcmp(result, "ok") == 0) CHECK(resident(p, SMALL));
    check_fresh(p, SMALL);
    puts("");
    /* What takes the place of locked memory is not locked, and what is protected stays locked. */
    put_fixed(p + 50 * PAGE, 50, RW, ANON, 0);
    CHECK(mprotect(p + 120 * PAGE, 50 * PAGE, PROT_READ) == 0);
    CHECK(munmap(p + 200 * PAGE, 50 * PAGE) == 0);
    printf("replaced, protected and unmapped:");
    show_locks(p, SMALL);
    puts("");
    CHECK(munmap(p, SMALL * PAGE) == 0);
    finish(r);
}

/* New mappings can be dropped and freed, wherever locked ones were. */
static void test_reuse(void) {
    for (size_t pages = 256; pages < 1200; pages += 211) {
        char *maps[6];
        for (int i = 0; i < 6; i++) {
            maps[i] = map(pages * PAGE);
            mlock(maps[i] + i * PAGE, (pages - 2 * i) * PAGE / (i % 2 + 1));
        }
        for (int i = 0; i < 6; i++) CHECK(munmap(maps[i], pages * PAGE) == 0);
        for (int i = 0; i < 6; i++) {
            check_fresh(maps[i] = map(pages * PAGE), pages);
            CHECK(madvise(maps[i], pages * PAGE, MADV_DONTNEED) == 0);
            CHECK(madvise(maps[i], pages * PAGE, MADV_FREE) == 0);
            check_fresh(maps[i], pages);
        }
        for (int i = 0; i < 6; i++) CHECK(munmap(maps[i], pages * PAGE) == 0);
    }
    puts("reuse: ok");
}

/* Moved and resized, locked memory stays locked. */
static void test_remap(void) {
    struct region r = make(EXACT, SMALL);
    const char *result = TRY(mlock(r.base, SMALL * PAGE));
    char *p = mremap(r.base, SMALL * PAGE, LARGE * PAGE, MREMAP_MAYMOVE);
    CHECK(p != MAP_FAILED);
    if (strcmp(result, "ok") == 0) CHECK(resident(p, LARGE));
    printf("mlock %s, grown:", result);
    show(p, 0, LARGE);
    show_locks(p, LARGE);
    CHECK(mremap(p, LARGE * PAGE, 100 * PAGE, 0) == p);
    printf(", shrunk:");
    show_locks(p, 100);
    puts("");
    CHECK(munmap(p, 100 * PAGE) == 0);
    map_fresh(LARGE);
}

static void test_all(void) {
    char *before = map(SMALL * PAGE), *parts = map(LARGE * PAGE);
    char *none = mmap(NULL, SMALL * PAGE, PROT_NONE, ANON, -1, 0);
    CHECK(none != MAP_FAILED && munmap(parts + 300 * PAGE, 500 * PAGE) == 0);
    static const int bad[] = {0, 8, -1, MCL_ONFAULT};
    for (int i = 0; i < 4; i++) printf("mlockall(%d): %s, ", bad[i], TRY(mlockall(bad[i])));

    const char *result = TRY(mlockall(MCL_CURRENT));
    printf("current: %s:", result);
    if (strcmp(result, "ok") == 0) CHECK(resident(before, SMALL) && resident(parts, 300));
    show_locks(before, SMALL);
    show_locks(parts, LARGE);
    show_locks(none, SMALL);
    char *after = map(SMALL * PAGE);
    printf(", mapped after:");
    show_locks(after, SMALL);
    CHECK(munmap(after, SMALL * PAGE) == 0);
    printf("\nmunlockall %s:", TRY(munlockall()));
    show_locks(before, SMALL);
    show_locks(parts, LARGE);
    puts("");

    static const int futures[] = {MCL_FUTURE, MCL_CURRENT | MCL_FUTURE, MCL_FUTURE | MCL_ONFAULT};
    for (int i = 0; i < 3; i++) {
        result = TRY(mlockall(futures[i]));
        printf("future %d: %s,", futures[i], result);
        after = map(SMALL * PAGE);
        if (strcmp(result, "ok") == 0 && !(futures[i] & MCL_ONFAULT)) CHECK(resident(after, SMALL));
        check_fresh(after, SMALL);
        show_locks(after, SMALL);
        void *block = malloc(5 << 20);
        CHECK(block != NULL);
        memset(block, 1, 5 << 20);
        free(block);
        CHECK(munmap(after, SMALL * PAGE) == 0);
        for (int j = 0; j < 4; j++) map_fresh(LARGE);
        printf(" munlockall %s,", TRY(munlockall()));
        after = map(SMALL * PAGE);
        show_locks(after, SMALL);
        CHECK(munmap(after, SMALL * PAGE) == 0);
        puts("");
    }
    CHECK(munmap(before, SMALL * PAGE) == 0 && munmap(parts, LARGE * PAGE) == 0);
    CHECK(munmap(none, SMALL * PAGE) == 0);
    map_fresh(LARGE);
}

/* Children inherit no locks, and a parent keeps its own. */
static void test_children(void) {
    struct region r = make(EXACT, SMALL);
    printf("mlock %s, in a child:", TRY(mlock(r.base, 200 * PAGE)));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        show(r.base, 0, SMALL);
        show_locks(r.base, SMALL);
        map_fresh(LARGE);
        fflush(stdout);
        _exit(0);
    }
    wait_for(child);
    printf(", in the parent:");
    show(r.base, 0, SMALL);
    show_locks(r.base, SMALL);
    puts("");
    finish(r);
}

/* Without the right, up to the limit and no further. */
static void test_limit(rlim_t bytes) {
    fflush(stdout);
    pid_t child = fork();
    if (child) {
        wait_for(child);
        return;
    }
    struct rlimit limit = {bytes, bytes};
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    if (getuid() == 0) CHECK(setuid(65534) == 0);
    struct region r = make(EXACT, SMALL);
    printf("limit %zu: 1 page %s", (size_t)bytes, TRY(mlock(r.base, PAGE)));
    printf(", 32 pages %s", TRY(mlock(r.base, 32 * PAGE)));
    printf(", 300 pages %s", TRY(mlock(r.base, SMALL * PAGE)));
    printf(", MCL_FUTURE %s", TRY(mlockall(MCL_FUTURE)));
    char *p = mmap((errno = 77, NULL), LARGE * PAGE, RW, ANON, -1, 0);
    printf(", mapped then %s", outcome((long)p));
    if (p != MAP_FAILED) CHECK(munmap(p, LARGE * PAGE) == 0);
    p = mmap((errno = 77, NULL), LARGE * PAGE, RW, ANON | MAP_LOCKED, -1, 0);
    printf(", with MAP_LOCKED %s", outcome((long)p));
    if (p != MAP_FAILED) CHECK(munmap(p, LARGE * PAGE) == 0);
    printf(", munlock %s", TRY(munlock(r.base, SMALL * PAGE)));
    printf(", munlockall %s\n", TRY(munlockall()));
    finish(r);
    fflush(stdout);
    _exit(0);
}

int main(void) {
    begin();
    test_parts();
    test_which();
    test_reuse();
    test_remap();
    test_all();
    test_children();
    test_limit(0);
    test_limit(64 << 10);
    test_limit(3 << 20);
    return end();
}
