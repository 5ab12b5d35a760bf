// Programs that stops at any moment must not harm, for `pumice trace`. Each says "done" if it was not.
//
//   untroubled kills|exits|execs MS   children that touch new memory are killed, end or execute a program in the midst
//   untroubled exit                   it ends with status 7 while a thread that touches new memory may be stopped
//   untroubled strict PAGES           touches new memory under seccomp's strict mode, which forbids to read the time
//   untroubled filter MS              a thread under a filter of seccomp touches new memory
//   untroubled secrets                pages that are left out of core files, and a copy of them, stay so
//   untroubled filled                 memory is filled by userfaultfd, many pages at once
//   untroubled leader MS              the main thread ends, and another one goes on; ends with status 5
//   untroubled selects COUNT          waits in select, with a time that can't be written
//   untroubled again COUNT            executes itself, at the same addresses each time
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096L
#define SIZE (256L << 20)

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static char *map(long size) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *memory = mmap(0, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) exit(90);
    madvise(memory, size, MADV_NOHUGEPAGE);
    return memory;
}

// Touches one page after the other. It makes no system call: the time is read in the vDSO.
static void grow(volatile char *memory, long size, double ms) {
    double end = now_ms() + ms;
    for (long at = 0; now_ms() < end; at = (at + PAGE) % size) memory[at]++;
}

static void *grow_for_ever(void *unused) {
    grow(map(SIZE), SIZE, 1e9);
    return 0;
}

// A sleep in which a thread is not stopped.
static void doze(long us) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, 0);
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    sigtimedwait(&set, 0, &time);
}

// Waits until a thread is traced, or for a while.
static void await_tracer(int tid) {
    char path[64], text[2048];
    snprintf(path, sizeof path, "/proc/%d/status", tid);
    for (double end = now_ms() + 60; now_ms() < end; doze(30)) {
        int file = open(path, O_RDONLY);
        ssize_t len = read(file, text, sizeof text - 1);
        close(file);
        if (len <= 0) return;
        text[len] = 0;
        char *tracer = strstr(text, "TracerPid:");
        if (tracer && atoi(tracer + 10)) return;
    }
}

static volatile int toucher;

static void *touch(void *unused) {
    toucher = gettid();
    return grow_for_ever(unused);
}

static void *execute(void *unused) {
    while (!toucher) doze(30);
    await_tracer(toucher);
    execl("/bin/true", "true", (char *)0);
    exit(91);
}

static void live(char *how, long round) {
    pthread_t thread;
    if (!strcmp(how, "kills")) grow_for_ever(0);
    pthread_create(&thread, 0, touch, 0);
    if (!strcmp(how, "exits")) {
        while (!toucher) doze(30);
        await_tracer(toucher);
        _exit(0);
    }
    // Another thread is stopped than the one that executes a program, which is the main thread in every second child.
    if (round % 2) execute(0);
    pthread_create(&thread, 0, execute, 0);
    doze(60000000);
}

static int die(char *how, double ms) {
    double end = now_ms() + ms;
    for (long round = 0; now_ms() < end; round++) {
        int is_killed = !strcmp(how, "kills"), status;
        pid_t child = fork();
        if (!child) live(how, round);
        if (is_killed) await_tracer(child), kill(child, SIGKILL);
        // Not by a clock: all may be stopped for long.
        int tries = 20000, waited;
        while (!(waited = waitpid(child, &status, WNOHANG)) && --tries) usleep(1000);
        if (waited != child || status != (is_killed ? SIGKILL : 0)) return 92;
    }
    return 0;
}

static void *filtered(void *ms) {
    char *memory = map(SIZE);
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)) exit(93);
    grow(memory, SIZE, (long)ms);
    syscall(SYS_exit, 0);
    return 0;
}

#define SECRETS 400
static char *secrets[SECRETS];

static int are_kept(void) {
    FILE *smaps = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long start = 0, end = 0, from, to;
    while (fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) start = from, end = to;
        if (strncmp(line, "VmFlags:", 8) || strstr(line, " dd")) continue;
        for (int nth = 0; nth < SECRETS; nth++)
            if ((unsigned long)secrets[nth] >= start && (unsigned long)secrets[nth] < end) return 0;
    }
    return 1;
}

