// Graphs and the edges between their nodes. A graph that is built here node by node is known here,
// and the worker follows. The nodes of a captured or cloned graph are asked for once, when needed.
#include "graph.h"

#include <stdlib.h>

// --- making and ending ----------------------------------------------------------------------------

GP_EXPORT int cuGraphCreate(void **made, unsigned flags) {
    GP_ENTER();
    if (made == NULL || flags != 0) return GP_INVALID_VALUE;
    struct gp_handle *graph = gp_new_graph(NULL);
    if (graph == NULL) return GP_OUT_OF_MEMORY;
    *made = graph;
    return gp_post_graph_create(graph->id);
}

GP_EXPORT int cuGraphDestroy(void *graph) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(graph, GP_GRAPH));
    GP_ON(graph);
    struct gp_handle *handle = graph;
    if (GP_GRAPH_OF(handle)->within != NULL) return GP_INVALID_VALUE;
    uint64_t id = handle->id;
    gp_drop_graph(handle);
    return gp_post_graph_destroy(id);
}

// Clones what is known without the worker; its nodes are asked for when somebody wants them.
static struct gp_handle *clone(struct gp_handle *from, struct gp_handle *within) {
    struct gp_handle *made = gp_new_graph(within);
    if (made == NULL) return NULL;
    struct gp_graph *graph = GP_GRAPH_OF(made);
    graph->partial = true;
    if (gp_copy_staged(&graph->staged, &GP_GRAPH_OF(from)->staged, NULL) != GP_SUCCESS) {
        gp_drop_graph(made);
        return NULL;
    }
    // With what graphs within it call, until the nodes of these are known.
    if (gp_gather_calls(&graph->calls, from, NULL) != GP_SUCCESS) {
        gp_drop_graph(made);
        return NULL;
    }
    for (unsigned at = 0; at < graph->calls.count; at++) graph->calls.items[at].node = NULL;
    gp_share_objects(&graph->objects, from);
    return made;
}

// The host's memory that graphs within this one copy, as that of the node they belong to.
static int gather(struct gp_staged_list *to, struct gp_handle *graph, struct gp_handle *node);

static int gather_children(struct gp_staged_list *to, struct gp_handle *graph,
                           struct gp_handle *node) {
    const struct gp_graph *from = GP_GRAPH_OF(graph);
    for (unsigned at = 0; at < from->count; at++) {
        struct gp_node *one = GP_NODE_OF(from->nodes[at]);
        for (unsigned child = 0; child < one->child_count; child++) {
            GP_CHECK(gather(to, one->children[child], node ? node : from->nodes[at]));
        }
    }
    return GP_SUCCESS;
}

static int gather(struct gp_staged_list *to, struct gp_handle *graph, struct gp_handle *node) {
    GP_CHECK(gp_copy_staged(to, &GP_GRAPH_OF(graph)->staged, node));
    return gather_children(to, graph, node);
}

int gp_gather_staged(struct gp_staged_list *to, struct gp_handle *graph, struct gp_handle *node) {
    return gather(to, graph, node);
}

struct gp_handle *gp_clone_within(struct gp_handle *graph, struct gp_handle *node) {
    struct gp_handle *made = clone(graph, node);
    // What lies deeper is reached through the clone alone until its nodes are known.
    if (made == NULL) return NULL;
    struct gp_staged_list *list = &GP_GRAPH_OF(made)->staged;
    if (gather_children(list, graph, NULL) != GP_SUCCESS) {
        gp_drop_graph(made);
        return NULL;
    }
    for (unsigned at = 0; at < list->count; at++) list->items[at].node = NULL;  // the original's
    return made;
}

GP_EXPORT int cuGraphClone(void **made, void *original) {
    GP_ENTER_ON(original);
    GP_ON(original);
    GP_CHECK(gp_check(original, GP_GRAPH));
    if (made == NULL) return GP_INVALID_VALUE;
    if (GP_GRAPH_OF(original)->memory) return GP_NOT_SUPPORTED;  // as CUDA says of such graphs
    struct gp_handle *graph = gp_clone_within(original, NULL);
    if (graph == NULL) return GP_OUT_OF_MEMORY;
    *made = graph;
    return gp_post_graph_clone(((struct gp_handle *)original)->id, graph->id);
}

GP_EXPORT int cuGraphNodeFindInClone(void **found, void *original, void *clone) {
    GP_ENTER_ON(original);
    GP_ON(original);
    GP_CHECK(gp_check(original, GP_NODE));
    GP_CHECK(gp_check(clone, GP_GRAPH));
    if (found == NULL) return GP_INVALID_VALUE;
    GP_CHECK(gp_know(clone));
    uint64_t reply[1] = {0};
    GP_CHECK(gp_call_graph_find(((struct gp_handle *)original)->id, ((struct gp_handle *)clone)->id,
                                reply));
    const struct gp_graph *graph = GP_GRAPH_OF(clone);
    for (unsigned at = 0; at < graph->count; at++) {
        if (graph->nodes[at]->id != reply[0]) continue;
        *found = graph->nodes[at];
        return GP_SUCCESS;
    }
    return GP_INVALID_VALUE;
}

