/* Threads are cancelled in send, sendmsg, vmsplice and msync, and their cleanups run: those of pthread_cleanup_push and
   those of the compiler (-fexceptions), as C++ destructors do. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
static int pair[2], ends[2], cleaned, pushed;
static char *page;
static const char *what;
static void clean(int *unused) { (void)unused; cleaned++; }
static void push(void *unused) { (void)unused; pushed++; }
static __attribute__((noinline)) void blocks(void) {
    __attribute__((cleanup(clean))) int guard = 0;
    static char bytes[65536];
    struct iovec piece = {page, 4096};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    for (;;) {
        if (!strcmp(what, "send")) send(pair[0], bytes, sizeof bytes, 0);
        else if (!strcmp(what, "sendmsg")) sendmsg(pair[0], &message, 0);
        else if (!strcmp(what, "vmsplice")) vmsplice(ends[1], &piece, 1, 0);
        else msync(page, 4096, MS_ASYNC);
    }
}
static void *run(void *unused) {
    pthread_cleanup_push(push, 0);
    blocks();
    pthread_cleanup_pop(0);
    return unused;
}
int main(int count, char **args) {
    what = count > 1 ? args[1] : "send";
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    pipe(ends);
    page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_t thread;
    pthread_create(&thread, 0, run, 0);
    usleep(100000);
    pthread_cancel(thread);
    alarm(3); /* or it hangs for good */
    void *result;
    pthread_join(thread, &result);
    printf("%s: cancelled %d, cleaned %d, pushed %d\n", what, result == PTHREAD_CANCELED, cleaned, pushed);
    return 0;
}
