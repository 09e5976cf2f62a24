// libnvidia-ml.so.1 inside of a lease: its devices are the partitions, as gpupool run knows them.
//
// Nothing here opens a session on a GPU. What a process of the lease has allocated is asked of its
// own CUDA library, where it is loaded; everything else of gpupool run, at most five times a second.
// Functions that are not here return NVML_ERROR_NOT_SUPPORTED (generated_refusals.c).
#define _GNU_SOURCE
#include "json.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define SAME(name, as) extern __typeof__(as) name __attribute__((visibility("default"), alias(#as)));
#define LINE_SIZE (64 * 1024)
#define DEVICES_MAX 64
#define PROCESSES_MAX 64
#define FRESH_MS 200
#define ANSWER_SECONDS 5
#define VERSION_MAX 10000
#define NUMBER_MAX 1e6  // of what is measured: more is no GPU's, and overflows in milliwatts

// nvmlReturn_t, by the names of NVML's reference.
enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

struct device {
    unsigned index;
    char name[96], uuid[96], bus_id[32], server[64];
    unsigned domain, bus, slot;
    int major, minor;
    uint64_t memory, used;
    // A fraction, Celsius, watts, megahertz, lanes; negative: not known.
    double utilization, temperature, power, power_limit, clock, width, width_max, generation, generation_max;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int references;
static struct device devices[DEVICES_MAX];
static unsigned device_count;
static unsigned processes[PROCESSES_MAX];
static unsigned process_count;
static char driver_version[80], cuda_version[16];
static int64_t asked_ms;

// --- what gpupool run says ------------------------------------------------------------------------

static int64_t now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static bool ask(char *line) {
    const char *path = getenv("GPUPOOL_AGENT"), *question = "{\"op\":\"nvml\"}\n";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path == NULL || *path == '\0' || strlen(path) >= sizeof address.sun_path) return false;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {.tv_sec = ANSWER_SECONDS};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    bool good = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                send(fd, question, strlen(question), MSG_NOSIGNAL) > 0;
    size_t used = 0;
    while (good && (used == 0 || line[used - 1] != '\n')) {
        ssize_t got = recv(fd, line + used, LINE_SIZE - 1 - used, 0);
        good = got > 0;
        used += good ? (size_t)got : 0;
    }
    if (good) line[used - 1] = '\0';
    if (fd >= 0) close(fd);
    return good;
}

static double number(const char *object, const char *key, double scale) {
    const char *value = gp_json_field(object, key);
    double found = value == NULL || *value == 'n' ? -1 : strtod(value, NULL) * scale;
    return found >= 0 && found <= NUMBER_MAX ? found : -1;
}

// Two numbers with a point between; zeros for what is no version.
static void take_version(const char *text, int *major, int *minor) {
    *major = *minor = 0;
    sscanf(text, "%d.%d", major, minor);
    bool sane = *major >= 0 && *major <= VERSION_MAX && *minor >= 0 && *minor <= VERSION_MAX;
    if (!sane) *major = *minor = 0;
}

static bool take_device(const char *object, struct device *device, unsigned index) {
    char capability[16] = "";
    *device = (struct device){.index = index};
    const char *memory = gp_json_field(object, "memory"), *used = gp_json_field(object, "used");
    if (memory == NULL || used == NULL) return false;
    device->memory = strtoull(memory, NULL, 10);
    device->used = strtoull(used, NULL, 10);
    device->utilization = number(object, "utilization", 1);
    device->temperature = number(object, "temperature_c", 1);
    device->power = number(object, "power_w", 1);
    device->power_limit = number(object, "power_limit_w", 1);
    device->clock = number(object, "sm_clock_hz", 1e-6);
    device->width = number(object, "pcie_width", 1);
    device->width_max = number(object, "pcie_width_max", 1);
    device->generation = number(object, "pcie_generation", 1);
    device->generation_max = number(object, "pcie_generation_max", 1);
    gp_json_string(gp_json_field(object, "server"), device->server, sizeof device->server);
    gp_json_string(gp_json_field(object, "capability"), capability, sizeof capability);
    gp_json_string(gp_json_field(object, "bus_id"), device->bus_id, sizeof device->bus_id);
    take_version(capability, &device->major, &device->minor);
    sscanf(device->bus_id, "%x:%x:%x", &device->domain, &device->bus, &device->slot);
    return gp_json_string(gp_json_field(object, "name"), device->name, sizeof device->name) &&
           gp_json_string(gp_json_field(object, "uuid"), device->uuid, sizeof device->uuid);
}

