// Virtual memory management: physical memory, reserved addresses, and the mappings of both.
#define _GNU_SOURCE
#include "core.h"
#include "ipc.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

// CUmemLocationType.
enum { ON_DEVICE = 1, ON_HOST, ON_NODE, ON_NEAREST_NODE };

#define HOST_NODE 134      // CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID
#define NODES_OFFERED 141  // CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
#define HOST_OFFERED 145   // CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
#define PINNED 1           // CU_MEM_ALLOCATION_TYPE_PINNED
#define FILE_DESCRIPTOR 1  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define FABRIC 8           // CU_MEM_HANDLE_TYPE_FABRIC
#define READ_WRITE 3       // CU_MEM_ACCESS_FLAGS_PROT_READWRITE

struct location {
    int type, id;
};

// CUmemAllocationProp.
struct properties {
    int type, handles;
    struct location location;
    void *windows;
    unsigned char flags[8];
};

// CUmemAccessDesc.
struct access {
    struct location location;
    int flags;
};

// Physical memory. The program's references and the mappings keep it, as with CUDA.
struct physical {
    struct properties properties;
    size_t size;
    unsigned long references, mappings;
    int file;  // its bytes, if it is the host's
};

struct reservation {
    struct reservation *next;
    uint64_t start, size;
    unsigned long mappings;
    int device;  // one of the server that has reserved it
    bool held;  // the same addresses are reserved in this process
};

// The detail of a range of GP_VIRTUAL_MEMORY, or of GP_HOST_MEMORY with the flag GP_VIRTUAL_HOST.
struct mapping {
    struct gp_handle *handle;
    unsigned char access[GP_DEVICES_MAX], host_access;
};

static pthread_mutex_t virtual_lock = PTHREAD_MUTEX_INITIALIZER;  // all of the above
static struct reservation *reservations;

static struct gp_handle *physical_of(uint64_t handle) {
    void *known = (void *)(uintptr_t)handle;
    return gp_check(known, GP_PHYSICAL) == GP_SUCCESS ? known : NULL;
}

static struct reservation *reservation_of(uint64_t address, uint64_t size) {
    for (struct reservation *at = reservations; at != NULL; at = at->next) {
        if (address < at->start || size > at->size) continue;
        if (address - at->start <= at->size - size) return at;
    }
    return NULL;
}

static int device_at(const struct location *location) {
    return location->type == ON_DEVICE ? gp_check_device(location->id) : GP_NOT_SUPPORTED;
}

static bool is_host(const struct location *location) {
    return location->type >= ON_HOST && location->type <= ON_NEAREST_NODE;
}

// Memory of the host lies in a file here, for it may be mapped in other places in turn. Where it is mapped it
// is as other pinned memory: the server has a mirror once a kernel sees it.
static int create_host(uint64_t *handle, size_t size, const struct properties *properties) {
    int device = gp_current_device();
    if (device < 0) device = 0;
    const struct gp_device *of = &gp.devices[device];
    const struct location *location = &properties->location;
    if (!of->attributes[location->type == ON_HOST ? HOST_OFFERED : NODES_OFFERED]) return GP_NOT_SUPPORTED;
    bool named = location->type == ON_NODE && location->id != 0;
    if (named && location->id != of->attributes[HOST_NODE]) return GP_INVALID_VALUE;
    if (size % of->granularity[0] != 0) return GP_INVALID_VALUE;
    if (properties->handles != 0) return GP_NOT_SUPPORTED;
    struct gp_handle *made = gp_make(GP_PHYSICAL);
    struct physical *physical = calloc(1, sizeof *physical);
    int file = memfd_create("gpupool-host", MFD_CLOEXEC);
    if (made == NULL || physical == NULL || file < 0 || ftruncate(file, (off_t)size) != 0) {
        if (made != NULL) gp_end(made);
        if (file >= 0) close(file);
        free(physical);
        return GP_OUT_OF_MEMORY;
    }
    *physical = (struct physical){*properties, size, 1, 0, file};
    made->device = device;
    made->detail = physical;
    *handle = (uint64_t)(uintptr_t)made;
    return GP_SUCCESS;
}

