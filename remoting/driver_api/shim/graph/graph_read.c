// Graphs that the worker knows better: captured, cloned. Their nodes are asked for once.
#include "graph.h"

#include <stdlib.h>

// What is left of a reply; short becomes true when it ends too early.
struct reply {
    const unsigned char *at, *end;
    bool bad;
};

static const unsigned char *take(struct reply *reply, size_t size) {
    if (reply->bad || (size_t)(reply->end - reply->at) < size) {
        reply->bad = true;
        return NULL;
    }
    const unsigned char *found = reply->at;
    reply->at += size;
    return found;
}

static uint64_t word(struct reply *reply) {
    uint64_t value = 0;
    const unsigned char *found = take(reply, 8);
    if (found != NULL) memcpy(&value, found, 8);
    return value;
}

// Nodes by their identifiers, to find the ends of edges.
struct known {
    uint64_t id;
    struct gp_handle *node;
};

static int by_id(const void *one, const void *other) {
    uint64_t a = ((const struct known *)one)->id, b = ((const struct known *)other)->id;
    return (a > b) - (a < b);
}

static struct gp_handle *look_up(const struct known *known, size_t count, uint64_t id) {
    struct known key = {id, NULL};
    const struct known *found = bsearch(&key, known, count, sizeof key, by_id);
    return found == NULL ? NULL : found->node;
}

// The host's side of a copy. Graphs within a graph have their entries in one of those around them,
// where they belong to the node that leads here.
static void find_side(struct gp_handle *graph, struct gp_handle *node, struct gp_box *box,
                      bool out) {
    struct gp_range range;
    if (box->kind == GP_ON_DEVICE && gp_may_be_pinned(box->device) &&
        gp_find_range(box->device, &range) && range.kind == GP_HOST_MEMORY) {
        box->kind = GP_ON_HOST;  // mapped, and at its own address
        box->host = (const void *)(uintptr_t)box->device;
        box->device = 0;
        return;
    }
    if (box->kind != GP_ON_HOST) return;
    uint64_t id = (uint64_t)(uintptr_t)box->host, offset = box->device;
    box->host = NULL;
    box->device = 0;
    while (graph != NULL) {
        struct gp_graph *of = GP_GRAPH_OF(graph);
        for (unsigned at = 0; at < of->staged.count; at++) {
            struct gp_staged *one = &of->staged.items[at];
            if (one->slot->id != id) continue;
            box->host = (const void *)(uintptr_t)(one->slot->start + offset);
            bool same = one->address == one->slot->start + offset && one->out == out;
            if (!same || one->node != NULL) continue;
            one->node = node;
            return;
        }
        if (box->host != NULL) return;
        node = of->within;
        graph = node == NULL ? NULL : GP_NODE_OF(node)->graph;
    }
}

// Of what is done with all graphs within a graph, each has its part of the stack.
static bool is_too_deep(const struct gp_handle *node) {
    unsigned depth = 0;
    for (; node != NULL; depth++) node = GP_GRAPH_OF(GP_NODE_OF(node)->graph)->within;
    return depth >= GP_WITHIN_MAX;
}

static int take_children(struct reply *reply, struct gp_handle *handle, uint64_t count) {
    struct gp_node *node = GP_NODE_OF(handle);
    if (count > GP_CHILDREN_MAX || (count > 0 && is_too_deep(handle))) return GP_UNKNOWN;
    node->children = calloc(count + 1, sizeof *node->children);
    if (node->children == NULL) return GP_OUT_OF_MEMORY;
    for (; node->child_count < count; node->child_count++) {
        struct gp_handle *child = gp_new_graph(handle);
        if (child == NULL) return GP_OUT_OF_MEMORY;
        child->id = word(reply);
        GP_GRAPH_OF(child)->partial = true;
        GP_GRAPH_OF(child)->conditional = GP_GRAPH_OF(node->graph)->conditional;
        node->children[node->child_count] = child;
    }
    return GP_SUCCESS;
}

