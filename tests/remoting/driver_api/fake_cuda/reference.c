/* Texture and surface references: a description that kernels of their module read by name. */
#define _GNU_SOURCE
#include "fake.h"

#include <string.h>

#define ALIGNMENT 512
#define LINEAR 2
#define PITCHED 3

struct CUtexref_st {
    struct reference common;
};
struct CUsurfref_st {
    struct reference common;
};

static void reference_reset(struct reference *reference, const char *name, bool surface) {
    reference->magic = surface ? MAGIC_SURFREF : MAGIC_TEXREF;
    reference->name = name;
    reference->format = 0x20; /* CU_AD_FORMAT_FLOAT */
    reference->channels = 1;
}

void references_make(CUmodule module) {
    const struct image *image = module->image;
    module->references = zeroed(image->reference_count * sizeof *module->references);
    for (unsigned i = 0; i < image->reference_count; i++)
        reference_reset(&module->references[i], image->references[i].name,
                        image->references[i].surface);
}

/* What a launch binds stays bound for it, whatever the program does to the references then. */
const struct reference *references_copy(CUmodule module) {
    size_t bytes = module->image->reference_count * sizeof *module->references;
    return bytes == 0 ? NULL : memcpy(zeroed(bytes), module->references, bytes);
}

static CUresult module_reference(void **out, CUmodule module, const char *name, bool surface) {
    REQUIRE(out != NULL && name != NULL);
    REQUIRE_HANDLE(IS(module, MAGIC_MODULE));
    for (unsigned i = 0; i < module->image->reference_count; i++)
        if (module->image->references[i].surface == surface &&
            strcmp(module->references[i].name, name) == 0) {
            *out = &module->references[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

API CUresult cuModuleGetTexRef(CUtexref *pTexRef, CUmodule hmod, const char *name) {
    ENTER_CONTEXT(ctx);
    return module_reference((void **)pTexRef, hmod, name, false);
}

API CUresult cuModuleGetSurfRef(CUsurfref *pSurfRef, CUmodule hmod, const char *name) {
    ENTER_CONTEXT(ctx);
    return module_reference((void **)pSurfRef, hmod, name, true);
}

API CUresult cuTexRefCreate(CUtexref *pTexRef) {
    ENTER_CONTEXT(ctx);
    REQUIRE(pTexRef != NULL);
    *pTexRef = zeroed(sizeof **pTexRef);
    reference_reset(&(*pTexRef)->common, NULL, false);
    return CUDA_SUCCESS;
}

/* Checks the handle and gives what it stands for. */
#define ENTER_REFERENCE(handle, kind, reference)                                                   \
    ENTER_CONTEXT(ctx);                                                                            \
    REQUIRE_HANDLE((handle) != NULL && (handle)->common.magic == (kind));                          \
    struct reference *reference = &(handle)->common

API CUresult cuTexRefDestroy(CUtexref hTexRef) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    REQUIRE(reference->name == NULL); /* not of a module */
    reference->magic = MAGIC_DEAD;
    return CUDA_SUCCESS;
}

/* ---- what is bound ---- */

API CUresult cuTexRefSetArray(CUtexref hTexRef, CUarray hArray, unsigned int Flags) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    REQUIRE(Flags <= 1); /* 0: the reference's own format, as CUDA's runtime 11 has it */
    REQUIRE_HANDLE(IS(hArray, MAGIC_ARRAY));
    reference->bound = true;
    reference->resource = (CUDA_RESOURCE_DESC){.resType = 0, .res.array.hArray = hArray};
    if (Flags == 1) {
        reference->format = (int)hArray->description.Format;
        reference->channels = (int)hArray->description.NumChannels;
    }
    return CUDA_SUCCESS;
}

API CUresult cuTexRefSetMipmappedArray(CUtexref hTexRef, CUmipmappedArray hMipmappedArray,
                                       unsigned int Flags) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    REQUIRE(Flags <= 1);
    REQUIRE_HANDLE(array_level(hMipmappedArray, 0) != NULL);
    reference->bound = true;
    reference->resource =
        (CUDA_RESOURCE_DESC){.resType = 1, .res.mipmap.hMipmappedArray = hMipmappedArray};
    return CUDA_SUCCESS;
}

