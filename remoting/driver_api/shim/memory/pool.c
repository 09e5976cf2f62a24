// Memory pools, and allocation in the order of a stream.
#define _GNU_SOURCE
#include "core.h"
#include "ipc.h"

#include <stdlib.h>

#define ON_DEVICE 1        // CU_MEM_LOCATION_TYPE_DEVICE
#define PINNED 1           // CU_MEM_ALLOCATION_TYPE_PINNED
#define FILE_DESCRIPTOR 1  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define FABRIC 8           // CU_MEM_HANDLE_TYPE_FABRIC

struct location {
    int type, id;
};

// CUmemPoolProps.
struct pool_properties {
    int type, handles;
    struct location location;
    void *security;
    size_t size_max;
    unsigned char rest[56];
};

// CUmemAccessDesc.
struct access {
    struct location location;
    int flags;
};

// The handles that programs get for a device's default pool, and for the one in use there (NULL:
// the default one). Programs compare them, so that each pool has one handle.
static struct gp_handle *default_pools[GP_DEVICES_MAX], *current_pools[GP_DEVICES_MAX];
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t id_of(const void *pool) { return ((const struct gp_handle *)pool)->id; }

// --- which pools there are ------------------------------------------------------------------------

static int default_pool(int device, struct gp_handle **pool) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    GP_ROUTE(device);
    int status = GP_SUCCESS;
    pthread_mutex_lock(&pool_lock);
    if (default_pools[device] == NULL) {
        struct gp_handle *made = gp_make(GP_POOL);
        status = made == NULL ? GP_OUT_OF_MEMORY : GP_SUCCESS;
        if (made != NULL) {
            made->device = device;
            status = gp_call_pool_default(made->id, gp_server_device(device));
            if (status == GP_SUCCESS) default_pools[device] = made;
            if (status != GP_SUCCESS) gp_end(made);
        }
    }
    *pool = default_pools[device];
    pthread_mutex_unlock(&pool_lock);
    return status;
}

static int tell_default(void **pool, int device) {
    struct gp_handle *found;
    if (pool == NULL) return GP_INVALID_VALUE;
    GP_CHECK(default_pool(device, &found));
    *pool = found;
    return GP_SUCCESS;
}

static int tell_current(void **pool, int device) {
    GP_CHECK(tell_default(pool, device));
    pthread_mutex_lock(&pool_lock);
    if (current_pools[device] != NULL) *pool = current_pools[device];
    pthread_mutex_unlock(&pool_lock);
    return GP_SUCCESS;
}

static int set_current(int device, void *pool) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    GP_ROUTE(device);
    GP_CHECK(gp_check(pool, GP_POOL));
    if (((struct gp_handle *)pool)->device != device) return GP_INVALID_DEVICE;
    GP_CHECK(gp_call_pool_use(gp_server_device(device), id_of(pool)));
    pthread_mutex_lock(&pool_lock);
    current_pools[device] = pool;
    pthread_mutex_unlock(&pool_lock);
    return GP_SUCCESS;
}

// Pools by location, since CUDA 13: only those of devices, for memory as cuMemAlloc gives it.

static int check_location(const struct location *location, int type) {
    if (location == NULL) return GP_INVALID_VALUE;
    return location->type == ON_DEVICE && type == PINNED ? GP_SUCCESS : GP_NOT_SUPPORTED;
}

GP_EXPORT int cuMemGetDefaultMemPool(void **pool, const struct location *location, int type) {
    GP_CHECK(check_location(location, type));
    return tell_default(pool, location->id);
}

GP_EXPORT int cuMemGetMemPool(void **pool, const struct location *location, int type) {
    GP_CHECK(check_location(location, type));
    return tell_current(pool, location->id);
}

GP_EXPORT int cuMemSetMemPool(const struct location *location, int type, void *pool) {
    GP_CHECK(check_location(location, type));
    return set_current(location->id, pool);
}

