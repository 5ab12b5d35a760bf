/* pumice: memory that is already there and already zero.
 *
 * Link with -lpumice (pkg-config pumice). All functions may be called by any thread at any time; none
 * is safe in a signal handler. A forked child may go on with what it inherited. Bad arguments are
 * reported, not punished: functions that return a status return a negative one, those that return a
 * pointer return NULL and set errno.
 *
 * Made by cbindgen from crates/pumice-c/src; do not edit. */

#ifndef PUMICE_H
#define PUMICE_H

#include <stddef.h>
#include <stdint.h>

/**
 * For pumice_alloc and pumice_zone_get: the memory must read as zeros.
 */
#define PUMICE_ZERO 1

/**
 * The largest alignment there is, in bytes.
 */
#define PUMICE_ALIGN_MAX (1 << 30)

/**
 * Bytes that the value of any setting fits in, with its NUL.
 */
#define PUMICE_VALUE_SIZE 32

/**
 * For pumice_zone_new: huge pages are wanted.
 */
#define PUMICE_HUGE 2

/**
 * The largest order: 2^18 frames of 4096 bytes, 1 GiB.
 */
#define PUMICE_ORDER_MAX 18

/**
 * The result of a function: 0, or the reason that it did nothing.
 */
typedef enum pumice_status {
    /**
     * It is done.
     */
    PUMICE_STATUS_OK = 0,
    /**
     * An argument is NULL, out of range, or has flags that do not exist.
     */
    PUMICE_STATUS_INVALID = -1,
    /**
     * No memory is left, or no addresses.
     */
    PUMICE_STATUS_NO_MEMORY = -2,
    /**
     * The address is not the start of an allocation: freed twice, or never allocated.
     */
    PUMICE_STATUS_NOT_ALLOCATED = -3,
    /**
     * There is no setting or counter of that name.
     */
    PUMICE_STATUS_NO_SUCH_NAME = -4,
    /**
     * The setting does not take that value.
     */
    PUMICE_STATUS_BAD_VALUE = -5,
    /**
     * The buffer is too small.
     */
    PUMICE_STATUS_TOO_SMALL = -6,
    /**
     * Nothing is served in this process: PUMICE=off, a limit on address space, or the like.
     */
    PUMICE_STATUS_NOT_SERVED = -7,
    /**
     * An error in pumice itself.
     */
    PUMICE_STATUS_INTERNAL = -8,
} pumice_status;

/**
 * A range of addresses of which frames (4096 bytes) are given out in powers of two. A frame that
 * was never used, or is known to be zero, costs no clearing.
 */
typedef struct pumice_zone pumice_zone;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Allocates `size` bytes (0 counts as 1), aligned to `align`: a power of two up to
 * PUMICE_ALIGN_MAX, or 0 for that of malloc. `flags` is 0 or PUMICE_ZERO. 64 KiB and more come
 * from memory that is kept ready, smaller requests from malloc.
 *
 * Returns NULL, with errno EINVAL or ENOMEM, if it can't. To be freed by pumice_free only.
 */
void *pumice_alloc(size_t size, size_t align, uint32_t flags);

/**
 * Frees an allocation of pumice_alloc or pumice_realloc; NULL is fine.
 *
 * The caller sees to it that:
 * `at` is NULL or such an allocation, and nobody uses it any more.
 */
enum pumice_status pumice_free(void *at);

/**
 * Makes an allocation `size` bytes long (0 counts as 1), where it stands or elsewhere, and
 * returns where it is now; `align` is that of the allocation. The added part has any content.
 * Large allocations grow in place or by moving pages, not by copying. NULL for `at` allocates.
 *
 * Returns NULL, with errno EINVAL or ENOMEM, if it can't; the allocation is then as it was.
 *
 * The caller sees to it that:
 * `at` is NULL or an allocation of pumice_alloc or pumice_realloc, which after a success is used
 * at its new address only.
 */
void *pumice_realloc(void *at, size_t size, size_t align);

/**
 * Bytes usable at an allocation: at least those asked for. 0 for NULL, and for an address in
 * pumice's own memory at which no allocation starts.
 *
 * The caller sees to it that:
 * `at` is NULL or an allocation of pumice_alloc or pumice_realloc.
 */
size_t pumice_usable_size(const void *at);

/**
 * To be called before a seccomp filter is installed: from then on pumice makes no system calls
 * but those that malloc makes, and has no helper threads.
 */
enum pumice_status pumice_go_quiet(void);

/**
 * Changes a setting of this process, as "pumice ctl" would: pumice_set("scrub_load", "1.5").
 * pumice_setting_key lists the keys.
 *
 * The caller sees to it that:
 * Both are NULL or strings.
 */
enum pumice_status pumice_set(const char *key, const char *value);

/**
 * Writes the value of a setting of this process to `value`, as pumice_set would take it, with a
 * NUL. `size` is the buffer's size in bytes; PUMICE_VALUE_SIZE is enough.
 *
 * The caller sees to it that:
 * `key` is NULL or a string, `value` is NULL or points to `size` bytes.
 */
enum pumice_status pumice_get(const char *key, char *value, size_t size);

/**
 * The key of a setting, from index 0 on; NULL after the last.
 */
const char *pumice_setting_key(size_t index);

/**
 * Reads a counter of this process, by the name that reports give it: "requests", "hits",
 * "pool_bytes". pumice_counter_name lists the names.
 *
 * The caller sees to it that:
 * `name` is NULL or a string, `value` is NULL or points to a uint64_t.
 */
enum pumice_status pumice_counter(const char *name, uint64_t *value);

/**
 * The name of a counter, from index 0 on; NULL after the last.
 */
const char *pumice_counter_name(size_t index);

/**
 * The library's version, such as "0.1.0".
 */
const char *pumice_version(void);

/**
 * The meaning of a status, in English, without a full stop. Never NULL, for any number.
 */
const char *pumice_strerror(int status);

/**
 * Reserves addresses for `bytes` bytes of frames, rounded up to 2 MiB. Memory is used only for
 * frames that are touched. `flags` is 0 or PUMICE_HUGE.
 *
 * Returns NULL, with errno EINVAL or ENOMEM, if it can't.
 */
struct pumice_zone *pumice_zone_new(size_t bytes, uint32_t flags);

/**
 * Gets 2^`order` frames, aligned to their size, up to PUMICE_ORDER_MAX. `flags` is 0 or
 * PUMICE_ZERO.
 *
 * Returns NULL, with errno EINVAL or ENOMEM, if it can't.
 *
 * The caller sees to it that:
 * `zone` is NULL or a zone that is not destroyed.
 */
void *pumice_zone_get(const struct pumice_zone *zone, unsigned int order, uint32_t flags);

/**
 * Puts back frames of pumice_zone_get.
 *
 * The caller sees to it that:
 * `zone` is NULL or a zone that is not destroyed, and nobody uses the frames any more.
 */
enum pumice_status pumice_zone_put(const struct pumice_zone *zone, void *at);

/**
 * Gives a zone's memory and addresses back, those of frames that were not put back too. NULL is
 * fine.
 *
 * The caller sees to it that:
 * `zone` is NULL or a zone that is not destroyed, and nobody uses it or its frames any more.
 */
enum pumice_status pumice_zone_destroy(struct pumice_zone *zone);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PUMICE_H */
