/* Contexts: the current one of each thread, primary ones, limits, context-local storage. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <string.h>

#define STACK_MAX 64

static _Thread_local CUcontext stack[STACK_MAX];
static _Thread_local int depth;
static pthread_mutex_t locals_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t next_id = 1;

static void limits_default(CUcontext ctx) {
    ctx->limits[CU_LIMIT_STACK_SIZE] = 1024;
    ctx->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 7 * MIB;
    ctx->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 * MIB;
    ctx->limits[3] = 2;    /* device runtime synchronise depth */
    ctx->limits[4] = 2048; /* device runtime pending launches */
    ctx->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
}

static CUcontext context_new(int dev, bool primary) {
    CUcontext ctx = zeroed(sizeof *ctx);
    ctx->magic = MAGIC_CONTEXT;
    ctx->dev = dev;
    ctx->primary = primary;
    ctx->api_version = 3020;
    ctx->id = atomic_fetch_add(&next_id, 1);
    limits_default(ctx);
    return ctx;
}

/* The handle of a primary context is the same for the whole process, retained or not. */
CUcontext context_primary(int dev) {
    if (devices[dev].primary == NULL)
        devices[dev].primary = context_new(dev, true);
    return devices[dev].primary;
}

CUcontext context_top(void) { return depth > 0 ? stack[depth - 1] : NULL; }

/* What a green context has is its device's. */
CUcontext context_peek(void) {
    CUcontext top = context_top();
    return top != NULL && top->base != NULL ? top->base : top;
}

CUcontext context_green(int dev, CUgreenCtx green) {
    CUcontext ctx = context_new(dev, false);
    ctx->alive = true;
    ctx->green = green;
    ctx->base = context_primary(dev);
    return ctx;
}

