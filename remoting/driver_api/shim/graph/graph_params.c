// What nodes hold: asked for, and changed in graphs and executables.
#include "graph.h"

#define ATTRIBUTE_SIZE 64

static int find(void *handle, int type, const void *out, struct gp_node **node) {
    GP_ENTER();
    GP_CHECK(gp_check(handle, GP_NODE));
    *node = GP_NODE_OF(handle);
    return (*node)->params.type != type || out == NULL ? GP_INVALID_VALUE : GP_SUCCESS;
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
    int status = send_params(handle, ((struct gp_handle *)exec)->id, &packed);
    if (status == GP_SUCCESS && given->type == GP_NODE_MEMCPY) {
        gp_match_staged(&GP_EXEC_OF(exec)->staged, node->graph);
        status = replace_staged(&GP_EXEC_OF(exec)->staged, handle, &packed);
    }
    if (status == GP_SUCCESS && packed.call != 0) {
        status = gp_replace_call(&GP_EXEC_OF(exec)->calls, handle, node->call, packed.call);
        packed.call = 0;
    }
    gp_drop_packed(&packed);
    return status;
}

GP_EXPORT int cuGraphNodeSetParams(void *node, struct gp_node_params *given) {
    return given == NULL ? GP_INVALID_VALUE : set(node, given);
}

GP_EXPORT int cuGraphExecNodeSetParams(void *exec, void *node, struct gp_node_params *given) {
    if (given == NULL) return GP_INVALID_VALUE;
    if (given->type == GP_NODE_GRAPH) {
        return gp_set_child(exec, node, given->graph.graph);
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
    GP_NEW_PARAMS(full, GP_NODE_KERNEL);
    if (given == NULL) return GP_INVALID_VALUE;
    gp_widen_kernel(&full, given, old);
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
    GP_NEW_PARAMS(full, GP_NODE_MEMCPY);
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_MEMCPY, given, &node));
    gp_widen_copy(&full, given, node->params.memcpy.context);
    return set(handle, &full);
}

GP_EXPORT int cuGraphExecMemcpyNodeSetParams(void *exec, void *node, const struct gp_copy_3d *given,
                                             void *context) {
    GP_NEW_PARAMS(full, GP_NODE_MEMCPY);
    if (given == NULL) return GP_INVALID_VALUE;
    gp_widen_copy(&full, given, context);
    return set_in_exec(exec, node, &full);
}

GP_EXPORT int cuGraphMemsetNodeGetParams(void *handle, void *out) {
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_MEMSET, out, &node));
    memcpy(out, &node->params.memset, offsetof(struct gp_memset_node, context));
    return GP_SUCCESS;
}

GP_EXPORT int cuGraphMemsetNodeSetParams(void *handle, const void *given) {
    GP_NEW_PARAMS(full, GP_NODE_MEMSET);
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_MEMSET, given, &node));
    gp_widen_fill(&full, given, node->params.memset.context);
    return set(handle, &full);
}

GP_EXPORT int cuGraphExecMemsetNodeSetParams(void *exec, void *node, const void *given,
                                             void *context) {
    GP_NEW_PARAMS(full, GP_NODE_MEMSET);
    if (given == NULL) return GP_INVALID_VALUE;
    gp_widen_fill(&full, given, context);
    return set_in_exec(exec, node, &full);
}

GP_EXPORT int cuGraphHostNodeGetParams(void *handle, struct gp_host_node *out) {
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_HOST, out, &node));
    *out = node->params.host;
    return GP_SUCCESS;
}

static int host_set(void *exec, void *node, const struct gp_host_node *given) {
    GP_NEW_PARAMS(full, GP_NODE_HOST);
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
    GP_NEW_PARAMS(full, type);
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
    GP_NEW_PARAMS(full, GP_NODE_BATCH);
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
    GP_ON(handle);
    struct gp_node *node;
    GP_CHECK(find(handle, GP_NODE_KERNEL, value, &node));
    // Values that hold handles: events, and nodes that kernels may change.
    if (attribute == 7 || attribute == 12 || attribute == 13) return GP_NOT_SUPPORTED;
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
    if (attribute == 7 || attribute == 12 || attribute == 13) return GP_NOT_SUPPORTED;
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
