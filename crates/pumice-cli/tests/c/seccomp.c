/* A program that gives up every system call but those malloc makes, by prctl or by seccomp, or
   all but reading and writing. A thread of the shim's that made another one would end it. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALLOW(name)                                         \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1),  \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static struct sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    ALLOW(brk), ALLOW(mmap), ALLOW(munmap), ALLOW(mremap), ALLOW(madvise), ALLOW(mprotect),
    ALLOW(getrandom), ALLOW(write), ALLOW(exit), ALLOW(exit_group),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};
static struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};

static void work(size_t largest) {
    for (int round = 0; round < 200; round++) {
        size_t size = largest >> round % 8;
        char *p = round % 2 ? malloc(size) : calloc(1, size);
        CHECK(p && (round % 2 || is_zero(p, size)));
        fill(p, size, round);
        p = realloc(p, 2 * size);
        CHECK(p && holds(p, size, round));
        free(p);
    }
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    const char *how = arguments[1];
    setvbuf(stdout, NULL, _IONBF, 0);
    /* Questions whether the kernel knows filters install none. */
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL);
    CHECK(errno == EFAULT);
    CHECK(prctl(PR_GET_SECCOMP) == 0);
    if (strcmp(arguments[2], "before") == 0) work(8 << 20);
    /* Long enough for a helper thread, if there is one, to be in the middle of something. */
    usleep(20000);
    if (strcmp(how, "strict") == 0) {
        /* Small memory only: for large, malloc would have to ask the kernel. */
        free(malloc(2000));
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
        work(1000);
        CHECK(write(1, "done\n", 5) == 5);
        syscall(SYS_exit, 0);
    }
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (strcmp(how, "prctl") == 0)
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    else if (strcmp(how, "syscall") == 0)
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
    else
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)
              == 0);
    work(8 << 20);
    puts("done");
    return 0;
}
