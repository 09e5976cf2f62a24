// Memory: which address is what, allocation, and copies of bytes between the two machines.
// Pinned memory of the host is in pinned.c.
#define _GNU_SOURCE
#include "copies.h"
#include "managed.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SMALL_COPY_MAX (64 * 1024)
#define DOWNLOAD_SIZE ((size_t)32 << 20)  // of a piece
#define INLINE_MAX 4096  // bytes that travel within a record instead of behind the frame
#define UPLOAD_SIZE ((size_t)32 << 20)
// So long host functions are waited for before the memory that a copy behind them reads gets a mirror,
// which is compared at each launch and each synchronisation from then on.
#define MIRROR_PATIENCE_NS 5000000000ll
#define SMALL_MIRROR_PATIENCE_NS 500000000ll
#define SMALL_MIRROR_MAX (64 * 1024)

// --- what lies where ------------------------------------------------------------------------------

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

static bool is_device(uint64_t address) {
    struct gp_range range;
    return gp_find_range(address, &range) && range.kind != GP_HOST_MEMORY;
}

// Whether this is memory of another server than the one that calls go to.
static bool is_apart(uint64_t address) {
    return __builtin_expect(gp_several, 0) && !gp_reaches(gp_device_at(address));
}

static bool is_pinned(const void *address) {
    struct gp_range range;
    return gp_find_range((uint64_t)(uintptr_t)address, &range) && range.kind == GP_HOST_MEMORY;
}

