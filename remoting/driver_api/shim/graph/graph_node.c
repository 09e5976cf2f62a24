// Nodes: added to graphs, of any type or by the functions for one type each.
#include "graph.h"

#include <stdlib.h>

static int make_children(struct gp_handle *handle, const struct gp_node_params *given) {
    bool bodies = given->type == GP_NODE_CONDITIONAL;
    if (!bodies && given->type != GP_NODE_GRAPH) return GP_SUCCESS;
    struct gp_node *node = GP_NODE_OF(handle);
    unsigned count = bodies ? given->conditional.size : 1;
    bool moves = !bodies && given->graph.ownership == GP_CHILD_MOVE;
    node->children = calloc(count, sizeof *node->children);
    if (node->children == NULL) return GP_OUT_OF_MEMORY;
    for (; node->child_count < count; node->child_count++) {
        struct gp_handle *child = bodies ? gp_new_graph(handle)
                                  : moves ? given->graph.graph
                                          : gp_clone_within(given->graph.graph, handle);
        if (child == NULL) return GP_OUT_OF_MEMORY;
        struct gp_graph *graph = GP_GRAPH_OF(child);
        graph->conditional |= bodies || (moves && GP_GRAPH_OF(node->graph)->conditional);
        graph->within = handle;
        graph->moved = moves;
        node->children[node->child_count] = child;
    }
    return GP_SUCCESS;
}

// What lies behind the fields of a node's record: edges, graphs within, parameters and bytes.
static void describe(unsigned char *at, const struct gp_node *node, size_t edges,
                     const struct gp_packed *packed) {
    for (size_t edge = 0; edge < edges; edge++, at += 16) {
        memcpy(at, &node->edges[edge].node->id, 8);
        memcpy(at + 8, &node->edges[edge].data, 8);
    }
    for (unsigned child = 0; child < node->child_count; child++, at += 8) {
        memcpy(at, &node->children[child]->id, 8);
    }
    memcpy(at, &packed->params, sizeof packed->params);
    if (packed->size) memcpy(at + sizeof packed->params, packed->bytes, packed->size);
}

static int send_node(struct gp_handle *handle, const struct gp_packed *packed, uint64_t *reply) {
    const struct gp_node *node = GP_NODE_OF(handle);
    size_t edges = node->edge_count < GP_EDGES_AT_ONCE ? node->edge_count : GP_EDGES_AT_ONCE;
    unsigned children = node->child_count;
    int status = GP_SUCCESS;
    if (reply != NULL) {
        size_t size = edges * 16 + children * 8 + sizeof packed->params + packed->size;
        unsigned char *bytes = calloc(1, size);
        if (bytes == NULL) return GP_OUT_OF_MEMORY;
        describe(bytes, node, edges, packed);
        struct gp_request request = {.body = reply, .capacity = 8};
        status = gp_exchange_graph_allocate(&request, node->graph->id, handle->id, edges, children,
                                            packed->size, bytes);
        free(bytes);
    } else {
        unsigned char *at = gp_open_graph_node(node->graph->id, handle->id, edges, children,
                                               packed->size);
        if (at == NULL) return GP_INVALID_VALUE;
        describe(at, node, edges, packed);
        gp_close();
    }
    for (unsigned at = GP_EDGES_AT_ONCE; at < node->edge_count && status == GP_SUCCESS; at++) {
        void *from = node->edges[at].node, *to = handle;
        status = gp_send_edges(node->graph, 0, &from, &to, &node->edges[at].data, 1);
    }
    return status;
}

// Note memory that a node of the graph allocates; its address stays with the graph.
int gp_graph_allocates(struct gp_handle *handle, uint64_t address, uint64_t size, int device) {
    struct gp_graph *graph = GP_GRAPH_OF(handle);
    graph->memory = true;
    GP_CHECK(gp_keep_allocation(&graph->allocations, (struct gp_allocation){address, size, device, false}));
    return gp_add_range((struct gp_range){address, size, GP_DEVICE_MEMORY, device, GP_OF_POOL, 0, NULL, false});
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
    if (given->type == GP_NODE_GRAPH) {
        GP_GRAPH_OF(graph)->memory |= GP_GRAPH_OF(given->graph.graph)->memory;
    }
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
    for (unsigned at = 0; at < node->child_count; at++) {
        struct gp_graph *child = GP_GRAPH_OF(node->children[at]);
        if (child->moved) {
            child->within = NULL;
            child->moved = false;
        } else {
            gp_drop_graph(node->children[at]);
        }
    }
    GP_GRAPH_OF(node->graph)->count--;
    free(node->children);
    free(node->edges);
    free(node);
    gp_end(handle);
}

static int add(void **made, void *graph, void **on, const struct gp_edge_data *data, size_t count,
               struct gp_node_params *given) {
    GP_ON(graph);
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
    if (packed.call != 0) {
        GP_NODE_OF(node)->call = packed.call;
        GP_CHECK(gp_replace_call(&GP_GRAPH_OF(graph)->calls, node, 0, packed.call));
        packed.call = 0;
    }
    GP_CHECK(note_memory(graph, given, address));
    if (given->type == GP_NODE_CONDITIONAL) {
        given->conditional.graphs = (void **)GP_NODE_OF(node)->children;
    }
    *made = node;
    return status == GP_SUCCESS ? gp_note_params(node, given, &packed) : status;
}

// The functions for one type of node each are rows of forwards.py; they give one part of the parameters, and
// maybe a context.
static int add_one(void **made, void *graph, void **on, size_t count, int type, struct gp_part part,
                   const void *given, struct gp_part context, const void *its) {
    struct gp_node_params full;
    GP_CHECK(gp_new_params(&full, type, part, given, context, its));
    return add(made, graph, on, NULL, count, &full);
}

GP_EXPORT int cuGraphAddMemAllocNode(void **made, void *graph, void **on, size_t count,
                                     struct gp_allocate_node *given) {
    struct gp_node_params full;
    GP_CHECK(gp_new_params(&full, GP_NODE_ALLOCATE, GP_PART(allocate), given, GP_NO_CONTEXT));
    GP_CHECK(add(made, graph, on, NULL, count, &full));
    given->address = full.allocate.address;
    return GP_SUCCESS;
}

GP_EXPORT int cuGraphConditionalHandleCreate(uint64_t *made, void *graph, void *context,
                                             unsigned initial, unsigned flags) {
    GP_ENTER_ON(graph);
    GP_ON(graph);
    if (made == NULL || flags > 1) return GP_INVALID_VALUE;
    if (context == NULL) return GP_INVALID_CONTEXT;  // as an H200's driver says
    GP_CHECK(gp_check(graph, GP_GRAPH));
    GP_CHECK(gp_pack_context(&context));
    // Kernels get this value as it is, so it is CUDA's own.
    return gp_call_graph_condition(((struct gp_handle *)graph)->id, (uintptr_t)context, initial,
                                   flags, made);
}

#define GP_FORWARDS_GRAPH_NODE
#include "generated_forwards.h"
