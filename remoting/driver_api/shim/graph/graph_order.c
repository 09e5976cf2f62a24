// The order of host nodes and of copies of the host's memory in a graph. Bytes for the device are sent
// before a launch, so no host node may come before a copy that takes them. Bytes for the host come behind a
// launch, except for those that a host node may read: the worker sends these before it calls the node.
#include "graph.h"

#include <stdlib.h>

#define STEPS_MAX (1u << 26)  // over edges, all together

// A copy, by its place among the entries that an executable of the graph gets. Of a graph within a graph
// whose nodes are not told apart, the node is the one that leads there.
struct place {
    struct gp_handle *node;
    bool out, inner;
};

struct walk {
    struct gp_handle **hosts, **stack;
    struct place *places;
    unsigned host_count, host_room, place_count, place_room, depth, stack_room;
    unsigned steps;
    uint64_t mark;  // of the nodes that were seen
    bool stops;     // at host nodes
    bool met;       // a host node
    int status;
};

static bool is_host(const struct gp_handle *node) {
    return GP_NODE_OF(node)->params.type == GP_NODE_HOST;
}

// --- what there is --------------------------------------------------------------------------------

static int note_place(struct walk *walk, struct gp_handle *graph, const struct gp_staged *one) {
    if (one->node == NULL || GP_NODE_OF(one->node)->graph != graph) return GP_NOT_SUPPORTED;
    void *grown = gp_grown(walk->places, &walk->place_room, walk->place_count, sizeof *walk->places);
    if (grown == NULL) return GP_OUT_OF_MEMORY;
    walk->places = grown;
    bool inner = GP_NODE_OF(one->node)->params.type != GP_NODE_MEMCPY;
    walk->places[walk->place_count++] = (struct place){one->node, one->out, inner};
    return GP_SUCCESS;
}

// In the order of gp_gather_staged.
static int gather(struct walk *walk, struct gp_handle *graph) {
    const struct gp_graph *of = GP_GRAPH_OF(graph);
    for (unsigned at = 0; at < of->staged.count; at++) {
        GP_CHECK(note_place(walk, graph, &of->staged.items[at]));
    }
    for (unsigned at = 0; at < of->count; at++) {
        struct gp_handle *node = of->nodes[at];
        if (is_host(node)) {
            void *grown = gp_grown(walk->hosts, &walk->host_room, walk->host_count, sizeof node);
            if (grown == NULL) return GP_OUT_OF_MEMORY;
            walk->hosts = grown;
            walk->hosts[walk->host_count++] = node;
        }
        for (unsigned child = 0; child < GP_NODE_OF(node)->child_count; child++) {
            GP_CHECK(gather(walk, GP_NODE_OF(node)->children[child]));
        }
    }
    return GP_SUCCESS;
}

// --- what comes before what -----------------------------------------------------------------------

// Note a node that comes before another, with all that is within it.
static void see(struct walk *walk, struct gp_handle *handle) {
    struct gp_node *node = GP_NODE_OF(handle);
    if (++walk->steps > STEPS_MAX) walk->status = GP_NOT_SUPPORTED;
    if (node->seen == walk->mark || walk->status != GP_SUCCESS) return;
    node->seen = walk->mark;
    walk->met |= is_host(handle);
    if (is_host(handle) && walk->stops) return;
    void *grown = gp_grown(walk->stack, &walk->stack_room, walk->depth, sizeof handle);
    if (grown == NULL) {
        walk->status = GP_OUT_OF_MEMORY;
        return;
    }
    walk->stack = grown;
    walk->stack[walk->depth++] = handle;
    for (unsigned child = 0; child < node->child_count; child++) {
        const struct gp_graph *of = GP_GRAPH_OF(node->children[child]);
        for (unsigned at = 0; at < of->count; at++) see(walk, of->nodes[at]);
    }
}

static void see_before(struct walk *walk, struct gp_handle *node) {
    for (; node != NULL; node = GP_GRAPH_OF(GP_NODE_OF(node)->graph)->within) {
        const struct gp_node *of = GP_NODE_OF(node);
        for (unsigned at = 0; at < of->edge_count; at++) see(walk, of->edges[at].node);
    }
}

static void see_all_before(struct walk *walk) {
    while (walk->depth > 0 && walk->status == GP_SUCCESS) {
        see_before(walk, walk->stack[--walk->depth]);
    }
}

static void begin(struct walk *walk, bool stops) {
    static uint64_t last_mark;
    walk->mark = ++last_mark;
    walk->depth = 0;
    walk->met = false;
    walk->stops = stops;
}

static bool holds_host(struct walk *walk, struct gp_handle *node) {
    begin(walk, false);
    see(walk, node);
    return walk->met;
}

// No function may write what a copy reads, which was sent before; and where it is not known which node
// of a graph writes to the host, none there may call a function.
static int check_places(struct walk *walk) {
    for (unsigned at = 0; at < walk->place_count; at++) {
        if (walk->places[at].inner && holds_host(walk, walk->places[at].node)) return GP_NOT_SUPPORTED;
    }
    begin(walk, false);
    for (unsigned at = 0; at < walk->place_count; at++) {
        if (!walk->places[at].out) see(walk, walk->places[at].node);
    }
    see_all_before(walk);
    return walk->status == GP_SUCCESS && walk->met ? GP_NOT_SUPPORTED : walk->status;
}

static int find_early(struct walk *walk, struct gp_early_list *found) {
    for (unsigned host = 0; host < walk->host_count; host++) {
        begin(walk, true);
        see_before(walk, walk->hosts[host]);
        see_all_before(walk);
        if (walk->status != GP_SUCCESS) return walk->status;
        for (unsigned at = 0; at < walk->place_count; at++) {
            const struct place *place = &walk->places[at];
            if (!place->out || GP_NODE_OF(place->node)->seen != walk->mark) continue;
            if (found->count == GP_EARLY_MAX) return GP_NOT_SUPPORTED;
            void *grown = gp_grown(found->items, &found->room, found->count, sizeof *found->items);
            if (grown == NULL) return GP_OUT_OF_MEMORY;
            found->items = grown;
            found->items[found->count++] = (struct gp_early){walk->hosts[host]->id, host, at};
        }
    }
    return GP_SUCCESS;
}

int gp_find_early(struct gp_handle *graph, struct gp_early_list *found) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // marks of nodes
    struct walk walk = {.status = GP_SUCCESS};
    pthread_mutex_lock(&lock);
    int status = gather(&walk, graph);
    if (status == GP_SUCCESS && walk.host_count > 0) {
        status = check_places(&walk);
        if (status == GP_SUCCESS) status = find_early(&walk, found);
    }
    pthread_mutex_unlock(&lock);
    free(walk.hosts);
    free(walk.stack);
    free(walk.places);
    return status;
}

bool gp_same_early(const struct gp_early_list *one, const struct gp_early_list *other) {
    if (one->count != other->count) return false;
    for (unsigned at = 0; at < one->count; at++) {
        const struct gp_early *first = &one->items[at], *second = &other->items[at];
        if (first->host != second->host || first->entry != second->entry) return false;
    }
    return true;
}
