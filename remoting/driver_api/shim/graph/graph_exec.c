// Executable graphs: made, changed, launched.
#include "graph.h"

#include <stdlib.h>

#define EXEC_DEVICE_LAUNCH 4  // CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
#define EXEC_UPLOAD 2         // CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
#define EXEC_FLAGS 15
#define UPDATE_FAILED 910  // CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE

static void drop_exec(struct gp_handle *handle) {
    struct gp_exec *exec = GP_EXEC_OF(handle);
    gp_forget_staged(&exec->staged, NULL);
    free(exec->early.items);
    gp_drop_calls(&exec->calls);
    free(exec->allocations.items);
    free(exec->disabled);
    gp_release_objects(&exec->objects);
    free(exec);
    gp_end(handle);
}

static struct gp_handle *node_by_id(struct gp_handle *of, uint64_t id) {
    if (id == 0 || gp_know(of) != GP_SUCCESS) return NULL;
    const struct gp_graph *graph = GP_GRAPH_OF(of);
    for (unsigned at = 0; at < graph->count; at++) {
        if (graph->nodes[at]->id == id) return graph->nodes[at];
    }
    return NULL;
}

static int take_allocations(struct gp_exec *exec, const struct gp_graph *from) {
    for (unsigned at = 0; at < from->allocations.count; at++) {
        const struct gp_allocation *one = &from->allocations.items[at];
        if (one->freed) continue;
        GP_CHECK(gp_keep_allocation(&exec->allocations, *one));
    }
    for (unsigned at = 0; at < from->count; at++) {
        const struct gp_node *node = GP_NODE_OF(from->nodes[at]);
        for (unsigned child = 0; child < node->child_count; child++) {
            GP_CHECK(take_allocations(exec, GP_GRAPH_OF(node->children[child])));
        }
    }
    return GP_SUCCESS;
}

// What the executable needs to know of the graph when that one is gone.
static int take_over(struct gp_exec *exec, struct gp_handle *graph) {
    GP_CHECK(take_allocations(exec, GP_GRAPH_OF(graph)));
    gp_share_objects(&exec->objects, graph);
    GP_CHECK(gp_gather_calls(&exec->calls, graph, NULL));
    return gp_gather_staged(&exec->staged, graph, NULL);
}

// Where a graph has both host nodes and copies of the host's memory, find out what comes before what.
static int order(struct gp_staged_list *staged, struct gp_handle *graph, bool calls,
                 struct gp_early_list *early) {
    if (staged->count == 0) return GP_SUCCESS;
    GP_CHECK(gp_know_all(graph));
    if (!calls) return GP_SUCCESS;
    GP_CHECK(gp_find_early(graph, early));
    return early->count == 0 || gp_knows(GP_SLOT_EARLY) ? gp_mark_early(staged, early)
                                                        : GP_NOT_SUPPORTED;
}

// Tell the worker before an executable is made or updated which host nodes come behind which copies.
static int send_early(struct gp_handle *exec, const struct gp_early_list *early) {
    if (early->count == 0) return GP_SUCCESS;
    unsigned char *at = gp_open_graph_early(exec->id, early->count);
    if (at == NULL) return GP_INVALID_VALUE;
    for (unsigned one = 0; one < early->count; one++, at += 16) {
        uint64_t words[2] = {early->items[one].node, early->items[one].entry};
        memcpy(at, words, sizeof words);
    }
    gp_close();
    return GP_SUCCESS;
}

// A kernel launches what it is given, as a parameter or in memory: the server's handle.
static int move(void **made, uint64_t address) {
    struct gp_handle *handle = *made, *moved = gp_move(handle, address);
    if (moved != NULL) {
        *made = moved;
        return GP_SUCCESS;
    }
    gp_say("no kernel can launch this graph, because this process has something else at its address");
    gp_post_graph_exec_destroy(handle->id);
    drop_exec(handle);
    return GP_NOT_SUPPORTED;
}

