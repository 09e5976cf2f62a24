/* Copies and fills. Every copy becomes one three-dimensional copy between two endpoints. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <string.h>

/* ---- endpoints ---- */

static struct endpoint flat_endpoint(CUmemorytype type, CUdeviceptr pointer) {
    return (struct endpoint){.type = type, .pointer = pointer};
}

/* Gives where row (y, z) of an endpoint begins, after checking that `width` bytes are there. */
static char *endpoint_row(const struct endpoint *end, size_t y, size_t z, size_t width) {
    if (end->type == CU_MEMORYTYPE_ARRAY) {
        CUarray array = end->array;
        if (!IS(array, MAGIC_ARRAY) || end->x + width > array->width_bytes ||
            end->y + y >= array->height || end->z + z >= array->depth)
            return NULL;
        size_t row = (end->z + z) * array->height + end->y + y;
        return array->storage + row * array->width_bytes + end->x;
    }
    size_t height = end->height ? end->height : 1;
    CUdeviceptr at = end->pointer + ((end->z + z) * height + end->y + y) * end->pitch + end->x;
    if (end->type == CU_MEMORYTYPE_DEVICE)
        return memory_storage(at, width);
    return memory_any(at, width);
}

static bool endpoint_is_pageable(const struct endpoint *end) {
    return (end->type == CU_MEMORYTYPE_HOST || end->type == CU_MEMORYTYPE_UNIFIED) &&
           memory_is_pageable((const void *)(uintptr_t)end->pointer);
}

/* The first and last row of each end decide, as far as can be known before the copy runs. */
CUresult copy_check(struct copy *copy) {
    if (copy->width == 0 || copy->height == 0 || copy->depth == 0)
        return CUDA_SUCCESS;
    for (int last = 0; last < 2; last++) {
        size_t y = last ? copy->height - 1 : 0, z = last ? copy->depth - 1 : 0;
        REQUIRE(endpoint_row(&copy->source, y, z, copy->width) != NULL);
        REQUIRE(endpoint_row(&copy->target, y, z, copy->width) != NULL);
    }
    return CUDA_SUCCESS;
}

CUresult copy_run(const struct copy *copy) {
    for (size_t z = 0; z < copy->depth; z++)
        for (size_t y = 0; y < copy->height; y++) {
            const char *from =
                copy->snapshot
                    ? (char *)copy->snapshot + (z * copy->height + y) * copy->width
                    : endpoint_row(&copy->source, y, z, copy->width);
            char *to = endpoint_row(&copy->target, y, z, copy->width);
            if (copy->width > 0 && (from == NULL || to == NULL))
                return CUDA_ERROR_ILLEGAL_ADDRESS;
            memmove(to, from, copy->width);
        }
    return CUDA_SUCCESS;
}

/* CUDA reads a pageable source before the call returns; a pinned one when the stream comes to it. */
static void copy_take_snapshot(struct copy *copy) {
    copy->snapshot = zeroed(copy->width * copy->height * copy->depth);
    for (size_t z = 0; z < copy->depth; z++)
        for (size_t y = 0; y < copy->height; y++)
            memcpy(copy->snapshot + (z * copy->height + y) * copy->width,
                   endpoint_row(&copy->source, y, z, copy->width), copy->width);
}

/* `handle` is ignored by synchronous copies, which run in the default stream. */
static CUresult copy_submit(CUcontext ctx, struct copy copy, CUstream handle, bool async) {
    CUstream stream;
    TRY(stream_resolve(ctx, async ? handle : NULL, &stream));
    TRY(copy_check(&copy));
    bool capturing = stream->capture != NULL;
    bool to_pageable = endpoint_is_pageable(&copy.target);
    if (async && !capturing && endpoint_is_pageable(&copy.source))
        copy_take_snapshot(&copy);
    struct work work = {.kind = WORK_COPY, .copy = copy};
    if (async && (capturing || !to_pageable))
        return stream_submit(stream, &work);
    return stream_submit_and_wait(stream, &work);
}

static CUresult copy_flat(CUcontext ctx, CUmemorytype to_type, CUdeviceptr to,
                          CUmemorytype from_type, CUdeviceptr from, size_t bytes, CUstream stream,
                          bool async) {
    struct copy copy = {.source = flat_endpoint(from_type, from),
                        .target = flat_endpoint(to_type, to),
                        .width = bytes, .height = 1, .depth = 1, .flat = true};
    return copy_submit(ctx, copy, stream, async);
}

#define HOST(pointer) CU_MEMORYTYPE_HOST, (CUdeviceptr)(uintptr_t)(pointer)
#define DEVICE(pointer) CU_MEMORYTYPE_DEVICE, (pointer)
#define EITHER(pointer) CU_MEMORYTYPE_UNIFIED, (pointer)

