/* MAP_FIXED and MAP_FIXED_NOREPLACE over every part of regions of every kind, with memory and with
   a file; and that files and shared memory are gone from what was unmapped. */
#define _GNU_SOURCE
#include "mmap.h"

static int protection, flags;

/* Maps something at a place, from the file's same place. */
static long put_there(char *at, size_t length) {
    long offset = at - current.base;
    int fd = flags & MAP_ANONYMOUS ? -1 : file;
    char *p = mmap(at, length, protection, flags, fd, fd < 0 || offset < 0 ? 0 : offset);
    if (p == MAP_FAILED) return -1;
    if (p != at) {
        /* Kernels that don't know MAP_FIXED_NOREPLACE take the address for a hint. */
        CHECK(munmap(p, length) == 0);
        errno = EEXIST;
        return -1;
    }
    return 0;
}

static void test_parts(void) {
    static const struct { const char *name; int protection, flags, all; } ways[] = {
        {"fixed", RW, ANON | MAP_FIXED, 1},
        {"fixed to read", PROT_READ, ANON | MAP_FIXED, 0},
        {"fixed for nothing", PROT_NONE, ANON | MAP_FIXED | MAP_NORESERVE, 0},
        {"fixed shared", RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, 0},
        {"fixed file", RW, MAP_PRIVATE | MAP_FIXED, 1},
        {"fixed shared file", PROT_READ, MAP_SHARED | MAP_FIXED, 0},
        {"no replacement", RW, ANON | MAP_FIXED_NOREPLACE, 1},
        {"no replacement by a file", RW, MAP_PRIVATE | MAP_FIXED_NOREPLACE, 0},
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        protection = ways[i].protection;
        flags = ways[i].flags;
        if (ways[i].all) over_all(ways[i].name, put_there);
        else over_some(ways[i].name, put_there);
    }
}

/* A hole, and what is put into it; twice, the second time over what was put there. */
static void test_holes(void) {
    static const struct { const char *name; int flags; } what[] = {
        {"memory", ANON}, {"shared memory", MAP_SHARED | MAP_ANONYMOUS},
        {"a file", MAP_PRIVATE}, {"memory of no reserve", ANON | MAP_NORESERVE},
        {"a stack", ANON | MAP_STACK}, {"populated memory", ANON | MAP_POPULATE},
    };
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++)
            for (int replace = 0; replace < 2; replace++) {
                struct region r = make(i % 2 ? ONE : EXACT, SMALL);
                char *hole = r.base + 130 * PAGE;
                CHECK(munmap(hole, 70 * PAGE) == 0);
                int fixed = replace ? MAP_FIXED : MAP_FIXED_NOREPLACE;
                int fd = what[i].flags & MAP_ANONYMOUS ? -1 : file;
                char *p = mmap(hole, 70 * PAGE, RW, what[i].flags | fixed, fd, fd < 0 ? 0 : 130 * PAGE);
                CHECK(p == hole);
                printf("%s in a hole:", what[i].name);
                show(r.base, 0, SMALL);
                stamp(hole, 130, 70);
                put_fixed(hole - 5 * PAGE, 10, RW, what[j].flags, 125);
                put_fixed(hole + 60 * PAGE, 20, PROT_READ, what[j].flags, 190);
                printf(", %s over its ends:", what[j].name);
                show(r.base, 0, SMALL);
                puts("");
                finish(r);
            }
}

/* Memory of the file: private pages keep from it what is written, shared ones don't. */
static void test_file(void) {
    struct region r = make(EXACT, LARGE);
    put_fixed(r.base + 300 * PAGE, 400, RW, MAP_PRIVATE, 300);
    put_fixed(r.base + 800 * PAGE, 100, RW, MAP_SHARED, 800);
    stamp(r.base + 300 * PAGE, 300, 200);
    stamp(r.base + 800 * PAGE, 800, 10);
    static char page[PAGE];
    printf("the file:");
    static const int places[] = {299, 300, 499, 500, 799, 800, 809, 810};
    for (int i = 0; i < 8; i++) {
        CHECK(pread(file, page, PAGE, places[i] * PAGE) == PAGE);
        printf(" %d %s", places[i], content(page) == FILE_WORD + places[i] ? "kept" : "written");
    }
    printf("\nmapped from it:");
    show(r.base, 0, LARGE);
    CHECK(madvise(r.base + 250 * PAGE, 150 * PAGE, MADV_DONTNEED) == 0);
    CHECK(madvise(r.base + 790 * PAGE, 15 * PAGE, MADV_DONTNEED) == 0);
    printf(", after MADV_DONTNEED:");
    show(r.base, 0, LARGE);
    puts("");
    for (size_t i = 800; i < 810; i++) put(r.base + i * PAGE, FILE_WORD + i);
    CHECK(msync(r.base + 800 * PAGE, 100 * PAGE, MS_SYNC) == 0);
    /* What takes its place must not write to the file: `end` looks. */
    finish(r);
    for (int i = 0; i < 8; i++) map_fresh(LARGE);

    /* Past its end there is nothing to map. */
    r = make(EXACT, SMALL);
    put_fixed(r.base + 100 * PAGE, 20, RW, MAP_PRIVATE, FILE_PAGES - 10);
    printf("past the file's end:");
    show(r.base, 0, SMALL);
    put_fixed(r.base + 105 * PAGE, 10, RW, ANON, 0);
    printf(", replaced:");
    show(r.base, 0, SMALL);
    puts("");
    finish(r);
}

