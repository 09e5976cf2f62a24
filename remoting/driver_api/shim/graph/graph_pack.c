// The contents of nodes, as the program gives them and as they travel. On the wire, handles are
// identifiers, the host's memory is a place in a slot, contexts are devices counted from one.
#include "graph.h"

#include <stdlib.h>

#define OPERATION_SIZE 48
#define OPERATIONS_MAX 256

// --- packing --------------------------------------------------------------------------------------

void gp_drop_packed(struct gp_packed *packed) {
    free(packed->bytes);
    for (unsigned at = 0; at < packed->staged_count; at++) gp_drop_slot(packed->staged[at].slot);
    if (packed->call != 0) gp_host_node_drop(packed->call);
    *packed = (struct gp_packed){0};
}

// A context as its device in the session, counted from one; 0 stands for the current one.
int gp_pack_context(void **context) {
    if (*context == NULL) return GP_SUCCESS;
    int device = gp_device_of(*context);
    GP_CHECK(gp_check_device(device));
    if (gp_several && !gp_reaches(device)) return GP_INVALID_CONTEXT;
    *context = (void *)(uintptr_t)(gp_server_device(device) + 1);
    return GP_SUCCESS;
}

static int pack_kernel(const struct gp_kernel_node *given, struct gp_packed *packed) {
    struct gp_kernel_node *kernel = &packed->params.kernel;
    void *function = given->function != NULL ? given->function : given->kernel;
    const uint32_t *grid = given->grid, *block = given->block;
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2]) {
        return GP_INVALID_VALUE;
    }
    if ((uint64_t)block[0] * block[1] * block[2] > 1024 || block[2] > 64) return GP_INVALID_VALUE;
    if (given->parameters != NULL && given->extra != NULL) return GP_INVALID_VALUE;
    GP_CHECK(gp_function_bytes(function, given->parameters, given->extra, &packed->bytes,
                               &packed->size));
    kernel->function = (void *)(uintptr_t)((struct gp_handle *)function)->id;
    kernel->parameters = kernel->extra = NULL;
    kernel->kernel = NULL;
    return gp_pack_context(&kernel->context);
}

// One side of a copy: device memory as it is, an array by its number, the host's memory as a slot
// and an offset.
static int pack_side(struct gp_handle *graph, const struct gp_copy_3d *copy, bool out,
                     struct gp_packed *packed) {
    struct gp_copy_3d *sent = &packed->params.memcpy.copy;
    struct gp_box *box = out ? &sent->target : &sent->source;
    if (box->kind < GP_ON_HOST || box->kind > GP_UNIFIED || box->level != 0) {
        return GP_INVALID_VALUE;
    }
    if (box->kind == GP_IN_ARRAY) {
        GP_CHECK(gp_check(box->array, GP_ARRAY));
        GP_REACH(box->array);
        *box = (struct gp_box){box->x, box->y, box->z, .kind = GP_IN_ARRAY,
                               .array = (void *)(uintptr_t)((struct gp_handle *)box->array)->id};
        return GP_SUCCESS;
    }
    bool host = box->kind == GP_ON_HOST;
    uint64_t address = host ? (uint64_t)(uintptr_t)box->host : box->device;
    struct gp_range range;
    bool known = gp_find_range(address, &range);
    if (box->kind == GP_UNIFIED) host = !known || range.kind == GP_HOST_MEMORY;
    if (known && range.kind == GP_MANAGED_MEMORY) host = false;
    if (address == 0) return GP_INVALID_VALUE;
    box->kind = host ? GP_ON_HOST : GP_ON_DEVICE;
    box->host = host ? (const void *)(uintptr_t)address : NULL;
    box->device = host ? 0 : address;
    GP_REACH_ADDRESS(box->device);
    if (!host) return GP_SUCCESS;
    // Kernels of the graph may read and write it as well, where the server has a mirror.
    size_t pitch = box->pitch ? box->pitch : copy->width + box->x;
    size_t rows = box->height ? box->height : copy->height + box->y;
    size_t size = ((box->z + copy->depth - 1) * rows + box->y + copy->height - 1) * pitch + box->x +
                  copy->width;
    if (gp_mirror_of(box->host, size, &box->device)) {
        box->kind = GP_ON_DEVICE;
        box->host = NULL;
        box->pitch = pitch;
        box->height = rows;
        return GP_SUCCESS;
    }
    struct gp_staged *staged = &packed->staged[packed->staged_count];
    GP_CHECK(gp_stage(graph, box, copy, out, staged));
    packed->staged_count++;
    *box = (struct gp_box){.kind = GP_ON_HOST,
                           .host = (const void *)(uintptr_t)staged->slot->id,
                           .device = staged->address - staged->slot->start,
                           .pitch = staged->pitch, .height = staged->slice / staged->pitch};
    return GP_SUCCESS;
}

