// Graphs of any form, as a worker may describe them: which host nodes come behind which copies to the host.
//
// What the library finds is compared with the order of the beginnings and ends of all nodes. A graph of a
// worker that lies may have circles; then it is only looked at.
#include "input.h"
#include "graph/graph.h"
#include "no_link.h"

#define GRAPHS 4
#define NODES 24

struct shape {
    struct gp_handle *graphs[GRAPHS], *nodes[NODES];
    unsigned graph_count, node_count, entry_count;
    unsigned entries[NODES * 2];  // the node of each, in the order of an executable's
    bool out[NODES * 2];
    bool before[2 * NODES][2 * NODES];  // of beginnings, which are even, and ends
};

static unsigned place_of(const struct shape *shape, const struct gp_handle *node) {
    unsigned at = 0;
    while (shape->nodes[at] != node) at++;
    return at;
}

static struct gp_handle *add_node(struct shape *shape, struct gp_handle *graph, int type) {
    struct gp_handle *node = gp_new_node(graph, 0);
    if (node == NULL) abort();
    GP_NODE_OF(node)->params.type = type;
    shape->nodes[shape->node_count++] = node;
    return node;
}

static void add_entry(struct gp_handle *node, bool out) {
    struct gp_slot *slot = calloc(1, sizeof *slot);
    if (slot == NULL) abort();
    slot->references = 2;  // it is never the worker's, so it does not end
    struct gp_staged entry = {.slot = slot, .node = node, .serial = 1, .out = out, .width = 1,
                              .height = 1, .depth = 1};
    if (gp_keep_staged(&GP_GRAPH_OF(GP_NODE_OF(node)->graph)->staged, &entry) != GP_SUCCESS) abort();
}

static void build(struct shape *shape, struct input *input) {
    static const int types[] = {GP_NODE_HOST, GP_NODE_MEMCPY, GP_NODE_MEMCPY, GP_NODE_KERNEL};
    shape->graph_count = 1 + take_byte(input) % GRAPHS;
    for (unsigned at = 0; at < shape->graph_count; at++) {
        struct gp_handle *within = NULL;
        if (at > 0) {
            unsigned byte = take_byte(input);
            within = add_node(shape, shape->graphs[byte % at], GP_NODE_GRAPH);
            if (byte & 0x80) add_entry(within, byte & 0x40);
        }
        shape->graphs[at] = gp_new_graph(within);
        if (shape->graphs[at] == NULL) abort();
        if (within == NULL) continue;
        GP_NODE_OF(within)->children = calloc(1, sizeof within);
        GP_NODE_OF(within)->children[0] = shape->graphs[at];
        GP_NODE_OF(within)->child_count = 1;
    }
    unsigned count = take_byte(input) % (NODES - GRAPHS);
    for (unsigned at = 0; at < count; at++) {
        unsigned byte = take_byte(input), type = byte >> 2 & 3;
        struct gp_handle *node = add_node(shape, shape->graphs[byte % shape->graph_count], types[type]);
        if (types[type] == GP_NODE_MEMCPY && !(byte & 0x80)) add_entry(node, type == 1 || byte & 0x40);
    }
    while (input->left >= 2 && shape->node_count > 0) {
        unsigned one = take_byte(input), two = take_byte(input), first, second;
        first = one % shape->node_count;
        second = two % shape->node_count;
        if (first == second) continue;
        if (first > second && one < 0xf0) first ^= second, second ^= first, first ^= second;
        struct gp_handle *from = shape->nodes[first], *to = shape->nodes[second];
        if (GP_NODE_OF(from)->graph != GP_NODE_OF(to)->graph) continue;
        if (gp_add_edge(to, from, NULL) != GP_SUCCESS) abort();
    }
}

static void list_entries(struct shape *shape, struct gp_handle *handle) {
    const struct gp_graph *graph = GP_GRAPH_OF(handle);
    for (unsigned at = 0; at < graph->staged.count; at++) {
        shape->out[shape->entry_count] = graph->staged.items[at].out;
        shape->entries[shape->entry_count++] = place_of(shape, graph->staged.items[at].node);
    }
    for (unsigned at = 0; at < graph->count; at++) {
        const struct gp_node *node = GP_NODE_OF(graph->nodes[at]);
        if (node->child_count > 0) list_entries(shape, node->children[0]);
    }
}

