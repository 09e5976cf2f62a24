// Pinned memory of the host: allocation, registration, and its mirror for kernels.
//
// The worker holds the mirror, which kernels use. The program's writes go there before the next
// launch; the writes of kernels come back before a synchronisation ends. Programs keep addresses of
// pinned memory in structures on the GPU, where nobody can translate them, so the mirror lies at
// the same address as the memory itself wherever that is free in both processes.
#define _GNU_SOURCE
#include "hostmem.h"
#include "ipc.h"
#include "managed.h"
#include "mapped.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define MAPPABLE 2                    // CU_MEMHOSTALLOC_DEVICEMAP
#define SAME_ADDRESS 0x40000000u      // in the flags of a range: mapped, and needs no translation
// Mirrors are made when memory is, of pieces up to this size, so much and so many of them; all others
// when a call names their address.
#define EAGER_MAX ((size_t)8 << 20)
#define EAGER_TOTAL_MAX ((size_t)64 << 20)
#define EAGER_COUNT_MAX 256
#define TRACKED_MIN ((size_t)16 << 10)
#define LARGE_PAGES_MIN ((size_t)4 << 20)  // wherever it lies, one page of 2 MiB fits
#define ATTEMPTS 4

// Addresses from 2 to 8 TiB, which Linux gives to nobody who asks for none in particular, and where
// no server of a lease has the memory of its devices (address_slices.py); from a start by chance on, so that
// addresses differ from process to process.
#define ROOM_START ((uint64_t)2 << 40)
#define ROOM_END ((uint64_t)8 << 40)
#define ROOM_UNIT ((uint64_t)1 << 30)

static int eager_count;
static size_t eager_size;

static size_t whole_pages(size_t size) { return (size + 4095) & ~(size_t)4095; }

// --- addresses ------------------------------------------------------------------------------------

