// Signals, masks and system calls that must go on as if nobody stopped the threads: `pumice trace` does, now and then.
// One thread makes and touches memory, another reads a pipe, and the first one counts.
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SIZE (4 << 20)

static volatile long handled;
static volatile int is_over;
static int ends[2];

static void handle(int signal) { handled++; }

static void *reader(void *unused) {
    static char bytes[4096];
    long sum = 0, count;
    while ((count = read(ends[0], bytes, sizeof bytes)) > 0) sum += count;
    return (void *)(count < 0 ? -1 : sum);
}

static void *toucher(void *unused) {
    while (!is_over) {
        char *memory = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) exit(80);
        memset(memory, 1, SIZE);
        for (int round = 0; round < 20; round++)
            for (int at = 0; at < SIZE; at += 4096) memory[at]++;
        munmap(memory, SIZE);
    }
    return 0;
}

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static int fail(const char *call) {
    printf("%s: %s\n", call, strerror(errno));
    return 1;
}

int main(int count, char **words) {
    signal(SIGUSR1, handle);
    signal(SIGTRAP, SIG_IGN);
    if (count < 2 || pipe(ends)) return 81;
    pthread_t threads[2];
    pthread_create(&threads[0], 0, reader, 0);
    pthread_create(&threads[1], 0, toucher, 0);
    long sent = 0, wrote = 0;
    char bytes[1000] = {0};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    for (double end = now_ms() + atof(words[1]); now_ms() < end;) {
        pthread_kill(pthread_self(), SIGUSR1);
        if (handled != ++sent) return fail("a signal");
        if (write(ends[1], bytes, sizeof bytes) != sizeof bytes) return fail("write");
        wrote += sizeof bytes;
        struct timespec pause = {0, 2000000};
        if (nanosleep(&pause, 0)) return fail("nanosleep");
        if (poll(0, 0, 1) != 0) return fail("poll");
        int word = 1;
        if (syscall(SYS_futex, &word, FUTEX_WAIT, 1, &pause, 0, 0) != -1 || errno != ETIMEDOUT) return fail("futex");
        pthread_sigmask(SIG_BLOCK, &set, 0);
        pthread_kill(pthread_self(), SIGUSR1);
        usleep(500);
        if (handled != sent) return fail("the mask");
        pthread_sigmask(SIG_UNBLOCK, &set, 0);
        if (handled != ++sent) return fail("a blocked signal");
    }
    is_over = 1;
    close(ends[1]);
    void *read_bytes;
    pthread_join(threads[0], &read_bytes);
    pthread_join(threads[1], 0);
    struct sigaction trap;
    sigaction(SIGTRAP, 0, &trap);
    printf("%ld of %ld signals, %ld of %ld bytes\n", handled, sent, (long)read_bytes, wrote);
    return !(handled == sent && (long)read_bytes == wrote && trap.sa_handler == SIG_IGN);
}
