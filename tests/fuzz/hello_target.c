// What a server says of its devices when a session starts, and what a program then asks.
#include "input.h"

#include "../../remoting/driver_api/shim/runtime/snapshot.c"
#include "no_link.h"

int cuDeviceGetName(char *name, int size, int device);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceGetP2PAttribute(int *value, int attribute, int one, int other);
int cuDeviceCanAccessPeer(int *can, int one, int other);
int cuDeviceGetPCIBusId(char *text, int size, int device);
int cuDeviceComputeCapability(int *major, int *minor, int device);
int cuDeviceTotalMem_v2(size_t *size, int device);
int cuGetErrorName(int code, const char **text);
int cuGetErrorString(int code, const char **text);

static void ask_device(int device) {
    char text[300];
    int value, other;
    size_t size;
    if (cuDeviceGetName(text, 1 + device * 20, device) == 0) use_bytes(text, strlen(text));
    if (cuDeviceGetPCIBusId(text, 16, device) == 0) use_bytes(text, strlen(text));
    for (int at = 0; at < GP_ATTRIBUTES_MAX + 2; at++) cuDeviceGetAttribute(&value, at, device);
    cuDeviceComputeCapability(&value, &other, device);
    cuDeviceTotalMem_v2(&size, device);
    cuDeviceCanAccessPeer(&value, device, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    memset(&gp, 0, sizeof gp);
    gp_several = false;
    gp_servers_left = gp_started = 1;
    free(candidates);
    candidates = NULL;
    candidate_count = 0;
    struct input input = {bytes, size};
    // Each server's part is as long as the first bytes say; a server may be left out.
    unsigned servers = 1 + take_byte(&input) % 3;
    for (unsigned server = 0; server < servers; server++) {
        if (take_byte(&input) == 0xff) {
            skip_devices(2);
            continue;
        }
        uint16_t part = 0;
        take_bytes(&input, &part, 2);
        size_t length = part < input.left && server + 1 < servers ? part : input.left;
        char *copy = exact_text(input.at, length);
        char *exact = malloc(length ? length : 1);
        if (exact == NULL) abort();
        memcpy(exact, copy, length);
        free(copy);
        take_bytes(&input, exact, length);
        read_snapshot((int)server, (unsigned char *)exact, length);
        free(exact);
    }
    gp.server_count = (int)servers;
    if (choose_devices() == GP_SUCCESS) {
        for (int at = 0; at < gp.device_count; at++) ask_device(at);
    }
    for (int code = 0; code < 1000; code += 37) {
        const char *text = NULL;
        if (cuGetErrorName(code, &text) == 0 && text != NULL) use_bytes(text, strlen(text));
        text = NULL;
        if (cuGetErrorString(code, &text) == 0 && text != NULL) use_bytes(text, strlen(text));
    }
    return 0;
}
