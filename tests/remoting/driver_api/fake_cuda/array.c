/* Arrays, and arrays of arrays: rows without gaps, which nothing but copies and kernels see. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>

static size_t format_bytes(CUarray_format format) {
    switch ((int)format) {
    case 0x01: case 0x08: return 1;
    case 0x02: case 0x09: case 0x10: return 2;
    case 0x03: case 0x0a: case 0x20: return 4;
    default: return 0;
    }
}

CUresult array_create(CUcontext ctx, CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *wanted) {
    REQUIRE(out != NULL && wanted != NULL && wanted->Width > 0);
    bool planes = (int)wanted->Format == 0xb0 && wanted->NumChannels == 3; /* NV12: query.c */
    REQUIRE(planes || wanted->NumChannels == 1 || wanted->NumChannels == 2 ||
            wanted->NumChannels == 4);
    size_t element = planes ? 2 : format_bytes(wanted->Format) * wanted->NumChannels;
    if (element == 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUarray array = zeroed(sizeof *array);
    array->magic = MAGIC_ARRAY;
    array->dev = ctx->dev;
    array->description = *wanted;
    array->width_bytes = wanted->Width * element;
    array->height = wanted->Height ? wanted->Height : 1;
    array->depth = wanted->Depth ? wanted->Depth : 1;
    array->size = array->width_bytes * array->height * array->depth;
    CUresult charged = device_charge(ctx->dev, array->size);
    if (charged != CUDA_SUCCESS) {
        free(array);
        return charged;
    }
    array->storage = zeroed(array->size);
    *out = array;
    return CUDA_SUCCESS;
}

void array_free(CUarray array) {
    array->magic = MAGIC_DEAD;
    device_refund(array->dev, array->size);
    free(array->storage);
}

API CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray) {
    ENTER_CONTEXT(ctx);
    return array_create(ctx, pHandle, pAllocateArray);
}

API CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray) {
    ENTER_CONTEXT(ctx);
    REQUIRE(pAllocateArray != NULL);
    CUDA_ARRAY3D_DESCRIPTOR whole = {.Width = pAllocateArray->Width,
                                     .Height = pAllocateArray->Height,
                                     .Format = pAllocateArray->Format,
                                     .NumChannels = pAllocateArray->NumChannels};
    return array_create(ctx, pHandle, &whole);
}

API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *pArrayDescriptor, CUarray hArray) {
    ENTER_CONTEXT(ctx);
    REQUIRE(pArrayDescriptor != NULL);
    REQUIRE_HANDLE(IS(hArray, MAGIC_ARRAY));
    *pArrayDescriptor = hArray->description;
    return CUDA_SUCCESS;
}

API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *pArrayDescriptor, CUarray hArray) {
    ENTER_CONTEXT(ctx);
    REQUIRE(pArrayDescriptor != NULL);
    REQUIRE_HANDLE(IS(hArray, MAGIC_ARRAY));
    *pArrayDescriptor =
        (CUDA_ARRAY_DESCRIPTOR){hArray->description.Width, hArray->description.Height,
                                hArray->description.Format, hArray->description.NumChannels};
    return CUDA_SUCCESS;
}

API CUresult cuArrayDestroy(CUarray hArray) {
    ENTER_CONTEXT(ctx);
    REQUIRE_HANDLE(IS(hArray, MAGIC_ARRAY));
    REQUIRE_HANDLE(!hArray->level);
    TRY(context_keep(ctx, context_wait));
    array_free(hArray);
    return CUDA_SUCCESS;
}

/* ---- mipmapped arrays: each level has half the size of the one before ---- */

#define LEVELS_MAX 16
struct CUmipmappedArray_st {
    uint32_t magic;
    unsigned count;
    CUarray levels[LEVELS_MAX];
};

CUarray array_level(CUmipmappedArray array, unsigned level) {
    return IS(array, MAGIC_MIPMAP) && level < array->count ? array->levels[level] : NULL;
}

static void mipmap_free(CUmipmappedArray array) {
    for (unsigned i = 0; i < array->count; i++)
        array_free(array->levels[i]);
    array->magic = MAGIC_DEAD;
}

static size_t half(size_t size) { return size > 1 ? size / 2 : size; }

API CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle,
                                    const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                    unsigned int numMipmapLevels) {
    ENTER_CONTEXT(ctx);
    REQUIRE(pHandle != NULL && pMipmappedArrayDesc != NULL);
    REQUIRE(numMipmapLevels > 0 && numMipmapLevels <= LEVELS_MAX);
    CUmipmappedArray made = zeroed(sizeof *made);
    made->magic = MAGIC_MIPMAP;
    CUDA_ARRAY3D_DESCRIPTOR level = *pMipmappedArrayDesc;
    for (unsigned i = 0; i < numMipmapLevels; i++) {
        CUresult result = array_create(ctx, &made->levels[i], &level);
        if (result != CUDA_SUCCESS) {
            mipmap_free(made);
            return result;
        }
        made->levels[i]->level = true;
        made->count = i + 1;
        level.Width = half(level.Width);
        level.Height = half(level.Height);
        level.Depth = half(level.Depth);
    }
    *pHandle = made;
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayGetLevel(CUarray *pLevelArray, CUmipmappedArray hMipmappedArray,
                                      unsigned int level) {
    ENTER();
    REQUIRE_HANDLE(IS(hMipmappedArray, MAGIC_MIPMAP));
    REQUIRE(pLevelArray != NULL && level < hMipmappedArray->count);
    *pLevelArray = hMipmappedArray->levels[level];
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
    ENTER_CONTEXT(ctx);
    REQUIRE_HANDLE(IS(hMipmappedArray, MAGIC_MIPMAP));
    TRY(context_keep(ctx, context_wait));
    mipmap_free(hMipmappedArray);
    return CUDA_SUCCESS;
}