/* ---- one-dimensional copies ---- */

API CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
    ENTER_CONTEXT(ctx);
    return copy_flat(ctx, EITHER(dst), EITHER(src), ByteCount, NULL, false);
}

API CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
    ENTER_CONTEXT(ctx);
    return copy_flat(ctx, EITHER(dst), EITHER(src), ByteCount, hStream, true);
}

API CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount) {
    ENTER_CONTEXT(ctx);
    return copy_flat(ctx, DEVICE(dstDevice), HOST(srcHost), ByteCount, NULL, false);
}

API CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
    ENTER_CONTEXT(ctx);
    return copy_flat(ctx, HOST(dstHost), DEVICE(srcDevice), ByteCount, NULL, false);
}

API CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
    ENTER_CONTEXT(ctx);
    return copy_flat(ctx, DEVICE(dstDevice), DEVICE(srcDevice), ByteCount, NULL, false);
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                                  CUstream hStream) {
    ENTER_CONTEXT(ctx);
    return copy_flat(ctx, DEVICE(dstDevice), HOST(srcHost), ByteCount, hStream, true);
}

API CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                                  CUstream hStream) {
    ENTER_CONTEXT(ctx);
    return copy_flat(ctx, HOST(dstHost), DEVICE(srcDevice), ByteCount, hStream, true);
}

API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                  CUstream hStream) {
    ENTER_CONTEXT(ctx);
    return copy_flat(ctx, DEVICE(dstDevice), DEVICE(srcDevice), ByteCount, hStream, true);
}

API CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                          CUcontext srcContext, size_t ByteCount) {
    ENTER_CONTEXT(ctx);
    REQUIRE(IS(dstContext, MAGIC_CONTEXT) && IS(srcContext, MAGIC_CONTEXT));
    return copy_flat(ctx, DEVICE(dstDevice), DEVICE(srcDevice), ByteCount, NULL, false);
}

API CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                               CUcontext srcContext, size_t ByteCount, CUstream hStream) {
    ENTER_CONTEXT(ctx);
    REQUIRE(IS(dstContext, MAGIC_CONTEXT) && IS(srcContext, MAGIC_CONTEXT));
    return copy_flat(ctx, DEVICE(dstDevice), DEVICE(srcDevice), ByteCount, hStream, true);
}

/* ---- two and three dimensions ---- */

static CUdeviceptr side_pointer(CUmemorytype type, const void *host, CUdeviceptr device) {
    return type == CU_MEMORYTYPE_HOST ? (CUdeviceptr)(uintptr_t)host : device;
}

CUresult copy_from_3d(const CUDA_MEMCPY3D *from, struct copy *copy) {
    REQUIRE(from != NULL && from->srcLOD == 0 && from->dstLOD == 0);
    REQUIRE((int)from->srcMemoryType >= 1 && (int)from->srcMemoryType <= 4);
    REQUIRE((int)from->dstMemoryType >= 1 && (int)from->dstMemoryType <= 4);
    *copy = (struct copy){
        .source = {from->srcMemoryType,
                   side_pointer(from->srcMemoryType, from->srcHost, from->srcDevice),
                   from->srcArray, from->srcXInBytes, from->srcY, from->srcZ,
                   from->srcPitch ? from->srcPitch : from->srcXInBytes + from->WidthInBytes,
                   from->srcHeight ? from->srcHeight : from->srcY + from->Height},
        .target = {from->dstMemoryType,
                   side_pointer(from->dstMemoryType, from->dstHost, from->dstDevice),
                   from->dstArray, from->dstXInBytes, from->dstY, from->dstZ,
                   from->dstPitch ? from->dstPitch : from->dstXInBytes + from->WidthInBytes,
                   from->dstHeight ? from->dstHeight : from->dstY + from->Height},
        .width = from->WidthInBytes, .height = from->Height, .depth = from->Depth};
    return CUDA_SUCCESS;
}

void copy_to_3d(const struct copy *from, CUDA_MEMCPY3D *to) {
    const struct endpoint *s = &from->source, *t = &from->target;
    *to = (CUDA_MEMCPY3D){
        .srcXInBytes = s->x, .srcY = s->y, .srcZ = s->z, .srcMemoryType = s->type,
        .srcHost = (const void *)(uintptr_t)s->pointer, .srcDevice = s->pointer,
        .srcArray = s->array, .srcPitch = s->pitch, .srcHeight = s->height,
        .dstXInBytes = t->x, .dstY = t->y, .dstZ = t->z, .dstMemoryType = t->type,
        .dstHost = (void *)(uintptr_t)t->pointer, .dstDevice = t->pointer,
        .dstArray = t->array, .dstPitch = t->pitch, .dstHeight = t->height,
        .WidthInBytes = from->width, .Height = from->height, .Depth = from->depth};
}

