/* Batches: their single operations, one after the other. */
#define _GNU_SOURCE
#include "fake.h"

#include <string.h>

extern CUresult cuMemcpyAsync(CUdeviceptr, CUdeviceptr, size_t, CUstream);
extern CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *, CUstream);
extern CUresult cuMemPrefetchAsync_v2(CUdeviceptr, size_t, CUmemLocation, unsigned int, CUstream);

/* Each kind of operation begins behind the one before it; the first at 0. */
static CUresult kinds_check(const size_t *first, size_t kinds, size_t count) {
    REQUIRE(first != NULL && kinds > 0 && kinds <= count);
    for (size_t i = 0; i < kinds; i++)
        REQUIRE(first[i] < count && (i == 0 ? first[0] == 0 : first[i] > first[i - 1]));
    return CUDA_SUCCESS;
}

/* Any stream but the legacy one. */
static CUresult stream_check(CUstream handle) {
    CUcontext ctx;
    CUstream stream;
    TRY(context_current(&ctx));
    TRY(stream_resolve(ctx, handle, &stream));
    REQUIRE(stream != ctx->legacy);
    return CUDA_SUCCESS;
}

API CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
                                size_t *failIdx, CUstream hStream) {
    ENTER();
    if (failIdx != NULL)
        *failIdx = SIZE_MAX;
    REQUIRE(dsts != NULL && srcs != NULL && sizes != NULL && count > 0 && attrs != NULL);
    TRY(stream_check(hStream));
    TRY(kinds_check(attrsIdxs, numAttrs, count));
    for (size_t i = 0; i < numAttrs; i++)
        REQUIRE((int)attrs[i].srcAccessOrder >= 1 && (int)attrs[i].srcAccessOrder <= 3);
    for (size_t i = 0; i < count; i++) {
        CUresult result = cuMemcpyAsync(dsts[i], srcs[i], sizes[i], hStream);
        if (result != CUDA_SUCCESS) {
            if (failIdx != NULL)
                *failIdx = i;
            return result;
        }
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
                                   size_t count, CUmemcpyAttributes *attrs, size_t *attrsIdxs,
                                   size_t numAttrs, CUstream hStream) {
    return cuMemcpyBatchAsync(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, NULL, hStream);
}

static size_t element_bytes(const CUmemcpy3DOperand *operand) {
    if ((int)operand->type != 2 || !IS(operand->op.array.array, MAGIC_ARRAY))
        return 0;
    CUarray array = operand->op.array.array;
    return array->width_bytes / array->description.Width;
}

static CUresult operation_copy(const CUDA_MEMCPY3D_BATCH_OP *op, CUstream stream) {
    size_t from = element_bytes(&op->src), to = element_bytes(&op->dst);
    size_t element = from ? from : to ? to : 1;
    REQUIRE(from == 0 || to == 0 || from == to);
    REQUIRE(op->extent.width > 0 && op->extent.height > 0 && op->extent.depth > 0);
    REQUIRE((int)op->srcAccessOrder >= 1 && (int)op->srcAccessOrder <= 3);
    CUDA_MEMCPY3D copy = {.WidthInBytes = op->extent.width * element,
                          .Height = op->extent.height, .Depth = op->extent.depth};
    if (from) {
        copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
        copy.srcArray = op->src.op.array.array;
        copy.srcXInBytes = op->src.op.array.offset.x * element;
        copy.srcY = op->src.op.array.offset.y;
        copy.srcZ = op->src.op.array.offset.z;
    } else {
        REQUIRE((int)op->src.type == 1);
        copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
        copy.srcDevice = op->src.op.ptr.ptr;
        copy.srcPitch = op->src.op.ptr.rowLength * element;
        copy.srcHeight = op->src.op.ptr.layerHeight;
        REQUIRE(copy.srcPitch == 0 || copy.srcPitch >= copy.WidthInBytes);
    }
    if (to) {
        copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
        copy.dstArray = op->dst.op.array.array;
        copy.dstXInBytes = op->dst.op.array.offset.x * element;
        copy.dstY = op->dst.op.array.offset.y;
        copy.dstZ = op->dst.op.array.offset.z;
    } else {
        REQUIRE((int)op->dst.type == 1);
        copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
        copy.dstDevice = op->dst.op.ptr.ptr;
        copy.dstPitch = op->dst.op.ptr.rowLength * element;
        copy.dstHeight = op->dst.op.ptr.layerHeight;
        REQUIRE(copy.dstPitch == 0 || copy.dstPitch >= copy.WidthInBytes);
    }
    return cuMemcpy3DAsync_v2(&copy, stream);
}

API CUresult cuMemcpy3DBatchAsync(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, size_t *failIdx,
                                  unsigned long long flags, CUstream hStream) {
    ENTER();
    if (failIdx != NULL)
        *failIdx = SIZE_MAX;
    REQUIRE(numOps > 0 && opList != NULL && flags == 0);
    TRY(stream_check(hStream));
    for (size_t i = 0; i < numOps; i++) {
        CUresult result = operation_copy(&opList[i], hStream);
        if (result != CUDA_SUCCESS) {
            if (failIdx != NULL)
                *failIdx = i;
            return result;
        }
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemcpy3DBatchAsync_v2(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList,
                                     unsigned long long flags, CUstream hStream) {
    return cuMemcpy3DBatchAsync(numOps, opList, NULL, flags, hStream);
}

/* ---- hints ---- */

API CUresult cuMemPrefetchBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count,
                                     CUmemLocation *prefetchLocs, size_t *prefetchLocIdxs,
                                     size_t numPrefetchLocs, unsigned long long flags,
                                     CUstream hStream) {
    ENTER();
    REQUIRE(dptrs != NULL && sizes != NULL && count > 0 && prefetchLocs != NULL && flags == 0);
    TRY(stream_check(hStream));
    TRY(kinds_check(prefetchLocIdxs, numPrefetchLocs, count));
    for (size_t i = 0; i < count; i++)
        TRY(cuMemPrefetchAsync_v2(dptrs[i], sizes[i], prefetchLocs[0], 0, hStream));
    return CUDA_SUCCESS;
}

API CUresult cuMemDiscardBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count,
                                    unsigned long long flags, CUstream hStream) {
    ENTER();
    REQUIRE(dptrs != NULL && sizes != NULL && count > 0 && flags == 0);
    TRY(stream_check(hStream));
    for (size_t i = 0; i < count; i++) {
        struct region region;
        REQUIRE(memory_find(dptrs[i], &region) && region.kind == REGION_MANAGED);
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count,
                                               CUmemLocation *prefetchLocs,
                                               size_t *prefetchLocIdxs, size_t numPrefetchLocs,
                                               unsigned long long flags, CUstream hStream) {
    return cuMemPrefetchBatchAsync(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs,
                                   numPrefetchLocs, flags, hStream);
}
