/* Launches: their parameters, their checks, the record of them, and occupancy. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>

#define RECORDS_MAX 4096

/* ---- the record that tests read ---- */

struct launch_record {
    char kernel[256];
    uint32_t grid[3], block[3], cluster[3], shared_bytes;
    uint32_t device, param_bytes;
    uint64_t stream, number;
};

static struct launch_record records[RECORDS_MAX];
static unsigned char *record_params[RECORDS_MAX];
static uint64_t record_count;
static pthread_mutex_t records_lock = PTHREAD_MUTEX_INITIALIZER;
static int record_file = -2; /* -2: not asked for yet */

static void record_to_file(const struct launch_record *r, const unsigned char *params) {
    if (record_file == -2) {
        const char *path = getenv("FAKE_CUDA_RECORD");
        record_file =
            path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    }
    if (record_file < 0)
        return;
    size_t room = 1024 + 2 * (size_t)r->param_bytes;
    char *line = zeroed(room);
    int at = snprintf(line, room,
                      "{\"kernel\": \"%s\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], "
                      "\"cluster\": [%u, %u, %u], \"shared_bytes\": %u, \"device\": %u, "
                      "\"stream\": %llu, \"pid\": %d, \"params\": \"",
                      r->kernel, r->grid[0], r->grid[1], r->grid[2], r->block[0], r->block[1],
                      r->block[2], r->cluster[0], r->cluster[1], r->cluster[2], r->shared_bytes,
                      r->device, (unsigned long long)r->stream, (int)getpid());
    for (uint32_t i = 0; i < r->param_bytes; i++)
        at += snprintf(line + at, room - (size_t)at, "%02x", params[i]);
    at += snprintf(line + at, room - (size_t)at, "\"}\n");
    if (write(record_file, line, (size_t)at) != at)
        perror("fake libcuda: FAKE_CUDA_RECORD");
    free(line);
}

void launch_record(const struct launch *launch, uint64_t stream_id) {
    struct launch_record r = {.shared_bytes = launch->shared_bytes,
                              .device = (uint32_t)launch->function->module->ctx->dev,
                              .param_bytes = (uint32_t)launch->param_bytes,
                              .stream = stream_id};
    snprintf(r.kernel, sizeof r.kernel, "%s", launch->function->info->name);
    for (unsigned i = 0; i < 3; i++) {
        r.grid[i] = launch->grid[i];
        r.block[i] = launch->block[i];
        r.cluster[i] = launch->cluster[i];
    }
    atomic_fetch_add(&control->launches, 1);
    pthread_mutex_lock(&records_lock);
    unsigned slot = (unsigned)(record_count % RECORDS_MAX);
    r.number = record_count++;
    records[slot] = r;
    free(record_params[slot]);
    record_params[slot] = zeroed(launch->param_bytes);
    memcpy(record_params[slot], launch->params, launch->param_bytes);
    record_to_file(&r, launch->params);
    pthread_mutex_unlock(&records_lock);
}

API uint64_t fakeCudaLaunchCount(void) { return record_count; }

/* Copies launch `number` (from 0; the last 4096 are kept) and up to `room` parameter bytes. */
API int fakeCudaLaunchGet(uint64_t number, struct launch_record *out, unsigned char *params,
                          size_t room) {
    pthread_mutex_lock(&records_lock);
    const struct launch_record *r = &records[number % RECORDS_MAX];
    bool kept = number < record_count && r->number == number;
    if (kept) {
        *out = *r;
        size_t bytes = r->param_bytes < room ? r->param_bytes : room;
        if (params != NULL)
            memcpy(params, record_params[number % RECORDS_MAX], bytes);
    }
    pthread_mutex_unlock(&records_lock);
    return kept ? 0 : -1;
}

/* ---- parameters and checks ---- */