// A device address that is also an address here would be taken for the wrong memory, so the
// range is reserved where it is still free.
static int add_device_range(uint64_t address, uint64_t size, int kind) {
    struct gp_range range = {address, size, kind, gp_current_device(), 0, 0, NULL};
    size_t whole = (size_t)((size + 4095) & ~(uint64_t)4095);
    if ((address & 4095) == 0) {
        void *wanted = (void *)(uintptr_t)address;
        void *got = mmap(wanted, whole, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (got == wanted) {
            range.flags = 1;
        } else if (got != MAP_FAILED) {
            munmap(got, whole);
        }
    }
    return gp_add_range(range);
}

static int remove_device_range(uint64_t address) {
    struct gp_range range;
    GP_CHECK(gp_remove_range(address, &range));
    if (range.kind != GP_DEVICE_MEMORY) {
        gp_add_range(range);
        return GP_INVALID_VALUE;
    }
    if (range.flags & 1) {
        munmap((void *)(uintptr_t)address, (size_t)((range.size + 4095) & ~(uint64_t)4095));
    }
    return GP_SUCCESS;
}

// --- allocation -----------------------------------------------------------------------------------

GP_EXPORT int cuMemAlloc_v2(uint64_t *address, size_t size) {
    GP_ENTER();
    if (address == NULL || size == 0) return GP_INVALID_VALUE;
    uint64_t values[1] = {size}, reply[1] = {0};
    GP_CHECK(gp_call(GP_ALLOCATE, values, 1, reply, sizeof reply));
    *address = reply[0];
    int status = add_device_range(reply[0], size, GP_DEVICE_MEMORY);
    if (status == GP_SUCCESS) {
        gp_own(reply[0]);
    } else {
        gp_post(GP_FREE, reply, 1);
    }
    return status;
}

GP_EXPORT int cuMemAllocPitch_v2(uint64_t *address, size_t *pitch, size_t width, size_t height,
                                 unsigned element) {
    GP_ENTER();
    if (address == NULL || pitch == NULL || width == 0 || height == 0) return GP_INVALID_VALUE;
    if (element != 4 && element != 8 && element != 16) return GP_INVALID_VALUE;
    if (width > SIZE_MAX - 511) return GP_OUT_OF_MEMORY;
    *pitch = (width + 511) & ~(size_t)511;  // a multiple of every device's texture alignment
    if (height > SIZE_MAX / *pitch) return GP_OUT_OF_MEMORY;
    return cuMemAlloc_v2(address, *pitch * height);
}

GP_EXPORT int cuMemFree_v2(uint64_t address) {
    GP_ENTER_AT(address);
    if (address == 0) return GP_SUCCESS;
    GP_ON_ADDRESS(address);
    if (gp_managed_count && gp_managed_free(address) == GP_SUCCESS) return GP_SUCCESS;
    GP_CHECK(remove_device_range(address));
    uint64_t values[1] = {address};
    return gp_post(GP_FREE, values, 1);
}

GP_EXPORT int cuMemFreeAsync(uint64_t address, void *stream) {
    GP_ENTER_ON(stream);
    if (address == 0) return GP_SUCCESS;
    GP_ON(stream);
    if (is_apart(address)) {
        // What the stream does does not touch another server's memory; only events could have made
        // it wait for that, and these were waited for.
        GP_ON_ADDRESS(address);
        return cuMemFree_v2(address);
    }
    uint64_t id;
    GP_CHECK(gp_stream_id(stream, &id));
    if (gp_capture_of(stream)) return gp_capture_free(address, stream);
    GP_CHECK(remove_device_range(address));
    uint64_t values[2] = {address, id};
    return gp_post(GP_FREE_ASYNC, values, 2);
}

GP_EXPORT int cuMemGetInfo_v2(size_t *left, size_t *total) {
    GP_ENTER();
    if (left == NULL || total == NULL) return GP_INVALID_VALUE;
    uint64_t reply[2] = {0};
    GP_CHECK(gp_call(GP_MEMORY_INFO, NULL, 0, reply, sizeof reply));
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

// --- copies ---------------------------------------------------------------------------------------

int cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t size, void *stream);

// Managed memory is reached on the server, whatever a copy takes it for. The program may touch it
// as soon as a synchronous copy has returned.
static bool is_managed(uint64_t address) {
    struct gp_range range;
    return __atomic_load_n(&gp_managed_count, __ATOMIC_RELAXED) != 0 &&
           gp_find_range(address, &range) && range.kind == GP_MANAGED_MEMORY;
}

static int copy_managed(uint64_t target, uint64_t source, size_t size, void *stream, bool async) {
    if (async) return cuMemcpyDtoDAsync_v2(target, source, size, stream);
    uint64_t id;
    GP_CHECK(gp_stream_id(NULL, &id));
    GP_CHECK(cuMemcpyDtoDAsync_v2(target, source, size, NULL));
    return gp_synchronize(GP_SYNC_STREAM, id);
}

// What host functions before a copy write must be there when it reads the host's memory. Pageable
// memory is read by an asynchronous copy when it is called, also by CUDA. Of pinned memory a mirror
// is made if they take long; then the copy reads that in its turn, and nobody waits here.
static bool settle(void *stream, uint64_t target, const void *source, size_t size,
                   uint64_t *mirror) {
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) == 0 || !is_pinned(source)) return true;
    const struct gp_handle *handle = gp_stream_handle(stream);
    struct gp_range range;
    uint64_t address = (uint64_t)(uintptr_t)source;
    bool small = gp_find_range(address, &range) && range.size <= SMALL_MIRROR_MAX;
    int64_t patience = small ? SMALL_MIRROR_PATIENCE_NS : MIRROR_PATIENCE_NS;
    if (gp_host_settle(handle, is_apart(target) ? 0 : patience)) return true;
    if (gp_see(&address) == GP_SUCCESS && gp_mirror_of(source, size, mirror)) return false;
    return gp_host_settle(handle, 0);
}

// A copy of which one side is mapped memory of the host, in the order of its stream; a synchronous one
// is over when it returns, as the program may write there again.
static int copy_mapped(uint64_t target, uint64_t source, size_t size) {
    uint64_t id;
    GP_CHECK(gp_stream_id(NULL, &id));
    GP_CHECK(cuMemcpyDtoDAsync_v2(target, source, size, NULL));
    return gp_synchronize(GP_SYNC_STREAM, id);
}

static int copy_in(uint64_t target, const void *source, size_t size, uint64_t stream) {
    if (size == 0) return GP_SUCCESS;
    if (source == NULL) return GP_INVALID_VALUE;
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
    // The bytes may still be on their way here.
    GP_CHECK(gp_drain(source, size));
    uint64_t values[3] = {target, size, stream};
    if (size <= INLINE_MAX) {
        unsigned char *at = gp_open(GP_COPY_IN, 0, sizeof values + size);
        memcpy(at, values, sizeof values);
        memcpy(at + sizeof values, source, size);
        gp_close();
        return GP_SUCCESS;
    }
    // Beyond a host function no more goes at a time than the worker can put aside.
    bool pending = __atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) != 0;
    for (size_t done = 0; done < size; done += values[1]) {
        values[0] = target + done;
        values[1] = pending && size - done > UPLOAD_SIZE ? UPLOAD_SIZE : size - done;
        GP_CHECK(gp_post_bulk(GP_COPY_IN, values, 3, (const char *)source + done, values[1]));
    }
    return GP_SUCCESS;
}

