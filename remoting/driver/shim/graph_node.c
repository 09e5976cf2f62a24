// Nodes: what they hold, as the program gives it and as it travels. On the wire, handles are
// identifiers, the host's memory is a place in a slot, contexts are devices counted from one.
#include "graph.h"

#include <stdlib.h>

#define OPERATION_SIZE 48
#define OPERATIONS_MAX 256
#define ATTRIBUTE_SIZE 64

// --- packing --------------------------------------------------------------------------------------

void gp_drop_packed(struct gp_packed *packed) {
    free(packed->bytes);
    for (unsigned at = 0; at < packed->staged_count; at++) gp_drop_slot(packed->staged[at].slot);
    *packed = (struct gp_packed){0};
}

// A context as its device in the session, counted from one; 0 stands for the current one.
static int pack_context(void **context) {
    if (*context == NULL) return GP_SUCCESS;
    int device = gp_device_of(*context);
    GP_CHECK(gp_check_device(device));
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
    return pack_context(&kernel->context);
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
    if (!host) return GP_SUCCESS;
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
    return pack_context(&packed->params.memcpy.context);
}

static int pack_fill(struct gp_packed *packed) {
    const struct gp_memset_node *fill = &packed->params.memset;
    uint32_t element = fill->element;
    if ((element != 1 && element != 2 && element != 4) || fill->target == 0) return GP_INVALID_VALUE;
    if (fill->width == 0 || fill->height == 0) return GP_INVALID_VALUE;
    if (fill->height > 1 && fill->pitch < fill->width * element) return GP_INVALID_VALUE;
    return pack_context(&packed->params.memset.context);
}

