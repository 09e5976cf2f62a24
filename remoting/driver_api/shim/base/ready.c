// The preconditions of every call: the library is started, and a context is current.
#include "base.h"

int gp_ready(void) {
    if (__builtin_expect(__atomic_load_n(&gp_started, __ATOMIC_ACQUIRE) != 1, 0)) {
        return GP_NOT_INITIALIZED;
    }
    bool left = __atomic_load_n(&gp_servers_left, __ATOMIC_RELAXED) != 0;
    return __builtin_expect(left, 1) ? GP_SUCCESS : GP_DEVICE_UNAVAILABLE;
}

int gp_enter(void) {
    GP_CHECK(gp_ready());
    if (__builtin_expect(gp_current() != NULL, 1)) {
        return gp_several && gp_is_lost() ? GP_DEVICE_UNAVAILABLE : GP_SUCCESS;
    }
    // The thread of host functions never has a context.
    return gp_in_host_function() ? GP_NOT_PERMITTED : GP_INVALID_CONTEXT;
}