static int copy_out(void *target, uint64_t source, size_t size, uint64_t stream) {
    if (size == 0) return GP_SUCCESS;
    if (target == NULL) return GP_INVALID_VALUE;
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
    uint64_t values[3] = {source, size, stream};
    struct gp_request request = {.bulk = target, .bulk_size = size};
    return gp_exchange(&request, GP_COPY_OUT, values, 3, NULL, 0, NULL, 0);
}

// --- copies between servers -----------------------------------------------------------------------
//
// Large ones go from worker to worker where these can connect; others pass through this process,
// piece by piece. What a stream of one server does changes no memory of another, other than by such
// copies, so the stream matters on its own server only; elsewhere the legacy stream stands for it,
// and a copy is over before the stream goes on.

#define PIECE_SIZE ((size_t)8 << 20)
#define DIRECT_MIN ((size_t)16 << 10)

static int write_across(uint64_t target, const void *source, size_t size, void *stream) {
    int home = gp_here();
    GP_ON_ADDRESS(target);
    uint64_t id;
    GP_CHECK(gp_here() == home ? gp_stream_id(stream, &id) : gp_stream_id(NULL, &id));
    GP_CHECK(copy_in(target, source, size, id));
    return gp_here() == home ? GP_SUCCESS : gp_synchronize(GP_SYNC_STREAM, id);
}

static int read_across(void *target, uint64_t source, size_t size, void *stream) {
    int home = gp_here();
    GP_ON_ADDRESS(source);
    uint64_t id;
    GP_CHECK(gp_here() == home ? gp_stream_id(stream, &id) : gp_stream_id(NULL, &id));
    return copy_out(target, source, size, id);
}

int gp_copy_across(uint64_t target, uint64_t source, size_t size, void *stream) {
    if (gp_capture_of(stream)) return GP_CAPTURE_UNSUPPORTED;
    if (size >= DIRECT_MIN) {
        int direct = gp_copy_direct(target, source, size, stream);
        if (direct != GP_NOT_SUPPORTED) return direct;
    }
    size_t most = size < PIECE_SIZE ? size : PIECE_SIZE;
    void *piece = malloc(most + 1);
    if (piece == NULL) return GP_OUT_OF_MEMORY;
    int status = GP_SUCCESS;
    for (size_t at = 0; at < size && status == GP_SUCCESS; at += most) {
        size_t part = size - at < most ? size - at : most;
        status = read_across(piece, source + at, part, stream);
        if (status == GP_SUCCESS) status = write_across(target + at, piece, part, stream);
    }
    free(piece);
    return status;
}

bool gp_between_servers(uint64_t one, uint64_t other) {
    int first = gp_device_at(one), second = gp_device_at(other);
    return first >= 0 && second >= 0 && gp.devices[first].server != gp.devices[second].server;
}

// --- copies by direction --------------------------------------------------------------------------

GP_EXPORT int cuMemcpyHtoD_v2(uint64_t target, const void *source, size_t size) {
    GP_ENTER();
    GP_ON_ADDRESS(target);
    if (is_managed((uintptr_t)source)) {
        return copy_managed(target, (uintptr_t)source, size, NULL, false);
    }
    uint64_t id, mirror;
    GP_CHECK(gp_stream_id(NULL, &id));
    if (gp_mirror_of(source, size, &mirror)) return copy_mapped(target, mirror, size);
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED)) {
        gp_host_settle(gp_stream_handle(NULL), 0);
    }
    GP_CHECK(copy_in(target, source, size, id));
    // CUDA returns before small ones are over (API synchronization behavior, CUDA driver API).
    return size > SMALL_COPY_MAX ? gp_synchronize(GP_SYNC_STREAM, id) : GP_SUCCESS;
}

GP_EXPORT int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t size,
                                   void *stream) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    if (is_managed((uintptr_t)source)) {
        return copy_managed(target, (uintptr_t)source, size, stream, true);
    }
    uint64_t id, mirror;
    GP_CHECK(gp_stream_id(stream, &id));
    if (gp_capture_of(stream)) {
        if (is_apart(target)) return GP_CAPTURE_UNSUPPORTED;
        return gp_capture_copy(target, (uint64_t)(uintptr_t)source, size, false, stream);
    }
    if (!is_apart(target) && gp_mirror_of(source, size, &mirror)) {
        return cuMemcpyDtoDAsync_v2(target, mirror, size, stream);
    }
    if (!settle(stream, target, source, size, &mirror)) {
        return cuMemcpyDtoDAsync_v2(target, mirror, size, stream);
    }
    if (is_apart(target)) return write_across(target, source, size, stream);
    return copy_in(target, source, size, id);
}

