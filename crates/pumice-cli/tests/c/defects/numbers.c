/* The whole family of calls by number, as by name: the same results, and the same left behind. */
#define _GNU_SOURCE
#include "defect.h"
#include <sys/uio.h>

#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

enum { PAGES = 264 };

static int own = -1;
static unsigned char seen[PAGES + 16];

static long process_advise(char *at, size_t len, int advice) {
    /* Beginning with a piece that is fine, of which the bytes are counted. */
    struct iovec pieces[] = {{current.base, PAGE}, {at, len}};
    return syscall(SYS_process_madvise, own, pieces, 2L, advice, 0L);
}

#define BY_NUMBER(name, ...) static long name(char *at, size_t n) { return syscall(__VA_ARGS__); }
BY_NUMBER(n_mprotect, SYS_mprotect, at, n, PROT_READ)
BY_NUMBER(n_pkey_none, SYS_pkey_mprotect, at, n, PROT_NONE, -1)
BY_NUMBER(n_pkey_bad, SYS_pkey_mprotect, at, n, PROT_READ, 99)
BY_NUMBER(n_mincore, SYS_mincore, at, n, seen)
BY_NUMBER(n_msync, SYS_msync, at, n, MS_SYNC)
BY_NUMBER(n_msync_bad, SYS_msync, at, n, 64)
BY_NUMBER(n_munmap, SYS_munmap, at, n)
BY_NUMBER(n_dontneed, SYS_madvise, at, n, MADV_DONTNEED)
BY_NUMBER(n_dontfork, SYS_madvise, at, n, MADV_DONTFORK)
BY_NUMBER(n_advice_bad, SYS_madvise, at, n, 12345)
BY_NUMBER(n_mlock, SYS_mlock, at, n)
BY_NUMBER(n_mlock2, SYS_mlock2, at, n, 1)
BY_NUMBER(n_mlock2_bad, SYS_mlock2, at, n, 64)
BY_NUMBER(n_munlock, SYS_munlock, at, n)
BY_NUMBER(n_remap_file, SYS_remap_file_pages, at, n, 0, 0, 0)
BY_NUMBER(n_mmap, SYS_mmap, at, n, RW, ANON | MAP_FIXED, -1, 0)
BY_NUMBER(n_mmap_none, SYS_mmap, at, n, PROT_NONE, ANON | MAP_FIXED, -1, 0)
BY_NUMBER(n_mmap_noreplace, SYS_mmap, at, n, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0)
BY_NUMBER(n_shrink, SYS_mremap, at, n, n / 2, 0, 0)
static long n_cold(char *at, size_t n) { return process_advise(at, n, MADV_COLD); }
static long n_pageout(char *at, size_t n) { return process_advise(at, n, MADV_PAGEOUT); }
static long n_process_bad(char *at, size_t n) { return process_advise(at, n, MADV_HWPOISON); }
/* To a place apart, and back. */
static long n_move(char *at, size_t n) {
    char *to = map(MIB + PAGES * PAGE);
    char *moved = (char *)syscall(SYS_mremap, at, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    int error = errno;
    if (moved != MAP_FAILED) {
        for (size_t i = 0; i + PAGE <= n; i += PAGE)
            if (content(to + i) != OLD_WORD + (at + i - current.base) / PAGE) moved = NULL;
        if (moved) moved = (char *)syscall(SYS_mremap, to, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, at);
    }
    munmap(to, MIB + PAGES * PAGE);
    errno = moved == MAP_FAILED ? error : 77;
    return moved == MAP_FAILED ? -1 : moved == NULL ? 12345 : 0;
}

static long by_name_mincore(char *at, size_t n) { return mincore(at, n, seen); }
static long by_name_msync(char *at, size_t n) { return msync(at, n, MS_ASYNC); }
static long by_name_mlock2(char *at, size_t n) { return mlock2(at, n, 0); }
static long by_name_pkey(char *at, size_t n) { return pkey_mprotect(at, n, PROT_READ, -1); }

static void over(const char *what, operation *operate) {
    static const enum kind kinds[] = {EXACT, HOLED, SHARED};
    static const struct part parts[] = {{"whole", 0, PAGES * PAGE}, {"middle", 80 * PAGE, 90 * PAGE},
                                        {"page", PAGE, PAGE}, {"unaligned", 5, PAGE}, {"nothing", 0, 0}};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < (kinds[k] == SHARED ? 1 : 5); i++) {
            current = make(kinds[k], PAGES);
            errno = 77;
            long result = operate(current.base + parts[i].offset, parts[i].length);
            if (result != -1 && result >= 0 && result < 1 << 24) printf("%ld ", result);
            printf("%s, %s, %s: %s |", what, kind_names[kinds[k]], parts[i].name,
                   result == -1 ? outcome(result) : "ok");
            show(current.base, 0, PAGES);
            puts("");
            size_t guard = kinds[k] == EXACT ? 0 : GUARD;
            CHECK(munmap(current.base - guard * PAGE, (PAGES + 2 * guard) * PAGE) == 0);
        }
    /* What comes next is like new. */
    char *next = map(PAGES * PAGE);
    check_fresh(next, PAGES);
    CHECK(munmap(next, PAGES * PAGE) == 0);
}

