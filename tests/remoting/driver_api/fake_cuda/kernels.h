/* What kernels are made of, and those that are in other files than kernels.c. */
#ifndef FAKE_CUDA_KERNELS_H
#define FAKE_CUDA_KERNELS_H

#include "fake.h"

struct call {
    const struct launch *launch;
    CUresult error; /* the first one: an address outside any allocation */
};

void kernel_param(struct call *call, unsigned index, void *value, size_t bytes);
/* Gives `count` elements at a device (or mapped host) address; a fault ends the kernel. */
void *kernel_elements(struct call *call, CUdeviceptr pointer, int64_t count, size_t size);

#define PARAM(type, name, index)                                                                   \
    type name;                                                                                     \
    kernel_param(call, index, &name, sizeof name)

#define ARRAY(type, name, index, count)                                                            \
    PARAM(CUdeviceptr, name##_address, index);                                                     \
    type *name = kernel_elements(call, name##_address, count, sizeof(type));                       \
    if (call->error != CUDA_SUCCESS)                                                               \
        return

CUresult cupy_kernel_run(const struct launch *launch);

/* kernels/memory_kernels.cu (special.c) */
void kernel_say(struct call *call);
void kernel_read_texture(struct call *call);
void kernel_read_level(struct call *call);
void kernel_write_surface(struct call *call);
void kernel_read_reference(struct call *call);
void kernel_fetch_reference(struct call *call);
void kernel_write_reference(struct call *call);
void kernel_count(struct call *call);
void kernel_carry_out(struct call *call);

/* kernels/assert_kernels.ptx (special.c) */
void kernel_insist(struct call *call);

/* kernels/graph_kernels.ptx (graph.c) */
void kernel_launch_graph(struct call *call);

#endif