static int pack_copy(struct gp_handle *graph, const struct gp_node_params *given,
                     struct gp_packed *packed) {
    const struct gp_copy_3d *copy = &given->memcpy.copy;
    if (copy->width == 0 || copy->height == 0 || copy->depth == 0) return GP_INVALID_VALUE;
    GP_CHECK(pack_side(graph, copy, false, packed));
    GP_CHECK(pack_side(graph, copy, true, packed));
    return gp_pack_context(&packed->params.memcpy.context);
}

static int pack_fill(struct gp_packed *packed) {
    const struct gp_memset_node *fill = &packed->params.memset;
    uint32_t element = fill->element;
    if ((element != 1 && element != 2 && element != 4) || fill->target == 0) return GP_INVALID_VALUE;
    if (fill->width == 0 || fill->height == 0) return GP_INVALID_VALUE;
    if (fill->height > 1 && fill->pitch < fill->width * element) return GP_INVALID_VALUE;
    GP_REACH_ADDRESS(fill->target);
    GP_CHECK(gp_see(&packed->params.memset.target));
    return gp_pack_context(&packed->params.memset.context);
}

static int pack_event(struct gp_packed *packed) {
    struct gp_handle *event = packed->params.event;
    if (gp_check(event, GP_EVENT) != GP_SUCCESS) return GP_INVALID_VALUE;
    GP_REACH(event);
    gp_recorded_elsewhere(event);
    packed->params.event = (void *)(uintptr_t)event->id;
    return GP_SUCCESS;
}

static int pack_allocation(const struct gp_allocate_node *given, struct gp_packed *packed) {
    struct gp_allocate_node *allocate = &packed->params.allocate;
    if (given->size == 0 || given->type != 1 || given->location.type != 1) return GP_INVALID_VALUE;
    if (given->handles != 0 || given->access_count > GP_DEVICES_MAX) return GP_INVALID_VALUE;
    if (given->access_count > 0 && given->access == NULL) return GP_INVALID_VALUE;
    GP_CHECK(gp_check_device(given->location.id));
    if (gp_several && !gp_reaches(given->location.id)) return GP_INVALID_DEVICE;
    allocate->location.id = gp_server_device(given->location.id);
    packed->size = (uint32_t)(given->access_count * sizeof *given->access);
    packed->bytes = malloc(packed->size + 1);
    if (packed->bytes == NULL) return GP_OUT_OF_MEMORY;
    for (size_t at = 0; at < given->access_count; at++) {
        struct gp_access one = given->access[at];
        if (one.location.type != 1) return GP_INVALID_VALUE;
        GP_CHECK(gp_check_device(one.location.id));
        if (gp_several && !gp_reaches(one.location.id)) return GP_INVALID_DEVICE;
        one.location.id = gp_server_device(one.location.id);
        memcpy(packed->bytes + at * sizeof one, &one, sizeof one);
    }
    allocate->access = NULL;
    return GP_SUCCESS;
}

static int pack_batch(const struct gp_batch_node *given, struct gp_packed *packed) {
    if (given->count > OPERATIONS_MAX || (given->count > 0 && given->operations == NULL)) {
        return GP_INVALID_VALUE;
    }
    packed->size = given->count * OPERATION_SIZE;
    packed->bytes = malloc(packed->size + 1);
    if (packed->bytes == NULL) return GP_OUT_OF_MEMORY;
    memcpy(packed->bytes, given->operations, packed->size);
    for (uint32_t at = 8; at < packed->size; at += OPERATION_SIZE) {
        uint64_t address;  // of every kind of operation that has one
        memcpy(&address, packed->bytes + at, sizeof address);
        GP_CHECK(gp_see(&address));
        memcpy(packed->bytes + at, &address, sizeof address);
    }
    packed->params.batch.operations = NULL;
    return gp_pack_context(&packed->params.batch.context);
}

