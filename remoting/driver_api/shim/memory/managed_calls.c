// Managed memory as programs ask for it: allocations, hints, and attributes of ranges.
#define _GNU_SOURCE
#include "core.h"
#include "managed.h"

#include <stdlib.h>

#define UNIT 512  // of small allocations, which share a region
#define UNITS (GP_REGION_UNIT / UNIT)
#define SMALL_MAX (GP_REGION_UNIT / 2)
#define ON_DEVICE 1   // CU_MEM_LOCATION_TYPE_DEVICE
#define ON_HOST 2     // CU_MEM_LOCATION_TYPE_HOST
#define NOWHERE (-2)  // CU_DEVICE_INVALID
#define CPU (-1)      // CU_DEVICE_CPU

// A region that small allocations share.
struct slab {
    struct slab *next;
    struct gp_region *region;
    unsigned used;
    int device;
    unsigned char taken[UNITS];
};

// The detail of a range of GP_MANAGED_MEMORY; hints are for the whole allocation.
struct allocation {
    struct gp_region *region;
    struct slab *slab;  // NULL: the region is its own
    bool mostly_read;
    bool accessed_by[GP_DEVICES_MAX];
    int preferred, prefetched;
};

struct location {
    int type, id;
};

static pthread_mutex_t slab_lock = PTHREAD_MUTEX_INITIALIZER;
static struct slab *slabs;

// --- small allocations; slab_lock is held ---------------------------------------------------------

static unsigned units_of(size_t size) { return (unsigned)((size + UNIT - 1) / UNIT); }

// Where that many free units are, or UNITS.
static unsigned find_units(const struct slab *slab, unsigned count) {
    unsigned found = 0;
    for (unsigned at = 0; at < UNITS; at++) {
        found = slab->taken[at] ? 0 : found + 1;
        if (found == count) return at + 1 - count;
    }
    return UNITS;
}

static int take_units(size_t size, struct slab **of, uint64_t *address) {
    unsigned count = units_of(size), first = UNITS;
    int device = gp_current_device();
    struct slab *at = slabs;
    for (; at != NULL; at = at->next) {
        if (at->device != device || UNITS - at->used < count) continue;
        first = find_units(at, count);
        if (first < UNITS) break;
    }
    if (at == NULL) {
        at = calloc(1, sizeof *at);
        if (at == NULL) return GP_OUT_OF_MEMORY;
        int status = gp_region_new(GP_REGION_UNIT, &at->region);
        if (status != GP_SUCCESS) {
            free(at);
            return status;
        }
        at->device = device;
        at->next = slabs;
        slabs = at;
        first = 0;
    }
    memset(at->taken + first, 1, count);
    at->used += count;
    *of = at;
    *address = gp_region_start(at->region) + (uint64_t)first * UNIT;
    return GP_SUCCESS;
}

static void give_units(struct slab *slab, uint64_t address, size_t size) {
    unsigned first = (unsigned)((address - gp_region_start(slab->region)) / UNIT);
    memset(slab->taken + first, 0, units_of(size));
    slab->used -= units_of(size);
    if (slab->used > 0) return;
    struct slab **at = &slabs;
    while (*at != slab) at = &(*at)->next;
    *at = slab->next;
    gp_region_end(slab->region);
    free(slab);
}

// --- allocation -----------------------------------------------------------------------------------

static void release(const struct allocation *allocation, uint64_t address, size_t size) {
    if (allocation->slab == NULL) {
        gp_region_end(allocation->region);
        return;
    }
    pthread_mutex_lock(&slab_lock);
    give_units(allocation->slab, address, size);
    pthread_mutex_unlock(&slab_lock);
}

GP_EXPORT int cuMemAllocManaged(uint64_t *address, size_t size, unsigned flags) {
    GP_ENTER();
    // CU_MEM_ATTACH_GLOBAL or CU_MEM_ATTACH_HOST, which differ where access is concurrent.
    if (address == NULL || size == 0 || (flags != 1 && flags != 2)) return GP_INVALID_VALUE;
    if (size > SIZE_MAX / 2) return GP_OUT_OF_MEMORY;
    struct allocation *made = calloc(1, sizeof *made);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    made->preferred = made->prefetched = NOWHERE;
    gp_free_kept();
    uint64_t start = 0;
    int status;
    if (size <= SMALL_MAX) {
        pthread_mutex_lock(&slab_lock);
        status = take_units(size, &made->slab, &start);
        pthread_mutex_unlock(&slab_lock);
    } else {
        size_t whole = (size + GP_REGION_UNIT - 1) / GP_REGION_UNIT * GP_REGION_UNIT;
        status = gp_region_new(whole, &made->region);
        if (status == GP_SUCCESS) start = gp_region_start(made->region);
    }
    if (status == GP_SUCCESS) {
        struct gp_range range = {start, size, GP_MANAGED_MEMORY, gp_current_device(), flags, 0,
                                 made, false};
        status = gp_add_range(range);
        if (status != GP_SUCCESS) release(made, start, size);
    }
    if (status != GP_SUCCESS) {
        free(made);
        return status;
    }
    gp_own(start);
    *address = start;
    return GP_SUCCESS;
}