CUresult context_current(CUcontext *ctx) {
    if (in_callback)
        return CUDA_ERROR_NOT_PERMITTED;
    *ctx = context_peek();
    if (*ctx == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!IS(*ctx, MAGIC_CONTEXT) || !(*ctx)->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return atomic_load(&(*ctx)->error);
}

void context_fail(CUcontext ctx, CUresult error) {
    CUresult none = CUDA_SUCCESS;
    atomic_compare_exchange_strong(&ctx->error, &none, error);
}

static void context_clear(CUcontext ctx) {
    streams_close_context(ctx);
    while (ctx->locals != NULL) {
        struct local_value *local = ctx->locals;
        ctx->locals = local->next;
        if (local->drop != NULL)
            local->drop(ctx, local->key, local->value);
        free(local);
    }
    modules_unload_context(ctx);
    memory_release_context(ctx);
    ctx->alive = false;
    ctx->peers = 0;
    atomic_store(&ctx->error, CUDA_SUCCESS);
    limits_default(ctx);
}

/* ---- current context ---- */

API CUresult cuCtxGetCurrent(CUcontext *pctx) {
    ENTER();
    REQUIRE(pctx != NULL);
    *pctx = context_top();
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetCurrent(CUcontext ctx) {
    ENTER();
    if (ctx != NULL && !IS(ctx, MAGIC_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth > 0)
        depth--;
    if (ctx != NULL)
        stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
    ENTER();
    if (!IS(ctx, MAGIC_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    REQUIRE(depth < STACK_MAX);
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent(CUcontext ctx) { return cuCtxPushCurrent_v2(ctx); }

API CUresult cuCtxPopCurrent_v2(CUcontext *pctx) {
    ENTER();
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (pctx != NULL)
        *pctx = stack[depth];
    return CUDA_SUCCESS;
}

API CUresult cuCtxPopCurrent(CUcontext *pctx) { return cuCtxPopCurrent_v2(pctx); }

static CUresult context_or_current(CUcontext *ctx) {
    if (*ctx == NULL)
        *ctx = context_peek();
    if (!IS(*ctx, MAGIC_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx) {
    ENTER();
    REQUIRE(device != NULL);
    TRY(context_or_current(&ctx));
    *device = ctx->dev;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *device) { return cuCtxGetDevice_v2(device, NULL); }

API CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version) {
    ENTER();
    REQUIRE(version != NULL);
    TRY(context_or_current(&ctx));
    *version = ctx->api_version;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId) {
    ENTER();
    REQUIRE(ctxId != NULL);
    TRY(context_or_current(&ctx));
    *ctxId = ctx->id;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize_v2(CUcontext given) {
    ENTER_CONTEXT(ctx);
    if (given != NULL) {
        TRY(context_or_current(&given));
        ctx = given;
    }
    CUresult result = context_wait(ctx);
    atomic_store(&frees_unseen, false);
    return result;
}

API CUresult cuCtxSynchronize(void) { return cuCtxSynchronize_v2(NULL); }

API CUresult cuCtxGetFlags(unsigned int *flags) {
    ENTER_CONTEXT(ctx);
    REQUIRE(flags != NULL);
    *flags = ctx->flags;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetFlags(unsigned int flags) {
    ENTER_CONTEXT(ctx);
    ctx->flags = flags;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority) {
    ENTER_CONTEXT(ctx);
    if (leastPriority != NULL)
        *leastPriority = 0;
    if (greatestPriority != NULL)
        *greatestPriority = -5;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetLimit(size_t *pvalue, CUlimit limit) {
    ENTER_CONTEXT(ctx);
    REQUIRE(pvalue != NULL && (unsigned)limit <= CU_LIMIT_PERSISTING_L2_CACHE_SIZE);
    *pvalue = ctx->limits[limit];
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    ENTER_CONTEXT(ctx);
    REQUIRE((unsigned)limit <= CU_LIMIT_PERSISTING_L2_CACHE_SIZE);
    ctx->limits[limit] = value;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetCacheConfig(CUfunc_cache *pconfig) {
    ENTER_CONTEXT(ctx);
    REQUIRE(pconfig != NULL);
    *pconfig = ctx->cache;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
    ENTER_CONTEXT(ctx);
    ctx->cache = config;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetSharedMemConfig(CUsharedconfig *pConfig) {
    ENTER_CONTEXT(ctx);
    REQUIRE(pConfig != NULL);
    *pConfig = ctx->shared;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
    ENTER_CONTEXT(ctx);
    ctx->shared = config;
    return CUDA_SUCCESS;
}

API CUresult cuCtxResetPersistingL2Cache(void) {
    ENTER_CONTEXT(ctx);
    return CUDA_SUCCESS;
}

/* ---- creating and ending ---- */

API CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
    ENTER();
    REQUIRE(pctx != NULL && depth < STACK_MAX);
    if (dev < 0 || dev >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    CUcontext ctx = context_new(dev, false);
    ctx->flags = flags;
    ctx->alive = true;
    stack[depth++] = ctx;
    *pctx = ctx;
    return CUDA_SUCCESS;
}

API CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                            unsigned int flags, CUdevice dev) {
    (void)paramsArray;
    REQUIRE(numParams == 0);
    return cuCtxCreate_v2(pctx, flags, dev);
}

API CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                            CUdevice dev) {
    (void)ctxCreateParams;
    return cuCtxCreate_v2(pctx, flags, dev);
}

API CUresult cuCtxDestroy_v2(CUcontext ctx) {
    ENTER();
    if (!IS(ctx, MAGIC_CONTEXT) || ctx->primary || ctx->green != NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth > 0 && stack[depth - 1] == ctx)
        depth--;
    context_clear(ctx);
    ctx->magic = MAGIC_DEAD;
    return CUDA_SUCCESS;
}

static CUresult primary_device(int dev) {
    return dev < 0 || dev >= device_count ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    ENTER();
    TRY(primary_device(dev));
    if (devices[dev].primary_uses == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--devices[dev].primary_uses == 0)
        context_clear(devices[dev].primary);
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return cuDevicePrimaryCtxRelease_v2(dev); }

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
    ENTER();
    TRY(primary_device(dev));
    if (devices[dev].primary->alive)
        context_clear(devices[dev].primary);
    devices[dev].primary_uses = 0;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return cuDevicePrimaryCtxReset_v2(dev); }

API CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
    ENTER();
    TRY(primary_device(dev));
    REQUIRE(flags != NULL && active != NULL);
    *flags = devices[dev].primary_flags;
    *active = devices[dev].primary->alive;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
    ENTER();
    TRY(primary_device(dev));
    devices[dev].primary_flags = flags;
    devices[dev].primary->flags = flags;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
    return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

/* ---- events of a context: of its blocking streams, which is what the legacy stream waits for ---- */

extern CUresult cuEventRecord(CUevent, CUstream);
extern CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned int);

API CUresult cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent) {
    ENTER_CONTEXT(ctx);
    REQUIRE_HANDLE(hCtx == ctx);
    return cuEventRecord(hEvent, NULL);
}

API CUresult cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent) {
    ENTER_CONTEXT(ctx);
    REQUIRE_HANDLE(hCtx == ctx);
    return cuStreamWaitEvent(NULL, hEvent, 0);
}

/* ---- peers ---- */

API CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
    ENTER_CONTEXT(ctx);
    REQUIRE(Flags == 0);
    if (!IS(peerContext, MAGIC_CONTEXT) || peerContext->dev == ctx->dev)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (ctx->peers & (1u << peerContext->dev))
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    ctx->peers |= 1u << peerContext->dev;
    return CUDA_SUCCESS;
}

API CUresult cuCtxDisablePeerAccess(CUcontext peerContext) {
    ENTER_CONTEXT(ctx);
    if (!IS(peerContext, MAGIC_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!(ctx->peers & (1u << peerContext->dev)))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    ctx->peers &= ~(1u << peerContext->dev);
    return CUDA_SUCCESS;
}

/* ---- context-local storage: the runtime keeps its state of a context here ---- */

/* 0 and -1 both mean the current context. */
static CUresult local_context(CUcontext *ctx) {
    if (*ctx == NULL || *ctx == (CUcontext)UINTPTR_MAX)
        *ctx = context_peek();
    return IS(*ctx, MAGIC_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult context_local_get(void **value, CUcontext ctx, void *key) {
    TRY(local_context(&ctx));
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&locals_lock);
    for (struct local_value *one = ctx->locals; one; one = one->next)
        if (one->key == key) {
            *value = one->value;
            result = CUDA_SUCCESS;
        }
    pthread_mutex_unlock(&locals_lock);
    return result;
}

CUresult context_local_put(CUcontext ctx, void *key, void *value,
                           void (*drop)(CUcontext, void *, void *)) {
    TRY(local_context(&ctx));
    struct local_value *local = zeroed(sizeof *local);
    *local = (struct local_value){.key = key, .value = value, .drop = drop};
    pthread_mutex_lock(&locals_lock);
    local->next = ctx->locals;
    ctx->locals = local;
    pthread_mutex_unlock(&locals_lock);
    return CUDA_SUCCESS;
}

/* The destructor runs when the context ends, never on an explicit delete. */
CUresult context_local_delete(CUcontext ctx, void *key) {
    TRY(local_context(&ctx));
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&locals_lock);
    for (struct local_value **at = &ctx->locals; *at; at = &(*at)->next)
        if ((*at)->key == key) {
            struct local_value *gone = *at;
            *at = gone->next;
            free(gone);
            result = CUDA_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&locals_lock);
    return result;
}
