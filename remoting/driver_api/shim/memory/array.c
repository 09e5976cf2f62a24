// Arrays, and arrays of arrays.
#define _GNU_SOURCE
#include "copies.h"

#include <stdlib.h>

#define LEVELS_MAX 32
#define PLANES_MAX 3
#define SPARSE 0x40    // CUDA_ARRAY3D_SPARSE: memory is mapped to it later
#define DEFERRED 0x80  // CUDA_ARRAY3D_DEFERRED_MAPPING

// CUDA_ARRAY_DESCRIPTOR and CUDA_ARRAY3D_DESCRIPTOR.
struct descriptor_2d {
    size_t width, height;
    int format;
    unsigned channels;
};

struct descriptor {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

// The detail of a handle of GP_ARRAY.
struct array {
    struct descriptor descriptor;
    bool level;  // or plane: of another array, which owns it
    struct gp_handle *planes[PLANES_MAX];  // those that were asked for
};

// The detail of a handle of GP_MIPMAP.
struct mipmap {
    struct descriptor descriptor;
    unsigned count;
    struct gp_handle *levels[LEVELS_MAX];  // those that were asked for
};

static pthread_mutex_t level_lock = PTHREAD_MUTEX_INITIALIZER;

// --- making them ----------------------------------------------------------------------------------

static int make(void **handle, enum gp_kind kind, const struct descriptor *wanted, unsigned levels,
                void *detail) {
    struct gp_handle *made = detail == NULL ? NULL : gp_make(kind);
    if (made == NULL) {
        free(detail);
        return GP_OUT_OF_MEMORY;
    }
    made->detail = detail;
    gp_free_kept();
    int status = gp_call_array_create(made->id, wanted->width, wanted->height, wanted->depth,
                                      wanted->format, wanted->channels, wanted->flags, levels);
    if (status != GP_SUCCESS) {
        gp_end(made);
        free(detail);
        return status;
    }
    *handle = made;
    return GP_SUCCESS;
}

static int check(const void *handle, const struct descriptor *wanted) {
    if (handle == NULL || wanted == NULL || wanted->width == 0) return GP_INVALID_VALUE;
    unsigned channels = wanted->channels;
    if (channels != 1 && channels != 2 && channels != 3 && channels != 4) return GP_INVALID_VALUE;
    return wanted->flags & (SPARSE | DEFERRED) ? GP_NOT_SUPPORTED : GP_SUCCESS;
}

static int create(void **handle, const struct descriptor *wanted) {
    GP_ENTER();
    GP_CHECK(check(handle, wanted));
    struct array *array = calloc(1, sizeof *array);
    if (array != NULL) array->descriptor = *wanted;
    return make(handle, GP_ARRAY, wanted, 0, array);
}

GP_EXPORT int cuArray3DCreate_v2(void **handle, const struct descriptor *wanted) {
    return create(handle, wanted);
}

GP_EXPORT int cuArrayCreate_v2(void **handle, const struct descriptor_2d *wanted) {
    if (wanted == NULL) return GP_INVALID_VALUE;
    struct descriptor full = {wanted->width,  wanted->height,   0,
                              wanted->format, wanted->channels, 0};
    return create(handle, &full);
}

static int describe(struct descriptor *descriptor, void *handle) {
    GP_ENTER();
    GP_CHECK(gp_check(handle, GP_ARRAY));
    if (descriptor == NULL) return GP_INVALID_VALUE;
    *descriptor = ((struct array *)((struct gp_handle *)handle)->detail)->descriptor;
    return GP_SUCCESS;
}

GP_EXPORT int cuArray3DGetDescriptor_v2(struct descriptor *descriptor, void *handle) {
    return describe(descriptor, handle);
}

GP_EXPORT int cuArrayGetDescriptor_v2(struct descriptor_2d *descriptor, void *handle) {
    struct descriptor full;
    if (descriptor == NULL) return GP_INVALID_VALUE;
    GP_CHECK(describe(&full, handle));
    *descriptor = (struct descriptor_2d){full.width, full.height, full.format, full.channels};
    return GP_SUCCESS;
}

// The bytes of one channel by CUarray_format; 0 for formats whose elements are not channels.
static size_t channel_size(int format) {
    switch (format) {
        case 0x01: case 0x08: return 1;
        case 0x02: case 0x09: case 0x10: return 2;
        case 0x03: case 0x0a: case 0x20: return 4;
        default: return 0;
    }
}

int gp_array_element(const void *handle, size_t *size) {
    GP_CHECK(gp_check(handle, GP_ARRAY));
    const struct array *array = ((const struct gp_handle *)handle)->detail;
    *size = channel_size(array->descriptor.format) * array->descriptor.channels;
    return *size != 0 ? GP_SUCCESS : GP_NOT_SUPPORTED;
}

static int destroy(struct gp_handle *handle) {
    GP_ON(handle);
    uint64_t id = handle->id;
    free(handle->detail);
    handle->detail = NULL;
    gp_end(handle);
    return gp_post_array_destroy(id);
}

GP_EXPORT int cuArrayDestroy(void *handle) {
    GP_ENTER();
    GP_CHECK(gp_check(handle, GP_ARRAY));
    struct array *array = ((struct gp_handle *)handle)->detail;
    if (array->level) return GP_INVALID_HANDLE;
    for (int plane = 0; plane < PLANES_MAX; plane++) {
        if (array->planes[plane] == NULL) continue;
        free(array->planes[plane]->detail);
        gp_end(array->planes[plane]);
    }
    return destroy(handle);
}

// With level_lock held. Only pictures have planes, and the driver knows which; it says what one is.
static int make_plane(struct gp_handle *owner, unsigned plane) {
    GP_ON(owner);
    struct gp_handle *made = gp_make(GP_ARRAY);
    struct array *array = calloc(1, sizeof *array);
    int status = made == NULL || array == NULL ? GP_OUT_OF_MEMORY : GP_SUCCESS;
    if (status == GP_SUCCESS) {
        status = gp_call_array_plane(made->id, owner->id, plane, &array->descriptor,
                                     sizeof array->descriptor);
    }
    if (status != GP_SUCCESS) {
        if (made != NULL) gp_end(made);
        free(array);
        return status;
    }
    array->level = true;
    made->detail = array;
    ((struct array *)owner->detail)->planes[plane] = made;
    return GP_SUCCESS;
}

GP_EXPORT int cuArrayGetPlane(void **handle, void *owner, unsigned plane) {
    GP_ENTER();
    GP_CHECK(gp_check(owner, GP_ARRAY));
    struct array *array = ((struct gp_handle *)owner)->detail;
    if (handle == NULL || plane >= PLANES_MAX) return GP_INVALID_VALUE;
    pthread_mutex_lock(&level_lock);
    int status = array->planes[plane] != NULL ? GP_SUCCESS : make_plane(owner, plane);
    if (status == GP_SUCCESS) *handle = array->planes[plane];
    pthread_mutex_unlock(&level_lock);
    return status;
}

// --- arrays of arrays -----------------------------------------------------------------------------

GP_EXPORT int cuMipmappedArrayCreate(void **handle, const struct descriptor *wanted,
                                     unsigned levels) {
    GP_ENTER();
    GP_CHECK(check(handle, wanted));
    if (levels == 0 || levels > LEVELS_MAX) return GP_INVALID_VALUE;
    struct mipmap *mipmap = calloc(1, sizeof *mipmap);
    if (mipmap != NULL) {
        mipmap->descriptor = *wanted;
        mipmap->count = levels;
    }
    return make(handle, GP_MIPMAP, wanted, levels, mipmap);
}

static size_t shrunk(size_t size, unsigned level) {
    size_t found = size >> level;
    return size > 0 && found == 0 ? 1 : found;
}

// With level_lock held.
static int make_level(struct gp_handle *owner, unsigned level) {
    GP_ON(owner);
    struct mipmap *mipmap = owner->detail;
    struct gp_handle *made = gp_make(GP_ARRAY);
    struct array *array = calloc(1, sizeof *array);
    int status = made == NULL || array == NULL ? GP_OUT_OF_MEMORY : GP_SUCCESS;
    if (status == GP_SUCCESS) {
        status = gp_call_array_level(made->id, owner->id, level);
    }
    if (status != GP_SUCCESS) {
        if (made != NULL) gp_end(made);
        free(array);
        return status;
    }
    struct descriptor descriptor = mipmap->descriptor;
    bool layered = descriptor.flags & 1;  // CUDA_ARRAY3D_LAYERED: the depth counts layers
    descriptor.width = shrunk(descriptor.width, level);
    descriptor.height = shrunk(descriptor.height, level);
    if (!layered) descriptor.depth = shrunk(descriptor.depth, level);
    *array = (struct array){descriptor, true, {NULL}};
    made->detail = array;
    mipmap->levels[level] = made;
    return GP_SUCCESS;
}

GP_EXPORT int cuMipmappedArrayGetLevel(void **handle, void *owner, unsigned level) {
    GP_ENTER();
    GP_CHECK(gp_check(owner, GP_MIPMAP));
    struct mipmap *mipmap = ((struct gp_handle *)owner)->detail;
    if (handle == NULL || level >= mipmap->count) return GP_INVALID_VALUE;
    pthread_mutex_lock(&level_lock);
    int status = mipmap->levels[level] != NULL ? GP_SUCCESS : make_level(owner, level);
    if (status == GP_SUCCESS) *handle = mipmap->levels[level];
    pthread_mutex_unlock(&level_lock);
    return status;
}

GP_EXPORT int cuMipmappedArrayDestroy(void *owner) {
    GP_ENTER();
    GP_CHECK(gp_check(owner, GP_MIPMAP));
    struct mipmap *mipmap = ((struct gp_handle *)owner)->detail;
    for (unsigned level = 0; level < mipmap->count; level++) {
        if (mipmap->levels[level] == NULL) continue;
        free(mipmap->levels[level]->detail);
        gp_end(mipmap->levels[level]);
    }
    return destroy(owner);
}