GP_EXPORT int cuMemCreate(uint64_t *handle, size_t size, const struct properties *properties,
                          unsigned long long flags) {
    GP_CHECK(gp_ready());
    if (handle == NULL || properties == NULL || size == 0 || flags != 0) return GP_INVALID_VALUE;
    if (properties->type != PINNED) return GP_INVALID_VALUE;
    if (properties->handles & ~(FILE_DESCRIPTOR | FABRIC)) return GP_INVALID_VALUE;
    if (properties->location.type < ON_DEVICE || properties->location.type > ON_NEAREST_NODE) {
        return GP_INVALID_VALUE;
    }
    if (is_host(&properties->location)) return create_host(handle, size, properties);
    GP_CHECK(device_at(&properties->location));
    if (properties->handles & ~FILE_DESCRIPTOR) return GP_NOT_SUPPORTED;
    GP_ROUTE(properties->location.id);
    struct gp_handle *made = gp_make(GP_PHYSICAL);
    struct physical *physical = calloc(1, sizeof *physical);
    if (made == NULL || physical == NULL) {
        if (made != NULL) gp_end(made);
        free(physical);
        return GP_OUT_OF_MEMORY;
    }
    physical->properties = *properties;
    physical->references = 1;
    made->device = properties->location.id;
    made->detail = physical;
    physical->size = size;
    uint64_t device = (uint64_t)gp_server_device(made->device);
    gp_free_kept();
    int status = gp_call_virtual_create(made->id, size, device, properties->handles);
    if (status != GP_SUCCESS) {
        gp_end(made);
        free(physical);
        return status;
    }
    *handle = (uint64_t)(uintptr_t)made;
    return GP_SUCCESS;
}

// With virtual_lock held.
static void end_unused(struct gp_handle *handle) {
    struct physical *physical = handle->detail;
    if (physical->references != 0 || physical->mappings != 0) return;
    if (is_host(&physical->properties.location)) {
        close(physical->file);
    } else {
        GP_ON(handle);
        gp_post_virtual_release(handle->id);
    }
    free(physical);
    gp_end(handle);
}

GP_EXPORT int cuMemRelease(uint64_t handle) {
    GP_CHECK(gp_ready());
    pthread_mutex_lock(&virtual_lock);
    struct gp_handle *known = physical_of(handle);
    struct physical *physical = known == NULL ? NULL : known->detail;
    bool held = physical != NULL && physical->references > 0;
    if (held) {
        physical->references--;
        end_unused(known);
    }
    pthread_mutex_unlock(&virtual_lock);
    return held ? GP_SUCCESS : GP_INVALID_VALUE;
}

GP_EXPORT int cuMemGetAllocationPropertiesFromHandle(struct properties *properties,
                                                     uint64_t handle) {
    GP_CHECK(gp_ready());
    if (properties == NULL) return GP_INVALID_VALUE;
    pthread_mutex_lock(&virtual_lock);
    struct gp_handle *known = physical_of(handle);
    if (known != NULL) *properties = ((struct physical *)known->detail)->properties;
    pthread_mutex_unlock(&virtual_lock);
    return known != NULL ? GP_SUCCESS : GP_INVALID_VALUE;
}

// --- other processes ------------------------------------------------------------------------------

GP_EXPORT int cuMemExportToShareableHandle(void *shareable, uint64_t handle, int type,
                                           unsigned long long flags) {
    GP_CHECK(gp_ready());
    if (shareable == NULL || flags != 0) return GP_INVALID_VALUE;
    if (type != FILE_DESCRIPTOR) return GP_NOT_SUPPORTED;
    pthread_mutex_lock(&virtual_lock);
    struct gp_handle *known = physical_of(handle);
    struct physical *physical = known == NULL ? NULL : known->detail;
    uint64_t size = 0, token[GP_TOKEN_WORDS];
    bool fits = physical != NULL && physical->properties.handles & FILE_DESCRIPTOR;
    if (fits) size = physical->size;
    pthread_mutex_unlock(&virtual_lock);
    if (!fits) return GP_INVALID_VALUE;
    GP_ON(known);
    gp_shares = 1;
    GP_CHECK(gp_call_ipc_export_physical(known->id, size, token));
    return gp_make_descriptor(shareable, GP_SHARED_PHYSICAL, token);
}

