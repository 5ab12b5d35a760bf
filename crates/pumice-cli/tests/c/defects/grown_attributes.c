/* After a limit on addresses or a filter, memory on which the program has set attributes grows to another place, where
   it has none, as with the C library. More memory than there is is still refused. */
#define _GNU_SOURCE
#include "defect.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { ATTRIBUTES = 6 };

static const size_t lengths[] = {256 << 10, MIB, 3 * MIB, 9 * MIB};

static void set(int kind, char *at, size_t len) {
    int file = -1;
    switch (kind) {
    case 0: CHECK(mprotect(at, len, PROT_READ) == 0); return;
    case 1: CHECK(madvise(at, len, MADV_DONTFORK) == 0); return;
    case 2: CHECK(madvise(at, len, MADV_WIPEONFORK) == 0); return;
    case 3: CHECK(mlock(at, len) == 0 || errno == ENOMEM || errno == EPERM); return;
    default:
        CHECK((file = memfd_create("attributes", 0)) >= 0 && ftruncate(file, len) == 0);
        CHECK(pwrite(file, at, len, 0) == (ssize_t)len);
        int how = kind == 4 ? MAP_SHARED : MAP_PRIVATE;
        CHECK(mmap(at, len, RW, how | MAP_FIXED, file, 0) == at && close(file) == 0);
    }
}

static void check_grown(char *at, size_t len) {
    CHECK(holds(at, len, 3));
    fill(at, 4 * len, 4);
    pid_t child = fork();
    if (child == 0) _exit(holds(at, 4 * len, 4) ? 0 : 1);
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    free(at);
    char *next = calloc(1, len);
    CHECK(next && is_zero(next, len));
    free(next);
}

int main(int count, char **arguments) {
    guard(60);
    CHECK(mallopt(M_MMAP_THRESHOLD, 128 << 10) == 1);
    char *at[ATTRIBUTES][4];
    for (int kind = 0; kind < ATTRIBUTES; kind++)
        for (int i = 0; i < 4; i++) {
            CHECK(at[kind][i] = memalign(PAGE, lengths[i]));
            fill(at[kind][i], lengths[i], 3);
            set(kind, at[kind][i], lengths[i]);
        }
    struct rlimit limit = {(size_t)1 << 46, RLIM_INFINITY};
    struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &all};
    CHECK(count == 2);
    if (!strcmp(arguments[1], "limit")) CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    if (!strcmp(arguments[1], "filter")) {
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    }
    for (int kind = 0; kind < ATTRIBUTES; kind++)
        for (int i = 0; i < 4; i++) {
            /* Under overcommit_memory=1 all is promised. */
            char mode = '0';
            int file = open("/proc/sys/vm/overcommit_memory", O_RDONLY);
            CHECK(file < 0 || (read(file, &mode, 1) == 1 && close(file) == 0));
            CHECK(mode == '1' || !realloc(at[kind][i], (size_t)1 << 44));
            char *grown = realloc(at[kind][i], 4 * lengths[i]);
            CHECK(grown);
            check_grown(grown, lengths[i]);
        }
    puts("grown");
    return 0;
}
