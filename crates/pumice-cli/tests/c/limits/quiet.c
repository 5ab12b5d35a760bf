/* Memory goes back to the kernel when it is freed after a filter, another namespace or other rights, whether
   it was served before or lies free by then. What is resident is read through a file that was opened before. */
#include "limits.h"
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define ALLOW(name)                                        \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static struct sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    ALLOW(brk), ALLOW(mmap), ALLOW(munmap), ALLOW(mremap), ALLOW(madvise), ALLOW(mprotect), ALLOW(pread64),
    ALLOW(getrandom), ALLOW(write), ALLOW(exit), ALLOW(exit_group), ALLOW(nanosleep), ALLOW(clock_nanosleep), ALLOW(pause),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};
/* The same with an error in place of death, as a container's. */
static struct sock_filter mild[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};
static struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
static struct sock_fprog mild_program = {sizeof mild / sizeof *mild, mild};

static int statm;

static long resident_mib(void) {
    char text[200] = "";
    CHECK(pread(statm, text, sizeof text - 1, 0) > 0);
    return atol(strchr(text, ' ')) * 4 / 1024;
}

static long by_prctl(void) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static long by_seccomp(void) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
}

static long mildly(void) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &mild_program);
}

static long no_privileges(void) { return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); }
static long new_user(void) { return unshare(CLONE_NEWUSER); }
static long new_mounts(void) { return syscall(SYS_unshare, CLONE_NEWNS); }
static long new_processes(void) { return unshare(CLONE_NEWPID); }

static long enter(void) {
    int own = open("/proc/self/ns/uts", O_RDONLY);
    return setns(own, 0);
}

static long other_user(void) { return syscall(SYS_setresuid, 65534, 65534, 65534); }

static long restrict_self(void) {
    struct landlock_ruleset_attr rules = {.handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_BLOCK};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    int ruleset = syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
    return syscall(SYS_landlock_restrict_self, ruleset, 0);
}

static const struct { const char *name; long (*call)(void); } calls[] = {
    {"filter by prctl", by_prctl}, {"filter by number", by_seccomp}, {"mild filter", mildly},
    {"no new privileges", no_privileges}, {"user namespace", new_user}, {"mount namespace", new_mounts},
    {"process namespace", new_processes}, {"setns", enter}, {"other user", other_user}, {"Landlock", restrict_self},
};
enum { CALLS = sizeof calls / sizeof *calls };

enum { PIECES = 4 };
static const size_t piece = 3 * MIB;

static void take(char *pieces[2 * PIECES]) {
    for (int i = 0; i < PIECES; i++) {
        pieces[2 * i] = malloc(piece);
        pieces[2 * i + 1] = mmap(NULL, piece, RW, ANON, -1, 0);
        CHECK(pieces[2 * i] && pieces[2 * i + 1] != MAP_FAILED);
        memset(pieces[2 * i], 1, piece);
        memset(pieces[2 * i + 1], 1, piece);
    }
}

static void give(char *pieces[2 * PIECES]) {
    for (int i = 0; i < PIECES; i++) {
        free(pieces[2 * i]);
        CHECK(munmap(pieces[2 * i + 1], piece) == 0);
    }
}

/* Whether no more than a part of what was freed is still there; pools may keep a little, or take as long as they are
   told to. */
static const char *is_gone(long before) {
    enum { FEW = 17 };
    for (int i = 0; i < 300 && resident_mib() > before + FEW; i++) usleep(10000);
    return resident_mib() > before + FEW ? "stays" : "is gone";
}

/* With another thread that nothing may be done with the rights of. */
static void *wait_for_ever(void *started) {
    *(_Atomic int *)started = 1;
    for (;;) pause();
}

static void try(int which, int threads) {
    static _Atomic int started;
    pthread_t thread;
    if (threads) CHECK(pthread_create(&thread, NULL, wait_for_ever, &started) == 0);
    while (threads && !started) usleep(100);
    char *served[2 * PIECES], *later[2 * PIECES];
    statm = open("/proc/self/statm", O_RDONLY);
    CHECK(statm >= 0);
    long before = resident_mib();
    /* Memory that is free by then, and memory in use. */
    take(later);
    take(served);
    give(later);
    long result = calls[which].call();
    int error = errno;
    printf("%s: %s\n", calls[which].name, result == 0 ? "done" : strerror(error));
    if (result != 0) return;
    give(served);
    printf("what was in use %s\n", is_gone(before));
    take(later);
    give(later);
    printf("what was taken later %s\n", is_gone(before));
}

int main(void) {
    guard();
    /* A filter knows nothing of what the first output does. */
    puts("begin");
    for (int i = 0; i < 2 * CALLS; i++) {
        /* Beside another thread some of them are enough. */
        if (i % 2 && i / 2 % 3 != 1) continue;
        pid_t child = fork();
        if (child == 0) {
            try(i / 2, i % 2);
            fflush(stdout);
            _exit(0);
        }
        wait_for(child);
    }
    /* In the process that memory was made ready for. */
    churn();
    try(1, 0);
    fflush(stdout);
    _exit(0);
}
