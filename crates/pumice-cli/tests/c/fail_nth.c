/* Runs a program again and again, and each time has another of its system calls about memory fail, once, with an error
   that the call's manual page has: the first, the second, and so on until there is none left. The program says by
   `personality` from where to where calls count, and must end well. Built as a static program, so that nothing is
   loaded with it; run under `pumice run`, it hands the shim on. A filter has the kernel ask here before each call
   (a debugger would keep the shim's helpers from starting). Arguments: `quick`, one error for each call, or `long`, each; program. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_ERRORS = 4, PATIENCE_S = 20 };

static const struct call {
    const char *name;
    int number, errors[MOST_ERRORS];
} calls[] = {
    {"mmap", SYS_mmap, {ENOMEM, EAGAIN, EINVAL, EPERM}},
    {"munmap", SYS_munmap, {ENOMEM, EINVAL}},
    {"mprotect", SYS_mprotect, {ENOMEM, EACCES}},
    {"madvise", SYS_madvise, {ENOMEM, EAGAIN, EINVAL, EPERM}},
    {"mremap", SYS_mremap, {ENOMEM, EAGAIN, EINVAL, EFAULT}},
    {"mincore", SYS_mincore, {EAGAIN, ENOMEM}},
    {"clone", SYS_clone, {EAGAIN, ENOMEM, EPERM}},
    {"openat", SYS_openat, {EMFILE, ENOENT, EACCES, EINTR}},
    {"ftruncate", SYS_ftruncate, {EINTR, ENOSPC}},
    {"read", SYS_read, {EINTR, EIO}},
};
enum { CALLS = sizeof calls / sizeof calls[0] };

struct shared { volatile int listener, failed; };
static struct shared *shared;

static int install_filter(void) {
    struct sock_filter code[CALLS + 4] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)};
    size_t at = 1;
    for (size_t i = 0; i <= CALLS; i++, at++) {
        unsigned number = i < CALLS ? calls[i].number : SYS_personality;
        code[at] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, CALLS + 1 - i, 0);
    }
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    struct sock_fprog program = {at, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

/* Shares its descriptors with this process, until it is another program. */
static int be_program(void *arguments) {
    shared->listener = install_filter();
    if (shared->listener >= 0) execv(((char **)arguments)[0], arguments);
    shared->failed = errno;
    _exit(120);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* What failed in a run: a call, and its error; neither if there were fewer calls. */
struct failure { const struct call *call; int error; unsigned long long arguments[4]; };

static void answer(struct failure *failure, int *counted, int nth, int turn) {
    struct seccomp_notif asked = {0};
    if (ioctl(shared->listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) return;
    struct seccomp_notif_resp reply = {.id = asked.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    if (asked.data.nr == SYS_personality) *counted = asked.data.args[1] == 1 ? 0 : -1;
    else if (*counted >= 0 && ++*counted == nth) {
        failure->call = calls;
        while (failure->call->number != asked.data.nr) failure->call++;
        memcpy(failure->arguments, asked.data.args, sizeof failure->arguments);
        int errors = 0;
        while (errors < MOST_ERRORS && failure->call->errors[errors]) errors++;
        failure->error = turn < 0 ? failure->call->errors[nth % errors]
                         : turn < errors ? failure->call->errors[turn] : 0;
        if (failure->error) reply.error = -failure->error, reply.flags = 0;
    }
    ioctl(shared->listener, SECCOMP_IOCTL_NOTIF_SEND, &reply);
}

static int differences;

/* Says which call it was, and goes on unless there are many. */
static void complain(int nth, const struct failure *f, const char *what, int status) {
    const unsigned long long *a = f->arguments;
    printf("call %d, %s(%llx, %llx, %llx, %llx), %s: %s %x\n", nth, f->call ? f->call->name : "none", a[0], a[1],
           a[2], a[3], strerror(f->error), what, status);
    if (++differences == 20) exit(1);
}

static struct failure run(char **arguments, int nth, int turn) {
    static char stack[64 << 10] __attribute__((aligned(16)));
    struct failure failure = {NULL, 0, {0}};
    int counted = -1, status;
    double end = now() + PATIENCE_S;
    shared->listener = -1;
    pid_t child = clone(be_program, stack + sizeof stack, CLONE_FILES | CLONE_VFORK | SIGCHLD, arguments);
    CHECK(child > 0);
    if (shared->listener < 0) {
        printf("no filter that asks: %s: skipped\n", strerror(shared->failed));
        exit(0);
    }
    while (waitpid(child, &status, WNOHANG) == 0) {
        struct pollfd ready = {shared->listener, POLLIN, 0};
        if (poll(&ready, 1, 5) > 0 && ready.revents & POLLIN) answer(&failure, &counted, nth, turn);
        if (now() < end) continue;
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        complain(nth, &failure, "it hangs", status);
        status = 0;
        break;
    }
    close(shared->listener);
    if (status != 0) complain(nth, &failure, "it ended with", status);
    return failure;
}

int main(int count, char **arguments) {
    CHECK(count >= 3);
    int is_quick = strcmp(arguments[1], "quick") == 0, nth = 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    for (;; nth++) {
        struct failure failure = {NULL, 1, {0}};
        for (int turn = is_quick ? -1 : 0; failure.error && turn < MOST_ERRORS; turn++) {
            failure = run(arguments + 2, nth, turn);
            if (is_quick) break;
        }
        if (!failure.call) break;
    }
    if (getenv("FAIL_NTH_SAYS")) printf("%d calls\n", nth - 1);
    puts(differences ? "failed" : "done");
    return differences != 0;
}