static int instantiate(void **made, void *graph, uint64_t flags, void *stream, void **bad,
                       int *result) {
    GP_ENTER_ON(graph);
    GP_ON(graph);
    GP_CHECK(gp_check(graph, GP_GRAPH));
    if (made == NULL || (flags & ~(uint64_t)EXEC_FLAGS)) return GP_INVALID_VALUE;
    uint64_t on = 0;
    if (flags & EXEC_UPLOAD) {
        GP_REACH(stream);
        GP_CHECK(gp_stream_id(stream, &on));
    }
    struct gp_handle *handle = gp_make(GP_GRAPH_EXEC);
    struct gp_exec *exec = calloc(1, sizeof *exec);
    if (handle == NULL || exec == NULL) {
        if (handle != NULL) gp_end(handle);
        free(exec);
        return GP_OUT_OF_MEMORY;
    }
    handle->detail = exec;
    exec->flags = flags;
    uint64_t reply[2] = {1, 0};  // CUDA_GRAPH_INSTANTIATE_ERROR
    int status = take_over(exec, graph);
    if (status == GP_SUCCESS) {
        status = order(&exec->staged, graph, exec->calls.count > 0, &exec->early);
    }
    // Nobody would bring the bytes when a kernel launches it.
    if (flags & EXEC_DEVICE_LAUNCH && exec->staged.count > 0) status = GP_NOT_SUPPORTED;
    if (status == GP_SUCCESS) {
        uint64_t of = ((struct gp_handle *)graph)->id;
        status = send_early(handle, &exec->early);
        if (status == GP_SUCCESS) {
            gp_free_kept();
            status = gp_call_graph_instantiate(handle->id, of, flags, on, reply);
        }
        if (result != NULL) *result = (int)reply[0];
        if (bad != NULL) *bad = status == GP_SUCCESS ? NULL : node_by_id(graph, reply[1]);
    }
    if (status != GP_SUCCESS) {
        drop_exec(handle);
        return status;
    }
    *made = handle;
    return flags & EXEC_DEVICE_LAUNCH ? move(made, reply[1]) : GP_SUCCESS;
}

GP_EXPORT int cuGraphInstantiate(void **made, void *graph, void **node, char *log, size_t size) {
    if (node != NULL) *node = NULL;
    if (log != NULL && size > 0) *log = '\0';
    return instantiate(made, graph, 0, NULL, node, NULL);
}

GP_ALIAS(cuGraphInstantiate_v2, cuGraphInstantiate);

GP_EXPORT int cuGraphInstantiateWithParams(void **made, void *graph, void *parameters) {
    struct {
        uint64_t flags;
        void *upload, *node;
        int result;
    } *found = parameters;
    if (found == NULL) return GP_INVALID_VALUE;
    found->node = NULL;
    found->result = 1;  // CUDA_GRAPH_INSTANTIATE_ERROR
    int status = instantiate(made, graph, found->flags, found->upload, &found->node,
                             &found->result);
    if (status == GP_SUCCESS) found->result = 0;
    return status;
}

GP_EXPORT int cuGraphExecGetFlags(void *exec, uint64_t *flags) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(exec, GP_GRAPH_EXEC));
    if (flags == NULL) return GP_INVALID_VALUE;
    *flags = GP_EXEC_OF(exec)->flags;
    return GP_SUCCESS;
}

GP_EXPORT int cuGraphExecDestroy(void *exec) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(exec, GP_GRAPH_EXEC));
    GP_ON(exec);
    struct gp_handle *handle = exec;
    // A user object lives until the launches that use it are over.
    uint64_t device = (uint64_t)gp_server_device(handle->device);
    if (GP_EXEC_OF(handle)->objects != NULL) gp_synchronize(GP_SYNC_DEVICE, device);
    int status = gp_post_graph_exec_destroy(handle->id);
    drop_exec(handle);  // behind it: the worker must not take slots back that it still uses
    return status;
}

// --- launches -------------------------------------------------------------------------------------