/* All of a region replaced, and what replaced it partly. */
static void test_layers(void) {
    for (size_t pages = 256; pages < 3000; pages += pages + 3) {
        struct region r = make(EXACT, pages);
        put_fixed(r.base, pages, RW, ANON, 0);
        check_fresh(r.base, pages);
        put_fixed(r.base, pages, RW, MAP_SHARED | MAP_ANONYMOUS, 0);
        check_fresh(r.base, pages);
        put_fixed(r.base, pages / 2, PROT_NONE, ANON, 0);
        put_fixed(r.base + pages / 4 * PAGE, pages / 2, RW, MAP_PRIVATE, pages / 4);
        printf("layers, %zu pages:", pages);
        for (size_t i = pages * 3 / 4; i < pages; i++) put(r.base + i * PAGE, OLD_WORD + i);
        show(r.base, 0, pages);
        puts("");
        put_fixed(r.base, pages, RW, ANON, 0);
        check_fresh(r.base, pages);
        finish(r);
    }
}

/* Shared memory over a piece is shared with children, the rest is not. */
static void test_shared_with_children(void) {
    struct region r = make(EXACT, SMALL);
    put_fixed(r.base + 100 * PAGE, 50, RW, MAP_SHARED | MAP_ANONYMOUS, 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        stamp(r.base + 100 * PAGE, 100, 10);
        check_fresh(r.base + 110 * PAGE, 40);
        memset(r.base, 1, 100 * PAGE);
        memset(r.base + 150 * PAGE, 1, 150 * PAGE);
        _exit(munmap(r.base, SMALL * PAGE));
    }
    wait_for(child);
    printf("a child wrote:");
    show(r.base, 0, SMALL);
    puts("");
    finish(r);
}

static void test_errors(void) {
    struct region r = make(ONE, SMALL);
    char *middle = r.base + 150 * PAGE;
    static const int fixed[] = {MAP_FIXED, MAP_FIXED_NOREPLACE};
    for (int i = 0; i < 2; i++) {
        int how = fixed[i];
        printf("errors %d:", i);
        printf(" %s", TRY(mmap(middle, PAGE, RW, how | MAP_ANONYMOUS, -1, 0)));
        printf(" %s", TRY(mmap(middle, PAGE, RW, how | MAP_PRIVATE, -1, 0)));
        printf(" %s", TRY(mmap(middle, PAGE, RW, how | MAP_PRIVATE, 12345, 0)));
        printf(" %s", TRY(mmap(middle, PAGE, RW, how | MAP_PRIVATE, file, 100)));
        printf(" %s", TRY(mmap(middle + 8, PAGE, RW, how | ANON, -1, 0)));
        printf(" %s", TRY(mmap(middle, 0, RW, how | ANON, -1, 0)));
        printf(" %s", TRY(mmap(middle, PAGE, RW, how | ANON, -1, 1)));
        printf(" %s", TRY(mmap(middle, SIZE_MAX / 2, RW, how | ANON, -1, 0)));
        printf(" %s", TRY(mmap((void *)-PAGE, PAGE, RW, how | ANON, -1, 0)));
        printf(" %s", TRY(mmap((void *)((uintptr_t)1 << 60), PAGE, RW, how | ANON, -1, 0)));
        show(r.base, 0, SMALL);
        puts("");
    }
    /* A descriptor for reading does not do for writing to what is shared. */
    int null = open("/dev/null", O_RDONLY), self = open("/proc/self/exe", O_RDONLY);
    printf("not a file: %s,", TRY(mmap(middle, PAGE, RW, MAP_FIXED | MAP_PRIVATE, null, 0)));
    printf(" not to be written: %s", TRY(mmap(middle, PAGE, RW, MAP_FIXED | MAP_SHARED, self, 0)));
    show(r.base, 0, SMALL);
    puts("");
    close(null);
    close(self);
    finish(r);
}

int main(void) {
    begin();
    test_parts();
    test_holes();
    test_file();
    test_layers();
    test_shared_with_children();
    test_errors();
    return end();
}