static int pack_event(struct gp_packed *packed) {
    struct gp_handle *event = packed->params.event;
    if (gp_check(event, GP_EVENT) != GP_SUCCESS) return GP_INVALID_VALUE;
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
    allocate->location.id = gp_server_device(given->location.id);
    packed->size = (uint32_t)(given->access_count * sizeof *given->access);
    packed->bytes = malloc(packed->size + 1);
    if (packed->bytes == NULL) return GP_OUT_OF_MEMORY;
    for (size_t at = 0; at < given->access_count; at++) {
        struct gp_access one = given->access[at];
        if (one.location.type != 1) return GP_INVALID_VALUE;
        GP_CHECK(gp_check_device(one.location.id));
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
    packed->params.batch.operations = NULL;
    return pack_context(&packed->params.batch.context);
}

static int pack_child(struct gp_packed *packed) {
    struct gp_handle *child = packed->params.graph.graph;
    if (gp_check(child, GP_GRAPH) != GP_SUCCESS) return GP_INVALID_VALUE;
    // CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE is the only one; graphs with memory nodes need the other.
    if (packed->params.graph.ownership != 0 || GP_GRAPH_OF(child)->memory) return GP_NOT_SUPPORTED;
    packed->params.graph.graph = (void *)(uintptr_t)child->id;
    return GP_SUCCESS;
}

static int pack_conditional(const struct gp_conditional_node *given, struct gp_packed *packed) {
    if (given->size == 0 || given->size > GP_CHILDREN_MAX) return GP_INVALID_VALUE;
    packed->params.conditional.graphs = NULL;
    return pack_context(&packed->params.conditional.context);
}

static int pack_host(const struct gp_host_node *given, struct gp_packed *packed) {
    uint64_t number;
    if (given->function == NULL) return GP_INVALID_VALUE;
    GP_CHECK(gp_host_node(given->function, given->data, &number));
    memcpy(&packed->params.host.function, &number, sizeof number);
    packed->params.host.data = NULL;
    return GP_SUCCESS;
}

static int pack(struct gp_handle *graph, const struct gp_node_params *given,
                struct gp_packed *packed) {
    switch (given->type) {
        case GP_NODE_KERNEL: return pack_kernel(&given->kernel, packed);
        case GP_NODE_MEMCPY: return pack_copy(graph, given, packed);
        case GP_NODE_MEMSET: return pack_fill(packed);
        case GP_NODE_GRAPH: return pack_child(packed);
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
    free(node->bytes);
    free(node->pointers);
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

// --- adding ---------------------------------------------------------------------------------------

static int make_children(struct gp_handle *handle, const struct gp_node_params *given) {
    bool bodies = given->type == GP_NODE_CONDITIONAL;
    if (!bodies && given->type != GP_NODE_GRAPH) return GP_SUCCESS;
    struct gp_node *node = GP_NODE_OF(handle);
    unsigned count = bodies ? given->conditional.size : 1;
    node->children = calloc(count, sizeof *node->children);
    if (node->children == NULL) return GP_OUT_OF_MEMORY;
    for (; node->child_count < count; node->child_count++) {
        struct gp_handle *child = bodies ? gp_new_graph(handle)
                                         : gp_clone_within(given->graph.graph, handle);
        if (child == NULL) return GP_OUT_OF_MEMORY;
        if (bodies) GP_GRAPH_OF(child)->conditional = true;
        node->children[node->child_count] = child;
    }
    return GP_SUCCESS;
}

// The record: graph, node, how many edges, graphs within and bytes; then all of them.
static unsigned char *describe(struct gp_handle *handle, const struct gp_packed *packed,
                               size_t *size) {
    const struct gp_node *node = GP_NODE_OF(handle);
    size_t edges = node->edge_count < GP_EDGES_AT_ONCE ? node->edge_count : GP_EDGES_AT_ONCE;
    *size = 40 + edges * 16 + node->child_count * 8 + sizeof packed->params + packed->size;
    *size = (*size + 7) & ~(size_t)7;
    unsigned char *made = calloc(1, *size);
    if (made == NULL) return NULL;
    uint64_t head[5] = {node->graph->id, handle->id, edges, node->child_count, packed->size};
    unsigned char *at = made;
    memcpy(at, head, sizeof head);
    at += sizeof head;
    for (size_t edge = 0; edge < edges; edge++, at += 16) {
        memcpy(at, &node->edges[edge].node->id, 8);
        memcpy(at + 8, &node->edges[edge].data, 8);
    }
    for (unsigned child = 0; child < node->child_count; child++, at += 8) {
        memcpy(at, &node->children[child]->id, 8);
    }
    memcpy(at, &packed->params, sizeof packed->params);
    if (packed->size) memcpy(at + sizeof packed->params, packed->bytes, packed->size);
    return made;
}

static int send_node(struct gp_handle *handle, const struct gp_packed *packed, uint64_t *reply) {
    size_t size;
    unsigned char *bytes = describe(handle, packed, &size);
    if (bytes == NULL) return GP_OUT_OF_MEMORY;
    int status = GP_INVALID_VALUE;
    if (reply != NULL) {
        struct gp_request request = {.body = reply, .capacity = 8};
        status = gp_exchange(&request, GP_GRAPH_ALLOCATE, NULL, 0, bytes, size, NULL, 0);
    } else {
        unsigned char *at = gp_open(GP_GRAPH_NODE, 0, size);
        if (at != NULL) {
            memcpy(at, bytes, size);
            gp_close();
            status = GP_SUCCESS;
        }
    }
    free(bytes);
    const struct gp_node *node = GP_NODE_OF(handle);
    for (unsigned at = GP_EDGES_AT_ONCE; at < node->edge_count && status == GP_SUCCESS; at++) {
        void *from = node->edges[at].node, *to = handle;
        status = gp_send_edges(GP_GRAPH_EDGES, node->graph, 0, &from, &to, &node->edges[at].data,
                               1);
    }
    return status;
}

static int keep_allocation(struct gp_allocation_list *list, struct gp_allocation one) {
    if (list->count == list->room) {
        unsigned room = list->room ? list->room * 2 : 4;
        struct gp_allocation *grown = realloc(list->items, room * sizeof *grown);
        if (grown == NULL) return GP_OUT_OF_MEMORY;
        list->items = grown;
        list->room = room;
    }
    list->items[list->count++] = one;
    return GP_SUCCESS;
}

// Note memory that a node of the graph allocates; its address stays with the graph.
int gp_graph_allocates(struct gp_handle *handle, uint64_t address, uint64_t size, int device) {
    struct gp_graph *graph = GP_GRAPH_OF(handle);
    graph->memory = true;
    GP_CHECK(keep_allocation(&graph->allocations, (struct gp_allocation){address, size, device,
                                                                          false}));
    return gp_add_range((struct gp_range){address, size, GP_DEVICE_MEMORY, device, 2, 0, NULL});
}

void gp_graph_frees(struct gp_handle *handle, uint64_t address) {
    struct gp_graph *graph = GP_GRAPH_OF(handle);
    graph->memory = true;
    for (unsigned at = 0; at < graph->allocations.count; at++) {
        struct gp_allocation *one = &graph->allocations.items[at];
        if (one->address == address) one->freed = true;
    }
}

static int note_memory(struct gp_handle *graph, struct gp_node_params *given, uint64_t address) {
    if (given->type == GP_NODE_FREE) gp_graph_frees(graph, given->address);
    if (given->type != GP_NODE_ALLOCATE) return GP_SUCCESS;
    given->allocate.address = address;
    return gp_graph_allocates(graph, address, given->allocate.size, given->allocate.location.id);
}

static int check_new(void **made, void *graph, void **on, size_t count) {
    GP_ENTER();
    if (made == NULL || (count > 0 && on == NULL)) return GP_INVALID_VALUE;
    if (gp_check(graph, GP_GRAPH) != GP_SUCCESS) return GP_INVALID_VALUE;
    for (size_t at = 0; at < count; at++) {
        if (gp_check(on[at], GP_NODE) || GP_NODE_OF(on[at])->graph != graph) {
            return GP_INVALID_VALUE;
        }
        for (size_t other = 0; other < at && at < 64; other++) {
            if (on[other] == on[at]) return GP_INVALID_VALUE;
        }
    }
    return GP_SUCCESS;
}

// A node that came to nothing is taken out again; it is the last of its graph.
static void undo(struct gp_handle *handle) {
    struct gp_node *node = GP_NODE_OF(handle);
    for (unsigned at = 0; at < node->child_count; at++) gp_drop_graph(node->children[at]);
    GP_GRAPH_OF(node->graph)->count--;
    free(node->children);
    free(node->edges);
    free(node);
    gp_end(handle);
}

static int add(void **made, void *graph, void **on, const struct gp_edge_data *data, size_t count,
               struct gp_node_params *given) {
    GP_CHECK(check_new(made, graph, on, count));
    struct gp_packed packed;
    GP_CHECK(gp_pack(graph, given, &packed));
    struct gp_handle *node = gp_new_node(graph, 0);
    int status = node == NULL ? GP_OUT_OF_MEMORY : make_children(node, given);
    for (size_t at = 0; at < count && status == GP_SUCCESS; at++) {
        status = gp_add_edge(node, on[at], data == NULL ? NULL : &data[at]);
    }
    bool allocates = given->type == GP_NODE_ALLOCATE;
    uint64_t address = 0;
    if (status == GP_SUCCESS) status = send_node(node, &packed, allocates ? &address : NULL);
    if (status != GP_SUCCESS) {
        if (node != NULL) undo(node);
        gp_drop_packed(&packed);
        return status;
    }
    for (unsigned at = 0; at < packed.staged_count; at++) {
        packed.staged[at].node = node;
        pthread_mutex_lock(&gp_graph_lock);
        status = gp_keep_staged(&GP_GRAPH_OF(graph)->staged, &packed.staged[at]);
        pthread_mutex_unlock(&gp_graph_lock);
    }
    packed.staged_count = 0;
    GP_CHECK(note_memory(graph, given, address));
    if (given->type == GP_NODE_CONDITIONAL) {
        given->conditional.graphs = (void **)GP_NODE_OF(node)->children;
    }
    *made = node;
    return status == GP_SUCCESS ? gp_note_params(node, given, &packed) : status;
}

GP_EXPORT int cuGraphAddNode_v2(void **made, void *graph, void **on,
                                const struct gp_edge_data *data, size_t count,
                                struct gp_node_params *given) {
    if (given == NULL) return GP_INVALID_VALUE;
    return add(made, graph, on, data, count, given);
}

GP_EXPORT int cuGraphAddNode(void **made, void *graph, void **on, size_t count,
                             struct gp_node_params *given) {
    return cuGraphAddNode_v2(made, graph, on, NULL, count, given);
}

// The functions for one type each differ in what they are given alone.
#define NEW_PARAMS(name, kind)                                    \
    struct gp_node_params name;                                   \
    memset(&name, 0, sizeof name);                                \
    name.type = (kind)

static void widen_kernel(struct gp_node_params *full, const void *given, bool old) {
    size_t size = old ? offsetof(struct gp_kernel_node, kernel) : sizeof full->kernel;
    memcpy(&full->kernel, given, size);
}

static void widen_fill(struct gp_node_params *full, const void *given, void *context) {
    memcpy(&full->memset, given, offsetof(struct gp_memset_node, context));
    full->memset.context = context;
}

static void widen_copy(struct gp_node_params *full, const struct gp_copy_3d *given, void *context) {
    full->memcpy.copy = *given;
    full->memcpy.context = context;
}

GP_EXPORT int cuGraphAddKernelNode_v2(void **made, void *graph, void **on, size_t count,
                                      const void *given) {
    NEW_PARAMS(full, GP_NODE_KERNEL);
    if (given == NULL) return GP_INVALID_VALUE;
    widen_kernel(&full, given, false);
    return add(made, graph, on, NULL, count, &full);
}

GP_EXPORT int cuGraphAddKernelNode(void **made, void *graph, void **on, size_t count,
                                   const void *given) {
    NEW_PARAMS(full, GP_NODE_KERNEL);
    if (given == NULL) return GP_INVALID_VALUE;
    widen_kernel(&full, given, true);
    return add(made, graph, on, NULL, count, &full);
}

GP_EXPORT int cuGraphAddMemcpyNode(void **made, void *graph, void **on, size_t count,
                                   const struct gp_copy_3d *given, void *context) {
    NEW_PARAMS(full, GP_NODE_MEMCPY);
    if (given == NULL) return GP_INVALID_VALUE;
    widen_copy(&full, given, context);
    return add(made, graph, on, NULL, count, &full);
}

GP_EXPORT int cuGraphAddMemsetNode(void **made, void *graph, void **on, size_t count,
                                   const void *given, void *context) {
    NEW_PARAMS(full, GP_NODE_MEMSET);
    if (given == NULL) return GP_INVALID_VALUE;
    widen_fill(&full, given, context);
    return add(made, graph, on, NULL, count, &full);
}

GP_EXPORT int cuGraphAddHostNode(void **made, void *graph, void **on, size_t count,
                                 const struct gp_host_node *given) {
    NEW_PARAMS(full, GP_NODE_HOST);
    if (given == NULL || given->function == NULL) return GP_INVALID_VALUE;
    full.host = *given;
    return add(made, graph, on, NULL, count, &full);
}

GP_EXPORT int cuGraphAddChildGraphNode(void **made, void *graph, void **on, size_t count,
                                       void *child) {
    NEW_PARAMS(full, GP_NODE_GRAPH);
    full.graph.graph = child;
    return add(made, graph, on, NULL, count, &full);
}

GP_EXPORT int cuGraphAddEmptyNode(void **made, void *graph, void **on, size_t count) {
    NEW_PARAMS(full, GP_NODE_EMPTY);
    return add(made, graph, on, NULL, count, &full);
}

GP_EXPORT int cuGraphAddEventRecordNode(void **made, void *graph, void **on, size_t count,
                                        void *event) {
    NEW_PARAMS(full, GP_NODE_RECORD_EVENT);
    full.event = event;
    return add(made, graph, on, NULL, count, &full);
}

GP_EXPORT int cuGraphAddEventWaitNode(void **made, void *graph, void **on, size_t count,
                                      void *event) {
    NEW_PARAMS(full, GP_NODE_WAIT_EVENT);
    full.event = event;
    return add(made, graph, on, NULL, count, &full);
}

GP_EXPORT int cuGraphAddMemAllocNode(void **made, void *graph, void **on, size_t count,
                                     struct gp_allocate_node *given) {
    NEW_PARAMS(full, GP_NODE_ALLOCATE);
    if (given == NULL) return GP_INVALID_VALUE;
    full.allocate = *given;
    GP_CHECK(add(made, graph, on, NULL, count, &full));
    given->address = full.allocate.address;
    return GP_SUCCESS;
}

GP_EXPORT int cuGraphAddMemFreeNode(void **made, void *graph, void **on, size_t count,
                                    uint64_t address) {
    NEW_PARAMS(full, GP_NODE_FREE);
    full.address = address;
    return add(made, graph, on, NULL, count, &full);
}

GP_EXPORT int cuGraphAddBatchMemOpNode(void **made, void *graph, void **on, size_t count,
                                       const struct gp_batch_node *given) {
    NEW_PARAMS(full, GP_NODE_BATCH);
    if (given == NULL) return GP_INVALID_VALUE;
    full.batch = *given;
    return add(made, graph, on, NULL, count, &full);
}

GP_EXPORT int cuGraphConditionalHandleCreate(uint64_t *made, void *graph, void *context,
                                             unsigned initial, unsigned flags) {
    GP_ENTER();
    if (made == NULL || flags > 1) return GP_INVALID_VALUE;
    GP_CHECK(gp_check(graph, GP_GRAPH));
    GP_CHECK(pack_context(&context));
    // Kernels get this value as it is, so it is CUDA's own.
    uint64_t values[4] = {((struct gp_handle *)graph)->id, (uint64_t)(uintptr_t)context, initial,
                          flags};
    return gp_call(GP_GRAPH_CONDITION, values, 4, made, sizeof *made);
}

// --- asking and changing --------------------------------------------------------------------------

static int find(void *handle, int type, const void *out, struct gp_node **node) {
    GP_ENTER();
    GP_CHECK(gp_check(handle, GP_NODE));
    *node = GP_NODE_OF(handle);
    return (*node)->params.type != type || out == NULL ? GP_INVALID_VALUE : GP_SUCCESS;
}

// The record: node, executable or 0, how many bytes; then parameters and bytes.
static int send_params(struct gp_handle *node, uint64_t exec, const struct gp_packed *packed) {
    uint64_t head[3] = {node->id, exec, packed->size};
    unsigned char *at = gp_open(GP_GRAPH_SET, 0, sizeof head + sizeof packed->params + packed->size);
    if (at == NULL) return GP_INVALID_VALUE;
    memcpy(at, head, sizeof head);
    memcpy(at + sizeof head, &packed->params, sizeof packed->params);
    if (packed->size) memcpy(at + sizeof head + sizeof packed->params, packed->bytes, packed->size);
    gp_close();
    return GP_SUCCESS;
}

static bool may_change(int type) {
    return type != GP_NODE_GRAPH && type != GP_NODE_ALLOCATE && type != GP_NODE_FREE &&
           type != GP_NODE_CONDITIONAL && type != GP_NODE_EMPTY;
}

static int replace_staged(struct gp_staged_list *list, struct gp_handle *node,
                          struct gp_packed *packed) {
    int status = GP_SUCCESS;
    pthread_mutex_lock(&gp_graph_lock);
    gp_forget_staged(list, node);
    for (unsigned at = 0; at < packed->staged_count && status == GP_SUCCESS; at++) {
        packed->staged[at].node = node;
        status = gp_keep_staged(list, &packed->staged[at]);
    }
    pthread_mutex_unlock(&gp_graph_lock);
    packed->staged_count = 0;
    return status;
}

static int set(void *handle, const struct gp_node_params *given) {
    struct gp_node *node;
    GP_CHECK(find(handle, given->type, handle, &node));
    if (!may_change(given->type)) return GP_NOT_SUPPORTED;
    struct gp_packed packed;
    GP_CHECK(gp_pack(node->graph, given, &packed));
    int status = send_params(handle, 0, &packed);
    if (status == GP_SUCCESS) {
        status = replace_staged(&GP_GRAPH_OF(node->graph)->staged, handle, &packed);
    }
    if (status == GP_SUCCESS) status = gp_note_params(handle, given, &packed);
    gp_drop_packed(&packed);
    return status;
}

static int set_in_exec(void *exec, void *handle, const struct gp_node_params *given) {
    struct gp_node *node;
    GP_CHECK(find(handle, given->type, handle, &node));
    GP_CHECK(gp_check(exec, GP_GRAPH_EXEC));
    if (!may_change(given->type)) return GP_NOT_SUPPORTED;
    struct gp_packed packed;
    GP_CHECK(gp_pack(node->graph, given, &packed));
    int status = send_params(handle, ((struct gp_handle *)exec)->id, &packed);
    if (status == GP_SUCCESS && given->type == GP_NODE_MEMCPY) {
        gp_match_staged(&GP_EXEC_OF(exec)->staged, node->graph);
        status = replace_staged(&GP_EXEC_OF(exec)->staged, handle, &packed);
    }
    gp_drop_packed(&packed);
    return status;
}

GP_EXPORT int cuGraphNodeSetParams(void *node, struct gp_node_params *given) {
    return given == NULL ? GP_INVALID_VALUE : set(node, given);
}

int cuGraphExecChildGraphNodeSetParams(void *exec, void *node, void *child);

GP_EXPORT int cuGraphExecNodeSetParams(void *exec, void *node, struct gp_node_params *given) {
    if (given == NULL) return GP_INVALID_VALUE;
    if (given->type == GP_NODE_GRAPH) {
        return cuGraphExecChildGraphNodeSetParams(exec, node, given->graph.graph);
    }
    return set_in_exec(exec, node, given);
}

GP_EXPORT int cuGraphKernelNodeGetParams_v2(void *handle, struct gp_kernel_node *out) {
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_KERNEL, out, &node));
    *out = node->params.kernel;
    return GP_SUCCESS;
}

GP_EXPORT int cuGraphKernelNodeGetParams(void *handle, void *out) {
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_KERNEL, out, &node));
    memcpy(out, &node->params.kernel, offsetof(struct gp_kernel_node, kernel));
    return GP_SUCCESS;
}

