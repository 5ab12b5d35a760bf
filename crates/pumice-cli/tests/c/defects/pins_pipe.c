/* Pages that a pipe holds: what the program does after it has freed them does not change what is read. */
#define _GNU_SOURCE
#include "defect.h"
#include <malloc.h>
#include <sys/uio.h>

enum { PIECE = 64 << 10 };

static char *by_malloc(size_t size) { return malloc(size); }
static char *by_aligned(size_t size) { return aligned_alloc(PAGE, size); }
static void by_free(char *at, size_t size) { free(at); }
static void by_munmap(char *at, size_t size) { CHECK(munmap(at, size) == 0); }
/* In pieces, and the one that is held first. */
static void by_pieces(char *at, size_t size) {
    CHECK(munmap(at + size / 2, size / 2) == 0 && munmap(at, size / 2) == 0);
}
static void by_realloc(char *at, size_t size) { free(realloc(at, PAGE)); }
static void by_mremap(char *at, size_t size) {
    CHECK(mremap(at, size, PAGE, 0) == at && munmap(at, PAGE) == 0);
}

static ssize_t by_name(int pipe, const struct iovec *piece) { return vmsplice(pipe, piece, 1, 0); }
static ssize_t by_number(int pipe, const struct iovec *piece) {
    return syscall(SYS_vmsplice, pipe, piece, 1L, 0);
}

/* A child does it, so that each begins where nobody can hold pages. */
static void hold(char *get(size_t), void put(char *, size_t), ssize_t splice(int, const struct iovec *),
                 size_t size) {
    pid_t child = fork();
    if (child) return wait_for(child);
    /* What such memory is used for is known by then. */
    for (int i = 0; i < 4; i++) {
        char *at = get(size);
        fill(at, size, 9);
        put(at, size);
    }
    for (uint64_t round = 0; round < 3; round++) {
        int ends[2];
        static char read_back[PIECE];
        CHECK(pipe(ends) == 0 && fcntl(ends[1], F_SETPIPE_SZ, 2 * PIECE) >= PIECE);
        char *at = get(size);
        fill(at, size, round);
        char *held = (char *)(((uintptr_t)at + size - PIECE) / PAGE * PAGE);
        char before[PIECE];
        memcpy(before, held, PIECE);
        struct iovec piece = {held, PIECE};
        CHECK(splice(ends[1], &piece) == PIECE);
        put(at, size);
        /* All that the next requests could get of it. */
        char *next[6];
        for (int i = 0; i < 6; i++) fill(next[i] = i % 2 ? get(size) : calloc(1, size), size, 77);
        size_t done = 0;
        while (done < PIECE) {
            ssize_t count = read(ends[0], read_back + done, PIECE - done);
            CHECK(count > 0);
            done += count;
        }
        CHECK(memcmp(read_back, before, PIECE) == 0);
        for (int i = 0; i < 6; i++) i % 2 ? put(next[i], size) : free(next[i]);
        close(ends[0]), close(ends[1]);
    }
    exit(0);
}

int main(void) {
    guard(20);
    /* Plainly such memory is unmapped when it is freed only by this. */
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    size_t size = MIB;
    hold(by_malloc, by_free, by_name, size);
    hold(by_malloc, by_free, by_number, size);
    hold(by_aligned, by_free, by_name, 200 << 10);
    hold(by_malloc, by_realloc, by_name, size);
    hold(map, by_munmap, by_name, size);
    hold(map, by_munmap, by_number, size);
    hold(map, by_pieces, by_name, size);
    hold(map, by_mremap, by_number, size);
    puts("done");
    return 0;
}
