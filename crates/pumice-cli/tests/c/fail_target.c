/* Uses memory in all ways, and sees to it that what it has stays as it is whichever call fails. Said by
   `personality`: from where to where calls may fail. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20, PIECE = 64 * PAGE };

/* Calls until it works: only one call fails. */
#define INSIST(call, failed)                                      \
    ({                                                            \
        __typeof__(call) result = call;                           \
        for (int i = 0; i < 3 && result == (failed); i++) result = call; \
        CHECK(result != (failed));                                \
        result;                                                   \
    })

static void check_pages(char *at, size_t size, uint64_t seed) {
    CHECK(holds(at, size, seed));
}

static void use_mapping(uint64_t seed) {
    size_t size = 3 * MIB;
    char *at = INSIST(mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), (char *)MAP_FAILED);
    CHECK(is_zero(at, size));
    fill(at, size, seed);
    char *grown = mremap(at, size, size + 2 * MIB, MREMAP_MAYMOVE);
    if (grown != MAP_FAILED) {
        CHECK(is_zero(grown + size, 2 * MIB));
        at = grown;
        check_pages(at, size, seed);
        if (mremap(at, size + 2 * MIB, size, 0) == MAP_FAILED)
            CHECK(INSIST(munmap(at + size, 2 * MIB), -1) == 0);
    }
    check_pages(at, size, seed);
    if (mprotect(at, PIECE, PROT_READ) == 0) {
        check_pages(at, size, seed);
        INSIST(mprotect(at, PIECE, PROT_READ | PROT_WRITE), -1);
        fill(at, PIECE, seed);
        memcpy(at + PIECE - 1, "", 1);
    }
    fill(at, size, seed);
    if (madvise(at + 2 * PIECE, PIECE, MADV_DONTNEED) == 0) CHECK(is_zero(at + 2 * PIECE, PIECE));
    fill(at, size, seed);
    madvise(at, size, MADV_DONTFORK);
    check_pages(at, size, seed);
    grown = mremap(at, size, size + MIB, MREMAP_MAYMOVE);
    if (grown != MAP_FAILED) {
        at = grown;
        check_pages(at, size, seed);
        INSIST(munmap(at + size, MIB), -1);
    }
    check_pages(at, size, seed);
    /* A piece of it goes, and something else comes there. */
    if (munmap(at + 4 * PIECE, PIECE) != 0) check_pages(at, size, seed);
    INSIST(mmap(at + 4 * PIECE, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
           (void *)MAP_FAILED);
    CHECK(is_zero(at + 4 * PIECE, PIECE));
    check_pages(at, 4 * PIECE, seed);
    fill(at, size, seed);
    if (munmap(at, size) != 0) {
        check_pages(at, size, seed);
        INSIST(munmap(at, size), -1);
    }
}

static void use_blocks(uint64_t seed) {
    char *at[4], *other;
    for (int i = 0; i < 4; i++) {
        size_t size = (1 + i) * MIB;
        at[i] = i % 2 ? INSIST((char *)calloc(1, size), NULL) : INSIST((char *)malloc(size), NULL);
        if (i % 2) CHECK(is_zero(at[i], size));
        fill(at[i], size, seed + i);
    }
    for (int i = 0; i < 4; i++) {
        other = realloc(at[i], (3 + i) * MIB);
        if (other) at[i] = other;
        check_pages(at[i], (1 + i) * MIB - PAGE, seed + i);
        free(at[i]);
        other = INSIST((char *)calloc(1, 2 * MIB), NULL);
        CHECK(is_zero(other, 2 * MIB));
        fill(other, 2 * MIB, seed);
        free(other);
    }
}

int main(int count, char **arguments) {
    int rounds = count > 1 ? atoi(arguments[1]) : 2;
    syscall(SYS_personality, 0xffffffff, 1);
    for (int i = 1; i <= rounds; i++) {
        use_mapping(i * 100);
        use_blocks(i * 100);
        if (count > 2) usleep(atoi(arguments[2]) * 1000);
    }
    syscall(SYS_personality, 0xffffffff, 0);
    return 0;
}
