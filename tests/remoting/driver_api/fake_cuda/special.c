/* Kernels that do more than compute on plain memory: kernels/memory_kernels.cu. */
#define _GNU_SOURCE
#include "kernels.h"

#include <stdio.h>
#include <string.h>

/* ---- printf: what kernels print waits for the next synchronisation, as on a GPU ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char printed[1 << 20];
static size_t printed_bytes;

void printed_flush(void) {
    pthread_mutex_lock(&lock);
    fwrite(printed, 1, printed_bytes, stdout);
    printed_bytes = 0;
    pthread_mutex_unlock(&lock);
}

void kernel_say(struct call *call) { /* (const char *name, int n) */
    PARAM(int, n, 1);
    ARRAY(const char, name, 0, 1);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n && i < (int)call->launch->block[0]; i++) {
        size_t room = sizeof printed - printed_bytes;
        int length = snprintf(printed + printed_bytes, room, "%s %d: a kernel says %.1f\n", name, i,
                              i / 2.0);
        if ((size_t)length >= room)
            break;
        printed_bytes += (size_t)length;
    }
    pthread_mutex_unlock(&lock);
}

void kernel_insist(struct call *call) { /* (int n) */
    PARAM(int, n, 0);
    if (n > 0)
        return;
    fprintf(stderr, "assert.cu:7: void insist(int): block: [0,0,0], thread: [0,0,0] "
                    "Assertion `n > 0` failed.\n");
    call->error = CUDA_ERROR_ASSERT;
}

/* ---- textures and surfaces of floats: the nearest element, no borders ---- */

#define NORMALIZED 2 /* CU_TRSF_NORMALIZED_COORDINATES */

static float *element(struct call *call, const struct texture *texture, int x, int y, int level) {
    size_t at = (size_t)x * sizeof(float);
    if (texture->resource.resType == 2) /* CU_RESOURCE_TYPE_LINEAR */
        return kernel_elements(call, texture->resource.res.linear.devPtr + at, 1, sizeof(float));
    if (texture->resource.resType == 3) { /* CU_RESOURCE_TYPE_PITCH2D */
        at += (size_t)y * texture->resource.res.pitch2D.pitchInBytes;
        return kernel_elements(call, texture->resource.res.pitch2D.devPtr + at, 1, sizeof(float));
    }
    CUarray array = texture->resource.res.array.hArray;
    if (texture->resource.resType == 1) /* CU_RESOURCE_TYPE_MIPMAPPED_ARRAY */
        array = array_level(texture->resource.res.mipmap.hMipmappedArray, (unsigned)level);
    /* Of several levels only with such coordinates: nobody knows what a GPU gives otherwise. */
    bool normalized = (texture->texture.flags & NORMALIZED) != 0;
    if (normalized != (texture->resource.resType == 1))
        array = NULL;
    if (!IS(array, MAGIC_ARRAY) || at >= array->width_bytes || (size_t)y >= array->height) {
        call->error = CUDA_ERROR_ILLEGAL_ADDRESS;
        return NULL;
    }
    return (float *)(array->storage + (size_t)y * array->width_bytes + at);
}

static void read_level(struct call *call, int level) {
    PARAM(unsigned long long, texture, 0);
    PARAM(int, width, 2);
    PARAM(int, height, 3);
    ARRAY(float, out, 1, (int64_t)width * height);
    struct texture *of;
    call->error = texture_of(texture, MAGIC_TEXTURE, &of);
    for (int i = 0; i < width * height && call->error == CUDA_SUCCESS; i++) {
        const float *found = element(call, of, i % width, i / width, level);
        if (found != NULL)
            out[i] = *found;
    }
}

void kernel_read_texture(struct call *call) { /* (texture, float *out, int width, int height) */
    read_level(call, 0);
}

void kernel_read_level(struct call *call) { /* the same, and int level */
    PARAM(int, level, 4);
    read_level(call, level);
}

void kernel_write_surface(struct call *call) { /* (surface, int width, int height) */
    PARAM(unsigned long long, surface, 0);
    PARAM(int, width, 1);
    PARAM(int, height, 2);
    struct texture *of;
    call->error = texture_of(surface, MAGIC_SURFACE, &of);
    for (int i = 0; i < width * height && call->error == CUDA_SUCCESS; i++) {
        float *found = element(call, of, i % width, i / width, 0);
        if (found != NULL)
            *found = 10.0f * (float)(i / width) + (float)(i % width);
    }
}

/* ---- the same of references: kernels/reference_kernels.ptx ---- */

static struct texture bound(struct call *call, const char *name, bool surface) {
    const struct image *image = call->launch->function->module->image;
    const struct reference *found = NULL;
    for (unsigned i = 0; i < image->reference_count; i++)
        if (image->references[i].surface == surface &&
            strcmp(image->references[i].name, name) == 0)
            found = &call->launch->references[i];
    struct texture of = {.magic = surface ? MAGIC_SURFACE : MAGIC_TEXTURE};
    if (found == NULL || !found->bound || found->format != 0x20 || found->channels != 1) {
        call->error = CUDA_ERROR_LAUNCH_FAILED; /* only floats, one by one */
        return of;
    }
    of.resource = found->resource;
    of.texture = found->texture;
    return of;
}

void kernel_read_reference(struct call *call) { /* (float *out, int width, int height) */
    PARAM(int, width, 1);
    PARAM(int, height, 2);
    ARRAY(float, out, 0, (int64_t)width * height);
    struct texture of = bound(call, "picture", false);
    for (int i = 0; i < width * height && call->error == CUDA_SUCCESS; i++) {
        const float *found = element(call, &of, i % width, i / width, 0);
        if (found != NULL)
            out[i] = *found;
    }
}

void kernel_fetch_reference(struct call *call) { /* (float *out, int first, int n) */
    PARAM(int, first, 1);
    PARAM(int, n, 2);
    ARRAY(float, out, 0, n);
    struct texture of = bound(call, "line", false);
    for (int i = 0; i < n && call->error == CUDA_SUCCESS; i++) {
        const float *found = element(call, &of, first + i, 0, 0);
        if (found != NULL)
            out[i] = *found;
    }
}

void kernel_write_reference(struct call *call) { /* (int width, int height) */
    PARAM(int, width, 0);
    PARAM(int, height, 1);
    struct texture of = bound(call, "canvas", true);
    for (int i = 0; i < width * height && call->error == CUDA_SUCCESS; i++) {
        float *found = element(call, &of, i % width, i / width, 0);
        if (found != NULL)
            *found = (float)(10 * (i / width) + i % width);
    }
}

/* ---- a managed variable ---- */

void kernel_count(struct call *call) { /* (int n): adds to __managed__ int counters[1024] */
    PARAM(int, n, 0);
    CUmodule module = call->launch->function->module;
    int *counters = kernel_elements(call, module_global_find(module, "counters", NULL), 1024, 4);
    for (int i = 0; i < n && i < 1024 && call->error == CUDA_SUCCESS; i++)
        counters[i] += i + 1;
}

/* ---- addresses that lie in memory ---- */

struct order {
    CUdeviceptr from, to;
    long long n;
};

void kernel_carry_out(struct call *call) { /* (const struct order *order) */
    ARRAY(const struct order, order, 0, 1);
    const int *from = kernel_elements(call, order->from, order->n, sizeof *from);
    int *to = kernel_elements(call, order->to, order->n, sizeof *to);
    if (call->error != CUDA_SUCCESS)
        return;
    for (long long i = 0; i < order->n; i++)
        to[i] = from[i] + 1;
}
