/* Maps, touches a byte of a page, and unmaps; it knows nothing of whose memory it gets.
 *
 * loop BYTES PAGES TIMES THREADS HUGE WAIT_MS
 *
 * Each thread maps BYTES bytes TIMES times, and touches PAGES pages of them, spread evenly. HUGE: 1 to
 * advise huge pages, as a program would that wants them. Waits before it begins. Prints nanoseconds
 * of each thread's time on a page, of processor time on a page, of processor time since the
 * process began, and the most KiB resident. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static size_t bytes, pages;
static int times, huge;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static double processor(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void *work(void *unused) {
    size_t step = bytes / pages / 4096 * 4096;
    for (int i = 0; i < times; i++) {
        char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            abort();
        if (huge)
            madvise(at, bytes, MADV_HUGEPAGE);
        for (size_t page = 0; page < pages; page++)
            ((volatile char *)at)[page * step] = 1;
        munmap(at, bytes);
    }
    return unused;
}

int main(int count, char **arguments) {
    if (count != 7)
        return 2;
    bytes = strtoull(arguments[1], NULL, 10);
    pages = strtoull(arguments[2], NULL, 10);
    times = atoi(arguments[3]);
    int threads = atoi(arguments[4]);
    huge = atoi(arguments[5]);
    usleep(atoi(arguments[6]) * 1000);

    pthread_t others[64];
    double from = seconds(), from_processor = processor();
    for (int i = 1; i < threads; i++)
        if (pthread_create(&others[i], NULL, work, NULL) != 0)
            abort();
    work(NULL);
    for (int i = 1; i < threads; i++)
        pthread_join(others[i], NULL);
    double took = seconds() - from, spent = processor() - from_processor;

    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double touched = (double)pages * times * threads;
    printf("%.3f %.3f %.3f %ld\n", took / touched * 1e9, spent / touched * 1e9,
           processor() / touched * 1e9, usage.ru_maxrss);
    return 0;
}
