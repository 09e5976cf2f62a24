// Values in memory that streams wait for and write, and small calls on streams and contexts.
#include "core.h"

#include <stdio.h>

#define OPERATIONS_MAX 256
#define EVENT_OF_CONTEXT_WAITS 1

// CUstreamBatchMemOpParams.
struct operation {
    uint32_t kind, padding;
    uint64_t address, value;
    uint32_t flags, more;
    uint64_t alias, rest;
};

enum { WAIT_32 = 1, WRITE_32 = 2, WAIT_64 = 4, WRITE_64 = 5 };

GP_EXPORT int cuStreamBatchMemOp_v2(void *stream, unsigned count, const struct operation *given,
                                    unsigned flags) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    uint64_t id;
    GP_CHECK(gp_stream_id(stream, &id));
    if (count > OPERATIONS_MAX || (count > 0 && given == NULL)) return GP_INVALID_VALUE;
    struct operation seen[OPERATIONS_MAX];
    for (unsigned at = 0; at < count; at++) {
        seen[at] = given[at];
        uint32_t kind = given[at].kind;
        if (kind == WAIT_32 || kind == WRITE_32 || kind == WAIT_64 || kind == WRITE_64) {
            GP_CHECK(gp_see(&seen[at].address));
            GP_REACH_ADDRESS(seen[at].address);
        }
    }
    gp_free_kept_first();
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
    unsigned char *at = gp_open_stream_values(id, count, flags);
    if (at == NULL) return GP_INVALID_VALUE;
    memcpy(at, seen, count * sizeof *seen);
    gp_close();
    return GP_SUCCESS;
}

GP_ALIAS(cuStreamBatchMemOp, cuStreamBatchMemOp_v2);

// --- contexts -------------------------------------------------------------------------------------

static int context_event(void *context, void *event, uint64_t how) {
    GP_ENTER();
    struct gp_context *known;
    GP_CHECK(gp_context_of(context, &known));
    GP_CHECK(gp_check(event, GP_EVENT));
    if (known->green != NULL) {
        bool waits = how == EVENT_OF_CONTEXT_WAITS;
        return waits ? gp_green_wait(known->green, event)
                     : gp_green_record(known->green, event);
    }
    GP_ROUTE(known->handle.device);
    if (gp_several && !gp_reaches(((struct gp_handle *)event)->device)) {
        return how == EVENT_OF_CONTEXT_WAITS ? gp_await_event(event) : GP_INVALID_HANDLE;
    }
    if (how != EVENT_OF_CONTEXT_WAITS) gp_recorded_elsewhere(event);
    uint64_t device = (uint64_t)gp_server_device(known->handle.device);
    return gp_post_context_event(device, ((struct gp_handle *)event)->id, how);
}

static int peer_access(void *peer, uint64_t on) {
    GP_ENTER();
    struct gp_context *known;
    if (gp_context_of(peer, &known) != GP_SUCCESS) return GP_INVALID_CONTEXT;
    if (gp_several && !gp_reaches(known->handle.device)) {
        return on ? GP_PEER_ACCESS_UNSUPPORTED : GP_PEER_ACCESS_NOT_ENABLED;
    }
    return gp_call_peer_access(gp_server_device(known->handle.device), on);
}

GP_EXPORT int cuCtxSetFlags(unsigned flags) {
    GP_ENTER();
    if (flags > 0xff) return GP_INVALID_VALUE;
    gp_current()->flags = flags;
    return GP_SUCCESS;
}

GP_EXPORT int cuDeviceGetProperties(int *properties, int device) {
    // CUdevprop's members, in their order, by CUdevice_attribute.
    static const int attributes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    if (properties == NULL) return GP_INVALID_VALUE;
    for (size_t at = 0; at < sizeof attributes / sizeof *attributes; at++) {
        GP_CHECK(gp_device_attribute(&properties[at], attributes[at], device));
    }
    return GP_SUCCESS;
}

#define GP_FORWARDS_VALUE
#include "generated_forwards.h"
