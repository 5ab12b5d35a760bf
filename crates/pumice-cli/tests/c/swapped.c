/* Memory that is swapped out because others need it, with nobody having asked for that.
   `blocks ROUNDS MIB MACHINE`: blocks are written, swapped out by a child that wants all of a machine of
   MACHINE MiB, and freed; what calloc then gives must be zero. `hold MIB`: keeps that much and looks at it again
   and again, so that others have less, until SIGTERM; it must be as it was written. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define MIB (1 << 20)

static volatile sig_atomic_t ended;

static void end(int signal) {
    (void)signal;
    ended = 1;
}

static uint64_t likeness[PAGE / 8];

/* Words of which a quarter does not compress, so that compressed swap gains, but not everything. */
static void draw_likeness(void) {
    uint64_t word = 1;
    for (int i = 0; i < PAGE / 8; i += 4) likeness[i] = word = word * 6364136223846793005u + 1442695040888963407u;
}

static void fill(char *page, uint64_t seed) {
    memcpy(page, likeness, PAGE);
    memcpy(page + PAGE / 2, &seed, sizeof seed);
}

static int is_filled(const char *page, uint64_t seed) {
    char expected[PAGE];
    fill(expected, seed);
    return memcmp(page, expected, PAGE) == 0;
}

static size_t not_zero(const char *block, size_t bytes) {
    static const char zeros[PAGE];
    size_t count = 0;
    for (size_t at = 0; at < bytes; at += PAGE) count += memcmp(block + at, zeros, PAGE) != 0;
    return count;
}

/* Has the kernel swap out what the parent holds, by wanting more than the machine has. */
static void press(size_t mib) {
    if (fork() == 0) {
        size_t bytes = mib * MIB;
        char *all = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (all == MAP_FAILED) _exit(1);
        for (size_t at = 0; at < bytes; at += PAGE) fill(all + at, at);
        _exit(0);
    }
    int status;
    wait(&status);
    if (status != 0) printf("the one that presses ended with %d\n", status);
}

static size_t swapped_mib(void) {
    char line[256];
    size_t kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "VmSwap: %zu", &kib);
    if (file) fclose(file);
    return kib / 1024;
}

enum { EACH_MIB = 4 };

static char *written_block(uint64_t seed) {
    char *block = malloc(EACH_MIB * MIB);
    for (size_t at = 0; at < EACH_MIB * MIB; at += PAGE) fill(block + at, seed + at);
    return block;
}

static int blocks(int rounds, size_t mib, size_t machine_mib) {
    size_t count = mib / EACH_MIB, wrong = 0, pages = count * EACH_MIB * MIB / PAGE;
    char **block = malloc(count * sizeof *block);
    /* What is written and freed a few times is known for being written: the next ones come from elsewhere. */
    for (int i = 0; i < 8; i++) free(written_block(i));
    for (int round = 1; round <= rounds; round++) {
        for (size_t i = 0; i < count; i++) block[i] = written_block(i);
        press(machine_mib);
        printf("round %d: %s\n", round, swapped_mib() > mib / 4 ? "swapped out" : "not swapped out: too little pressure");
        for (size_t i = 0; i < count; i++) free(block[i]);
        for (size_t i = 0; i < count; i++) {
            block[i] = calloc(1, EACH_MIB * MIB);
            wrong += not_zero(block[i], EACH_MIB * MIB);
        }
        for (size_t i = 0; i < count; i++) free(block[i]);
        printf("%zu of %zu pages of calloc not zero\n", wrong, pages * round);
    }
    return wrong != 0;
}

static int hold(size_t mib) {
    size_t bytes = mib * MIB;
    char *all = malloc(bytes);
    signal(SIGTERM, end);
    for (size_t at = 0; at < bytes; at += PAGE) fill(all + at, at);
    while (!ended) {
        for (size_t at = 0; at < bytes && !ended; at += PAGE) {
            if (!is_filled(all + at, at)) {
                printf("page %zu of %zu is not as written\n", at / PAGE, bytes / PAGE);
                return 1;
            }
            /* 200 MiB a second at most, so that others get on. */
            if (at % MIB == 0) usleep(5000);
        }
    }
    printf("all as written\n");
    return 0;
}

int main(int count, char **argument) {
    draw_likeness();
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count == 5 && strcmp(argument[1], "blocks") == 0)
        return blocks(atoi(argument[2]), atoi(argument[3]), atoi(argument[4]));
    if (count == 3 && strcmp(argument[1], "hold") == 0) return hold(atoi(argument[2]));
    fprintf(stderr, "say: swapped blocks ROUNDS MIB MACHINE, or swapped hold MIB\n");
    return 2;
}
