// The map of addresses: ranges that the program has got, on all servers and on the host.
#define _GNU_SOURCE
#include "base.h"

#include <stdlib.h>
#include <sys/mman.h>

static pthread_rwlock_t range_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct gp_range *ranges;  // sorted by start, disjoint
static const void **owners;      // of each, the context that it ends with
static size_t range_count, range_room;
static uint64_t next_serial = 1;

// The index of the first range that starts behind address.
static size_t behind(uint64_t address) {
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges[middle].start <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool gp_find_range(uint64_t address, struct gp_range *found) {
    pthread_rwlock_rdlock(&range_lock);
    size_t at = behind(address);
    bool hit = at > 0 && address - ranges[at - 1].start < ranges[at - 1].size;
    if (hit) *found = ranges[at - 1];
    pthread_rwlock_unlock(&range_lock);
    return hit;
}

bool gp_set_waits(uint64_t address, bool waits) {
    pthread_rwlock_wrlock(&range_lock);
    size_t at = behind(address);
    bool hit = at > 0 && address - ranges[at - 1].start < ranges[at - 1].size;
    if (hit) ranges[at - 1].waits = waits;
    pthread_rwlock_unlock(&range_lock);
    return hit;
}

void gp_own(uint64_t start) {
    pthread_rwlock_wrlock(&range_lock);
    size_t at = behind(start);
    if (at > 0 && ranges[at - 1].start == start) owners[at - 1] = gp_current();
    pthread_rwlock_unlock(&range_lock);
}

const void *gp_owner_of(uint64_t start) {
    const void *found = NULL;
    pthread_rwlock_rdlock(&range_lock);
    size_t at = behind(start);
    if (at > 0 && ranges[at - 1].start == start) found = owners[at - 1];
    pthread_rwlock_unlock(&range_lock);
    return found;
}

bool gp_find_owned(const void *context, struct gp_range *found) {
    bool hit = false;
    pthread_rwlock_rdlock(&range_lock);
    for (size_t at = range_count; at > 0 && !hit; at--) {
        hit = owners[at - 1] == context;
        if (hit) *found = ranges[at - 1];
    }
    pthread_rwlock_unlock(&range_lock);
    return hit;
}

bool gp_range_within(uint64_t start, uint64_t size) {
    pthread_rwlock_rdlock(&range_lock);
    size_t at = behind(start + size - 1);
    bool hit = at > 0 && ranges[at - 1].start + ranges[at - 1].size > start;
    pthread_rwlock_unlock(&range_lock);
    return hit;
}

uint64_t gp_pinned_low = UINT64_MAX, gp_pinned_high;

// Whether another server's memory has some of these addresses. Workers of a lease over several servers
// keep to parts of the address space of their own, so this is not expected; range_lock is held.
static bool collides(const struct gp_range *range) {
    if (range->kind == GP_HOST_MEMORY || range->device < 0) return false;
    size_t at = behind(range->start + range->size - 1);
    if (at == 0) return false;
    const struct gp_range *last = &ranges[at - 1];
    return last->start + last->size > range->start && last->device >= 0 &&
           gp.devices[last->device].server != gp.devices[range->device].server;
}

int gp_add_range(struct gp_range range) {
    pthread_rwlock_wrlock(&range_lock);
    if (gp_several && collides(&range)) {
        pthread_rwlock_unlock(&range_lock);
        gp_say("two servers gave memory at the same addresses: %#llx",
               (unsigned long long)range.start);
        return GP_OUT_OF_MEMORY;
    }
    if (range.kind == GP_HOST_MEMORY) {
        uint64_t end = range.start + range.size;
        if (range.start < gp_pinned_low) {
            __atomic_store_n(&gp_pinned_low, range.start, __ATOMIC_RELAXED);
        }
        if (end > gp_pinned_high) __atomic_store_n(&gp_pinned_high, end, __ATOMIC_RELAXED);
    }
    if (range_count == range_room) {
        size_t room = range_room ? range_room * 2 : 256;
        struct gp_range *grown = realloc(ranges, room * sizeof *grown);
        if (grown != NULL) ranges = grown;
        const void **wider = realloc(owners, room * sizeof *wider);
        if (wider != NULL) owners = wider;
        if (grown == NULL || wider == NULL) {
            pthread_rwlock_unlock(&range_lock);
            return GP_OUT_OF_MEMORY;
        }
        range_room = room;
    }
    size_t at = behind(range.start);
    memmove(ranges + at + 1, ranges + at, (range_count - at) * sizeof *ranges);
    memmove(owners + at + 1, owners + at, (range_count - at) * sizeof *owners);
    owners[at] = NULL;
    range.serial = next_serial++;
    ranges[at] = range;
    range_count++;
    pthread_rwlock_unlock(&range_lock);
    return GP_SUCCESS;
}

int gp_remove_range(uint64_t start, struct gp_range *removed) {
    int status = GP_INVALID_VALUE;
    pthread_rwlock_wrlock(&range_lock);
    size_t at = behind(start);
    if (at > 0 && ranges[at - 1].start == start) {
        *removed = ranges[at - 1];
        memmove(ranges + at - 1, ranges + at, (range_count - at) * sizeof *ranges);
        memmove(owners + at - 1, owners + at, (range_count - at) * sizeof *owners);
        range_count--;
        status = GP_SUCCESS;
    }
    pthread_rwlock_unlock(&range_lock);
    return status;
}

void gp_give_back_addresses(const struct gp_range *removed) {
    if (!(removed->flags & GP_RESERVED)) return;
    size_t whole = (size_t)((removed->size + 4095) & ~(uint64_t)4095);
    munmap((void *)(uintptr_t)removed->start, whole);
}
