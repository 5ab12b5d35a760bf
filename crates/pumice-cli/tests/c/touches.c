// Touches memory in ways whose working set is known, for `pumice trace`.
//
//   touches loop PAGES WORKING_SET MS   touches all pages once, then goes over some of them again and again
//   touches loop PAGES WORKING_SET 0 TRACE COUNT   the same until the trace has so many intervals more; says which is the first
//   touches fork PAGES MS               the same in a child, which ends with status 3
//   touches exec PROGRAM ...            executes a program
//   touches sleepy PAGES MS             touches pages between short sleeps in epoll_wait, which must not be interrupted
//   touches threads PAGES MS            threads that do so, while the first one waits
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096L

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static char *map(long pages) {
    char *memory = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) exit(90);
    memset(memory, 1, pages * PAGE);
    return memory;
}

// The intervals of a trace so far.
static long intervals(char *trace) {
    char line[256];
    long count = 0;
    FILE *file = fopen(trace, "r");
    while (fgets(line, sizeof line, file)) count += !strncmp(line, "# until", 7);
    fclose(file);
    return count;
}

static unsigned long go_over(volatile char *memory, long pages, double until_ms) {
    unsigned long sum = 0;
    while (now_ms() < until_ms)
        for (long page = 0; page < pages; page++) sum += memory[page * PAGE];
    return sum;
}

static long thread_pages;
static double thread_ms;

static void *thread(void *unused) {
    go_over(map(thread_pages), thread_pages, now_ms() + thread_ms);
    return 0;
}

int main(int count, char **words) {
    if (count < 3) return 91;
    char *how = words[1];
    if (!strcmp(how, "exec")) {
        execvp(words[2], words + 2);
        return 92;
    }
    long pages = atol(words[2]);
    if (!strcmp(how, "loop")) {
        char *memory = map(pages);
        go_over(memory, atol(words[3]), now_ms() + atof(words[4]));
        if (count > 6) {
            long begun = intervals(words[5]);
            printf("%ld ", begun);
            while (intervals(words[5]) < begun + atol(words[6])) go_over(memory, atol(words[3]), now_ms() + 50);
        }
        // Others are touched once only.
        for (long page = 0; page < atol(words[3]); page++)
            if (memory[page * PAGE + 9] != 1) return 93;
    } else if (!strcmp(how, "fork")) {
        pid_t child = fork();
        if (!child) {
            go_over(map(pages), pages, now_ms() + atof(words[3]));
            _exit(3);
        }
        int status;
        if (waitpid(child, &status, 0) != child) return 94;
        return WEXITSTATUS(status);
    } else if (!strcmp(how, "sleepy")) {
        char *memory = map(pages);
        int epoll = epoll_create1(0);
        struct epoll_event event;
        for (double end = now_ms() + atof(words[3]); now_ms() < end;) {
            if (epoll_wait(epoll, &event, 1, 20) < 0) {
                perror("epoll_wait");
                return 95;
            }
            go_over(memory, pages, now_ms() + 1);
        }
    } else if (!strcmp(how, "threads")) {
        pthread_t threads[4];
        thread_pages = pages;
        thread_ms = atof(words[3]);
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, thread, 0);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    } else {
        return 96;
    }
    puts("done");
    return 0;
}
