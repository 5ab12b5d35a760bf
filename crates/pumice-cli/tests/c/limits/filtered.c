/* A program under a filter of its own that locks everything, installs another filter, or forks: no call is made that it
   does not make itself. */
#include "limits.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define DENY(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

static void deny_what_is_not_needed(void) {
    struct sock_filter calls[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        DENY(SYS_getpid), DENY(SYS_rt_sigprocmask), DENY(SYS_newfstatat), DENY(SYS_openat), DENY(SYS_tgkill),
        DENY(SYS_process_vm_readv), DENY(SYS_madvise), DENY(SYS_mincore),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof calls / sizeof *calls, calls};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

static void lock(void) { syscall(SYS_mlockall, MCL_CURRENT), mlockall(MCL_CURRENT), munlockall(); }

static void filter_again(void) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {1, &allow};
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

static void leave_child(void) {
    pid_t child = syscall(SYS_fork);
    if (child == 0) {
        char *at = malloc(MIB);
        memset(at, 1, MIB);
        free(at);
        _exit(0);
    }
    wait_for(child);
}

/* As sandboxes do it: a child of which the C library knows nothing, in a namespace of its own where it may, or with
   another user's rights, installs a filter before it has asked for memory. */
static void be_sandbox(int flags, int drops) {
    pid_t child = syscall(SYS_clone, SIGCHLD | flags, 0, 0, 0, 0);
    if (child == -1) return;
    if (child == 0) {
        if (drops) syscall(SYS_setresuid, 65534, 65534, 65534);
        deny_what_is_not_needed();
        char *volatile at = malloc(5 * MIB);
        at[0] = 1;
        free(at);
        _exit(0);
    }
    wait_for(child);
}

int main(void) {
    void (*calls[])(void) = {lock, filter_again, leave_child};
    guard();
    for (int drops = 0; drops < 2; drops++) be_sandbox(0, drops), be_sandbox(CLONE_NEWPID, drops);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        pid_t child = fork();
        if (child == 0) {
            churn();
            deny_what_is_not_needed();
            calls[i]();
            _exit(0);
        }
        wait_for(child);
    }
    puts("done");
    return 0;
}