static CUresult params_from_buffer(const struct kernel_info *info, void **extra,
                                   struct launch *launch) {
    void *buffer = NULL;
    size_t *bytes = NULL;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[1];
        else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            bytes = extra[1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    REQUIRE(buffer != NULL && bytes != NULL);
    /* The driver, too, answers 701 to a buffer shorter than the parameters. */
    if (*bytes < info->param_bytes)
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    memcpy(launch->params, buffer, info->param_bytes);
    return CUDA_SUCCESS;
}

CUresult launch_prepare(CUfunction function, void **params, void **extra, struct launch *launch) {
    const struct kernel_info *info = function->info;
    REQUIRE(!(params != NULL && extra != NULL));
    REQUIRE(params != NULL || extra != NULL || info->param_count == 0);
    launch->function = function;
    launch->param_bytes = info->param_bytes;
    launch->params = zeroed(info->param_bytes);
    launch->references = references_copy(function->module);
    if (extra != NULL)
        return params_from_buffer(info, extra, launch);
    for (unsigned i = 0; i < info->param_count; i++)
        memcpy(launch->params + info->params[i].offset, params[i], info->params[i].size);
    return CUDA_SUCCESS;
}

CUresult launch_check(CUcontext ctx, const struct launch *launch) {
    const unsigned *grid = launch->grid, *block = launch->block;
    (void)ctx;
    REQUIRE(grid[0] > 0 && grid[1] > 0 && grid[2] > 0);
    REQUIRE(block[0] > 0 && block[1] > 0 && block[2] > 0);
    REQUIRE(grid[0] <= 2147483647u && grid[1] <= 65535 && grid[2] <= 65535);
    REQUIRE(block[0] <= 1024 && block[1] <= 1024 && block[2] <= 64);
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    int threads_max, dynamic_max;
    TRY(function_attribute(launch->function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                           &threads_max));
    TRY(function_attribute(launch->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                           &dynamic_max));
    REQUIRE(threads <= (uint64_t)threads_max && launch->shared_bytes <= (unsigned)dynamic_max);
    for (unsigned i = 0; i < 3; i++)
        if (launch->cluster[i] != 0)
            REQUIRE(grid[i] % launch->cluster[i] == 0);
    return CUDA_SUCCESS;
}

static CUresult launch_submit(CUcontext ctx, CUfunction handle, struct launch launch,
                              CUstream stream_handle, void **params, void **extra) {
    CUstream stream;
    CUfunction function;
    TRY(stream_resolve(ctx, stream_handle, &stream));
    TRY(function_resolve(handle, ctx, &function));
    REQUIRE_HANDLE(function->module->ctx == stream->ctx);
    for (unsigned i = 0; i < 3; i++)
        if (launch.cluster[i] == 0)
            launch.cluster[i] = (unsigned)function->info->cluster[i];
    CUresult result = launch_prepare(function, params, extra, &launch);
    if (result == CUDA_SUCCESS)
        result = launch_check(ctx, &launch);
    if (result != CUDA_SUCCESS) {
        free(launch.params);
        return result;
    }
    if (stream->capture == NULL) /* what is captured counts when its graph runs */
        launch_record(&launch, stream->id);
    struct work work = {.kind = WORK_KERNEL, .launch = launch};
    return stream_submit(stream, &work);
}

API CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                            unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                            unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                            void **kernelParams, void **extra) {
    ENTER_CONTEXT(ctx);
    struct launch launch = {.grid = {gridDimX, gridDimY, gridDimZ},
                            .block = {blockDimX, blockDimY, blockDimZ},
                            .shared_bytes = sharedMemBytes};
    return launch_submit(ctx, f, launch, hStream, kernelParams, extra);
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                              void **extra) {
    ENTER_CONTEXT(ctx);
    REQUIRE(config != NULL && (config->numAttrs == 0 || config->attrs != NULL));
    struct launch launch = {.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                            .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                            .shared_bytes = config->sharedMemBytes};
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        if ((int)attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            launch.cooperative = attribute->value.cooperative != 0;
        if ((int)attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            launch.cluster[0] = attribute->value.clusterDim.x;
            launch.cluster[1] = attribute->value.clusterDim.y;
            launch.cluster[2] = attribute->value.clusterDim.z;
        }
    }
    return launch_submit(ctx, f, launch, config->hStream, kernelParams, extra);
}

API CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                       unsigned int gridDimZ, unsigned int blockDimX,
                                       unsigned int blockDimY, unsigned int blockDimZ,
                                       unsigned int sharedMemBytes, CUstream hStream,
                                       void **kernelParams) {
    ENTER_CONTEXT(ctx);
    struct launch launch = {.grid = {gridDimX, gridDimY, gridDimZ},
                            .block = {blockDimX, blockDimY, blockDimZ},
                            .shared_bytes = sharedMemBytes, .cooperative = true};
    return launch_submit(ctx, f, launch, hStream, kernelParams, NULL);
}

/* ---- occupancy: the four limits of compute capability 9.0 (occupancy calculator) ---- */

