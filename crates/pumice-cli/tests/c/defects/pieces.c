/* A piece that is unmapped loses what was mapped there, and what was set on it, at once: no file stays mapped, no
   page locked, and what is mapped there next is zero, private and the program's alone. */
#define _GNU_SOURCE
#include "defect.h"

enum { SIZE = 6 << 20 };

static int maps_has(const char *text) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) found |= strstr(line, text) != NULL;
    fclose(maps);
    return found;
}

/* Unmaps a piece by each of the calls that do. */
static void unmap(int way, char *at, size_t size) {
    switch (way) {
    case 0: CHECK(munmap(at, size) == 0); break;
    case 1: CHECK(syscall(SYS_munmap, at, size) == 0); break;
    default: /* By a page at a time, backwards. */
        for (size_t end = size; end; end -= PAGE) CHECK(munmap(at + end - PAGE, PAGE) == 0);
    }
}

static void lose_file(int way, size_t offset, size_t size, int flags) {
    int fd = memfd_create("a-file-of-pieces", MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, size) == 0);
    char *at = map(SIZE), *piece = at + offset;
    fill(at, SIZE, 1);
    CHECK(mmap(piece, size, RW, flags | MAP_FIXED, fd, 0) == piece);
    fill(piece, size, 2);
    CHECK(maps_has("a-file-of-pieces"));
    unmap(way, piece, size);
    CHECK(!maps_has("a-file-of-pieces"));
    /* Refused for as long as anybody could write to it by a mapping. */
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
    CHECK(mmap(piece, size, RW, ANON | MAP_FIXED, -1, 0) == piece && is_zero(piece, size));
    fill(piece, size, 3);
    static char page[PAGE];
    CHECK(pread(fd, page, PAGE, 0) == PAGE);
    CHECK(flags == MAP_SHARED ? holds(page, PAGE, 2) : is_zero(page, PAGE));
    close(fd);
    CHECK(munmap(at, SIZE) == 0);
    char *next[4];
    for (int i = 0; i < 4; i++) CHECK(is_zero(next[i] = map(SIZE), SIZE));
    for (int i = 0; i < 4; i++) CHECK(munmap(next[i], SIZE) == 0);
}

static void lose_lock(int way, size_t offset, size_t size) {
    long before = status_of("VmLck:");
    char *at = map(SIZE), *piece = at + offset;
    fill(at, SIZE, 1);
    CHECK(mlock(piece, size) == 0);
    CHECK(status_of("VmLck:") == before + (long)(size >> 10));
    unmap(way, piece, size);
    CHECK(status_of("VmLck:") == before);
    CHECK(mmap(piece, size, RW, ANON | MAP_FIXED, -1, 0) == piece && is_zero(piece, size));
    CHECK(status_of("VmLck:") == before);
    CHECK(munmap(at, SIZE) == 0);
    CHECK(status_of("VmLck:") == before);
}

/* Protections and advice, which a fault or a child would show. */
static void lose_others(int way, size_t offset, size_t size) {
    char *at = map(SIZE), *piece = at + offset;
    for (int what = 0; what < 3; what++) {
        fill(at, SIZE, 1);
        if (what == 0) CHECK(mprotect(piece, size, PROT_NONE) == 0);
        if (what == 1) CHECK(madvise(piece, size, MADV_DONTFORK) == 0);
        if (what == 2) CHECK(madvise(piece, size, MADV_WIPEONFORK) == 0);
        unmap(way, piece, size);
        CHECK(mmap(piece, size, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == piece);
        CHECK(is_zero(piece, size));
        fill(piece, size, 2);
        pid_t child = fork();
        if (child == 0) exit(!holds(piece, size, 2));
        wait_for(child);
    }
    CHECK(munmap(at, SIZE) == 0);
}

int main(void) {
    guard(30);
    free(memset(malloc(3 << 20), 1, 3 << 20));
    for (int i = 0; i < 2; i++) CHECK(munmap(memset(map(SIZE), 1, SIZE), SIZE) == 0);
    for (int way = 0; way < 3; way++) {
        static const size_t pieces[][2] = {{0, 16 * PAGE}, {2 * MIB, 2 * MIB}, {3 * MIB, 8 * PAGE},
                                           {SIZE - PAGE, PAGE}};
        for (int i = 0; i < 4; i++) {
            size_t offset = pieces[i][0], size = way == 2 ? PAGE * 4 : pieces[i][1];
            if (offset + size > SIZE) continue;
            lose_file(way, offset, size, MAP_SHARED);
            if (way == 0) lose_file(way, offset, size, MAP_PRIVATE);
            lose_lock(way, offset, size > 16 * PAGE ? 16 * PAGE : size);
            lose_others(way, offset, size);
        }
    }
    puts("done");
    return 0;
}
