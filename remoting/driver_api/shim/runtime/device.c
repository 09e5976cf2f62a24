// Devices: everything here is answered from the snapshot that came at the start.
#define _GNU_SOURCE
#include "runtime.h"

#include <stdio.h>

GP_EXPORT int cuDeviceGet(int *device, int ordinal) {
    GP_CHECK(gp_ready());
    if (device == NULL) return GP_INVALID_VALUE;
    GP_CHECK(gp_check_device(ordinal));
    *device = ordinal;
    return GP_SUCCESS;
}

GP_EXPORT int cuDeviceGetCount(int *count) {
    GP_CHECK(gp_ready());
    if (count == NULL) return GP_INVALID_VALUE;
    *count = gp.device_count;
    return GP_SUCCESS;
}

GP_EXPORT int cuDeviceGetName(char *name, int size, int device) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    if (name == NULL || size <= 0) return GP_INVALID_VALUE;
    snprintf(name, (size_t)size, "%s", gp.devices[device].name);
    return GP_SUCCESS;
}

GP_EXPORT int cuDeviceGetUuid_v2(void *uuid, int device) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    if (uuid == NULL) return GP_INVALID_VALUE;
    memcpy(uuid, gp.devices[device].uuid, 16);
    return GP_SUCCESS;
}

GP_ALIAS(cuDeviceGetUuid, cuDeviceGetUuid_v2);

GP_EXPORT int cuDeviceGetLuid(char *luid, unsigned *mask, int device) {
    (void)luid, (void)mask;
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    return GP_NOT_SUPPORTED;  // LUIDs exist on Windows only
}

GP_EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    if (bytes == NULL) return GP_INVALID_VALUE;
    *bytes = gp.devices[device].memory;
    return GP_SUCCESS;
}

int gp_device_attribute(int *value, int attribute, int device) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    if (value == NULL || attribute < 1 || attribute >= GP_ATTRIBUTES_MAX) return GP_INVALID_VALUE;
    if (!gp.devices[device].known[attribute]) return GP_INVALID_VALUE;
    *value = gp.devices[device].attributes[attribute];
    return GP_SUCCESS;
}

GP_EXPORT int cuDeviceComputeCapability(int *major, int *minor, int device) {
    GP_CHECK(gp_device_attribute(major, 75, device));
    return gp_device_attribute(minor, 76, device);
}

GP_EXPORT int cuDeviceGetPCIBusId(char *text, int size, int device) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    if (text == NULL || size < 13) return GP_INVALID_VALUE;
    const int *pci = gp.devices[device].pci;
    snprintf(text, (size_t)size, "%04X:%02X:%02X.0", (unsigned)pci[0], (unsigned)pci[1],
             (unsigned)pci[2]);
    return GP_SUCCESS;
}

GP_EXPORT int cuDeviceGetByPCIBusId(int *device, const char *text) {
    GP_CHECK(gp_ready());
    if (device == NULL || text == NULL) return GP_INVALID_VALUE;
    unsigned domain = 0, bus, slot;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2) return GP_INVALID_VALUE;
    }
    for (int at = 0; at < gp.device_count; at++) {
        const int *pci = gp.devices[at].pci;
        if (pci[0] == (int)domain && pci[1] == (int)bus && pci[2] == (int)slot) {
            *device = at;
            return GP_SUCCESS;
        }
    }
    return GP_INVALID_DEVICE;
}

// GPUs of different servers have no access to each other's memory.
static int reaches_peer(int device, int peer) {
    const struct gp_device *from = &gp.devices[device], *to = &gp.devices[peer];
    return from->server == to->server && from->peers[to->index];
}

GP_EXPORT int cuDeviceCanAccessPeer(int *can, int device, int peer) {
    GP_CHECK(gp_ready());
    if (can == NULL) return GP_INVALID_VALUE;
    GP_CHECK(gp_check_device(device));
    GP_CHECK(gp_check_device(peer));
    *can = reaches_peer(device, peer);
    return GP_SUCCESS;
}

GP_EXPORT int cuDeviceGetP2PAttribute(int *value, int attribute, int device, int peer) {
    GP_CHECK(gp_ready());
    if (value == NULL) return GP_INVALID_VALUE;
    GP_CHECK(gp_check_device(device));
    GP_CHECK(gp_check_device(peer));
    if (device == peer) return GP_INVALID_DEVICE;
    int can = reaches_peer(device, peer);
    *value = attribute == 1 ? 0 : can;  // 1: performance rank; the others are capabilities
    return GP_SUCCESS;
}

GP_EXPORT int cuDeviceGetTexture1DLinearMaxWidth(size_t *width, int format, unsigned channels,
                                                 int device) {
    (void)format, (void)channels;
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    if (width == NULL) return GP_INVALID_VALUE;
    *width = (size_t)1 << 28;  // of every compute capability, CUDA C++ Programming Guide, table 21
    return GP_SUCCESS;
}

GP_EXPORT int cuDeviceGetExecAffinitySupport(int *supported, int type, int device) {
    (void)type;
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    if (supported == NULL) return GP_INVALID_VALUE;
    *supported = 0;
    return GP_SUCCESS;
}

// --- for libnvidia-ml.so.1, which is a library of its own -----------------------------------------

// What cuMemGetInfo gives on the device of this UUID; only where this process has it in use.
GP_EXPORT int cuGpupoolMemGetInfo(const char *uuid, uint64_t *left, uint64_t *total) {
    GP_CHECK(gp_ready());
    for (int at = 0; at < gp.device_count; at++) {
        if (!gp_is_named(&gp.devices[at].names, uuid)) continue;
        bool borrowed = gp_borrow_context(at);
        uint64_t reply[2] = {0};
        int status = gp_call_memory_info(reply);
        gp_end_borrowing(&borrowed);
        *left = reply[0];
        *total = reply[1];
        return status;
    }
    return GP_INVALID_DEVICE;
}

// How many NVLinks the device of this UUID has.
GP_EXPORT int cuGpupoolLinkCount(const char *uuid, int *count) {
    GP_CHECK(gp_ready());
    for (int at = 0; at < gp.device_count; at++) {
        if (!gp_is_named(&gp.devices[at].names, uuid)) continue;
        *count = gp_several ? 0 : gp.devices[at].links;  // none leads from server to server
        return GP_SUCCESS;
    }
    return GP_INVALID_DEVICE;
}

#define GP_FORWARDS_DEVICE
#include "generated_forwards.h"