// --- edges ----------------------------------------------------------------------------------------

static struct gp_edge *find_edge(struct gp_handle *from, struct gp_handle *to) {
    struct gp_node *node = GP_NODE_OF(to);
    for (unsigned at = 0; at < node->edge_count; at++) {
        if (node->edges[at].node == from) return &node->edges[at];
    }
    return NULL;
}

int gp_send_edges(struct gp_handle *graph, unsigned removes, void **from, void **to,
                  const struct gp_edge_data *data, size_t count) {
    GP_ON(graph);
    for (size_t start = 0; start < count; start += GP_EDGES_AT_ONCE) {
        size_t part = count - start < GP_EDGES_AT_ONCE ? count - start : GP_EDGES_AT_ONCE;
        unsigned char *at = gp_open_graph_edges(graph->id, removes, part);
        if (at == NULL) return GP_INVALID_VALUE;
        for (size_t one = start; one < start + part; one++, at += 24) {
            uint64_t words[3] = {((struct gp_handle *)from[one])->id,
                                 ((struct gp_handle *)to[one])->id, 0};
            if (data != NULL) memcpy(&words[2], &data[one], 8);
            memcpy(at, words, sizeof words);
        }
        gp_close();
    }
    return GP_SUCCESS;
}

static int check_edges(void *graph, void **from, void **to, size_t count) {
    GP_ENTER();
    GP_CHECK(gp_check(graph, GP_GRAPH));
    if (count > 0 && (from == NULL || to == NULL)) return GP_INVALID_VALUE;
    for (size_t at = 0; at < count; at++) {
        if (gp_check(from[at], GP_NODE) || gp_check(to[at], GP_NODE)) return GP_INVALID_VALUE;
        if (GP_NODE_OF(from[at])->graph != graph || GP_NODE_OF(to[at])->graph != graph) {
            return GP_INVALID_VALUE;
        }
    }
    return gp_know(graph);
}

static int add_dependencies(void *graph, void **from, void **to, const struct gp_edge_data *data,
                            size_t count) {
    GP_CHECK(check_edges(graph, from, to, count));
    for (size_t at = 0; at < count; at++) {
        if (from[at] == to[at] || find_edge(from[at], to[at])) return GP_INVALID_VALUE;
    }
    for (size_t at = 0; at < count; at++) {
        GP_CHECK(gp_add_edge(to[at], from[at], data == NULL ? NULL : &data[at]));
    }
    return gp_send_edges(graph, 0, from, to, data, count);
}

static void remove_edge(struct gp_node *node, struct gp_edge *edge) {
    size_t behind = (size_t)(node->edges + node->edge_count - edge - 1);
    memmove(edge, edge + 1, behind * sizeof *edge);
    node->edge_count--;
}

static int remove_dependencies(void *graph, void **from, void **to, const struct gp_edge_data *data,
                               size_t count) {
    GP_CHECK(check_edges(graph, from, to, count));
    if (GP_GRAPH_OF(graph)->memory) return GP_NOT_SUPPORTED;
    for (size_t at = 0; at < count; at++) {
        if (find_edge(from[at], to[at]) == NULL) return GP_INVALID_VALUE;
    }
    for (size_t at = 0; at < count; at++) {
        struct gp_edge *edge = find_edge(from[at], to[at]);
        if (edge != NULL) remove_edge(GP_NODE_OF(to[at]), edge);
    }
    return gp_send_edges(graph, 1, from, to, data, count);
}

GP_EXPORT int cuGraphDestroyNode(void *given) {
    GP_ENTER_ON(given);
    GP_ON(given);
    GP_CHECK(gp_check(given, GP_NODE));
    struct gp_handle *handle = given;
    struct gp_handle *of = GP_NODE_OF(handle)->graph;
    GP_CHECK(gp_know(of));
    struct gp_graph *graph = GP_GRAPH_OF(of);
    if (graph->memory) return GP_NOT_SUPPORTED;
    unsigned kept = 0;
    for (unsigned at = 0; at < graph->count; at++) {
        if (graph->nodes[at] == handle) continue;
        struct gp_edge *edge = find_edge(handle, graph->nodes[at]);
        if (edge != NULL) remove_edge(GP_NODE_OF(graph->nodes[at]), edge);
        graph->nodes[kept++] = graph->nodes[at];
    }
    graph->count = kept;
    gp_forget_staged(&graph->staged, handle);
    gp_forget_calls(&graph->calls, handle, GP_NODE_OF(handle)->call);
    uint64_t id = handle->id;
    gp_drop_node(handle);
    return gp_post_graph_remove(id);
}

// --- questions ------------------------------------------------------------------------------------