static void find_order(struct shape *shape) {
    unsigned all = 2 * shape->node_count;
    for (unsigned at = 0; at < shape->node_count; at++) {
        const struct gp_node *node = GP_NODE_OF(shape->nodes[at]);
        const struct gp_handle *within = GP_GRAPH_OF(node->graph)->within;
        shape->before[2 * at][2 * at + 1] = true;
        for (unsigned edge = 0; edge < node->edge_count; edge++) {
            shape->before[2 * place_of(shape, node->edges[edge].node) + 1][2 * at] = true;
        }
        if (within == NULL) continue;
        shape->before[2 * place_of(shape, within)][2 * at] = true;
        shape->before[2 * at + 1][2 * place_of(shape, within) + 1] = true;
    }
    for (unsigned via = 0; via < all; via++) {
        for (unsigned one = 0; one < all; one++) {
            if (!shape->before[one][via]) continue;
            for (unsigned two = 0; two < all; two++) shape->before[one][two] |= shape->before[via][two];
        }
    }
}

static bool is_before(const struct shape *shape, unsigned one, unsigned two) {
    return shape->before[2 * one + 1][2 * two];
}

static bool is_within(const struct shape *shape, unsigned node, unsigned outer) {
    const struct gp_handle *at = shape->nodes[node];
    while (at != NULL && at != shape->nodes[outer]) at = GP_GRAPH_OF(GP_NODE_OF(at)->graph)->within;
    return at != NULL && node != outer;
}

static bool is_host(const struct shape *shape, unsigned node) {
    return GP_NODE_OF(shape->nodes[node])->params.type == GP_NODE_HOST;
}

// Whether some copy from the host's memory may come behind a host node, or it is not known what does.
static bool is_refused(const struct shape *shape) {
    for (unsigned at = 0; at < shape->entry_count; at++) {
        unsigned node = shape->entries[at];
        for (unsigned host = 0; host < shape->node_count; host++) {
            if (!is_host(shape, host)) continue;
            if (is_within(shape, host, node)) return true;
            if (!shape->out[at] && is_before(shape, host, node)) return true;
        }
    }
    return false;
}

// What is found comes before its host node; and of the host nodes behind a copy, the first ones are found.
static void compare(const struct shape *shape, const struct gp_early_list *found) {
    static bool pairs[2 * NODES][NODES];
    memset(pairs, 0, sizeof pairs);
    for (unsigned at = 0; at < found->count; at++) {
        unsigned host = 0, entry = found->items[at].entry;
        while (host < shape->node_count && shape->nodes[host]->id != found->items[at].node) host++;
        if (host == shape->node_count || entry >= shape->entry_count || !shape->out[entry]) abort();
        if (!is_before(shape, shape->entries[entry], host)) abort();
        pairs[entry][host] = true;
    }
    for (unsigned entry = 0; entry < shape->entry_count; entry++) {
        for (unsigned host = 0; host < shape->node_count && shape->out[entry]; host++) {
            bool first = is_host(shape, host) && is_before(shape, shape->entries[entry], host);
            for (unsigned other = 0; other < shape->node_count && first; other++) {
                first = !(is_host(shape, other) && is_before(shape, shape->entries[entry], other) &&
                          is_before(shape, other, host));
            }
            if (first && !pairs[entry][host]) abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct input input = {bytes, size};
    struct shape *shape = calloc(1, sizeof *shape);
    if (shape == NULL) abort();
    build(shape, &input);
    struct gp_early_list found = {0};
    int status = gp_find_early(shape->graphs[0], &found);
    list_entries(shape, shape->graphs[0]);
    find_order(shape);
    bool circle = false;
    for (unsigned at = 0; at < 2 * shape->node_count; at++) circle |= shape->before[at][at];
    bool calls = false;
    for (unsigned at = 0; at < shape->node_count; at++) calls |= is_host(shape, at);
    if (!circle) {
        if (status != (calls && is_refused(shape) ? GP_NOT_SUPPORTED : GP_SUCCESS)) abort();
        if (status == GP_SUCCESS) compare(shape, &found);
    }
    free(found.items);
    for (unsigned at = 0; at < shape->graph_count; at++) {
        struct gp_graph *graph = GP_GRAPH_OF(shape->graphs[at]);
        for (unsigned one = 0; one < graph->staged.count; one++) free(graph->staged.items[one].slot);
        graph->staged.count = 0;
    }
    gp_drop_graph(shape->graphs[0]);
    free(shape);
    return 0;
}
