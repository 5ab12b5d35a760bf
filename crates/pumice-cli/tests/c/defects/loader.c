/* What the first call of a kind has to find out, it finds out without the loader's lock, and without what the loader
   is about to say of its last error. The argument is loader_plugin.c, built as a library. */
#define _GNU_SOURCE
#include "defect.h"
#include <dlfcn.h>
#include <sys/prctl.h>

/* The first call of its kind must be the one that is meant, so each is made in a process of its own. */
static void in_child(char *program, char *library, const char *what, const char *how) {
    pid_t child = fork();
    if (child == 0) {
        alarm(4);
        setenv("WHAT", what, 1);
        execl("/proc/self/exe", program, library, how, NULL);
        exit(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    printf("%s, %s: %s %d\n", how, what, WIFEXITED(status) ? "ended" : "signal",
           WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static int pending(const char *what) {
    CHECK(dlopen("no-such-library.so", RTLD_NOW) == NULL);
    if (strcmp(what, "malloc") == 0) CHECK(malloc(4 * MIB));
    if (strcmp(what, "calloc") == 0) CHECK(calloc(4, MIB));
    if (strcmp(what, "small") == 0) free(malloc(100));
    if (strcmp(what, "syscall") == 0) CHECK(syscall(SYS_getpid) == getpid());
    if (strcmp(what, "prctl") == 0) CHECK(prctl(PR_GET_DUMPABLE) >= 0);
    if (strcmp(what, "mmap") == 0) CHECK(munmap(map(4 * MIB), MIB) == 0);
    if (strcmp(what, "setgid") == 0) CHECK(setgid(getgid()) == 0);
    const char *said = dlerror();
    return !(said && strstr(said, "no-such-library.so"));
}

int main(int count, char **arguments) {
    if (count == 3 && strcmp(arguments[2], "pending") == 0) return pending(getenv("WHAT"));
    if (count == 3) return dlopen(arguments[1], RTLD_NOW) == NULL;
    CHECK(count == 2);
    guard(60);
    static const char *const calls[] = {
        "malloc", "calloc", "realloc", "aligned_alloc", "free", "mmap", "syscall", "prctl",
        "no_new_privs", "setsockopt", "setrlimit", "setgid", "chdir", "mlockall",
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        in_child(arguments[0], arguments[1], calls[i], "constructor");
    static const char *const between[] = {"malloc", "calloc", "small", "syscall", "prctl", "mmap", "setgid"};
    for (size_t i = 0; i < sizeof between / sizeof *between; i++)
        in_child(arguments[0], arguments[1], between[i], "pending");
    puts("done");
    return 0;
}
