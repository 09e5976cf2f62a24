// Attributes of functions.
#include "module.h"

#include <stdlib.h>

#define FUNCTION_ATTRIBUTES 16
#define MAX_DYNAMIC_SHARED 8  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

struct attributes {
    int status[FUNCTION_ATTRIBUTES], value[FUNCTION_ATTRIBUTES];
};

static int fetch_attributes(struct function *function, int device, struct attributes **found) {
    GP_CHECK(gp_check_device(device));
    GP_ROUTE(device);
    GP_CHECK(gp_function_here(function));
    pthread_mutex_lock(&function->lock);
    int status = GP_SUCCESS;
    if (function->attributes[device] == NULL) {
        struct attributes *made = calloc(1, sizeof *made);
        uint64_t place = (uint64_t)gp_server_device(device);
        status = made == NULL ? GP_OUT_OF_MEMORY
                              : gp_call_function_attributes(function->handle.id, place, made,
                                                            sizeof *made);
        if (status == GP_SUCCESS) {
            function->attributes[device] = made;
        } else {
            free(made);
        }
    }
    *found = function->attributes[device];
    pthread_mutex_unlock(&function->lock);
    return status;
}

static int get_attribute(int *value, int attribute, void *kernel, int device) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(kernel, GP_FUNCTION));
    if (value == NULL || attribute < 0 || attribute >= FUNCTION_ATTRIBUTES) return GP_INVALID_VALUE;
    struct attributes *known;
    GP_CHECK(fetch_attributes(kernel, device, &known));
    if (known->status[attribute] != GP_SUCCESS) return known->status[attribute];
    *value = known->value[attribute];
    return GP_SUCCESS;
}

int gp_function_attribute(int *value, int attribute, void *function) {
    GP_ENTER_ON(function);
    return get_attribute(value, attribute, function, gp_current_device());
}

static int set_attribute(int attribute, int value, void *kernel, int device) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(kernel, GP_FUNCTION));
    if (attribute < MAX_DYNAMIC_SHARED || attribute >= FUNCTION_ATTRIBUTES) return GP_INVALID_VALUE;
    struct function *function = kernel;
    struct attributes *known;
    GP_CHECK(fetch_attributes(function, device, &known));
    if (attribute == MAX_DYNAMIC_SHARED) {
        // Libraries find the limit by trying, so this one refusal cannot wait.
        int64_t limit = (int64_t)gp.devices[device].attributes[97] - known->value[1];
        if (value < 0 || value > limit) return GP_INVALID_VALUE;
    }
    pthread_mutex_lock(&function->lock);
    bool same = known->status[attribute] == GP_SUCCESS && known->value[attribute] == value;
    known->status[attribute] = GP_SUCCESS;
    known->value[attribute] = value;
    if (!same) gp_forget_occupancy(function);
    pthread_mutex_unlock(&function->lock);
    if (same) return GP_SUCCESS;
    gp_forget_clusters();
    GP_ROUTE(device);
    return gp_post_set_function_attribute(function->handle.id, gp_server_device(device), attribute,
                                          value);
}

GP_EXPORT int cuFuncSetAttribute(void *function, int attribute, int value) {
    GP_ENTER_ON(function);
    return set_attribute(attribute, value, function, gp_current_device());
}

GP_EXPORT int cuFuncSetSharedMemConfig(void *function, int config) {
    (void)config;
    GP_ENTER_ON(function);
    return gp_check(function, GP_FUNCTION);
}

GP_EXPORT int cuKernelSetCacheConfig(void *kernel, int config, int device) {
    GP_CHECK(gp_check_device(device));
    GP_ROUTE(device);
    GP_ENTER();
    GP_CHECK(gp_function_here(kernel));
    return gp_post_cuFuncSetCacheConfig(((struct gp_handle *)kernel)->id, config);
}

#define GP_FORWARDS_ATTRIBUTES
#include "generated_forwards.h"
