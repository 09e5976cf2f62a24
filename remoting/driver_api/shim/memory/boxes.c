// Copies of boxes, and of rectangles as flat ones: between memory, and from and to arrays.
#define _GNU_SOURCE
#include "copies.h"

#include <stdlib.h>

#define BAND_SIZE ((size_t)4 << 20)  // of bytes that travel at a time
#define SMALL_COPY_MAX (64 * 1024)

// One end that is no array, as an address and strides.
struct end {
    bool host;
    uint64_t address;
    size_t pitch, slice;
};

static int find_end(const struct gp_box *box, size_t width, size_t height, struct end *end) {
    if (box->kind == GP_IN_ARRAY || box->level != 0) return GP_INVALID_VALUE;
    uint64_t base = box->kind == 1 ? (uint64_t)(uintptr_t)box->host : box->device;
    if (box->kind < 1 || box->kind > 4 || base == 0) return GP_INVALID_VALUE;
    end->host = (box->kind == 1 || (box->kind == 4 && !gp_is_device(base))) && !gp_is_managed(base);
    end->pitch = box->pitch ? box->pitch : width + box->x;
    size_t rows = box->height ? box->height : height + box->y;
    if (end->pitch < width + box->x) return GP_INVALID_VALUE;
    end->slice = end->pitch * rows;
    end->address = base + box->z * end->slice + box->y * end->pitch + box->x;
    return GP_SUCCESS;
}

// --- from and to arrays --------------------------------------------------------------------------

// An end as the worker takes it: kind, array or address, corner, pitch and height.
#define END_WORDS 7

static void pack(uint64_t *words, const struct gp_box *box, const struct end *end, size_t x,
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

static int check_end(const struct gp_box *box, size_t width, size_t height, struct end *end) {
    *end = (struct end){0};
    if (box->kind != GP_IN_ARRAY) return find_end(box, width, height, end);
    return box->level != 0 ? GP_INVALID_VALUE : gp_check(box->array, GP_ARRAY);
}

// How many rows travel at a time.
static size_t rows_of(const struct gp_copy_3d *copy) {
    size_t rows = BAND_SIZE / copy->width;
    return rows == 0 ? 1 : rows < copy->height ? rows : copy->height;
}

static int write_array(const struct gp_copy_3d *copy, const struct end *from,
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
            uint64_t end[END_WORDS];
            pack(end, &copy->target, NULL, 0, y, z);
            status = gp_post_array_write(end, width, rows, stream->id, packed != NULL ? packed : at,
                                         rows * width);
        }
    }
    free(packed);
    return status;
}

static int read_array(const struct gp_copy_3d *copy, const struct end *to, uint64_t stream) {
    size_t width = copy->width, band = rows_of(copy);
    unsigned char *target = (unsigned char *)(uintptr_t)to->address;
    unsigned char *packed = to->pitch == width ? NULL : malloc(band * width);
    if (packed == NULL && to->pitch != width) return GP_OUT_OF_MEMORY;
    int status = GP_SUCCESS;
    for (size_t z = 0; z < copy->depth && status == GP_SUCCESS; z++) {
        for (size_t y = 0; y < copy->height && status == GP_SUCCESS; y += band) {
            size_t rows = copy->height - y < band ? copy->height - y : band;
            unsigned char *at = target + z * to->slice + y * to->pitch;
            uint64_t end[END_WORDS];
            pack(end, &copy->source, NULL, 0, y, z);
            struct gp_request request = {.bulk = packed != NULL ? packed : at,
                                         .bulk_size = rows * width};
            status = gp_exchange_array_read(&request, end, width, rows, stream);
            for (size_t row = 0; packed != NULL && status == GP_SUCCESS && row < rows; row++) {
                memcpy(at + row * to->pitch, packed + row * width, width);
            }
        }
    }
    free(packed);
    return status;
}

