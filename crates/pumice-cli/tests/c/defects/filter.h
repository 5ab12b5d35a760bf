/* Seccomp filters that end the process: at some system calls, or at all but some. */
#ifndef FILTER_H
#define FILTER_H
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int install(const unsigned *calls, int count, unsigned theirs, unsigned others) {
    struct sock_filter code[64] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    int n = 1;
    for (int i = 0; i < count; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, theirs);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, others);
    struct sock_fprog program = {n, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static inline int forbid(const unsigned *calls, int count) {
    return install(calls, count, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW);
}

static inline int allow_only(const unsigned *calls, int count) {
    return install(calls, count, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS);
}
#endif
