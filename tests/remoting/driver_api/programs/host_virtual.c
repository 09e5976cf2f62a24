// The host's memory by virtual memory management. Argument: a cubin with the kernels of
// fake_cuda/kernels/test_kernels.cu.
#include "virtual.h"

int cuMemFreeHost(void *), cuMemsetD32_v2(uint64_t, unsigned, size_t);
int cuPointerGetAttribute(void *, int, uint64_t), cuMemHostGetFlags(unsigned *, void *);
int cuModuleLoad(void **, const char *), cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                   void **);

// Memory of the host at a NUMA node, as XGBoost keeps what it copies through: it grows in place, and moves to
// other addresses when there is no room behind it.
static void host_memory(int kind, const char *image) {
    struct properties properties = {1, 0, {kind, 0}, NULL, {0}}, seen;
    struct access two[2] = {{{1, 0}, 3}, {{kind, 0}, 3}};
    uint64_t handle, more, base, other, address, device, numbers;
    size_t unit, was;
    unsigned long long flags = 9;
    int type = -1, n = 1000;
    unsigned said = 0;
    void *module, *increment, *parameters[2] = {&address, &n};
    CHECK(cuModuleLoad(&module, image));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    was = left();
    CHECK(cuMemGetAllocationGranularity(&unit, &properties, 0));
    CHECK(cuMemCreate(&handle, unit, &properties, 0));
    NEED(cuMemCreate(&more, unit + 4096, &properties, 0) == 1);
    CHECK(cuMemGetAllocationPropertiesFromHandle(&seen, handle));
    NEED(memcmp(&seen, &properties, sizeof seen) == 0);
    CHECK(cuMemAddressReserve(&base, 4 * unit, 0, 0, 0));
    CHECK(cuMemMap(base, unit, 0, handle, 0));
    CHECK(cuMemSetAccess(base, unit, two, 2));
    CHECK(cuMemGetAccess(&flags, &two[0].location, base));
    NEED(flags == 3);
    flags = 9;
    CHECK(cuMemGetAccess(&flags, &two[1].location, base));
    NEED(flags == 3);
    OURS(left() == was);  // it is not the GPU's
    CHECK(cuPointerGetAttribute(&type, 2, base));
    NEED(type == 1);
    CHECK(cuPointerGetAttribute(&device, 3, base + 8));
    NEED(device == base + 8);
    CHECK(cuPointerGetAttribute(&device, 1, base));
    NEED(device == 0);
    NEED(cuMemFree_v2(base) != 0 && cuMemFreeHost((void *)(uintptr_t)base) != 0);
    CHECK(cuMemHostGetFlags(&said, (void *)(uintptr_t)base));

    // The program, copies and kernels use it in turn.
    int *here = (int *)(uintptr_t)base;
    for (int at = 0; at < n; at++) here[at] = at;
    address = base;
    CHECK(cuLaunchKernel(increment, 4, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
    CHECK(cuCtxSynchronize());
    for (int at = 0; at < n; at++) NEED(here[at] == at + 1);
    CHECK(cuMemAlloc_v2(&numbers, 4096));
    CHECK(cuMemcpyHtoD_v2(numbers, here, 4000));
    here[0] = 77;
    CHECK(cuMemsetD32_v2(numbers, 5, 500));
    CHECK(cuMemcpyDtoH_v2(here + 500, numbers, 4));
    NEED(here[500] == 5 && here[0] == 77 && here[999] == 1000);
    CHECK(cuMemsetD32_v2(base, 9, 2));
    CHECK(cuCtxSynchronize());
    NEED(here[0] == 9 && here[1] == 9 && here[2] == 3);

    // More behind it, and all of it elsewhere, with its bytes.
    CHECK(cuMemCreate(&more, 2 * unit, &properties, 0));
    CHECK(cuMemMap(base + unit, 2 * unit, 0, more, 0));
    CHECK(cuMemSetAccess(base, 3 * unit, two, 2));
    here[unit / 4] = 13;
    NEED(cuMemUnmap(base, unit / 2) != 0);
    CHECK(cuMemUnmap(base, 3 * unit));
    NEED(cuPointerGetAttribute(&type, 2, base) != 0);
    CHECK(cuMemAddressReserve(&other, 4 * unit, 0, 0, 0));
    CHECK(cuMemMap(other, unit, 0, handle, 0));
    CHECK(cuMemMap(other + unit, 2 * unit, 0, more, 0));
    CHECK(cuMemSetAccess(other, 3 * unit, two, 2));
    here = (int *)(uintptr_t)other;
    NEED(here[0] == 9 && here[999] == 1000 && here[unit / 4] == 13);
    address = other + unit;
    CHECK(cuLaunchKernel(increment, 4, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
    CHECK(cuMemRelease(handle));
    CHECK(cuMemRelease(more));
    CHECK(cuCtxSynchronize());
    NEED(here[unit / 4] == 14 && here[unit / 4 + 1] == 1);
    NEED(cuMemAddressFree(other, 4 * unit) == 1);
    CHECK(cuMemUnmap(other, 3 * unit));
    CHECK(cuMemAddressFree(other, 4 * unit));
    CHECK(cuMemAddressFree(base, 4 * unit));
    CHECK(cuMemFree_v2(numbers));
    OURS(left() == was);
}

int main(int count, char **arguments) {
    struct properties properties = {1, 0, {3, 77}, NULL, {0}};
    uint64_t handle;
    int offered = -1;
    NEED(count == 2);
    start(0);
    // What an attribute offers is there: HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, and that of HOST.
    CHECK(cuDeviceGetAttribute(&offered, 141, 0));
    if (offered) host_memory(3, arguments[1]);
    CHECK(cuDeviceGetAttribute(&offered, 145, 0));
    if (offered) host_memory(2, arguments[1]);
    NEED(cuMemCreate(&handle, 2 << 20, &properties, 0) == 1);  // there is no such node
    puts("results right");
    return 0;
}
