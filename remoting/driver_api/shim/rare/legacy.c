// Launches as programs made them before CUDA 4: a function keeps its block's shape and its parameters until the next.
// And launches of several devices together, and contexts that are counted.
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>

#define PARAMETERS_MAX 4096  // bytes, as of that time
#define TOGETHER_MAX GP_SERVER_DEVICES_MAX

// The detail of a handle of GP_FUNCTION.
struct settings {
    unsigned block[3], shared, size;
    unsigned char bytes[PARAMETERS_MAX];
};

static pthread_mutex_t settings_lock = PTHREAD_MUTEX_INITIALIZER;

// With settings_lock held, as functions keep them for as long as they are.
static int find(void *function, struct settings **found) {
    GP_CHECK(gp_check(function, GP_FUNCTION));
    struct gp_handle *handle = function;
    if (handle->detail == NULL) handle->detail = calloc(1, sizeof(struct settings));
    *found = handle->detail;
    return *found != NULL ? GP_SUCCESS : GP_OUT_OF_MEMORY;
}

GP_EXPORT int cuFuncSetBlockShape(void *function, int x, int y, int z) {
    GP_ENTER();
    if (x <= 0 || y <= 0 || z <= 0) return GP_INVALID_VALUE;
    struct settings *settings;
    pthread_mutex_lock(&settings_lock);
    int status = find(function, &settings);
    if (status == GP_SUCCESS) {
        unsigned block[3] = {(unsigned)x, (unsigned)y, (unsigned)z};
        memcpy(settings->block, block, sizeof block);
    }
    pthread_mutex_unlock(&settings_lock);
    return status;
}

GP_EXPORT int cuFuncSetSharedSize(void *function, unsigned bytes) {
    GP_ENTER();
    struct settings *settings;
    pthread_mutex_lock(&settings_lock);
    int status = find(function, &settings);
    if (status == GP_SUCCESS) settings->shared = bytes;
    pthread_mutex_unlock(&settings_lock);
    return status;
}

GP_EXPORT int cuParamSetSize(void *function, unsigned bytes) {
    GP_ENTER();
    if (bytes > PARAMETERS_MAX) return GP_INVALID_VALUE;
    struct settings *settings;
    pthread_mutex_lock(&settings_lock);
    int status = find(function, &settings);
    if (status == GP_SUCCESS) settings->size = bytes;
    pthread_mutex_unlock(&settings_lock);
    return status;
}

static int set_parameter(void *function, int offset, const void *value, unsigned bytes) {
    GP_ENTER();
    if (value == NULL || offset < 0 || bytes > PARAMETERS_MAX) return GP_INVALID_VALUE;
    if ((unsigned)offset > PARAMETERS_MAX - bytes) return GP_INVALID_VALUE;
    struct settings *settings;
    pthread_mutex_lock(&settings_lock);
    int status = find(function, &settings);
    if (status == GP_SUCCESS) memcpy(settings->bytes + offset, value, bytes);
    pthread_mutex_unlock(&settings_lock);
    return status;
}

static int launch_grid(void *function, int width, int height, void *stream) {
    GP_ENTER();
    if (width <= 0 || height <= 0) return GP_INVALID_VALUE;
    struct settings *kept, copy;
    pthread_mutex_lock(&settings_lock);
    int status = find(function, &kept);
    if (status == GP_SUCCESS) copy = *kept;
    pthread_mutex_unlock(&settings_lock);
    GP_CHECK(status);
    size_t size = copy.size;
    void *extra[5] = {(void *)1, copy.bytes, (void *)2, &size, NULL};
    unsigned grid[3] = {(unsigned)width, (unsigned)height, 1};
    return gp_launch_kernel(function, grid, copy.block, copy.shared, stream, NULL, extra);
}

// --- several devices together ---------------------------------------------------------------------

// CUDA_LAUNCH_PARAMS.
struct together {
    void *function;
    uint32_t grid[3], block[3], shared;
    void *stream;
    void **parameters;
};

_Static_assert(sizeof(struct together) == 56, "as in cuda.h");

static int pack(const struct together *one, unsigned char **packed, size_t *used) {
    struct gp_launch_record head = {.shared = one->shared};
    unsigned char *bytes;
    GP_ON(one->stream);
    GP_CHECK(gp_stream_id(one->stream, &head.stream));
    GP_CHECK(gp_function_bytes(one->function, one->parameters, NULL, &bytes, &head.bytes));
    head.function = ((struct gp_handle *)one->function)->id;
    memcpy(head.grid, one->grid, sizeof head.grid);
    memcpy(head.block, one->block, sizeof head.block);
    size_t padded = (head.bytes + 7u) & ~(size_t)7;
    unsigned char *grown = realloc(*packed, *used + sizeof head + padded);
    if (grown != NULL) {
        *packed = grown;
        memcpy(grown + *used, &head, sizeof head);
        memset(grown + *used + sizeof head, 0, padded);
        memcpy(grown + *used + sizeof head, bytes, head.bytes);
        *used += sizeof head + padded;
    }
    free(bytes);
    return grown != NULL ? GP_SUCCESS : GP_OUT_OF_MEMORY;
}

GP_EXPORT int cuLaunchCooperativeKernelMultiDevice(const struct together *launches, unsigned count,
                                                   unsigned flags) {
    GP_ENTER();
    if (launches == NULL || count == 0 || count > TOGETHER_MAX) return GP_INVALID_VALUE;
    GP_ON(launches[0].stream);
    unsigned char *packed = NULL;
    size_t used = 0;
    int status = GP_SUCCESS;
    for (unsigned at = 0; at < count && status == GP_SUCCESS; at++) {
        bool here = !gp_several || gp_reaches(gp_handle_device(launches[at].stream));
        status = here ? pack(&launches[at], &packed, &used) : GP_NOT_SUPPORTED;
    }
    if (status == GP_SUCCESS) {
        if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
        struct gp_request request = {0};
        status = gp_exchange_launch_together(&request, count, flags, packed, used);
    }
    free(packed);
    return status;
}

// --- contexts -------------------------------------------------------------------------------------

GP_EXPORT int cuCtxAttach(void **context, unsigned flags) {
    GP_ENTER();
    if (context == NULL || flags != 0) return GP_INVALID_VALUE;
    struct gp_context *known = gp_current();
    __atomic_fetch_add(&known->attached, 1, __ATOMIC_RELAXED);
    *context = known;
    return GP_SUCCESS;
}

GP_EXPORT int cuCtxDetach(void *context) {
    GP_ENTER();
    struct gp_context *known = gp_current();
    if (context == NULL || context != known) return GP_INVALID_CONTEXT;
    if (__atomic_fetch_sub(&known->attached, 1, __ATOMIC_RELAXED) > 0) return GP_SUCCESS;
    __atomic_fetch_add(&known->attached, 1, __ATOMIC_RELAXED);
    return gp_destroy_context(context);
}

#define GP_FORWARDS_LEGACY
#include "generated_forwards.h"