static void translate(struct gp_handle *graph, struct gp_handle *handle,
                      struct gp_node_params *params) {
    void *context = &gp.primaries[handle->device < 0 ? 0 : handle->device];
    uint64_t *call = &GP_NODE_OF(handle)->call;
    switch (params->type) {
        case GP_NODE_KERNEL:
            params->kernel.function = gp_function_by_id((uint64_t)(uintptr_t)params->kernel.function);
            // The runtime knows its kernels by these, and not by their functions.
            if (gp_function_is_kernel(params->kernel.function)) {
                params->kernel.kernel = params->kernel.function;
            }
            params->kernel.context = context;
            break;
        case GP_NODE_MEMCPY:
            find_side(graph, handle, &params->memcpy.copy.source, false);
            find_side(graph, handle, &params->memcpy.copy.target, true);
            params->memcpy.context = context;
            break;
        case GP_NODE_HOST:
            memcpy(call, &params->host.function, sizeof *call);
            gp_host_node_at(*call, &params->host.function, &params->host.data);
            break;
        case GP_NODE_MEMSET: params->memset.context = context; break;
        case GP_NODE_GRAPH: params->graph.graph = GP_NODE_OF(handle)->children[0]; break;
        case GP_NODE_WAIT_EVENT: case GP_NODE_RECORD_EVENT: params->event = NULL; break;
        default: break;
    }
}

static int take_node(struct reply *reply, struct gp_handle *graph, const struct known *known,
                     size_t count, struct gp_handle **found) {
    uint64_t id = word(reply), children = word(reply), size = word(reply);
    struct gp_handle *handle = look_up(known, count, id);
    bool fresh = handle == NULL;
    if (fresh) handle = gp_new_node(graph, id);
    if (handle == NULL) return GP_OUT_OF_MEMORY;
    *found = handle;
    if (fresh) {
        GP_CHECK(take_children(reply, handle, children));
    } else if (take(reply, children * 8) == NULL) {
        return GP_UNKNOWN;
    }
    struct gp_node_params params;
    const unsigned char *bytes = take(reply, sizeof params);
    if (bytes == NULL || size > UINT32_MAX) return GP_UNKNOWN;
    memcpy(&params, bytes, sizeof params);
    bytes = take(reply, (size + 7) & ~(uint64_t)7);
    if (bytes == NULL) return GP_UNKNOWN;
    if (!fresh) return GP_SUCCESS;  // the program's own words for it are better
    if (params.type == GP_NODE_GRAPH && GP_NODE_OF(handle)->child_count != 1) return GP_UNKNOWN;
    translate(graph, handle, &params);
    GP_NODE_OF(handle)->params = params;
    if (params.type != GP_NODE_KERNEL || params.kernel.function == NULL) return GP_SUCCESS;
    struct gp_packed packed = {.size = (uint32_t)size, .bytes = malloc(size + 1)};
    if (packed.bytes == NULL) return GP_OUT_OF_MEMORY;
    memcpy(packed.bytes, bytes, size);
    return gp_note_params(handle, &params, &packed);
}

static int take_nodes(struct reply *reply, struct gp_handle *handle, struct known *known,
                      uint64_t count, uint64_t edges) {
    struct gp_graph *graph = GP_GRAPH_OF(handle);
    size_t before = graph->count;
    for (size_t at = 0; at < before; at++) {
        known[at] = (struct known){graph->nodes[at]->id, graph->nodes[at]};
        GP_NODE_OF(graph->nodes[at])->edge_count = 0;
    }
    qsort(known, before, sizeof *known, by_id);
    for (uint64_t at = 0; at < count; at++) {
        struct gp_handle *node;
        GP_CHECK(take_node(reply, handle, known, before, &node));
    }
    for (size_t at = 0; at < graph->count; at++) {
        known[at] = (struct known){graph->nodes[at]->id, graph->nodes[at]};
    }
    qsort(known, graph->count, sizeof *known, by_id);
    for (uint64_t at = 0; at < edges; at++) {
        struct gp_handle *from = look_up(known, graph->count, word(reply));
        struct gp_handle *to = look_up(known, graph->count, word(reply));
        const unsigned char *data = take(reply, 8);
        if (from == NULL || to == NULL || data == NULL) return GP_UNKNOWN;
        struct gp_edge_data edge;
        memcpy(&edge, data, sizeof edge);
        GP_CHECK(gp_add_edge(to, from, &edge));
    }
    return GP_SUCCESS;
}

