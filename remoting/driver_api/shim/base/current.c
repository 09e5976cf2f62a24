// The current context of each thread, which decides where its calls go.
#include "base.h"

static __thread struct gp_context *stack[GP_STACK_MAX];
static __thread int depth;
__thread int gp_routed = -1;
static __thread bool serving;  // this thread runs the functions of a server

bool gp_in_host_function(void) { return serving; }

void gp_enter_host_functions(void) { serving = true; }

struct gp_context *gp_current(void) { return depth > 0 ? stack[depth - 1] : NULL; }

int gp_current_device(void) {
    if (gp_many && gp_routed >= 0) return gp_routed;
    struct gp_context *context = gp_current();
    return context == NULL ? -1 : context->handle.device;
}

int gp_place(void) {
    int device = gp_current_device();
    if (device < 0) return -1;
    bool own = gp_many && gp_routed >= 0;
    return own || gp_current()->place == 0 ? gp_server_device(device) : gp_current()->place;
}

int gp_context_of(const void *context, struct gp_context **found) {
    struct gp_context *known = (struct gp_context *)(uintptr_t)context;
    if (known == NULL) {
        known = gp_current();
        if (known == NULL) return GP_INVALID_CONTEXT;
    } else if (gp_check(&known->handle, GP_CONTEXT) != GP_SUCCESS) {
        return GP_INVALID_CONTEXT;
    }
    *found = known;
    return GP_SUCCESS;
}

int gp_device_of(const void *context) {
    struct gp_context *known;
    return gp_context_of(context, &known) == GP_SUCCESS ? known->handle.device : -1;
}

int gp_push(struct gp_context *context) {
    if (gp_in_host_function()) return GP_SUCCESS;
    if (depth >= GP_STACK_MAX) return GP_OUT_OF_MEMORY;
    stack[depth++] = context;
    return GP_SUCCESS;
}

bool gp_borrow_context(int device) {
    if (device < 0 || gp_in_host_function()) return false;
    return gp_push(&gp.primaries[device]) == GP_SUCCESS;
}

void gp_end_borrowing(const bool *borrowed) {
    if (*borrowed) depth--;
}

struct gp_context *gp_pop(void) { return depth > 0 ? stack[--depth] : NULL; }
