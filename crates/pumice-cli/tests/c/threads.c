/* Eight threads that allocate, check, hand to each other and free; threads come and go. The
   argument is how many blocks each of them makes. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 8, MAILBOXES = 64, LIVES = 2 };

static int rounds = 300;

struct block {
    size_t size;
    uint64_t seed;
};

/* Blocks on their way from the thread that made them to whichever frees them. */
static _Atomic(struct block *) mailboxes[MAILBOXES];

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static size_t any_size(uint64_t *state) {
    uint64_t random = next_random(state);
    size_t size = (size_t)64 << (random >> 8) % 16;
    return sizeof(struct block) + size + (random >> 16) % size;
}

static struct block *make(uint64_t *state) {
    size_t size = any_size(state);
    struct block *block;
    switch (next_random(state) % 4) {
    case 0:
        block = calloc(1, size);
        CHECK(block && is_zero(block, size < 100000 ? size : 100000));
        break;
    case 1:
        CHECK(posix_memalign((void **)&block, 4096, size) == 0);
        break;
    default:
        block = malloc(size);
    }
    CHECK(block != NULL);
    block->size = size;
    block->seed = next_random(state);
    fill(block + 1, size - sizeof *block, block->seed);
    return block;
}

static void check(struct block *block) {
    CHECK(holds(block + 1, block->size - sizeof *block, block->seed));
}

static void *work(void *argument) {
    uint64_t state = (uintptr_t)argument * 0x2545f4914f6cdd1du + 1;
    for (int round = 0; round < rounds; round++) {
        struct block *block = make(&state);
        if (next_random(&state) % 4 == 0) {
            size_t size = any_size(&state), old = block->size;
            block = realloc(block, size);
            CHECK(block != NULL);
            CHECK(holds(block + 1, (size < old ? size : old) - sizeof *block, block->seed));
            block->size = size;
            fill(block + 1, size - sizeof *block, block->seed);
        }
        block = atomic_exchange(&mailboxes[next_random(&state) % MAILBOXES], block);
        if (block) {
            check(block);
            free(block);
        }
    }
    return NULL;
}

int main(int count, char **arguments) {
    if (count > 1) rounds = atoi(arguments[1]);
    for (int life = 0; life < LIVES; life++) {
        pthread_t threads[THREADS];
        for (uintptr_t i = 0; i < THREADS; i++)
            CHECK(pthread_create(&threads[i], NULL, work, (void *)(life * THREADS + i)) == 0);
        for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    }
    for (int i = 0; i < MAILBOXES; i++)
        if (mailboxes[i]) {
            check(mailboxes[i]);
            free(mailboxes[i]);
        }
    puts("done");
    return 0;
}