GP_EXPORT int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t size) {
    GP_ENTER();
    GP_ON_ADDRESS(source);
    if (is_managed((uintptr_t)target)) {
        return copy_managed((uintptr_t)target, source, size, NULL, false);
    }
    uint64_t id, mirror;
    GP_CHECK(gp_stream_id(NULL, &id));
    if (gp_mirror_of(target, size, &mirror)) return copy_mapped(mirror, source, size);
    GP_CHECK(gp_see(&source));
    return copy_out(target, source, size, id);
}

GP_EXPORT int cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t size, void *stream) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    if (is_managed((uintptr_t)target)) {
        return copy_managed((uintptr_t)target, source, size, stream, true);
    }
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (gp_capture_of(stream)) {
        if (is_apart(source)) return GP_CAPTURE_UNSUPPORTED;
        return gp_capture_copy((uint64_t)(uintptr_t)target, source, size, true, stream);
    }
    if (size == 0) return GP_SUCCESS;
    if (is_apart(source)) return read_across(target, source, size, stream);
    uint64_t mirror;
    if (gp_mirror_of(target, size, &mirror)) {
        return cuMemcpyDtoDAsync_v2(mirror, source, size, stream);
    }
    GP_CHECK(gp_see(&source));
    if (is_pinned(target)) {
        while (size > 0) {
            size_t part = size < DOWNLOAD_SIZE ? size : DOWNLOAD_SIZE;
            uint64_t id = gp_expect_download(target, part, handle->id);
            if (id == 0) break;
            uint64_t values[4] = {source, part, handle->id, id};
            GP_CHECK(gp_post(GP_DOWNLOAD, values, 4));
            target = (unsigned char *)target + part;
            source += part;
            size -= part;
        }
        // What the worker has no room for is waited for.
        return copy_out(target, source, size, handle->id);
    }
    // To pageable memory CUDA copies before it returns; then the stream is known to be idle.
    uint64_t before = gp_position();
    GP_CHECK(copy_out(target, source, size, handle->id));
    if (gp_position() == before + 1) {
        __atomic_store_n(&handle->clean, before + 1, __ATOMIC_RELAXED);
    }
    return GP_SUCCESS;
}

static int copy_any(uint64_t target, uint64_t source, size_t size, void *stream, bool async) {
    bool to = is_device(target), from = is_device(source);
    void *host_target = (void *)(uintptr_t)target, *host_source = (void *)(uintptr_t)source;
    if (to && from) {
        if (is_managed(target) || is_managed(source)) {
            return copy_managed(target, source, size, stream, async);
        }
        return cuMemcpyDtoDAsync_v2(target, source, size, stream);
    }
    if (to) {
        return async ? cuMemcpyHtoDAsync_v2(target, host_source, size, stream)
                     : cuMemcpyHtoD_v2(target, host_source, size);
    }
    if (from) {
        return async ? cuMemcpyDtoHAsync_v2(host_target, source, size, stream)
                     : cuMemcpyDtoH_v2(host_target, source, size);
    }
    GP_ON(stream);
    uint64_t id;
    GP_CHECK(gp_stream_id(stream, &id));
    GP_CHECK(gp_synchronize(GP_SYNC_STREAM, id));
    memmove(host_target, host_source, size);
    return GP_SUCCESS;
}

GP_EXPORT int cuMemcpy(uint64_t target, uint64_t source, size_t size) {
    GP_ENTER();
    return copy_any(target, source, size, NULL, false);
}

GP_EXPORT int cuMemcpyAsync(uint64_t target, uint64_t source, size_t size, void *stream) {
    GP_ENTER();
    return copy_any(target, source, size, stream, true);
}

GP_EXPORT int cuMemcpyPeerAsync(uint64_t target, void *to, uint64_t source, void *from,
                                size_t size, void *stream) {
    GP_ENTER();
    struct gp_context *known;
    GP_CHECK(gp_context_of(to, &known));
    GP_CHECK(gp_context_of(from, &known));
    return cuMemcpyDtoDAsync_v2(target, source, size, stream);
}

