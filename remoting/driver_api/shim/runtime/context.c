// Contexts: which one is current on each thread, contexts of the program's own, primary ones, limits.
#include "runtime.h"

#include <stdlib.h>

static struct gp_context *contexts[GP_STACK_MAX * 4];  // made by cuCtxCreate, for their check
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;

// --- contexts -------------------------------------------------------------------------------------

GP_EXPORT int cuCtxSetCurrent(void *context) {
    GP_CHECK(gp_ready());
    // There it has no effect: calls that need a context then say that they are not permitted.
    if (gp_in_host_function()) return GP_SUCCESS;
    if (context == NULL) {
        gp_pop();
        return GP_SUCCESS;
    }
    struct gp_context *known;
    GP_CHECK(gp_context_of(context, &known));
    gp_pop();
    return gp_push(known);
}

GP_EXPORT int cuCtxGetCurrent(void **context) {
    GP_CHECK(gp_ready());
    if (context == NULL) return GP_INVALID_VALUE;
    *context = gp_current();
    return GP_SUCCESS;
}

GP_EXPORT int cuCtxPushCurrent_v2(void *context) {
    GP_CHECK(gp_ready());
    struct gp_context *known;
    if (context == NULL) return GP_INVALID_CONTEXT;
    GP_CHECK(gp_context_of(context, &known));
    return gp_push(known);
}

GP_ALIAS(cuCtxPushCurrent, cuCtxPushCurrent_v2);

GP_EXPORT int cuCtxPopCurrent_v2(void **context) {
    GP_CHECK(gp_enter());
    struct gp_context *top = gp_pop();
    if (context != NULL) *context = top;
    return GP_SUCCESS;
}

GP_ALIAS(cuCtxPopCurrent, cuCtxPopCurrent_v2);

static int tell_device(int *device, void *context) {
    GP_CHECK(gp_ready());
    if (device == NULL) return GP_INVALID_VALUE;
    struct gp_context *known;
    GP_CHECK(gp_context_of(context, &known));
    *device = known->handle.device;
    return GP_SUCCESS;
}

GP_EXPORT int cuCtxGetFlags(unsigned *flags) {
    GP_CHECK(gp_enter());
    if (flags == NULL) return GP_INVALID_VALUE;
    *flags = gp_current()->flags;
    return GP_SUCCESS;
}

GP_EXPORT int cuCtxGetId(void *context, unsigned long long *id) {
    GP_CHECK(gp_ready());
    struct gp_context *known;
    if (id == NULL) return GP_INVALID_VALUE;
    GP_CHECK(gp_context_of(context, &known));
    *id = known->serial;
    return GP_SUCCESS;
}

GP_EXPORT int cuCtxGetApiVersion(void *context, unsigned *version) {
    GP_CHECK(gp_ready());
    struct gp_context *known;
    if (version == NULL) return GP_INVALID_VALUE;
    GP_CHECK(gp_context_of(context, &known));
    *version = 3020;
    return GP_SUCCESS;
}

static int synchronize(void *context) {
    GP_CHECK(gp_ready());
    struct gp_context *known;
    GP_CHECK(gp_context_of(context, &known));
    int device = known->handle.device;
    GP_ROUTE(device);
    uint64_t before = gp_position(), last = gp_host_last();
    if (!gp_is_device_idle(device)) {
        GP_CHECK(gp_synchronize(GP_SYNC_DEVICE, (uint64_t)gp_server_device(device)));
        gp_note_device_idle(device, before);
    }
    gp_host_told_all(last);
    return GP_SUCCESS;
}

GP_EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    GP_CHECK(gp_enter());
    const struct gp_device *device = &gp.devices[gp_current_device()];
    if (least != NULL) *least = device->priorities[0];
    if (greatest != NULL) *greatest = device->priorities[1];
    return GP_SUCCESS;
}

GP_EXPORT int cuCtxGetSharedMemConfig(int *config) {
    GP_CHECK(gp_enter());
    if (config == NULL) return GP_INVALID_VALUE;
    *config = 1;  // four-byte banks: no device that is still supported has others
    return GP_SUCCESS;
}

GP_EXPORT int cuCtxSetSharedMemConfig(int config) {
    (void)config;
    return gp_enter();
}

