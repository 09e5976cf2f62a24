// Capture: streams whose work becomes nodes of a graph.
#include "core.h"

static __thread int capture_mode;
static uint64_t next_capture = 1;
static unsigned captures;  // that are going on, in all threads
#define CAPTURES_MAX 64
static uint64_t active[CAPTURES_MAX];

// Streams and events keep the number of a capture after its end, so the number is looked up.
uint64_t gp_capture_of_handle(const struct gp_handle *handle) {
    if (handle == NULL || __atomic_load_n(&captures, __ATOMIC_RELAXED) == 0) return 0;
    uint64_t capture = __atomic_load_n(&handle->capture, __ATOMIC_RELAXED);
    for (int at = 0; capture != 0 && at < CAPTURES_MAX; at++) {
        if (__atomic_load_n(&active[at], __ATOMIC_RELAXED) == capture) return capture;
    }
    return 0;
}

uint64_t gp_capture_of(void *stream) {
    if (__atomic_load_n(&captures, __ATOMIC_RELAXED) == 0) return 0;
    return gp_capture_of_handle(gp_stream_handle(stream));
}

GP_EXPORT int cuStreamBeginCapture_v2(void *stream, int mode) {
    GP_ENTER();
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (handle->id == GP_LEGACY_STREAM) return GP_CAPTURE_UNSUPPORTED;
    if (gp_capture_of_handle(handle)) return GP_ILLEGAL_STATE;
    uint64_t capture = __atomic_fetch_add(&next_capture, 1, __ATOMIC_RELAXED);
    int slot = 0;
    for (uint64_t none = 0; slot < CAPTURES_MAX; slot++, none = 0) {
        if (__atomic_compare_exchange_n(&active[slot], &none, capture, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
            break;
        }
    }
    if (slot == CAPTURES_MAX) return GP_OUT_OF_MEMORY;
    __atomic_fetch_add(&captures, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&handle->capture, capture, __ATOMIC_RELAXED);
    uint64_t values[2] = {handle->id, (uint64_t)mode};
    return gp_post(GP_BEGIN_CAPTURE, values, 2);
}

GP_EXPORT int cuStreamBeginCapture(void *stream) { return cuStreamBeginCapture_v2(stream, 0); }

static void end_capture(uint64_t capture) {
    for (int at = 0; at < CAPTURES_MAX; at++) {
        uint64_t wanted = capture;
        if (__atomic_compare_exchange_n(&active[at], &wanted, 0, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
            __atomic_fetch_sub(&captures, 1, __ATOMIC_RELAXED);
        }
    }
}

GP_EXPORT int cuStreamEndCapture(void *stream, void **graph) {
    GP_ENTER();
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (graph == NULL) return GP_INVALID_VALUE;
    *graph = NULL;
    uint64_t capture = gp_capture_of_handle(handle);
    if (!capture) return GP_ILLEGAL_STATE;
    struct gp_handle *made = gp_make(GP_GRAPH);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    uint64_t values[2] = {handle->id, made->id};
    int status = gp_call(GP_END_CAPTURE, values, 2, NULL, 0);
    end_capture(capture);
    if (status != GP_SUCCESS) {
        gp_end(made);
        return status;
    }
    *graph = made;
    return GP_SUCCESS;
}

GP_EXPORT int cuStreamIsCapturing(void *stream, int *status) {
    GP_ENTER();
    if (status == NULL) return GP_INVALID_VALUE;
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    *status = gp_capture_of_handle(handle) ? 1 : 0;
    return GP_SUCCESS;
}

static int capture_info(void *stream, int *status, uint64_t *id, void **graph, size_t *count) {
    GP_ENTER();
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (status == NULL) return GP_INVALID_VALUE;
    uint64_t capture = gp_capture_of_handle(handle);
    *status = capture ? 1 : 0;
    if (id != NULL) *id = capture;
    if (count != NULL) *count = 0;
    if (graph != NULL) *graph = NULL;
    return GP_SUCCESS;
}

GP_EXPORT int cuStreamGetCaptureInfo(void *stream, int *status, uint64_t *id) {
    return capture_info(stream, status, id, NULL, NULL);
}

GP_EXPORT int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph,
                                        void **dependencies, size_t *count) {
    if (dependencies != NULL) *dependencies = NULL;
    return capture_info(stream, status, id, graph, count);
}

GP_EXPORT int cuStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *id, void **graph,
                                        void **dependencies, void **edges, size_t *count) {
    if (dependencies != NULL) *dependencies = NULL;
    if (edges != NULL) *edges = NULL;
    return capture_info(stream, status, id, graph, count);
}

GP_EXPORT int cuThreadExchangeStreamCaptureMode(int *mode) {
    GP_CHECK(gp_ready());
    if (mode == NULL) return GP_INVALID_VALUE;
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return GP_SUCCESS;
}
