// The parameters of nodes: asked for, and changed in graphs and executables.
#include "graph.h"
#include "../module/module.h"

#define ATTRIBUTE_SIZE 64

static int find(void *handle, int type, const void *out, struct gp_node **node) {
    GP_ENTER();
    GP_CHECK(gp_check(handle, GP_NODE));
    *node = GP_NODE_OF(handle);
    return (*node)->params.type != type || out == NULL ? GP_INVALID_VALUE : GP_SUCCESS;
}

static int get_part(void *handle, int type, void *out, struct gp_part part) {
    struct gp_node *node;
    GP_CHECK(find(handle, type, out, &node));
    memcpy(out, (const unsigned char *)&node->params + part.at, part.size);
    node->told = true;
    return GP_SUCCESS;
}

// Of a node, or of it in an executable unless that is 0.
static int send_params(struct gp_handle *node, uint64_t exec, const struct gp_packed *packed) {
    unsigned char *at = gp_open_graph_set(node->id, exec, packed->size);
    if (at == NULL) return GP_INVALID_VALUE;
    memcpy(at, &packed->params, sizeof packed->params);
    if (packed->size) memcpy(at + sizeof packed->params, packed->bytes, packed->size);
    gp_close();
    return GP_SUCCESS;
}

static bool may_change(int type) {
    return type != GP_NODE_GRAPH && type != GP_NODE_ALLOCATE && type != GP_NODE_FREE &&
           type != GP_NODE_CONDITIONAL && type != GP_NODE_EMPTY;
}

static const struct gp_staged *find_staged(const struct gp_staged_list *list,
                                           const struct gp_handle *node, bool out) {
    for (unsigned at = 0; at < list->count; at++) {
        if (list->items[at].node == node && list->items[at].out == out) return &list->items[at];
    }
    return NULL;
}

// What takes the place of an entry has its place in the list, and in the order of copies and host nodes.
static int replace_staged(struct gp_staged_list *list, struct gp_handle *node,
                          struct gp_packed *packed) {
    int status = GP_SUCCESS;
    unsigned place = 0;
    pthread_mutex_lock(&gp_graph_lock);
    while (place < list->count && list->items[place].node != node) place++;
    for (unsigned at = 0; at < packed->staged_count; at++) {
        struct gp_staged *one = &packed->staged[at];
        const struct gp_staged *before = find_staged(list, node, one->out);
        one->node = node;
        if (before == NULL) continue;
        one->early = before->early;
        one->disabled = before->disabled;
    }
    gp_forget_staged(list, node);
    for (unsigned at = 0; at < packed->staged_count && status == GP_SUCCESS; at++, place++) {
        status = gp_keep_staged(list, &packed->staged[at]);
        if (status != GP_SUCCESS) break;
        struct gp_staged kept = list->items[list->count - 1], *to = &list->items[place];
        memmove(to + 1, to, (list->count - 1 - place) * sizeof kept);
        *to = kept;
    }
    pthread_mutex_unlock(&gp_graph_lock);
    packed->staged_count = 0;
    return status;
}

// Whether the order of copies and host nodes is known of what a node of an executable copies from now on.
static bool keeps_order(const struct gp_exec *exec, const struct gp_handle *node,
                        const struct gp_packed *packed) {
    bool known = true;
    for (unsigned at = 0; at < packed->staged_count && exec->calls.count > 0; at++) {
        known &= find_staged(&exec->staged, node, packed->staged[at].out) != NULL;
    }
    return known;
}

static int set(void *handle, const struct gp_node_params *given) {
    GP_ON(handle);
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
    if (status == GP_SUCCESS && packed.call != 0) {
        status = gp_replace_call(&GP_GRAPH_OF(node->graph)->calls, handle, node->call, packed.call);
        node->call = packed.call;
        packed.call = 0;
    }
    gp_drop_packed(&packed);
    return status;
}

