// Copies of bytes: between the program and its GPUs, on a GPU, and between GPUs of several servers.
#define _GNU_SOURCE
#include "copies.h"
#include "managed.h"

#include <stdlib.h>

#define SMALL_COPY_MAX (64 * 1024)
#define DOWNLOAD_SIZE ((size_t)32 << 20)  // of a piece
#define INLINE_MAX 4096  // bytes that travel within a record instead of behind the frame
#define UPLOAD_SIZE ((size_t)32 << 20)
// So long host functions are waited for before the memory that a copy behind them reads gets a mirror,
// which is compared at each launch and each synchronisation from then on.
#define MIRROR_PATIENCE_NS 5000000000ll
#define SMALL_MIRROR_PATIENCE_NS 500000000ll
#define SMALL_MIRROR_MAX (64 * 1024)

bool gp_is_device(uint64_t address) {
    struct gp_range range;
    return gp_find_range(address, &range) && range.kind != GP_HOST_MEMORY;
}

// Whether this is memory of another server than the one that calls go to.
static bool is_apart(uint64_t address) {
    return __builtin_expect(gp_several, 0) && !gp_reaches(gp_device_at(address));
}

bool gp_is_pinned(const void *address) {
    struct gp_range range;
    return gp_find_range((uint64_t)(uintptr_t)address, &range) && range.kind == GP_HOST_MEMORY;
}

// --- to the server and back ------------------------------------------------------------------------

// As cuMemcpyDtoDAsync, which the generator writes.
static int copy_on_device(uint64_t target, uint64_t source, size_t size, void *stream) {
    GP_ENTER_ON(stream);
    GP_ON_EITHER(stream, target);
    if (gp_several && gp_between_servers(target, source)) {
        return gp_copy_across(target, source, size, stream);
    }
    GP_REACH_ADDRESS(target);
    GP_REACH_ADDRESS(source);
    GP_CHECK(gp_see(&target));
    GP_CHECK(gp_see(&source));
    uint64_t id;
    GP_CHECK(gp_stream_id(stream, &id));
    return gp_post_cuMemcpyDtoDAsync_v2(target, source, size, id);
}

// Managed memory is reached on the server, as whichever kind a copy names it. The program may touch
// it as soon as a synchronous copy has returned.
bool gp_is_managed(uint64_t address) {
    struct gp_range range;
    return __atomic_load_n(&gp_managed_count, __ATOMIC_RELAXED) != 0 &&
           gp_find_range(address, &range) && range.kind == GP_MANAGED_MEMORY;
}

static int copy_managed(uint64_t target, uint64_t source, size_t size, void *stream, bool async) {
    if (async) return copy_on_device(target, source, size, stream);
    uint64_t id;
    GP_CHECK(gp_stream_id(NULL, &id));
    GP_CHECK(copy_on_device(target, source, size, NULL));
    return gp_synchronize(GP_SYNC_STREAM, id);
}

// What host functions before a copy write must be there when it reads the host's memory. Pageable
// memory is read by an asynchronous copy when it is called, also by CUDA. Of pinned memory a mirror
// is made if they take long; then the copy reads that in its turn, and nobody waits here.
static bool settle(void *stream, uint64_t target, const void *source, size_t size,
                   uint64_t *mirror) {
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) == 0 || !gp_is_pinned(source)) return true;
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
    GP_CHECK(copy_on_device(target, source, size, NULL));
    return gp_synchronize(GP_SYNC_STREAM, id);
}

int gp_settle_host(uint64_t address, void *stream) {
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED) == 0) return GP_SUCCESS;
    GP_ON_ADDRESS(address);
    GP_CHECK(gp_see(&address));
    if (!gp_is_mirror(address)) return GP_SUCCESS;
    uint64_t id;
    GP_CHECK(gp_stream_id(stream, &id));
    return gp_synchronize(GP_SYNC_STREAM, id);
}

static int copy_in(uint64_t target, const void *source, size_t size, uint64_t stream) {
    if (size == 0) return GP_SUCCESS;
    if (source == NULL) return GP_INVALID_VALUE;
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
    // The bytes may still be on their way here.
    GP_CHECK(gp_drain(source, size));
    if (size <= INLINE_MAX) {
        unsigned char *at = gp_open_copy_in(target, size, stream);
        if (at == NULL) return GP_INVALID_VALUE;
        memcpy(at, source, size);
        gp_close();
        return GP_SUCCESS;
    }
    // Beyond a host function no more goes at a time than the worker can put aside.
    bool pending = __atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) != 0;
    for (size_t done = 0, part; done < size; done += part) {
        part = pending && size - done > UPLOAD_SIZE ? UPLOAD_SIZE : size - done;
        GP_CHECK(gp_post_copy_in(target + done, part, stream, (const char *)source + done, part));
    }
    return GP_SUCCESS;
}

