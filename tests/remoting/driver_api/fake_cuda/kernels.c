/* The kernels that really run, on the CPU: known by name, as written in kernels/test_kernels.cu.
 *
 * A parameter is found by its index through the layout that was parsed from the image, so that a
 * wrong layout gives wrong results here as it would on a GPU. CuPy's element-wise kernels are in
 * cupy.c. A kernel of another name does nothing; its launch is recorded all the same.
 */
#define _GNU_SOURCE
#include "fake.h"
#include "kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void kernel_param(struct call *call, unsigned index, void *value, size_t bytes) {
    const struct kernel_info *info = call->launch->function->info;
    memset(value, 0, bytes);
    if (index >= info->param_count || info->params[index].size != bytes) {
        call->error = CUDA_ERROR_LAUNCH_FAILED;
        return;
    }
    memcpy(value, call->launch->params + info->params[index].offset, bytes);
}

void *kernel_elements(struct call *call, CUdeviceptr pointer, int64_t count, size_t size) {
    static double nothing[1];
    if (count <= 0)
        return nothing;
    void *storage = memory_storage(pointer, (size_t)count * size);
    if (storage == NULL && call->error == CUDA_SUCCESS)
        call->error = CUDA_ERROR_ILLEGAL_ADDRESS;
    return storage;
}

/* All kernels here are written for one element a thread: threads beyond n do nothing. */
static int64_t threads(const struct call *call, int64_t n) {
    const struct launch *l = call->launch;
    int64_t all = (int64_t)l->grid[0] * l->block[0];
    return n < all ? n : all;
}

static void vector_add(struct call *call) { /* (const float *a, const float *b, float *c, int n) */
    PARAM(int, n, 3);
    int64_t count = threads(call, n);
    ARRAY(float, a, 0, count);
    ARRAY(float, b, 1, count);
    ARRAY(float, c, 2, count);
    for (int64_t i = 0; i < count; i++)
        c[i] = a[i] + b[i];
}

static void saxpy(struct call *call) { /* (float a, const float *x, float *y, int n) */
    PARAM(float, a, 0);
    PARAM(int, n, 3);
    int64_t count = threads(call, n);
    ARRAY(float, x, 1, count);
    ARRAY(float, y, 2, count);
    for (int64_t i = 0; i < count; i++)
        y[i] = a * x[i] + y[i];
}

static void fill(struct call *call) { /* (float *out, float value, int n) */
    PARAM(float, value, 1);
    PARAM(int, n, 2);
    int64_t count = threads(call, n);
    ARRAY(float, out, 0, count);
    for (int64_t i = 0; i < count; i++)
        out[i] = value;
}

static void increment(struct call *call) { /* (int *data, int n) */
    PARAM(int, n, 1);
    int64_t count = threads(call, n);
    ARRAY(int, data, 0, count);
    for (int64_t i = 0; i < count; i++)
        data[i] += 1;
}

/* numba's increment(data, n): an array of one dimension comes as meminfo, parent, item count, item
 * size, data, shape and stride, each a parameter of its own. */
static void numba_increment(struct call *call) {
    PARAM(int64_t, n, 7);
    int64_t count = threads(call, n);
    ARRAY(int, data, 4, count);
    for (int64_t i = 0; i < count; i++)
        data[i] += 1;
}

static void reduce_sum(struct call *call) { /* (const float *in, float *out, int n): one block */
    PARAM(int, n, 2);
    ARRAY(float, in, 0, n);
    ARRAY(float, out, 1, 1);
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += in[i];
    *out = sum;
}

static void add_offset(struct call *call) { /* (int *data, int n): adds __device__ int offset */
    PARAM(int, n, 1);
    int64_t count = threads(call, n);
    ARRAY(int, data, 0, count);
    CUmodule module = call->launch->function->module;
    const int *offset = kernel_elements(call, module_global_find(module, "offset", NULL), 1, 4);
    if (call->error != CUDA_SUCCESS)
        return;
    for (int64_t i = 0; i < count; i++)
        data[i] += *offset;
}

