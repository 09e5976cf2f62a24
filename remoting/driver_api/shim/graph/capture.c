// Capture: streams whose work becomes nodes of a graph.
#include "graph.h"
#include "captures.h"

#include <stdlib.h>

static __thread int capture_mode;

// --- beginning and ending -------------------------------------------------------------------------

static int begin(struct gp_handle *stream, struct gp_handle *given, int mode) {
    if (mode < 0 || mode > 2) return GP_INVALID_VALUE;
    if (stream->id == GP_LEGACY_STREAM) return GP_CAPTURE_UNSUPPORTED;
    if (gp_capture_of_handle(stream)) return GP_ILLEGAL_STATE;
    struct gp_handle *graph = given != NULL ? given : gp_new_graph(NULL);
    if (graph == NULL) return GP_OUT_OF_MEMORY;
    if (gp_begin_capture(stream, graph, given != NULL)) {
        GP_GRAPH_OF(graph)->partial = true;
        return GP_SUCCESS;
    }
    if (given == NULL) gp_drop_graph(graph);
    return GP_OUT_OF_MEMORY;
}

static int begin_mode(void *stream, int mode) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    GP_CHECK(begin(handle, NULL, mode));
    return gp_post_begin_capture(handle->id, mode, gp_captured_graph(stream)->id);
}

// The nodes that captured work is to depend on, with what is said of these edges, behind the fields
// of an open record.
static int send_nodes(unsigned char *at, void **nodes, const struct gp_edge_data *data,
                      size_t count) {
    if (at == NULL) return GP_INVALID_VALUE;
    for (size_t one = 0; one < count; one++, at += 16) {
        memcpy(at, &((struct gp_handle *)nodes[one])->id, 8);
        memset(at + 8, 0, 8);
        if (data != NULL) memcpy(at + 8, &data[one], 8);
    }
    gp_close();
    return GP_SUCCESS;
}

static int check_nodes(struct gp_handle *graph, void **nodes, size_t count) {
    if (count > 0 && nodes == NULL) return GP_INVALID_VALUE;
    for (size_t at = 0; at < count; at++) {
        if (gp_check(nodes[at], GP_NODE) || GP_NODE_OF(nodes[at])->graph != graph) {
            return GP_INVALID_VALUE;
        }
    }
    return GP_SUCCESS;
}

GP_EXPORT int cuStreamBeginCaptureToGraph(void *stream, void *graph, void **nodes,
                                          const struct gp_edge_data *data, size_t count,
                                          int mode) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    GP_REACH(graph);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    GP_CHECK(gp_check(graph, GP_GRAPH));
    GP_CHECK(check_nodes(graph, nodes, count));
    GP_CHECK(begin(handle, graph, mode));
    if (count > GP_EDGES_AT_ONCE) return GP_INVALID_VALUE;
    uint64_t id = ((struct gp_handle *)graph)->id;
    return send_nodes(gp_open_begin_capture_to(handle->id, mode, id, count), nodes, data, count);
}

GP_EXPORT int cuStreamEndCapture(void *stream, void **graph) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (graph != NULL) *graph = NULL;
    struct gp_capture *capture = gp_find_capture(handle);
    // A graph that the program gave it has already.
    if (graph == NULL && (capture == NULL || !capture->given)) return GP_INVALID_VALUE;
    if (capture == NULL) return GP_ILLEGAL_STATE;
    if (capture->origin != handle) {
        capture->ended_elsewhere = true;
        return GP_CAPTURE_UNMATCHED;
    }
    struct gp_handle *made = capture->graph;
    bool given = capture->given;
    int status = gp_call_end_capture(handle->id, made->id);
    if (capture->ended_elsewhere && status != GP_SUCCESS) status = GP_CAPTURE_INVALIDATED;
    gp_end_capture(capture);
    if (status == GP_SUCCESS) {
        if (graph != NULL) *graph = made;
    } else if (!given) {
        gp_drop_graph(made);
    }
    return status;
}

// --- questions ------------------------------------------------------------------------------------

// The legacy stream would wait for the captured one, which nothing may do.
static bool is_legacy_beside_blocking(const struct gp_handle *handle) {
    return handle->id == GP_LEGACY_STREAM && gp_blocking_capture(gp_current_device());
}

GP_EXPORT int cuStreamIsCapturing(void *stream, int *status) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    if (status == NULL) return GP_INVALID_VALUE;
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (is_legacy_beside_blocking(handle)) return GP_CAPTURE_IMPLICIT;
    const struct gp_capture *capture = gp_find_capture(handle);
    *status = capture == NULL ? 0 : capture->spoiled ? 2 : 1;
    return GP_SUCCESS;
}