static int copy_out(void *target, uint64_t source, size_t size, uint64_t stream) {
    if (size == 0) return GP_SUCCESS;
    if (target == NULL) return GP_INVALID_VALUE;
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
    struct gp_request request = {.bulk = target, .bulk_size = size};
    return gp_exchange_copy_out(&request, source, size, stream);
}

// One side is the host's.
static int capture_copy(uint64_t target, uint64_t source, size_t size, bool out, void *stream) {
    if (size == 0) return GP_SUCCESS;
    struct gp_copy_3d copy = {.width = size, .height = 1, .depth = 1};
    copy.source = (struct gp_box){.kind = out ? 2 : 1, .device = source,
                                  .host = (const void *)(uintptr_t)source, .pitch = size};
    copy.target = (struct gp_box){.kind = out ? 1 : 2, .device = target,
                                  .host = (const void *)(uintptr_t)target, .pitch = size};
    return gp_hooks.capture_box(&copy, stream);
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

// Whether all of these bytes are the memory of one allocation, which the host does not see.
static bool is_whole(uint64_t address, size_t size) {
    struct gp_range range;
    return gp_find_range(address, &range) && size <= range.size &&
           address - range.start <= range.size - size && range.kind == GP_DEVICE_MEMORY &&
           !gp_is_mirror(address);
}

// Whether a copy of the program's bytes needs no wait for its end: nothing here can show it. The Async
// form "might be synchronous with respect to host" for pageable memory and "should be fully
// asynchronous" for pinned memory, which is read later (as above, Asynchronous), so there a wait for
// the stream is what lets the program write to the pinned memory again.
static bool goes_ahead(const struct gp_handle *stream, uint64_t target, const void *source, size_t size) {
    return gp_only_copies(stream) && is_whole(target, size) && !gp_is_pinned(source);
}

static int write_now(uint64_t target, const void *source, size_t size) {
    GP_ENTER();
    GP_ON_ADDRESS(target);
    if (gp_is_managed((uintptr_t)source)) {
        return copy_managed(target, (uintptr_t)source, size, NULL, false);
    }
    uint64_t id, mirror;
    GP_CHECK(gp_stream_id(NULL, &id));
    if (gp_mirror_of(source, size, &mirror)) return copy_mapped(target, mirror, size);
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED)) {
        gp_host_settle(gp_stream_handle(NULL), 0);
    }
    // For "transfers from pageable host memory to device memory, a stream sync is performed before the
    // copy is initiated. The function will return once the pageable buffer has been copied to the
    // staging memory [...], but the DMA to final destination may not have completed"; "from pinned
    // host memory [...], the function is synchronous" (CUDA driver API 13.0, API synchronization
    // behavior, Memcpy, Synchronous). Before small ones are over it returns of either.
    struct gp_handle *legacy = gp_stream_handle(NULL);
    bool ahead = size > SMALL_COPY_MAX && goes_ahead(legacy, target, source, size);
    uint64_t before = gp_position();
    GP_CHECK(copy_in(target, source, size, id));
    if (size <= SMALL_COPY_MAX) return GP_SUCCESS;
    if (ahead) gp_note_copied(legacy, before);
    return ahead && gp_await_copies(legacy) ? GP_SUCCESS : gp_synchronize(GP_SYNC_STREAM, id);
}