static void polynomial(struct call *call) { /* (float *x, int n): __constant__ float coefficient[4] */
    PARAM(int, n, 1);
    int64_t count = threads(call, n);
    ARRAY(float, x, 0, count);
    CUmodule module = call->launch->function->module;
    const float *c = kernel_elements(call, module_global_find(module, "coefficient", NULL), 4, 4);
    if (call->error != CUDA_SUCCESS)
        return;
    for (int64_t i = 0; i < count; i++)
        x[i] = c[0] + x[i] * (c[1] + x[i] * (c[2] + x[i] * c[3]));
}

struct mixed { /* a structure by value, with holes: alignment must survive the way */
    char tag;
    double weight;
    int values[3];
};

static void mixed_params(struct call *call) { /* (double *out, char c, struct mixed m, short s) */
    PARAM(char, c, 1);
    PARAM(struct mixed, m, 2);
    PARAM(short, s, 3);
    ARRAY(double, out, 0, 7);
    const double all[7] = {c, m.tag, m.weight, m.values[0], m.values[1], m.values[2], s};
    memcpy(out, all, sizeof all);
}

#define LARGE_WORDS 2048
struct large { /* 8 KiB: its layout is in the newer, larger record */
    int words[LARGE_WORDS];
};

static void large_param(struct call *call) { /* (long long *sum, struct large values) */
    struct large values;
    kernel_param(call, 1, &values, sizeof values);
    ARRAY(long long, sum, 0, 1);
    *sum = 0;
    for (int i = 0; i < LARGE_WORDS; i++)
        *sum += values.words[i];
}

static void wait_for_flag(struct call *call) { /* (volatile int *flag): mapped host memory */
    ARRAY(volatile int, flag, 0, 1);
    while (*flag == 0 && !exit_begun())
        usleep(50);
}

static void sleep_us(struct call *call) { /* (long long microseconds) */
    PARAM(long long, microseconds, 0);
    usleep((useconds_t)microseconds);
}

static void out_of_bounds(struct call *call) { /* (int *data): writes far beyond any allocation */
    call->error = CUDA_ERROR_ILLEGAL_ADDRESS;
}

static void trap(struct call *call) { call->error = CUDA_ERROR_LAUNCH_FAILED; }

static void empty(struct call *call) { (void)call; }

static const struct known {
    const char *name;
    void (*run)(struct call *call);
} known[] = {
    {"vector_add", vector_add}, {"saxpy", saxpy}, {"fill", fill}, {"increment", increment},
    {"reduce_sum", reduce_sum}, {"add_offset", add_offset}, {"polynomial", polynomial},
    {"mixed_params", mixed_params}, {"large_param", large_param},
    {"wait_for_flag", wait_for_flag}, {"sleep_us", sleep_us}, {"out_of_bounds", out_of_bounds},
    {"trap", trap}, {"empty", empty},
    {"say", kernel_say}, {"read_texture", kernel_read_texture},
    {"read_level", kernel_read_level},
    {"write_surface", kernel_write_surface}, {"count", kernel_count},
    {"carry_out", kernel_carry_out}, {"read_reference", kernel_read_reference},
    {"fetch_reference", kernel_fetch_reference}, {"write_reference", kernel_write_reference},
    {"launch_graph", kernel_launch_graph}, {"insist", kernel_insist},
};

/* "fill" and "_Z4fillPffi" are the same kernel. */
static bool name_matches(const char *symbol, const char *name) {
    size_t length = strlen(name);
    if (strcmp(symbol, name) == 0)
        return true;
    if (strncmp(symbol, "_Z", 2) != 0)
        return false;
    char *rest = NULL;
    return strtoul(symbol + 2, &rest, 10) == length && strncmp(rest, name, length) == 0;
}

CUresult kernel_run(struct launch *launch) {
    struct call call = {.launch = launch};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (name_matches(launch->function->info->name, known[i].name)) {
            known[i].run(&call);
            return call.error;
        }
    const char *name = launch->function->info->name;
    if (strncmp(name, "_ZN", 3) == 0 && strstr(name, "9incrementB") && strstr(name, "5ArrayIiLi1E")) {
        numba_increment(&call);
        return call.error;
    }
    if (strncmp(name, "cupy_", 5) == 0)
        return cupy_kernel_run(launch);
    return CUDA_SUCCESS;
}