GP_EXPORT int cuMemPoolCreate(void **pool, const struct pool_properties *properties) {
    GP_CHECK(gp_ready());
    if (pool == NULL || properties == NULL) return GP_INVALID_VALUE;
    int place = properties->location.type, handles = properties->handles;
    if (place < ON_DEVICE || place > ON_DEVICE + 3 || handles & ~(FILE_DESCRIPTOR | FABRIC)) {
        return GP_INVALID_VALUE;
    }
    if (properties->type != PINNED || place != ON_DEVICE) return GP_NOT_SUPPORTED;
    GP_CHECK(gp_check_device(properties->location.id));
    GP_ROUTE(properties->location.id);
    if (properties->handles & ~FILE_DESCRIPTOR) return GP_NOT_SUPPORTED;
    struct gp_handle *made = gp_make(GP_POOL);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    made->device = properties->location.id;
    uint64_t device = (uint64_t)gp_server_device(made->device);
    int status = gp_call_pool_create(made->id, device, properties->size_max, properties->handles);
    if (status != GP_SUCCESS) {
        gp_end(made);
        return status;
    }
    *pool = made;
    return GP_SUCCESS;
}

GP_EXPORT int cuMemPoolDestroy(void *pool) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(pool, GP_POOL));
    GP_ON(pool);
    struct gp_handle *known = pool;
    pthread_mutex_lock(&pool_lock);
    bool made = known != default_pools[known->device];
    if (made && current_pools[known->device] == known) current_pools[known->device] = NULL;
    pthread_mutex_unlock(&pool_lock);
    if (!made) return GP_INVALID_VALUE;
    int status = gp_post_pool_destroy(known->id);
    gp_end(known);
    return status;
}

// --- what they are like ---------------------------------------------------------------------------

#define POOL_VALUE_SIZE(attribute) ((attribute) <= 3 ? 4 : 8)

GP_EXPORT int cuMemPoolGetAttribute(void *pool, int attribute, void *value) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(pool, GP_POOL));
    GP_ON(pool);
    if (value == NULL || attribute < 1 || attribute > 8) return GP_INVALID_VALUE;
    uint64_t reply[1] = {0};
    GP_CHECK(gp_call_pool_get(id_of(pool), attribute, reply));
    memcpy(value, reply, POOL_VALUE_SIZE(attribute));
    return GP_SUCCESS;
}

GP_EXPORT int cuMemPoolSetAttribute(void *pool, int attribute, const void *value) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(pool, GP_POOL));
    GP_ON(pool);
    if (value == NULL || attribute < 1 || attribute > 8) return GP_INVALID_VALUE;
    uint64_t wanted = 0;
    memcpy(&wanted, value, POOL_VALUE_SIZE(attribute));
    return gp_call_pool_set(id_of(pool), attribute, wanted);
}

GP_EXPORT int cuMemPoolTrimTo(void *pool, size_t size) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(pool, GP_POOL));
    GP_ON(pool);
    return gp_post_pool_trim(id_of(pool), size);
}

GP_EXPORT int cuMemPoolSetAccess(void *pool, const struct access *access, size_t count) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(pool, GP_POOL));
    GP_ON(pool);
    if (access == NULL || count == 0) return GP_INVALID_VALUE;
    for (size_t at = 0; at < count; at++) {
        if (access[at].location.type != ON_DEVICE) return GP_INVALID_VALUE;
        GP_CHECK(gp_check_device(access[at].location.id));
        if (gp_several && !gp_reaches(access[at].location.id)) return GP_INVALID_DEVICE;
    }
    for (size_t at = 0; at < count; at++) {
        uint64_t device = (uint64_t)gp_server_device(access[at].location.id);
        GP_CHECK(gp_call_pool_set_access(id_of(pool), device, access[at].flags));
    }
    return GP_SUCCESS;
}

GP_EXPORT int cuMemPoolGetAccess(int *flags, void *pool, const struct location *location) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(pool, GP_POOL));
    GP_ON(pool);
    if (flags == NULL || location == NULL || location->type != ON_DEVICE) return GP_INVALID_VALUE;
    GP_CHECK(gp_check_device(location->id));
    *flags = 0;
    if (gp_several && !gp_reaches(location->id)) return GP_SUCCESS;
    uint64_t reply[1] = {0};
    GP_CHECK(gp_call_pool_get_access(id_of(pool), gp_server_device(location->id), reply));
    *flags = (int)reply[0];
    return GP_SUCCESS;
}

// Memory of a pool: without a reservation of its addresses here, for they come again and again.
static int add_pooled(uint64_t start, uint64_t size, int device, struct gp_handle *pool) {
    struct gp_range range = {start, size, GP_DEVICE_MEMORY, device, GP_OF_POOL, 0, pool, false};
    return gp_add_range(range);
}

void *gp_pool_of(const struct gp_range *range) {
    return range->kind == GP_DEVICE_MEMORY && range->flags & GP_OF_POOL ? range->detail : NULL;
}