// The device that has one end of a copy; -1 for the host.
static int device_of(const struct gp_box *box, const struct end *end) {
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

// Where at least one end is an array; the stream and the extents are checked.
static int copy_arrays(const struct gp_copy_3d *copy, void *stream, bool async) {
    struct end from, to;
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
            return copy_arrays(copy, NULL, false);
        }
    }
    uint64_t id;
    GP_CHECK(gp_stream_id(stream, &id));
    if ((from.host || to.host) && gp_capture_of(stream)) return gp_hooks.capture_box(copy, stream);
    if (to.host) return read_array(copy, &to, id);
    if (from.host) {
        GP_CHECK(write_array(copy, &from, gp_stream_handle(stream), async));
        bool small = copy->width * copy->height * copy->depth <= SMALL_COPY_MAX;
        return async || small ? GP_SUCCESS : gp_synchronize(GP_SYNC_STREAM, id);
    }
    uint64_t target[END_WORDS], source[END_WORDS];
    pack(target, &copy->target, &to, 0, 0, 0);
    pack(source, &copy->source, &from, 0, 0, 0);
    return gp_post_array_copy(target, source, copy->width, copy->height, copy->depth, id);
}

// --- CUDA_MEMCPY3D and CUDA_MEMCPY2D -------------------------------------------------------------

int gp_copy_box(const struct gp_copy_3d *copy, void *stream, bool async) {
    GP_ENTER_ON(stream);
    GP_ON_STREAM(stream);
    if (copy == NULL) return GP_INVALID_VALUE;
    size_t width = copy->width, height = copy->height, depth = copy->depth;
    if (width == 0 || height == 0 || depth == 0) return GP_SUCCESS;
    if (copy->source.kind == GP_IN_ARRAY || copy->target.kind == GP_IN_ARRAY) {
        return copy_arrays(copy, stream, async);
    }
    struct end from, to;
    GP_CHECK(find_end(&copy->source, width, height, &from));
    GP_CHECK(find_end(&copy->target, width, height, &to));
    bool across = gp_several && !from.host && !to.host &&
                  gp_between_servers(from.address, to.address);
    uint64_t id;
    GP_CHECK(gp_stream_id(stream, &id));
    if (gp_capture_of(stream) && (from.host || to.host)) return gp_hooks.capture_box(copy, stream);
    if (!from.host && !to.host && !across) {
        // Without a stream it is the legacy one of whichever server has the memory.
        GP_ROUTE(gp_several && gp_handle_device(stream) < 0 ? gp_device_at(to.address) : -1);
        GP_REACH_ADDRESS(to.address);
        GP_CHECK(gp_stream_id(stream, &id));
        return gp_post_copy_3d(to.address, to.pitch, to.slice, from.address, from.pitch, from.slice,
                               width, height, depth, id);
    }
    // Rows that lie apart are copied one by one; what lies together goes as one piece.
    bool whole = from.pitch == width && to.pitch == width;
    bool slices = whole && (depth == 1 || (from.slice == width * height &&
                                           to.slice == width * height));
    size_t piece = slices ? width * height * depth : whole ? width * height : width;
    for (size_t z = 0; z < (slices ? 1 : depth); z++) {
        for (size_t y = 0; y < (whole ? 1 : height); y++) {
            uint64_t target = to.address + z * to.slice + y * to.pitch;
            uint64_t source = from.address + z * from.slice + y * from.pitch;
            GP_CHECK(gp_copy_any(target, source, piece, stream, async));
        }
    }
    return GP_SUCCESS;
}

struct rectangle {
    size_t x, y;
    int kind;
    const void *host;
    uint64_t device;
    void *array;
    size_t pitch;
};

struct copy_2d {
    struct rectangle source, target;
    size_t width, height;
};

static int copy_rectangle(const struct copy_2d *copy, void *stream, bool async) {
    if (copy == NULL) return GP_INVALID_VALUE;
    const struct rectangle *s = &copy->source, *t = &copy->target;
    struct gp_copy_3d full = {
        .source = {.x = s->x, .y = s->y, .kind = s->kind, .host = s->host, .device = s->device,
                   .array = s->array, .pitch = s->pitch},
        .target = {.x = t->x, .y = t->y, .kind = t->kind, .host = t->host, .device = t->device,
                   .array = t->array, .pitch = t->pitch},
        .width = copy->width, .height = copy->height, .depth = 1,
    };
    return gp_copy_box(&full, stream, async);
}

// Both devices are reached by address, and contexts lie where CUDA_MEMCPY3D has reserved words.

// --- copies of one dimension ---------------------------------------------------------------------

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

#define GP_FORWARDS_BOXES
#include "generated_forwards.h"