static void *map_at(uint64_t address, size_t size, int file) {
    void *wanted = (void *)(uintptr_t)address;
    int how = (file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | MAP_FIXED_NOREPLACE;
    void *got = mmap(wanted, size, PROT_READ | PROT_WRITE, how, file, 0);
    if (got == wanted) return got;
    if (got != MAP_FAILED) munmap(got, size);  // a kernel before 4.17 takes it as a wish
    return NULL;
}

// Map memory, or a file, at an address that the worker probably has free; else anywhere.
static void *take_room(size_t size, int file) {
    static uint64_t next;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    void *made = NULL;
    pthread_mutex_lock(&lock);
    if (next == 0) {
        uint64_t chance = 0;
        if (getrandom(&chance, sizeof chance, GRND_NONBLOCK) < 0) chance = (uint64_t)getpid();
        next = ROOM_START + chance % ((ROOM_END - ROOM_START) / 2 / ROOM_UNIT) * ROOM_UNIT;
    }
    for (int attempt = 0; attempt < ATTEMPTS && made == NULL && size < ROOM_UNIT * 64; attempt++) {
        if (next + size > ROOM_END) next = ROOM_START;
        made = map_at(next, size, file);
        next += made != NULL ? whole_pages(size) : ROOM_UNIT;
    }
    pthread_mutex_unlock(&lock);
    if (made != NULL) return made;
    int how = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    made = mmap(NULL, size, PROT_READ | PROT_WRITE, how, file, 0);
    return made == MAP_FAILED ? NULL : made;
}

// --- mirrors --------------------------------------------------------------------------------------

static struct gp_mapped *new_mapped(void *host, uint64_t size) {
    struct gp_mapped *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    int ordinal = gp_current_device();
    *made = (struct gp_mapped){.id = gp_new_id(), .size = size, .ordinal = ordinal, .host = host};
    made->shadow = calloc(1, size);
    if (made->shadow != NULL) return made;
    free(made);
    return NULL;
}

// Have the worker make the mirror, at the same address if that is free there.
static int ask(struct gp_mapped *made, bool zeros) {
    struct gp_request request = {.body = &made->device, .capacity = sizeof made->device};
    for (size_t from = 0, size; !zeros && from < made->size; from += size) {
        size = made->size - from < GP_CHUNK ? made->size - from : GP_CHUNK;
        bool touched = !made->own || gp_is_touched(made->host + from, size);
        if (touched) memcpy(made->shadow + from, made->host + from, size);
    }
    return gp_exchange_map_host(&request, made->id, made->size, (uintptr_t)made->host, made->shadow,
                                zeros ? 0 : made->size);
}

static void give_back(const struct gp_mapped *of) {
    GP_ROUTE(of->ordinal);
    gp_call_map_free(of->id);
}

static void count_eager(const struct gp_mapped *of, int change) {
    if (!of->eager) return;
    __atomic_fetch_add(&eager_count, change, __ATOMIC_RELAXED);
    __atomic_fetch_add(&eager_size, change > 0 ? of->size : -of->size, __ATOMIC_RELAXED);
}

// With gp_push_lock held.
static void enter(struct gp_mapped *made) {
    if (made->device != (uint64_t)(uintptr_t)made->host) {
        gp_add_range((struct gp_range){made->device, made->size, GP_DEVICE_MEMORY, made->ordinal,
                                       0, 0, NULL, false});
    }
    gp_mapped_enter(made);
    count_eager(made, 1);
}

static bool is_mapped(const struct gp_range *range, uint64_t *device) {
    pthread_mutex_lock(&gp_push_lock);
    struct gp_mapped *at = gp_mapped_list;
    while (at != NULL && (at->host != (unsigned char *)(uintptr_t)range->start ||
                          (gp_several && !gp_reaches(at->ordinal)))) {
        at = at->next;
    }
    if (at != NULL) *device = at->device;
    pthread_mutex_unlock(&gp_push_lock);
    return at != NULL;
}

// The worker's answer is waited for without gp_push_lock, which the thread of host functions needs
// too, and what the worker stands still for may be the end of one.
static int map_range(const struct gp_range *range, uint64_t *device) {
    static pthread_mutex_t mapping = PTHREAD_MUTEX_INITIALIZER;  // so that there is one for each range
    int status = GP_SUCCESS;
    pthread_mutex_lock(&mapping);
    if (!is_mapped(range, device)) {
        struct gp_mapped *made = new_mapped((void *)(uintptr_t)range->start, range->size);
        if (made != NULL) made->own = range->detail != NULL && !(range->flags & GP_VIRTUAL_HOST);
        status = made == NULL ? GP_OUT_OF_MEMORY : ask(made, false);
        if (status == GP_SUCCESS) {
            *device = made->device;
            pthread_mutex_lock(&gp_push_lock);
            enter(made);
            pthread_mutex_unlock(&gp_push_lock);
        } else if (made != NULL) {
            gp_mapped_discard(made);
        }
    }
    pthread_mutex_unlock(&mapping);
    return status;
}

// On all servers whose kernels see it.
static void unmap_range(const struct gp_range *range) {
    const void *host = (const void *)(uintptr_t)range->start;
    for (struct gp_mapped *found; (found = gp_mapped_take(host)) != NULL; gp_mapped_discard(found)) {
        count_eager(found, -1);
        struct gp_range gone;
        if (found->device != range->start) gp_remove_range(found->device, &gone);
        give_back(found);
    }
}

void gp_end_mirrors(const struct gp_range *range) {
    gp_drain((const void *)(uintptr_t)range->start, range->size);
    unmap_range(range);
}

// --- allocation -----------------------------------------------------------------------------------

// Memory for which the kernel tells of writes; NULL if that cannot be had.
static struct gp_mapped *new_tracked(size_t size) {
    int file = memfd_create("gpupool-pinned", MFD_CLOEXEC);
    if (file < 0) return NULL;
    void *host = NULL, *alias = MAP_FAILED;
    if (ftruncate(file, (off_t)whole_pages(size)) == 0) host = take_room(size, file);
    if (host != NULL) alias = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    struct gp_mapped *made = alias == MAP_FAILED ? NULL : new_mapped(host, size);
    if (made == NULL) {
        if (alias != MAP_FAILED) munmap(alias, size);
        if (host != NULL) munmap(host, size);
        return NULL;
    }
    if (gp_track(made, alias)) {
        // A fork has no part in CUDA's memory.
        madvise(host, size, MADV_DONTFORK);
        madvise(alias, size, MADV_DONTFORK);
        return made;
    }
    munmap(host, size);
    gp_mapped_discard(made);
    return NULL;
}

static struct gp_mapped *new_eager(size_t size) {
    // Several servers may each have a mirror of it, and tell one another's changes by comparison.
    if (size > TRACKED_MIN && !gp_several) return new_tracked(size);
    void *host = take_room(size, -1);
    struct gp_mapped *made = host == NULL ? NULL : new_mapped(host, size);
    if (made == NULL && host != NULL) munmap(host, size);
    return made;
}

static bool is_for_eager(size_t size, unsigned flags) {
    if (!(flags & MAPPABLE) || size > EAGER_MAX) return false;
    if (__atomic_load_n(&eager_count, __ATOMIC_RELAXED) >= EAGER_COUNT_MAX) return false;
    return __atomic_load_n(&eager_size, __ATOMIC_RELAXED) + size <= EAGER_TOTAL_MAX;
}

// Memory that the GPU sees from the start, at its own address; NULL: as memory that it does not.
static void *allocate_eagerly(size_t size) {
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        struct gp_mapped *made = new_eager(size);
        if (made == NULL) return NULL;
        void *host = made->host;
        bool mirrored = ask(made, true) == GP_SUCCESS;
        if (mirrored && made->device == (uint64_t)(uintptr_t)host) {
            made->eager = true;
            gp_catch_faults();
            pthread_mutex_lock(&gp_push_lock);
            enter(made);
            pthread_mutex_unlock(&gp_push_lock);
            return host;
        }
        if (mirrored) give_back(made);  // somewhere else, where the worker had other things
        gp_mapped_discard(made);
        munmap(host, size);
        if (!mirrored) return NULL;
    }
    return NULL;
}

