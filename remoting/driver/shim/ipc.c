// Sharing with other processes of the lease. What CUDA calls a handle is a token of the server's
// here, which the host of this lease knows and nobody else.
#define _GNU_SOURCE
#include "ipc.h"

#include <stdlib.h>
#include <unistd.h>

static const char magic[8] = "gpupool";

// CUipcMemHandle and CUipcEventHandle, which are passed by value.
struct ipc_handle {
    char magic[8];
    uint64_t token[GP_TOKEN_WORDS];
    char kind, rest[23];
};
_Static_assert(sizeof(struct ipc_handle) == 64, "as in cuda.h");

static void fill(struct ipc_handle *handle, char kind, const uint64_t token[GP_TOKEN_WORDS]) {
    memset(handle, 0, sizeof *handle);
    memcpy(handle->magic, magic, sizeof magic);
    memcpy(handle->token, token, sizeof handle->token);
    handle->kind = kind;
}

static bool is_ours(const struct ipc_handle *handle, char kind) {
    return memcmp(handle->magic, magic, sizeof magic) == 0 && handle->kind == kind;
}

// --- allocations ----------------------------------------------------------------------------------

GP_EXPORT int cuIpcGetMemHandle(struct ipc_handle *handle, uint64_t address) {
    GP_ENTER();
    struct gp_range range;
    if (handle == NULL || !gp_find_range(address, &range)) return GP_INVALID_VALUE;
    // Only memory of cuMemAlloc can be shared like this; pools' memory has a flag of its own.
    if (range.kind != GP_DEVICE_MEMORY || range.flags & 2) return GP_INVALID_VALUE;
    GP_ROUTE(range.device);
    uint64_t values[2] = {range.start, range.size}, token[GP_TOKEN_WORDS];
    GP_CHECK(gp_call(GP_IPC_EXPORT, values, 2, token, sizeof token));
    fill(handle, 'm', token);
    return GP_SUCCESS;
}

GP_EXPORT int cuIpcOpenMemHandle_v2(uint64_t *address, struct ipc_handle handle, unsigned flags) {
    GP_ENTER();
    if (address == NULL || flags > 1 || !is_ours(&handle, 'm')) return GP_INVALID_VALUE;
    uint64_t values[1 + GP_TOKEN_WORDS] = {flags}, reply[2] = {0};
    memcpy(values + 1, handle.token, sizeof handle.token);
    GP_CHECK(gp_call(GP_IPC_OPEN, values, 1 + GP_TOKEN_WORDS, reply, sizeof reply));
    struct gp_range range = {reply[0], reply[1], GP_SHARED_MEMORY, gp_current_device(), 0, 0, NULL};
    GP_CHECK(gp_add_range(range));
    *address = reply[0];
    return GP_SUCCESS;
}

GP_EXPORT int cuIpcOpenMemHandle(uint64_t *address, struct ipc_handle handle, unsigned flags) {
    return cuIpcOpenMemHandle_v2(address, handle, flags);
}

GP_EXPORT int cuIpcCloseMemHandle(uint64_t address) {
    GP_ENTER();
    struct gp_range range;
    GP_CHECK(gp_remove_range(address, &range));
    if (range.kind != GP_SHARED_MEMORY) {
        gp_add_range(range);
        return GP_INVALID_VALUE;
    }
    GP_ROUTE(range.device);
    uint64_t values[1] = {address};
    return gp_post(GP_IPC_CLOSE, values, 1);
}

// --- events ---------------------------------------------------------------------------------------

GP_EXPORT int cuIpcGetEventHandle(struct ipc_handle *handle, void *event) {
    GP_ENTER();
    GP_CHECK(gp_check(event, GP_EVENT));
    struct gp_handle *known = event;
    if (handle == NULL || !(known->flags & GP_INTERPROCESS)) return GP_INVALID_VALUE;
    GP_ON(event);
    gp_recorded_elsewhere(event);
    uint64_t values[1] = {known->id}, token[GP_TOKEN_WORDS];
    GP_CHECK(gp_call(GP_IPC_EXPORT_EVENT, values, 1, token, sizeof token));
    fill(handle, 'e', token);
    return GP_SUCCESS;
}

GP_EXPORT int cuIpcOpenEventHandle(void **event, struct ipc_handle handle) {
    GP_ENTER();
    if (event == NULL || !is_ours(&handle, 'e')) return GP_INVALID_VALUE;
    struct gp_handle *made = gp_make(GP_EVENT);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    made->flags = GP_INTERPROCESS | 2;  // CU_EVENT_DISABLE_TIMING, as every event of that kind
    gp_recorded_elsewhere(made);
    uint64_t values[1 + GP_TOKEN_WORDS] = {made->id};
    memcpy(values + 1, handle.token, sizeof handle.token);
    int status = gp_call(GP_IPC_OPEN_EVENT, values, 1 + GP_TOKEN_WORDS, NULL, 0);
    if (status != GP_SUCCESS) {
        gp_end(made);
        return status;
    }
    *event = made;
    return GP_SUCCESS;
}

// --- descriptors of physical memory ---------------------------------------------------------------
//
// A program may send them to others, which import what they stand for: files that hold a token.

int gp_make_descriptor(int *descriptor, const uint64_t token[GP_TOKEN_WORDS]) {
    struct ipc_handle handle;
    fill(&handle, 'p', token);
    int file = memfd_create("gpupool-memory", MFD_CLOEXEC);
    if (file < 0) return GP_OUT_OF_MEMORY;
    if (pwrite(file, &handle, sizeof handle, 0) != (ssize_t)sizeof handle) {
        close(file);
        return GP_OUT_OF_MEMORY;
    }
    *descriptor = file;
    return GP_SUCCESS;
}

int gp_read_descriptor(int descriptor, uint64_t token[GP_TOKEN_WORDS]) {
    struct ipc_handle handle;
    if (pread(descriptor, &handle, sizeof handle, 0) != (ssize_t)sizeof handle) {
        return GP_INVALID_VALUE;
    }
    if (!is_ours(&handle, 'p')) return GP_INVALID_VALUE;
    memcpy(token, handle.token, sizeof handle.token);
    return GP_SUCCESS;
}
