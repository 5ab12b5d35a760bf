/* The C library: a large array of zeros, frames of a zone, a setting, counters.
   cc frames.c $(pkg-config --cflags --libs pumice) */
#include <pumice.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20, ORDER = 9 };

static void check(enum pumice_status status, const char *what) {
    if (status != PUMICE_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", what, pumice_strerror(status));
        exit(1);
    }
}

static void *check_pointer(void *at, const char *what) {
    if (at == NULL) {
        perror(what);
        exit(1);
    }
    return at;
}

static void check_zero(const char *at, size_t size) {
    if (at[0] != 0 || memcmp(at, at + 1, size - 1) != 0) {
        fprintf(stderr, "memory that should be zero is not\n");
        exit(1);
    }
}

/* Arrays that are made and filled over and over come from memory that is ready. */
static void use_arrays(void) {
    for (int i = 0; i < 10; i++) {
        char *array = check_pointer(pumice_alloc(16 * MIB, 64, PUMICE_ZERO), "pumice_alloc");
        check_zero(array, 16 * MIB);
        memset(array, 1, 16 * MIB);
        check(pumice_free(array), "pumice_free");
    }
}

/* One that grows keeps its content and its alignment. What is added has any content. */
static void use_growing_array(void) {
    char *array = check_pointer(pumice_alloc(16 * MIB, 64, PUMICE_ZERO), "pumice_alloc");
    array = check_pointer(pumice_realloc(array, 24 * MIB, 64), "pumice_realloc");
    check_zero(array, 16 * MIB);
    printf("%zu bytes usable\n", pumice_usable_size(array));
    check(pumice_free(array), "pumice_free");
}

/* What an allocator of one's own stands on: 2 MiB at a time. */
static void use_zone(void) {
    pumice_zone *zone = check_pointer(pumice_zone_new(64 * MIB, 0), "pumice_zone_new");
    void *areas[4];
    for (int i = 0; i < 4; i++) {
        areas[i] = check_pointer(pumice_zone_get(zone, ORDER, PUMICE_ZERO), "pumice_zone_get");
        check_zero(areas[i], 4096u << ORDER);
        memset(areas[i], 3, 4096u << ORDER);
    }
    for (int i = 0; i < 4; i++) check(pumice_zone_put(zone, areas[i]), "pumice_zone_put");
    check(pumice_zone_destroy(zone), "pumice_zone_destroy");
}

static void show(void) {
    char value[PUMICE_VALUE_SIZE];
    const char *name;
    check(pumice_set("scrub_load", "1.5"), "pumice_set");
    for (size_t i = 0; (name = pumice_setting_key(i)) != NULL; i++) {
        check(pumice_get(name, value, sizeof value), name);
        printf("%s=%s\n", name, value);
    }
    for (size_t i = 0; (name = pumice_counter_name(i)) != NULL; i++) {
        uint64_t count;
        check(pumice_counter(name, &count), name);
        printf("%s %llu\n", name, (unsigned long long)count);
    }
}

int main(void) {
    printf("pumice %s\n", pumice_version());
    use_arrays();
    use_growing_array();
    use_zone();
    show();
    return 0;
}
