/* Smaller parts: managed memory's hints, batches, links, attributes, logs, the profiler. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CUresult current(CUcontext *ctx) { return context_current(ctx); }

/* ---- hints: checked, remembered nowhere ---- */

static CUresult hint(CUdeviceptr pointer, size_t bytes) {
    REQUIRE(bytes > 0 && memory_any(pointer, bytes) != NULL);
    return CUDA_SUCCESS;
}

API CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) {
    ENTER();
    (void)advice, (void)device;
    return hint(devPtr, count);
}

API CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                            CUmemLocation location) {
    ENTER();
    (void)advice, (void)location;
    return hint(devPtr, count);
}

static CUresult prefetch(CUdeviceptr pointer, size_t bytes, CUstream handle) {
    CUcontext ctx;
    CUstream stream;
    TRY(current(&ctx));
    TRY(stream_resolve(ctx, handle, &stream));
    TRY(hint(pointer, bytes));
    struct work work = {.kind = WORK_EMPTY};
    return stream_submit(stream, &work);
}

API CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice,
                                CUstream hStream) {
    ENTER();
    (void)dstDevice;
    return prefetch(devPtr, count, hStream);
}

API CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                                   unsigned int flags, CUstream hStream) {
    ENTER();
    (void)location;
    REQUIRE(flags == 0);
    return prefetch(devPtr, count, hStream);
}

API CUresult cuMemRangeGetAttribute(void *data, size_t dataSize, CUmem_range_attribute attribute,
                                    CUdeviceptr devPtr, size_t count) {
    ENTER();
    REQUIRE(data != NULL && dataSize % 4 == 0);
    TRY(hint(devPtr, count));
    int value = (int)attribute == 1 ? 0 : -2; /* not mostly read; no location */
    for (size_t i = 0; i < dataSize / 4; i++)
        ((int *)data)[i] = value;
    return CUDA_SUCCESS;
}

/* ---- pools by location ---- */

static CUresult location_device(const CUmemLocation *location, int *dev) {
    REQUIRE(location != NULL);
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    REQUIRE(location->id >= 0 && location->id < device_count);
    *dev = location->id;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
                                    CUmemAllocationType type) {
    ENTER();
    int dev;
    (void)type;
    REQUIRE(pool_out != NULL);
    TRY(location_device(location, &dev));
    *pool_out = devices[dev].default_pool;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location,
                             CUmemAllocationType type) {
    ENTER();
    int dev;
    (void)type;
    REQUIRE(pool != NULL);
    TRY(location_device(location, &dev));
    *pool = devices[dev].current_pool;
    return CUDA_SUCCESS;
}

API CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    ENTER();
    int dev;
    (void)type;
    REQUIRE(IS(pool, MAGIC_POOL));
    TRY(location_device(location, &dev));
    devices[dev].current_pool = pool;
    return CUDA_SUCCESS;
}

/* ---- batches ---- */