static int kernel_set(void *exec, void *node, const void *given, bool old) {
    NEW_PARAMS(full, GP_NODE_KERNEL);
    if (given == NULL) return GP_INVALID_VALUE;
    widen_kernel(&full, given, old);
    return exec == NULL ? set(node, &full) : set_in_exec(exec, node, &full);
}

GP_EXPORT int cuGraphKernelNodeSetParams_v2(void *node, const void *given) {
    return kernel_set(NULL, node, given, false);
}

GP_EXPORT int cuGraphKernelNodeSetParams(void *node, const void *given) {
    return kernel_set(NULL, node, given, true);
}

GP_EXPORT int cuGraphExecKernelNodeSetParams_v2(void *exec, void *node, const void *given) {
    return exec == NULL ? GP_INVALID_HANDLE : kernel_set(exec, node, given, false);
}

GP_EXPORT int cuGraphExecKernelNodeSetParams(void *exec, void *node, const void *given) {
    return exec == NULL ? GP_INVALID_HANDLE : kernel_set(exec, node, given, true);
}

GP_EXPORT int cuGraphMemcpyNodeGetParams(void *handle, struct gp_copy_3d *out) {
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_MEMCPY, out, &node));
    *out = node->params.memcpy.copy;
    return GP_SUCCESS;
}