// With the lock held.
static int refresh(void) {
    static char line[LINE_SIZE];
    if (asked_ms != 0 && now_ms() - asked_ms < FRESH_MS) return SUCCESS;
    if (!ask(line)) return asked_ms ? SUCCESS : DRIVER_NOT_LOADED;
    const char *good = gp_json_field(line, "ok"), *at = gp_json_field(line, "devices");
    if (good == NULL || *good != 't' || at == NULL || *at != '[') {
        return asked_ms ? SUCCESS : DRIVER_NOT_LOADED;
    }
    gp_json_string(gp_json_field(line, "driver"), driver_version, sizeof driver_version);
    gp_json_string(gp_json_field(line, "cuda"), cuda_version, sizeof cuda_version);
    unsigned found = 0;
    char last[sizeof devices->server] = "";
    int server = 0;
    for (at = gp_json_blank(at + 1); *at == '{' && found < DEVICES_MAX;) {
        const char *emulated = gp_json_field(at, "emulated");
        struct device *made = &devices[found];
        if (!take_device(at, made, found)) return UNKNOWN;
        // Servers come one after the other, in CUDA's order.
        if (*last != '\0' && strcmp(last, made->server) != 0) server++;
        snprintf(last, sizeof last, "%s", made->server);
        made->domain = (unsigned)gp_pci_domain((int)made->domain, server);
        found += emulated == NULL || *emulated != 't';  // no CUDA device, so none here
        at = gp_json_blank(gp_json_value(at));
        if (*at == ',') at = gp_json_blank(at + 1);
    }
    device_count = found;
    process_count = 0;
    at = gp_json_field(line, "processes");
    for (at = at == NULL ? "" : at + 1; *at >= '0' && *at <= '9' && process_count < PROCESSES_MAX;) {
        char *end;
        processes[process_count++] = (unsigned)strtoul(at, &end, 10);
        at = *end == ',' ? end + 1 : end;
    }
    asked_ms = now_ms();
    return device_count ? SUCCESS : DRIVER_NOT_LOADED;
}

static int enter(void) {
    pthread_mutex_lock(&lock);
    int status = references > 0 ? refresh() : UNINITIALIZED;
    pthread_mutex_unlock(&lock);
    return status;
}

static bool is_device(const struct device *device) {
    return device >= devices && device < devices + device_count;
}

#define ENTER()                           \
    do {                                  \
        int enter_status = enter();       \
        if (enter_status != SUCCESS)      \
            return enter_status;          \
    } while (0)
#define ENTER_DEVICE(device, out)                                           \
    do {                                                                    \
        ENTER();                                                            \
        if (!is_device(device) || (out) == NULL) return INVALID_ARGUMENT;   \
    } while (0)

static int copy_text(const char *text, char *target, unsigned size) {
    if (target == NULL) return INVALID_ARGUMENT;
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(target, text);
    return SUCCESS;
}

// --- the library ----------------------------------------------------------------------------------

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    int status = refresh();
    if (status == SUCCESS) references++;
    pthread_mutex_unlock(&lock);
    return status;
}

EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

SAME(nvmlInit, nvmlInit_v2)

EXPORT int nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    int status = references > 0 ? SUCCESS : UNINITIALIZED;
    if (references > 0) references--;
    pthread_mutex_unlock(&lock);
    return status;
}

