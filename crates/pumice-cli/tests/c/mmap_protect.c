/* mprotect of every part of regions of every kind: what may be read, written and called, what
   stays when all is allowed again, and that no protection outlives its mapping. */
#define _GNU_SOURCE
#include "mmap.h"

static int protection;

static long protect(char *at, size_t length) {
    return mprotect(at, length, protection);
}

/* There and back: what was in it must still be. */
static long protect_and_back(char *at, size_t length) {
    return mprotect(at, length, PROT_NONE) ? -1 : mprotect(at, length, RW);
}

static void test_values(void) {
    static const struct { const char *name; int protection; } values[] = {
        {"WRITE", PROT_WRITE}, {"EXEC", PROT_EXEC}, {"READ|EXEC", PROT_READ | PROT_EXEC},
        {"all", RW | PROT_EXEC}, {"SEM", RW | 8}, {"GROWSDOWN", RW | PROT_GROWSDOWN},
        {"GROWSUP", RW | PROT_GROWSUP}, {"both ways", RW | PROT_GROWSDOWN | PROT_GROWSUP},
        {"0x40", RW | 0x40}, {"0x1000", 0x1000}, {"-1", -1},
    };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        protection = values[i].protection;
        over_parts(values[i].name, protect, EXACT, SMALL, 4);
    }
}

/* Where faults say they are, and of what kind. */
static void test_faults(void) {
    struct region r = make(ONE, SMALL);
    static const int orders[] = {PROT_READ, PROT_NONE, RW, PROT_NONE, PROT_READ, RW};
    for (int i = 0; i < 6; i++) {
        char *at = r.base + 100 * PAGE;
        CHECK(mprotect(at, 50 * PAGE, orders[i]) == 0);
        printf("protection %d: before %s, first %s", orders[i], fault_name(at - 1, WRITE),
               fault_name(at, READ));
        printf(" and %s, last %s", fault_name(at, WRITE), fault_name(at + 50 * PAGE - 1, WRITE));
        printf(", after %s\n", fault_name(at + 50 * PAGE, WRITE));
    }
    finish(r);
}

/* The kernel's own accesses fail with EFAULT, and are otherwise served. */
static void test_kernel_accesses(void) {
    struct region r = make(ONE, SMALL);
    int ends[2];
    CHECK(pipe(ends) == 0);
    static const int protections[] = {RW, PROT_READ, PROT_NONE, RW};
    for (int i = 0; i < 4; i++) {
        char *at = r.base + 20 * PAGE;
        CHECK(mprotect(at, 3 * PAGE, protections[i]) == 0);
        printf("protection %d: read %s,", protections[i], TRY(pread(file, at, PAGE, 0)));
        const char *wrote = TRY(write(ends[1], at, 8));
        printf(" write %s\n", wrote);
        char bytes[8];
        if (strcmp(wrote, "ok") == 0) CHECK(read(ends[0], bytes, 8) == 8);
    }
    /* Across an edge as much is read as fits. */
    CHECK(mprotect(r.base + 40 * PAGE, PAGE, PROT_NONE) == 0);
    printf("across an edge: %zd\n", pread(file, r.base + 38 * PAGE, 4 * PAGE, 38 * PAGE));
    show(r.base, 0, r.pages);
    puts("");
    close(ends[0]);
    close(ends[1]);
    finish(r);
}

static void test_alternating(void) {
    struct region r = make(EXACT, LARGE);
    for (size_t i = 0; i < LARGE; i += 3) CHECK(mprotect(r.base + i * PAGE, PAGE, PROT_READ) == 0);
    for (size_t i = 0; i < LARGE; i += 5) CHECK(mprotect(r.base + i * PAGE, PAGE, PROT_NONE) == 0);
    printf("alternating:");
    show(r.base + 500 * PAGE, 500, 40);
    CHECK(mprotect(r.base, LARGE * PAGE, RW) == 0);
    show(r.base, 0, LARGE);
    puts("");
    finish(r);
    /* And left so when it is unmapped. */
    r = make(EXACT, LARGE);
    for (size_t i = 0; i < LARGE; i += 2) CHECK(mprotect(r.base + i * PAGE, PAGE, PROT_NONE) == 0);
    finish(r);
}

/* Whatever is mapped next must be readable, writable, zero, and not to be called. */
static void test_reuse(void) {
    static const int protections[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_EXEC};
    for (int i = 0; i < 3; i++)
        for (size_t pages = 256; pages <= 2048; pages += pages / 2 + 3) {
            struct region r = make(EXACT, pages);
            CHECK(mprotect(r.base + i * PAGE, pages / 2 * PAGE, protections[i]) == 0);
            CHECK(munmap(r.base, pages / 4 * PAGE) == 0);
            CHECK(munmap(r.base + pages / 4 * PAGE, (pages - pages / 4) * PAGE) == 0);
            char *maps[4];
            for (int j = 0; j < 4; j++) {
                check_fresh(maps[j] = map(pages * PAGE), pages);
                CHECK(faults(maps[j] + pages / 4 * PAGE, CALL));
            }
            for (int j = 0; j < 4; j++) CHECK(munmap(maps[j], pages * PAGE) == 0);
        }
    puts("reuse: ok");
}

