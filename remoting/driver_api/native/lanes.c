// The worker's end of lanes: further connections of a session for large copies. lanes.h says how
// they work; Python decides which connections there may be.
#define _GNU_SOURCE
#include "lanes.h"

#include <stdlib.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

API bool gpupool_lanes_encrypt(void);
bool gpupool_lanes_encrypt(void) { return gp_tls_possible(); }

API struct gp_lanes *gpupool_lanes_new(bool sends, int most, uint64_t ahead_max);
struct gp_lanes *gpupool_lanes_new(bool sends, int most, uint64_t ahead_max) {
    return gp_lanes_new(sends, most, ahead_max);
}

// Take over a connection; with an identity its client has said nothing yet, and without one it has
// proven itself. False where it does not, and then the connection is closed.
API bool gpupool_lanes_add(struct gp_lanes *lanes, int socket, const struct gp_identity *identity,
                           const uint8_t ticket[32]);
bool gpupool_lanes_add(struct gp_lanes *lanes, int socket, const struct gp_identity *identity,
                       const uint8_t ticket[32]) {
    struct gp_link link = {.socket = socket};
    const uint8_t accepted = 1;
    struct iovec part = {(void *)(uintptr_t)&accepted, 1};
    gp_link_moved(&link);
    bool good = identity == NULL || gp_tls_accept(&link, identity, ticket);
    // Its buffer is empty, so the byte has room; the set may send behind it at once.
    good = good && gp_send(&link, &part, 1) == 1 && gp_lanes_add(lanes, &link);
    if (good) return true;
    gp_tls_end(&link);
    close(socket);
    return false;
}

API int gpupool_lanes_send(struct gp_lanes *lanes, const void *bytes, uint64_t size);
int gpupool_lanes_send(struct gp_lanes *lanes, const void *bytes, uint64_t size) {
    int over;
    gp_lanes_send(lanes, bytes, size);
    while ((over = gp_lanes_wait(lanes, 1000)) == 0) continue;
    return over;
}

API int gpupool_lanes_receive(struct gp_lanes *lanes, void *target, uint64_t offset, uint64_t size);
int gpupool_lanes_receive(struct gp_lanes *lanes, void *target, uint64_t offset, uint64_t size) {
    int over;
    gp_lanes_receive(lanes, target, offset, size);
    while ((over = gp_lanes_wait(lanes, 1000)) == 0) continue;
    return over;
}

API void gpupool_lanes_end(struct gp_lanes *lanes);
void gpupool_lanes_end(struct gp_lanes *lanes) { gp_lanes_end(lanes); }
