/* Suspension of one process by another: cuCheckpointProcess*, as an H200 with driver 580 does it. */
#define _GNU_SOURCE
#include "fake.h"

#include <unistd.h>

void wait_while_locked(void) {
    while (own_use != NULL && atomic_load(&own_use->state) != CU_PROCESS_STATE_RUNNING)
        usleep(500);
}

static struct process_use *find(int pid) {
    for (unsigned i = 0; i < PROCESSES_MAX; i++)
        if (atomic_load(&control->processes[i].pid) == pid)
            return &control->processes[i];
    return NULL;
}

/* Goes from one state to another, or says that the process is in neither. */
static CUresult enter(int pid, CUprocessState from, CUprocessState to) {
    struct process_use *use = find(pid);
    if (use == NULL)
        return CUDA_ERROR_NOT_INITIALIZED;
    uint32_t state = from;
    bool done = atomic_compare_exchange_strong(&use->state, &state, (uint32_t)to);
    return done ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

API CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state) {
    ENTER();
    struct process_use *use = find(pid);
    if (use == NULL)
        return CUDA_ERROR_NOT_INITIALIZED;
    *state = (CUprocessState)atomic_load(&use->state);
    return CUDA_SUCCESS;
}

API CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
    ENTER();
    /* Streams that are held still stand for a kernel without an end. */
    if (atomic_load(&control->paused)) {
        usleep(args->timeoutMs * 1000);
        return CUDA_ERROR_NOT_READY;
    }
    return enter(pid, CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED);
}

API CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args) {
    (void)args;
    ENTER();
    return enter(pid, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED);
}

API CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
    (void)args;
    ENTER();
    struct process_use *use = find(pid);
    if (use == NULL)
        return CUDA_ERROR_OPERATING_SYSTEM;
    for (int dev = 0; dev < device_count; dev++) {
        size_t bytes = atomic_load(&use->used[devices[dev].ordinal]);
        if (bytes > 0 && device_used(dev) + bytes > devices[dev].memory)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return enter(pid, CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED);
}

API CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
    (void)args;
    ENTER();
    return enter(pid, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING);
}
