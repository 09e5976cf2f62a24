/* The devices: how many, what they say about themselves, and how much of their memory is used. */
#define _GNU_SOURCE
#include "fake.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct device devices[DEVICES_MAX];
int device_count;

struct process_use *own_use;
static bool shared_use;

/* What an H200 SXM answers, as far as programs ask; the rest of the attributes are 0. */
static const int attributes[][2] = {
    {1, 1024},      {2, 1024},       {3, 1024},      {4, 64},        {5, 2147483647},
    {6, 65535},     {7, 65535},      {8, 49152},     {9, 65536},     {10, 32},
    {11, 2147483647}, {12, 65536},   {13, 1980000},  {14, 512},      {15, 1},
    {16, 132},      {17, 0},         {18, 0},        {19, 1},        {20, 0},
    {21, 131072},   {22, 131072},    {23, 65536},    {24, 16384},    {25, 16384},
    {26, 16384},    {27, 32768},     {28, 32768},    {29, 2048},     {30, 512},
    {31, 1},        {32, 1},         {35, 0},        {36, 3201000},  {37, 6144},
    {38, 62914560}, {39, 2048},      {40, 3},        {41, 1},        {42, 32768},
    {43, 2048},     {45, 32768},     {46, 32768},    {47, 8192},     {48, 8192},
    {49, 32768},    {51, 32},        {52, 32768},    {53, 32768},    {54, 2046},
    {55, 32768},    {56, 131072},    {57, 65536},    {58, 16384},    {59, 16384},
    {60, 16384},    {61, 32768},     {62, 2048},     {63, 32768},    {64, 32768},
    {65, 2048},     {66, 32768},     {67, 32768},    {68, 2046},     {69, 268435456},
    {70, 131072},   {71, 65000},     {72, 2097120},  {73, 32768},    {74, 32768},
    {75, 9},        {76, 0},         {77, 32768},    {78, 1},        {79, 1},
    {80, 1},        {81, 233472},    {82, 65536},    {83, 1},        {84, 0},
    {86, 0},        {87, 2},         {88, 0},        {89, 1},        {90, 1},
    {91, 1},        {92, 0},         {93, 0},        {94, 0},        {95, 1},
    {96, 1},        {97, 232448},    {98, 0},        {99, 1},        {100, 0},
    {101, 0},       {102, 1},        {103, 1},       {104, 0},       {105, 0},
    {106, 32},      {107, 1},        {108, 41943040}, {109, 134213632}, {110, 1},
    {111, 1024},    {112, 1},        {113, 1},       {114, 1},       {115, 1},
    {116, 1},       {117, 1},        {118, 100},     {119, 9},       {120, 1},
    {121, 1},       {122, 1},        {123, 1},       {124, 1},       {125, 1},
    {126, 4},       {127, 1},        {128, 1},       {129, 1},       {130, 0},
    {131, -1},      {132, 0},        {133, 0},       {134, 0},       {136, 0},
    {137, 0},       {139, 0x233510de}, {140, 0x18be10de}, {141, 1},  {142, 1},
    {144, 1},       {145, 1},
};

static size_t size_from(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    if (text == NULL || *text == '\0')
        return otherwise;
    char *end = NULL;
    size_t value = strtoull(text, &end, 10);
    switch (*end) {
    case 'k': case 'K': return value * KIB;
    case 'm': case 'M': return value * MIB;
    case 'g': case 'G': return value * GIB;
    default: return value;
    }
}

static int fastest; /* the ordinal of the device with twice the clock; -1 for none */

/* Device i of server s is GPU-fa4e0000-0000-4000-8000-00000000ss0i at 0000:(1b + 0x10 i):00. */
static void device_describe(struct device *device, int ordinal, size_t memory) {
    static const unsigned char first[16] = {0xfa, 0x4e, 0, 0, 0, 0, 0x40, 0, 0x80};
    memcpy(device->uuid.bytes, first, 16);
    device->uuid.bytes[14] = (char)size_from("FAKE_CUDA_SERVER", 0);
    device->uuid.bytes[15] = (char)ordinal;
    device->ordinal = ordinal;
    device->pci_bus = 0x1b + 0x10 * ordinal;
    device->memory = memory;
}

