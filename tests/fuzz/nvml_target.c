// What NVML reads of gpupool run, and all that it then tells a program.
#define _GNU_SOURCE
#include "input.h"

#include <sys/socket.h>
#include <unistd.h>

static struct input input;

static ssize_t fake_recv(int fd, void *target, size_t size, int flags) {
    (void)fd, (void)flags;
    size_t part = size < input.left ? size : input.left;
    take_bytes(&input, target, part);
    return (ssize_t)part;
}

#define recv fake_recv
#define send(fd, bytes, size, flags) ((void)(fd), (void)(bytes), (ssize_t)(size))
#define socket(family, type, protocol) 1000
#define connect(fd, address, size) ((void)(address), 0)
#define setsockopt(fd, level, name, value, size) ((void)(value), 0)
#define close(fd) ((void)(fd))
#include "../../remoting/driver_api/nvml/nvml.c"
#undef send
#undef close

static void ask_all(struct device *device) {
    char text[96];
    unsigned number, pair[2], many = PROCESSES_MAX;
    int whole, minor;
    uint64_t memory[3], processes_old[PROCESSES_MAX][2];
    struct pci pci;
    struct pci_start start;
    struct process found[PROCESSES_MAX];
    if (nvmlDeviceGetName(device, text, sizeof text) == SUCCESS) use_bytes(text, strlen(text));
    if (nvmlDeviceGetUUID(device, text, 8) == SUCCESS) use_bytes(text, strlen(text));
    nvmlDeviceGetPciInfo_v2(device, &start);
    nvmlDeviceGetPciInfo_v3(device, &pci);
    nvmlDeviceGetCudaComputeCapability(device, &whole, &minor);
    nvmlDeviceGetArchitecture(device, &number);
    nvmlDeviceGetMemoryInfo(device, memory);
    nvmlDeviceGetUtilizationRates(device, pair);
    nvmlDeviceGetTemperature(device, 0, &number);
    nvmlDeviceGetPowerUsage(device, &number);
    nvmlDeviceGetComputeRunningProcesses_v3(device, &many, found);
    many = PROCESSES_MAX;
    nvmlDeviceGetComputeRunningProcesses(device, &many, processes_old);
    struct device *other;
    if (nvmlDeviceGetHandleByUUID(device->uuid, &other) != SUCCESS) abort();
    nvmlDeviceGetHandleByPciBusId_v2(pci.bus_id, &other);
    nvmlDeviceGetP2PStatus(device, other, 0, &whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static int prepared;
    char text[160];
    unsigned count = 0;
    int version;
    if (!prepared++) putenv("GPUPOOL_AGENT=/agent");
    input = (struct input){bytes, size};
    asked_ms = 0;
    references = 0;
    if (nvmlInit_v2() == SUCCESS) {
        asked_ms = now_ms() + 1000;  // asked once an execution
        nvmlDeviceGetCount_v2(&count);
        if (count > DEVICES_MAX) abort();
        nvmlSystemGetNVMLVersion(text, sizeof text);
        nvmlSystemGetDriverVersion(text, sizeof text);
        nvmlSystemGetCudaDriverVersion_v2(&version);
    }
    for (unsigned at = 0; at < count; at++) {
        struct device *device;
        if (nvmlDeviceGetHandleByIndex_v2(at, &device) == SUCCESS) ask_all(device);
    }
    nvmlShutdown();
    return 0;
}