// What the next node of a stream that is captured will depend on.
struct front {
    struct gp_handle **nodes;
    struct gp_edge_data *data;
    size_t count;
};

static int take_front(struct reply *reply, const struct known *known, size_t room,
                      uint64_t count, struct front *front) {
    if (count > GP_GRAPH_NODES_MAX) return GP_UNKNOWN;
    front->nodes = calloc(count + 1, sizeof *front->nodes);
    front->data = calloc(count + 1, sizeof *front->data);
    if (front->nodes == NULL || front->data == NULL) return GP_OUT_OF_MEMORY;
    for (front->count = 0; front->count < count; front->count++) {
        front->nodes[front->count] = look_up(known, room, word(reply));
        const unsigned char *data = take(reply, 8);
        if (data == NULL || front->nodes[front->count] == NULL) return GP_UNKNOWN;
        memcpy(&front->data[front->count], data, 8);
    }
    return GP_SUCCESS;
}

static int read_graph(struct gp_handle *handle, uint64_t stream, int *status,
                      struct front *front) {
    GP_ON(handle);
    struct gp_graph *graph = GP_GRAPH_OF(handle);
    // New nodes and graphs within them get numbers from here on.
    struct gp_request request = {.grows = true};
    int result = gp_exchange_graph_read(&request, handle->id, stream,
                                        gp_new_ids(2 * GP_GRAPH_NODES_MAX));
    if (result == GP_SUCCESS && request.body == NULL) result = GP_UNKNOWN;
    if (result == GP_SUCCESS) {
        struct reply reply = {request.body, (unsigned char *)request.body + request.length, false};
        *status = (int)word(&reply);
        uint64_t count = word(&reply), edges = word(&reply), last = word(&reply);
        if (count > GP_GRAPH_NODES_MAX) reply.bad = true;
        size_t room = reply.bad ? 0 : graph->count + count + 1;
        struct known *known = calloc(room ? room : 1, sizeof *known);
        result = known == NULL ? GP_OUT_OF_MEMORY : reply.bad ? GP_UNKNOWN : GP_SUCCESS;
        if (result == GP_SUCCESS) result = take_nodes(&reply, handle, known, count, edges);
        if (result == GP_SUCCESS) result = take_front(&reply, known, graph->count, last, front);
        if (result == GP_SUCCESS && reply.bad) result = GP_UNKNOWN;
        free(known);
    }
    free(request.body);
    return result;
}

int gp_know(struct gp_handle *graph) {
    if (!GP_GRAPH_OF(graph)->partial) return GP_SUCCESS;
    struct front front = {0};
    int status;
    int result = read_graph(graph, 0, &status, &front);
    free(front.nodes);
    free(front.data);
    if (result == GP_SUCCESS) GP_GRAPH_OF(graph)->partial = false;
    return result;
}

int gp_know_all(struct gp_handle *graph) {
    GP_CHECK(gp_know(graph));
    const struct gp_graph *of = GP_GRAPH_OF(graph);
    for (unsigned at = 0; at < of->count; at++) {
        const struct gp_node *node = GP_NODE_OF(of->nodes[at]);
        for (unsigned child = 0; child < node->child_count; child++) {
            GP_CHECK(gp_know_all(node->children[child]));
        }
    }
    return GP_SUCCESS;
}

int gp_read_front(struct gp_handle *graph, uint64_t stream, int *status, struct gp_handle ***nodes,
                  struct gp_edge_data **data, size_t *count) {
    struct front front = {0};
    int result = read_graph(graph, stream, status, &front);
    if (result != GP_SUCCESS) {
        free(front.nodes);
        free(front.data);
        return result;
    }
    *nodes = front.nodes;
    *data = front.data;
    *count = front.count;
    return GP_SUCCESS;
}
