// Waits for the GPU, after which the host and the GPU see each other's writes.
#include "hostmem.h"

int gp_synchronize(int op, uint64_t id) {
    // A kernel may wait for what the program has written to memory that both see.
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
    uint64_t values[1] = {id};
    int status = gp_call(op, values, 1, NULL, 0);
    if (status == GP_SUCCESS) gp_open_wanted();
    return status;
}

int gp_drain(const void *start, size_t size) {
    for (int at = 0; at < gp.server_count; at++) {
        if (!gp_awaits_download(at, start, size)) continue;
        // Of a server that is lost nothing comes any more, and the others go on.
        if (gp_several && gp_is_lost_at(at)) continue;
        GP_ROUTE(gp_first_device(at));
        GP_CHECK(gp_synchronize(GP_DRAIN, 0));
    }
    return GP_SUCCESS;
}