GP_EXPORT int cuMemImportFromShareableHandle(uint64_t *handle, void *shareable, int type) {
    GP_CHECK(gp_ready());
    if (handle == NULL) return GP_INVALID_VALUE;
    if (type != FILE_DESCRIPTOR) return GP_NOT_SUPPORTED;
    uint64_t token[GP_TOKEN_WORDS], reply[2] = {0};
    GP_CHECK(gp_read_descriptor((int)(intptr_t)shareable, GP_SHARED_PHYSICAL, token));
    struct gp_handle *made = gp_make(GP_PHYSICAL);
    struct physical *physical = calloc(1, sizeof *physical);
    int status = made == NULL || physical == NULL ? GP_OUT_OF_MEMORY : GP_SUCCESS;
    if (status == GP_SUCCESS) {
        gp_shares = 1;
        status = gp_call_ipc_import_physical(made->id, token, reply);
    }
    if (status != GP_SUCCESS) {
        if (made != NULL) gp_end(made);
        free(physical);
        return status;
    }
    made->device = gp_shared_device(reply[1]);
    made->detail = physical;
    *physical = (struct physical){
        .properties = {PINNED, FILE_DESCRIPTOR, {ON_DEVICE, made->device}, NULL, {0}},
        .size = reply[0],
        .references = 1,
    };
    *handle = (uint64_t)(uintptr_t)made;
    return GP_SUCCESS;
}

// --- addresses ------------------------------------------------------------------------------------

GP_EXPORT int cuMemAddressReserve(uint64_t *address, size_t size, size_t alignment, uint64_t wish,
                                  unsigned long long flags) {
    GP_CHECK(gp_ready());
    if (address == NULL || size == 0 || flags != 0) return GP_INVALID_VALUE;
    struct reservation *made = calloc(1, sizeof *made);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    uint64_t reply[1] = {0};
    int status = gp_call_virtual_reserve(size, alignment, wish, reply);
    if (status != GP_SUCCESS) {
        free(made);
        return status;
    }
    // As with other device addresses: memory of this process must not come to lie there.
    void *wanted = (void *)(uintptr_t)reply[0];
    void *got = mmap(wanted, size, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != wanted && got != MAP_FAILED) munmap(got, size);
    int device = gp_first_device(gp_here());
    *made = (struct reservation){NULL, reply[0], size, 0, device, got == wanted};
    pthread_mutex_lock(&virtual_lock);
    made->next = reservations;
    reservations = made;
    pthread_mutex_unlock(&virtual_lock);
    *address = reply[0];
    return GP_SUCCESS;
}

GP_EXPORT int cuMemAddressFree(uint64_t address, size_t size) {
    GP_CHECK(gp_ready());
    pthread_mutex_lock(&virtual_lock);
    struct reservation **at = &reservations;
    while (*at != NULL && (*at)->start != address) at = &(*at)->next;
    struct reservation *found = *at;
    bool fits = found != NULL && found->size == size && found->mappings == 0;
    if (fits) *at = found->next;
    pthread_mutex_unlock(&virtual_lock);
    if (!fits) return GP_INVALID_VALUE;
    if (found->held) munmap((void *)(uintptr_t)address, size);
    GP_ROUTE(found->device);
    free(found);
    return gp_post_virtual_return(address, size);
}

// --- mappings -------------------------------------------------------------------------------------

// Map the bytes of the host's memory to reserved addresses, or nothing any more (file -1).
static int map_here(uint64_t address, size_t size, int file) {
    void *at = (void *)(uintptr_t)address;
    int how = (file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED) | MAP_FIXED;
    int access = file < 0 ? PROT_NONE : PROT_READ | PROT_WRITE;
    return mmap(at, size, access, how, file, 0) == at ? GP_SUCCESS : GP_OUT_OF_MEMORY;
}