GP_EXPORT int cuGraphMemcpyNodeSetParams(void *handle, const struct gp_copy_3d *given) {
    NEW_PARAMS(full, GP_NODE_MEMCPY);
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_MEMCPY, given, &node));
    widen_copy(&full, given, node->params.memcpy.context);
    return set(handle, &full);
}

GP_EXPORT int cuGraphExecMemcpyNodeSetParams(void *exec, void *node, const struct gp_copy_3d *given,
                                             void *context) {
    NEW_PARAMS(full, GP_NODE_MEMCPY);
    if (given == NULL) return GP_INVALID_VALUE;
    widen_copy(&full, given, context);
    return set_in_exec(exec, node, &full);
}

GP_EXPORT int cuGraphMemsetNodeGetParams(void *handle, void *out) {
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_MEMSET, out, &node));
    memcpy(out, &node->params.memset, offsetof(struct gp_memset_node, context));
    return GP_SUCCESS;
}

GP_EXPORT int cuGraphMemsetNodeSetParams(void *handle, const void *given) {
    NEW_PARAMS(full, GP_NODE_MEMSET);
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_MEMSET, given, &node));
    widen_fill(&full, given, node->params.memset.context);
    return set(handle, &full);
}

GP_EXPORT int cuGraphExecMemsetNodeSetParams(void *exec, void *node, const void *given,
                                             void *context) {
    NEW_PARAMS(full, GP_NODE_MEMSET);
    if (given == NULL) return GP_INVALID_VALUE;
    widen_fill(&full, given, context);
    return set_in_exec(exec, node, &full);
}

