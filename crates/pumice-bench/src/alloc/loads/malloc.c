/* Allocates 64 KiB to 64 MiB, all magnitudes alike, and touches it: malloc THREADS STEP COUNT.
 * Of every STEP pages one is written; with STEP 1 every byte is. Each thread holds a few. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELD = 6, PAGE = 4096 };

static unsigned long threads, step, count;

static uint64_t next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static void *work(void *seed) {
    uint64_t state = (uintptr_t)seed;
    unsigned char *held[HELD] = {0};
    for (unsigned long i = 0; i < count; i++) {
        unsigned slot = next(&state) % HELD;
        unsigned char mark = i % 255 + 1;
        size_t base = (size_t)(64 << 10) << next(&state) % 10;
        size_t size = base + next(&state) % base;
        if (held[slot] && !held[slot][0])
            abort();
        free(held[slot]);
        unsigned char *memory = held[slot] = malloc(size);
        if (!memory)
            abort();
        if (step == 1)
            memset(memory, mark, size);
        else
            for (size_t at = 0; at < size; at += step * PAGE)
                *(volatile unsigned char *)(memory + at) = mark;
    }
    for (unsigned slot = 0; slot < HELD; slot++)
        free(held[slot]);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    threads = strtoul(argv[1], NULL, 10);
    step = strtoul(argv[2], NULL, 10);
    count = strtoul(argv[3], NULL, 10);
    pthread_t ids[64];
    if (threads < 1 || threads > 64 || step < 1)
        return 2;
    for (uintptr_t i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, work, (void *)(i + 1)))
            return 1;
    for (unsigned long i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    return 0;
}
