/* Memory from before a filter, or a limit on addresses, that grows afterwards. The C library has the kernel move its
   pages: guard pages and attributes stay, no other call is made, and there need not be room for a copy. With "grown" it
   has grown before as well. */
#include "filter.h"
#include "defect.h"

#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

enum { COUNT = 7 };

static const size_t lengths[COUNT] = {200000, 300000, MIB, 3 * MIB, 7 * MIB, 40 * MIB, 700 * MIB};
static const unsigned allowed[] = {__NR_write, __NR_read,   __NR_exit, __NR_exit_group,    __NR_mmap,
                                   __NR_munmap, __NR_mremap, __NR_brk,  __NR_rt_sigreturn, __NR_fstat,
                                   __NR_newfstatat};
static int pipe_of[2], has_guards;

/* The kernel reads a page of a guard for nobody. */
static int is_guarded(const char *at) {
    char byte;
    if (write(pipe_of[1], at, 1) < 0) return errno == EFAULT;
    CHECK(read(pipe_of[0], &byte, 1) == 1);
    return 0;
}

/* All pages but a guard's, which is the second whole one. */
static size_t guard_in(const char *at) { return ((((size_t)at + PAGE - 1) & -PAGE) + PAGE) - (size_t)at; }

static void check_all(const char *at, size_t len, size_t guarded) {
    for (size_t i = 0; i < len; i += 512)
        if (i < guarded || i >= guarded + PAGE) CHECK(at[i] == (char)(i / 512 % 100 + 1));
    CHECK(!has_guards || is_guarded(at + guarded));
}

int main(int count, char **arguments) {
    guard(300);
    int is_limit = count > 1 && !strcmp(arguments[1], "limit");
    int has_grown = count > 1 && !strcmp(arguments[1], "grown");
    CHECK(pipe(pipe_of) == 0);
    char *probe = mmap(NULL, PAGE, RW, ANON, -1, 0);
    has_guards = madvise(probe, PAGE, MADV_GUARD_INSTALL) == 0;
    CHECK(mallopt(M_MMAP_THRESHOLD, 128 << 10) == 1);
    char *at[COUNT];
    size_t guarded[COUNT];
    for (int i = 0; i < COUNT; i++) {
        CHECK(at[i] = malloc(has_grown ? lengths[i] * 2 / 3 : lengths[i]));
        if (has_grown) {
            memset(at[i], 1, lengths[i] * 2 / 3);
            CHECK(at[i] = realloc(at[i], lengths[i]));
        }
        guarded[i] = guard_in(at[i]);
        for (size_t j = 0; j < lengths[i]; j += 512) at[i][j] = (char)(j / 512 % 100 + 1);
        if (has_guards) CHECK(madvise(at[i] + guarded[i], PAGE, MADV_GUARD_INSTALL) == 0);
    }
    /* Room for the largest one once, and not twice. */
    struct rlimit limit = {1300 * MIB, RLIM_INFINITY};
    if (is_limit) CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    else CHECK(allow_only(allowed, sizeof allowed / sizeof *allowed) == 0);
    struct mallinfo2 before = mallinfo2();
    CHECK(before.hblkhd >= 700 * MIB);
    for (int i = 0; i < COUNT; i++) {
        size_t grown[] = {lengths[i] + lengths[i] / 4, lengths[i] + lengths[i] / 3, lengths[i] + 1, lengths[i] + lengths[i] / 4};
        for (int j = 0; j < 4; j++) {
            at[i] = j % 2 ? reallocarray(at[i], 1, grown[j]) : realloc(at[i], grown[j]);
            CHECK(at[i] && malloc_usable_size(at[i]) >= grown[j]);
            check_all(at[i], lengths[i], guarded[i]);
            CHECK(is_zero(at[i] + grown[j] - 1, 1));
            char *small[64];
            for (int k = 0; k < 64; k++) CHECK((small[k] = malloc(3000)) && memset(small[k], 1, 3000));
            for (int k = 0; k < 64; k++) free(small[k]);
        }
        CHECK(!realloc(at[i], (size_t)-1 / 2 - 5000));
        CHECK(!is_limit || !realloc(at[i], 2000 * MIB));
        check_all(at[i], lengths[i], guarded[i]);
    }
    CHECK(mallinfo2().hblkhd > before.hblkhd);
    if (is_limit) {
        pid_t child = fork();
        if (child == 0) {
            for (int i = 0; i < COUNT; i++) {
                CHECK(at[i] = realloc(at[i], lengths[i] + lengths[i] / 3));
                check_all(at[i], lengths[i], guarded[i]);
                free(at[i]);
            }
            _exit(0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < COUNT; i++) {
        at[i] = realloc(at[i], PAGE / 2);
        CHECK(at[i]);
        for (size_t j = 0; j < PAGE / 2; j += 512) CHECK(at[i][j] == (char)(j / 512 + 1));
        free(at[i]);
    }
    CHECK(mallinfo2().hblkhd < before.hblkhd / 8);
    CHECK(write(1, "outgrown\n", 9) == 9);
    _exit(0);
}