// The nodes are the worker's to tell; everything else is known here.
static int capture_info(void *stream, int *status, uint64_t *id, void **graph, void ***nodes,
                        const struct gp_edge_data **data, size_t *count) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (status == NULL) return GP_INVALID_VALUE;
    if (is_legacy_beside_blocking(handle)) return GP_CAPTURE_IMPLICIT;
    struct gp_capture *capture = gp_find_capture(handle);
    *status = capture != NULL;
    if (id != NULL) *id = capture == NULL ? 0 : capture->id;
    if (count != NULL) *count = 0;
    if (nodes != NULL) *nodes = NULL;
    if (data != NULL) *data = NULL;
    if (graph != NULL) *graph = capture == NULL ? NULL : capture->graph;
    if (capture == NULL || (nodes == NULL && count == NULL)) return GP_SUCCESS;
    struct gp_handle **front;
    struct gp_edge_data *edges;
    size_t found;
    GP_CHECK(gp_read_front(capture->graph, handle->id, status, &front, &edges, &found));
    // They stay until the next question about this capture, or its end.
    free(capture->front);
    free(capture->data);
    capture->front = front;
    capture->data = edges;
    if (nodes != NULL) *nodes = (void **)front;
    if (data != NULL) *data = edges;
    if (count != NULL) *count = found;
    return GP_SUCCESS;
}

static int update_dependencies(void *stream, void **nodes, const struct gp_edge_data *data,
                               size_t count, unsigned flags) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    struct gp_handle *graph = gp_captured_graph(stream);
    if (graph == NULL) return GP_ILLEGAL_STATE;
    if (flags > 1) return GP_INVALID_VALUE;
    GP_CHECK(check_nodes(graph, nodes, count));
    if (count > GP_EDGES_AT_ONCE) return GP_INVALID_VALUE;
    return send_nodes(gp_open_capture_dependencies(handle->id, flags, count), nodes, data, count);
}

GP_EXPORT int cuThreadExchangeStreamCaptureMode(int *mode) {
    GP_CHECK(gp_ready());
    if (mode == NULL) return GP_INVALID_VALUE;
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return GP_SUCCESS;
}

// --- work that is not captured by the worker alone ------------------------------------------------

static int capture_box(const void *copy, void *stream) {
    struct gp_handle *graph = gp_captured_graph(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (graph == NULL || handle == NULL) return GP_ILLEGAL_STATE;
    struct gp_node_params given = {.type = GP_NODE_MEMCPY};
    given.memcpy.copy = *(const struct gp_copy_3d *)copy;
    struct gp_packed packed;
    GP_CHECK(gp_pack(graph, &given, &packed));
    unsigned char *at = gp_open_capture_copy(handle->id);
    if (at == NULL) {
        gp_drop_packed(&packed);
        return GP_INVALID_VALUE;
    }
    memcpy(at, &packed.params.memcpy.copy, sizeof given.memcpy.copy);
    gp_close();
    int status = GP_SUCCESS;
    pthread_mutex_lock(&gp_graph_lock);
    while (packed.staged_count > 0 && status == GP_SUCCESS) {
        const struct gp_staged *one = &packed.staged[packed.staged_count - 1];
        status = gp_keep_staged(&GP_GRAPH_OF(graph)->staged, one);
        if (status == GP_SUCCESS) packed.staged_count--;
    }
    pthread_mutex_unlock(&gp_graph_lock);
    gp_drop_packed(&packed);
    return status;
}

static int capture_allocate(uint64_t *address, size_t size, void *stream) {
    struct gp_handle *graph = gp_captured_graph(stream), *handle = gp_stream_handle(stream);
    if (graph == NULL || handle == NULL) return GP_ILLEGAL_STATE;
    if (size == 0) return GP_INVALID_VALUE;
    uint64_t reply[1] = {0};
    GP_CHECK(gp_call_capture_allocate(handle->id, graph->id, size, gp_new_id(), reply));
    *address = reply[0];
    return gp_graph_allocates(graph, reply[0], size, gp_current_device());
}

static int capture_free(uint64_t address, void *stream) {
    struct gp_handle *graph = gp_captured_graph(stream), *handle = gp_stream_handle(stream);
    if (graph == NULL || handle == NULL) return GP_ILLEGAL_STATE;
    gp_graph_frees(graph, address);
    return gp_post_capture_free(handle->id, graph->id, address);
}

GP_AT_LOAD register_hooks(void) {
    gp_hooks.capture_box = capture_box;
    gp_hooks.capture_allocate = capture_allocate;
    gp_hooks.capture_free = capture_free;
}

#define GP_FORWARDS_CAPTURE
#include "generated_forwards.h"