// Memory that the graph leaves allocated is there again, though the program may have freed it.
static int note_allocations(const struct gp_exec *exec) {
    for (unsigned at = 0; at < exec->allocations.count; at++) {
        const struct gp_allocation *one = &exec->allocations.items[at];
        struct gp_range range;
        if (gp_find_range(one->address, &range)) continue;
        GP_CHECK(gp_add_range((struct gp_range){one->address, one->size, GP_DEVICE_MEMORY,
                                                one->device, GP_OF_POOL, 0, NULL, false}));
    }
    return GP_SUCCESS;
}

static int launch(struct gp_handle *handle, void *stream) {
    uint64_t on;
    GP_CHECK(gp_stream_id(stream, &on));
    struct gp_exec *exec = GP_EXEC_OF(handle);
    if (__builtin_expect(exec->allocations.count > 0, 0)) GP_CHECK(note_allocations(exec));
    if (__builtin_expect(exec->staged.count == 0, 1)) return gp_post_graph_launch(handle->id, on);
    // The graph copies what the host's memory holds now, so host functions before it must be over.
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) && gp_staged_reads(&exec->staged)) {
        gp_host_settle(gp_stream_handle(stream), 0);
    }
    // Of memory that has got a mirror since, kernels before the launch may have written the bytes, and
    // kernels behind it may read them.
    bool mapped = gp_staged_is_mapped(&exec->staged);
    if (mapped) GP_CHECK(gp_synchronize(GP_SYNC_STREAM, on));
    GP_CHECK(gp_send_staged(&exec->staged));
    const struct gp_staged_list none = {0}, *late = &exec->staged;
    int status = exec->early.count ? gp_expect_staged(&exec->staged, on, handle, true) : GP_SUCCESS;
    if (status == GP_SUCCESS) {
        status = gp_post_graph_launch(handle->id, on);
    } else {
        late = &none;  // without a launch, nothing comes of what has been asked for
    }
    GP_CHECK(gp_expect_staged(late, on, handle, false));
    GP_CHECK(status);
    return mapped ? gp_synchronize(GP_DRAIN, 0) : GP_SUCCESS;
}

GP_EXPORT int cuGraphLaunch(void *exec, void *stream) {
    GP_ENTER_ON(stream);
    GP_ON(exec);
    GP_ON_STREAM(stream);
    GP_REACH(exec);
    GP_CHECK(gp_check(exec, GP_GRAPH_EXEC));
    if (gp_capture_of(stream)) {
        // CUDA has no node for it (driver 580), and the worker's, which refuses it, ends the capture.
        uint64_t on;
        GP_CHECK(gp_stream_id(stream, &on));
        GP_CHECK(gp_post_graph_launch(((struct gp_handle *)exec)->id, on));
        return gp_spoil_capture(gp_stream_handle(stream), GP_CAPTURE_UNSUPPORTED);
    }
    const struct gp_call_list *calls = &GP_EXEC_OF(exec)->calls;
    GP_CHECK(launch(exec, stream));
    if (calls->count > 0) GP_CHECK(gp_host_launched(stream));
    return gp_launches_block() ? gp_synchronize_stream(stream) : GP_SUCCESS;
}

// --- changes --------------------------------------------------------------------------------------

static int find(void *exec, void *node, int type) {
    GP_ENTER();
    GP_CHECK(gp_check(exec, GP_GRAPH_EXEC));
    GP_CHECK(gp_check(node, GP_NODE));
    return type >= 0 && GP_NODE_OF(node)->params.type != type ? GP_INVALID_VALUE : GP_SUCCESS;
}