EXPORT const char *nvmlErrorString(int status) {
    switch (status) {
        case SUCCESS: return "Success";
        case UNINITIALIZED: return "Uninitialized";
        case INVALID_ARGUMENT: return "Invalid Argument";
        case NOT_SUPPORTED: return "Not Supported";
        case NOT_FOUND: return "Not Found";
        case INSUFFICIENT_SIZE: return "Insufficient Size";
        case DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case VERSION_MISMATCH: return "Argument Version Mismatch";
        default: return "Unknown Error";
    }
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned size) {
    ENTER();
    return copy_text(driver_version, version, size);
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned size) {
    char text[100];
    ENTER();
    snprintf(text, sizeof text, "%.3s.%s", cuda_version, driver_version);
    return copy_text(text, version, size);
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    int major, minor;
    ENTER();
    if (version == NULL) return INVALID_ARGUMENT;
    take_version(cuda_version, &major, &minor);
    *version = major * 1000 + minor * 10;
    return SUCCESS;
}

SAME(nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2)

// --- devices --------------------------------------------------------------------------------------

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER();
    if (count == NULL) return INVALID_ARGUMENT;
    *count = device_count;
    return SUCCESS;
}

SAME(nvmlDeviceGetCount, nvmlDeviceGetCount_v2)

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device) {
    ENTER();
    if (device == NULL || index >= device_count) return INVALID_ARGUMENT;
    *device = &devices[index];
    return SUCCESS;
}

SAME(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2)

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device) {
    ENTER();
    if (uuid == NULL || device == NULL) return INVALID_ARGUMENT;
    for (unsigned at = 0; at < device_count; at++) {
        if (strcasecmp(devices[at].uuid, uuid) != 0) continue;
        *device = &devices[at];
        return SUCCESS;
    }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct device **device) {
    unsigned domain = 0, bus = 0, slot = 0;
    ENTER();
    if (bus_id == NULL || device == NULL) return INVALID_ARGUMENT;
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(bus_id, "%x:%x", &bus, &slot) != 2) return INVALID_ARGUMENT;
    }
    for (unsigned at = 0; at < device_count; at++) {
        struct device *one = &devices[at];
        if (one->domain != domain || one->bus != bus || one->slot != slot) continue;
        *device = one;
        return SUCCESS;
    }
    return NOT_FOUND;
}

SAME(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2)

EXPORT int nvmlDeviceGetIndex(const struct device *device, unsigned *index) {
    ENTER_DEVICE(device, index);
    *index = device->index;
    return SUCCESS;
}

SAME(nvmlDeviceGetMinorNumber, nvmlDeviceGetIndex)

EXPORT int nvmlDeviceGetName(const struct device *device, char *name, unsigned size) {
    ENTER_DEVICE(device, name);
    return copy_text(device->name, name, size);
}

EXPORT int nvmlDeviceGetUUID(const struct device *device, char *uuid, unsigned size) {
    ENTER_DEVICE(device, uuid);
    return copy_text(device->uuid, uuid, size);
}

// Where nvmlPciInfo_t ends differs by version; all start alike.
struct pci_start {
    char bus_id[16];
    unsigned domain, bus, device, device_id;
};

struct pci {
    struct pci_start start;
    unsigned subsystem_id;
    char bus_id[32];
};

EXPORT int nvmlDeviceGetPciInfo_v2(const struct device *device, struct pci_start *pci) {
    ENTER_DEVICE(device, pci);
    *pci = (struct pci_start){"", device->domain, device->bus, device->slot, 0};
    snprintf(pci->bus_id, sizeof pci->bus_id, "%04X:%02X:%02X.0", device->domain & 0xffff,
             device->bus & 0xff, device->slot & 0xff);
    return SUCCESS;
}

SAME(nvmlDeviceGetPciInfo, nvmlDeviceGetPciInfo_v2)