/* Stacks and arenas: a reservation of which pieces are opened and closed. */
static void test_reserve(void) {
    enum { N = 2048 };
    for (int first = 0; first < 2; first++) {
        /* Either nothing is allowed at first, or everything and then nothing. */
        char *p = first ? map(N * PAGE) : mmap(NULL, N * PAGE, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
        CHECK(p != MAP_FAILED);
        if (first) {
            stamp(p, 0, N);
            CHECK(madvise(p, N * PAGE, MADV_DONTNEED) == 0);
            CHECK(mprotect(p, N * PAGE, PROT_NONE) == 0);
        }
        CHECK(faults(p, READ) && faults(p + N * PAGE - PAGE, WRITE));
        for (size_t at = 0; at < N; at += 128) {
            CHECK(mprotect(p + at * PAGE, 100 * PAGE, RW) == 0);
            check_fresh(p + at * PAGE, 100);
            stamp(p + at * PAGE, at, 100);
        }
        /* Closed again, one with its content dropped, one replaced, one kept. */
        CHECK(madvise(p + 128 * PAGE, 100 * PAGE, MADV_DONTNEED) == 0);
        CHECK(mprotect(p + 128 * PAGE, 100 * PAGE, PROT_NONE) == 0);
        put_fixed(p + 256 * PAGE, 100, PROT_NONE, ANON, 0);
        CHECK(mprotect(p + 384 * PAGE, 100 * PAGE, PROT_NONE) == 0);
        /* Dropping needs no permission. */
        CHECK(mprotect(p + 512 * PAGE, 100 * PAGE, PROT_NONE) == 0);
        CHECK(madvise(p + 512 * PAGE, 50 * PAGE, MADV_DONTNEED) == 0);
        CHECK(mprotect(p + 640 * PAGE, 100 * PAGE, PROT_READ) == 0);
        CHECK(madvise(p + 640 * PAGE, 50 * PAGE, MADV_DONTNEED) == 0);
        printf("reserved %d:", first);
        show(p, 0, N);
        CHECK(mprotect(p, N * PAGE, RW) == 0);
        show(p, 0, N);
        puts("");
        CHECK(munmap(p, N * PAGE) == 0);
        map_fresh(N);
    }
}

/* Code that is written and then called, as compilers in programs do. */
static void test_code(void) {
#if defined __x86_64__
    static const unsigned char leave[] = {0xc3};
#elif defined __aarch64__
    static const unsigned char leave[] = {0xc0, 0x03, 0x5f, 0xd6};
#else
    return;
#endif
    char *p = map(2 << 20), *code = p + (1 << 20);
    memcpy(code, leave, sizeof leave);
    __builtin___clear_cache(code, code + sizeof leave);
    printf("code: %s", fault_name(code, CALL));
    const char *allowed = TRY(mprotect(code, 3 * PAGE, PROT_READ | PROT_EXEC));
    printf(", mprotect %s, %s", allowed, fault_name(code, CALL));
    printf(", beside it %s", fault_name(p, CALL));
    CHECK(mprotect(code, 3 * PAGE, RW) == 0);
    printf(", taken back: %s\n", fault_name(code, CALL));
    CHECK(munmap(p, 2 << 20) == 0);
    p = mmap(NULL, 2 << 20, RW | PROT_EXEC, ANON, -1, 0);
    if (p == MAP_FAILED) {
        printf("mapped to be called: %s\n", error_name(errno));
        return;
    }
    memcpy(p, leave, sizeof leave);
    __builtin___clear_cache(p, p + sizeof leave);
    printf("mapped to be called: %s\n", fault_name(p, CALL));
    CHECK(munmap(p, 2 << 20) == 0);
    map_fresh(512);
}

int main(void) {
    begin();
    static const struct { const char *name; int protection; } main_values[] = {
        {"mprotect NONE", PROT_NONE}, {"mprotect READ", PROT_READ}, {"mprotect RW", RW},
    };
    for (int i = 0; i < 3; i++) {
        protection = main_values[i].protection;
        over_all(main_values[i].name, protect);
    }
    over_all("mprotect there and back", protect_and_back);
    test_values();
    test_faults();
    test_kernel_accesses();
    test_alternating();
    test_reuse();
    test_reserve();
    test_code();
    return end();
}