GP_EXPORT int cuMemcpyPeer(uint64_t target, void *to, uint64_t source, void *from, size_t size) {
    GP_ENTER();
    struct gp_context *known;
    GP_CHECK(gp_context_of(to, &known));
    GP_CHECK(gp_context_of(from, &known));
    return cuMemcpyDtoDAsync_v2(target, source, size, NULL);
}

// --- rectangles: CUDA_MEMCPY2D and CUDA_MEMCPY3D --------------------------------------------------

struct rectangle {
    size_t x, y;
    int kind;
    const void *host;
    uint64_t device;
    void *array;
    size_t pitch;
};

struct copy_2d {
    struct rectangle source, target;
    size_t width, height;
};

int gp_find_end(const struct gp_box *box, size_t width, size_t height, struct gp_end *end) {
    if (box->kind == GP_IN_ARRAY || box->level != 0) return GP_INVALID_VALUE;
    uint64_t base = box->kind == 1 ? (uint64_t)(uintptr_t)box->host : box->device;
    if (box->kind < 1 || box->kind > 4 || base == 0) return GP_INVALID_VALUE;
    end->host = (box->kind == 1 || (box->kind == 4 && !is_device(base))) && !is_managed(base);
    end->pitch = box->pitch ? box->pitch : width + box->x;
    size_t rows = box->height ? box->height : height + box->y;
    if (end->pitch < width + box->x) return GP_INVALID_VALUE;
    end->slice = end->pitch * rows;
    end->address = base + box->z * end->slice + box->y * end->pitch + box->x;
    return GP_SUCCESS;
}

int gp_copy_box(const struct gp_copy_3d *copy, void *stream, bool async) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    if (copy == NULL) return GP_INVALID_VALUE;
    size_t width = copy->width, height = copy->height, depth = copy->depth;
    if (width == 0 || height == 0 || depth == 0) return GP_SUCCESS;
    if (copy->source.kind == GP_IN_ARRAY || copy->target.kind == GP_IN_ARRAY) {
        return gp_copy_arrays(copy, stream, async);
    }
    struct gp_end from, to;
    GP_CHECK(gp_find_end(&copy->source, width, height, &from));
    GP_CHECK(gp_find_end(&copy->target, width, height, &to));
    bool across = gp_several && !from.host && !to.host &&
                  gp_between_servers(from.address, to.address);
    uint64_t id;
    GP_CHECK(gp_stream_id(stream, &id));
    if (gp_capture_of(stream) && (from.host || to.host)) return gp_capture_box(copy, stream);
    if (!from.host && !to.host && !across) {
        // Without a stream it is the legacy one of whichever server has the memory.
        GP_ROUTE(gp_several && gp_handle_device(stream) < 0 ? gp_device_at(to.address) : -1);
        GP_REACH_ADDRESS(to.address);
        GP_CHECK(gp_stream_id(stream, &id));
        uint64_t values[10] = {to.address, to.pitch, to.slice, from.address, from.pitch,
                               from.slice, width, height, depth, id};
        return gp_post(GP_COPY_3D, values, 10);
    }
    // Rows that lie apart are copied one by one; what lies together goes as one piece.
    bool whole = from.pitch == width && to.pitch == width;
    bool slices = whole && (depth == 1 || (from.slice == width * height &&
                                           to.slice == width * height));
    size_t piece = slices ? width * height * depth : whole ? width * height : width;
    for (size_t z = 0; z < (slices ? 1 : depth); z++) {
        for (size_t y = 0; y < (whole ? 1 : height); y++) {
            uint64_t target = to.address + z * to.slice + y * to.pitch;
            uint64_t source = from.address + z * from.slice + y * from.pitch;
            GP_CHECK(copy_any(target, source, piece, stream, async));
        }
    }
    return GP_SUCCESS;
}

static int copy_rectangle(const struct copy_2d *copy, void *stream, bool async) {
    if (copy == NULL) return GP_INVALID_VALUE;
    const struct rectangle *s = &copy->source, *t = &copy->target;
    struct gp_copy_3d full = {
        .source = {.x = s->x, .y = s->y, .kind = s->kind, .host = s->host, .device = s->device,
                   .array = s->array, .pitch = s->pitch},
        .target = {.x = t->x, .y = t->y, .kind = t->kind, .host = t->host, .device = t->device,
                   .array = t->array, .pitch = t->pitch},
        .width = copy->width, .height = copy->height, .depth = 1,
    };
    return gp_copy_box(&full, stream, async);
}

