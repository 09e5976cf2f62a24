// The route of a call: the server of the lease that it is for.
//
// Identifiers are made here and are the same for all servers, contexts and ranges of addresses are
// kept here for all of them, so one call is sent to one server and no other has to know of it.
#include "base.h"

int gp_here(void) {
    int device = gp_current_device();
    if (device >= 0) return gp.devices[device].server;
    // Without a context most calls are refused; the others are the same on every server, so it is
    // the first one that is left.
    for (int at = 0; at < gp.device_count; at++) {
        if (!gp_is_lost_at(gp.devices[at].server)) return gp.devices[at].server;
    }
    return gp.device_count > 0 ? gp.devices[0].server : 0;
}

int gp_server_of(int device) { return device < 0 ? gp_here() : gp.devices[device].server; }

bool gp_reaches(int device) { return device < 0 || gp.devices[device].server == gp_here(); }

// On one server a call keeps the current context's device, as with one server alone.
int gp_route_to(int device) {
    int before = gp_routed;
    if (!gp_reaches(device) || (device >= 0 && gp_current_device() < 0)) gp_routed = device;
    return before;
}

int gp_route_to_stream(const void *stream) {
    int before = gp_routed, device = gp_handle_device(stream);
    if (device >= 0 && device != gp_current_device()) gp_routed = device;
    return before;
}

int gp_device_at(uint64_t address) {
    struct gp_range range;
    bool found = gp_find_range(address, &range) && range.kind != GP_HOST_MEMORY;
    return found ? range.device : -1;
}

int gp_handle_device(const void *handle) {
    const struct gp_handle *known = handle;
    if ((uintptr_t)known < 4096 || ((uintptr_t)known & 7) != 0) return -1;
    return known->magic == GP_MAGIC ? known->device : -1;
}

int gp_first_device(int server) {
    for (int at = 0; at < gp.device_count; at++) {
        if (gp.devices[at].server == server) return at;
    }
    return -1;
}

bool gp_is_lost(void) { return gp_is_lost_at(gp_here()); }
