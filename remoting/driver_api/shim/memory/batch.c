// Batches of copies: their single copies, one after the other in the stream.
#define _GNU_SOURCE
#include "copies.h"

enum { STREAM_ORDER = 1, DURING_CALL, ANY_ORDER };  // CUmemcpySrcAccessOrder

struct location {
    int type, id;
};

// CUmemcpyAttributes.
struct attributes {
    int order;
    struct location source, target;
    unsigned flags;
};

// CUmemcpy3DOperand and CUDA_MEMCPY3D_BATCH_OP.
enum { POINTER = 1, ARRAY };

struct operand {
    int type;
    union {
        struct {
            uint64_t address;
            size_t row, layer;  // in elements, in rows; 0: as the copy has them
            struct location hint;
        } pointer;
        struct {
            void *array;
            size_t x, y, z;
        } array;
    };
};

struct operation {
    struct operand source, target;
    size_t width, height, depth;
    int order;
    unsigned flags;
};

_Static_assert(sizeof(struct attributes) == 24 && sizeof(struct operation) == 112, "as in cuda.h");

static int check_stream(void *stream) {
    uint64_t id;
    GP_CHECK(gp_stream_id(stream, &id));
    return id == GP_LEGACY_STREAM ? GP_INVALID_VALUE : GP_SUCCESS;
}

static bool on_device(uint64_t address) {
    struct gp_range range;
    return gp_find_range(address, &range) && range.kind != GP_HOST_MEMORY;
}

static bool is_order(int order) { return order >= STREAM_ORDER && order <= ANY_ORDER; }

// Pageable memory is read when a copy is called, so what host functions before it write there must be there by
// then, if it is to be read in the order of the stream. Copies of pinned memory see to that themselves.
static void before(void *stream, int order, const void *source) {
    bool pending = __atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) != 0;
    if (pending && order == STREAM_ORDER && !gp_is_pinned(source) && !gp_capture_of(stream)) {
        gp_host_settle(gp_stream_handle(stream), 0);
    }
}

// Once the call is over nothing may read the sources of some copies any more.
static int after(void *stream, bool read_later) {
    if (!read_later || gp_capture_of(stream)) return GP_SUCCESS;
    uint64_t id;
    GP_CHECK(gp_stream_id(stream, &id));
    return gp_synchronize(GP_SYNC_STREAM, id);
}

static int copy_all(const uint64_t *targets, const uint64_t *sources, const size_t *sizes,
                    size_t count, const struct attributes *attributes, const size_t *first,
                    size_t kinds, size_t *failed, void *stream) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    if (failed != NULL) *failed = SIZE_MAX;
    if (targets == NULL || sources == NULL || sizes == NULL || count == 0) return GP_INVALID_VALUE;
    if (attributes == NULL || first == NULL || kinds == 0 || kinds > count) return GP_INVALID_VALUE;
    GP_CHECK(check_stream(stream));
    for (size_t at = 0; at < kinds; at++) {
        bool follows = at == 0 ? first[0] == 0 : first[at] > first[at - 1];
        if (!follows || first[at] >= count || !is_order(attributes[at].order)) {
            return GP_INVALID_VALUE;
        }
    }
    bool read_later = false;
    for (size_t at = 0, kind = 0; at < count; at++) {
        if (kind + 1 < kinds && first[kind + 1] == at) kind++;
        bool from_host = !on_device(sources[at]);
        if (from_host) before(stream, attributes[kind].order, (const void *)(uintptr_t)sources[at]);
        int status = gp_copy_any(targets[at], sources[at], sizes[at], stream, true);
        if (status != GP_SUCCESS) {
            if (failed != NULL) *failed = at;
            return status;
        }
        read_later |= attributes[kind].order == DURING_CALL && !from_host;
    }
    return after(stream, read_later);
}

// --- boxes ----------------------------------------------------------------------------------------

// The elements of a box are those of its array; without one they are bytes.
static int element_of(const struct operation *operation, size_t *size) {
    size_t found[2] = {0, 0};
    const struct operand *both[2] = {&operation->source, &operation->target};
    for (int at = 0; at < 2; at++) {
        if (both[at]->type == ARRAY) {
            GP_CHECK(gp_array_element(both[at]->array.array, &found[at]));
        } else if (both[at]->type != POINTER) {
            return GP_INVALID_VALUE;
        }
    }
    if (found[0] != 0 && found[1] != 0 && found[0] != found[1]) return GP_INVALID_VALUE;
    *size = found[0] != 0 ? found[0] : found[1] != 0 ? found[1] : 1;
    return GP_SUCCESS;
}

static int box_of(const struct operand *operand, const struct operation *copy, size_t element,
                  struct gp_box *box) {
    if (operand->type == ARRAY) {
        *box = (struct gp_box){.kind = GP_IN_ARRAY, .array = operand->array.array,
                               .x = operand->array.x * element, .y = operand->array.y,
                               .z = operand->array.z};
        return GP_SUCCESS;
    }
    size_t row = operand->pointer.row, layer = operand->pointer.layer;
    if (row == 0) row = copy->width;
    if (layer == 0) layer = copy->height;
    if (row < copy->width || layer < copy->height || operand->pointer.address == 0) {
        return GP_INVALID_VALUE;
    }
    uint64_t address = operand->pointer.address;
    *box = (struct gp_box){.pitch = row * element, .height = layer};
    if (on_device(address)) {
        box->kind = GP_ON_DEVICE;
        box->device = address;
    } else {
        box->kind = GP_ON_HOST;
        box->host = (const void *)(uintptr_t)address;
    }
    return GP_SUCCESS;
}

static int copy_box(const struct operation *operation, void *stream, bool *read_later) {
    if (operation->width == 0 || operation->height == 0 || operation->depth == 0) {
        return GP_INVALID_VALUE;
    }
    if (!is_order(operation->order)) return GP_INVALID_VALUE;
    size_t element;
    struct gp_copy_3d copy = {.height = operation->height, .depth = operation->depth};
    GP_CHECK(element_of(operation, &element));
    GP_CHECK(box_of(&operation->source, operation, element, &copy.source));
    GP_CHECK(box_of(&operation->target, operation, element, &copy.target));
    copy.width = operation->width * element;
    bool from_host = copy.source.kind == GP_ON_HOST;
    if (from_host) before(stream, operation->order, copy.source.host);
    *read_later |= operation->order == DURING_CALL && !from_host;
    return gp_copy_box(&copy, stream, true);
}

static int copy_boxes(size_t count, const struct operation *operations, size_t *failed,
                      unsigned long long flags, void *stream) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    if (failed != NULL) *failed = SIZE_MAX;
    if (count == 0 || operations == NULL || flags != 0) return GP_INVALID_VALUE;
    GP_CHECK(check_stream(stream));
    bool read_later = false;
    for (size_t at = 0; at < count; at++) {
        int status = copy_box(&operations[at], stream, &read_later);
        if (status == GP_SUCCESS) continue;
        if (failed != NULL) *failed = at;
        return status;
    }
    return after(stream, read_later);
}

#define GP_FORWARDS_BATCH
#include "generated_forwards.h"