GP_EXPORT int cuGraphHostNodeGetParams(void *handle, struct gp_host_node *out) {
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_HOST, out, &node));
    *out = node->params.host;
    return GP_SUCCESS;
}

static int host_set(void *exec, void *node, const struct gp_host_node *given) {
    NEW_PARAMS(full, GP_NODE_HOST);
    if (given == NULL || given->function == NULL) return GP_INVALID_VALUE;
    full.host = *given;
    return exec == NULL ? set(node, &full) : set_in_exec(exec, node, &full);
}

GP_EXPORT int cuGraphHostNodeSetParams(void *node, const struct gp_host_node *given) {
    return host_set(NULL, node, given);
}

GP_EXPORT int cuGraphExecHostNodeSetParams(void *exec, void *node,
                                           const struct gp_host_node *given) {
    return exec == NULL ? GP_INVALID_HANDLE : host_set(exec, node, given);
}

static int get_event(void *handle, int type, void **event) {
    struct gp_node *node;
    GP_CHECK(find(handle, type, event, &node));
    // A capture's node names an event that this side was not told of.
    if (node->params.event == NULL) return GP_NOT_SUPPORTED;
    *event = node->params.event;
    return GP_SUCCESS;
}

static int set_event(void *exec, void *node, int type, void *event) {
    NEW_PARAMS(full, type);
    full.event = event;
    return exec == NULL ? set(node, &full) : set_in_exec(exec, node, &full);
}

