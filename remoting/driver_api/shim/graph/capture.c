// Capture: streams whose work becomes nodes of a graph.
#include "graph.h"

#include <stdlib.h>

#define CAPTURES_MAX 64

// One capture. Its number is written last, so that a number that is found belongs to its graph.
struct capture {
    uint64_t id;
    struct gp_handle *graph;
    bool given;  // the graph was there before
    bool spoiled;  // by a call that may not be made meanwhile
    const struct gp_handle *origin;  // where it began, and has to end
    struct gp_handle **front;  // as last told to the program
    struct gp_edge_data *data;
};

static __thread int capture_mode;
static uint64_t next_capture = 1;
static unsigned captures;  // that are going on, in all threads
static struct capture active[CAPTURES_MAX];
static pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;

static struct capture *find_capture(const struct gp_handle *handle) {
    uint64_t capture = __atomic_load_n(&handle->capture, __ATOMIC_RELAXED);
    for (int at = 0; capture != 0 && at < CAPTURES_MAX; at++) {
        if (__atomic_load_n(&active[at].id, __ATOMIC_ACQUIRE) == capture) return &active[at];
    }
    return NULL;
}

// Streams and events keep the number of a capture after its end, so the number is looked up.
uint64_t gp_capture_of_handle(const struct gp_handle *handle) {
    if (handle == NULL || __atomic_load_n(&captures, __ATOMIC_RELAXED) == 0) return 0;
    const struct capture *found = find_capture(handle);
    return found == NULL ? 0 : found->id;
}

uint64_t gp_capture_of(void *stream) {
    if (__atomic_load_n(&captures, __ATOMIC_RELAXED) == 0) return 0;
    return gp_capture_of_handle(gp_stream_handle(stream));
}

struct gp_handle *gp_captured_graph(void *stream) {
    if (__atomic_load_n(&captures, __ATOMIC_RELAXED) == 0) return NULL;
    const struct gp_handle *handle = gp_stream_handle(stream);
    const struct capture *found = handle == NULL ? NULL : find_capture(handle);
    return found == NULL ? NULL : found->graph;
}

int gp_spoil_capture(const struct gp_handle *stream, int status) {
    struct capture *found = find_capture(stream);
    if (found != NULL && status != GP_SUCCESS) found->spoiled = true;
    return status;
}

// --- beginning and ending -------------------------------------------------------------------------

static int begin(struct gp_handle *stream, struct gp_handle *given) {
    if (stream->id == GP_LEGACY_STREAM) return GP_CAPTURE_UNSUPPORTED;
    if (gp_capture_of_handle(stream)) return GP_ILLEGAL_STATE;
    struct gp_handle *graph = given != NULL ? given : gp_new_graph(NULL);
    if (graph == NULL) return GP_OUT_OF_MEMORY;
    pthread_mutex_lock(&capture_lock);
    int slot = 0;
    while (slot < CAPTURES_MAX && active[slot].id != 0) slot++;
    if (slot < CAPTURES_MAX) {
        uint64_t capture = next_capture++;
        active[slot] = (struct capture){.graph = graph, .given = given != NULL,
                                        .origin = stream};
        __atomic_store_n(&active[slot].id, capture, __ATOMIC_RELEASE);
        __atomic_fetch_add(&captures, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&stream->capture, capture, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&capture_lock);
    if (slot < CAPTURES_MAX) {
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
    GP_CHECK(begin(handle, NULL));
    uint64_t values[3] = {handle->id, (uint64_t)mode, gp_captured_graph(stream)->id};
    return gp_post(GP_BEGIN_CAPTURE, values, 3);
}

GP_EXPORT int cuStreamBeginCapture_v2(void *stream, int mode) { return begin_mode(stream, mode); }

GP_EXPORT int cuStreamBeginCapture(void *stream) { return begin_mode(stream, 0); }

// The nodes that captured work is to depend on, with what is said of these edges.
static int send_nodes(int op, const uint64_t *head, size_t words, void **nodes,
                      const struct gp_edge_data *data, size_t count) {
    if (count > GP_EDGES_AT_ONCE) return GP_INVALID_VALUE;
    unsigned char *at = gp_open(op, 0, words * 8 + count * 16);
    if (at == NULL) return GP_INVALID_VALUE;
    memcpy(at, head, words * 8);
    at += words * 8;
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
    GP_CHECK(begin(handle, graph));
    uint64_t head[4] = {handle->id, (uint64_t)mode, ((struct gp_handle *)graph)->id, count};
    return send_nodes(GP_BEGIN_CAPTURE_TO, head, 4, nodes, data, count);
}

static void end(struct capture *capture) {
    pthread_mutex_lock(&capture_lock);
    __atomic_store_n(&capture->id, 0, __ATOMIC_RELEASE);
    __atomic_fetch_sub(&captures, 1, __ATOMIC_RELAXED);
    free(capture->front);
    free(capture->data);
    capture->front = NULL;
    capture->data = NULL;
    pthread_mutex_unlock(&capture_lock);
}

GP_EXPORT int cuStreamEndCapture(void *stream, void **graph) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (graph == NULL) return GP_INVALID_VALUE;
    *graph = NULL;
    struct capture *capture = find_capture(handle);
    if (capture == NULL) return GP_ILLEGAL_STATE;
    if (capture->origin != handle) return GP_CAPTURE_UNMATCHED;
    struct gp_handle *made = capture->graph;
    bool given = capture->given;
    uint64_t values[2] = {handle->id, made->id};
    int status = gp_call(GP_END_CAPTURE, values, 2, NULL, 0);
    end(capture);
    if (status == GP_SUCCESS) {
        *graph = made;
    } else if (!given) {
        gp_drop_graph(made);
    }
    return status;
}

// --- questions ------------------------------------------------------------------------------------

GP_EXPORT int cuStreamIsCapturing(void *stream, int *status) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    if (status == NULL) return GP_INVALID_VALUE;
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    const struct capture *capture = find_capture(handle);
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
    struct capture *capture = find_capture(handle);
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

GP_EXPORT int cuStreamGetCaptureInfo(void *stream, int *status, uint64_t *id) {
    return capture_info(stream, status, id, NULL, NULL, NULL, NULL);
}

GP_EXPORT int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph,
                                        void ***nodes, size_t *count) {
    return capture_info(stream, status, id, graph, nodes, NULL, count);
}