// A graph within another may not bring functions or copies of the host's memory, nor take any away, where
// the executable has both: their order was found when it was made.
static int check_child(const struct gp_exec *exec, const struct gp_handle *node, struct gp_handle *child) {
    struct gp_staged_list staged = {0};
    struct gp_call_list calls = {0};
    int status = gp_gather_staged(&staged, child, NULL);
    if (status == GP_SUCCESS) status = gp_gather_calls(&calls, child, NULL);
    bool changes = staged.count > 0 || calls.count > 0;
    bool both = exec->staged.count + staged.count > 0 && exec->calls.count + calls.count > 0;
    for (unsigned at = 0; at < exec->staged.count; at++) changes |= exec->staged.items[at].node == node;
    for (unsigned at = 0; at < exec->calls.count; at++) changes |= exec->calls.items[at].node == node;
    gp_forget_staged(&staged, NULL);
    gp_drop_calls(&calls);
    return status == GP_SUCCESS && both && changes ? UPDATE_FAILED : status;
}

int gp_set_child(void *exec, void *node, void *child) {
    GP_ON(exec);
    GP_CHECK(find(exec, node, GP_NODE_GRAPH));
    GP_CHECK(gp_check(child, GP_GRAPH));
    struct gp_staged_list *list = &GP_EXEC_OF(exec)->staged;
    if (list->count > 0) GP_CHECK(gp_know_all(GP_NODE_OF(node)->children[0]));
    GP_CHECK(check_child(GP_EXEC_OF(exec), node, child));
    GP_CHECK(gp_post_graph_set_child(((struct gp_handle *)exec)->id, ((struct gp_handle *)node)->id,
                                     ((struct gp_handle *)child)->id));
    gp_match_staged(list, GP_NODE_OF(node)->graph);
    struct gp_staged_list fresh = {0};
    int status = gp_gather_staged(&fresh, child, node);
    if (status == GP_SUCCESS) {
        gp_forget_staged(list, node);
        status = gp_copy_staged(list, &fresh, NULL);
    }
    gp_forget_staged(&fresh, NULL);
    gp_forget_calls(&GP_EXEC_OF(exec)->calls, node, 0);
    int kept = gp_gather_calls(&GP_EXEC_OF(exec)->calls, child, node);
    return status == GP_SUCCESS ? kept : status;
}

GP_EXPORT int cuGraphNodeSetEnabled(void *given, void *node, unsigned enabled) {
    GP_ON(given);
    GP_CHECK(find(given, node, -1));
    int type = GP_NODE_OF(node)->params.type;
    if (type != GP_NODE_KERNEL && type != GP_NODE_MEMCPY && type != GP_NODE_MEMSET) {
        return GP_INVALID_VALUE;
    }
    struct gp_exec *exec = GP_EXEC_OF(given);
    unsigned at = 0;
    while (at < exec->disabled_count && exec->disabled[at] != node) at++;
    if (enabled && at < exec->disabled_count) {
        exec->disabled[at] = exec->disabled[--exec->disabled_count];
    } else if (!enabled && at == exec->disabled_count) {
        struct gp_handle **grown = realloc(exec->disabled, (at + 1) * sizeof *grown);
        if (grown == NULL) return GP_OUT_OF_MEMORY;
        exec->disabled = grown;
        grown[exec->disabled_count++] = node;
    }
    gp_match_staged(&exec->staged, GP_NODE_OF(node)->graph);
    for (unsigned one = 0; one < exec->staged.count; one++) {
        struct gp_staged *staged = &exec->staged.items[one];
        if (staged->node == node) staged->disabled = !enabled;
    }
    return gp_post_graph_enable(((struct gp_handle *)given)->id, ((struct gp_handle *)node)->id,
                                enabled != 0);
}

GP_EXPORT int cuGraphNodeGetEnabled(void *given, void *node, unsigned *enabled) {
    GP_CHECK(find(given, node, -1));
    if (enabled == NULL) return GP_INVALID_VALUE;
    const struct gp_exec *exec = GP_EXEC_OF(given);
    *enabled = 1;
    for (unsigned at = 0; at < exec->disabled_count; at++) {
        if (exec->disabled[at] == node) *enabled = 0;
    }
    return GP_SUCCESS;
}

