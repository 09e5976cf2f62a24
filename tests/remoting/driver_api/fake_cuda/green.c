/* Green contexts: a part of a device's multiprocessors, with streams of its own on the device's memory. */
#define _GNU_SOURCE
#include "fake.h"

#include <string.h>

#define SMALLEST 8 /* of compute capability 9.0: groups of 8 */
#define SECRET 0x5ec7e7

struct CUdevResourceDesc_st {
    uint32_t magic;
    int dev, count;
};

/* What the driver keeps in the middle of a resource; addresses, in the real one. */
struct secret {
    uint32_t magic;
    int dev;
    unsigned first, splits; /* the first multiprocessor, how often it was split */
};

static struct secret secret_of(const CUdevResource *resource) {
    struct secret secret;
    memcpy(&secret, resource->_internal_padding, sizeof secret);
    return secret;
}

static CUdevResource resource_new(int dev, unsigned first, unsigned count, unsigned splits) {
    CUdevResource resource;
    memset(&resource, 0, sizeof resource);
    if (count == 0)
        return resource;
    struct secret secret = {SECRET, dev, first, splits};
    memcpy(resource._internal_padding, &secret, sizeof secret);
    resource.type = 1;
    resource.sm.smCount = count;
    resource.sm.minSmPartitionSize = resource.sm.smCoscheduledAlignment = SMALLEST;
    return resource;
}

static bool is_resource(const CUdevResource *resource) {
    return resource != NULL && (int)resource->type == 1 && secret_of(resource).magic == SECRET;
}

API CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource,
                                    CUdevResourceType type) {
    ENTER();
    REQUIRE(resource != NULL);
    if (device < 0 || device >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    if ((int)type != 1)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    int count;
    REQUIRE(device_attribute(device, (CUdevice_attribute)16, &count));
    *resource = resource_new(device, 0, (unsigned)count, 0);
    return CUDA_SUCCESS;
}

API CUresult cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource *resource,
                                      CUdevResourceType type) {
    ENTER();
    if (!IS(hCtx, MAGIC_GREEN))
        return CUDA_ERROR_INVALID_CONTEXT;
    REQUIRE(resource != NULL);
    if ((int)type != 1)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *resource = resource_new(hCtx->context->dev, 0, (unsigned)hCtx->count, 0);
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevResource(CUcontext hCtx, CUdevResource *resource, CUdevResourceType type) {
    if (hCtx == NULL)
        hCtx = context_top();
    if (!IS(hCtx, MAGIC_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    return hCtx->green ? cuGreenCtxGetDevResource(hCtx->green, resource, type)
                       : cuDeviceGetDevResource(hCtx->dev, resource, type);
}

API CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *nbGroups,
                                         const CUdevResource *input, CUdevResource *remaining,
                                         unsigned int useFlags, unsigned int minCount) {
    ENTER();
    REQUIRE(nbGroups != NULL && is_resource(input) && useFlags == 0);
    unsigned whole = input->sm.smCount;
    struct secret secret = secret_of(input);
    REQUIRE(minCount <= whole && secret.splits == 0);
    unsigned each = minCount < SMALLEST ? SMALLEST : (minCount + SMALLEST - 1) / SMALLEST * SMALLEST;
    unsigned groups = whole / each;
    if (result != NULL && *nbGroups < groups)
        groups = *nbGroups;
    *nbGroups = groups;
    for (unsigned i = 0; result != NULL && i < groups; i++)
        result[i] = resource_new(secret.dev, i * each, each, 1);
    if (remaining != NULL)
        *remaining = resource_new(secret.dev, groups * each, whole - groups * each, 1);
    return CUDA_SUCCESS;
}

API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *phDesc, CUdevResource *resources,
                                       unsigned int nbResources) {
    ENTER();
    REQUIRE(phDesc != NULL && resources != NULL && nbResources > 0);
    CUdevResourceDesc made = zeroed(sizeof *made);
    for (unsigned i = 0; i < nbResources; i++) {
        REQUIRE(is_resource(&resources[i]));
        if (secret_of(&resources[i]).dev != secret_of(&resources[0]).dev)
            return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        made->count += (int)resources[i].sm.smCount;
    }
    made->magic = SECRET;
    made->dev = secret_of(&resources[0]).dev;
    *phDesc = made;
    return CUDA_SUCCESS;
}

API CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev,
                              unsigned int flags) {
    ENTER();
    REQUIRE(phCtx != NULL && desc != NULL && desc->magic == SECRET && desc->dev == dev);
    REQUIRE(flags == 1); /* CU_GREEN_CTX_DEFAULT_STREAM */
    CUgreenCtx made = zeroed(sizeof *made);
    made->magic = MAGIC_GREEN;
    made->count = desc->count;
    made->context = context_green(dev, made);
    made->legacy = stream_new(made->context->base, 1, 0);
    made->legacy->green = made;
    *phCtx = made;
    return CUDA_SUCCESS;
}

#define REQUIRE_GREEN(handle)                                                                      \
    do {                                                                                           \
        if (!IS(handle, MAGIC_GREEN))                                                              \
            return CUDA_ERROR_INVALID_CONTEXT;                                                     \
    } while (0)

API CUresult cuGreenCtxDestroy(CUgreenCtx hCtx) {
    ENTER();
    REQUIRE_GREEN(hCtx);
    hCtx->magic = hCtx->context->magic = MAGIC_DEAD;
    return CUDA_SUCCESS;
}

API CUresult cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx) {
    ENTER();
    REQUIRE_GREEN(hCtx);
    REQUIRE(pContext != NULL);
    *pContext = hCtx->context;
    return CUDA_SUCCESS;
}

API CUresult cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long *greenCtxId) {
    ENTER();
    CUcontext top = context_top();
    if (greenCtx == NULL && top != NULL)
        greenCtx = top->green;
    REQUIRE_GREEN(greenCtx);
    REQUIRE(greenCtxId != NULL);
    *greenCtxId = greenCtx->context->id;
    return CUDA_SUCCESS;
}

API CUresult cuGreenCtxStreamCreate(CUstream *phStream, CUgreenCtx greenCtx, unsigned int flags,
                                    int priority) {
    ENTER();
    REQUIRE_GREEN(greenCtx);
    REQUIRE(phStream != NULL && flags == CU_STREAM_NON_BLOCKING);
    *phStream = stream_new(greenCtx->context->base, flags, priority);
    (*phStream)->green = greenCtx;
    return CUDA_SUCCESS;
}

extern CUresult cuEventRecord(CUevent, CUstream);
extern CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned int);

/* The fake has a green context do one thing after the other, in the stream that it has for itself. */

API CUresult cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent) {
    REQUIRE_GREEN(hCtx);
    return cuEventRecord(hEvent, hCtx->legacy);
}

API CUresult cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent) {
    REQUIRE_GREEN(hCtx);
    return cuStreamWaitEvent(hCtx->legacy, hEvent, 0);
}
