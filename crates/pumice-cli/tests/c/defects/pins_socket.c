/* Pages that a socket holds: data sent with MSG_ZEROCOPY is received as it was when it was sent, whatever
   becomes of the memory before. Over loopback such data is copied when it is received. */
#define _GNU_SOURCE
#include "defect.h"
#include <malloc.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

enum { COUNT = 256 << 10 };

static int set_by_name(int socket) {
    return setsockopt(socket, SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int));
}
static int set_by_number(int socket) {
    return syscall(SYS_setsockopt, socket, SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int));
}

static int sender, receiver;

/* Two ends of a connection; the first has not been told to send without copies. */
static void connect_ends(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    CHECK(listener >= 0 && bind(listener, (void *)&at, len) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (void *)&at, &len) == 0);
    CHECK((sender = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    setsockopt(sender, SOL_SOCKET, SO_SNDBUF, &(int){4 << 20}, sizeof(int));
    CHECK(connect(sender, (void *)&at, len) == 0);
    CHECK((receiver = accept(listener, NULL, NULL)) >= 0);
    close(listener);
}

static char *by_malloc(size_t size) { return malloc(size); }
static void by_free(char *at, size_t size) { free(at); }
static void by_munmap(char *at, size_t size) { CHECK(munmap(at, size) == 0); }

static void send_and_free(char *get(size_t), void put(char *, size_t)) {
    static char received[COUNT], expected[COUNT];
    size_t size = MIB;
    for (int round = 0; round < 6; round++) {
        char *at = get(size);
        fill(at, size, round);
        memcpy(expected, at, COUNT);
        ssize_t sent = round < 3 ? 0 : send(sender, at, COUNT, MSG_ZEROCOPY | MSG_DONTWAIT);
        CHECK(sent >= 0);
        put(at, size);
        char *next[4];
        for (int i = 0; i < 4; i++) fill(next[i] = get(size), size, 77);
        if (sent) CHECK(recv(receiver, received, sent, MSG_WAITALL) == sent);
        CHECK(memcmp(received, expected, sent) == 0);
        for (int i = 0; i < 4; i++) put(next[i], size);
    }
}

static void in_child(int set(int)) {
    pid_t child = fork();
    if (child) return wait_for(child);
    if (set) CHECK(set(sender) == 0);
    send_and_free(by_malloc, by_free);
    send_and_free(map, by_munmap);
    exit(0);
}

/* `given`: with a socket that the process was given with the option set, by the program before this one. */
int main(int count, char **arguments) {
    guard(20);
    /* Plainly such memory is unmapped when it is freed only by this. */
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    if (count == 3) {
        sender = atoi(arguments[1]), receiver = atoi(arguments[2]);
        in_child(NULL);
        puts("done");
        return 0;
    }
    connect_ends();
    if (set_by_name(sender) != 0) return skip("no such option here");
    if (count == 2) {
        char first[16], second[16];
        snprintf(first, sizeof first, "%d", sender);
        snprintf(second, sizeof second, "%d", receiver);
        execl("/proc/self/exe", arguments[0], first, second, NULL);
        return 1;
    }
    connect_ends();
    in_child(set_by_name);
    connect_ends();
    in_child(set_by_number);
    puts("done");
    return 0;
}