// The allocation at this address or around it; NULL for other memory, and for variables.
static struct allocation *find(uint64_t address, struct gp_range *range) {
    bool found = gp_find_range(address, range) && range->kind == GP_MANAGED_MEMORY;
    return found ? range->detail : NULL;
}

int gp_managed_free(uint64_t address) {
    struct gp_range range;
    struct allocation *allocation = find(address, &range);
    if (allocation == NULL || range.start != address) return GP_INVALID_VALUE;
    GP_CHECK(gp_remove_range(address, &range));
    release(allocation, address, range.size);
    free(allocation);
    return GP_SUCCESS;
}

// --- hints ----------------------------------------------------------------------------------------

static int check_range(uint64_t address, size_t size, struct gp_range *range) {
    if (size == 0 || !gp_find_range(address, range) || range->kind != GP_MANAGED_MEMORY) {
        return GP_INVALID_VALUE;
    }
    return size > range->size - (address - range->start) ? GP_INVALID_VALUE : GP_SUCCESS;
}

// A location as a device's ordinal, or CPU.
static int find_location(struct location location, int *device) {
    *device = location.type == ON_DEVICE ? location.id : CPU;
    if (location.type == ON_DEVICE) return gp_check_device(location.id);
    // The parts of a NUMA host are one CPU here.
    return location.type >= ON_HOST && location.type <= 4 ? GP_SUCCESS : GP_INVALID_VALUE;
}

static int prefetch(uint64_t address, size_t size, int device, void *stream) {
    GP_ENTER();
    struct gp_range range;
    uint64_t id;
    GP_CHECK(gp_stream_id(stream, &id));
    GP_CHECK(check_range(address, size, &range));
    // To a device: what the program has written sets out now. To the CPU nothing can come before
    // the GPU is done with it.
    if (device != CPU) gp_managed_release();
    if (range.detail != NULL) ((struct allocation *)range.detail)->prefetched = device;
    return GP_SUCCESS;
}

GP_EXPORT int cuMemPrefetchAsync(uint64_t address, size_t size, int device, void *stream) {
    GP_CHECK(gp_ready());
    if (device != CPU) GP_CHECK(gp_check_device(device));
    return prefetch(address, size, device, stream);
}

GP_EXPORT int cuMemPrefetchAsync_v2(uint64_t address, size_t size, struct location location,
                                    unsigned flags, void *stream) {
    GP_CHECK(gp_ready());
    int device;
    if (flags != 0) return GP_INVALID_VALUE;
    GP_CHECK(find_location(location, &device));
    return prefetch(address, size, device, stream);
}

static int advise(uint64_t address, size_t size, int advice, int device) {
    struct gp_range range;
    GP_CHECK(check_range(address, size, &range));
    struct allocation none, *of = range.detail != NULL ? range.detail : &none;
    switch (advice) {
        case 1: case 2: of->mostly_read = advice == 1; break;
        case 3: of->preferred = device; break;
        case 4: of->preferred = NOWHERE; break;
        case 5: case 6:
            if (device != CPU) of->accessed_by[device] = advice == 5;
            break;
        default: return GP_INVALID_VALUE;
    }
    return GP_SUCCESS;
}

GP_EXPORT int cuMemAdvise(uint64_t address, size_t size, int advice, int device) {
    GP_CHECK(gp_ready());
    // Some advice is for no device, which is not looked at then.
    if (advice < 3 || advice == 4) device = CPU;
    if (device != CPU) GP_CHECK(gp_check_device(device));
    return advise(address, size, advice, device);
}

GP_EXPORT int cuMemAdvise_v2(uint64_t address, size_t size, int advice, struct location location) {
    GP_CHECK(gp_ready());
    int device = CPU;
    // Nodes of the host may be preferred, but only a device, or all of the host, accesses memory.
    if (location.type < ON_DEVICE || location.type > ON_DEVICE + 3) return GP_INVALID_VALUE;
    if (advice > 4 && location.type > ON_HOST) return GP_INVALID_VALUE;
    if (advice == 3 || advice > 4) GP_CHECK(find_location(location, &device));
    return advise(address, size, advice, device);
}

// Values of CUmem_range_attribute: numbers of 4 bytes each.
static int range_attribute(int *data, size_t size, int attribute,
                           const struct allocation *allocation) {
    if (data == NULL || size < 4 || size % 4 != 0) return GP_INVALID_VALUE;
    if (attribute != 3 && size != 4) return GP_INVALID_VALUE;
    int preferred = allocation == NULL ? NOWHERE : allocation->preferred;
    int prefetched = allocation == NULL ? NOWHERE : allocation->prefetched;
    switch (attribute) {
        case 1: *data = allocation != NULL && allocation->mostly_read; return GP_SUCCESS;
        case 2: *data = preferred; return GP_SUCCESS;
        case 4: *data = prefetched; return GP_SUCCESS;
        case 3: break;
        // The same as types and numbers of locations: 0 is CU_MEM_LOCATION_TYPE_INVALID.
        case 5: *data = preferred == NOWHERE ? 0 : preferred == CPU ? ON_HOST : ON_DEVICE;
            return GP_SUCCESS;
        case 6: *data = preferred < 0 ? 0 : preferred; return GP_SUCCESS;
        case 7: *data = prefetched == NOWHERE ? 0 : prefetched == CPU ? ON_HOST : ON_DEVICE;
            return GP_SUCCESS;
        case 8: *data = prefetched < 0 ? 0 : prefetched; return GP_SUCCESS;
        default: return GP_INVALID_VALUE;
    }
    size_t at = 0, room = size / 4;
    for (int device = 0; allocation != NULL && device < gp.device_count && at < room; device++) {
        if (allocation->accessed_by[device]) data[at++] = device;
    }
    while (at < room) data[at++] = NOWHERE;
    return GP_SUCCESS;
}

