// The start of a session: the devices of each server, and those of them that the program sees.
#define _GNU_SOURCE
#include "runtime.h"
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
    gp_make_visible(device->name, strlen(device->name));
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

static void skip_devices(int count) {
    if (count == 0) return;
    struct candidate *grown = realloc(candidates, (size_t)(candidate_count + count) * sizeof *grown);
    if (grown == NULL) return;
    candidates = grown;
    memset(candidates + candidate_count, 0, (size_t)count * sizeof *grown);
    candidate_count += count;
}

// Attributes that this library computes with. What no GPU has counts as none, so that nothing that a
// server says can overflow.
#define COMPUTED_MAX (1 << 24)
static const int COMPUTED[] = {13, 16, 39, 75, 76, 97};

static void bound_attributes(int32_t attributes[GP_ATTRIBUTES_MAX]) {
    for (size_t at = 0; at < sizeof COMPUTED / sizeof *COMPUTED; at++) {
        int32_t *value = &attributes[COMPUTED[at]];
        if (*value < 0 || *value > COMPUTED_MAX) *value = 0;
    }
}

static int read_snapshot(int server, const unsigned char *bytes, size_t size) {
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
    skip_devices((int)head.devices);
    if (candidate_count != first + (int)head.devices) return GP_OUT_OF_MEMORY;
    for (int at = 0; at < (int)head.devices; at++) {
        struct candidate *made = &candidates[first + at];
        memcpy(&made->device, bytes + (size_t)at * sizeof made->device, sizeof made->device);
        bound_attributes(made->device.attributes);
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

static int choose_devices(void) {
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
    gp_many = gp.device_count > 1;
    free(candidates);
    candidates = NULL;
    return found < 0 ? GP_INVALID_DEVICE : GP_SUCCESS;
}

static int start_server(struct gp_link *link) {
    struct gp_request hello = {.grows = true};
    int status = gp_wire_open(link, &hello);
    if (status == GP_SUCCESS) status = read_snapshot(link->server, hello.body, hello.length);
    free(hello.body);
    if (status == GP_SUCCESS) gp_wire_ask_records(link->server);
    return status == GP_SUCCESS ? gp_wire_run(link->server) : status;
}

int gp_start_servers(void) {
    for (int at = 0; at < gp.server_count; at++) {
        if (gp_links[at].socket < 0) {
            skip_devices(gp_links[at].devices);
        } else {
            GP_CHECK(start_server(&gp_links[at]));
        }
    }
    GP_CHECK(choose_devices());
    if (gp.device_count > 0) gp_wire_prefer(gp.devices[0].server);
    return GP_SUCCESS;
}