// What CUDA's questions answer: up to *count entries, the rest NULL, and how many there are.
struct answer {
    void **nodes;
    struct gp_edge_data *data;
    size_t room, count;
    bool lossy;  // an edge with data, and nowhere to put it
};

static void answer_one(struct answer *answer, struct gp_handle *node,
                       const struct gp_edge_data *data) {
    static const struct gp_edge_data plain;
    if (answer->nodes != NULL && answer->count < answer->room) {
        answer->nodes[answer->count] = node;
        if (answer->data != NULL) {
            answer->data[answer->count] = *data;
        } else if (data != NULL && memcmp(data, &plain, sizeof plain) != 0) {
            answer->lossy = true;
        }
    }
    answer->count++;
}

static int answer_all(struct answer *answer, size_t *count) {
    if (answer->lossy) return GP_LOSSY_QUERY;
    for (size_t at = answer->count; answer->nodes != NULL && at < answer->room; at++) {
        answer->nodes[at] = NULL;
    }
    if (answer->nodes == NULL || answer->count < *count) *count = answer->count;
    return GP_SUCCESS;
}

// The number of an array that is there says how much room it has.
static int ask(void *handle, enum gp_kind kind, const void *into, size_t *count) {
    GP_ENTER();
    GP_CHECK(gp_check(handle, kind));
    if (count == NULL || (into != NULL && *count == 0)) return GP_INVALID_VALUE;
    return gp_know(kind == GP_GRAPH ? handle : GP_NODE_OF(handle)->graph);
}

GP_EXPORT int cuGraphGetNodes(void *graph, void **nodes, size_t *count) {
    GP_CHECK(ask(graph, GP_GRAPH, nodes, count));
    const struct gp_graph *of = GP_GRAPH_OF(graph);
    struct answer answer = {.nodes = nodes, .room = *count};
    for (unsigned at = 0; at < of->count; at++) answer_one(&answer, of->nodes[at], NULL);
    return answer_all(&answer, count);
}

GP_EXPORT int cuGraphGetRootNodes(void *graph, void **nodes, size_t *count) {
    GP_CHECK(ask(graph, GP_GRAPH, nodes, count));
    const struct gp_graph *of = GP_GRAPH_OF(graph);
    struct answer answer = {.nodes = nodes, .room = *count};
    for (unsigned at = 0; at < of->count; at++) {
        if (GP_NODE_OF(of->nodes[at])->edge_count == 0) answer_one(&answer, of->nodes[at], NULL);
    }
    return answer_all(&answer, count);
}

static int get_edges(void *graph, void **from, void **to, struct gp_edge_data *data,
                     size_t *count) {
    GP_CHECK(ask(graph, GP_GRAPH, from, count));
    if ((from == NULL) != (to == NULL)) return GP_INVALID_VALUE;
    const struct gp_graph *of = GP_GRAPH_OF(graph);
    struct answer answer = {.nodes = from, .data = data, .room = *count};
    for (unsigned at = 0; at < of->count; at++) {
        const struct gp_node *node = GP_NODE_OF(of->nodes[at]);
        for (unsigned edge = 0; edge < node->edge_count; edge++) {
            if (to != NULL && answer.count < *count) to[answer.count] = of->nodes[at];
            answer_one(&answer, node->edges[edge].node, &node->edges[edge].data);
        }
    }
    for (size_t at = answer.count; to != NULL && at < *count; at++) to[at] = NULL;
    return answer_all(&answer, count);
}

static int get_dependencies(void *handle, void **nodes, struct gp_edge_data *data, size_t *count) {
    GP_CHECK(ask(handle, GP_NODE, nodes, count));
    const struct gp_node *node = GP_NODE_OF(handle);
    struct answer answer = {.nodes = nodes, .data = data, .room = *count};
    for (unsigned at = 0; at < node->edge_count; at++) {
        answer_one(&answer, node->edges[at].node, &node->edges[at].data);
    }
    return answer_all(&answer, count);
}

static int get_dependents(void *handle, void **nodes, struct gp_edge_data *data, size_t *count) {
    GP_CHECK(ask(handle, GP_NODE, nodes, count));
    const struct gp_graph *graph = GP_GRAPH_OF(GP_NODE_OF(handle)->graph);
    struct answer answer = {.nodes = nodes, .data = data, .room = *count};
    for (unsigned at = 0; at < graph->count; at++) {
        const struct gp_edge *edge = find_edge(handle, graph->nodes[at]);
        if (edge != NULL) answer_one(&answer, graph->nodes[at], &edge->data);
    }
    return answer_all(&answer, count);
}

GP_EXPORT int cuGraphNodeGetType(void *node, int *type) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(node, GP_NODE));
    if (type == NULL) return GP_INVALID_VALUE;
    *type = GP_NODE_OF(node)->params.type;
    return GP_SUCCESS;
}

#define GP_FORWARDS_GRAPH
#include "generated_forwards.h"