bool gp_is_virtual(const struct gp_range *range) {
    bool host = range->kind == GP_HOST_MEMORY && range->flags & GP_VIRTUAL_HOST;
    return host || range->kind == GP_VIRTUAL_MEMORY;
}

// With virtual_lock held, whose order with the line is the order of the calls.
static int map_physical(uint64_t address, size_t size, struct gp_handle *handle) {
    struct reservation *reservation = reservation_of(address, size);
    if (reservation == NULL) return GP_INVALID_VALUE;
    struct physical *physical = handle->detail;
    bool host = is_host(&physical->properties.location);
    GP_ON(handle);
    if (gp_several && !gp_reaches(reservation->device)) return GP_INVALID_VALUE;
    if (host && (size != physical->size || gp_range_within(address, size))) return GP_INVALID_VALUE;
    if (host && !reservation->held) return GP_OUT_OF_MEMORY;
    struct mapping *mapping = calloc(1, sizeof *mapping);
    if (mapping == NULL) return GP_OUT_OF_MEMORY;
    mapping->handle = handle;
    int status = host ? map_here(address, size, physical->file)
                      : gp_call_virtual_map(address, size, handle->id);
    if (status == GP_SUCCESS) {
        struct gp_range range = {address, size, host ? GP_HOST_MEMORY : GP_VIRTUAL_MEMORY, handle->device,
                                 host ? GP_VIRTUAL_HOST : 0, 0, mapping, false};
        status = gp_add_range(range);
    }
    if (status != GP_SUCCESS) {
        free(mapping);
        return status;
    }
    reservation->mappings++;
    physical->mappings++;
    return GP_SUCCESS;
}

GP_EXPORT int cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle,
                       unsigned long long flags) {
    GP_CHECK(gp_ready());
    if (size == 0 || offset != 0 || flags != 0) return GP_INVALID_VALUE;
    pthread_mutex_lock(&virtual_lock);
    struct gp_handle *known = physical_of(handle);
    int status = known == NULL ? GP_INVALID_VALUE : map_physical(address, size, known);
    pthread_mutex_unlock(&virtual_lock);
    return status;
}

unsigned long long gp_handles_allowed(const struct gp_range *range) {
    unsigned long long found = 0;
    struct gp_range now;
    if (range->kind != GP_VIRTUAL_MEMORY) return 0;
    pthread_mutex_lock(&virtual_lock);
    if (gp_find_range(range->start, &now) && now.serial == range->serial) {
        const struct mapping *mapping = now.detail;
        found = (unsigned)((struct physical *)mapping->handle->detail)->properties.handles;
    }
    pthread_mutex_unlock(&virtual_lock);
    return found;
}

// Whether whole mappings fill these addresses without a gap.
static bool is_mapped(uint64_t address, size_t size) {
    struct gp_range range;
    if (size == 0 || size > UINT64_MAX - address) return false;
    uint64_t at = address, end = address + size;
    for (; at < end; at += range.size) {
        if (!gp_find_range(at, &range) || !gp_is_virtual(&range)) return false;
        if (range.start != at || range.size > end - at) return false;
    }
    return true;
}

// How many bytes from an address on are mapped to memory of one kind.
static uint64_t alike(uint64_t address, uint64_t end, bool *host) {
    struct gp_range range;
    gp_find_range(address, &range);
    *host = range.kind == GP_HOST_MEMORY;
    uint64_t at = address + range.size;
    for (; at < end; at += range.size) {
        gp_find_range(at, &range);
        if ((range.kind == GP_HOST_MEMORY) != *host) break;
    }
    return at - address;
}