EXPORT int nvmlDeviceGetPciInfo_v3(const struct device *device, struct pci *pci) {
    ENTER_DEVICE(device, pci);
    memset(pci, 0, sizeof *pci);
    nvmlDeviceGetPciInfo_v2(device, &pci->start);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", device->domain, device->bus,
             device->slot);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(const struct device *device, int *major,
                                              int *minor) {
    ENTER_DEVICE(device, major);
    if (minor == NULL) return INVALID_ARGUMENT;
    *major = device->major;
    *minor = device->minor;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetArchitecture(const struct device *device, unsigned *architecture) {
    ENTER_DEVICE(device, architecture);
    int capability = device->major * 10 + device->minor;
    *architecture = capability >= 100  ? 10  // Blackwell
                    : capability >= 90 ? 9   // Hopper
                    : capability == 89 ? 8   // Ada
                    : capability >= 80 ? 7   // Ampere
                    : capability >= 75 ? 6   // Turing
                    : capability >= 70 ? 5   // Volta
                                       : 0xffffffff;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMigMode(const struct device *device, unsigned *mode, unsigned *pending) {
    ENTER_DEVICE(device, mode);
    if (pending == NULL) return INVALID_ARGUMENT;
    *mode = *pending = 0;
    return SUCCESS;
}

// What there is none of, or whose state is 0; of processes with more parameters.
EXPORT int nvmlDeviceGetMaxMigDeviceCount(const struct device *device, unsigned *count) {
    ENTER_DEVICE(device, count);
    *count = 0;
    return SUCCESS;
}
SAME(nvmlDeviceIsMigDeviceHandle, nvmlDeviceGetMaxMigDeviceCount)
SAME(nvmlDeviceGetComputeMode, nvmlDeviceGetMaxMigDeviceCount)  // any number of processes
SAME(nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetMaxMigDeviceCount)
SAME(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDeviceGetMaxMigDeviceCount)
SAME(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDeviceGetMaxMigDeviceCount)
SAME(nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetMaxMigDeviceCount)
SAME(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlDeviceGetMaxMigDeviceCount)

EXPORT int nvmlDeviceGetP2PStatus(const struct device *one, const struct device *other, int what,
                                  int *status) {
    (void)what;
    ENTER_DEVICE(one, status);
    if (!is_device(other)) return INVALID_ARGUMENT;
    *status = strcmp(one->server, other->server) == 0 ? 0 : 5;  // 5: not supported
    return SUCCESS;
}

// --- NVLink ---------------------------------------------------------------------------------------
//
// By links NCCL knows how near GPUs are. What is behind one cannot be seen from here, which NVML says
// within virtual machines as well; NCCL takes it for a switch that connects all GPUs, and links are
// told only where CUDA says that they do.

static unsigned link_count(const struct device *device) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL) return 0;
    int (*ask)(const char *, int *), count = 0;
    void *found = dlsym(library, "cuGpupoolLinkCount");
    memcpy(&ask, &found, sizeof found);
    bool good = found != NULL && ask(device->uuid, &count) == 0;
    dlclose(library);
    return good ? (unsigned)count : 0;
}

