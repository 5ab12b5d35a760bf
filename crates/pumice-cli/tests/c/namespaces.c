/* Calls that only a process with one thread may make, after enough has been freed for helper threads
 * to be at work. Where user namespaces are not to be had, says so, with and without anybody's help. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void churn(void) {
    for (int i = 0; i < 8; i++) {
        char *at = malloc(32 << 20);
        memset(at, 1, 32 << 20);
        free(at);
    }
    usleep(20000);
}

static void say(const char *what, long result) {
    printf("%s: %s\n", what, result == 0 ? "done" : strerror(errno));
    fflush(stdout);
}

static void in_child(int which) {
    pid_t child = fork();
    if (child == 0) {
        churn();
        switch (which) {
        case 0: say("unshare a user namespace", unshare(CLONE_NEWUSER)); break;
        case 1: say("by number", syscall(SYS_unshare, CLONE_NEWUSER)); break;
        case 2: say("unshare files", unshare(CLONE_FILES)); break;
        case 3: {
            int own = open("/proc/self/ns/mnt", O_RDONLY);
            say("enter a mount namespace", setns(own, CLONE_NEWNS));
            break;
        }
        case 4: say("what is none", unshare(0x40)); break;
        case 5: say("no namespace", setns(-1, 0)); break;
        }
        churn();
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0)
        printf("ended with %d\n", status);
}

int main(void) {
    churn();
    for (int which = 0; which < 6; which++)
        in_child(which);
    say("here", unshare(CLONE_NEWUSER));
    churn();
    return 0;
}