static int allocate(void **address, size_t size, unsigned flags) {
    GP_ENTER();
    if (address == NULL || size == 0 || size > SIZE_MAX / 2 || flags > 7) return GP_INVALID_VALUE;
    int device = gp_current_device();
    void *made = NULL;
    unsigned seen = 0;
    if (is_for_eager(size, flags)) made = allocate_eagerly(size);
    if (made != NULL) seen = SAME_ADDRESS;
    if (made == NULL) made = take_room(size, -1);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    // Else the first copy to it takes a fault for each 4 KiB, which cost as much as receiving the bytes.
    if (size >= LARGE_PAGES_MIN) madvise(made, size, MADV_HUGEPAGE);
    struct gp_range range = {(uint64_t)(uintptr_t)made, size, GP_HOST_MEMORY, device,
                             flags | seen, 0, made, false};
    int status = gp_add_range(range);
    if (status != GP_SUCCESS) {
        unmap_range(&range);
        munmap(made, size);
        return status;
    }
    gp_own(range.start);
    *address = made;
    return GP_SUCCESS;
}

int gp_free_host(void *address) {
    GP_CHECK(gp_ready());
    if (address == NULL) return GP_SUCCESS;
    struct gp_range range;
    GP_CHECK(gp_remove_range((uint64_t)(uintptr_t)address, &range));
    if (range.kind != GP_HOST_MEMORY || range.detail == NULL || range.flags & GP_VIRTUAL_HOST) {
        gp_add_range(range);
        return GP_INVALID_VALUE;
    }
    gp_drain(address, range.size);
    unmap_range(&range);
    munmap(address, range.size);
    return GP_SUCCESS;
}

// Whether this is memory in which NCCL's kernels of several processes, or of several GPUs, wait for
// each other: files that it maps in all of them. No mirror is as fast as that, but on their server
// they can have the same memory, whose contents are nobody else's affair; `key` says which it is.
static bool is_shared_by_nccl(const void *address, uint64_t key[GP_TOKEN_WORDS]) {
    static const char prefix[] = " /dev/shm/nccl-";
    bool found = false;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps != NULL && !found && fgets(line, sizeof line, maps) != NULL) {
        unsigned long start, end, offset, inode;
        unsigned major, minor;
        const char *name = strstr(line, prefix);
        if (name == NULL || sscanf(line, "%lx-%lx %*s %lx %x:%x %lu", &start, &end, &offset, &major,
                                   &minor, &inode) != 6) {
            continue;
        }
        found = (uintptr_t)address >= start && (uintptr_t)address < end;
        if (!found) continue;
        char drawn[8] = {0};
        memcpy(drawn, name + sizeof prefix - 1, strnlen(name + sizeof prefix - 1, 6));
        key[0] = (uint64_t)major << 32 | minor;
        key[1] = inode;
        key[2] = offset + ((uintptr_t)address - start);
        memcpy(&key[3], drawn, sizeof drawn);
    }
    if (maps != NULL) fclose(maps);
    return found;
}