GP_EXPORT int cuMemcpy2D_v2(const void *copy) { return copy_rectangle(copy, NULL, false); }

GP_EXPORT int cuMemcpy2DUnaligned_v2(const void *copy) {
    return copy_rectangle(copy, NULL, false);
}

GP_EXPORT int cuMemcpy2DAsync_v2(const void *copy, void *stream) {
    return copy_rectangle(copy, stream, true);
}

GP_EXPORT int cuMemcpy3D_v2(const void *copy) { return gp_copy_box(copy, NULL, false); }

GP_EXPORT int cuMemcpy3DAsync_v2(const void *copy, void *stream) {
    return gp_copy_box(copy, stream, true);
}

// Both devices are reached by address, and contexts lie where CUDA_MEMCPY3D has reserved words.

GP_EXPORT int cuMemcpy3DPeer(const void *copy) { return gp_copy_box(copy, NULL, false); }

GP_EXPORT int cuMemcpy3DPeerAsync(const void *copy, void *stream) {
    return gp_copy_box(copy, stream, true);
}

// --- pointers -------------------------------------------------------------------------------------

// Attributes of CUpointer_attribute: 4-byte values, boolean ones too, unless stated.
static int pointer_attribute(void *data, int attribute, uint64_t address, bool known,
                             const struct gp_range *range) {
    bool host = known && range->kind == GP_HOST_MEMORY;
    bool managed = known && range->kind == GP_MANAGED_MEMORY;
    uint64_t wide = 0;
    int narrow = 0;
    size_t size = 4;
    switch (attribute) {
        case 1:
            wide = known ? (uint64_t)(uintptr_t)gp_owner_of(range->start) : 0;
            if (known && wide == 0) wide = (uint64_t)(uintptr_t)&gp.primaries[range->device];
            size = 8;
            break;
        case 2: narrow = known ? (host ? 1 : 2) : 0; break;
        case 3: wide = known ? address : 0; size = 8; break;
        case 4: wide = host || managed ? address : 0; size = 8; break;
        case 5: return GP_NOT_SUPPORTED;
        case 8: narrow = managed; break;
        case 6: case 15: case 21: break;
        case 10: narrow = known && range->kind == GP_DEVICE_MEMORY && gp_owner_of(range->start); break;
        case 13: narrow = known; break;
        case 7: wide = known ? range->serial : 0; size = 8; break;
        case 9: narrow = known ? range->device : -2; break;
        case 11: case 19: wide = known ? range->start : 0; size = 8; break;
        case 12: case 18: wide = known ? range->size : 0; size = 8; break;
        case 14: wide = known ? gp_handles_allowed(range) : 0; size = 8; break;
        case 16: narrow = known ? 3 : 0; break;
        case 17: wide = known ? (uint64_t)(uintptr_t)gp_pool_of(range) : 0; size = 8; break;
        case 20: wide = known ? range->serial : 0; size = 8; break;
        default: return GP_INVALID_VALUE;
    }
    if (size == 8) {
        memcpy(data, &wide, 8);
    } else {
        memcpy(data, &narrow, 4);
    }
    return GP_SUCCESS;
}

GP_EXPORT int cuPointerGetAttribute(void *data, int attribute, uint64_t address) {
    GP_CHECK(gp_ready());
    struct gp_range range = {0};
    if (data == NULL) return GP_INVALID_VALUE;
    if (!gp_find_range(address, &range)) return GP_INVALID_VALUE;
    return pointer_attribute(data, attribute, address, true, &range);
}

GP_EXPORT int cuPointerGetAttributes(unsigned count, const int *attributes, void **data,
                                     uint64_t address) {
    GP_CHECK(gp_ready());
    if (count == 0 || attributes == NULL || data == NULL) return GP_INVALID_VALUE;
    struct gp_range range = {0};
    bool known = gp_find_range(address, &range);
    for (unsigned at = 0; at < count; at++) {
        if (data[at] == NULL) continue;
        GP_CHECK(pointer_attribute(data[at], attributes[at], address, known, &range));
    }
    return GP_SUCCESS;
}

GP_EXPORT int cuPointerSetAttribute(const void *value, int attribute, uint64_t address) {
    GP_CHECK(gp_ready());
    struct gp_range range;
    if (value == NULL || !gp_find_range(address, &range)) return GP_INVALID_VALUE;
    // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: synchronous copies are synchronous here in any case.
    return attribute == 6 ? GP_SUCCESS : GP_INVALID_VALUE;
}
