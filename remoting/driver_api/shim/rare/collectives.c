// What libnccl.so.2 of ours (nccl/nccl.c) needs: a worker asked, and operations in a stream's order.
//
// The worker has the real NCCL. Operations are records like launches, so all that holds for the
// order of launches, events and captures holds for them.
#define _GNU_SOURCE
#include "core.h"

#define OPERATION_WORDS 9
enum { SOURCE = 2, TARGET = 3, STREAM = 8 };  // words of an operation

// The device that is current, or the first one; -1 where there is none.
GP_EXPORT int gpupool_nccl_device(void) {
    if (gp_ready() != GP_SUCCESS) return -1;
    int device = gp_current_device();
    return device >= 0 ? device : gp.device_count > 0 ? 0 : -1;
}

GP_EXPORT int gpupool_nccl_server(int device) {
    return gp_check_device(device) == GP_SUCCESS ? gp.devices[device].server : -1;
}

// Whether a server of the lease is lost: with it all of the lease is.
GP_EXPORT int gpupool_nccl_lost(void) {
    for (int at = 0; at < gp.device_count; at++) {
        if (gp_is_lost_at(gp.devices[at].server) && gp_first_device(gp.devices[at].server) >= 0) {
            return 1;
        }
    }
    return 0;
}

GP_EXPORT unsigned long long gpupool_nccl_number(void) { return gp_new_id(); }

// Ask the worker of a device; the answer's bytes go to reply. 0, or CUDA's error.
GP_EXPORT int gpupool_nccl_ask(int device, const uint64_t values[4], const void *data, size_t size,
                               void *reply, size_t capacity) {
    GP_CHECK(gp_check_device(device));
    GP_ENTER_OF(device);
    GP_ROUTE(device);
    if (!gp_knows(GP_NCCL_ASK)) return GP_NOT_SUPPORTED;
    struct gp_request request = {.body = reply, .capacity = capacity};
    return gp_exchange_nccl_ask(&request, values[0], values[1], values[2], values[3], data, size);
}

// Append one group of operations of devices of one server; their streams are the program's handles
// until then. They are executed together.
GP_EXPORT int gpupool_nccl_post(const int *devices, uint64_t *operations, unsigned count) {
    if (count == 0) return GP_SUCCESS;
    GP_CHECK(gp_check_device(devices[0]));
    GP_ENTER_OF(devices[0]);
    for (unsigned at = 0; at < count; at++) {
        GP_CHECK(gp_check_device(devices[at]));
        uint64_t *words = operations + (size_t)at * OPERATION_WORDS;
        void *stream = (void *)(uintptr_t)words[STREAM];
        int before = gp_routed;
        gp_routed = gp_several ? devices[at] : -1;
        struct gp_handle *handle = gp_stream_handle(stream);
        gp_routed = before;
        if (handle == NULL || handle->device != devices[at]) return GP_INVALID_HANDLE;
        words[STREAM] = handle->id;
        for (int end = SOURCE; end <= TARGET; end++) {
            if (gp_may_be_pinned(words[end])) gp_see(&words[end]);
        }
    }
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
    GP_ROUTE(devices[0]);
    if (!gp_knows(GP_NCCL_POST)) return GP_NOT_SUPPORTED;
    size_t bytes = (size_t)count * OPERATION_WORDS * sizeof(uint64_t);
    unsigned char *at = gp_open_nccl_post(count);
    if (at == NULL) return GP_INVALID_VALUE;
    memcpy(at, operations, bytes);
    gp_close();
    return GP_SUCCESS;
}
