// Copies of boxes, as cuda.h's CUDA_MEMCPY3D describes them.
#ifndef GP_COPIES_H
#define GP_COPIES_H

#include "core.h"

// By CUmemorytype.
enum { GP_ON_HOST = 1, GP_ON_DEVICE, GP_IN_ARRAY, GP_UNIFIED };

struct gp_box {
    size_t x, y, z, level;
    int kind;
    const void *host;
    uint64_t device;
    void *array, *reserved;
    size_t pitch, height;
};

struct gp_copy_3d {
    struct gp_box source, target;
    size_t width, height, depth;
};

// copies.c
bool gp_is_pinned(const void *address);
bool gp_is_device(uint64_t address);   // any but the host's that the program has got
bool gp_is_managed(uint64_t address);
int gp_copy_any(uint64_t target, uint64_t source, size_t size, void *stream, bool async);
// boxes.c
int gp_copy_box(const struct gp_copy_3d *copy, void *stream, bool async);
// array.c
int gp_array_element(const void *array, size_t *size);  // the bytes of one of its elements

#endif
