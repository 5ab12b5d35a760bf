/* Inserts keys into a hash table that doubles as it fills, by calloc and moving: hash_table KEYS. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct slot {
    uint64_t key, count;
};

static uint64_t next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static struct slot *find(struct slot *table, size_t size, uint64_t key) {
    size_t at = key & (size - 1);
    while (table[at].key && table[at].key != key)
        at = (at + 1) & (size - 1);
    return &table[at];
}

static struct slot *make(size_t size) {
    struct slot *table = calloc(size, sizeof *table);
    if (!table)
        abort();
    return table;
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    size_t keys = strtoull(argv[1], NULL, 10), used = 0, size = 1024;
    struct slot *table = make(size);
    uint64_t state = 1;
    for (size_t i = 0; i < keys; i++) {
        /* One key in four was there before. */
        uint64_t from = i % 4 ? i : i / 2, key = next(&(uint64_t){from}) | 1;
        struct slot *slot = find(table, size, key);
        used += !slot->key;
        slot->key = key;
        slot->count += next(&state) & 1;
        if (used * 2 > size) {
            struct slot *larger = make(size * 2);
            for (size_t old = 0; old < size; old++)
                if (table[old].key)
                    *find(larger, size * 2, table[old].key) = table[old];
            free(table);
            table = larger;
            size *= 2;
        }
    }
    printf("%zu\n", used);
    free(table);
    return 0;
}