extern CUresult cuMemcpyAsync(CUdeviceptr, CUdeviceptr, size_t, CUstream);
extern CUresult cuStreamWaitValue32_v2(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
extern CUresult cuStreamWaitValue64_v2(CUstream, CUdeviceptr, cuuint64_t, unsigned int);
extern CUresult cuStreamWriteValue32_v2(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
extern CUresult cuStreamWriteValue64_v2(CUstream, CUdeviceptr, cuuint64_t, unsigned int);

API CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
                                   CUstreamBatchMemOpParams *paramArray, unsigned int flags) {
    ENTER();
    REQUIRE(paramArray != NULL && flags == 0 && count <= 256);
    for (unsigned i = 0; i < count; i++) {
        CUstreamBatchMemOpParams *p = &paramArray[i];
        switch ((int)p->operation) {
        case 1:
            TRY(cuStreamWaitValue32_v2(stream, p->waitValue.address, p->waitValue.value,
                                       p->waitValue.flags));
            break;
        case 2:
            TRY(cuStreamWriteValue32_v2(stream, p->writeValue.address, p->writeValue.value,
                                        p->writeValue.flags));
            break;
        case 4:
            TRY(cuStreamWaitValue64_v2(stream, p->waitValue.address, p->waitValue.value64,
                                       p->waitValue.flags));
            break;
        case 5:
            TRY(cuStreamWriteValue64_v2(stream, p->writeValue.address, p->writeValue.value64,
                                        p->writeValue.flags));
            break;
        case 3: /* flush of remote writes */
        case 6: /* memory barrier */
            break;
        default:
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

API CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count,
                                CUstreamBatchMemOpParams *paramArray, unsigned int flags) {
    return cuStreamBatchMemOp_v2(stream, count, paramArray, flags);
}

API CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                        CUflushGPUDirectRDMAWritesScope scope) {
    ENTER();
    (void)target, (void)scope;
    return CUDA_SUCCESS;
}

extern CUresult cuLaunchHostFunc(CUstream, CUhostFn, void *);

API CUresult cuLaunchHostFunc_v2(CUstream hStream, CUhostFn fn, void *userData,
                                 unsigned int syncMode) {
    (void)syncMode;
    return cuLaunchHostFunc(hStream, fn, userData);
}

/* ---- stream attributes: taken and given back ---- */

#define STREAM_ATTRIBUTES 20
struct stream_attribute {
    struct stream_attribute *next;
    CUstream stream;
    int attribute;
    CUstreamAttrValue value;
};
static struct stream_attribute *stream_attributes;
static pthread_mutex_t attributes_lock = PTHREAD_MUTEX_INITIALIZER;

static struct stream_attribute *attribute_find(CUstream stream, int attribute) {
    for (struct stream_attribute *one = stream_attributes; one; one = one->next)
        if (one->stream == stream && one->attribute == attribute)
            return one;
    return NULL;
}

static CUresult attribute_stream(CUstream handle, int attribute, CUstream *stream) {
    CUcontext ctx;
    TRY(current(&ctx));
    REQUIRE(attribute >= 0 && attribute < STREAM_ATTRIBUTES);
    return stream_resolve(ctx, handle, stream);
}

static void attribute_store(CUstream stream, int attribute, const CUstreamAttrValue *value) {
    struct stream_attribute *one = attribute_find(stream, attribute);
    if (one == NULL) {
        one = zeroed(sizeof *one);
        *one = (struct stream_attribute){stream_attributes, stream, attribute, {{0}}};
        stream_attributes = one;
    }
    one->value = *value;
}

API CUresult cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr,
                                  const CUstreamAttrValue *param) {
    ENTER();
    CUstream stream;
    REQUIRE(param != NULL);
    TRY(attribute_stream(hStream, (int)attr, &stream));
    pthread_mutex_lock(&attributes_lock);
    attribute_store(stream, (int)attr, param);
    pthread_mutex_unlock(&attributes_lock);
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue *value) {
    ENTER();
    CUstream stream;
    REQUIRE(value != NULL);
    TRY(attribute_stream(hStream, (int)attr, &stream));
    pthread_mutex_lock(&attributes_lock);
    struct stream_attribute *one = attribute_find(stream, (int)attr);
    memset(value, 0, sizeof *value);
    if (one != NULL)
        *value = one->value;
    pthread_mutex_unlock(&attributes_lock);
    return CUDA_SUCCESS;
}

API CUresult cuStreamCopyAttributes(CUstream dstStream, CUstream srcStream) {
    ENTER();
    CUstream from, to;
    TRY(attribute_stream(srcStream, 0, &from));
    TRY(attribute_stream(dstStream, 0, &to));
    pthread_mutex_lock(&attributes_lock);
    for (int i = 0; i < STREAM_ATTRIBUTES; i++) {
        struct stream_attribute *one = attribute_find(from, i);
        if (one != NULL)
            attribute_store(to, i, &one->value);
    }
    pthread_mutex_unlock(&attributes_lock);
    return CUDA_SUCCESS;
}

/* ---- the linker: PTX is joined as text, which module.c reads; one cubin goes through ---- */

struct CUlinkState_st {
    uint32_t magic;
    unsigned inputs;
    bool text;
    char *bytes;
    size_t size;
    unsigned count; /* of options, which must stay until the link ends */
    CUjit_option *options;
    void **values;
};

API CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option *options, void **optionValues,
                             CUlinkState *stateOut) {
    ENTER();
    REQUIRE(stateOut != NULL);
    *stateOut = zeroed(sizeof **stateOut);
    (*stateOut)->magic = MAGIC_LINK;
    (*stateOut)->count = numOptions;
    (*stateOut)->options = options;
    (*stateOut)->values = optionValues;
    return CUDA_SUCCESS;
}

API CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size,
                              const char *name, unsigned int numOptions, CUjit_option *options,
                              void **optionValues) {
    ENTER();
    (void)name, (void)numOptions, (void)options, (void)optionValues;
    REQUIRE(IS(state, MAGIC_LINK) && data != NULL && size > 0);
    bool text = (int)type == 1;
    if ((int)type > 2 || (state->inputs > 0 && (!text || !state->text))) {
        jit_say(CUDA_ERROR_NOT_SUPPORTED, state->count, state->options, state->values);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    size_t length = text ? strnlen(data, size) : size;
    state->bytes = realloc(state->bytes, state->size + length + 2);
    if (state->bytes == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(state->bytes + state->size, data, length);
    memcpy(state->bytes + state->size + length, "\n", 2);
    state->size += text ? length + 1 : length;
    state->text = text;
    state->inputs++;
    return CUDA_SUCCESS;
}

API CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path,
                              unsigned int numOptions, CUjit_option *options,
                              void **optionValues) {
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (file == NULL)
        return CUDA_ERROR_FILE_NOT_FOUND;
    char *bytes = zeroed(16 * MIB);
    size_t size = fread(bytes, 1, 16 * MIB, file);
    fclose(file);
    CUresult result =
        cuLinkAddData_v2(state, type, bytes, size, path, numOptions, options, optionValues);
    free(bytes);
    return result;
}

API CUresult cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut) {
    ENTER();
    REQUIRE(IS(state, MAGIC_LINK) && cubinOut != NULL);
    *cubinOut = state->inputs > 0 ? (void *)state->bytes : ""; /* nothing can be linked, too */
    if (sizeOut != NULL)
        *sizeOut = state->inputs > 0 ? state->size + (state->text ? 1 : 0) : 1;
    jit_say(CUDA_SUCCESS, state->count, state->options, state->values);
    return CUDA_SUCCESS;
}

API CUresult cuLinkDestroy(CUlinkState state) {
    ENTER();
    REQUIRE(IS(state, MAGIC_LINK));
    state->magic = MAGIC_DEAD;
    free(state->bytes);
    return CUDA_SUCCESS;
}

/* ---- tensor maps: opaque, and a function of the arguments alone ---- */

static void mix(CUtensorMap *map, unsigned *at, uint64_t value) {
    cuuint64_t *word = &map->opaque[(*at)++ % 16];
    *word = (*word ^ value) * 0x9e3779b97f4a7c15u + 1;
}

API CUresult cuTensorMapEncodeTiled(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType,
                                    cuuint32_t tensorRank, void *globalAddress,
                                    const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
                                    const cuuint32_t *boxDim, const cuuint32_t *elementStrides,
                                    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                    CUtensorMapL2promotion l2Promotion,
                                    CUtensorMapFloatOOBfill oobFill) {
    ENTER();
    REQUIRE(tensorMap != NULL && tensorRank >= 1 && tensorRank <= 5 && globalDim && boxDim);
    REQUIRE((uintptr_t)tensorMap % 64 == 0 && (uintptr_t)globalAddress % 16 == 0);
    REQUIRE(globalStrides != NULL && elementStrides != NULL); /* whatever the rank */
    unsigned at = 0;
    memset(tensorMap, 0, sizeof *tensorMap);
    mix(tensorMap, &at, (uint64_t)(uintptr_t)globalAddress);
    mix(tensorMap, &at, (uint64_t)tensorDataType << 32 | tensorRank);
    mix(tensorMap, &at, (uint64_t)interleave << 48 | (uint64_t)swizzle << 32 |
                            (uint64_t)l2Promotion << 16 | (uint64_t)oobFill);
    for (unsigned i = 0; i < tensorRank; i++) {
        mix(tensorMap, &at, globalDim[i]);
        mix(tensorMap, &at, boxDim[i]);
        mix(tensorMap, &at, elementStrides[i]);
        mix(tensorMap, &at, i + 1 < tensorRank ? globalStrides[i] : 0);
    }
    return CUDA_SUCCESS;
}

