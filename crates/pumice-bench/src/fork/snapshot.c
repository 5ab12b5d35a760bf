/* A server that keeps values in memory and takes snapshots by fork; it knows nothing of pumice.
 *
 * snapshot BYTES LEAST MOST WRITTEN TIMES
 *
 * Keeps values of LEAST to MOST bytes, as many small as large ones by their logarithm, BYTES in all. TIMES
 * times: forks; the child reads every value, while the parent replaces values until it has written WRITTEN
 * bytes. Prints milliseconds: of a fork and what it and both then do, until both are done; of the fork
 * alone; of the parent's writing; of the whole process; and the most KiB that both had together
 * (PSS, when both are done and neither has ended). */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct value {
    char *at;
    size_t size;
};

static struct value *values;
static size_t count, least, most;
static uint64_t state = 88172645463325252u;

static double ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec * 1e-6;
}

static uint64_t next_random(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static size_t any_size(void) {
    size_t doublings = 0;
    while (least << doublings < most)
        doublings++;
    size_t size = least << next_random() % doublings;
    return size + next_random() % size;
}

static void make(struct value *value) {
    value->size = any_size();
    value->at = malloc(value->size);
    if (value->at == NULL)
        abort();
    memset(value->at, (int)next_random() | 1, value->size);
}

static size_t proportional_kib(pid_t process) {
    char path[64], line[256];
    size_t kib = 0;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", process);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        abort();
    while (fgets(line, sizeof line, file) != NULL && sscanf(line, "Pss: %zu", &kib) != 1)
        ;
    fclose(file);
    return kib;
}

/* What a snapshot does, but for the file. */
static uint64_t read_all(void) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t byte = 0; byte + 8 <= values[i].size; byte += 64)
            sum += *(uint64_t *)(values[i].at + byte);
    return sum;
}

int main(int arguments_count, char **arguments) {
    if (arguments_count != 6)
        return 2;
    double began = ms();
    size_t bytes = strtoull(arguments[1], NULL, 10);
    least = strtoull(arguments[2], NULL, 10);
    most = strtoull(arguments[3], NULL, 10);
    size_t written = strtoull(arguments[4], NULL, 10);
    int times = atoi(arguments[5]);

    values = mmap(NULL, bytes / least * sizeof *values, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (values == MAP_FAILED)
        return 3;
    for (size_t sum = 0; sum < bytes; sum += values[count++].size)
        make(&values[count]);

    double in_all = 0, in_fork = 0, in_writing = 0;
    size_t peak_kib = 0;
    for (int turn = 0; turn < times; turn++) {
        int done[2], end[2];
        char byte;
        if (pipe(done) != 0 || pipe(end) != 0)
            return 3;
        double from = ms();
        pid_t child = fork();
        if (child < 0)
            return 3;
        if (child == 0) {
            uint64_t sum = read_all();
            if (write(done[1], &sum, 1) != 1 || read(end[0], &byte, 1) != 1)
                _exit(3);
            _exit(0);
        }
        in_fork += ms() - from;
        double writing_from = ms();
        for (size_t sum = 0; sum < written;) {
            struct value *value = &values[next_random() % count];
            free(value->at);
            make(value);
            sum += value->size;
        }
        in_writing += ms() - writing_from;
        if (read(done[0], &byte, 1) != 1)
            return 3;
        in_all += ms() - from;
        size_t kib = proportional_kib(getpid()) + proportional_kib(child);
        peak_kib = kib > peak_kib ? kib : peak_kib;
        int status;
        if (write(end[1], &byte, 1) != 1 || waitpid(child, &status, 0) != child || status != 0)
            return 3;
        close(done[0]), close(done[1]), close(end[0]), close(end[1]);
    }
    printf("%.3f %.3f %.3f %.3f %zu\n", in_all / times, in_fork / times, in_writing / times,
           ms() - began, peak_kib);
    return 0;
}
