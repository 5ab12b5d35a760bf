/* A signal comes while memory is being mapped, and its handler forks. The child maps memory in the handler, goes back
   to the mapping that was interrupted, and has all of it once. A tracer delivers the signal where a system call of the
   family returns: at the first one, the second one and so on. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <sys/user.h>

enum { IN_HANDLER = 8, AFTER = 20, CALLS = 6, MARK = 0x7777 };

static const size_t MIB = 1 << 20, STEP = (16 << 10) / 8;
static uint64_t *volatile mapped[IN_HANDLER];
static volatile sig_atomic_t is_child;
static volatile pid_t child;

static uint64_t *get(size_t size, uint64_t word) {
    uint64_t *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        _exit(20);
    for (size_t i = 0; i < size / 8; i += STEP) {
        if (*(volatile uint64_t *)(at + i) != 0)
            _exit(21);
        at[i] = word;
    }
    return at;
}

static void handler(int number) {
    (void)number;
    pid_t pid = fork();
    if (pid > 0) {
        child = pid;
        return;
    }
    is_child = 1;
    for (int i = 0; i < IN_HANDLER; i++)
        mapped[i] = get(4 * MIB, 100 + i);
}

static int program(void) {
    uint64_t *later[AFTER];
    signal(SIGUSR1, handler);
    get(4 * MIB, 1);
    syscall(SYS_getppid, MARK);
    for (int i = 0; i < AFTER; i++)
        later[i] = get(8 * MIB, 200 + i);
    for (size_t page = 0; is_child && page < 4 * MIB / 8; page += STEP)
        for (int i = 0; i < IN_HANDLER; i++)
            if (mapped[i][page] != (uint64_t)(100 + i))
                _exit(22);
    for (size_t page = 0; page < 8 * MIB / 8; page += STEP)
        for (int i = 0; i < AFTER; i++)
            if (later[i][page] != (uint64_t)(200 + i))
                _exit(23);
    if (is_child)
        _exit(0);
    int status = 0;
    if (child && waitpid(child, &status, 0) != child)
        return 24;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 25;
}

/* The status of a program that gets the signal at a call, or 0 where it can't be traced. */
static int interrupted_at(int call) {
    pid_t pid = fork();
    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(0);
        raise(SIGSTOP);
        _exit(program());
    }
    int status, is_inside = 0, is_marked = 0, seen = 0, signal = 0;
    if (waitpid(pid, &status, 0) != pid || WIFEXITED(status))
        return WEXITSTATUS(status);
    ptrace(PTRACE_SETOPTIONS, pid, NULL, (void *)PTRACE_O_TRACESYSGOOD);
    for (;;) {
        if (ptrace(PTRACE_SYSCALL, pid, NULL, (void *)(intptr_t)signal) != 0 ||
            waitpid(pid, &status, 0) != pid)
            return 26;
        if (!WIFSTOPPED(status))
            return WIFEXITED(status) ? WEXITSTATUS(status) : 27;
        signal = 0;
        if (WSTOPSIG(status) != (SIGTRAP | 0x80)) {
            signal = WSTOPSIG(status);
            continue;
        }
        is_inside = !is_inside;
        struct user_regs_struct registers;
        ptrace(PTRACE_GETREGS, pid, NULL, &registers);
        is_marked |= registers.orig_rax == SYS_getppid && registers.rdi == MARK;
        int is_one = registers.orig_rax == SYS_mprotect || registers.orig_rax == SYS_mmap ||
                     registers.orig_rax == SYS_madvise;
        if (is_marked && is_one && !is_inside && seen++ == call) {
            ptrace(PTRACE_DETACH, pid, NULL, (void *)(intptr_t)SIGUSR1);
            if (waitpid(pid, &status, 0) != pid)
                return 28;
            return WIFEXITED(status) ? WEXITSTATUS(status) : 29;
        }
    }
}

int main(void) {
    for (int call = 0; call < CALLS; call++) {
        int status = interrupted_at(call);
        if (status != 0) {
            printf("at call %d: %d\n", call, status);
            return 1;
        }
    }
    puts("all of it once");
    return 0;
}
#else
int main(void) {
    puts("all of it once");
    return 0;
}
#endif