API CUresult cuTexRefSetAddress_v2(size_t *ByteOffset, CUtexref hTexRef, CUdeviceptr dptr,
                                   size_t bytes) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    if (dptr == 0 && bytes == 0) {
        reference->bound = false;
        return CUDA_SUCCESS;
    }
    size_t offset = (size_t)dptr % ALIGNMENT;
    REQUIRE(offset == 0 || ByteOffset != NULL);
    REQUIRE(memory_storage(dptr, bytes) != NULL);
    if (ByteOffset != NULL)
        *ByteOffset = offset;
    reference->bound = true;
    reference->resource = (CUDA_RESOURCE_DESC){.resType = LINEAR};
    reference->resource.res.linear.devPtr = dptr - offset;
    reference->resource.res.linear.sizeInBytes = bytes + offset;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefSetAddress2D_v3(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR *desc,
                                     CUdeviceptr dptr, size_t Pitch) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    REQUIRE(desc != NULL && dptr % ALIGNMENT == 0 && Pitch % 32 == 0);
    REQUIRE(memory_storage(dptr, Pitch * (desc->Height - 1) + desc->Width) != NULL);
    reference->bound = true;
    reference->resource = (CUDA_RESOURCE_DESC){.resType = PITCHED};
    reference->resource.res.pitch2D.devPtr = dptr;
    reference->resource.res.pitch2D.width = desc->Width;
    reference->resource.res.pitch2D.height = desc->Height;
    reference->resource.res.pitch2D.pitchInBytes = Pitch;
    reference->format = (int)desc->Format;
    reference->channels = (int)desc->NumChannels;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefSetAddress2D_v2(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR *desc,
                                     CUdeviceptr dptr, size_t Pitch);
API CUresult cuTexRefSetAddress2D_v2(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR *desc,
                                     CUdeviceptr dptr, size_t Pitch) {
    return cuTexRefSetAddress2D_v3(hTexRef, desc, dptr, Pitch);
}

API CUresult cuSurfRefSetArray(CUsurfref hSurfRef, CUarray hArray, unsigned int Flags) {
    ENTER_REFERENCE(hSurfRef, MAGIC_SURFREF, reference);
    REQUIRE(Flags == 0);
    REQUIRE_HANDLE(IS(hArray, MAGIC_ARRAY));
    REQUIRE(hArray->description.Flags & 2); /* CUDA_ARRAY3D_SURFACE_LDST */
    reference->bound = true;
    reference->resource = (CUDA_RESOURCE_DESC){.resType = 0, .res.array.hArray = hArray};
    return CUDA_SUCCESS;
}

static bool is_bound(const struct reference *reference, int kind) {
    return reference->bound && (int)reference->resource.resType == kind;
}

API CUresult cuSurfRefGetArray(CUarray *phArray, CUsurfref hSurfRef) {
    ENTER_REFERENCE(hSurfRef, MAGIC_SURFREF, reference);
    REQUIRE(phArray != NULL && is_bound(reference, 0));
    *phArray = reference->resource.res.array.hArray;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefGetArray(CUarray *phArray, CUtexref hTexRef) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    REQUIRE(phArray != NULL && is_bound(reference, 0));
    *phArray = reference->resource.res.array.hArray;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefGetMipmappedArray(CUmipmappedArray *phMipmappedArray, CUtexref hTexRef) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    REQUIRE(phMipmappedArray != NULL && is_bound(reference, 1));
    *phMipmappedArray = reference->resource.res.mipmap.hMipmappedArray;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefGetAddress_v2(CUdeviceptr *pdptr, CUtexref hTexRef) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    REQUIRE(pdptr != NULL && (is_bound(reference, LINEAR) || is_bound(reference, PITCHED)));
    *pdptr = reference->resource.res.linear.devPtr;
    return CUDA_SUCCESS;
}

/* ---- how it is read ---- */

