// What libnccl.so.2 of ours asks of the library, with no NCCL on the server. No argument.
#include <stdint.h>
#include <stdio.h>

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuCtxSynchronize(void);
int gpupool_nccl_device(void);
int gpupool_nccl_ask(int device, const uint64_t values[4], const void *data, size_t size,
                     void *reply, size_t capacity);
int gpupool_nccl_post(const int *devices, uint64_t *operations, unsigned count);

int main(void) {
    void *context;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    if (gpupool_nccl_device() != 0) return 2;
    char answer[1024] = "";
    const uint64_t values[4] = {0, 0x101, 0x202, 0x303};
    const uint64_t data[2] = {0x404, 0x505};
    if (gpupool_nccl_ask(0, values, data, sizeof data, answer, sizeof answer)) return 3;
    const int devices[2] = {0, 0};
    uint64_t operations[18] = {
        0x10, 0, 0x20, 0x30, 0x40, 7, 0, 0, 0, 0x11, 5, 0x21, 0x31, 0x41, 7, 0, 1, 0,
    };
    if (gpupool_nccl_post(devices, operations, 2)) return 4;
    if (cuCtxSynchronize() != 400) return 5;  // there are no such communicators
    puts("results right");
    return 0;
}
