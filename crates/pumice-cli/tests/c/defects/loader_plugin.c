/* A library of which the constructor waits for a thread, with the loader's lock held. See loader.c. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static void *work(void *what) {
    char *at;
    if (strcmp(what, "malloc") == 0) return memset(malloc(4 * MIB), 1, 4 * MIB);
    if (strcmp(what, "calloc") == 0) return calloc(4, MIB);
    if (strcmp(what, "realloc") == 0) return realloc(malloc(100), 4 * MIB);
    if (strcmp(what, "aligned_alloc") == 0) return aligned_alloc(1 << 16, 4 * MIB);
    if (strcmp(what, "free") == 0) free(malloc(100)), free(malloc(4 * MIB));
    if (strcmp(what, "mmap") == 0) {
        at = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(at, MIB), mprotect(at + MIB, MIB, PROT_READ), madvise(at, 4 * MIB, MADV_DONTNEED);
    }
    if (strcmp(what, "syscall") == 0) syscall(SYS_getppid);
    if (strcmp(what, "prctl") == 0) prctl(PR_GET_DUMPABLE);
    if (strcmp(what, "no_new_privs") == 0) prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (strcmp(what, "setsockopt") == 0) {
        int pair[2];
        socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
        setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int));
    }
    if (strcmp(what, "setrlimit") == 0) {
        struct rlimit limit;
        getrlimit(RLIMIT_CORE, &limit), setrlimit(RLIMIT_CORE, &limit);
    }
    if (strcmp(what, "setgid") == 0) setgid(getgid());
    if (strcmp(what, "chdir") == 0) chdir(".");
    if (strcmp(what, "mlockall") == 0) mlockall(8), munlockall();
    return NULL;
}

__attribute__((constructor)) static void load(void) {
    pthread_t thread;
    char *what = getenv("WHAT");
    pthread_create(&thread, NULL, work, what);
    pthread_join(thread, NULL);
    if (getenv("AND_HERE")) work(what);
}
