// Arrays, arrays of arrays, and copies from and to them.
#define _GNU_SOURCE
#include "copies.h"

#include <stdlib.h>

#define BAND_SIZE ((size_t)4 << 20)  // of bytes that travel at a time
#define SMALL_COPY_MAX (64 * 1024)
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
    uint64_t values[8] = {made->id,      wanted->width,           wanted->height,
                          wanted->depth, (uint64_t)wanted->format, wanted->channels,
                          wanted->flags, levels};
    int status = gp_call(GP_ARRAY_CREATE, values, 8, NULL, 0);
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
    uint64_t values[1] = {handle->id};
    free(handle->detail);
    handle->detail = NULL;
    gp_end(handle);
    return gp_post(GP_ARRAY_DESTROY, values, 1);
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
        uint64_t values[3] = {made->id, owner->id, plane};
        status = gp_call(GP_ARRAY_PLANE, values, 3, &array->descriptor, sizeof array->descriptor);
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
        uint64_t values[3] = {made->id, owner->id, level};
        status = gp_call(GP_ARRAY_LEVEL, values, 3, NULL, 0);
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

// --- copies ---------------------------------------------------------------------------------------

// An end as the worker takes it: kind, array or address, corner, pitch and height.
#define END_WORDS 7

static void pack(uint64_t *words, const struct gp_box *box, const struct gp_end *end, size_t x,
                 size_t y, size_t z) {
    if (box->kind == GP_IN_ARRAY) {
        const struct gp_handle *array = box->array;
        uint64_t found[END_WORDS] = {GP_IN_ARRAY, array->id, box->x + x, box->y + y, box->z + z, 0, 0};
        memcpy(words, found, sizeof found);
    } else {
        uint64_t found[END_WORDS] = {GP_ON_DEVICE, end->address, x, y, z, end->pitch,
                                     end->slice / end->pitch};
        memcpy(words, found, sizeof found);
    }
}

static int check_end(const struct gp_box *box, size_t width, size_t height, struct gp_end *end) {
    *end = (struct gp_end){0};
    if (box->kind != GP_IN_ARRAY) return gp_find_end(box, width, height, end);
    return box->level != 0 ? GP_INVALID_VALUE : gp_check(box->array, GP_ARRAY);
}

// How many rows travel at a time.
static size_t rows_of(const struct gp_copy_3d *copy) {
    size_t rows = BAND_SIZE / copy->width;
    return rows == 0 ? 1 : rows < copy->height ? rows : copy->height;
}

static int write_array(const struct gp_copy_3d *copy, const struct gp_end *from,
                       const struct gp_handle *stream, bool async) {
    size_t width = copy->width, band = rows_of(copy);
    size_t span = from->slice * (copy->depth - 1) + from->pitch * (copy->height - 1) + width;
    const unsigned char *source = (const unsigned char *)(uintptr_t)from->address;
    uint64_t mirror;
    if (gp_mirror_of(source, span, &mirror)) {
        GP_CHECK(gp_synchronize(GP_SYNC_STREAM, stream->id));  // then what kernels write is here
    } else if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) &&
               (!async || gp_is_pinned(source))) {
        gp_host_settle(stream, 0);
    }
    GP_CHECK(gp_drain(source, span));
    unsigned char *packed = from->pitch == width ? NULL : malloc(band * width);
    if (packed == NULL && from->pitch != width) return GP_OUT_OF_MEMORY;
    int status = GP_SUCCESS;
    for (size_t z = 0; z < copy->depth && status == GP_SUCCESS; z++) {
        for (size_t y = 0; y < copy->height && status == GP_SUCCESS; y += band) {
            size_t rows = copy->height - y < band ? copy->height - y : band;
            const unsigned char *at = source + z * from->slice + y * from->pitch;
            for (size_t row = 0; packed != NULL && row < rows; row++) {
                memcpy(packed + row * width, at + row * from->pitch, width);
            }
            uint64_t values[END_WORDS + 3];
            pack(values, &copy->target, NULL, 0, y, z);
            values[END_WORDS] = width;
            values[END_WORDS + 1] = rows;
            values[END_WORDS + 2] = stream->id;
            status = gp_post_bulk(GP_ARRAY_WRITE, values, END_WORDS + 3,
                                  packed != NULL ? packed : at, rows * width);
        }
    }
    free(packed);
    return status;
}

static int read_array(const struct gp_copy_3d *copy, const struct gp_end *to, uint64_t stream) {
    size_t width = copy->width, band = rows_of(copy);
    unsigned char *target = (unsigned char *)(uintptr_t)to->address;
    unsigned char *packed = to->pitch == width ? NULL : malloc(band * width);
    if (packed == NULL && to->pitch != width) return GP_OUT_OF_MEMORY;
    int status = GP_SUCCESS;
    for (size_t z = 0; z < copy->depth && status == GP_SUCCESS; z++) {
        for (size_t y = 0; y < copy->height && status == GP_SUCCESS; y += band) {
            size_t rows = copy->height - y < band ? copy->height - y : band;
            unsigned char *at = target + z * to->slice + y * to->pitch;
            uint64_t values[END_WORDS + 3];
            pack(values, &copy->source, NULL, 0, y, z);
            values[END_WORDS] = width;
            values[END_WORDS + 1] = rows;
            values[END_WORDS + 2] = stream;
            struct gp_request request = {.bulk = packed != NULL ? packed : at,
                                         .bulk_size = rows * width};
            status = gp_exchange(&request, GP_ARRAY_READ, values, END_WORDS + 3, NULL, 0, NULL, 0);
            for (size_t row = 0; packed != NULL && status == GP_SUCCESS && row < rows; row++) {
                memcpy(at + row * to->pitch, packed + row * width, width);
            }
        }
    }
    free(packed);
    return status;
}

