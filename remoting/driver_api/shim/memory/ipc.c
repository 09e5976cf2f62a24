// Sharing with other processes of the lease. A handle of CUDA's is a token of the server's here,
// which only the host of this lease knows.
#define _GNU_SOURCE
#include "core.h"
#include "ipc.h"

#include <stdlib.h>
#include <unistd.h>

static const char magic[8] = "gpupool";

void gp_fill_ticket(struct gp_ticket *ticket, char kind, const uint64_t token[GP_TOKEN_WORDS]) {
    memset(ticket, 0, sizeof *ticket);
    memcpy(ticket->magic, magic, sizeof magic);
    memcpy(ticket->token, token, sizeof ticket->token);
    ticket->kind = kind;
}

bool gp_is_ticket(const struct gp_ticket *ticket, char kind) {
    return memcmp(ticket->magic, magic, sizeof magic) == 0 && ticket->kind == kind;
}

// Of the server that calls go to; a device that this process may not see has none, and is its first.
int gp_shared_device(uint64_t server_device) {
    for (int device = 0; device < gp.device_count; device++) {
        if (!gp_reaches(device)) continue;
        if ((uint64_t)gp_server_device(device) == server_device) return device;
    }
    return gp_first_device(gp_here());
}

// --- allocations ----------------------------------------------------------------------------------

GP_EXPORT int cuIpcGetMemHandle(struct gp_ticket *handle, uint64_t address) {
    GP_ENTER();
    struct gp_range range;
    if (handle == NULL || !gp_find_range(address, &range)) return GP_INVALID_VALUE;
    // Only memory of cuMemAlloc can be shared like this; pools' memory has a flag of its own.
    if (range.kind != GP_DEVICE_MEMORY || range.flags & GP_OF_POOL) return GP_INVALID_VALUE;
    GP_ROUTE(range.device);
    uint64_t token[GP_TOKEN_WORDS];
    gp_shares = 1;
    GP_CHECK(gp_call_ipc_export(range.start, range.size, token));
    gp_fill_ticket(handle, GP_SHARED_ALLOCATION, token);
    return GP_SUCCESS;
}

GP_EXPORT int cuIpcOpenMemHandle_v2(uint64_t *address, struct gp_ticket handle, unsigned flags) {
    GP_ENTER();
    if (address == NULL || flags > 1 || !gp_is_ticket(&handle, GP_SHARED_ALLOCATION)) return GP_INVALID_VALUE;
    uint64_t reply[2] = {0};
    gp_shares = 1;
    GP_CHECK(gp_call_ipc_open(flags, handle.token, reply));
    struct gp_range range = {reply[0], reply[1], GP_SHARED_MEMORY, gp_current_device(), 0, 0, NULL, false};
    GP_CHECK(gp_add_range(range));
    *address = reply[0];
    return GP_SUCCESS;
}

GP_ALIAS(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2);

GP_EXPORT int cuIpcCloseMemHandle(uint64_t address) {
    GP_ENTER();
    struct gp_range range;
    GP_CHECK(gp_remove_range(address, &range));
    if (range.kind != GP_SHARED_MEMORY) {
        gp_add_range(range);
        return GP_INVALID_VALUE;
    }
    GP_ROUTE(range.device);
    return gp_post_ipc_close(address);
}

// --- events ---------------------------------------------------------------------------------------

GP_EXPORT int cuIpcGetEventHandle(struct gp_ticket *handle, void *event) {
    GP_ENTER();
    GP_CHECK(gp_check(event, GP_EVENT));
    struct gp_handle *known = event;
    if (handle == NULL || !(known->flags & GP_INTERPROCESS)) return GP_INVALID_VALUE;
    GP_ON(event);
    gp_recorded_elsewhere(event);
    uint64_t token[GP_TOKEN_WORDS];
    gp_shares = 1;
    GP_CHECK(gp_call_ipc_export_event(known->id, token));
    gp_fill_ticket(handle, GP_SHARED_EVENT, token);
    return GP_SUCCESS;
}

GP_EXPORT int cuIpcOpenEventHandle(void **event, struct gp_ticket handle) {
    GP_ENTER();
    if (event == NULL || !gp_is_ticket(&handle, GP_SHARED_EVENT)) return GP_INVALID_VALUE;
    struct gp_handle *made = gp_make(GP_EVENT);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    made->flags = GP_INTERPROCESS | 2;  // CU_EVENT_DISABLE_TIMING, as every event of that kind
    gp_recorded_elsewhere(made);
    gp_shares = 1;
    int status = gp_call_ipc_open_event(made->id, handle.token);
    if (status != GP_SUCCESS) {
        gp_end(made);
        return status;
    }
    *event = made;
    return GP_SUCCESS;
}

// --- descriptors ----------------------------------------------------------------------------------
//
// A program may send them to others, which import what they stand for: files that hold a token.

int gp_make_descriptor(int *descriptor, char kind, const uint64_t token[GP_TOKEN_WORDS]) {
    struct gp_ticket ticket;
    gp_fill_ticket(&ticket, kind, token);
    int file = memfd_create("gpupool-memory", MFD_CLOEXEC);
    if (file < 0) return GP_OUT_OF_MEMORY;
    if (pwrite(file, &ticket, sizeof ticket, 0) != (ssize_t)sizeof ticket) {
        close(file);
        return GP_OUT_OF_MEMORY;
    }
    *descriptor = file;
    return GP_SUCCESS;
}

int gp_read_descriptor(int descriptor, char kind, uint64_t token[GP_TOKEN_WORDS]) {
    struct gp_ticket ticket;
    if (pread(descriptor, &ticket, sizeof ticket, 0) != (ssize_t)sizeof ticket) {
        return GP_INVALID_VALUE;
    }
    if (!gp_is_ticket(&ticket, kind)) return GP_INVALID_VALUE;
    memcpy(token, ticket.token, sizeof ticket.token);
    return GP_SUCCESS;
}