GP_EXPORT int cuGraphEventRecordNodeGetEvent(void *node, void **event) {
    return get_event(node, GP_NODE_RECORD_EVENT, event);
}

GP_EXPORT int cuGraphEventWaitNodeGetEvent(void *node, void **event) {
    return get_event(node, GP_NODE_WAIT_EVENT, event);
}

GP_EXPORT int cuGraphEventRecordNodeSetEvent(void *node, void *event) {
    return set_event(NULL, node, GP_NODE_RECORD_EVENT, event);
}

GP_EXPORT int cuGraphEventWaitNodeSetEvent(void *node, void *event) {
    return set_event(NULL, node, GP_NODE_WAIT_EVENT, event);
}

GP_EXPORT int cuGraphExecEventRecordNodeSetEvent(void *exec, void *node, void *event) {
    return exec == NULL ? GP_INVALID_HANDLE : set_event(exec, node, GP_NODE_RECORD_EVENT, event);
}

GP_EXPORT int cuGraphExecEventWaitNodeSetEvent(void *exec, void *node, void *event) {
    return exec == NULL ? GP_INVALID_HANDLE : set_event(exec, node, GP_NODE_WAIT_EVENT, event);
}

GP_EXPORT int cuGraphMemAllocNodeGetParams(void *handle, struct gp_allocate_node *out) {
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_ALLOCATE, out, &node));
    *out = node->params.allocate;
    return GP_SUCCESS;
}