static int pack_child(struct gp_handle *graph, struct gp_packed *packed) {
    struct gp_handle *child = packed->params.graph.graph;
    int ownership = packed->params.graph.ownership;
    if (gp_check(child, GP_GRAPH) != GP_SUCCESS || GP_GRAPH_OF(child)->moved) return GP_INVALID_VALUE;
    GP_REACH(child);
    if (ownership != GP_CHILD_CLONE && ownership != GP_CHILD_MOVE) return GP_INVALID_VALUE;
    if (ownership == GP_CHILD_CLONE && GP_GRAPH_OF(child)->memory) return GP_NOT_SUPPORTED;
    if (ownership == GP_CHILD_MOVE && GP_GRAPH_OF(child)->within != NULL) return GP_INVALID_VALUE;
    while (ownership == GP_CHILD_MOVE && graph != NULL) {  // not into itself
        if (graph == child) return GP_INVALID_VALUE;
        struct gp_handle *node = GP_GRAPH_OF(graph)->within;
        graph = node == NULL ? NULL : GP_NODE_OF(node)->graph;
    }
    packed->params.graph.graph = (void *)(uintptr_t)child->id;
    return GP_SUCCESS;
}

static int pack_conditional(const struct gp_conditional_node *given, struct gp_packed *packed) {
    if (given->size == 0 || given->size > GP_CHILDREN_MAX) return GP_INVALID_VALUE;
    packed->params.conditional.graphs = NULL;
    return gp_pack_context(&packed->params.conditional.context);
}

static int pack_host(const struct gp_host_node *given, struct gp_packed *packed) {
    if (given->function == NULL) return GP_INVALID_VALUE;
    GP_CHECK(gp_host_node(given->function, given->data, &packed->call));
    memcpy(&packed->params.host.function, &packed->call, sizeof packed->call);
    packed->params.host.data = NULL;
    return GP_SUCCESS;
}

static int pack(struct gp_handle *graph, const struct gp_node_params *given,
                struct gp_packed *packed) {
    switch (given->type) {
        case GP_NODE_KERNEL: return pack_kernel(&given->kernel, packed);
        case GP_NODE_MEMCPY: return pack_copy(graph, given, packed);
        case GP_NODE_MEMSET: return pack_fill(packed);
        case GP_NODE_GRAPH: return pack_child(graph, packed);
        case GP_NODE_EMPTY: return GP_SUCCESS;
        case GP_NODE_WAIT_EVENT: return pack_event(packed);
        case GP_NODE_RECORD_EVENT: return pack_event(packed);
        case GP_NODE_ALLOCATE: return pack_allocation(&given->allocate, packed);
        case GP_NODE_FREE: return given->address == 0 ? GP_INVALID_VALUE : GP_SUCCESS;
        case GP_NODE_BATCH: return pack_batch(&given->batch, packed);
        case GP_NODE_CONDITIONAL: return pack_conditional(&given->conditional, packed);
        case GP_NODE_HOST: return pack_host(&given->host, packed);
        default: return GP_NOT_SUPPORTED;  // external semaphores
    }
}

int gp_pack(struct gp_handle *graph, const struct gp_node_params *given,
            struct gp_packed *packed) {
    *packed = (struct gp_packed){.params = *given};
    int status = pack(graph, given, packed);
    if (status != GP_SUCCESS) gp_drop_packed(packed);
    return status;
}

// Keep what the program gave, to tell it again; takes the bytes of what was packed.
int gp_note_params(struct gp_handle *handle, const struct gp_node_params *given,
                   struct gp_packed *packed) {
    struct gp_node *node = GP_NODE_OF(handle);
    struct gp_told *former = node->told ? malloc(sizeof *former) : NULL;
    if (node->told && former == NULL) return GP_OUT_OF_MEMORY;
    if (former != NULL) {
        *former = (struct gp_told){node->former, node->bytes, node->pointers};
        node->former = former;
        node->told = false;
    } else {
        free(node->bytes);
        free(node->pointers);
    }
    node->pointers = NULL;
    node->params = *given;
    node->bytes = packed->bytes;
    node->size = packed->size;
    packed->bytes = NULL;
    if (given->type == GP_NODE_KERNEL) {
        void *function = given->kernel.function ? given->kernel.function : given->kernel.kernel;
        node->params.kernel.function = function;
        node->params.kernel.extra = NULL;
        node->pointers = gp_function_pointers(function, node->bytes);
        node->params.kernel.parameters = node->pointers;
        return node->pointers == NULL ? GP_OUT_OF_MEMORY : GP_SUCCESS;
    }
    if (given->type == GP_NODE_BATCH) node->params.batch.operations = node->bytes;
    if (given->type == GP_NODE_ALLOCATE && node->size > 0) {
        memcpy(node->bytes, given->allocate.access, node->size);
        node->params.allocate.access = (const struct gp_access *)(void *)node->bytes;
    }
    return GP_SUCCESS;
}
