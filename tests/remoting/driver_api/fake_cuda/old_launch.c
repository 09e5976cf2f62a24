/* Launches as before CUDA 4, launches on several devices, and contexts that are counted. */
#define _GNU_SOURCE
#include "fake.h"

#include <string.h>

#define BYTES_MAX 4096

struct old_launch {
    unsigned block[3], shared;
    size_t size;
    unsigned char bytes[BYTES_MAX];
};

extern CUresult cuLaunchKernel(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,
                               unsigned int, unsigned int, unsigned int, CUstream, void **,
                               void **);
extern CUresult cuLaunchCooperativeKernel(CUfunction, unsigned int, unsigned int, unsigned int,
                                          unsigned int, unsigned int, unsigned int, unsigned int,
                                          CUstream, void **);
extern CUresult cuCtxDestroy_v2(CUcontext);
extern CUresult cuCtxPushCurrent_v2(CUcontext);
extern CUresult cuCtxPopCurrent_v2(CUcontext *);

static struct old_launch *kept(CUfunction function) {
    if (function->old == NULL)
        function->old = zeroed(sizeof *function->old);
    return function->old;
}

/* Checks the function and gives what is kept of it. */
#define ENTER_FUNCTION(handle, old)                                                                \
    ENTER_CONTEXT(ctx);                                                                            \
    CUfunction function_ = NULL;                                                                   \
    TRY(function_resolve(handle, ctx, &function_));                                                \
    struct old_launch *old = kept(function_)

API CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z) {
    ENTER_FUNCTION(hfunc, old);
    REQUIRE(x > 0 && y > 0 && z > 0);
    old->block[0] = (unsigned)x;
    old->block[1] = (unsigned)y;
    old->block[2] = (unsigned)z;
    return CUDA_SUCCESS;
}

API CUresult cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes) {
    ENTER_FUNCTION(hfunc, old);
    old->shared = bytes;
    return CUDA_SUCCESS;
}

API CUresult cuParamSetSize(CUfunction hfunc, unsigned int numbytes) {
    ENTER_FUNCTION(hfunc, old);
    REQUIRE(numbytes <= BYTES_MAX);
    old->size = numbytes;
    return CUDA_SUCCESS;
}

static CUresult set(struct old_launch *old, int offset, const void *bytes, unsigned size) {
    REQUIRE(bytes != NULL && offset >= 0 && (size_t)offset + size <= BYTES_MAX);
    memcpy(old->bytes + offset, bytes, size);
    return CUDA_SUCCESS;
}

API CUresult cuParamSetv(CUfunction hfunc, int offset, void *ptr, unsigned int numbytes) {
    ENTER_FUNCTION(hfunc, old);
    return set(old, offset, ptr, numbytes);
}

API CUresult cuParamSeti(CUfunction hfunc, int offset, unsigned int value) {
    ENTER_FUNCTION(hfunc, old);
    return set(old, offset, &value, sizeof value);
}

API CUresult cuParamSetf(CUfunction hfunc, int offset, float value) {
    ENTER_FUNCTION(hfunc, old);
    return set(old, offset, &value, sizeof value);
}

API CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream) {
    ENTER_FUNCTION(f, old);
    REQUIRE(grid_width > 0 && grid_height > 0);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, old->bytes, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &old->size, CU_LAUNCH_PARAM_END};
    return cuLaunchKernel(f, (unsigned)grid_width, (unsigned)grid_height, 1, old->block[0],
                          old->block[1], old->block[2], old->shared, hStream, NULL, extra);
}

API CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height) {
    return cuLaunchGridAsync(f, grid_width, grid_height, NULL);
}

API CUresult cuLaunch(CUfunction f) { return cuLaunchGridAsync(f, 1, 1, NULL); }

API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList,
                                                  unsigned int numDevices, unsigned int flags) {
    ENTER_CONTEXT(ctx);
    REQUIRE(launchParamsList != NULL && numDevices > 0 && flags <= 3);
    unsigned seen = 0;
    for (unsigned i = 0; i < numDevices; i++) {
        CUDA_LAUNCH_PARAMS *one = &launchParamsList[i];
        CUstream stream;
        REQUIRE(one->hStream != NULL); /* not the default stream */
        TRY(stream_resolve(ctx, one->hStream, &stream));
        REQUIRE(!(seen & 1u << stream->ctx->dev)); /* each device once, with the same shape */
        seen |= 1u << stream->ctx->dev;
        REQUIRE(one->gridDimX == launchParamsList->gridDimX);
        REQUIRE(one->blockDimX == launchParamsList->blockDimX);
    }
    for (unsigned i = 0; i < numDevices; i++) {
        CUDA_LAUNCH_PARAMS *one = &launchParamsList[i];
        CUstream stream;
        TRY(stream_resolve(ctx, one->hStream, &stream));
        TRY(cuCtxPushCurrent_v2(stream->ctx));
        CUresult result = cuLaunchCooperativeKernel(
            one->function, one->gridDimX, one->gridDimY, one->gridDimZ, one->blockDimX,
            one->blockDimY, one->blockDimZ, one->sharedMemBytes, stream, one->kernelParams);
        TRY(cuCtxPopCurrent_v2(NULL));
        TRY(result);
    }
    return CUDA_SUCCESS;
}

API CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags) {
    ENTER_CONTEXT(ctx);
    REQUIRE(pctx != NULL && flags == 0);
    ctx->attached++;
    *pctx = ctx;
    return CUDA_SUCCESS;
}

API CUresult cuCtxDetach(CUcontext context) {
    ENTER_CONTEXT(ctx);
    if (context != ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (ctx->attached == 0)
        return cuCtxDestroy_v2(ctx);
    ctx->attached--;
    return CUDA_SUCCESS;
}
