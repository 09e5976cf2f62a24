// NVML with two GPUs for tests: the second does not say who computed, nor how busy it was.
#include <stdlib.h>
#include <string.h>

struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct process { unsigned pid; unsigned long long used; unsigned gpu, compute; };
struct share { unsigned pid; unsigned long long time_us; unsigned sm, memory, encoder, decoder; };

static char gpus[2];

int nvmlInit_v2(void) { return getenv("FAKE_NVML_NO_DRIVER") ? 9 : 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &gpus[index]; return 0; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    strncpy(text, device == &gpus[0] ? "GPU-first" : "GPU-second", size);
    return 0;
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    strncpy(text, "NVIDIA Test", size);
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
    if (device != &gpus[0] || memory->version != (sizeof *memory | 2u << 24)) return 3;
    memory->total = 80ull << 30, memory->used = 20ull << 30;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    memory[0] = 40ull << 30, memory[1] = 30ull << 30, memory[2] = 10ull << 30;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    if (device != &gpus[0]) return 3;
    rates[0] = 37, rates[1] = 5;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *rows) {
    *count = 1;
    rows[0] = (struct process){.pid = (unsigned)atoi(getenv("FAKE_NVML_PID")), .used = 19ull << 30};
    return 0;
}
int nvmlDeviceGetProcessUtilization(void *device, struct share *rows, unsigned *count,
                                    unsigned long long since) {
    if (device != &gpus[0]) return 3;
    if (since >= 200) return 6;
    *count = 2;
    rows[0] = (struct share){.pid = (unsigned)atoi(getenv("FAKE_NVML_PID")), .time_us = 100, .sm = 30};
    rows[1] = (struct share){.pid = rows[0].pid, .time_us = 200, .sm = 40};
    return 0;
}