static bool uuid_matches(int ordinal, const char *wanted) {
    struct device device = {0};
    char text[64];
    device_describe(&device, ordinal, 0);
    const unsigned char *b = (const unsigned char *)device.uuid.bytes;
    snprintf(text, sizeof text,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
    return strncmp(text, wanted, strlen(wanted)) == 0;
}

/* One entry of CUDA_VISIBLE_DEVICES; -1 ends the list, as an invalid entry does in CUDA. */
static int visible_ordinal(const char *entry, int present) {
    if (strncmp(entry, "GPU-", 4) == 0) {
        for (int i = 0; i < present; i++)
            if (uuid_matches(i, entry))
                return i;
        return -1;
    }
    char *end = NULL;
    long ordinal = strtol(entry, &end, 10);
    return end != entry && ordinal >= 0 && ordinal < present ? (int)ordinal : -1;
}

void devices_open(void) {
    int present = (int)size_from("FAKE_CUDA_DEVICES", 1);
    size_t memory = size_from("FAKE_CUDA_MEMORY", 150754820096u);
    if (present > DEVICES_MAX)
        present = DEVICES_MAX;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char *text = visible ? strdup(visible) : NULL, *save = NULL;
    if (text == NULL)
        for (int i = 0; i < present; i++)
            device_describe(&devices[device_count++], i, memory);
    for (char *one = text ? strtok_r(text, ",", &save) : NULL; one && device_count < DEVICES_MAX;
         one = strtok_r(NULL, ",", &save)) {
        int ordinal = visible_ordinal(one, present);
        if (ordinal < 0)
            break;
        device_describe(&devices[device_count++], ordinal, memory);
    }
    free(text);
    for (int i = 0; i < device_count; i++) {
        devices[i].primary = context_primary(i);
        devices[i].default_pool = devices[i].current_pool = pool_new(i);
    }
    shared_use = getenv("FAKE_CUDA_CONTROL") != NULL;
    const char *clock = getenv("FAKE_CUDA_FASTEST");
    fastest = clock != NULL ? atoi(clock) : -1;
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (connections != NULL)
        fprintf(stderr, "fake CUDA driver: %s connections\n", connections);
}

/* ---- memory in use: of every live process that maps the same control file ---- */

struct process_use *use_slot(void) {
    if (own_use != NULL)
        return own_use;
    for (unsigned i = 0; i < PROCESSES_MAX && own_use == NULL; i++) {
        struct process_use *use = &control->processes[i];
        int32_t pid = atomic_load(&use->pid);
        bool dead = pid == 0 || (kill(pid, 0) != 0 && errno == ESRCH);
        if (!dead || !atomic_compare_exchange_strong(&use->pid, &pid, (int32_t)getpid()))
            continue;
        for (int dev = 0; dev < DEVICES_MAX; dev++)
            atomic_store(&use->used[dev], 0), atomic_store(&use->place[dev], dev);
        atomic_store(&use->managed, 0), atomic_store(&use->imported, 0);
        atomic_store(&use->state, CU_PROCESS_STATE_RUNNING);
        own_use = use;
    }
    return own_use;
}

int device_place(int dev) {
    int ordinal = devices[dev].ordinal;
    return own_use != NULL ? atomic_load(&own_use->place[ordinal]) : ordinal;
}

size_t device_used(int dev) {
    size_t used = atomic_load(&devices[dev].used);
    for (unsigned i = 0; shared_use && i < PROCESSES_MAX; i++) {
        struct process_use *use = &control->processes[i];
        int32_t pid = atomic_load(&use->pid);
        if (pid == 0 || use == own_use ||
            atomic_load(&use->state) == CU_PROCESS_STATE_CHECKPOINTED || (kill(pid, 0) != 0 && errno == ESRCH))
            continue;
        used += atomic_load(&use->used[device_place(dev)]);
    }
    return used;
}

static pthread_mutex_t charge_lock = PTHREAD_MUTEX_INITIALIZER;

static void use_publish(int dev) {
    struct process_use *use = shared_use ? use_slot() : NULL;
    if (use != NULL)
        atomic_store(&use->used[device_place(dev)], atomic_load(&devices[dev].used));
}

CUresult device_charge(int dev, size_t bytes) {
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&charge_lock);
    size_t used = device_used(dev);
    if (bytes <= devices[dev].memory && used <= devices[dev].memory - bytes) {
        atomic_fetch_add(&devices[dev].used, bytes);
        use_publish(dev);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&charge_lock);
    return result;
}

void device_refund(int dev, size_t bytes) {
    pthread_mutex_lock(&charge_lock);
    atomic_fetch_sub(&devices[dev].used, bytes);
    use_publish(dev);
    pthread_mutex_unlock(&charge_lock);
}

/* ---- queries ---- */

#define REQUIRE_DEVICE(dev)                                                                        \
    do {                                                                                           \
        if ((dev) < 0 || (dev) >= device_count)                                                    \
            return CUDA_ERROR_INVALID_DEVICE;                                                      \
    } while (0)

API CUresult cuDeviceGetCount(int *count) {
    ENTER();
    REQUIRE(count != NULL);
    *count = device_count;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER();
    REQUIRE(device != NULL);
    REQUIRE_DEVICE(ordinal);
    *device = ordinal;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int len, CUdevice dev) {
    ENTER();
    REQUIRE(name != NULL && len > 0);
    REQUIRE_DEVICE(dev);
    snprintf(name, (size_t)len, "NVIDIA H200 (fake)");
    return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
    ENTER();
    REQUIRE(bytes != NULL);
    REQUIRE_DEVICE(dev);
    *bytes = devices[dev].memory;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) {
    ENTER();
    REQUIRE(uuid != NULL);
    REQUIRE_DEVICE(dev);
    *uuid = devices[dev].uuid;
    uuid->bytes[15] = (char)device_place(dev); /* its place on the bus stays the first one's */
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev) {
    ENTER();
    REQUIRE(uuid != NULL);
    REQUIRE_DEVICE(dev);
    *uuid = devices[dev].uuid;
    uuid->bytes[15] = (char)device_place(dev); /* its place on the bus stays the first one's */
    return CUDA_SUCCESS;
}