static int write_async(uint64_t target, const void *source, size_t size, void *stream) {
    GP_ENTER_ON(stream);
    GP_ON_STREAM(stream);
    if (gp_is_managed((uintptr_t)source)) {
        return copy_managed(target, (uintptr_t)source, size, stream, true);
    }
    uint64_t id, mirror;
    GP_CHECK(gp_stream_id(stream, &id));
    if (gp_capture_of(stream)) {
        if (is_apart(target)) return GP_CAPTURE_UNSUPPORTED;
        return capture_copy(target, (uint64_t)(uintptr_t)source, size, false, stream);
    }
    if (!is_apart(target) && gp_mirror_of(source, size, &mirror)) {
        return copy_on_device(target, mirror, size, stream);
    }
    if (!settle(stream, target, source, size, &mirror)) {
        return copy_on_device(target, mirror, size, stream);
    }
    if (is_apart(target)) return write_across(target, source, size, stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    uint64_t before = gp_position();
    bool only = goes_ahead(handle, target, source, size);
    GP_CHECK(copy_in(target, source, size, id));
    if (only) gp_note_copied(handle, before);
    return GP_SUCCESS;
}

static int read_now(void *target, uint64_t source, size_t size) {
    GP_ENTER();
    GP_ON_ADDRESS(source);
    if (gp_is_managed((uintptr_t)target)) {
        return copy_managed((uintptr_t)target, source, size, NULL, false);
    }
    uint64_t id, mirror;
    GP_CHECK(gp_stream_id(NULL, &id));
    if (gp_mirror_of(target, size, &mirror)) return copy_mapped(mirror, source, size);
    GP_CHECK(gp_see(&source));
    GP_CHECK(copy_out(target, source, size, id));
    gp_host_told(gp_stream_handle(NULL), true);
    return GP_SUCCESS;
}

static int read_async(void *target, uint64_t source, size_t size, void *stream) {
    GP_ENTER_ON(stream);
    GP_ON_STREAM(stream);
    if (gp_is_managed((uintptr_t)target)) {
        return copy_managed((uintptr_t)target, source, size, stream, true);
    }
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (gp_capture_of(stream)) {
        if (is_apart(source)) return GP_CAPTURE_UNSUPPORTED;
        return capture_copy((uint64_t)(uintptr_t)target, source, size, true, stream);
    }
    if (size == 0) return GP_SUCCESS;
    if (is_apart(source)) return read_across(target, source, size, stream);
    uint64_t mirror;
    if (gp_mirror_of(target, size, &mirror)) {
        return copy_on_device(mirror, source, size, stream);
    }
    GP_CHECK(gp_see(&source));
    if (gp_is_pinned(target)) {
        while (size > 0) {
            size_t part = size < DOWNLOAD_SIZE ? size : DOWNLOAD_SIZE;
            uint64_t id = gp_expect_download(target, part, handle->id);
            if (id == 0) break;
            GP_CHECK(gp_post_download(source, part, handle->id, id));
            target = (unsigned char *)target + part;
            source += part;
            size -= part;
        }
        __atomic_store_n(&handle->downloaded, gp_position(), __ATOMIC_RELAXED);
        // What the worker has no room for is waited for.
        return copy_out(target, source, size, handle->id);
    }
    // To pageable memory CUDA copies before it returns; then the stream is known to be idle.
    uint64_t before = gp_position();
    GP_CHECK(copy_out(target, source, size, handle->id));
    gp_note_idle(handle, before);
    gp_host_told(handle, true);
    return GP_SUCCESS;
}

int gp_copy_any(uint64_t target, uint64_t source, size_t size, void *stream, bool async) {
    bool to = gp_is_device(target), from = gp_is_device(source);
    void *host_target = (void *)(uintptr_t)target, *host_source = (void *)(uintptr_t)source;
    if (to && from) {
        if (gp_is_managed(target) || gp_is_managed(source)) {
            return copy_managed(target, source, size, stream, async);
        }
        return copy_on_device(target, source, size, stream);
    }
    if (to) {
        return async ? write_async(target, host_source, size, stream)
                     : write_now(target, host_source, size);
    }
    if (from) {
        return async ? read_async(host_target, source, size, stream)
                     : read_now(host_target, source, size);
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
    return gp_copy_any(target, source, size, NULL, false);
}

GP_EXPORT int cuMemcpyAsync(uint64_t target, uint64_t source, size_t size, void *stream) {
    GP_ENTER();
    return gp_copy_any(target, source, size, stream, true);
}

GP_EXPORT int cuMemcpyPeerAsync(uint64_t target, void *to, uint64_t source, void *from,
                                size_t size, void *stream) {
    GP_ENTER();
    struct gp_context *known;
    GP_CHECK(gp_context_of(to, &known));
    GP_CHECK(gp_context_of(from, &known));
    return copy_on_device(target, source, size, stream);
}

GP_EXPORT int cuMemcpyPeer(uint64_t target, void *to, uint64_t source, void *from, size_t size) {
    GP_ENTER();
    struct gp_context *known;
    GP_CHECK(gp_context_of(to, &known));
    GP_CHECK(gp_context_of(from, &known));
    return copy_on_device(target, source, size, NULL);
}

#define GP_FORWARDS_COPIES
#include "generated_forwards.h"
