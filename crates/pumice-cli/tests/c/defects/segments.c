/* Segments of System V shared memory attached over memory that is served, and detached: what is mapped there
   afterwards is private and zero, and nobody's else. */
#define _GNU_SOURCE
#include "defect.h"
#include <sys/ipc.h>
#include <sys/shm.h>

enum { SIZE = 4 << 20, PART = 1 << 20, MAPS = 6 };

static int numbered;

static char *attach(int id, char *at, int flags) {
    return numbered ? (char *)syscall(SYS_shmat, id, at, flags) : shmat(id, at, flags);
}
static int detach(char *at) { return numbered ? syscall(SYS_shmdt, at) : shmdt(at); }

/* As long as the program has it, it is the segment's; then it is as if nothing had been. */
static void over(char *at, char *place) {
    int id = shmget(IPC_PRIVATE, PART, 0600);
    CHECK(id >= 0);
    char *other = shmat(id, NULL, 0);
    CHECK(other != MAP_FAILED && shmctl(id, IPC_RMID, NULL) == 0);
    fill(at, SIZE, 1);
    CHECK(attach(id, place, 0) == MAP_FAILED && errno == EINVAL && holds(at, SIZE, 1));
    CHECK(attach(id, place, SHM_REMAP) == place && is_zero(place, PART));
    fill(other, PART, 2);
    CHECK(holds(place, PART, 2));
    pid_t child = fork();
    if (child == 0) {
        fill(place, PART, 3);
        exit(0);
    }
    wait_for(child);
    CHECK(holds(other, PART, 3));
    /* A byte further it is none. */
    CHECK(detach(place + PAGE) == -1 && errno == EINVAL);
    CHECK(detach(place) == 0);
    unsigned char seen;
    CHECK(mincore(place, PAGE, &seen) == -1 && errno == ENOMEM);
    CHECK(detach(place) == -1 && errno == EINVAL);
    for (char *rest = at; rest < at + SIZE; rest += PART)
        if (rest != place) CHECK(rest[PART / 2] || rest[0]);
    CHECK(munmap(at, SIZE) == 0);
    /* Nothing that comes next is shared with anyone. */
    char *maps[MAPS];
    for (int i = 0; i < MAPS; i++) {
        CHECK(is_zero(maps[i] = map(PART), PART));
        fill(maps[i], PART, 10 + i);
    }
    CHECK(holds(other, PART, 3));
    fill(other, PART, 4);
    child = fork();
    if (child == 0) {
        for (int i = 0; i < MAPS; i++) fill(maps[i], PART, 50 + i);
        exit(0);
    }
    wait_for(child);
    for (int i = 0; i < MAPS; i++) CHECK(holds(maps[i], PART, 10 + i));
    for (int i = 0; i < MAPS; i++) CHECK(munmap(maps[i], PART) == 0);
    CHECK(holds(other, PART, 4) && shmdt(other) == 0);
}

/* Unmapped without being detached, and the other way round: a piece unmapped before. */
static void by_other_calls(void) {
    int id = shmget(IPC_PRIVATE, PART, 0600);
    CHECK(id >= 0);
    char *at = map(SIZE), *place = at + PART;
    CHECK(attach(id, place, SHM_REMAP) == place);
    fill(place, PART, 5);
    CHECK(munmap(place + PART / 2, PART / 2) == 0);
    CHECK(detach(place) == 0);
    CHECK(attach(id, place, 0) == place && holds(place, PART, 5));
    CHECK(munmap(at, SIZE) == 0);
    struct shmid_ds status;
    CHECK(shmctl(id, IPC_STAT, &status) == 0 && status.shm_nattch == 0);
    at = map(SIZE);
    CHECK(is_zero(at, SIZE));
    /* Read only, and where a page is rounded down to. */
    CHECK(attach(id, at + 5, SHM_REMAP | SHM_RND | SHM_RDONLY) == at);
    CHECK(faults(at, WRITE) && !faults(at, READ));
    CHECK(detach(at) == 0);
    CHECK(mmap(at, PART, RW, ANON | MAP_FIXED, -1, 0) == at && is_zero(at, SIZE));
    memset(at, 7, SIZE);
    CHECK(munmap(at, SIZE) == 0);
    CHECK(shmctl(id, IPC_STAT, &status) == 0 && status.shm_nattch == 0);
    CHECK(shmctl(id, IPC_RMID, NULL) == 0);
}

/* Memory of malloc's, which is the program's to map over as well. */
static void over_block(void) {
    int id = shmget(IPC_PRIVATE, PART, 0600);
    char *at = aligned_alloc(PART, SIZE);
    CHECK(id >= 0 && at && attach(id, at + PART, SHM_REMAP) == at + PART);
    CHECK(shmctl(id, IPC_RMID, NULL) == 0);
    fill(at, SIZE, 6);
    CHECK(detach(at + PART) == 0);
    CHECK(mmap(at + PART, PART, RW, ANON | MAP_FIXED, -1, 0) == at + PART);
    CHECK(is_zero(at + PART, PART));
    fill(at, SIZE, 6);
    free(at);
    at = calloc(1, SIZE);
    CHECK(is_zero(at, SIZE));
    free(at);
}

int main(void) {
    guard(20);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    int id = shmget(IPC_PRIVATE, PAGE, 0600);
    if (id < 0) return skip("no shared memory here");
    shmctl(id, IPC_RMID, NULL);
    for (numbered = 0; numbered < 2; numbered++) {
        for (int i = 0; i < 4; i++) {
            char *at = map(SIZE);
            over(at, at + i * PART);
        }
        by_other_calls();
        over_block();
    }
    puts("done");
    return 0;
}
