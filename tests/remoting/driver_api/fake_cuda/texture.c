/* Textures and surfaces: descriptions that are kept; kernels read them (special.c). */
#define _GNU_SOURCE
#include "fake.h"

CUresult texture_of(unsigned long long handle, uint32_t magic, struct texture **out) {
    *out = (struct texture *)(uintptr_t)handle;
    REQUIRE(*out != NULL && (*out)->magic == magic);
    return CUDA_SUCCESS;
}

static CUresult texture_new(unsigned long long *handle, const CUDA_RESOURCE_DESC *resource,
                            uint32_t magic, struct texture **out) {
    CUcontext ctx;
    TRY(context_current(&ctx));
    REQUIRE(handle != NULL && resource != NULL);
    if ((int)resource->resType == 0)
        REQUIRE(IS(resource->res.array.hArray, MAGIC_ARRAY));
    if ((int)resource->resType == 1)
        REQUIRE(array_level(resource->res.mipmap.hMipmappedArray, 0) != NULL);
    REQUIRE((int)resource->resType >= 0 && (int)resource->resType <= 3);
    if (magic == MAGIC_SURFACE) { /* of arrays that were made for it (cuda.h) */
        REQUIRE((int)resource->resType == 0);
        REQUIRE(resource->res.array.hArray->description.Flags & 2);
    }
    if ((int)resource->resType == 2)
        REQUIRE(memory_storage(resource->res.linear.devPtr, resource->res.linear.sizeInBytes));
    *out = zeroed(sizeof **out);
    (*out)->magic = magic;
    (*out)->resource = *resource;
    *handle = (unsigned long long)(uintptr_t)*out;
    return CUDA_SUCCESS;
}

API CUresult cuTexObjectCreate(CUtexObject *pTexObject, const CUDA_RESOURCE_DESC *pResDesc,
                               const CUDA_TEXTURE_DESC *pTexDesc,
                               const CUDA_RESOURCE_VIEW_DESC *pResViewDesc) {
    ENTER();
    struct texture *made;
    REQUIRE(pTexDesc != NULL);
    TRY(texture_new(pTexObject, pResDesc, MAGIC_TEXTURE, &made));
    made->texture = *pTexDesc;
    if (pResViewDesc != NULL)
        made->view = *pResViewDesc;
    return CUDA_SUCCESS;
}

API CUresult cuTexObjectDestroy(CUtexObject texObject) {
    ENTER();
    if (texObject == 0)
        return CUDA_SUCCESS;
    struct texture *texture;
    TRY(texture_of(texObject, MAGIC_TEXTURE, &texture));
    texture->magic = MAGIC_DEAD;
    return CUDA_SUCCESS;
}

API CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUtexObject texObject) {
    ENTER();
    struct texture *texture;
    REQUIRE(pResDesc != NULL);
    TRY(texture_of(texObject, MAGIC_TEXTURE, &texture));
    *pResDesc = texture->resource;
    return CUDA_SUCCESS;
}

API CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *pTexDesc, CUtexObject texObject) {
    ENTER();
    struct texture *texture;
    REQUIRE(pTexDesc != NULL);
    TRY(texture_of(texObject, MAGIC_TEXTURE, &texture));
    *pTexDesc = texture->texture;
    return CUDA_SUCCESS;
}

API CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *pResViewDesc,
                                            CUtexObject texObject) {
    ENTER();
    struct texture *texture;
    REQUIRE(pResViewDesc != NULL);
    TRY(texture_of(texObject, MAGIC_TEXTURE, &texture));
    *pResViewDesc = texture->view;
    return CUDA_SUCCESS;
}

API CUresult cuSurfObjectCreate(CUsurfObject *pSurfObject, const CUDA_RESOURCE_DESC *pResDesc) {
    ENTER();
    struct texture *made;
    return texture_new(pSurfObject, pResDesc, MAGIC_SURFACE, &made);
}

API CUresult cuSurfObjectDestroy(CUsurfObject surfObject) {
    ENTER();
    if (surfObject == 0)
        return CUDA_SUCCESS;
    struct texture *surface;
    TRY(texture_of(surfObject, MAGIC_SURFACE, &surface));
    surface->magic = MAGIC_DEAD;
    return CUDA_SUCCESS;
}

API CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUsurfObject surfObject) {
    ENTER();
    struct texture *surface;
    REQUIRE(pResDesc != NULL);
    TRY(texture_of(surfObject, MAGIC_SURFACE, &surface));
    *pResDesc = surface->resource;
    return CUDA_SUCCESS;
}