// Have the worker make memory that it shares with others of the lease on its server.
static int map_shared(void *address, size_t size, const uint64_t key[GP_TOKEN_WORDS],
                      unsigned *seen) {
    struct gp_mapped *made = calloc(1, sizeof *made);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    int ordinal = gp_current_device();
    *made = (struct gp_mapped){.id = gp_new_id(), .size = size, .ordinal = ordinal, .host = address,
                            .shared = true};
    int status = gp_call_map_shared(made->id, size, (uintptr_t)address, key, &made->device);
    if (status != GP_SUCCESS) {
        gp_say("the server has no memory in which NCCL's kernels could wait for each other: error %d",
               status);
        free(made);
        return status;
    }
    *seen = made->device == (uint64_t)(uintptr_t)address ? SAME_ADDRESS : 0;
    pthread_mutex_lock(&gp_push_lock);
    enter(made);
    pthread_mutex_unlock(&gp_push_lock);
    return GP_SUCCESS;
}

GP_EXPORT int cuMemHostRegister_v2(void *address, size_t size, unsigned flags) {
    GP_ENTER();
    if (address == NULL || size == 0) return GP_INVALID_VALUE;
    if (size > SIZE_MAX / 2) return GP_INVALID_VALUE;
    uint64_t first = (uint64_t)(uintptr_t)address, key[GP_TOKEN_WORDS];
    if (gp_range_within(first, size)) return GP_HOST_ALREADY_REGISTERED;
    unsigned seen = 0;
    if ((flags & MAPPABLE) && is_shared_by_nccl(address, key)) {
        if (gp_several) {
            gp_say("NCCL goes through memory of the host, which GPUs of several servers cannot share");
            return GP_NOT_SUPPORTED;
        }
        GP_CHECK(map_shared(address, size, key, &seen));
    }
    struct gp_range range = {first, size, GP_HOST_MEMORY, gp_current_device(), flags | seen, 0, NULL, false};
    int status = gp_add_range(range);
    if (status != GP_SUCCESS) {
        unmap_range(&range);
        return status;
    }
    gp_own(first);
    return GP_SUCCESS;
}

int gp_unregister_host(void *address) {
    GP_CHECK(gp_ready());
    struct gp_range range;
    if (gp_remove_range((uint64_t)(uintptr_t)address, &range) != GP_SUCCESS) {
        // CUDA tells an address amid registered memory from one that is nowhere registered.
        bool amid = gp_range_within((uint64_t)(uintptr_t)address, 1);
        return amid ? GP_INVALID_VALUE : GP_HOST_NOT_REGISTERED;
    }
    if (range.kind != GP_HOST_MEMORY || range.detail != NULL) {
        gp_add_range(range);
        return GP_HOST_NOT_REGISTERED;
    }
    unmap_range(&range);
    return gp_drain(address, range.size);
}

// --- addresses as kernels see them ----------------------------------------------------------------

int gp_see(uint64_t *address) {
    if (!gp_may_be_pinned(*address)) return GP_SUCCESS;
    struct gp_range range;
    uint64_t base;
    if (!gp_find_range(*address, &range) || range.kind != GP_HOST_MEMORY) return GP_SUCCESS;
    if (range.flags & SAME_ADDRESS && !gp_several) return GP_SUCCESS;
    // Bytes on their way here would not be in a mirror that is made now.
    void *start = (void *)(uintptr_t)range.start;
    if (!gp_mirror_of(start, range.size, &base)) GP_CHECK(gp_drain(start, range.size));
    GP_CHECK(map_range(&range, &base));
    *address = base + (*address - range.start);
    return GP_SUCCESS;
}

GP_EXPORT int cuMemHostGetDevicePointer_v2(uint64_t *device, void *address, unsigned flags) {
    GP_ENTER();
    struct gp_range range;
    uint64_t seen = (uint64_t)(uintptr_t)address;
    if (device == NULL || flags != 0) return GP_INVALID_VALUE;
    if (!gp_find_range(seen, &range) || range.kind != GP_HOST_MEMORY) return GP_INVALID_VALUE;
    GP_CHECK(gp_see(&seen));
    *device = seen;
    return GP_SUCCESS;
}

GP_EXPORT int cuMemHostGetFlags(unsigned *flags, void *address) {
    GP_CHECK(gp_ready());
    struct gp_range range;
    if (flags == NULL || !gp_find_range((uint64_t)(uintptr_t)address, &range)) {
        return GP_INVALID_VALUE;
    }
    if (range.kind != GP_HOST_MEMORY) return GP_INVALID_VALUE;
    // Unified addressing implies that it is mappable.
    *flags = (range.flags & ~(SAME_ADDRESS | GP_VIRTUAL_HOST)) | MAPPABLE;
    return GP_SUCCESS;
}

#define GP_FORWARDS_PINNED
#include "generated_forwards.h"
