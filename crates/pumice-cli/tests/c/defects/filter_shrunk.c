/* A filter that ends the process at any call but those that the C library's free, realloc and exit make: realloc shrinks
   memory all the same, and the content stays. */
#include "filter.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 6 };

static const unsigned allowed[] = {__NR_write, __NR_exit, __NR_exit_group, __NR_mmap, __NR_munmap,
                                   __NR_mremap, __NR_brk, __NR_rt_sigreturn, __NR_fstat, __NR_newfstatat};
static const size_t sizes[COUNT] = {200000, 300000, 1 << 20, 3 << 20, 8000000, 40 << 20};

static void end(const char *why, int status) {
    write(1, why, strlen(why));
    _exit(status);
}

static void check(const char *at, size_t size, char byte) {
    for (size_t i = 0; i < size; i++)
        if (at[i] != byte) end("other content\n", 1);
}

int main(void) {
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    char *at[COUNT][2];
    for (int i = 0; i < COUNT; i++)
        for (int j = 0; j < 2; j++) {
            if (!(at[i][j] = malloc(sizes[i]))) end("no memory\n", 1);
            memset(at[i][j], i + 1, sizes[i]);
        }
    if (allow_only(allowed, sizeof allowed / sizeof *allowed)) end("no filter\n", 1);
    for (int i = 0; i < COUNT; i++) {
        size_t size = sizes[i];
        for (int part = 0; part < 3; part++) {
            size = size / 2 + 1000;
            char *now = realloc(at[i][0], size);
            if (!now) end("it failed\n", 1);
            check(at[i][0] = now, size, i + 1);
        }
        char *now = realloc(at[i][1], 2 * sizes[i]);
        if (!now) end("growth failed\n", 1);
        check(at[i][1] = now, sizes[i], i + 1);
        check(at[i][0], size, i + 1);
        free(at[i][0]);
        free(at[i][1]);
    }
    end("shrunk\n", 0);
}
