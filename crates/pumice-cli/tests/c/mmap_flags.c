/* mmap with every flag, protection and mistake there is, where the kernel chooses the place. */
#define _GNU_SOURCE
#include "mmap.h"

#ifndef MAP_32BIT
#define MAP_32BIT 0
#endif

static const struct { const char *name; int flags; } all_flags[] = {
    {"nothing", 0}, {"STACK", MAP_STACK}, {"GROWSDOWN", MAP_GROWSDOWN},
    {"NORESERVE", MAP_NORESERVE}, {"LOCKED", MAP_LOCKED}, {"POPULATE", MAP_POPULATE},
    {"POPULATE|NONBLOCK", MAP_POPULATE | MAP_NONBLOCK}, {"NONBLOCK", MAP_NONBLOCK},
    {"STACK|NORESERVE", MAP_STACK | MAP_NORESERVE}, {"32BIT", MAP_32BIT},
    {"DENYWRITE", MAP_DENYWRITE}, {"EXECUTABLE", MAP_EXECUTABLE}, {"HUGETLB", MAP_HUGETLB},
    {"HUGETLB of 1 GiB", MAP_HUGETLB | 30 << 26}, {"a size without HUGETLB", 21 << 26},
    {"SYNC", 0x80000}, {"UNINITIALIZED", 0x4000000}, {"unknown", 0x40000000},
};
#define FLAGS (sizeof all_flags / sizeof all_flags[0])
static const size_t some_sizes[] = {
    1 << 20, (1 << 20) + 1, 2 << 20, (2 << 20) - PAGE, (4 << 20) + PAGE, 6 << 20,
};

/* What was mapped, by use: zeros that can be written and dropped, in parts unmapped. */
static void use(char *p, size_t pages) {
    check_fresh(p, pages);
    stamp(p, 0, pages);
    printf(" MADV_DONTNEED %s,", TRY(madvise(p + PAGE, PAGE, MADV_DONTNEED)));
    CHECK(content(p) == OLD_WORD && content(p + 2 * PAGE) == OLD_WORD + 2);
    CHECK(munmap(p + pages / 2 * PAGE, PAGE) == 0);
    show(p, 0, pages);
}

