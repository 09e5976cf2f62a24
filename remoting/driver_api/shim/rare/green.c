// Green contexts: contexts with a part of a device's multiprocessors. The resources that programs split and describe are
// the driver's secret, so the worker keeps them; what the program holds names them.
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>

#define SM_RESOURCE 1       // CU_DEV_RESOURCE_TYPE_SM
#define GROUPS_MAX 256      // of one split
#define GREEN_FIRST 1024    // first number of a green context in SET_DEVICE; as in client_state.py
#define NON_BLOCKING 1      // CU_STREAM_NON_BLOCKING
#define TOKEN_MAGIC 0x6e656572675f7067u

// CUdevResource.
struct resource {
    uint32_t type, pad;
    uint64_t magic, token;  // in the driver's own part
    unsigned char own[72];
    unsigned char shown[48];  // such as the number of multiprocessors
};

_Static_assert(sizeof(struct resource) == 144, "as in cuda.h");

// As the worker tells of one.
struct told {
    uint64_t token;
    uint32_t type, pad;
    unsigned char shown[48];
};

struct green {
    struct gp_handle handle;
    struct gp_context context;
    struct gp_handle legacy;
    struct told resource;
};

static pthread_mutex_t green_lock = PTHREAD_MUTEX_INITIALIZER;
static struct told of_device[GP_DEVICES_MAX];
static int next_place = GREEN_FIRST;

static void tell(struct resource *to, const struct told *told) {
    memset(to, 0, sizeof *to);
    to->type = told->type;
    if (told->type == 0) return;
    to->magic = TOKEN_MAGIC;
    to->token = told->token;
    memcpy(to->shown, told->shown, sizeof to->shown);
}

static bool is_resource(const struct resource *resource) {
    return resource->type == SM_RESOURCE && resource->magic == TOKEN_MAGIC;
}

// What never changes is asked for once. A number of 0 stands for the device itself.
static int ask(struct told *kept, int device, uint64_t number, struct resource *resource,
               int type) {
    if (resource == NULL) return GP_INVALID_VALUE;
    pthread_mutex_lock(&green_lock);
    int status = GP_SUCCESS;
    if (type != SM_RESOURCE || kept->token == 0) {
        GP_ROUTE(device);
        struct told told;
        status = gp_call_green_resource(gp_server_device(device), number, type, &told, sizeof told);
        if (status == GP_SUCCESS) *kept = told;
    }
    if (status == GP_SUCCESS) tell(resource, kept);
    pthread_mutex_unlock(&green_lock);
    return status;
}

static int resource_of_device(int device, struct resource *resource, int type) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    return ask(&of_device[device], device, 0, resource, type);
}

static int resource_of_green(void *green, struct resource *resource, int type) {
    GP_CHECK(gp_ready());
    if (gp_check(green, GP_GREEN) != GP_SUCCESS) return GP_INVALID_CONTEXT;
    struct green *known = green;
    return ask(&known->resource, known->handle.device, (uint64_t)known->context.place, resource, type);
}

GP_EXPORT int cuCtxGetDevResource(void *context, struct resource *resource, int type) {
    GP_CHECK(gp_ready());
    struct gp_context *known;
    GP_CHECK(gp_context_of(context, &known));
    if (known->green != NULL) return resource_of_green(known->green, resource, type);
    return resource_of_device(known->handle.device, resource, type);
}

GP_EXPORT int cuDevSmResourceSplitByCount(struct resource *groups, unsigned *count,
                                          const struct resource *input, struct resource *remaining,
                                          unsigned flags, unsigned least) {
    GP_CHECK(gp_ready());
    if (count == NULL || input == NULL || !is_resource(input)) return GP_INVALID_VALUE;
    uint64_t wanted = groups == NULL ? 0 : *count;
    if (groups != NULL && (wanted == 0 || wanted > GROUPS_MAX)) return GP_INVALID_VALUE;
    struct gp_request request = {.grows = true};
    int status = gp_exchange_green_split(&request, input->token, wanted, flags, least);
    uint64_t found = 0;
    if (status == GP_SUCCESS && request.length >= 8) memcpy(&found, request.body, 8);
    size_t told = groups == NULL ? 0 : found + 1;  // and what remains
    if (status == GP_SUCCESS && (found > GROUPS_MAX || (wanted != 0 && found > wanted) ||
                                 request.length < 8 + told * sizeof(struct told))) {
        status = GP_UNKNOWN;
    }
    if (status == GP_SUCCESS) {
        *count = (unsigned)found;
        const unsigned char *at = (const unsigned char *)request.body + 8;
        for (size_t group = 0; group < told; group++) {
            struct told one;
            memcpy(&one, at + group * sizeof one, sizeof one);
            struct resource *to = group < found ? &groups[group] : remaining;
            if (to != NULL) tell(to, &one);
        }
    }
    free(request.body);
    return status;
}

GP_EXPORT int cuDevResourceGenerateDesc(void **made, const struct resource *resources,
                                        unsigned count) {
    GP_CHECK(gp_ready());
    if (made == NULL || resources == NULL || count == 0 || count > GROUPS_MAX) {
        return GP_INVALID_VALUE;
    }
    uint64_t tokens[GROUPS_MAX];
    for (unsigned at = 0; at < count; at++) {
        if (!is_resource(&resources[at])) return GP_INVALID_VALUE;
        tokens[at] = resources[at].token;
    }
    struct gp_handle *described = gp_make(GP_DESCRIPTION);
    if (described == NULL) return GP_OUT_OF_MEMORY;
    struct gp_request request = {0};
    int status = gp_exchange_green_describe(&request, described->id, count, tokens);
    if (status == GP_SUCCESS) {
        *made = described;
    } else {
        gp_end(described);
    }
    return status;
}

