/* madvise and posix_madvise with every advice there is, mincore and msync, over parts of regions:
   what becomes of the content, and that no advice outlives its mapping. */
#define _GNU_SOURCE
#include "mmap.h"

static int advice;

static long advise(char *at, size_t length) {
    return madvise(at, length, advice);
}

static long advise_posix(char *at, size_t length) {
    int error = posix_madvise(at, length, advice);
    if (error == 0) return 0;
    errno = error;
    return -1;
}

/* By number, as older headers lack the newer ones. Not among them: 100 and 101, which take frames
   from the machine, and 25, whose success is a matter of luck. */
static const struct { const char *name; int advice; } advices[] = {
    {"NORMAL", 0}, {"RANDOM", 1}, {"SEQUENTIAL", 2}, {"WILLNEED", 3}, {"REMOVE", 9},
    {"DONTFORK", 10}, {"DOFORK", 11}, {"MERGEABLE", 12}, {"UNMERGEABLE", 13}, {"HUGEPAGE", 14},
    {"NOHUGEPAGE", 15}, {"DONTDUMP", 16}, {"DODUMP", 17}, {"WIPEONFORK", 18}, {"KEEPONFORK", 19},
    {"COLD", 20}, {"PAGEOUT", 21}, {"POPULATE_READ", 22}, {"POPULATE_WRITE", 23},
    {"DONTNEED_LOCKED", 24}, {"GUARD_INSTALL", 102}, {"GUARD_REMOVE", 103}, {"5", 5}, {"7", 7},
    {"26", 26}, {"99", 99}, {"1000", 1000}, {"-1", -1},
};
#define ADVICES (sizeof advices / sizeof advices[0])

static void test_all(void) {
    advice = MADV_DONTNEED;
    over_all("DONTNEED", advise);
    for (size_t i = 0; i < ADVICES; i++) {
        advice = advices[i].advice;
        over_some(advices[i].name, advise);
        over_parts(advices[i].name, advise, EXACT, LARGE, 1);
    }
    /* Bad arguments, with an advice that does nothing. */
    advice = MADV_NORMAL;
    over_parts("NORMAL", advise, ONE, SMALL, PARTS);
    over_parts("NORMAL", advise, NONE, SMALL, PARTS);
}

/* Freed pages hold what they held, or zeros, until they are written; then they stay. */
static void test_free(void) {
    for (int kind = 0; kind < KINDS; kind++) {
        struct region r = make(kind, SMALL);
        struct part parts[PARTS];
        list_parts(r, parts);
        for (int i = 0; i < PARTS; i++) {
            if (!parts[i].name) continue;
            const char *result = TRY(madvise(r.base + parts[i].offset, parts[i].length, MADV_FREE));
            printf("FREE, %s, %s: %s\n", kind_names[kind], parts[i].name, result);
        }
        char letters[SMALL];
        for (size_t i = 0; i < SMALL; i++) {
            letters[i] = look(r.base + i * PAGE, i);
            /* A file's page may be any of three. */
            if (strchr("ozf", letters[i])) letters[i] = 'o';
            if (strchr("OZF", letters[i])) letters[i] = 'O';
        }
        show_letters(letters, SMALL);
        for (size_t i = 0; i < SMALL; i++)
            if (letters[i] == 'o') put(r.base + i * PAGE, OLD_WORD + i);
        for (int round = 0; round < 3; round++) map_fresh(LARGE);
        printf(", written:");
        for (size_t i = 0; i < SMALL; i++)
            letters[i] = letters[i] == 'o' ? look(r.base + i * PAGE, i) : letters[i];
        show_letters(letters, SMALL);
        puts("");
        finish(r);
    }
    /* Only where it is said. */
    struct region r = make(EXACT, LARGE);
    CHECK(madvise(r.base + 275 * PAGE, 550 * PAGE, MADV_FREE) == 0);
    printf("FREE, beside it:");
    show(r.base, 0, 275);
    show(r.base + 825 * PAGE, 825, 275);
    puts("");
    finish(r);
}

/* Dropped, written and dropped again, around the sizes of huge pages. */
static void test_dropping(void) {
    enum { N = 1536 };
    struct region r = make(EXACT, N);
    printf("dropping:");
    for (size_t size = 1; size <= N; size = size * 2 + 1) {
        for (size_t first = 0; first + size <= N; first += size + 97) {
            CHECK(madvise(r.base + first * PAGE, size * PAGE, MADV_DONTNEED) == 0);
            check_fresh(r.base + first * PAGE, size);
            CHECK(madvise(r.base + first * PAGE, size * PAGE, MADV_DONTNEED) == 0);
            for (size_t i = 0; i < size; i++) CHECK(content(r.base + (first + i) * PAGE) == 0);
        }
        show(r.base, 0, N);
        stamp(r.base, 0, N);
        show(r.base, 0, N);
    }
    puts("");
    finish(r);
}

