// The end of contexts, and of the memory that ends with them.
#include "core.h"

// What was allocated in a context ends with it, as many programs expect.
static void free_owned(struct gp_context *context) {
    struct gp_range range, gone;
    if (gp_in_host_function() || gp_push(context) != GP_SUCCESS) return;
    while (gp_find_owned(context, &range)) {
        void *start = (void *)(uintptr_t)range.start;
        int status = range.kind != GP_HOST_MEMORY ? gp_free(range.start)
                     : range.detail != NULL       ? gp_free_host(start)
                                                  : gp_unregister_host(start);
        if (status != GP_SUCCESS) gp_remove_range(range.start, &gone);
    }
    gp_pop();
}

int gp_destroy_context(void *context) {
    GP_CHECK(gp_ready());
    struct gp_context *known;
    if (context == NULL || gp_context_of(context, &known) != GP_SUCCESS) return GP_INVALID_CONTEXT;
    if (known->primary || known->green != NULL) return GP_INVALID_CONTEXT;
    gp_end_locals(known);
    free_owned(known);
    gp_free_kept();
    gp_forget_context(known);
    // Its memory stays: another thread may still have it on its stack, and must find it dead.
    known->handle.magic = 0;
    if (gp_current() == known) gp_pop();
    return GP_SUCCESS;
}

GP_EXPORT int cuCtxDestroy_v2(void *context) { return gp_destroy_context(context); }

GP_ALIAS(cuCtxDestroy, cuCtxDestroy_v2);

GP_EXPORT int cuDevicePrimaryCtxReset_v2(int device) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    gp_end_locals(&gp.primaries[device]);
    __atomic_store_n(&gp.primaries[device].references, 0, __ATOMIC_RELAXED);
    free_owned(&gp.primaries[device]);
    gp_free_kept();
    GP_ROUTE(device);
    return gp_post_reset_device(gp_server_device(device));
}

GP_ALIAS(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2);