// --- the contexts ---------------------------------------------------------------------------------

GP_EXPORT int cuGreenCtxCreate(void **made, void *description, int device, unsigned flags) {
    GP_CHECK(gp_ready());
    if (made == NULL || gp_check(description, GP_DESCRIPTION) != GP_SUCCESS) return GP_INVALID_VALUE;
    GP_CHECK(gp_check_device(device));
    GP_ROUTE(device);
    struct green *green = calloc(1, sizeof *green);
    if (green == NULL) return GP_OUT_OF_MEMORY;
    int place = __atomic_fetch_add(&next_place, 1, __ATOMIC_RELAXED);
    int status = gp_call_green_create(place, ((struct gp_handle *)description)->id,
                                      gp_server_device(device), flags);
    if (status != GP_SUCCESS) {
        free(green);
        return status;
    }
    green->handle = (struct gp_handle){.magic = GP_MAGIC, .kind = GP_GREEN, .device = device};
    green->context.handle = green->legacy = green->handle;
    green->context.handle.kind = GP_CONTEXT;
    green->context.handle.id = gp_new_id();
    green->context.serial = green->context.handle.id;
    green->context.place = place;
    green->context.green = green;
    green->context.legacy = &green->legacy;
    // Work without a stream goes to one of its own.
    green->legacy.kind = GP_STREAM;
    green->legacy.id = GP_LEGACY_STREAM;
    green->legacy.context = &green->context;
    *made = green;
    return GP_SUCCESS;
}

static int check(const void *green) {
    GP_CHECK(gp_ready());
    return gp_check(green, GP_GREEN) == GP_SUCCESS ? GP_SUCCESS : GP_INVALID_CONTEXT;
}

GP_EXPORT int cuGreenCtxDestroy(void *green) {
    GP_CHECK(check(green));
    struct green *known = green;
    GP_ROUTE(known->handle.device);
    gp_end_locals(&known->context);
    int place = known->context.place;
    // Its memory stays, as that of other contexts does. Calls of threads that still have it are for its device.
    known->handle.magic = known->context.handle.magic = 0;
    known->context.place = 0;
    known->context.legacy = NULL;
    return gp_call_green_destroy(place);
}

GP_EXPORT int cuCtxFromGreenCtx(void **context, void *green) {
    GP_CHECK(check(green));
    if (context == NULL) return GP_INVALID_VALUE;
    *context = &((struct green *)green)->context;
    return GP_SUCCESS;
}

GP_EXPORT int cuGreenCtxGetId(void *green, unsigned long long *id) {
    GP_CHECK(gp_ready());
    struct gp_context *current = gp_current();
    if (green == NULL && current != NULL) green = current->green;
    GP_CHECK(check(green));
    if (id == NULL) return GP_INVALID_VALUE;
    *id = ((struct green *)green)->context.serial;
    return GP_SUCCESS;
}

GP_EXPORT int cuGreenCtxStreamCreate(void **stream, void *green, unsigned flags, int priority) {
    GP_CHECK(check(green));
    if (stream == NULL || flags != NON_BLOCKING) return GP_INVALID_VALUE;
    struct green *known = green;
    GP_ROUTE(known->handle.device);
    struct gp_handle *made = gp_make(GP_STREAM);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    made->device = known->handle.device;
    made->context = &known->context;
    made->flags = flags;
    made->priority = priority;
    int status = gp_call_green_stream(known->context.place, made->id, flags, priority);
    if (status != GP_SUCCESS) {
        gp_end(made);
        return status;
    }
    *stream = made;
    return GP_SUCCESS;
}

static int with_event(void *green, void *event, bool waits) {
    GP_CHECK(check(green));
    GP_CHECK(gp_check(event, GP_EVENT));
    struct green *known = green;
    GP_ROUTE(known->handle.device);
    GP_REACH(event);
    int status = gp_post_green_event(known->context.place, ((struct gp_handle *)event)->id, waits);
    if (!waits) gp_recorded_elsewhere(event);
    return status;
}

int gp_green_record(void *green, void *event) {
    return with_event(green, event, false);
}

int gp_green_wait(void *green, void *event) {
    return with_event(green, event, true);
}

static int green_of(void *stream, void **green) {
    GP_ENTER();
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (green == NULL) return GP_INVALID_VALUE;
    const struct gp_context *context = handle->context;
    *green = gp_check(context, GP_CONTEXT) == GP_SUCCESS ? context->green : NULL;
    return GP_SUCCESS;
}

GP_EXPORT int cuStreamGetCtx_v2(void *stream, void **context, void **green) {
    void *found = NULL;
    GP_CHECK(green_of(stream, &found));
    if (green != NULL) *green = found;
    if (found == NULL) return gp_context_of_stream(stream, context);
    if (context == NULL) return GP_INVALID_VALUE;
    *context = &gp.primaries[((struct green *)found)->handle.device];
    return GP_SUCCESS;
}

#define GP_FORWARDS_GREEN
#include "generated_forwards.h"
