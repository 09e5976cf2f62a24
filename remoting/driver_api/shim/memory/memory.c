// Memory of devices. Pinned memory of the host is in hostmem/pinned.c.
#define _GNU_SOURCE
#include "core.h"
#include "managed.h"

#include <stdlib.h>
#include <sys/mman.h>

// A device address that is also an address here would be taken for the wrong memory, so the
// range is reserved where it is still free.
static int add_device_range(uint64_t address, uint64_t size, int kind) {
    struct gp_range range = {address, size, kind, gp_current_device(), 0, 0, NULL, false};
    size_t whole = (size_t)((size + 4095) & ~(uint64_t)4095);
    if ((address & 4095) == 0) {
        void *wanted = (void *)(uintptr_t)address;
        void *got = mmap(wanted, whole, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (got == wanted) {
            range.flags = GP_RESERVED;
        } else if (got != MAP_FAILED) {
            munmap(got, whole);
        }
    }
    return gp_add_range(range);
}

static int remove_device_range(uint64_t address, struct gp_range *range) {
    GP_CHECK(gp_remove_range(address, range));
    if (range->kind == GP_DEVICE_MEMORY) return GP_SUCCESS;
    gp_add_range(*range);
    return GP_INVALID_VALUE;
}

// --- allocation -----------------------------------------------------------------------------------

// Another process of the lease may keep for a moment what it has freed.
static int ask(size_t size, uint64_t reply[1]) {
    gp_note_asked(size);
    int status = gp_call_allocate(size, reply);
    if (status != GP_OUT_OF_MEMORY || size > gp.devices[gp_current_device()].memory) return status;
    gp_free_kept();
    const struct timespec pause = {.tv_nsec = GP_KEPT_NS + GP_KEPT_NS / 2};
    nanosleep(&pause, NULL);
    return gp_call_allocate(size, reply);
}

static int allocate(uint64_t *address, size_t size) {
    GP_ENTER();
    if (address == NULL || size == 0) return GP_INVALID_VALUE;
    struct gp_range kept;
    uint64_t reply[1] = {0};
    bool again = gp_take_kept(size, &kept);
    if (again) {
        reply[0] = kept.start;
    } else {
        GP_CHECK(ask(size, reply));
    }
    *address = reply[0];
    int status = again ? gp_add_range(kept) : add_device_range(reply[0], size, GP_DEVICE_MEMORY);
    if (status == GP_SUCCESS) {
        gp_own(reply[0]);
    } else {
        gp_post_free(reply[0]);
    }
    return status;
}

GP_EXPORT int cuMemAlloc_v2(uint64_t *address, size_t size) { return allocate(address, size); }

GP_EXPORT int cuMemAllocPitch_v2(uint64_t *address, size_t *pitch, size_t width, size_t height,
                                 unsigned element) {
    GP_ENTER();
    if (address == NULL || pitch == NULL || width == 0 || height == 0) return GP_INVALID_VALUE;
    if (element != 4 && element != 8 && element != 16) return GP_INVALID_VALUE;
    if (width > SIZE_MAX - 511) return GP_OUT_OF_MEMORY;
    *pitch = (width + 511) & ~(size_t)511;  // a multiple of every device's texture alignment
    if (height > SIZE_MAX / *pitch) return GP_OUT_OF_MEMORY;
    return allocate(address, *pitch * height);
}

int gp_free(uint64_t address) {
    GP_ENTER_AT(address);
    if (address == 0) return GP_SUCCESS;
    GP_ON_ADDRESS(address);
    if (gp_managed_count && gp_managed_free(address) == GP_SUCCESS) return GP_SUCCESS;
    const void *owner = gp_owner_of(address);
    struct gp_range range;
    GP_CHECK(remove_device_range(address, &range));
    if (gp_keep(&range, owner)) return GP_SUCCESS;
    gp_give_back_addresses(&range);
    return gp_post_free(address);
}

GP_EXPORT int cuMemFree_v2(uint64_t address) { return gp_free(address); }

GP_EXPORT int cuMemFreeAsync(uint64_t address, void *stream) {
    GP_ENTER_ON(stream);
    if (address == 0) return GP_SUCCESS;
    GP_ON_STREAM(stream);
    if (gp_several && !gp_reaches(gp_device_at(address))) {
        // What the stream does does not touch another server's memory; only events could have made
        // it wait for that, and these were waited for.
        GP_ON_ADDRESS(address);
        return gp_free(address);
    }
    uint64_t id;
    GP_CHECK(gp_stream_id(stream, &id));
    if (gp_capture_of(stream)) return gp_hooks.capture_free(address, stream);
    struct gp_range range;
    GP_CHECK(remove_device_range(address, &range));
    gp_give_back_addresses(&range);
    return gp_post_free_async(address, id);
}

GP_EXPORT int cuMemGetInfo_v2(size_t *left, size_t *total) {
    GP_ENTER();
    if (left == NULL || total == NULL) return GP_INVALID_VALUE;
    gp_free_kept();
    uint64_t reply[2] = {0};
    GP_CHECK(gp_call_memory_info(reply));
    *left = reply[0];
    *total = reply[1];
    return GP_SUCCESS;
}

GP_EXPORT int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address) {
    GP_ENTER();
    struct gp_range range;
    if (!gp_find_range(address, &range)) return GP_NOT_FOUND;
    if (base != NULL) *base = range.start;
    if (size != NULL) *size = range.size;
    return GP_SUCCESS;
}

GP_EXPORT int cuMemGetAllocationGranularity(size_t *size, const void *properties, int option) {
    (void)properties;
    GP_CHECK(gp_ready());
    if (size == NULL || gp.device_count == 0) return GP_INVALID_VALUE;
    int device = gp_current_device();
    *size = gp.devices[device < 0 ? 0 : device].granularity[option == 1];
    return GP_SUCCESS;
}