static void test_flags(void) {
    for (size_t i = 0; i < FLAGS; i++)
        for (int shared = 0; shared < 2; shared++)
            for (int j = 0; j < 6; j++) {
                int flags = all_flags[i].flags | (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS;
                size_t size = some_sizes[j], pages = (size + PAGE - 1) / PAGE;
                char *p = mmap((errno = 77, NULL), size, RW, flags, -1, 0);
                printf("%s%s, %zu: %s", all_flags[i].name, shared ? ", shared" : "", size,
                       outcome((long)p));
                if (p != MAP_FAILED && flags & MAP_HUGETLB) {
                    /* Of whole huge pages, which may not be there to be touched. */
                    size_t huge = flags >> 26 & 63 ? (size_t)1 << (flags >> 26 & 63) : 2 << 20;
                    CHECK(munmap(p, (size + huge - 1) / huge * huge) == 0);
                }
                else if (p != MAP_FAILED) {
                    if (flags & MAP_32BIT) printf(", low: %d,", (uintptr_t)p + size <= 1u << 31);
                    use(p, pages);
                    CHECK(munmap(p, size) == 0);
                    if (j % 3 == 0) map_fresh(pages);
                }
                puts("");
            }
}

static void test_protections(void) {
    static const int protections[] = {PROT_NONE, PROT_READ, PROT_WRITE, PROT_EXEC, RW | 8, RW | 0x1000};
    for (int i = 0; i < 6; i++)
        for (int shared = 0; shared < 2; shared++) {
            int flags = MAP_ANONYMOUS | (shared ? MAP_SHARED : MAP_PRIVATE);
            char *p = mmap((errno = 77, NULL), SMALL * PAGE, protections[i], flags, -1, 0);
            printf("protection %d%s: %s |", protections[i], shared ? ", shared" : "", outcome((long)p));
            if (p != MAP_FAILED) {
                show(p, 0, SMALL);
                CHECK(mprotect(p + 100 * PAGE, 100 * PAGE, RW) == 0);
                show(p, 0, SMALL);
                stamp(p + 100 * PAGE, 100, 100);
                CHECK(mprotect(p, SMALL * PAGE, RW) == 0);
                show(p, 0, SMALL);
                CHECK(munmap(p, SMALL * PAGE) == 0);
            }
            puts("");
            map_fresh(SMALL);
        }
}

static void test_types(void) {
    static const int types[] = {0, 1, 2, 3, 4, 5, 7, 9, 10, 15};
    for (int i = 0; i < 10; i++) {
        char *p = mmap((errno = 77, NULL), SMALL * PAGE, RW, types[i] | MAP_ANONYMOUS, -1, 0);
        printf("type %d: %s\n", types[i], outcome((long)p));
        if (p == MAP_FAILED) continue;
        check_fresh(p, SMALL);
        CHECK(munmap(p, SMALL * PAGE) == 0);
    }
}

static const char *try_map(size_t size, int flags, int fd, off_t offset) {
    char *p = mmap((errno = 77, NULL), size, RW, flags, fd, offset);
    const char *result = outcome((long)p);
    if (p != MAP_FAILED) {
        if (flags & MAP_ANONYMOUS) check_fresh(p, SMALL);
        CHECK(munmap(p, size) == 0);
    }
    return result;
}

/* Descriptors and offsets mean nothing without a file, but are looked at. */
static void test_arguments(void) {
    size_t size = SMALL * PAGE;
    static const off_t offsets[] = {0, 1, 100, PAGE, -PAGE, INT64_MAX, INT64_MAX - PAGE + 1, -1};
    for (int i = 0; i < 8; i++) {
        printf("offset %d: %s", i, try_map(size, ANON, -1, offsets[i]));
        printf(" shared %s", try_map(size, MAP_SHARED | MAP_ANONYMOUS, -1, offsets[i]));
        printf(" file %s\n", try_map(size, MAP_PRIVATE, file, offsets[i]));
    }
    static const int fds[] = {-2, 0, 12345, INT32_MAX};
    for (int i = 0; i < 4; i++) {
        printf("descriptor %d: %s", i, try_map(size, ANON, fds[i], 0));
        printf(" file %s\n", fds[i] == 0 ? "?" : try_map(size, MAP_PRIVATE, fds[i], 0));
    }
    static const size_t lengths[] = {
        0, SIZE_MAX, SIZE_MAX - PAGE + 1, SIZE_MAX / 2, (size_t)1 << 47, ((size_t)1 << 47) - PAGE,
        (size_t)1 << 46,
    };
    for (int i = 0; i < 7; i++) {
        printf("length %d: %s", i, try_map(lengths[i], ANON, -1, 0));
        printf(" stack %s", try_map(lengths[i], ANON | MAP_STACK, -1, 0));
        printf(" file %s\n", try_map(lengths[i], MAP_PRIVATE, file, 0));
    }
    /* Much that nobody will use. */
    for (int shift = 30; shift < 42; shift += 2)
        printf("1 << %d without reserve: %s\n", shift,
               try_map((size_t)1 << shift, ANON | MAP_NORESERVE, -1, 0));
}

/* A hint is not an order: what is there stays. */
static void test_hints(void) {
    struct region r = make(ONE, SMALL);
    char *hints[] = {
        r.base, r.base + 100 * PAGE, r.base + 5, r.base + SMALL * PAGE, r.base - 4 * PAGE,
        (char *)PAGE, (char *)1, (char *)((uintptr_t)1 << 60), (char *)-PAGE, (char *)0x700000000000,
    };
    for (int i = 0; i < 10; i++)
        for (size_t pages = 4; pages < 1000; pages *= 9) {
            char *p = mmap((errno = 77, hints[i]), pages * PAGE, RW, ANON, -1, 0);
            printf("hint %d, %zu pages: %s |", i, pages, outcome((long)p));
            if (p != MAP_FAILED) {
                CHECK(p + pages * PAGE <= r.base || p >= r.base + SMALL * PAGE);
                check_fresh(p, pages);
                CHECK(munmap(p, pages * PAGE) == 0);
            }
            show(r.base, 0, SMALL);
            puts("");
        }
    finish(r);
}

/* mmap64 is mmap. */
static void test_mmap64(void) {
#ifdef __GLIBC__
    char *p = mmap64(NULL, SMALL * PAGE, RW, ANON, -1, 0);
    CHECK(p != MAP_FAILED);
    use(p, SMALL);
    CHECK(munmap(p, SMALL * PAGE) == 0);
    printf(" mmap64: %s", TRY(mmap64(NULL, 0, RW, ANON, -1, 0)));
    printf(" %s", TRY(mmap64(NULL, SMALL * PAGE, RW, ANON, -1, 8)));
    printf(" %s\n", TRY(mmap64(NULL, SMALL * PAGE, RW, MAP_ANONYMOUS, -1, 0)));
#endif
}

int main(void) {
    begin();
    test_flags();
    test_protections();
    test_types();
    test_arguments();
    test_hints();
    test_mmap64();
    return end();
}