static int keep_secrets(void) {
    for (int nth = 0; nth < SECRETS; nth++) {
        char *guarded = mmap(0, 3 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        secrets[nth] = guarded + PAGE;
        mprotect(secrets[nth], PAGE, PROT_READ | PROT_WRITE);
        madvise(secrets[nth], PAGE, MADV_DONTDUMP);
        strcpy(secrets[nth], "secret");
    }
    grow(map(SIZE / 8), SIZE / 8, 500);
    pid_t child = fork();
    grow(map(SIZE), SIZE, 700);
    if (!are_kept()) return 94;
    if (!child) _exit(0);
    int status;
    return waitpid(child, &status, 0) == child && !status ? 0 : 95;
}

static int fill(void) {
    long size = 16L << 20, step = 64 * PAGE;
    int descriptor = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    if (descriptor < 0 || ioctl(descriptor, UFFDIO_API, &api)) return 2;
    char *memory = map(size), *source = map(step);
    memset(source, 7, step);
    struct uffdio_register all = {.range = {(unsigned long)memory, size}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(descriptor, UFFDIO_REGISTER, &all)) return 2;
    for (int round = 0; round < 5; round++) {
        for (long at = 0; at < size; at += step) {
            struct uffdio_copy copy = {.dst = (unsigned long)memory + at, .src = (unsigned long)source, .len = step};
            if (ioctl(descriptor, UFFDIO_COPY, &copy)) return 96;
        }
        grow(memory, size, 150);
        madvise(memory, size, MADV_DONTNEED);
    }
    return 0;
}

static void *last(void *ms) {
    grow(map(SIZE / 8), SIZE / 8, (long)ms);
    exit(5);
}

int main(int count, char **words) {
    char *how = words[1];
    long number = count > 2 ? atol(words[2]) : 0;
    int status = 0;
    pthread_t thread;
    if (!strcmp(how, "kills") || !strcmp(how, "exits") || !strcmp(how, "execs")) {
        status = die(how, number);
    } else if (!strcmp(how, "exit")) {
        pthread_create(&thread, 0, touch, 0);
        while (!toucher) doze(30);
        await_tracer(toucher);
        _exit(7);
    } else if (!strcmp(how, "strict")) {
        volatile char *memory = map(SIZE);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) return 97;
        for (long page = 0; page < number; page++)
            for (int spin = 0; spin < 2000; spin++) memory[page * PAGE % SIZE]++;
        write(1, "done\n", 5);
        syscall(SYS_exit, 0);
    } else if (!strcmp(how, "filter")) {
        pthread_create(&thread, 0, filtered, (void *)number);
        doze(1000 * number + 100000);
    } else if (!strcmp(how, "secrets")) {
        status = keep_secrets();
    } else if (!strcmp(how, "filled")) {
        status = fill();
    } else if (!strcmp(how, "leader")) {
        pthread_create(&thread, 0, last, (void *)number);
        pthread_exit(0);
    } else if (!strcmp(how, "selects")) {
        static const struct timeval time = {0, 100000};
        char *memory = map(SIZE);
        for (long nth = 0; nth < number; nth++) {
            memset(memory + nth * (8L << 20), 1, 8L << 20);
            if (syscall(SYS_select, 0, 0, 0, 0, &time) < 0) return 98;
        }
    } else if (!strcmp(how, "again")) {
        int is_fixed = personality(0xffffffff) & ADDR_NO_RANDOMIZE;
        if (!is_fixed && personality(personality(0xffffffff) | ADDR_NO_RANDOMIZE) < 0) return 2;
        if (is_fixed) grow(map(SIZE / 8), SIZE / 8, 300);
        if (number) {
            char next[2] = {'0' + number - is_fixed / ADDR_NO_RANDOMIZE, 0};
            execl("/proc/self/exe", words[0], how, next, (char *)0);
            return 99;
        }
    } else {
        return 89;
    }
    if (!status) puts("done");
    return status;
}
