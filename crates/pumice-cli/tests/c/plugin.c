/* A library that allocates when it is loaded and unloaded. See lifetimes.c. */
#include <stdlib.h>
#include <string.h>

static char *at_load;

__attribute__((constructor)) static void load(void) {
    at_load = malloc(2 << 20);
    memset(at_load, 1, 2 << 20);
}

__attribute__((destructor)) static void unload(void) { free(at_load); }

void *plugin_allocate(size_t size) { return calloc(1, size); }