// A context of its own shares the memory of the device's primary context in the worker; what is
// kept apart is which context is current, and the runtime's storage in it.
static int create_context(void **made, unsigned flags, int device) {
    GP_CHECK(gp_ready());
    if (made == NULL) return GP_INVALID_VALUE;
    GP_CHECK(gp_check_device(device));
    // One way to wait for the GPU, and others of CU_CTX_FLAGS_MASK.
    if (flags > 255 || (flags & 7 & ((flags & 7) - 1)) != 0) return GP_INVALID_VALUE;
    struct gp_context *context = calloc(1, sizeof *context);
    if (context == NULL) return GP_OUT_OF_MEMORY;
    gp_begin_context(context, device);
    context->flags = flags;
    pthread_mutex_lock(&context_lock);
    size_t at = 0;
    while (at < sizeof contexts / sizeof *contexts && contexts[at] != NULL) at++;
    bool room = at < sizeof contexts / sizeof *contexts;
    if (room) contexts[at] = context;
    pthread_mutex_unlock(&context_lock);
    if (!room || gp_push(context) != GP_SUCCESS) {
        free(context);
        return GP_OUT_OF_MEMORY;
    }
    *made = context;
    return GP_SUCCESS;
}

// CUctxCreateParams: shares of multiprocessors, and a context of a graphics API's. Current programs give
// one that asks for neither.
struct parameters {
    const void *affinity;
    int affinity_count;
    const void *graphics;
};

static int create_with(void **made, const void *given, unsigned flags, int device) {
    const struct parameters *wish = given;
    bool plain = wish == NULL || (wish->affinity == NULL && wish->affinity_count == 0 &&
                                  wish->graphics == NULL);
    return plain ? create_context(made, flags, device) : GP_NOT_SUPPORTED;
}

void gp_forget_context(const struct gp_context *known) {
    pthread_mutex_lock(&context_lock);
    for (size_t at = 0; at < sizeof contexts / sizeof *contexts; at++) {
        if (contexts[at] == known) contexts[at] = NULL;
    }
    pthread_mutex_unlock(&context_lock);
}

// --- primary contexts -----------------------------------------------------------------------------

GP_EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    GP_CHECK(gp_ready());
    if (context == NULL) return GP_INVALID_VALUE;
    GP_CHECK(gp_check_device(device));
    __atomic_fetch_add(&gp.primaries[device].references, 1, __ATOMIC_RELAXED);
    *context = &gp.primaries[device];
    return GP_SUCCESS;
}

GP_EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    int *references = &gp.primaries[device].references;
    int left = __atomic_sub_fetch(references, 1, __ATOMIC_RELAXED);
    if (left < 0) {
        __atomic_fetch_add(references, 1, __ATOMIC_RELAXED);
        return GP_INVALID_CONTEXT;
    }
    if (left == 0) gp_end_locals(&gp.primaries[device]);
    return GP_SUCCESS;
}

GP_ALIAS(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);

GP_EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    if (flags != NULL) *flags = gp.primaries[device].flags;
    if (active != NULL) {
        *active = __atomic_load_n(&gp.primaries[device].references, __ATOMIC_RELAXED) > 0;
    }
    return GP_SUCCESS;
}

GP_EXPORT int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    gp.primaries[device].flags = flags;
    return GP_SUCCESS;
}

GP_ALIAS(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2);

// --- limits, which cuBLASLt asks for before every product ------------------------------------------

#define LIMITS 16
static struct {
    bool known;
    uint64_t value;
} limits[GP_DEVICES_MAX][LIMITS];
static pthread_mutex_t limit_lock = PTHREAD_MUTEX_INITIALIZER;

GP_EXPORT int cuCtxGetLimit(size_t *value, unsigned limit) {
    GP_ENTER();
    if (value == NULL || limit >= LIMITS) return GP_INVALID_VALUE;
    int device = gp_current_device();
    pthread_mutex_lock(&limit_lock);
    int status = GP_SUCCESS;
    if (!limits[device][limit].known) {
        uint64_t reply[1] = {0};
        status = gp_call_get_limit(limit, reply);
        limits[device][limit].known = status == GP_SUCCESS;
        limits[device][limit].value = reply[0];
    }
    if (status == GP_SUCCESS) *value = limits[device][limit].value;
    pthread_mutex_unlock(&limit_lock);
    return status;
}

GP_EXPORT int cuCtxSetLimit(unsigned limit, size_t value) {
    GP_ENTER();
    if (limit >= LIMITS) return GP_INVALID_VALUE;
    pthread_mutex_lock(&limit_lock);
    int status = gp_call_set_limit(limit, value);
    // CUDA rounds what it is given, and one limit may change another.
    memset(limits[gp_current_device()], 0, sizeof *limits);
    pthread_mutex_unlock(&limit_lock);
    return status;
}

#define GP_FORWARDS_CONTEXT
#include "generated_forwards.h"