GP_EXPORT int cuMemUnmap(uint64_t address, size_t size) {
    GP_CHECK(gp_ready());
    pthread_mutex_lock(&virtual_lock);
    bool fits = is_mapped(address, size), host;
    for (uint64_t at = address, part; fits && at < address + size; at += part) {
        part = alike(at, address + size, &host);
        GP_ON_ADDRESS(at);
        if (!host) gp_post_virtual_unmap(at, part);
    }
    for (uint64_t at = address; fits && at < address + size;) {
        struct gp_range range;
        gp_find_range(at, &range);
        if (range.kind == GP_HOST_MEMORY) gp_end_mirrors(&range);
        if (range.kind == GP_HOST_MEMORY) map_here(at, range.size, -1);
        gp_remove_range(at, &range);
        struct mapping *mapping = range.detail;
        reservation_of(at, range.size)->mappings--;
        ((struct physical *)mapping->handle->detail)->mappings--;
        end_unused(mapping->handle);
        free(mapping);
        at += range.size;
    }
    pthread_mutex_unlock(&virtual_lock);
    return fits ? GP_SUCCESS : GP_INVALID_VALUE;
}

static int set_access(uint64_t address, size_t size, bool host, const struct access *access) {
    if (access->flags < 0 || access->flags > READ_WRITE) return GP_INVALID_VALUE;
    bool here = host && is_host(&access->location);
    if (!here) GP_CHECK(device_at(&access->location));
    int device = access->location.id;
    GP_ON_ADDRESS(address);
    if (!here && gp_several && !gp_reaches(device)) return GP_INVALID_DEVICE;
    if (!host) {
        uint64_t server = (uint64_t)gp_server_device(device);
        GP_CHECK(gp_call_virtual_access(address, size, server, access->flags));
    }
    struct gp_range range;
    for (uint64_t at = address; at < address + size; at += range.size) {
        gp_find_range(at, &range);
        struct mapping *mapping = range.detail;
        *(here ? &mapping->host_access : &mapping->access[device]) = (unsigned char)access->flags;
    }
    return GP_SUCCESS;
}

GP_EXPORT int cuMemSetAccess(uint64_t address, size_t size, const struct access *access,
                             size_t count) {
    GP_CHECK(gp_ready());
    if (access == NULL || count == 0) return GP_INVALID_VALUE;
    pthread_mutex_lock(&virtual_lock);
    int status = is_mapped(address, size) ? GP_SUCCESS : GP_INVALID_VALUE;
    bool host;
    for (uint64_t at = address, part; at < address + size && status == GP_SUCCESS; at += part) {
        part = alike(at, address + size, &host);
        for (size_t one = 0; one < count && status == GP_SUCCESS; one++) {
            status = set_access(at, part, host, access + one);
        }
    }
    pthread_mutex_unlock(&virtual_lock);
    return status;
}

// Find the mapping at an address; virtual_lock is held.
static struct mapping *mapping_at(uint64_t address) {
    struct gp_range range;
    bool found = gp_find_range(address, &range) && gp_is_virtual(&range);
    return found ? range.detail : NULL;
}

GP_EXPORT int cuMemGetAccess(unsigned long long *flags, const struct location *location,
                             uint64_t address) {
    GP_CHECK(gp_ready());
    if (flags == NULL || location == NULL) return GP_INVALID_VALUE;
    if (!is_host(location)) GP_CHECK(device_at(location));
    pthread_mutex_lock(&virtual_lock);
    struct mapping *mapping = mapping_at(address);
    if (mapping != NULL) *flags = is_host(location) ? mapping->host_access : mapping->access[location->id];
    pthread_mutex_unlock(&virtual_lock);
    return mapping != NULL ? GP_SUCCESS : GP_INVALID_VALUE;
}

GP_EXPORT int cuMemRetainAllocationHandle(uint64_t *handle, void *address) {
    GP_CHECK(gp_ready());
    if (handle == NULL) return GP_INVALID_VALUE;
    pthread_mutex_lock(&virtual_lock);
    struct mapping *mapping = mapping_at((uint64_t)(uintptr_t)address);
    if (mapping != NULL) {
        ((struct physical *)mapping->handle->detail)->references++;
        *handle = (uint64_t)(uintptr_t)mapping->handle;
    }
    pthread_mutex_unlock(&virtual_lock);
    return mapping != NULL ? GP_SUCCESS : GP_INVALID_VALUE;
}