GP_EXPORT int cuMemRangeGetAttribute(void *data, size_t size, int attribute, uint64_t address,
                                     size_t count) {
    GP_CHECK(gp_ready());
    struct gp_range range;
    GP_CHECK(check_range(address, count, &range));
    return range_attribute(data, size, attribute, range.detail);
}

GP_EXPORT int cuMemRangeGetAttributes(void **data, const size_t *sizes, const int *attributes,
                                      size_t number, uint64_t address, size_t count) {
    GP_CHECK(gp_ready());
    struct gp_range range;
    if (data == NULL || sizes == NULL || attributes == NULL || number == 0) return GP_INVALID_VALUE;
    GP_CHECK(check_range(address, count, &range));
    for (size_t at = 0; at < number; at++) {
        GP_CHECK(range_attribute(data[at], sizes[at], attributes[at], range.detail));
    }
    return GP_SUCCESS;
}

GP_EXPORT int cuStreamAttachMemAsync(void *stream, uint64_t address, size_t length,
                                     unsigned flags) {
    GP_ENTER();
    struct gp_range range;
    uint64_t id;
    GP_CHECK(gp_stream_id(stream, &id));
    if (flags != 1 && flags != 2 && flags != 4) return GP_INVALID_VALUE;
    if (!gp_find_range(address, &range) || range.kind != GP_MANAGED_MEMORY) return GP_INVALID_VALUE;
    // It is an allocation as a whole, and what the program touches is right wherever it belongs.
    bool whole = range.start == address && (length == 0 || length == range.size);
    return whole ? GP_SUCCESS : GP_INVALID_VALUE;
}

// --- batches of hints -----------------------------------------------------------------------------

// What is discarded may keep its contents, so these are checked and nothing else.
static int check_batch(const uint64_t *addresses, const size_t *sizes, size_t count,
                       unsigned long long flags, void *stream) {
    uint64_t id;
    if (addresses == NULL || sizes == NULL || count == 0 || flags != 0) return GP_INVALID_VALUE;
    GP_CHECK(gp_stream_id(stream, &id));
    if (id == GP_LEGACY_STREAM) return GP_INVALID_VALUE;
    struct gp_range range;
    for (size_t at = 0; at < count; at++) GP_CHECK(check_range(addresses[at], sizes[at], &range));
    return GP_SUCCESS;
}

static int prefetch_batch(const uint64_t *addresses, const size_t *sizes, size_t count,
                          const struct location *locations, const size_t *first, size_t kinds,
                          unsigned long long flags, void *stream) {
    GP_ENTER_ON(stream);
    GP_ON_STREAM(stream);
    GP_CHECK(check_batch(addresses, sizes, count, flags, stream));
    if (locations == NULL || first == NULL || kinds == 0 || kinds > count) return GP_INVALID_VALUE;
    for (size_t at = 0; at < kinds; at++) {
        bool follows = at == 0 ? first[0] == 0 : first[at] > first[at - 1];
        int device;
        if (!follows || first[at] >= count) return GP_INVALID_VALUE;
        GP_CHECK(find_location(locations[at], &device));
    }
    for (size_t at = 0, kind = 0; at < count; at++) {
        if (kind + 1 < kinds && first[kind + 1] == at) kind++;
        int device;
        GP_CHECK(find_location(locations[kind], &device));
        GP_CHECK(prefetch(addresses[at], sizes[at], device, stream));
    }
    return GP_SUCCESS;
}

GP_EXPORT int cuMemPrefetchBatchAsync(const uint64_t *addresses, const size_t *sizes, size_t count,
                                      const struct location *locations, const size_t *first,
                                      size_t kinds, unsigned long long flags, void *stream) {
    return prefetch_batch(addresses, sizes, count, locations, first, kinds, flags, stream);
}

GP_EXPORT int cuMemDiscardBatchAsync(const uint64_t *addresses, const size_t *sizes, size_t count,
                                     unsigned long long flags, void *stream) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    return check_batch(addresses, sizes, count, flags, stream);
}

GP_EXPORT int cuMemDiscardAndPrefetchBatchAsync(const uint64_t *addresses, const size_t *sizes,
                                                size_t count, const struct location *locations,
                                                const size_t *first, size_t kinds,
                                                unsigned long long flags, void *stream) {
    return prefetch_batch(addresses, sizes, count, locations, first, kinds, flags, stream);
}