static CUresult copy_3d(CUcontext ctx, const CUDA_MEMCPY3D *from, CUstream stream, bool async) {
    struct copy copy;
    TRY(copy_from_3d(from, &copy));
    return copy_submit(ctx, copy, stream, async);
}

static CUresult copy_2d(CUcontext ctx, const CUDA_MEMCPY2D *p, CUstream stream, bool async) {
    REQUIRE(p != NULL);
    CUDA_MEMCPY3D whole = {
        .srcXInBytes = p->srcXInBytes, .srcY = p->srcY, .srcMemoryType = p->srcMemoryType,
        .srcHost = p->srcHost, .srcDevice = p->srcDevice, .srcArray = p->srcArray,
        .srcPitch = p->srcPitch, .dstXInBytes = p->dstXInBytes, .dstY = p->dstY,
        .dstMemoryType = p->dstMemoryType, .dstHost = p->dstHost, .dstDevice = p->dstDevice,
        .dstArray = p->dstArray, .dstPitch = p->dstPitch, .WidthInBytes = p->WidthInBytes,
        .Height = p->Height, .Depth = 1};
    return copy_3d(ctx, &whole, stream, async);
}

API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy) {
    ENTER_CONTEXT(ctx);
    return copy_2d(ctx, pCopy, NULL, false);
}

API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy) {
    ENTER_CONTEXT(ctx);
    return copy_2d(ctx, pCopy, NULL, false);
}

API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream) {
    ENTER_CONTEXT(ctx);
    return copy_2d(ctx, pCopy, hStream, true);
}

API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy) {
    ENTER_CONTEXT(ctx);
    return copy_3d(ctx, pCopy, NULL, false);
}

API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream) {
    ENTER_CONTEXT(ctx);
    return copy_3d(ctx, pCopy, hStream, true);
}

static CUresult copy_3d_peer(CUcontext ctx, const CUDA_MEMCPY3D_PEER *p, CUstream stream,
                             bool async) {
    REQUIRE(p != NULL);
    CUDA_MEMCPY3D whole = {
        .srcXInBytes = p->srcXInBytes, .srcY = p->srcY, .srcZ = p->srcZ, .srcLOD = p->srcLOD,
        .srcMemoryType = p->srcMemoryType, .srcHost = p->srcHost, .srcDevice = p->srcDevice,
        .srcArray = p->srcArray, .srcPitch = p->srcPitch, .srcHeight = p->srcHeight,
        .dstXInBytes = p->dstXInBytes, .dstY = p->dstY, .dstZ = p->dstZ, .dstLOD = p->dstLOD,
        .dstMemoryType = p->dstMemoryType, .dstHost = p->dstHost, .dstDevice = p->dstDevice,
        .dstArray = p->dstArray, .dstPitch = p->dstPitch, .dstHeight = p->dstHeight,
        .WidthInBytes = p->WidthInBytes, .Height = p->Height, .Depth = p->Depth};
    return copy_3d(ctx, &whole, stream, async);
}

API CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy) {
    ENTER_CONTEXT(ctx);
    return copy_3d_peer(ctx, pCopy, NULL, false);
}

API CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream) {
    ENTER_CONTEXT(ctx);
    return copy_3d_peer(ctx, pCopy, hStream, true);
}

/* ---- fills ---- */

CUresult fill_check(const struct fill *fill) {
    REQUIRE(fill->element == 1 || fill->element == 2 || fill->element == 4);
    REQUIRE(fill->target % fill->element == 0 && fill->pitch % fill->element == 0);
    if (fill->width == 0 || fill->height == 0)
        return CUDA_SUCCESS;
    REQUIRE(fill->height == 1 || fill->pitch >= fill->width * fill->element);
    size_t span = (fill->height - 1) * fill->pitch + fill->width * fill->element;
    REQUIRE(memory_storage(fill->target, span) != NULL);
    return CUDA_SUCCESS;
}

CUresult fill_run(const struct fill *fill) {
    for (size_t y = 0; y < fill->height; y++) {
        size_t bytes = fill->width * fill->element;
        char *row = memory_storage(fill->target + y * fill->pitch, bytes);
        if (row == NULL && bytes > 0)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        if (fill->element == 1)
            memset(row, (int)fill->value, bytes);
        for (size_t x = 0; fill->element > 1 && x < fill->width; x++)
            memcpy(row + x * fill->element, &fill->value, fill->element);
    }
    return CUDA_SUCCESS;
}