static int set_in_exec(void *exec, void *handle, const struct gp_node_params *given) {
    GP_ON(exec);
    struct gp_node *node;
    GP_CHECK(find(handle, given->type, handle, &node));
    GP_CHECK(gp_check(exec, GP_GRAPH_EXEC));
    if (!may_change(given->type)) return GP_NOT_SUPPORTED;
    struct gp_packed packed;
    GP_CHECK(gp_pack(node->graph, given, &packed));
    if (given->type == GP_NODE_MEMCPY) gp_match_staged(&GP_EXEC_OF(exec)->staged, node->graph);
    int status = keeps_order(GP_EXEC_OF(exec), handle, &packed) ? GP_SUCCESS : GP_NOT_SUPPORTED;
    if (status == GP_SUCCESS && given->type == GP_NODE_MEMCPY) {
        status = gp_check_staged(&GP_EXEC_OF(exec)->staged, handle, &packed);
    }
    if (status == GP_SUCCESS) status = send_params(handle, ((struct gp_handle *)exec)->id, &packed);
    if (status == GP_SUCCESS && given->type == GP_NODE_MEMCPY) {
        status = replace_staged(&GP_EXEC_OF(exec)->staged, handle, &packed);
    }
    if (status == GP_SUCCESS && packed.call != 0) {
        status = gp_replace_call(&GP_EXEC_OF(exec)->calls, handle, node->call, packed.call);
        packed.call = 0;
    }
    gp_drop_packed(&packed);
    return status;
}

GP_EXPORT int cuGraphExecNodeSetParams(void *exec, void *node, struct gp_node_params *given) {
    if (given == NULL) return GP_INVALID_VALUE;
    if (given->type == GP_NODE_GRAPH) {
        return gp_set_child(exec, node, given->graph.graph);
    }
    return set_in_exec(exec, node, given);
}

// In an executable, a node gets the context that the program gives; in a graph, it keeps its own.
static int set_one(void *exec, void *handle, int type, struct gp_part part, const void *given,
                   struct gp_part context, const void *its) {
    struct gp_node *node;
    struct gp_node_params full;
    GP_CHECK(find(handle, type, given, &node));
    if (exec == NULL && context.size) its = (unsigned char *)&node->params + context.at;
    GP_CHECK(gp_new_params(&full, type, part, given, context, its));
    return exec == NULL ? set(handle, &full) : set_in_exec(exec, handle, &full);
}

static int get_event(void *handle, int type, void **event) {
    struct gp_node *node;
    GP_CHECK(find(handle, type, event, &node));
    // A capture's node names an event that this side was not told of.
    if (node->params.event == NULL) return GP_NOT_SUPPORTED;
    *event = node->params.event;
    return GP_SUCCESS;
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
    GP_ON(handle);
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_KERNEL, value, &node));
    // Here and not by the server's driver: its answer would come behind later calls.
    if (!gp_has_attribute(attribute, false)) return GP_INVALID_VALUE;
    if (attribute == GP_UPDATABLE_NODE) {
        int updatable;
        memcpy(&updatable, value, sizeof updatable);
        return updatable ? GP_NOT_SUPPORTED : GP_SUCCESS;  // kernels would change the graph
    }
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
    unsigned char *at = gp_open_graph_set_attribute(((struct gp_handle *)handle)->id, attribute);
    if (at == NULL) return GP_INVALID_VALUE;
    memcpy(at, value, ATTRIBUTE_SIZE);
    gp_close();
    return gp_several && gp_is_lost() ? GP_DEVICE_UNAVAILABLE : GP_SUCCESS;
}

GP_EXPORT int cuGraphKernelNodeGetAttribute(void *handle, int attribute, void *value) {
    GP_ON(handle);
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_KERNEL, value, &node));
    if (!gp_has_attribute(attribute, false)) return GP_INVALID_VALUE;
    return gp_call_graph_get_attribute(((struct gp_handle *)handle)->id, attribute, value,
                                       ATTRIBUTE_SIZE);
}

GP_EXPORT int cuGraphKernelNodeCopyAttributes(void *to, void *from) {
    GP_ON(to);
    GP_REACH(from);
    struct gp_node *node;
    GP_CHECK(find(from, GP_NODE_KERNEL, to, &node));
    GP_CHECK(find(to, GP_NODE_KERNEL, from, &node));
    return gp_post_graph_copy_attributes(((struct gp_handle *)to)->id,
                                         ((struct gp_handle *)from)->id);
}

#define IN(exec, status) ((exec) == NULL ? GP_INVALID_HANDLE : (status))
#define GP_FORWARDS_GRAPH_PARAMS
#include "generated_forwards.h"