// The host's memory is now that of the other graph. Its nodes stand for those of the first graph
// one by one, in the order in which they were made.
static void replace_staged(struct gp_exec *exec, struct gp_staged_list *fresh) {
    for (unsigned at = 0; at < fresh->count && at < exec->staged.count; at++) {
        fresh->items[at].node = exec->staged.items[at].node;
        fresh->items[at].serial = exec->staged.items[at].serial;
        fresh->items[at].disabled = exec->staged.items[at].disabled;
    }
    gp_forget_staged(&exec->staged, NULL);
    exec->staged = *fresh;
    *fresh = (struct gp_staged_list){0};
}

// Take over the host's memory of a graph, and tell the worker which host nodes come behind which copies. That
// must be as it was: launches go on counting on it.
static int prepare(struct gp_handle *handle, struct gp_handle *graph, struct gp_staged_list *fresh) {
    const struct gp_exec *exec = GP_EXEC_OF(handle);
    struct gp_early_list early = {0};
    GP_CHECK(gp_gather_staged(fresh, graph, NULL));
    int status = exec->calls.count > 0 ? order(fresh, graph, true, &early) : GP_SUCCESS;
    if (status == GP_NOT_SUPPORTED) status = UPDATE_FAILED;
    if (status == GP_SUCCESS && !gp_same_early(&exec->early, &early)) status = UPDATE_FAILED;
    if (status == GP_SUCCESS) status = send_early(handle, &early);
    free(early.items);
    return status;
}

struct update {
    int result;
    void *node, *from;
};

static int update(void *exec, void *graph, struct update *out) {
    GP_ENTER_ON(exec);
    GP_ON(exec);
    GP_REACH(graph);
    GP_CHECK(gp_check(exec, GP_GRAPH_EXEC));
    GP_CHECK(gp_check(graph, GP_GRAPH));
    if (out == NULL) return GP_INVALID_VALUE;
    uint64_t reply[3] = {6, 0, 0};  // CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED
    struct gp_staged_list fresh = {0};
    int status = prepare(exec, graph, &fresh);
    if (status == GP_SUCCESS) {
        reply[0] = 1;  // CU_GRAPH_EXEC_UPDATE_ERROR
        status = gp_call_graph_update(((struct gp_handle *)exec)->id, ((struct gp_handle *)graph)->id,
                                      reply);
    }
    *out = (struct update){(int)reply[0], NULL, NULL};
    if (status == UPDATE_FAILED) {
        out->node = node_by_id(graph, reply[1]);
        out->from = node_by_id(graph, reply[2]);
    }
    if (status == GP_SUCCESS) {
        replace_staged(GP_EXEC_OF(exec), &fresh);
        status = gp_replace_calls(&GP_EXEC_OF(exec)->calls, graph);
    }
    gp_forget_staged(&fresh, NULL);
    return status;
}

GP_EXPORT int cuGraphExecUpdate(void *exec, void *graph, void **node, int *result) {
    struct update out;
    if (node == NULL || result == NULL) return GP_INVALID_VALUE;
    int status = update(exec, graph, &out);
    *node = out.node;
    *result = out.result;
    return status;
}

// --- memory of graphs -----------------------------------------------------------------------------

GP_EXPORT int cuDeviceGetGraphMemAttribute(int device, int attribute, void *value) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    GP_ROUTE(device);
    if (value == NULL || attribute < 0 || attribute > 3) return GP_INVALID_VALUE;
    return gp_call_graph_get_memory(gp_server_device(device), attribute, value);
}

GP_EXPORT int cuDeviceSetGraphMemAttribute(int device, int attribute, void *value) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    GP_ROUTE(device);
    if (value == NULL || attribute < 0 || attribute > 3) return GP_INVALID_VALUE;
    uint64_t wanted;
    memcpy(&wanted, value, 8);
    return gp_call_graph_set_memory(gp_server_device(device), attribute, wanted);
}

GP_EXPORT int cuDeviceGraphMemTrim(int device) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    GP_ROUTE(device);
    return gp_call_graph_trim(gp_server_device(device));
}

#define GP_FORWARDS_GRAPH_EXEC
#include "generated_forwards.h"