GP_EXPORT int cuGraphMemFreeNodeGetParams(void *handle, uint64_t *out) {
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_FREE, out, &node));
    *out = node->params.address;
    return GP_SUCCESS;
}

GP_EXPORT int cuGraphBatchMemOpNodeGetParams(void *handle, struct gp_batch_node *out) {
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_BATCH, out, &node));
    *out = node->params.batch;
    return GP_SUCCESS;
}

static int batch_set(void *exec, void *node, const struct gp_batch_node *given) {
    NEW_PARAMS(full, GP_NODE_BATCH);
    if (given == NULL) return GP_INVALID_VALUE;
    full.batch = *given;
    return exec == NULL ? set(node, &full) : set_in_exec(exec, node, &full);
}

GP_EXPORT int cuGraphBatchMemOpNodeSetParams(void *node, const struct gp_batch_node *given) {
    return batch_set(NULL, node, given);
}

GP_EXPORT int cuGraphExecBatchMemOpNodeSetParams(void *exec, void *node,
                                                 const struct gp_batch_node *given) {
    return exec == NULL ? GP_INVALID_HANDLE : batch_set(exec, node, given);
}

GP_EXPORT int cuGraphChildGraphNodeGetGraph(void *handle, void **graph) {
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_GRAPH, graph, &node));
    if (node->child_count != 1) return GP_INVALID_VALUE;
    *graph = node->children[0];
    return GP_SUCCESS;
}