// The device that has one end of a copy; -1 for the host.
static int device_of(const struct gp_box *box, const struct gp_end *end) {
    return box->kind == GP_IN_ARRAY ? gp_handle_device(box->array)
                                    : end->host ? -1 : gp_device_at(end->address);
}

// From the memory of one server to that of another, through this process.
static int copy_across(const struct gp_copy_3d *copy, void *stream) {
    size_t plane = copy->width * copy->height;
    unsigned char *bytes = malloc(plane * copy->depth);
    if (bytes == NULL) return GP_OUT_OF_MEMORY;
    struct gp_box between = {.kind = GP_ON_HOST, .host = bytes, .pitch = copy->width,
                             .height = copy->height};
    struct gp_copy_3d out = *copy, in = *copy;
    out.target = in.source = between;
    int status = gp_copy_box(&out, stream, false);
    if (status == GP_SUCCESS) status = gp_copy_box(&in, stream, false);
    free(bytes);
    return status;
}

int gp_copy_arrays(const struct gp_copy_3d *copy, void *stream, bool async) {
    struct gp_end from, to;
    GP_CHECK(check_end(&copy->source, copy->width, copy->height, &from));
    GP_CHECK(check_end(&copy->target, copy->width, copy->height, &to));
    if (gp_several) {
        int source = device_of(&copy->source, &from), target = device_of(&copy->target, &to);
        int place = target >= 0 ? target : source;
        bool between = source >= 0 && target >= 0 && gp_server_of(source) != gp_server_of(target);
        if (between || !gp_reaches(place)) {
            if (gp_capture_of(stream)) return GP_CAPTURE_UNSUPPORTED;
            if (between) return copy_across(copy, stream);
            // Behind the legacy stream there, and over before the stream here goes on.
            GP_ROUTE(place);
            return gp_copy_arrays(copy, NULL, false);
        }
    }
    uint64_t id;
    GP_CHECK(gp_stream_id(stream, &id));
    if ((from.host || to.host) && gp_capture_of(stream)) return gp_capture_box(copy, stream);
    if (to.host) return read_array(copy, &to, id);
    if (from.host) {
        GP_CHECK(write_array(copy, &from, gp_stream_handle(stream), async));
        bool small = copy->width * copy->height * copy->depth <= SMALL_COPY_MAX;
        return async || small ? GP_SUCCESS : gp_synchronize(GP_SYNC_STREAM, id);
    }
    uint64_t values[2 * END_WORDS + 4];
    pack(values, &copy->target, &to, 0, 0, 0);
    pack(values + END_WORDS, &copy->source, &from, 0, 0, 0);
    values[2 * END_WORDS] = copy->width;
    values[2 * END_WORDS + 1] = copy->height;
    values[2 * END_WORDS + 2] = copy->depth;
    values[2 * END_WORDS + 3] = id;
    return gp_post(GP_ARRAY_COPY, values, 2 * END_WORDS + 4);
}

// Copies of one dimension.

static struct gp_box in_array(void *array, size_t offset) {
    return (struct gp_box){.kind = GP_IN_ARRAY, .array = array, .x = offset};
}

static struct gp_box on_host(const void *host) {
    return (struct gp_box){.kind = GP_ON_HOST, .host = host};
}

static struct gp_box on_device(uint64_t device) {
    return (struct gp_box){.kind = GP_ON_DEVICE, .device = device};
}

static int copy_row(struct gp_box target, struct gp_box source, size_t size, void *stream,
                    bool async) {
    struct gp_copy_3d copy = {source, target, size, 1, 1};
    return gp_copy_box(&copy, stream, async);
}

GP_EXPORT int cuMemcpyHtoA_v2(void *array, size_t offset, const void *host, size_t size) {
    return copy_row(in_array(array, offset), on_host(host), size, NULL, false);
}

GP_EXPORT int cuMemcpyHtoAAsync_v2(void *array, size_t offset, const void *host, size_t size,
                                   void *stream) {
    return copy_row(in_array(array, offset), on_host(host), size, stream, true);
}

GP_EXPORT int cuMemcpyAtoH_v2(void *host, void *array, size_t offset, size_t size) {
    return copy_row(on_host(host), in_array(array, offset), size, NULL, false);
}

GP_EXPORT int cuMemcpyAtoHAsync_v2(void *host, void *array, size_t offset, size_t size,
                                   void *stream) {
    return copy_row(on_host(host), in_array(array, offset), size, stream, true);
}

GP_EXPORT int cuMemcpyDtoA_v2(void *array, size_t offset, uint64_t device, size_t size) {
    return copy_row(in_array(array, offset), on_device(device), size, NULL, false);
}

GP_EXPORT int cuMemcpyAtoD_v2(uint64_t device, void *array, size_t offset, size_t size) {
    return copy_row(on_device(device), in_array(array, offset), size, NULL, false);
}

GP_EXPORT int cuMemcpyAtoA_v2(void *target, size_t target_offset, void *source,
                              size_t source_offset, size_t size) {
    return copy_row(in_array(target, target_offset), in_array(source, source_offset), size, NULL,
                    false);
}
