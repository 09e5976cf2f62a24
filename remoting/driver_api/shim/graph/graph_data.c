// The data of graphs and their nodes on this side: made, connected, ended.
#include "graph.h"

#include <stdlib.h>

struct gp_handle *gp_new_graph(struct gp_handle *within) {
    struct gp_handle *handle = gp_make(GP_GRAPH);
    struct gp_graph *graph = calloc(1, sizeof *graph);
    if (handle == NULL || graph == NULL) {
        if (handle != NULL) gp_end(handle);
        free(graph);
        return NULL;
    }
    graph->within = within;
    handle->detail = graph;
    return handle;
}

struct gp_handle *gp_new_node(struct gp_handle *of, uint64_t id) {
    struct gp_graph *graph = GP_GRAPH_OF(of);
    if (graph->count == GP_GRAPH_NODES_MAX) return NULL;
    void *grown = gp_grown(graph->nodes, &graph->room, graph->count, sizeof *graph->nodes);
    if (grown == NULL) return NULL;
    graph->nodes = grown;
    struct gp_handle *handle = gp_make(GP_NODE);
    struct gp_node *node = calloc(1, sizeof *node);
    if (handle == NULL || node == NULL) {
        if (handle != NULL) gp_end(handle);
        free(node);
        return NULL;
    }
    node->graph = of;
    if (id) handle->id = id;
    handle->detail = node;
    graph->nodes[graph->count++] = handle;
    return handle;
}

void gp_drop_node(struct gp_handle *handle) {
    struct gp_node *node = GP_NODE_OF(handle);
    for (unsigned at = 0; at < node->child_count; at++) gp_drop_graph(node->children[at]);
    free(node->children);
    free(node->edges);
    free(node->pointers);
    free(node->bytes);
    while (node->former != NULL) {
        struct gp_told *former = node->former;
        node->former = former->next;
        free(former->pointers);
        free(former->bytes);
        free(former);
    }
    free(node);
    gp_end(handle);
}

void gp_drop_graph(struct gp_handle *handle) {
    struct gp_graph *graph = GP_GRAPH_OF(handle);
    for (unsigned at = 0; at < graph->count; at++) gp_drop_node(graph->nodes[at]);
    free(graph->nodes);
    gp_forget_staged(&graph->staged, NULL);
    gp_drop_calls(&graph->calls);
    for (unsigned at = 0; at < graph->allocations.count; at++) {
        // What a launch has left allocated has a range of its own kind; see gp_launched.
        struct gp_range range;
        const struct gp_allocation *one = &graph->allocations.items[at];
        if (one->freed) gp_remove_range(one->address, &range);
    }
    free(graph->allocations.items);
    gp_release_objects(&graph->objects);
    free(graph);
    gp_end(handle);
}

int gp_add_edge(struct gp_handle *handle, struct gp_handle *on, const struct gp_edge_data *data) {
    struct gp_node *node = GP_NODE_OF(handle);
    void *grown = gp_grown(node->edges, &node->edge_room, node->edge_count, sizeof *node->edges);
    if (grown == NULL) return GP_OUT_OF_MEMORY;
    node->edges = grown;
    struct gp_edge *edge = &node->edges[node->edge_count++];
    *edge = (struct gp_edge){.node = on};
    if (data != NULL) edge->data = *data;
    return GP_SUCCESS;
}