int device_attribute(int dev, CUdevice_attribute attribute, int *value) {
    *value = 0;
    if ((int)attribute == 33)
        *value = devices[dev].pci_bus;
    else if ((int)attribute == 34)
        *value = devices[dev].pci_device;
    else if ((int)attribute == 50)
        *value = devices[dev].pci_domain;
    else if ((int)attribute == 85)
        *value = devices[dev].ordinal;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i][0] == (int)attribute)
            *value = attributes[i][1];
    if ((int)attribute == 13 && devices[dev].ordinal == fastest)
        *value *= 2;
    return (int)attribute >= 1 && (int)attribute <= 161;
}

API CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev) {
    ENTER();
    REQUIRE(pi != NULL);
    REQUIRE_DEVICE(dev);
    return device_attribute(dev, attrib, pi) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev) {
    ENTER();
    REQUIRE(major != NULL && minor != NULL);
    REQUIRE_DEVICE(dev);
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev) {
    ENTER();
    REQUIRE(pciBusId != NULL && len > 0);
    REQUIRE_DEVICE(dev);
    snprintf(pciBusId, (size_t)len, "%04x:%02x:%02x.0", (unsigned)devices[dev].pci_domain,
             (unsigned)devices[dev].pci_bus, (unsigned)devices[dev].pci_device);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId) {
    ENTER();
    REQUIRE(dev != NULL && pciBusId != NULL);
    unsigned domain = 0, bus = 0, slot = 0;
    if (sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        REQUIRE(sscanf(pciBusId, "%x:%x", &bus, &slot) == 2);
    }
    for (int i = 0; i < device_count; i++)
        if ((unsigned)devices[i].pci_bus == bus && (unsigned)devices[i].pci_domain == domain) {
            *dev = i;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev) {
    ENTER();
    REQUIRE(canAccessPeer != NULL);
    REQUIRE_DEVICE(dev);
    REQUIRE_DEVICE(peerDev);
    *canAccessPeer = dev != peerDev;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                     CUdevice dstDevice) {
    ENTER();
    REQUIRE(value != NULL && srcDevice != dstDevice);
    REQUIRE_DEVICE(srcDevice);
    REQUIRE_DEVICE(dstDevice);
    *value = (int)attrib == 1 ? 0 : 1; /* performance rank 0; access and atomics supported */
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev) {
    ENTER();
    REQUIRE(prop != NULL);
    REQUIRE_DEVICE(dev);
    *prop = (CUdevprop){.maxThreadsPerBlock = 1024,
                        .maxThreadsDim = {1024, 1024, 64},
                        .maxGridSize = {2147483647, 65535, 65535},
                        .sharedMemPerBlock = 49152,
                        .totalConstantMemory = 65536,
                        .SIMDWidth = 32,
                        .memPitch = 2147483647,
                        .regsPerBlock = 65536,
                        .clockRate = 1980000,
                        .textureAlign = 512};
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *maxWidthInElements, CUarray_format format,
                                                unsigned numChannels, CUdevice dev) {
    ENTER();
    (void)format;
    REQUIRE(maxWidthInElements != NULL && numChannels > 0);
    REQUIRE_DEVICE(dev);
    *maxWidthInElements = 268435456;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetExecAffinitySupport(int *pi, CUexecAffinityType type, CUdevice dev) {
    ENTER();
    (void)type;
    REQUIRE(pi != NULL);
    REQUIRE_DEVICE(dev);
    *pi = 0;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev) {
    ENTER();
    REQUIRE(pool_out != NULL);
    REQUIRE_DEVICE(dev);
    *pool_out = devices[dev].default_pool;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) {
    ENTER();
    REQUIRE(pool != NULL);
    REQUIRE_DEVICE(dev);
    *pool = devices[dev].current_pool;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
    ENTER();
    REQUIRE_DEVICE(dev);
    REQUIRE(IS(pool, MAGIC_POOL));
    devices[dev].current_pool = pool;
    return CUDA_SUCCESS;
}

/* ---- primary contexts ---- */

API CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
    ENTER();
    REQUIRE(pctx != NULL);
    REQUIRE_DEVICE(dev);
    CUcontext ctx = devices[dev].primary;
    devices[dev].primary_uses++;
    ctx->alive = true;
    ctx->flags = devices[dev].primary_flags;
    *pctx = ctx;
    return CUDA_SUCCESS;
}
