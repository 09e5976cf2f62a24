// What records weigh that are sent while a host function keeps its stream; host.c bounds their sum.
#include "runtime.h"
#include "managed.h"

// An H200's driver (580) blocks its caller at 56 rounds of a host function and 5 launches: a function
// between others takes 13.2.
#define HOST_CALL_WEIGHT 16
#define STAGING_SIZE (4u << 20)  // of the worker's 64 buffers, one or more for each upload

bool gp_keeps_managed(void) { return __atomic_load_n(&gp_managed_count, __ATOMIC_RELAXED) != 0; }

// How much of a stream's queue a record takes, or GP_ALONE when it may wait for the GPU itself. An H200's
// driver (580) makes memory, pools and mappings while kernels run.
uint64_t gp_weight_of(int op, uint64_t bulk) {
    switch (op) {
        case GP_QUERY_STREAM: case GP_QUERY_EVENT: case GP_DRAIN: case GP_TENSOR_MAP: case GP_SETTLE:
        case GP_MEMORY_INFO: case GP_FUNCTION_ATTRIBUTES: case GP_OCCUPANCY: case GP_MAP_FREE:
        case GP_SLOT_WRITE: case GP_SLOT_EARLY:
        case GP_CALL_cuStreamDestroy_v2:  // a thread may be joined by a function that is pending
            return 0;
        case GP_FREE:  // on a thread of its own, beside which the driver keeps copies
            return gp_keeps_managed() ? GP_ALONE : 1;
        case GP_SET_DEVICE: case GP_LAUNCH: case GP_LAUNCH_EX: case GP_FREE_ASYNC: case GP_ALLOCATE:
        case GP_RECORD_EVENT: case GP_WAIT_EVENT: case GP_BEGIN_CAPTURE: case GP_END_CAPTURE:
        case GP_CONTEXT_EVENT: case GP_STREAM_VALUES: case GP_COPY_3D: case GP_HOST_NODE: case GP_HOST_DONE:
        case GP_SYNC_STREAM: case GP_SYNC_EVENT: case GP_SYNC_DEVICE: case GP_END_EVENT:
        case GP_AWAIT_STREAM:
        case GP_BEGIN_CAPTURE_TO: case GP_CAPTURE_DEPENDENCIES: case GP_CAPTURE_COPY:
        case GP_GRAPH_CREATE: case GP_GRAPH_NODE: case GP_GRAPH_EDGES: case GP_GRAPH_READ:
        case GP_GRAPH_DESTROY: case GP_GRAPH_EXEC_DESTROY:  // which end behind their launches
        case GP_POOL_GET: case GP_POOL_SET: case GP_POOL_DEFAULT: case GP_POOL_CREATE:
        case GP_POOL_USE: case GP_POOL_SET_ACCESS: case GP_POOL_GET_ACCESS:
        case GP_VIRTUAL_CREATE: case GP_VIRTUAL_RESERVE: case GP_VIRTUAL_MAP: case GP_VIRTUAL_ACCESS:
            return 1;
        case GP_DOWNLOAD: case GP_COPY_OUT: case GP_ALLOCATE_ASYNC: case GP_SLOT_READ:
            return 2;
        case GP_HOST_CALL: return HOST_CALL_WEIGHT;
        case GP_GRAPH_LAUNCH: return 4;
        case GP_COPY_IN: return bulk == 0 ? 1 : 8 * (1 + bulk / STAGING_SIZE);
        default: return op >= GP_FIRST_CALL ? 4 : GP_ALONE;
    }
}