/* Sealed memory can't be unmapped, and nobody else gets it. */
static void seal(void) {
    char *at = map(4 * MIB);
    fill(at, 4 * MIB, 1);
    long result = syscall(SYS_mseal, at + MIB, MIB, 0L);
    printf("mseal: %s\n", result ? "refused" : "ok");
    if (result == 0) {
        printf("munmap: %s\n", TRY(munmap(at, 4 * MIB)));
        printf("mprotect: %s\n", TRY(mprotect(at + MIB, PAGE, PROT_READ)));
        printf("mmap: %s\n", outcome((long)mmap(at + MIB, PAGE, RW, ANON | MAP_FIXED, -1, 0)));
        printf("munmap beside: %s\n", TRY(munmap(at, MIB)));
    }
    for (int i = 0; i < 4; i++) {
        char *next = map(4 * MIB);
        CHECK(is_zero(next, 4 * MIB) && (next + 4 * MIB <= at + MIB || next >= at + 2 * MIB));
        fill(next, 4 * MIB, 2);
        CHECK(mprotect(next, 4 * MIB, PROT_NONE) == 0);
        if (i % 2) CHECK(munmap(next, 4 * MIB) == 0);
    }
    if (result == 0) {
        uint64_t word = 0x9e3779b97f4a7c15u + MIB, found;
        memcpy(&found, at + MIB, 8);
        CHECK(found == word);
    }
}

/* All that is mapped, and all that will be: what is free does not count. */
static void lock_all(void) {
    CHECK(munmap(memset(map(64 * MIB), 1, 64 * MIB), 64 * MIB) == 0);
    char *at = map(4 * MIB);
    fill(at, 4 * MIB, 3);
    long result = syscall(SYS_mlockall, MCL_CURRENT);
    printf("mlockall: %s\n", outcome(result ? result : (errno = 77, 0)));
    printf("locked less than 64 MiB: %d\n", status_of("VmLck:") < 64 << 10);
    CHECK(holds(at, 4 * MIB, 3));
    CHECK(munmap(at, 4 * MIB) == 0);
    CHECK(is_zero(at = map(4 * MIB), 4 * MIB) && munmap(at, 4 * MIB) == 0);
    CHECK(syscall(SYS_munlockall) == 0);
    printf("locked: %ld\n", status_of("VmLck:"));
}

int main(void) {
    static char buffer[1 << 16];
    guard(20);
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
    own = syscall(SYS_pidfd_open, getpid(), 0);
    for (int i = 0; i < 2; i++) free(memset(malloc(3 << 20), 1, 3 << 20)), map_fresh(PAGES);
#define OVER(operation) over(#operation, operation)
    OVER(n_mprotect), OVER(n_pkey_none), OVER(n_pkey_bad), OVER(n_mincore);
    OVER(n_msync), OVER(n_msync_bad), OVER(n_munmap), OVER(n_dontneed), OVER(n_dontfork);
    OVER(n_advice_bad), OVER(n_mlock), OVER(n_mlock2), OVER(n_mlock2_bad), OVER(n_munlock);
    OVER(n_remap_file), OVER(n_mmap), OVER(n_mmap_none), OVER(n_mmap_noreplace), OVER(n_shrink);
    OVER(n_cold), OVER(n_pageout), OVER(n_process_bad), OVER(n_move);
    OVER(by_name_mincore), OVER(by_name_msync), OVER(by_name_mlock2), OVER(by_name_pkey);
    printf("locked: %ld\n", status_of("VmLck:"));
    fflush(stdout);
    seal();
    lock_all();
    puts("done");
    return 0;
}
