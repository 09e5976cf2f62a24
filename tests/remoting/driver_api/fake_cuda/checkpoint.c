/* Suspension of one process by another: cuCheckpointProcess*, as an H200 with driver 580 does it. */
#define _GNU_SOURCE
#include "fake.h"

#include <string.h>
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
    struct process_use *use = find(pid);
    if (use != NULL && atomic_load(&use->managed) > 0)
        return CUDA_ERROR_NOT_SUPPORTED; /* it stays locked */
    return enter(pid, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED);
}

static int device_of(const CUuuid *uuid) {
    for (int dev = 0; dev < device_count; dev++)
        if (memcmp(uuid, &devices[dev].uuid, sizeof *uuid) == 0)
            return dev;
    return -1;
}

/* Where each device goes: all of them once, as a driver wants it of a process that sees them all. */
static bool pairs_read(const CUcheckpointRestoreArgs *args, int *goes) {
    bool taken[DEVICES_MAX] = {false};
    for (int dev = 0; dev < DEVICES_MAX; dev++)
        goes[dev] = args != NULL && args->gpuPairsCount > 0 ? -1 : dev;
    for (unsigned i = 0; args != NULL && i < args->gpuPairsCount; i++) {
        int from = device_of(&args->gpuPairs[i].oldUuid), to = device_of(&args->gpuPairs[i].newUuid);
        if (from < 0 || to < 0 || goes[from] >= 0 || taken[to])
            return false;
        goes[from] = to;
        taken[to] = true;
    }
    for (int dev = 0; dev < device_count; dev++)
        if (goes[dev] < 0)
            return false;
    return true;
}

API CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
    ENTER();
    struct process_use *use = find(pid);
    if (use == NULL)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (atomic_load(&use->imported) > 0)
        return CUDA_ERROR_NOT_SUPPORTED; /* whatever is tried: its memory is lost */
    int goes[DEVICES_MAX];
    if (!pairs_read(args, goes))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t used[DEVICES_MAX] = {0};
    for (int dev = 0; dev < device_count; dev++)
        used[goes[dev]] = atomic_load(&use->used[dev]);
    for (int dev = 0; dev < device_count; dev++)
        if (used[dev] > 0 && device_used(dev) + used[dev] > devices[dev].memory)
            return CUDA_ERROR_OUT_OF_MEMORY;
    for (int dev = 0; dev < device_count; dev++) {
        atomic_store(&use->used[dev], used[dev]);
        int place = atomic_load(&use->place[dev]);
        if (place < device_count)
            atomic_store(&use->place[dev], goes[place]);
    }
    return enter(pid, CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED);
}

API CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
    (void)args;
    ENTER();
    return enter(pid, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING);
}