API CUresult cuTensorMapEncodeIm2col(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType,
                                     cuuint32_t tensorRank, void *globalAddress,
                                     const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
                                     const int *pixelBoxLowerCorner, const int *pixelBoxUpperCorner,
                                     cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
                                     const cuuint32_t *elementStrides,
                                     CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                     CUtensorMapL2promotion l2Promotion,
                                     CUtensorMapFloatOOBfill oobFill) {
    REQUIRE(tensorRank >= 3 && pixelBoxLowerCorner && pixelBoxUpperCorner);
    const cuuint32_t box[5] = {channelsPerPixel, pixelsPerColumn};
    TRY(cuTensorMapEncodeTiled(tensorMap, tensorDataType, tensorRank, globalAddress, globalDim,
                               globalStrides, box, elementStrides, interleave, swizzle,
                               l2Promotion, oobFill));
    unsigned at = 1;
    for (unsigned i = 0; i + 2 < tensorRank; i++) {
        mix(tensorMap, &at, (uint64_t)(int64_t)pixelBoxLowerCorner[i]);
        mix(tensorMap, &at, (uint64_t)(int64_t)pixelBoxUpperCorner[i]);
    }
    return CUDA_SUCCESS;
}

API CUresult cuTensorMapReplaceAddress(CUtensorMap *tensorMap, void *globalAddress) {
    ENTER();
    REQUIRE(tensorMap != NULL && (uintptr_t)tensorMap % 64 == 0);
    REQUIRE((uintptr_t)globalAddress % 16 == 0);
    unsigned at = 0;
    mix(tensorMap, &at, (uint64_t)(uintptr_t)globalAddress);
    return CUDA_SUCCESS;
}

/* ---- user objects ---- */

struct CUuserObject_st {
    CUhostFn destroy;
    void *data;
    unsigned uses;
};

API CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy,
                                unsigned int initialRefcount, unsigned int flags) {
    ENTER();
    (void)flags;
    REQUIRE(object_out != NULL && destroy != NULL && initialRefcount > 0);
    *object_out = zeroed(sizeof **object_out);
    **object_out = (struct CUuserObject_st){destroy, ptr, initialRefcount};
    return CUDA_SUCCESS;
}

API CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
    ENTER();
    REQUIRE(object != NULL && object->uses > 0);
    object->uses += count;
    return CUDA_SUCCESS;
}

API CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
    ENTER();
    REQUIRE(object != NULL && object->uses >= count);
    object->uses -= count;
    if (object->uses == 0)
        object->destroy(object->data);
    return CUDA_SUCCESS;
}

/* A graph's references live as long as the process, as graphs' memory does here. */
API CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                     unsigned int flags) {
    ENTER();
    REQUIRE(IS(graph, MAGIC_GRAPH) && object != NULL && flags <= 1);
    object->uses += flags == 1 ? 0 : count; /* 1 moves the caller's references */
    return CUDA_SUCCESS;
}

API CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count) {
    REQUIRE(IS(graph, MAGIC_GRAPH));
    return cuUserObjectRelease(object, count);
}

/* ---- logs and the profiler ---- */

API CUresult cuLogsRegisterCallback(CUlogsCallback callbackFunc, void *userData,
                                    CUlogsCallbackHandle *callback_out) {
    ENTER();
    (void)userData;
    REQUIRE(callbackFunc != NULL);
    if (callback_out != NULL)
        *callback_out = zeroed(1);
    return CUDA_SUCCESS;
}

API CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle callback) {
    ENTER();
    free(callback);
    return CUDA_SUCCESS;
}

API CUresult cuProfilerStart(void) {
    ENTER();
    return CUDA_SUCCESS;
}

API CUresult cuProfilerStop(void) {
    ENTER();
    return CUDA_SUCCESS;
}