static CUresult fill_submit(CUcontext ctx, CUdeviceptr target, size_t pitch, unsigned value,
                            unsigned element, size_t width, size_t height, CUstream handle,
                            bool async) {
    CUstream stream;
    TRY(stream_resolve(ctx, async ? handle : NULL, &stream));
    struct work work = {.kind = WORK_FILL, .fill = {target, pitch, width, height, value, element}};
    TRY(fill_check(&work.fill));
    /* A synchronous fill is asynchronous to the host too, save for its order (cuda.h). */
    return stream_submit(stream, &work);
}

#define FILLS(bits, type, letter)                                                                  \
    API CUresult cuMemsetD##bits##_v2(CUdeviceptr dstDevice, type value, size_t N) {               \
        ENTER_CONTEXT(ctx);                                                                        \
        return fill_submit(ctx, dstDevice, 0, value, bits / 8, N, 1, NULL, false);                 \
    }                                                                                              \
    API CUresult cuMemsetD##bits##Async(CUdeviceptr dstDevice, type value, size_t N,               \
                                        CUstream hStream) {                                        \
        ENTER_CONTEXT(ctx);                                                                        \
        return fill_submit(ctx, dstDevice, 0, value, bits / 8, N, 1, hStream, true);               \
    }                                                                                              \
    API CUresult cuMemsetD2D##bits##_v2(CUdeviceptr dstDevice, size_t dstPitch, type value,        \
                                        size_t Width, size_t Height) {                             \
        ENTER_CONTEXT(ctx);                                                                        \
        return fill_submit(ctx, dstDevice, dstPitch, value, bits / 8, Width, Height, NULL, false); \
    }                                                                                              \
    API CUresult cuMemsetD2D##bits##Async(CUdeviceptr dstDevice, size_t dstPitch, type value,      \
                                          size_t Width, size_t Height, CUstream hStream) {         \
        ENTER_CONTEXT(ctx);                                                                        \
        return fill_submit(ctx, dstDevice, dstPitch, value, bits / 8, Width, Height, hStream,      \
                           true);                                                                  \
    }

FILLS(8, unsigned char, uc)
FILLS(16, unsigned short, us)
FILLS(32, unsigned int, ui)

/* ---- one-dimensional copies with arrays ---- */

static CUresult copy_array_1d(CUcontext ctx, struct endpoint target, struct endpoint source,
                              size_t bytes, CUstream stream, bool async) {
    struct copy copy = {.source = source, .target = target, .width = bytes, .height = 1,
                        .depth = 1};
    return copy_submit(ctx, copy, stream, async);
}

static struct endpoint array_endpoint(CUarray array, size_t offset) {
    return (struct endpoint){.type = CU_MEMORYTYPE_ARRAY, .array = array, .x = offset};
}

API CUresult cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void *srcHost,
                             size_t ByteCount) {
    ENTER_CONTEXT(ctx);
    return copy_array_1d(ctx, array_endpoint(dstArray, dstOffset), flat_endpoint(HOST(srcHost)),
                         ByteCount, NULL, false);
}

API CUresult cuMemcpyAtoH_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount) {
    ENTER_CONTEXT(ctx);
    return copy_array_1d(ctx, flat_endpoint(HOST(dstHost)), array_endpoint(srcArray, srcOffset),
                         ByteCount, NULL, false);
}

API CUresult cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice,
                             size_t ByteCount) {
    ENTER_CONTEXT(ctx);
    return copy_array_1d(ctx, array_endpoint(dstArray, dstOffset),
                         flat_endpoint(DEVICE(srcDevice)), ByteCount, NULL, false);
}

API CUresult cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset,
                             size_t ByteCount) {
    ENTER_CONTEXT(ctx);
    return copy_array_1d(ctx, flat_endpoint(DEVICE(dstDevice)),
                         array_endpoint(srcArray, srcOffset), ByteCount, NULL, false);
}

API CUresult cuMemcpyAtoA_v2(CUarray dstArray, size_t dstOffset, CUarray srcArray,
                             size_t srcOffset, size_t ByteCount) {
    ENTER_CONTEXT(ctx);
    return copy_array_1d(ctx, array_endpoint(dstArray, dstOffset),
                         array_endpoint(srcArray, srcOffset), ByteCount, NULL, false);
}

API CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void *srcHost,
                                  size_t ByteCount, CUstream hStream) {
    ENTER_CONTEXT(ctx);
    return copy_array_1d(ctx, array_endpoint(dstArray, dstOffset), flat_endpoint(HOST(srcHost)),
                         ByteCount, hStream, true);
}

API CUresult cuMemcpyAtoHAsync_v2(void *dstHost, CUarray srcArray, size_t srcOffset,
                                  size_t ByteCount, CUstream hStream) {
    ENTER_CONTEXT(ctx);
    return copy_array_1d(ctx, flat_endpoint(HOST(dstHost)), array_endpoint(srcArray, srcOffset),
                         ByteCount, hStream, true);
}
