// The host functions that graphs and executables call: each list keeps what its nodes name.
#include "graph.h"

#include <stdlib.h>

// Note one, of which the caller's reference becomes the list's; it is given up where that fails.
int gp_keep_call(struct gp_call_list *list, uint64_t id, struct gp_handle *node) {
    void *grown = gp_grown(list->items, &list->room, list->count, sizeof *list->items);
    if (grown == NULL) {
        gp_host_node_drop(id);
        return GP_OUT_OF_MEMORY;
    }
    list->items = grown;
    list->items[list->count++] = (struct gp_call){id, node};
    return GP_SUCCESS;
}

int gp_copy_calls(struct gp_call_list *to, const struct gp_call_list *from,
                  struct gp_handle *node) {
    for (unsigned at = 0; at < from->count; at++) {
        gp_host_node_keep(from->items[at].id);
        GP_CHECK(gp_keep_call(to, from->items[at].id, node ? node : from->items[at].node));
    }
    return GP_SUCCESS;
}

int gp_gather_calls(struct gp_call_list *to, struct gp_handle *graph, struct gp_handle *node) {
    const struct gp_graph *from = GP_GRAPH_OF(graph);
    GP_CHECK(gp_copy_calls(to, &from->calls, node));
    for (unsigned at = 0; at < from->count; at++) {
        struct gp_node *one = GP_NODE_OF(from->nodes[at]);
        for (unsigned child = 0; child < one->child_count; child++) {
            GP_CHECK(gp_gather_calls(to, one->children[child], node ? node : from->nodes[at]));
        }
    }
    return GP_SUCCESS;
}

static void take_out(struct gp_call_list *list, unsigned at) {
    gp_host_node_drop(list->items[at].id);
    list->count--;
    memmove(list->items + at, list->items + at + 1, (list->count - at) * sizeof *list->items);
}

// Take out all that a node calls; a capture's node is known by the number alone.
void gp_forget_calls(struct gp_call_list *list, struct gp_handle *node, uint64_t id) {
    bool found = false;
    for (unsigned at = 0; at < list->count;) {
        if (list->items[at].node == node) {
            take_out(list, at);
            found = true;
        } else {
            at++;
        }
    }
    for (unsigned at = 0; at < list->count && !found; at++) {
        found = list->items[at].node == NULL && list->items[at].id == id;
        if (found) take_out(list, at);
    }
}

void gp_drop_calls(struct gp_call_list *list) {
    for (unsigned at = 0; at < list->count; at++) gp_host_node_drop(list->items[at].id);
    free(list->items);
    *list = (struct gp_call_list){0};
}

// A node calls another function from now on.
int gp_replace_call(struct gp_call_list *list, struct gp_handle *node, uint64_t before,
                    uint64_t now) {
    pthread_mutex_lock(&gp_graph_lock);
    gp_forget_calls(list, node, before);
    int status = gp_keep_call(list, now, node);
    pthread_mutex_unlock(&gp_graph_lock);
    return status;
}

// An executable's nodes are those of another graph now, which stand for the former one by one.
int gp_replace_calls(struct gp_call_list *list, struct gp_handle *graph) {
    struct gp_call_list fresh = {0};
    int status = gp_gather_calls(&fresh, graph, NULL);
    for (unsigned at = 0; at < fresh.count && at < list->count; at++) {
        fresh.items[at].node = list->items[at].node;
    }
    gp_drop_calls(list);
    *list = fresh;
    return status;
}

// A stream that is captured has got one.
static int capture_call(struct gp_handle *graph, uint64_t id) {
    pthread_mutex_lock(&gp_graph_lock);
    int status = gp_keep_call(&GP_GRAPH_OF(graph)->calls, id, NULL);
    pthread_mutex_unlock(&gp_graph_lock);
    return status;
}

GP_AT_LOAD register_hooks(void) { gp_hooks.capture_call = capture_call; }