// --- attributes of kernel nodes -------------------------------------------------------------------

GP_EXPORT int cuGraphKernelNodeSetAttribute(void *handle, int attribute, const void *value) {
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_KERNEL, value, &node));
    // Values that hold handles: events, and nodes that kernels may change.
    if (attribute == 7 || attribute == 12 || attribute == 13) return GP_NOT_SUPPORTED;
    uint64_t words[2 + ATTRIBUTE_SIZE / 8] = {((struct gp_handle *)handle)->id,
                                              (uint64_t)attribute};
    memcpy(words + 2, value, ATTRIBUTE_SIZE);
    return gp_post(GP_GRAPH_SET_ATTRIBUTE, words, 2 + ATTRIBUTE_SIZE / 8);
}

GP_EXPORT int cuGraphKernelNodeGetAttribute(void *handle, int attribute, void *value) {
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_KERNEL, value, &node));
    if (attribute == 7 || attribute == 12 || attribute == 13) return GP_NOT_SUPPORTED;
    uint64_t words[2] = {((struct gp_handle *)handle)->id, (uint64_t)attribute};
    return gp_call(GP_GRAPH_GET_ATTRIBUTE, words, 2, value, ATTRIBUTE_SIZE);
}

GP_EXPORT int cuGraphKernelNodeCopyAttributes(void *to, void *from) {
    struct gp_node *node;
    GP_CHECK(find(from, GP_NODE_KERNEL, to, &node));
    GP_CHECK(find(to, GP_NODE_KERNEL, from, &node));
    uint64_t words[2] = {((struct gp_handle *)to)->id, ((struct gp_handle *)from)->id};
    return gp_post(GP_GRAPH_COPY_ATTRIBUTES, words, 2);
}