static CUresult occupancy(CUfunction handle, int threads, size_t dynamic, int *blocks) {
    CUcontext ctx = context_peek();
    CUfunction function;
    REQUIRE(threads > 0);
    TRY(function_resolve(handle, ctx, &function));
    int warps = (threads + 31) / 32;
    int registers = (function->info->registers * 32 + 255) / 256 * 256; /* a warp's allocation */
    size_t shared = (dynamic + (size_t)function->info->shared_bytes + 1024 + 127) / 128 * 128;
    int by_warps = 64 / warps;
    int by_registers = registers > 0 ? 65536 / registers / warps : 32;
    int by_shared = (int)(233472 / shared);
    int least = by_warps < by_registers ? by_warps : by_registers;
    least = by_shared < least ? by_shared : least;
    *blocks = threads > function->info->threads_max ? 0 : least < 32 ? least : 32;
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func,
                                                                  int blockSize,
                                                                  size_t dynamicSMemSize,
                                                                  unsigned int flags) {
    ENTER_CONTEXT(ctx);
    REQUIRE(numBlocks != NULL && flags <= 1);
    return occupancy(func, blockSize, dynamicSMemSize, numBlocks);
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func,
                                                         int blockSize, size_t dynamicSMemSize) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize,
                                                                dynamicSMemSize, 0);
}

API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize,
                                                       CUfunction func,
                                                       CUoccupancyB2DSize bytes_of,
                                                       size_t dynamicSMemSize, int blockSizeLimit,
                                                       unsigned int flags) {
    ENTER_CONTEXT(ctx);
    REQUIRE(minGridSize != NULL && blockSize != NULL && flags <= 1);
    int best = 0;
    int limit = blockSizeLimit > 0 && blockSizeLimit < 1024 ? blockSizeLimit : 1024;
    for (int threads = limit / 32 * 32; threads > 0; threads -= 32) {
        int blocks = 0;
        size_t shared = bytes_of ? bytes_of(threads) : dynamicSMemSize;
        TRY(occupancy(func, threads, shared, &blocks));
        if (blocks * threads > best) {
            best = blocks * threads;
            *blockSize = threads;
            *minGridSize = blocks * 132;
        }
    }
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                              CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                              size_t dynamicSMemSize, int blockSizeLimit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func,
                                                     blockSizeToDynamicSMemSize, dynamicSMemSize,
                                                     blockSizeLimit, 0);
}

API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func,
                                                     int numBlocks, int blockSize) {
    ENTER_CONTEXT(ctx);
    REQUIRE(dynamicSmemSize != NULL && numBlocks > 0 && blockSize > 0);
    CUfunction function;
    TRY(function_resolve(func, ctx, &function));
    size_t each = 233472 / (size_t)numBlocks / 128 * 128;
    size_t taken = 1024 + (size_t)function->info->shared_bytes;
    size_t left = each > taken ? each - taken : 0;
    *dynamicSmemSize = left < 232448 ? left : 232448;
    return CUDA_SUCCESS;
}

/* 8 processor groups, of which 6 have 16 processors and 2 have 18, as 132 of them do not divide. */
static CUresult clusters_active(CUfunction func, const CUlaunchConfig *config, int *clusters) {
    int blocks = 0;
    unsigned size = 1;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if ((int)config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            size = config->attrs[i].value.clusterDim.x * config->attrs[i].value.clusterDim.y *
                   config->attrs[i].value.clusterDim.z;
    REQUIRE(size > 0 && size <= 16);
    TRY(occupancy(func, (int)(config->blockDimX * config->blockDimY * config->blockDimZ),
                  config->sharedMemBytes, &blocks));
    *clusters = (int)(6 * (16 * (unsigned)blocks / size) + 2 * (18 * (unsigned)blocks / size));
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveClusters(int *numClusters, CUfunction func,
                                          const CUlaunchConfig *config) {
    ENTER_CONTEXT(ctx);
    REQUIRE(numClusters != NULL && config != NULL);
    return clusters_active(func, config, numClusters);
}

API CUresult cuOccupancyMaxPotentialClusterSize(int *clusterSize, CUfunction func,
                                                const CUlaunchConfig *config) {
    ENTER_CONTEXT(ctx);
    REQUIRE(clusterSize != NULL && config != NULL);
    CUfunction function;
    TRY(function_resolve(func, ctx, &function));
    *clusterSize = 8;
    return CUDA_SUCCESS;
}
