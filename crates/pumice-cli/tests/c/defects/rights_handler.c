/* setgid is safe in a handler (signal-safety(7)), which may come while the heap starts a helper. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile int calls;
static void on_alarm(int number) { (void)number; (void)!setgid(getgid()); calls++; }
int main(int count, char **args) {
    int seconds = count > 1 ? atoi(args[1]) : 8;
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval often = {{0, 3100}, {0, 3100}};
    setitimer(ITIMER_REAL, &often, 0);
    time_t until = time(0) + seconds;
    int rounds = 0;
    while (time(0) < until) {
        char *memory = malloc(4 << 20);
        memset(memory, 1, 4 << 20);
        free(memory);
        rounds++;
    }
    puts("done");
    return 0;
}
