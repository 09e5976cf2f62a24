// Devices: everything here is answered from the snapshot that came at the start.
#define _GNU_SOURCE
#include "core.h"
#include "json.h"
#include "link.h"

#include <stdio.h>
#include <stdlib.h>

#define PCI_DOMAIN 50  // CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID

struct wire_device {
    char name[256];
    unsigned char uuid[16];
    int32_t pci[3];
    uint32_t links;
    uint64_t memory, granularity[2];
    int32_t priorities[2];
    unsigned char peers[GP_SERVER_DEVICES_MAX];
    int32_t attributes[GP_ATTRIBUTES_MAX];
    unsigned char known[GP_ATTRIBUTES_MAX];
};

struct wire_snapshot {
    uint32_t protocol, version, devices, errors;
};

// --- the snapshot ---------------------------------------------------------------------------------

// One device of the lease; empty where its server is of no use to this process.
struct candidate {
    struct wire_device device;
    int server, index;
};

static struct candidate *candidates;
static int candidate_count;

static void write_uuid(char text[GP_UUID_TEXT], const unsigned char uuid[16]) {
    size_t used = (size_t)snprintf(text, GP_UUID_TEXT, "GPU-");
    for (int at = 0; at < 16; at++) {
        if (at == 4 || at == 6 || at == 8 || at == 10) text[used++] = '-';
        used += (size_t)snprintf(text + used, GP_UUID_TEXT - used, "%02x", uuid[at]);
    }
}

static void take_device(struct gp_device *device, const struct candidate *candidate,
                        const struct gp_names *names) {
    const struct wire_device *from = &candidate->device;
    device->names = *names;
    memcpy(device->name, from->name, sizeof device->name);
    device->name[sizeof device->name - 1] = '\0';
    memcpy(device->uuid, from->uuid, sizeof device->uuid);
    memcpy(device->pci, from->pci, sizeof device->pci);
    device->links = (int)from->links;
    device->memory = from->memory;
    memcpy(device->granularity, from->granularity, sizeof device->granularity);
    memcpy(device->priorities, from->priorities, sizeof device->priorities);
    memcpy(device->attributes, from->attributes, sizeof device->attributes);
    memcpy(device->known, from->known, sizeof device->known);
    memcpy(device->peers, from->peers, sizeof device->peers);
    device->pci[0] = gp_pci_domain(device->pci[0], candidate->server);
    device->attributes[PCI_DOMAIN] = device->pci[0];
    device->server = candidate->server;
    device->index = candidate->index;
}

void gp_skip_devices(int count) {
    if (count == 0) return;
    struct candidate *grown = realloc(candidates, (size_t)(candidate_count + count) * sizeof *grown);
    if (grown == NULL) return;
    candidates = grown;
    memset(candidates + candidate_count, 0, (size_t)count * sizeof *grown);
    candidate_count += count;
}

int gp_read_snapshot(int server, const unsigned char *bytes, size_t size) {
    struct wire_snapshot head;
    if (bytes == NULL || size < sizeof head) return GP_UNKNOWN;
    memcpy(&head, bytes, sizeof head);
    bytes += sizeof head;
    size -= sizeof head;
    if (head.protocol != GP_PROTOCOL || head.devices > GP_SERVER_DEVICES_MAX) {
        gp_say("the server has another version of the CUDA door: install the same version of gpupool "
               "on this machine and on the servers");
        return GP_UNKNOWN;
    }
    if (size < head.devices * sizeof(struct wire_device)) return GP_UNKNOWN;
    int first = candidate_count;
    gp_skip_devices((int)head.devices);
    if (candidate_count != first + (int)head.devices) return GP_OUT_OF_MEMORY;
    for (int at = 0; at < (int)head.devices; at++) {
        struct candidate *made = &candidates[first + at];
        memcpy(&made->device, bytes + (size_t)at * sizeof made->device, sizeof made->device);
        made->server = server;
        made->index = at;
    }
    // What differs between servers is what the oldest driver has; errors are the same everywhere.
    if (gp.version == 0) gp.version = GP_CUDA_INTERFACE;
    if ((int)head.version < gp.version) gp.version = (int)head.version;
    size_t used = head.devices * sizeof(struct wire_device);
    const unsigned char *end = bytes + size;
    const unsigned char *rest = gp_take_errors(bytes + used, end, head.errors);
    return rest != NULL && gp_read_known(server, rest, (size_t)(end - rest)) ? GP_SUCCESS
                                                                             : GP_UNKNOWN;
}

// How fast a device computes: multiprocessors, what each adds in a cycle, and their clock.
static int64_t speed_of(const struct wire_device *device) {
    const int32_t *has = device->attributes;
    int version = has[75] * 10 + has[76];
    bool small = version == 60 || (version >= 70 && version <= 80);
    return (int64_t)has[16] * (small ? 64 : 128) * has[13];
}

int gp_choose_devices(void) {
    static struct gp_names names[GP_DEVICES_MAX];
    int64_t speeds[GP_DEVICES_MAX] = {0};
    int chosen[GP_DEVICES_MAX], order[GP_DEVICES_MAX];
    int count = candidate_count < GP_DEVICES_MAX ? candidate_count : GP_DEVICES_MAX;
    for (int at = 0; at < count; at++) speeds[at] = speed_of(&candidates[at].device);
    gp_order_devices(speeds, count, order);
    for (int at = 0; at < count; at++) {
        // What gpupool run has said is of all devices of the lease, in the same order.
        if (gp_named_count == candidate_count) names[at] = gp_named[order[at]];
        write_uuid(names[at].uuid, candidates[order[at]].device.uuid);
    }
    int found = gp_choose_visible(names, count, chosen);
    bool differ = false;
    for (int at = 0; at < found; at++) {
        const struct candidate *candidate = &candidates[order[chosen[at]]];
        if (candidate->device.memory == 0) break;  // a server that was left out after all
        take_device(&gp.devices[at], candidate, &names[chosen[at]]);
        differ |= candidate->server != gp.devices[0].server;
        gp_begin_context(&gp.primaries[at], at);
        gp.primaries[at].primary = true;
        gp.device_count = at + 1;
    }
    gp_several = differ;
    free(candidates);
    candidates = NULL;
    return found < 0 ? GP_INVALID_DEVICE : GP_SUCCESS;
}

// --- devices --------------------------------------------------------------------------------------

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

GP_EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    return gp_device_attribute(value, attribute, device);
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
    if (value == NULL || device == peer) return GP_INVALID_VALUE;
    GP_CHECK(gp_check_device(device));
    GP_CHECK(gp_check_device(peer));
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

GP_EXPORT int cuProfilerStart(void) { return gp_ready(); }

GP_EXPORT int cuProfilerStop(void) { return gp_ready(); }

// --- for libnvidia-ml.so.1, which is a library of its own -----------------------------------------

// What cuMemGetInfo gives on the device of this UUID; only where this process has it in use.
GP_EXPORT int cuGpupoolMemGetInfo(const char *uuid, uint64_t *left, uint64_t *total) {
    GP_CHECK(gp_ready());
    for (int at = 0; at < gp.device_count; at++) {
        if (!gp_is_named(&gp.devices[at].names, uuid)) continue;
        bool borrowed = gp_borrow_context(at);
        uint64_t reply[2] = {0};
        int status = gp_call(GP_MEMORY_INFO, NULL, 0, reply, sizeof reply);
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
