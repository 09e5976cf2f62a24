/* Memory: device addresses in a reserved, inaccessible range; their bytes elsewhere in this process.
 *
 * Nothing is ever mapped at a device address, so a program that dereferences one dies, as with a
 * GPU. Addresses are handed out in rising order and reused only after the whole range went by, so
 * a stale pointer is found to be one. The bytes live in a sparse memory file, mapped wherever the
 * kernel likes (region.storage); managed and host memory are mapped at their own address.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARENA_HINT ((void *)0x200000000000)
#define ARENA_BYTES ((size_t)1024 * GIB)
#define FILE_BYTES ((off_t)1 << 46)
#define WORKER_FILE_BYTES ((off_t)1 << 36) /* what a confined worker may make of a file */
#define ALIGNMENT ((size_t)512)
#define GRANULARITY (2 * MIB)
#define PAGE ((size_t)4096)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct region *regions; /* sorted by base */
static size_t region_count, region_room;
static CUdeviceptr arena, cursor;
static int memory_file = -1;
static off_t file_next;
static uint64_t next_id = 1;

static size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

void memory_open(void) {
    void *range = mmap(ARENA_HINT, ARENA_BYTES, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    memory_file = memfd_create("fake-cuda-memory", MFD_CLOEXEC);
    bool sized = ftruncate(memory_file, FILE_BYTES) == 0 ||
                 ftruncate(memory_file, WORKER_FILE_BYTES) == 0;
    if (range == MAP_FAILED || memory_file < 0 || !sized) {
        perror("fake libcuda: reserving memory");
        abort();
    }
    arena = cursor = (CUdeviceptr)(uintptr_t)range;
}

/* ---- regions; all below with `lock` held ---- */

static size_t region_after(CUdeviceptr pointer) { /* index of the first region that ends after it */
    size_t low = 0, high = region_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (regions[middle].base + regions[middle].size > pointer)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static struct region *region_at(CUdeviceptr pointer) {
    size_t index = region_after(pointer);
    return index < region_count && regions[index].base <= pointer ? &regions[index] : NULL;
}

/* Counts what keeps a process from being suspended, or brought back. */
static void tell(const struct region *region, int by) {
    struct process_use *use = use_slot();
    if (use != NULL && region->kind == REGION_MANAGED)
        atomic_fetch_add(&use->managed, (uint32_t)by);
    if (use != NULL && region->imported)
        atomic_fetch_add(&use->imported, (uint32_t)by);
}

static struct region *region_insert(const struct region *region) {
    tell(region, 1);
    if (region_count == region_room) {
        region_room = region_room ? region_room * 2 : 256;
        regions = realloc(regions, region_room * sizeof *regions);
        if (regions == NULL)
            abort();
    }
    size_t index = region_after(region->base);
    memmove(&regions[index + 1], &regions[index], (region_count - index) * sizeof *regions);
    regions[index] = *region;
    regions[index].id = next_id++;
    region_count++;
    return &regions[index];
}

static void region_remove(struct region *region) {
    tell(region, -1);
    size_t index = (size_t)(region - regions);
    memmove(region, region + 1, (region_count - index - 1) * sizeof *regions);
    region_count--;
}

static bool range_is_free(CUdeviceptr base, size_t size) {
    size_t index = region_after(base);
    return index == region_count || regions[index].base >= base + size;
}

/* The next free addresses; a page more than asked stays unused behind each block. */
static CUdeviceptr address_take(size_t size, size_t alignment) {
    size_t whole = round_up(size, PAGE) + PAGE;
    for (int turn = 0; turn < 2; turn++) {
        CUdeviceptr base = round_up(cursor, alignment);
        while (base + whole <= arena + ARENA_BYTES) {
            if (range_is_free(base, whole)) {
                cursor = base + whole;
                return base;
            }
            size_t index = region_after(base);
            base = round_up(regions[index].base + regions[index].size + PAGE, alignment);
        }
        cursor = arena;
    }
    return 0;
}

static off_t file_take(size_t bytes) { /* never given twice, so its bytes are always zeros */
    off_t offset = file_next;
    file_next += (off_t)round_up(bytes, PAGE);
    return offset;
}

static void file_return(off_t offset, size_t bytes) {
    fallocate(memory_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset,
              (off_t)round_up(bytes, PAGE));
}

static struct backing *backing_new(size_t bytes, int dev) {
    struct backing *backing = zeroed(sizeof *backing);
    *backing = (struct backing){
        .id = next_id++, .size = bytes, .offset = file_take(bytes), .dev = dev, .uses = 1};
    return backing;
}

static void backing_drop(struct backing *backing) {
    if (--backing->uses > 0)
        return;
    if (backing->imported) {
        close(backing->descriptor);
    } else {
        if (!backing->shared)
            file_return(backing->offset, backing->size);
        device_refund(backing->dev, backing->size);
    }
    backing->id = 0; /* the struct stays, so that a stale handle is seen to be one */
}

static char *file_map(void *at, size_t bytes, int file, off_t offset, int fixed) {
    void *mapped = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | fixed,
                        file, offset);
    return mapped == MAP_FAILED ? NULL : mapped;
}

static bool mapping_covers(const struct region *region, size_t offset, size_t bytes) {
    size_t end = offset + bytes;
    while (offset < end) {
        const struct mapping *found = NULL;
        for (const struct mapping *one = region->mappings; one; one = one->next)
            if (one->offset <= offset && offset < one->offset + one->size && one->access != 0)
                found = one;
        if (found == NULL)
            return false;
        offset = found->offset + found->size;
    }
    return true;
}

static char *storage_locked(CUdeviceptr pointer, size_t bytes, bool *known) {
    struct region *region = region_at(pointer);
    *known = region != NULL || (pointer >= arena && pointer < arena + ARENA_BYTES);
    if (region == NULL)
        return NULL;
    size_t offset = pointer - region->base;
    if (bytes > region->size - offset)
        return NULL;
    if (region->kind == REGION_RESERVED && !mapping_covers(region, offset, bytes))
        return NULL;
    return region->storage + offset;
}

/* ---- what the other files call ---- */

bool memory_find(CUdeviceptr pointer, struct region *copy) {
    pthread_mutex_lock(&lock);
    struct region *region = region_at(pointer);
    if (region != NULL)
        *copy = *region;
    pthread_mutex_unlock(&lock);
    return region != NULL;
}

char *memory_storage(CUdeviceptr pointer, size_t bytes) {
    bool known;
    pthread_mutex_lock(&lock);
    char *storage = storage_locked(pointer, bytes, &known);
    pthread_mutex_unlock(&lock);
    return storage;
}

char *memory_any(CUdeviceptr pointer, size_t bytes) {
    bool known;
    pthread_mutex_lock(&lock);
    char *storage = storage_locked(pointer, bytes, &known);
    pthread_mutex_unlock(&lock);
    return known ? storage : (char *)(uintptr_t)pointer;
}

bool memory_is_pageable(const void *pointer) {
    struct region region;
    return !memory_find((CUdeviceptr)(uintptr_t)pointer, &region);
}

static void pool_take(CUmemoryPool pool, size_t bytes) {
    uint64_t *used = &pool->attributes[CU_MEMPOOL_ATTR_USED_MEM_CURRENT];
    uint64_t *reserved = &pool->attributes[CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT];
    *used += bytes;
    *reserved = *used + pool->cached;
    if (*used > pool->attributes[CU_MEMPOOL_ATTR_USED_MEM_HIGH])
        pool->attributes[CU_MEMPOOL_ATTR_USED_MEM_HIGH] = *used;
    if (*reserved > pool->attributes[CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH])
        pool->attributes[CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH] = *reserved;
}

/* Freed bytes stay charged to the device up to the pool's release threshold. */
static void pool_give(CUmemoryPool pool, size_t bytes) {
    pool->attributes[CU_MEMPOOL_ATTR_USED_MEM_CURRENT] -= bytes;
    uint64_t used = pool->attributes[CU_MEMPOOL_ATTR_USED_MEM_CURRENT];
    uint64_t threshold = pool->attributes[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD];
    size_t kept = pool->cached + bytes;
    size_t room = threshold > used ? (size_t)(threshold - used) : 0;
    if (pool->shareable) /* as the programming guide says */
        room = kept;
    size_t cached = kept < room ? kept : room;
    device_refund(pool->dev, kept - cached);
    pool->cached = cached;
    pool->attributes[CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT] = used + cached;
}

static CUresult charge(int dev, CUmemoryPool pool, size_t bytes) {
    if (pool == NULL)
        return device_charge(dev, bytes);
    pthread_mutex_lock(&lock);
    size_t reused = pool->cached < bytes ? pool->cached : bytes;
    size_t grown = pool->attributes[CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT] + bytes - reused;
    bool fits = pool->size_max == 0 || grown <= pool->size_max;
    CUresult result = fits ? device_charge(dev, bytes - reused) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        pool->cached -= reused;
        pool_take(pool, bytes);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static void refund(int dev, CUmemoryPool pool, size_t bytes) { /* with `lock` held */
    if (pool == NULL)
        device_refund(dev, bytes);
    else
        pool_give(pool, bytes);
}

/* Managed variables of a module lie side by side: 512 bytes apart with driver 580 on an H200. */
static struct {
    CUdeviceptr next, end;
    off_t offset; /* of `next` in the file */
} variables;

static bool make_room(size_t bytes) { /* with `lock` held */
    CUdeviceptr base = address_take(bytes, PAGE);
    off_t offset = file_take(bytes);
    void *at = (void *)(uintptr_t)base;
    bool mapped = base != 0 && file_map(at, round_up(bytes, PAGE), memory_file, offset, MAP_FIXED);
    variables.next = base;
    variables.end = mapped ? base + bytes : base;
    variables.offset = offset;
    return mapped;
}

bool memory_make_room(size_t bytes) {
    pthread_mutex_lock(&lock);
    bool made = make_room(bytes);
    pthread_mutex_unlock(&lock);
    return made;
}

static bool place_variable(struct region *region) { /* with `lock` held */
    size_t size = round_up(region->size, ALIGNMENT);
    bool taken = variables.end - variables.next < size; /* by a module that is loaded beside it */
    if (taken && !make_room(size))
        return false;
    region->base = variables.next;
    region->storage = (char *)(uintptr_t)region->base;
    region->backing = zeroed(sizeof *region->backing);
    region->backing->offset = variables.offset;
    variables.next += size;
    variables.offset += (off_t)size;
    return true;
}

static bool place(struct region *region) { /* with `lock` held */
    bool managed = region->kind == REGION_MANAGED;
    if (managed && region->internal)
        return place_variable(region);
    region->base = address_take(region->size, PAGE);
    off_t offset = file_take(region->size);
    void *at = managed ? (void *)(uintptr_t)region->base : NULL;
    size_t mapped = round_up(region->size, PAGE);
    if (region->base != 0)
        region->storage = file_map(at, mapped, memory_file, offset, managed ? MAP_FIXED : 0);
    if (region->storage == NULL)
        return false;
    region->backing = zeroed(sizeof *region->backing);
    region->backing->offset = offset;
    return true;
}

static CUresult allocate(struct region *region, CUdeviceptr *pointer) {
    size_t charged = round_up(region->size, ALIGNMENT);
    TRY(charge(region->dev, region->pool, charged));
    region->charged = charged;
    pthread_mutex_lock(&lock);
    if (!place(region)) {
        refund(region->dev, region->pool, charged);
        pthread_mutex_unlock(&lock);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    region_insert(region);
    pthread_mutex_unlock(&lock);
    *pointer = region->base;
    return CUDA_SUCCESS;
}

CUresult memory_allocate(CUcontext ctx, size_t bytes, CUmemoryPool pool, bool internal,
                         CUdeviceptr *pointer) {
    struct region region = {.size = bytes, .kind = REGION_DEVICE, .dev = pool ? pool->dev : ctx->dev,
                            .ctx = ctx, .pool = pool, .internal = internal};
    return allocate(&region, pointer);
}

CUresult memory_allocate_managed(CUcontext ctx, size_t bytes, unsigned flags, bool internal,
                                 CUdeviceptr *pointer) {
    struct region region = {.size = bytes, .kind = REGION_MANAGED, .dev = ctx->dev, .ctx = ctx,
                            .flags = flags, .internal = internal};
    return allocate(&region, pointer);
}

static void unmap_storage(struct region *region) { /* with `lock` held */
    size_t mapped = round_up(region->size, PAGE);
    if (region->kind == REGION_MANAGED && region->internal) { /* its page has others */
        free(region->backing);
        return;
    }
    if (region->kind == REGION_MANAGED)
        mmap(region->storage, mapped, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    else
        munmap(region->storage, mapped);
    if (region->backing != NULL && !region->imported && !region->backing->shared)
        file_return(region->backing->offset, region->size);
    free(region->backing);
}

CUresult memory_release(CUdeviceptr pointer, bool internal) {
    pthread_mutex_lock(&lock);
    struct region *region = region_at(pointer);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (region != NULL && region->base == pointer && region->internal == internal &&
        (region->kind == REGION_DEVICE || region->kind == REGION_MANAGED) &&
        (!region->imported || region->pool != NULL)) {
        if (region->graph) { /* the address stays with the graph */
            result = region->live ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
            region->live = false;
            pthread_mutex_unlock(&lock);
            return result;
        }
        if (!region->imported)
            refund(region->dev, region->pool, region->charged);
        unmap_storage(region);
        region_remove(region);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult memory_graph(CUdeviceptr pointer, bool live) {
    pthread_mutex_lock(&lock);
    struct region *region = region_at(pointer);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (region != NULL && region->base == pointer) {
        region->graph = true;
        region->live = live;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

size_t memory_graph_bytes(int dev, bool live_only) {
    size_t bytes = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < region_count; i++)
        if (regions[i].graph && regions[i].dev == dev && (regions[i].live || !live_only))
            bytes += regions[i].charged;
    pthread_mutex_unlock(&lock);
    return bytes;
}

void memory_release_context(CUcontext ctx) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < region_count;) {
        struct region *region = &regions[i];
        bool freed = region->ctx == ctx && region->kind != REGION_RESERVED;
        if (!freed) {
            i++;
            continue;
        }
        if (region->charged > 0)
            refund(region->dev, region->pool, region->charged);
        if (region->kind != REGION_REGISTERED)
            unmap_storage(region);
        region_remove(region);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- allocation ---- */

API CUresult cuMemGetInfo_v2(size_t *free_, size_t *total) {
    ENTER_CONTEXT(ctx);
    REQUIRE(free_ != NULL && total != NULL);
    size_t used = device_used(ctx->dev);
    *total = devices[ctx->dev].memory;
    *free_ = used < *total ? *total - used : 0;
    return CUDA_SUCCESS;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) {
    ENTER_CONTEXT(ctx);
    REQUIRE(dptr != NULL && bytesize > 0);
    context_kept();
    return memory_allocate(ctx, bytesize, NULL, false, dptr);
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes,
                                size_t Height, unsigned int ElementSizeBytes) {
    ENTER_CONTEXT(ctx);
    REQUIRE(dptr != NULL && pPitch != NULL && WidthInBytes > 0 && Height > 0);
    REQUIRE(ElementSizeBytes == 4 || ElementSizeBytes == 8 || ElementSizeBytes == 16);
    *pPitch = round_up(WidthInBytes, ALIGNMENT);
    return memory_allocate(ctx, *pPitch * Height, NULL, false, dptr);
}

API CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
    ENTER_CONTEXT(ctx);
    REQUIRE(dptr != NULL && bytesize > 0 && (flags == 1 || flags == 2));
    return memory_allocate_managed(ctx, bytesize, flags, false, dptr);
}

API CUresult cuMemFree_v2(CUdeviceptr dptr) {
    ENTER_CONTEXT(ctx);
    if (dptr == 0)
        return CUDA_SUCCESS;
    if (getenv("FAKE_CUDA_LATE_FREES") != NULL) /* as if its thread had been kept from it */
        usleep(50000);
    TRY(context_keep(ctx, context_wait_to_free));
    return memory_release(dptr, false);
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr) {
    ENTER_CONTEXT(ctx);
    struct region region;
    if (!memory_find(dptr, &region))
        return CUDA_ERROR_NOT_FOUND;
    if (pbase != NULL)
        *pbase = region.base;
    if (psize != NULL)
        *psize = region.size;
    return CUDA_SUCCESS;
}

/* ---- host memory ---- */

API CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags) {
    ENTER_CONTEXT(ctx);
    REQUIRE(pp != NULL && bytesize > 0);
    context_kept();
    void *memory = mmap(NULL, round_up(bytesize, PAGE), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct region region = {.base = (CUdeviceptr)(uintptr_t)memory, .size = bytesize,
                            .storage = memory, .kind = REGION_HOST, .dev = ctx->dev, .ctx = ctx,
                            .flags = Flags | CU_MEMHOSTALLOC_DEVICEMAP};
    pthread_mutex_lock(&lock);
    region_insert(&region);
    pthread_mutex_unlock(&lock);
    *pp = memory;
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocHost_v2(void **pp, size_t bytesize) { return cuMemHostAlloc(pp, bytesize, 0); }

static CUresult host_release(void *p, enum region_kind kind, CUresult otherwise) {
    pthread_mutex_lock(&lock);
    struct region *region = region_at((CUdeviceptr)(uintptr_t)p);
    CUresult result = otherwise;
    if (region != NULL && region->storage == p && region->kind == kind) {
        if (kind == REGION_HOST)
            munmap(p, round_up(region->size, PAGE));
        region_remove(region);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

API CUresult cuMemFreeHost(void *p) {
    ENTER_CONTEXT(ctx);
    if (p == NULL)
        return CUDA_SUCCESS;
    TRY(context_keep(ctx, context_wait_to_free));
    return host_release(p, REGION_HOST, CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags) {
    ENTER_CONTEXT(ctx);
    REQUIRE(p != NULL && bytesize > 0);
    struct region region = {.base = (CUdeviceptr)(uintptr_t)p, .size = bytesize, .storage = p,
                            .kind = REGION_REGISTERED, .dev = ctx->dev, .ctx = ctx,
                            .flags = Flags};
    pthread_mutex_lock(&lock);
    bool available = range_is_free(region.base, bytesize);
    if (available)
        region_insert(&region);
    pthread_mutex_unlock(&lock);
    return available ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

API CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags) {
    return cuMemHostRegister_v2(p, bytesize, Flags);
}

API CUresult cuMemHostUnregister(void *p) {
    ENTER_CONTEXT(ctx);
    TRY(context_keep(ctx, context_wait_to_free));
    return host_release(p, REGION_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

static CUresult host_region(void *p, struct region *region) {
    REQUIRE(p != NULL && memory_find((CUdeviceptr)(uintptr_t)p, region));
    REQUIRE(region->kind == REGION_HOST || region->kind == REGION_REGISTERED);
    return CUDA_SUCCESS;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags) {
    ENTER_CONTEXT(ctx);
    REQUIRE(pdptr != NULL && Flags == 0);
    struct region region;
    TRY(host_region(p, &region));
    *pdptr = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p) {
    ENTER_CONTEXT(ctx);
    REQUIRE(pFlags != NULL);
    struct region region;
    TRY(host_region(p, &region));
    *pFlags = region.flags;
    return CUDA_SUCCESS;
}

/* ---- pools ---- */

CUmemoryPool pool_new(int dev) {
    static _Atomic int pools;
    CUmemoryPool pool = zeroed(sizeof *pool);
    pool->magic = MAGIC_POOL;
    pool->dev = dev;
    pool->number = atomic_fetch_add(&pools, 1);
    for (unsigned i = 1; i <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; i++)
        pool->attributes[i] = 1;
    pool->access[dev] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return pool;
}

API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
    ENTER();
    REQUIRE(pool != NULL && poolProps != NULL);
    REQUIRE(poolProps->allocType == CU_MEM_ALLOCATION_TYPE_PINNED);
    if (poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    REQUIRE(poolProps->location.id >= 0 && poolProps->location.id < device_count);
    if ((int)poolProps->handleTypes & ~1)
        return CUDA_ERROR_NOT_SUPPORTED;
    *pool = pool_new(poolProps->location.id);
    (*pool)->size_max = poolProps->maxSize;
    (*pool)->shareable = poolProps->handleTypes != 0;
    return CUDA_SUCCESS;
}

static void pool_trim(CUmemoryPool pool, size_t keep) {
    pthread_mutex_lock(&lock);
    uint64_t used = pool->attributes[CU_MEMPOOL_ATTR_USED_MEM_CURRENT];
    size_t kept = keep > used ? (size_t)(keep - used) : 0;
    if (kept < pool->cached) {
        device_refund(pool->dev, pool->cached - kept);
        pool->cached = kept;
        pool->attributes[CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT] = used + kept;
    }
    pthread_mutex_unlock(&lock);
}

API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    ENTER();
    REQUIRE(IS(pool, MAGIC_POOL) && pool != devices[pool->dev].default_pool);
    pool->shareable = false; /* what is freed from now on goes back */
    pool_trim(pool, 0);
    if (devices[pool->dev].current_pool == pool)
        devices[pool->dev].current_pool = devices[pool->dev].default_pool;
    pool->magic = MAGIC_DEAD;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
    ENTER();
    REQUIRE(IS(pool, MAGIC_POOL));
    /* What was freed in a stream counts as in use until the host has synchronized with it. */
    if (!pool->shareable && !atomic_load(&frees_unseen))
        pool_trim(pool, minBytesToKeep);
    return CUDA_SUCCESS;
}

static bool pool_attribute_is_wide(CUmemPool_attribute attr) {
    return (int)attr >= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
    ENTER();
    REQUIRE(IS(pool, MAGIC_POOL) && value != NULL);
    REQUIRE((int)attr >= 1 && (int)attr <= CU_MEMPOOL_ATTR_USED_MEM_HIGH);
    if (pool_attribute_is_wide(attr))
        *(uint64_t *)value = pool->attributes[attr];
    else
        *(int *)value = (int)pool->attributes[attr];
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
    ENTER();
    REQUIRE(IS(pool, MAGIC_POOL) && value != NULL);
    bool high = (int)attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH ||
                (int)attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    REQUIRE(((int)attr >= 1 && (int)attr <= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) || high);
    if (high)
        REQUIRE(*(uint64_t *)value == 0);
    if (high)
        pool->attributes[attr] = pool->attributes[attr - 1];
    else
        pool->attributes[attr] =
            pool_attribute_is_wide(attr) ? *(uint64_t *)value : (uint64_t)(*(int *)value != 0);
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
    ENTER();
    REQUIRE(IS(pool, MAGIC_POOL) && map != NULL && count > 0);
    for (size_t i = 0; i < count; i++) {
        int dev = map[i].location.id;
        REQUIRE(map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE);
        REQUIRE(dev >= 0 && dev < device_count);
        /* A device keeps the access to its own pool (cuda.h). */
        REQUIRE(dev != pool->dev || map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        if (map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ)
            return CUDA_ERROR_NOT_SUPPORTED; /* as an H200's driver says: all or nothing */
        pool->access[dev] = map[i].flags;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool,
                                CUmemLocation *location) {
    ENTER();
    REQUIRE(flags != NULL && IS(memPool, MAGIC_POOL) && location != NULL);
    REQUIRE(location->type == CU_MEM_LOCATION_TYPE_DEVICE);
    REQUIRE(location->id >= 0 && location->id < device_count);
    *flags = memPool->access[location->id];
    return CUDA_SUCCESS;
}

static CUresult pool_allocate(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream handle) {
    CUcontext ctx = context_peek();
    CUstream stream;
    REQUIRE(dptr != NULL);
    TRY(stream_resolve(ctx, handle, &stream));
    if (bytes == 0) {
        *dptr = 0;
        return CUDA_SUCCESS;
    }
    if (pool == NULL)
        pool = devices[stream->ctx->dev].current_pool;
    /* The address is good at once; only the order of the release matters to the stream. */
    TRY(memory_allocate(stream->ctx, bytes, pool, false, dptr));
    struct work work = {.kind = WORK_ALLOCATE, .memory = {*dptr, bytes}};
    bool captured = stream->capture != NULL;
    TRY(stream_submit(stream, &work));
    return captured ? memory_graph(*dptr, false) : CUDA_SUCCESS;
}

API CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
    ENTER_CONTEXT(ctx);
    return pool_allocate(dptr, bytesize, NULL, hStream);
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                     CUstream hStream) {
    ENTER_CONTEXT(ctx);
    REQUIRE(IS(pool, MAGIC_POOL) && pool->origin == 0);
    return pool_allocate(dptr, bytesize, pool, hStream);
}

API CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
    ENTER_CONTEXT(ctx);
    if (dptr == 0)
        return CUDA_SUCCESS;
    struct region region;
    REQUIRE(memory_find(dptr, &region) && region.base == dptr && region.kind == REGION_DEVICE);
    CUstream stream;
    TRY(stream_resolve(ctx, hStream, &stream));
    struct work work = {.kind = WORK_RELEASE, .memory = {dptr, region.size}};
    atomic_store(&frees_unseen, true);
    return stream_submit(stream, &work);
}

/* ---- virtual memory management ---- */

static struct backing *backing_of(CUmemGenericAllocationHandle handle) {
    struct backing *backing = (struct backing *)(uintptr_t)handle;
    return backing != NULL && backing->id != 0 ? backing : NULL;
}

API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                           CUmemAllocationGranularity_flags option) {
    ENTER();
    (void)option;
    REQUIRE(granularity != NULL && prop != NULL);
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                         const CUmemAllocationProp *prop, unsigned long long flags) {
    ENTER();
    REQUIRE(handle != NULL && prop != NULL && flags == 0 && size > 0 && size % GRANULARITY == 0);
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    int dev = prop->location.id;
    if (dev < 0 || dev >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    TRY(device_charge(dev, size));
    pthread_mutex_lock(&lock);
    struct backing *backing = backing_new(size, dev);
    backing->prop = *prop;
    pthread_mutex_unlock(&lock);
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)backing;
    return CUDA_SUCCESS;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    ENTER();
    pthread_mutex_lock(&lock);
    struct backing *backing = backing_of(handle);
    if (backing != NULL)
        backing_drop(backing);
    pthread_mutex_unlock(&lock);
    return backing ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                 unsigned long long flags) {
    ENTER();
    REQUIRE(ptr != NULL && size > 0 && size % GRANULARITY == 0 && flags == 0);
    size_t aligned = alignment > GRANULARITY ? alignment : GRANULARITY;
    void *storage = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (storage == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct region region = {.size = size, .storage = storage, .kind = REGION_RESERVED, .dev = -1};
    pthread_mutex_lock(&lock);
    bool inside = addr >= arena && addr + size <= arena + ARENA_BYTES;
    if (addr != 0 && addr % aligned == 0 && range_is_free(addr, size)) {
        /* A wish outside the range is granted where this process has nothing there. */
        void *wanted = (void *)(uintptr_t)addr;
        if (inside || mmap(wanted, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE |
                           MAP_FIXED_NOREPLACE, -1, 0) == wanted) {
            region.base = addr;
        } else {
            /* Real drivers give another address, or this; so callers have to live with both. */
            pthread_mutex_unlock(&lock);
            munmap(storage, size);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (region.base == 0)
        region.base = address_take(size, aligned);
    if (region.base != 0)
        region_insert(&region);
    pthread_mutex_unlock(&lock);
    if (region.base == 0) {
        munmap(storage, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ptr = region.base;
    return CUDA_SUCCESS;
}

API CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    ENTER();
    pthread_mutex_lock(&lock);
    struct region *region = region_at(ptr);
    bool fits = region != NULL && region->kind == REGION_RESERVED && region->base == ptr &&
                region->size == size && region->mappings == NULL;
    if (fits) {
        munmap(region->storage, size);
        if (ptr < arena || ptr >= arena + ARENA_BYTES)
            munmap((void *)(uintptr_t)ptr, size);
        region_remove(region);
    }
    pthread_mutex_unlock(&lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool mapping_overlaps(const struct region *region, size_t offset, size_t size) {
    for (const struct mapping *one = region->mappings; one; one = one->next)
        if (offset < one->offset + one->size && one->offset < offset + size)
            return true;
    return false;
}

API CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                      CUmemGenericAllocationHandle handle, unsigned long long flags) {
    ENTER();
    REQUIRE(offset == 0 && flags == 0 && size > 0 && size % GRANULARITY == 0);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct backing *backing = backing_of(handle);
    struct region *region = region_at(ptr);
    size_t at = region ? ptr - region->base : 0;
    if (backing != NULL && region != NULL && region->kind == REGION_RESERVED &&
        at % GRANULARITY == 0 && size == backing->size && at + size <= region->size &&
        !mapping_overlaps(region, at, size) &&
        file_map(region->storage + at, size,
                 backing->imported ? backing->descriptor : memory_file, backing->offset,
                 MAP_FIXED) != NULL) {
        struct mapping *mapping = zeroed(sizeof *mapping);
        *mapping = (struct mapping){region->mappings, at, size, backing, 0};
        region->mappings = mapping;
        region->dev = backing->dev;
        backing->uses++;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

API CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    ENTER();
    bool found = false;
    pthread_mutex_lock(&lock);
    struct region *region = region_at(ptr);
    size_t first = region ? ptr - region->base : 0;
    struct mapping **at = region && region->kind == REGION_RESERVED ? &region->mappings : NULL;
    while (at != NULL && *at != NULL) {
        struct mapping *one = *at;
        if (one->offset < first || one->offset + one->size > first + size) {
            at = &one->next;
            continue;
        }
        mmap(region->storage + one->offset, one->size, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        backing_drop(one->backing);
        *at = one->next;
        free(one);
        found = true;
    }
    pthread_mutex_unlock(&lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
                            size_t count) {
    ENTER();
    REQUIRE(desc != NULL && count > 0);
    bool found = false;
    pthread_mutex_lock(&lock);
    struct region *region = region_at(ptr);
    size_t first = region ? ptr - region->base : 0;
    for (struct mapping *one = region ? region->mappings : NULL; one; one = one->next)
        if (one->offset >= first && one->offset + one->size <= first + size) {
            one->access = (unsigned)desc[0].flags;
            found = true;
        }
    pthread_mutex_unlock(&lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                            CUdeviceptr ptr) {
    ENTER();
    REQUIRE(flags != NULL && location != NULL);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct region *region = region_at(ptr);
    for (struct mapping *one = region ? region->mappings : NULL; one; one = one->next)
        if (ptr - region->base >= one->offset && ptr - region->base < one->offset + one->size) {
            *flags = one->access;
            result = CUDA_SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                    CUmemGenericAllocationHandle handle) {
    ENTER();
    struct backing *backing = backing_of(handle);
    REQUIRE(prop != NULL && backing != NULL);
    *prop = backing->prop;
    return CUDA_SUCCESS;
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    ENTER();
    REQUIRE(handle != NULL);
    CUdeviceptr pointer = (CUdeviceptr)(uintptr_t)addr;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct region *region = region_at(pointer);
    for (struct mapping *one = region ? region->mappings : NULL; one; one = one->next)
        if (pointer - region->base >= one->offset &&
            pointer - region->base < one->offset + one->size) {
            one->backing->uses++;
            *handle = (CUmemGenericAllocationHandle)(uintptr_t)one->backing;
            result = CUDA_SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- for other processes (ipc.c) ---- */

int memory_descriptor(void) { return memory_file; }

bool memory_share(CUdeviceptr pointer, CUmemoryPool pool, struct ipc_memory *memory) {
    struct region region;
    bool fits = memory_find(pointer, &region) && region.kind == REGION_DEVICE &&
                region.pool == pool && !region.imported;
    if (fits) {
        region.backing->shared = true;
        *memory = (struct ipc_memory){region.backing->offset, region.size, region.dev};
    }
    return fits;
}

bool memory_share_backing(CUmemGenericAllocationHandle handle, struct ipc_memory *memory) {
    struct backing *backing = backing_of(handle);
    bool fits = backing != NULL && backing->prop.requestedHandleTypes == 1;
    if (fits) {
        backing->shared = true;
        *memory = (struct ipc_memory){backing->offset, backing->size, backing->dev};
    }
    return fits;
}

bool memory_import(CUcontext ctx, CUmemoryPool pool, int descriptor,
                   const struct ipc_memory *memory, CUdeviceptr *pointer) {
    void *storage = mmap(NULL, round_up(memory->size, PAGE), PROT_READ | PROT_WRITE, MAP_SHARED,
                         descriptor, memory->offset);
    if (storage == MAP_FAILED)
        return false;
    struct region region = {.size = memory->size, .storage = storage, .kind = REGION_DEVICE,
                            .dev = memory->dev, .ctx = ctx, .pool = pool, .imported = true};
    pthread_mutex_lock(&lock);
    region.base = address_take(memory->size, PAGE);
    region_insert(&region);
    pthread_mutex_unlock(&lock);
    *pointer = region.base;
    return true;
}

CUmemGenericAllocationHandle memory_import_backing(int descriptor,
                                                   const struct ipc_memory *memory) {
    struct backing *backing = zeroed(sizeof *backing);
    pthread_mutex_lock(&lock);
    *backing = (struct backing){.id = next_id++, .size = memory->size, .offset = memory->offset,
                                .dev = memory->dev, .uses = 1, .imported = true,
                                .descriptor = descriptor};
    pthread_mutex_unlock(&lock);
    backing->prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .requestedHandleTypes = 1,
                                          .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                          .location.id = memory->dev};
    return (CUmemGenericAllocationHandle)(uintptr_t)backing;
}

bool memory_close(CUdeviceptr pointer) {
    pthread_mutex_lock(&lock);
    struct region *region = region_at(pointer);
    bool fits = region != NULL && region->imported && region->pool == NULL &&
                region->base == pointer;
    if (fits) {
        unmap_storage(region);
        region_remove(region);
    }
    pthread_mutex_unlock(&lock);
    return fits;
}

/* ---- pointer attributes ---- */

/* A pointer that the driver does not know: host memory, and device -2 ("none"). */
static CUresult attribute_of_unknown(CUpointer_attribute attribute, CUdeviceptr ptr, void *data) {
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = -2;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)data = (void *)(uintptr_t)ptr;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult attribute_of(const struct region *region, CUpointer_attribute attribute,
                             CUdeviceptr ptr, void *data) {
    bool host = region->kind == REGION_HOST || region->kind == REGION_REGISTERED;
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = region->ctx;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = ptr;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!host && region->kind != REGION_MANAGED)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)ptr;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(unsigned *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(uint64_t *)data = region->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)data = region->kind == REGION_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = region->dev;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)data = region->kind == REGION_DEVICE && region->pool == NULL;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = region->base;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = region->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned *)data = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(uint64_t *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned *)data = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = region->pool;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    ENTER();
    REQUIRE(data != NULL);
    struct region region;
    if (!memory_find(ptr, &region))
        return (int)attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER
                   ? CUDA_ERROR_INVALID_VALUE
                   : attribute_of_unknown(attribute, ptr, data);
    return attribute_of(&region, attribute, ptr, data);
}

/* Many at once never fails for an unknown pointer: what has no answer is zero. */
API CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
                                    void **data, CUdeviceptr ptr) {
    ENTER();
    REQUIRE(attributes != NULL && data != NULL);
    struct region region;
    bool known = memory_find(ptr, &region);
    for (unsigned i = 0; i < numAttributes; i++) {
        CUresult result = known ? attribute_of(&region, attributes[i], ptr, data[i])
                                : attribute_of_unknown(attributes[i], ptr, data[i]);
        if (result == CUDA_SUCCESS)
            continue;
        bool narrow = (int)attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        memset(data[i], 0, narrow ? 4 : 8);
    }
    return CUDA_SUCCESS;
}

API CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                   CUdeviceptr ptr) {
    ENTER();
    struct region region;
    REQUIRE(value != NULL && (int)attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
    REQUIRE(memory_find(ptr, &region));
    return CUDA_SUCCESS;
}