API CUresult cuTexRefSetFormat(CUtexref hTexRef, CUarray_format fmt, int NumPackedComponents) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    REQUIRE(NumPackedComponents == 1 || NumPackedComponents == 2 || NumPackedComponents == 4);
    reference->format = (int)fmt;
    reference->channels = NumPackedComponents;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefGetFormat(CUarray_format *pFormat, int *pNumChannels, CUtexref hTexRef) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    REQUIRE(pFormat != NULL && pNumChannels != NULL);
    *pFormat = (CUarray_format)reference->format;
    *pNumChannels = reference->channels;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefSetAddressMode(CUtexref hTexRef, int dim, CUaddress_mode am) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    REQUIRE(dim >= 0 && dim < 3 && (int)am >= 0 && (int)am <= 3);
    reference->texture.addressMode[dim] = am;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefGetAddressMode(CUaddress_mode *pam, CUtexref hTexRef, int dim) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    REQUIRE(pam != NULL && dim >= 0 && dim < 3);
    *pam = reference->texture.addressMode[dim];
    return CUDA_SUCCESS;
}

#define SETTING(set, type, field)                                                                  \
    API CUresult set(CUtexref hTexRef, type value) {                                               \
        ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);                                         \
        reference->texture.field = value;                                                          \
        return CUDA_SUCCESS;                                                                       \
    }

#define ASKED(get, type, field)                                                                    \
    API CUresult get(type *value, CUtexref hTexRef) {                                              \
        ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);                                         \
        REQUIRE(value != NULL);                                                                    \
        *value = (type)reference->texture.field;                                                   \
        return CUDA_SUCCESS;                                                                       \
    }

SETTING(cuTexRefSetFilterMode, CUfilter_mode, filterMode)
SETTING(cuTexRefSetMipmapFilterMode, CUfilter_mode, mipmapFilterMode)
SETTING(cuTexRefSetMipmapLevelBias, float, mipmapLevelBias)
SETTING(cuTexRefSetMaxAnisotropy, unsigned int, maxAnisotropy)
SETTING(cuTexRefSetFlags, unsigned int, flags)
ASKED(cuTexRefGetFilterMode, CUfilter_mode, filterMode)
ASKED(cuTexRefGetMipmapFilterMode, CUfilter_mode, mipmapFilterMode)
ASKED(cuTexRefGetMipmapLevelBias, float, mipmapLevelBias)
ASKED(cuTexRefGetMaxAnisotropy, int, maxAnisotropy)
ASKED(cuTexRefGetFlags, unsigned int, flags)

API CUresult cuTexRefSetMipmapLevelClamp(CUtexref hTexRef, float minMipmapLevelClamp,
                                         float maxMipmapLevelClamp) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    reference->texture.minMipmapLevelClamp = minMipmapLevelClamp;
    reference->texture.maxMipmapLevelClamp = maxMipmapLevelClamp;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefGetMipmapLevelClamp(float *pminMipmapLevelClamp, float *pmaxMipmapLevelClamp,
                                         CUtexref hTexRef) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    REQUIRE(pminMipmapLevelClamp != NULL && pmaxMipmapLevelClamp != NULL);
    *pminMipmapLevelClamp = reference->texture.minMipmapLevelClamp;
    *pmaxMipmapLevelClamp = reference->texture.maxMipmapLevelClamp;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefSetBorderColor(CUtexref hTexRef, float *pBorderColor) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    REQUIRE(pBorderColor != NULL);
    memcpy(reference->texture.borderColor, pBorderColor, 4 * sizeof(float));
    return CUDA_SUCCESS;
}

API CUresult cuTexRefGetBorderColor(float *pBorderColor, CUtexref hTexRef) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    REQUIRE(pBorderColor != NULL);
    memcpy(pBorderColor, reference->texture.borderColor, 4 * sizeof(float));
    return CUDA_SUCCESS;
}

API CUresult cuParamSetTexRef(CUfunction hfunc, int texunit, CUtexref hTexRef) {
    ENTER_REFERENCE(hTexRef, MAGIC_TEXREF, reference);
    REQUIRE_HANDLE(IS(hfunc, MAGIC_FUNCTION) && reference != NULL);
    (void)texunit; /* whatever it is, on an H200 (580) */
    return CUDA_SUCCESS;
}
