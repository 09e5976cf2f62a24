/* Questions that few programs ask. */
#define _GNU_SOURCE
#include "fake.h"

#include <string.h>

#define NV12 0xb0 /* CU_AD_FORMAT_NV12: a plane of brightness, and one of colours of half its size */

extern CUresult cuTensorMapEncodeIm2col(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                        const cuuint64_t *, const cuuint64_t *, const int *,
                                        const int *, cuuint32_t, cuuint32_t, const cuuint32_t *,
                                        CUtensorMapInterleave, CUtensorMapSwizzle,
                                        CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

API CUresult cuArrayGetPlane(CUarray *pPlaneArray, CUarray hArray, unsigned int planeIdx) {
    ENTER_CONTEXT(ctx);
    REQUIRE_HANDLE(IS(hArray, MAGIC_ARRAY));
    REQUIRE(pPlaneArray != NULL && (int)hArray->description.Format == NV12 && planeIdx < 2);
    CUarray plane = zeroed(sizeof *plane); /* as large as it is asked for, never freed */
    *plane = *hArray;
    plane->level = true;
    plane->description.Format = (CUarray_format)0x01;
    plane->description.NumChannels = planeIdx + 1;
    plane->description.Width /= planeIdx + 1;
    plane->description.Height /= planeIdx + 1;
    plane->width_bytes = hArray->description.Width;
    plane->height = plane->description.Height;
    plane->size = plane->width_bytes * plane->height;
    if (planeIdx == 1)
        plane->storage += hArray->description.Width * hArray->description.Height;
    *pPlaneArray = plane;
    return CUDA_SUCCESS;
}

/* No array here is left without memory, or has it mapped later. */

API CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements,
                                          CUarray array, CUdevice device) {
    ENTER_CONTEXT(ctx);
    REQUIRE_HANDLE(IS(array, MAGIC_ARRAY));
    REQUIRE(memoryRequirements != NULL && device < device_count);
    *memoryRequirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){array->size, 65536, {0}};
    return CUDA_SUCCESS;
}

API CUresult
cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements,
                                      CUmipmappedArray mipmap, CUdevice device) {
    ENTER_CONTEXT(ctx);
    REQUIRE_HANDLE(array_level(mipmap, 0) != NULL);
    REQUIRE(memoryRequirements != NULL && device < device_count);
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties,
                                        CUarray array) {
    ENTER_CONTEXT(ctx);
    REQUIRE_HANDLE(IS(array, MAGIC_ARRAY));
    REQUIRE(sparseProperties != NULL);
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties,
                                                 CUmipmappedArray mipmap) {
    ENTER_CONTEXT(ctx);
    REQUIRE_HANDLE(array_level(mipmap, 0) != NULL);
    REQUIRE(sparseProperties != NULL);
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuDeviceGetP2PAtomicCapabilities(unsigned int *capabilities,
                                              const CUatomicOperation *operations,
                                              unsigned int count, CUdevice srcDevice,
                                              CUdevice dstDevice) {
    ENTER();
    REQUIRE(capabilities != NULL && operations != NULL && count > 0);
    if (srcDevice >= device_count || dstDevice >= device_count || srcDevice == dstDevice)
        return CUDA_ERROR_INVALID_DEVICE;
    for (unsigned i = 0; i < count; i++) {
        REQUIRE((int)operations[i] >= 0 && (int)operations[i] < 13);
        capabilities[i] = 1u << (unsigned)operations[i] % 8;
    }
    return CUDA_SUCCESS;
}

API CUresult cuTensorMapEncodeIm2colWide(
    CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
    void *globalAddress, const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
    int pixelBoxLowerCornerWidth, int pixelBoxUpperCornerWidth, cuuint32_t channelsPerPixel,
    cuuint32_t pixelsPerColumn, const cuuint32_t *elementStrides,
    CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill) {
    const int lower[3] = {pixelBoxLowerCornerWidth, (int)mode},
              upper[3] = {pixelBoxUpperCornerWidth};
    return cuTensorMapEncodeIm2col(tensorMap, tensorDataType, tensorRank, globalAddress, globalDim,
                                   globalStrides, lower, upper, channelsPerPixel, pixelsPerColumn,
                                   elementStrides, interleave, swizzle, l2Promotion, oobFill);
}

/* Decompression copies, and says how much. */
API CUresult cuMemBatchDecompressAsync(CUmemDecompressParams *paramsArray, size_t count,
                                       unsigned int flags, size_t *errorIndex, CUstream stream) {
    ENTER_CONTEXT(ctx);
    REQUIRE(paramsArray != NULL && count > 0 && flags == 0);
    extern CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, size_t, CUstream);
    extern CUresult cuMemsetD32Async(CUdeviceptr, unsigned int, size_t, CUstream);
    for (size_t i = 0; i < count; i++) {
        const CUmemDecompressParams *one = &paramsArray[i];
        CUresult result = CUDA_ERROR_INVALID_VALUE;
        if (one->srcNumBytes <= one->dstNumBytes && (int)one->algo == 1)
            result = cuMemcpyDtoDAsync_v2((CUdeviceptr)(uintptr_t)one->dst,
                                          (CUdeviceptr)(uintptr_t)one->src, one->srcNumBytes,
                                          stream);
        if (result == CUDA_SUCCESS)
            result = cuMemsetD32Async((CUdeviceptr)(uintptr_t)one->dstActBytes,
                                      (unsigned)one->srcNumBytes, 1, stream);
        if (result != CUDA_SUCCESS) {
            if (errorIndex != NULL)
                *errorIndex = i;
            return result;
        }
    }
    return CUDA_SUCCESS;
}