// --- other processes ------------------------------------------------------------------------------

GP_EXPORT int cuMemPoolExportToShareableHandle(void *handle, void *pool, int type,
                                               unsigned long long flags) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(pool, GP_POOL));
    if (handle == NULL || flags != 0) return GP_INVALID_VALUE;
    if (type != FILE_DESCRIPTOR) return GP_NOT_SUPPORTED;
    GP_ON(pool);
    uint64_t token[GP_TOKEN_WORDS];
    gp_shares = 1;
    GP_CHECK(gp_call_ipc_export_pool(id_of(pool), token));
    return gp_make_descriptor(handle, GP_SHARED_POOL, token);
}

GP_EXPORT int cuMemPoolImportFromShareableHandle(void **pool, void *handle, int type,
                                                 unsigned long long flags) {
    GP_CHECK(gp_ready());
    if (pool == NULL || flags != 0) return GP_INVALID_VALUE;
    if (type != FILE_DESCRIPTOR) return GP_NOT_SUPPORTED;
    uint64_t token[GP_TOKEN_WORDS], reply[1] = {0};
    GP_CHECK(gp_read_descriptor((int)(intptr_t)handle, GP_SHARED_POOL, token));
    struct gp_handle *made = gp_make(GP_POOL);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    gp_shares = 1;
    int status = gp_call_ipc_import_pool(made->id, token, reply);
    if (status != GP_SUCCESS) {
        gp_end(made);
        return status;
    }
    made->device = gp_shared_device(reply[0]);
    *pool = made;
    return GP_SUCCESS;
}

GP_EXPORT int cuMemPoolExportPointer(struct gp_ticket *data, uint64_t address) {
    GP_CHECK(gp_ready());
    struct gp_range range;
    if (data == NULL || !gp_find_range(address, &range)) return GP_INVALID_VALUE;
    if (range.start != address || !(range.flags & GP_OF_POOL)) return GP_INVALID_VALUE;
    GP_ROUTE(range.device);
    uint64_t token[GP_TOKEN_WORDS];
    gp_shares = 1;
    GP_CHECK(gp_call_ipc_export_pointer(address, token));
    gp_fill_ticket(data, GP_SHARED_POINTER, token);
    return GP_SUCCESS;
}

GP_EXPORT int cuMemPoolImportPointer(uint64_t *address, void *pool, const struct gp_ticket *data) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(pool, GP_POOL));
    if (address == NULL || data == NULL) return GP_INVALID_VALUE;
    if (!gp_is_ticket(data, GP_SHARED_POINTER)) return GP_INVALID_VALUE;
    GP_ON(pool);
    uint64_t reply[2] = {0};
    gp_shares = 1;
    GP_CHECK(gp_call_ipc_import_pointer(id_of(pool), data->token, reply));
    int device = ((struct gp_handle *)pool)->device;
    *address = reply[0];
    // Imported once more, it has one more entry, and is there until all of them are freed.
    return add_pooled(reply[0], reply[1], device, pool);
}

// --- allocation -----------------------------------------------------------------------------------

// A pool of NULL is the device's.
static int allocate_async(uint64_t *address, size_t size, struct gp_handle *pool, void *stream) {
    GP_ENTER_ON(stream);
    GP_ON_STREAM(stream);
    if (address == NULL) return GP_INVALID_VALUE;
    uint64_t id;
    GP_CHECK(gp_stream_id(stream, &id));
    int device = gp_current_device();
    if (gp_capture_of(stream)) {
        // The graph owns the memory; the pool says no more than where it is.
        if (pool != NULL && pool->device != device) return GP_NOT_SUPPORTED;
        return gp_hooks.capture_allocate(address, size, stream);
    }
    gp_free_kept();
    uint64_t reply[1] = {0};
    GP_CHECK(gp_call_allocate_async(size, pool == NULL ? 0 : pool->id, id, reply));
    *address = reply[0];
    if (size == 0) return GP_SUCCESS;
    void *from = pool;
    if (from == NULL) GP_CHECK(tell_current(&from, device));
    return add_pooled(reply[0], size, device, from);
}

GP_EXPORT int cuMemAllocFromPoolAsync(uint64_t *address, size_t size, void *pool, void *stream) {
    GP_CHECK(gp_check(pool, GP_POOL));
    GP_ON(stream);
    GP_REACH(pool);
    return allocate_async(address, size, pool, stream);
}

#define GP_FORWARDS_POOL
#include "generated_forwards.h"
