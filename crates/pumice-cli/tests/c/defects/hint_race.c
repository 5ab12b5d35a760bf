/* Two threads ask for memory at the same free address at once: as a hint, or with MAP_FIXED_NOREPLACE. At most one gets it. Or
   one asks by a hint and the other for any memory ("any"). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <time.h>
#include <unistd.h>
enum { LEN = 2 << 20 };
static char *place, *got[2];
static int both, lost, rounds, segment;
static const char *what;
static pthread_barrier_t barrier;
static char *ask(int who) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    char *at = place;
    if (!strcmp(what, "fixed")) flags |= 0x100000;
    if (!strcmp(what, "any") && who) at = 0;
    if (!strcmp(what, "segment") && who) return shmat(segment, place, 0);
    return mmap(at, LEN, PROT_READ | PROT_WRITE, flags, -1, 0);
}
static void *run(void *argument) {
    int who = argument != 0;
    for (int i = 0; i < rounds; i++) {
        if (who == 0 && !strcmp(what, "any")) {
            /* Where the next one would come to be. */
            place = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            munmap(place, LEN);
        }
        pthread_barrier_wait(&barrier);
        for (volatile int spin = 0; who && spin < i % 400; spin++) {}
        got[who] = ask(who);
        if (got[who] != MAP_FAILED) got[who][0] = 'a' + who;
        pthread_barrier_wait(&barrier);
        if (who == 0) {
            both += got[0] != MAP_FAILED && got[0] == got[1];
            if (got[0] != MAP_FAILED) munmap(got[0], LEN);
            if (got[1] != MAP_FAILED && got[1] != got[0]) {
                lost += got[1][0] != 'b';
                if (strcmp(what, "segment")) munmap(got[1], LEN);
                else shmdt(got[1]);
            }
        }
    }
    return 0;
}
int main(int count, char **args) {
    what = count > 1 ? args[1] : "hint";
    rounds = count > 2 ? atoi(args[2]) : 3000;
    segment = shmget(IPC_PRIVATE, LEN, 0600);
    pthread_barrier_init(&barrier, 0, 2);
    place = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(place, LEN);
    pthread_t thread;
    pthread_create(&thread, 0, run, (void *)1);
    run(0);
    pthread_join(thread, 0);
    shmctl(segment, IPC_RMID, 0);
    printf("%s: the same memory for both: %s, lost: %s\n", what, both ? "yes" : "no", lost ? "yes" : "no");
    fprintf(stderr, "%d, %d of %d\n", both, lost, rounds);
    return 0;
}