EXPORT int nvmlDeviceGetNvLinkState(const struct device *device, unsigned link, int *state) {
    ENTER_DEVICE(device, state);
    if (link >= link_count(device)) return NOT_SUPPORTED;
    *state = 1;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetNvLinkCapability(const struct device *device, unsigned link, int capability,
                                         unsigned *has) {
    ENTER_DEVICE(device, has);
    if (link >= link_count(device)) return NOT_SUPPORTED;
    // Of the link itself, peer access and its atomics; 1, 3 and 4 are the host's memory and SLI.
    *has = capability == 0 || capability == 2 || capability == 5;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo(const struct device *device, unsigned link,
                                            struct pci_start *pci) {
    ENTER_DEVICE(device, pci);
    if (link >= link_count(device)) return NOT_SUPPORTED;
    *pci = (struct pci_start){"FFFFFFF:FFFF:FF", ~0u, ~0u, ~0u, ~0u};
    return SUCCESS;
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(const struct device *device, unsigned link,
                                               struct pci *pci) {
    ENTER_DEVICE(device, pci);
    if (link >= link_count(device)) return NOT_SUPPORTED;
    *pci = (struct pci){{"FFFFFFF:FFFF:FF", ~0u, ~0u, ~0u, ~0u}, ~0u, "FFFFFFF:FFFF:FF"};
    return SUCCESS;
}

// nvmlGpuFabricInfo_t; the later ones have the same fields behind their version, and health.
struct fabric {
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned state;
};

// Memory cannot be shared with other machines through a fabric. PyTorch's symmetric memory wants to be
// told so, and takes an error for one of its own.
EXPORT int nvmlDeviceGetGpuFabricInfo(const struct device *device, struct fabric *fabric) {
    ENTER_DEVICE(device, fabric);
    *fabric = (struct fabric){.state = 0};  // NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
    return SUCCESS;
}

EXPORT int nvmlDeviceGetGpuFabricInfoV(const struct device *device, unsigned *info) {
    ENTER_DEVICE(device, info);
    unsigned version = *info >> 24, size = *info & 0xffffff;
    if ((version != 2 || size != 36) && (version != 3 || size != 40)) return VERSION_MISMATCH;
    memset(info + 1, 0, size - sizeof *info);
    return SUCCESS;
}

// nvmlFieldValue_t.
struct field_value {
    unsigned field, scope;
    int64_t time_us, latency_us;
    int type, status;
    uint64_t value;
};

// For GPUs since Hopper NCCL asks in this way.
EXPORT int nvmlDeviceGetFieldValues(const struct device *device, int count,
                                    struct field_value *values) {
    ENTER_DEVICE(device, values);
    if (count < 1) return INVALID_ARGUMENT;
    unsigned links = link_count(device);
    for (int at = 0; at < count; at++) {
        struct field_value *value = &values[at];
        bool state = value->field == 165 && value->scope < links;  // ..._NVLINK_GET_STATE
        bool all = value->field == 91 && links > 0;                // ..._NVLINK_LINK_COUNT
        value->status = state || all ? SUCCESS : NOT_SUPPORTED;
        value->type = 1;  // unsigned
        value->value = state ? 1 : all ? links : 0;
    }
    return SUCCESS;
}

// --- what changes ---------------------------------------------------------------------------------

// What CUDA itself says, when this process has it loaded and in use; so both always agree.
static bool ask_cuda(const struct device *device, uint64_t *left, uint64_t *total) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL) return false;
    int (*memory_info)(const char *, uint64_t *, uint64_t *);
    void *found = dlsym(library, "cuGpupoolMemGetInfo");
    memcpy(&memory_info, &found, sizeof found);
    bool good = found != NULL && memory_info(device->uuid, left, total) == 0;
    dlclose(library);
    return good;
}

static void memory_of(const struct device *device, uint64_t *left, uint64_t *total) {
    if (ask_cuda(device, left, total)) return;
    *total = device->memory;
    *left = device->used < device->memory ? device->memory - device->used : 0;
}

EXPORT int nvmlDeviceGetMemoryInfo(const struct device *device, uint64_t memory[3]) {
    ENTER_DEVICE(device, memory);
    uint64_t left, total;
    memory_of(device, &left, &total);
    memory[0] = total;
    memory[1] = left;
    memory[2] = total - left;
    return SUCCESS;
}

struct memory {
    unsigned version;
    uint64_t total, reserved, free, used;
};

EXPORT int nvmlDeviceGetMemoryInfo_v2(const struct device *device, struct memory *memory) {
    ENTER_DEVICE(device, memory);
    if (memory->version != (sizeof *memory | 2u << 24)) return VERSION_MISMATCH;
    uint64_t left, total;
    memory_of(device, &left, &total);
    *memory = (struct memory){memory->version, total, 0, left, total - left};
    return SUCCESS;
}

static int tell(double value, double scale, unsigned *told) {
    if (value < 0) return NOT_SUPPORTED;
    *told = (unsigned)(value * scale + 0.5);
    return SUCCESS;
}

#define TELL(name, field, scale)                                   \
    EXPORT int name(const struct device *device, unsigned *told) { \
        ENTER_DEVICE(device, told);                                \
        return tell(device->field, scale, told);                   \
    }

TELL(nvmlDeviceGetPowerUsage, power, 1000)
TELL(nvmlDeviceGetPowerManagementLimit, power_limit, 1000)
TELL(nvmlDeviceGetEnforcedPowerLimit, power_limit, 1000)
TELL(nvmlDeviceGetCurrPcieLinkWidth, width, 1)
TELL(nvmlDeviceGetMaxPcieLinkWidth, width_max, 1)
TELL(nvmlDeviceGetCurrPcieLinkGeneration, generation, 1)
TELL(nvmlDeviceGetMaxPcieLinkGeneration, generation_max, 1)

EXPORT int nvmlDeviceGetUtilizationRates(const struct device *device, unsigned rates[2]) {
    ENTER_DEVICE(device, rates);
    int status = tell(device->utilization, 100, &rates[0]);
    if (status == SUCCESS) rates[1] = 0;  // of the memory controller: not measured
    return status;
}

EXPORT int nvmlDeviceGetTemperature(const struct device *device, int sensor,
                                    unsigned *temperature) {
    (void)sensor;
    ENTER_DEVICE(device, temperature);
    return tell(device->temperature, 1, temperature);
}

// Of NVML_CLOCK_GRAPHICS and NVML_CLOCK_SM, which are one; servers measure no others.
EXPORT int nvmlDeviceGetClockInfo(const struct device *device, int kind, unsigned *mhz) {
    ENTER_DEVICE(device, mhz);
    if (kind < 0 || kind > 3) return INVALID_ARGUMENT;
    return kind > 1 ? NOT_SUPPORTED : tell(device->clock, 1, mhz);
}

EXPORT int nvmlDeviceGetClock(const struct device *device, int kind, int of, unsigned *mhz) {
    ENTER_DEVICE(device, mhz);
    return of == 0 ? nvmlDeviceGetClockInfo(device, kind, mhz) : NOT_SUPPORTED;
}

// Processes of this lease, by their numbers on this machine.
struct process {
    unsigned pid;
    uint64_t memory;
    unsigned instance, compute_instance;
};

// What each process holds is known where it is the only one; otherwise NVML_VALUE_NOT_AVAILABLE, of which
// PyTorch's error for full memory makes 17179869184 GiB.
static uint64_t memory_of_each(const struct device *device) {
    uint64_t left, total;
    memory_of(device, &left, &total);
    return process_count == 1 ? total - left : UINT64_MAX;
}

static int count_processes(const struct device *device, unsigned *count, const void *found) {
    ENTER_DEVICE(device, count);
    unsigned room = *count;
    *count = process_count;
    if (room < process_count) return INSUFFICIENT_SIZE;
    return process_count > 0 && found == NULL ? INVALID_ARGUMENT : SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(const struct device *device, unsigned *count,
                                                   struct process *found) {
    int status = count_processes(device, count, found);
    for (unsigned at = 0; at < process_count && status == SUCCESS; at++) {
        found[at] = (struct process){processes[at], memory_of_each(device), UINT32_MAX, UINT32_MAX};
    }
    return status;
}

SAME(nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3)

EXPORT int nvmlDeviceGetComputeRunningProcesses(const struct device *device, unsigned *count,
                                                uint64_t (*found)[2]) {
    int status = count_processes(device, count, found);
    for (unsigned at = 0; at < process_count && status == SUCCESS; at++) {
        found[at][0] = processes[at];
        found[at][1] = memory_of_each(device);
    }
    return status;
}
