/* What a debugger sees of a program that it has started, or that it comes to later: its own threads. */
#include "limits.h"
#include <dirent.h>
#include <sys/ptrace.h>

static int threads_of(pid_t process) {
    char path[50];
    snprintf(path, sizeof path, "/proc/%d/task", process);
    DIR *folder = opendir(path);
    CHECK(folder);
    int count = -2;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static void work(void) {
    for (int i = 0; i < 4; i++) {
        churn();
        usleep(2000);
    }
}

/* In a process that is traced from before it has allocated anything, the number of stops and threads. */
static void from_the_start(int options) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
        raise(SIGSTOP);
        work();
        raise(SIGSTOP);
        _exit(0);
    }
    int status, stops = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    CHECK(ptrace(PTRACE_SETOPTIONS, child, NULL, options) == 0);
    CHECK(ptrace(PTRACE_CONT, child, NULL, NULL) == 0);
    for (;;) {
        pid_t stopped = waitpid(-1, &status, __WALL);
        CHECK(stopped > 0);
        if (stopped == child && WIFEXITED(status)) break;
        if (stopped == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP)
            printf("traced: %d thread(s)\n", threads_of(child));
        stops++;
        ptrace(PTRACE_CONT, stopped, NULL, NULL);
    }
    printf("%d stop(s), ended with %d\n", stops, WEXITSTATUS(status));
}

static void executed(const char *self) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
        execl(self, self, "work", NULL);
    }
    int status, most = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    while (ptrace(PTRACE_CONT, child, NULL, WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status)) == 0) {
        CHECK(waitpid(child, &status, 0) == child);
        if (WIFEXITED(status)) break;
        int count = threads_of(child);
        most = count > most ? count : most;
    }
    printf("executed: %d thread(s), ended with %d\n", most, WEXITSTATUS(status));
}

int main(int count, char **arguments) {
    guard();
    if (count == 2) {
        work();
        raise(SIGCHLD);
        return 0;
    }
    work();
    from_the_start(0);
    from_the_start(PTRACE_O_TRACECLONE);
    executed(arguments[0]);
    /* A process that is not traced any more is served as before. */
    work();
    puts("done");
    return 0;
}