static void test_posix(void) {
    static const int all[] = {0, 1, 2, 3, 4, 5, 6, 100, -1};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        char name[32];
        snprintf(name, sizeof name, "posix %d", all[i]);
        advice = all[i];
        over_some(name, advise_posix);
        if (all[i] == POSIX_MADV_DONTNEED) over_parts(name, advise_posix, ONE, SMALL, PARTS);
    }
}

static unsigned char residency[LARGE + 64];

static long ask(char *at, size_t length) {
    return mincore(at, length, residency);
}

static void test_mincore(void) {
    over_all("mincore", ask);
    struct region r = make(EXACT, SMALL);
    /* Only of locked pages is known where they are. */
    const char *locked = TRY(mlock(r.base, SMALL * PAGE));
    if (strcmp(locked, "ok") == 0) {
        memset(residency, 0, sizeof residency);
        CHECK(mincore(r.base, SMALL * PAGE, residency) == 0);
        size_t resident = 0;
        for (size_t i = 0; i < sizeof residency; i++) resident += residency[i] & 1;
        CHECK(resident == SMALL);
        /* As many as pages begun. */
        memset(residency, 0xee, sizeof residency);
        CHECK(mincore(r.base, PAGE + 1, residency) == 0);
        CHECK((residency[1] & 1) == 1 && residency[2] == 0xee);
    }
    printf("mincore: locked %s, nowhere %s,", locked, TRY(mincore(r.base, PAGE, NULL)));
    printf(" not writable %s\n", TRY(mincore(r.base, PAGE, (void *)"read")));
    finish(r);
}

static int how;

static long sync_parts(char *at, size_t length) {
    return msync(at, length, how);
}

static void test_msync(void) {
    how = MS_SYNC;
    over_all("msync", sync_parts);
    static const int ways[] = {
        0, MS_ASYNC, MS_INVALIDATE, MS_SYNC | MS_INVALIDATE, MS_SYNC | MS_ASYNC, 64, -1,
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        char name[32];
        snprintf(name, sizeof name, "msync %d", ways[i]);
        how = ways[i];
        over_some(name, sync_parts);
    }
}

/* A child's view after each advice, on a part and then on all; and its view of memory
   mapped after it, which is nothing but what its parent wrote. */
static void test_children(void) {
    for (size_t i = 0; i < ADVICES; i++) {
        struct region r = make(EXACT, SMALL);
        madvise(r.base + 100 * PAGE, 100 * PAGE, advices[i].advice);
        printf("%s, in a child:", advices[i].name);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            show(r.base, 0, SMALL);
            fflush(stdout);
            _exit(0);
        }
        wait_for(child);
        printf(", in the parent:");
        show(r.base, 0, SMALL);
        puts("");
        madvise(r.base, SMALL * PAGE, advices[i].advice);
        /* In pieces, so that no end of the mapping is as it was. */
        CHECK(munmap(r.base + 50 * PAGE, 100 * PAGE) == 0);
        CHECK(munmap(r.base, SMALL * PAGE) == 0);
        char *maps[3];
        for (int j = 0; j < 3; j++) {
            check_fresh(maps[j] = map(SMALL * PAGE), SMALL);
            stamp(maps[j], 0, SMALL);
        }
        fflush(stdout);
        child = fork();
        for (int j = 0; j < 3; j++)
            for (size_t page = 0; page < SMALL; page++)
                CHECK(look(maps[j] + page * PAGE, page) == 'o');
        if (child == 0) _exit(0);
        wait_for(child);
        for (int j = 0; j < 3; j++) CHECK(munmap(maps[j], SMALL * PAGE) == 0);
    }
}

/* Collapsing succeeds or not, and changes nothing. */
static void test_collapse(void) {
    struct region r = make(ONE, LARGE);
    madvise(r.base, LARGE * PAGE, 25);
    printf("COLLAPSE:");
    show(r.base, 0, LARGE);
    puts("");
    CHECK(madvise(r.base + 300 * PAGE, 500 * PAGE, MADV_DONTNEED) == 0);
    show(r.base, 0, LARGE);
    puts("");
    finish(r);
}

int main(void) {
    begin();
    test_all();
    test_free();
    test_dropping();
    test_posix();
    test_mincore();
    test_msync();
    test_children();
    test_collapse();
    return end();
}