GP_EXPORT int cuStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *id, void **graph,
                                        void ***nodes, const struct gp_edge_data **data,
                                        size_t *count) {
    return capture_info(stream, status, id, graph, nodes, data, count);
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
    uint64_t head[3] = {handle->id, flags, count};
    return send_nodes(GP_CAPTURE_DEPENDENCIES, head, 3, nodes, data, count);
}

GP_EXPORT int cuStreamUpdateCaptureDependencies_v2(void *stream, void **nodes,
                                                   const struct gp_edge_data *data, size_t count,
                                                   unsigned flags) {
    return update_dependencies(stream, nodes, data, count, flags);
}

GP_EXPORT int cuStreamUpdateCaptureDependencies(void *stream, void **nodes, size_t count,
                                                unsigned flags) {
    return update_dependencies(stream, nodes, NULL, count, flags);
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

int gp_capture_box(const void *copy, void *stream) {
    struct gp_handle *graph = gp_captured_graph(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (graph == NULL || handle == NULL) return GP_ILLEGAL_STATE;
    struct gp_node_params given = {.type = GP_NODE_MEMCPY};
    given.memcpy.copy = *(const struct gp_copy_3d *)copy;
    struct gp_packed packed;
    GP_CHECK(gp_pack(graph, &given, &packed));
    unsigned char *at = gp_open(GP_CAPTURE_COPY, 0, 16 + sizeof given.memcpy.copy);
    if (at == NULL) {
        gp_drop_packed(&packed);
        return GP_INVALID_VALUE;
    }
    memcpy(at, &handle->id, 8);
    memcpy(at + 8, &packed.params.memcpy.copy, sizeof given.memcpy.copy);
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

int gp_capture_copy(uint64_t target, uint64_t source, size_t size, bool out, void *stream) {
    if (size == 0) return GP_SUCCESS;
    struct gp_copy_3d copy = {.width = size, .height = 1, .depth = 1};
    copy.source = (struct gp_box){.kind = out ? 2 : 1, .device = source,
                                  .host = (const void *)(uintptr_t)source, .pitch = size};
    copy.target = (struct gp_box){.kind = out ? 1 : 2, .device = target,
                                  .host = (const void *)(uintptr_t)target, .pitch = size};
    return gp_capture_box(&copy, stream);
}

int gp_capture_allocate(uint64_t *address, size_t size, void *stream) {
    struct gp_handle *graph = gp_captured_graph(stream), *handle = gp_stream_handle(stream);
    if (graph == NULL || handle == NULL) return GP_ILLEGAL_STATE;
    if (size == 0) return GP_INVALID_VALUE;
    uint64_t values[4] = {handle->id, graph->id, size, gp_new_id()}, reply[1] = {0};
    GP_CHECK(gp_call(GP_CAPTURE_ALLOCATE, values, 4, reply, sizeof reply));
    *address = reply[0];
    return gp_graph_allocates(graph, reply[0], size, gp_current_device());
}

int gp_capture_free(uint64_t address, void *stream) {
    struct gp_handle *graph = gp_captured_graph(stream), *handle = gp_stream_handle(stream);
    if (graph == NULL || handle == NULL) return GP_ILLEGAL_STATE;
    gp_graph_frees(graph, address);
    uint64_t values[3] = {handle->id, graph->id, address};
    return gp_post(GP_CAPTURE_FREE, values, 3);
}
