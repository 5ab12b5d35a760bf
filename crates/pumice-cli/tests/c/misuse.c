/* Errors for which glibc ends a program: so must the shim. */
#include "check.h"

int main(int count, char **arguments) {
    CHECK(count == 2);
    char *p = malloc(2 << 20);
    memset(p, 1, 1 << 20);
    if (strcmp(arguments[1], "inside") == 0) free(p + 4096);
    free(p);
    if (strcmp(arguments[1], "twice") == 0) free(p);
    puts("survived");
    return 0;
}
