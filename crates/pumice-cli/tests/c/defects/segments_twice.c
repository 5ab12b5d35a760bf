/* One segment attached at several places of served memory: each is detached by itself, and altogether. */
#define _GNU_SOURCE
#include "defect.h"
#include <sys/ipc.h>
#include <sys/shm.h>

static int id;

static void show_state(const char *what, char *at) {
    struct shmid_ds status;
    unsigned char seen;
    CHECK(shmctl(id, IPC_STAT, &status) == 0);
    printf("%s: attached %d, mapped ", what, (int)status.shm_nattch);
    for (size_t half = 0; half < 16; half++)
        putchar(mincore(at + half * MIB / 2, PAGE, &seen) == 0 ? 'x' : '-');
    puts("");
}

int main(void) {
    guard(20);
    for (int i = 0; i < 3; i++) CHECK(munmap(memset(map(8 * MIB), 1, 8 * MIB), 8 * MIB) == 0);
    if ((id = shmget(IPC_PRIVATE, MIB, 0600)) < 0) return skip("no shared memory here");
    /* Side by side. */
    char *at = map(8 * MIB);
    CHECK(shmat(id, at + MIB, SHM_REMAP) == at + MIB);
    CHECK(shmat(id, at + 2 * MIB, SHM_REMAP) == at + 2 * MIB);
    printf("%s\n", TRY(shmdt(at + MIB)));
    show_state("side by side", at);
    printf("%s\n", TRY(shmdt(at + 2 * MIB)));
    /* One over half of the other. */
    CHECK(shmat(id, at + 3 * MIB, SHM_REMAP) == at + 3 * MIB);
    CHECK(shmat(id, at + 3 * MIB + MIB / 2, SHM_REMAP) == at + 3 * MIB + MIB / 2);
    printf("%s\n", TRY(shmdt(at + 3 * MIB)));
    show_state("one over the other", at);
    printf("%s\n", TRY(shmdt(at + 3 * MIB + MIB / 2)));
    /* With a hole in it. */
    CHECK(shmat(id, at + 6 * MIB, SHM_REMAP) == at + 6 * MIB);
    CHECK(munmap(at + 6 * MIB + MIB / 4, PAGE) == 0);
    printf("%s\n", TRY(shmdt(at + 6 * MIB)));
    show_state("with a hole", at);
    CHECK(munmap(at, 8 * MIB) == 0);
    show_state("unmapped", at);
    CHECK(shmctl(id, IPC_RMID, NULL) == 0);
    return 0;
}
