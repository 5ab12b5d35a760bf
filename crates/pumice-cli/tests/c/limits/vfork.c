/* A child that has its parent's memory until it starts a program changes rights, limits and filters of its own: neither
   the parent's threads nor its memory have anything to do with that. */
#include "limits.h"
#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int list_threads(char names[16][20]) {
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    CHECK(folder);
    for (struct dirent *entry; (entry = readdir(folder)) && count < 16;)
        if (entry->d_name[0] != '.') strcpy(names[count++], entry->d_name);
    closedir(folder);
    return count;
}

static void check_threads(char names[16][20], int count) {
    char path[64];
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "/proc/self/task/%s", names[i]);
        CHECK(access(path, F_OK) == 0);
    }
}

static void set_user(void) { syscall(SYS_setresuid, 65534, 65534, 65534); }
static void limit_addresses(void) {
    struct rlimit limit = {64 * MIB, RLIM_INFINITY};
    setrlimit(RLIMIT_AS, &limit);
}
static void install_filter(void) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &allow};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
static void leave_namespace(void) { unshare(CLONE_NEWNS); }

int main(void) {
    void (*changes[])(void) = {set_user, limit_addresses, install_filter, leave_namespace};
    guard();
    for (int i = 0; i < 20; i++) free(memset(malloc(4 * MIB), 1, 4 * MIB));
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char names[16][20];
        int count = list_threads(names);
        pid_t child = vfork();
        if (child == 0) {
            changes[i]();
            _exit(0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        check_threads(names, count);
        char *at = calloc(1, 8 * MIB);
        CHECK(at && at[5 * MIB] == 0);
        free(at);
    }
    puts("done");
    return 0;
}
