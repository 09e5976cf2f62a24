/* Kernels that are known by a family of names rather than one. */
#ifndef FAKE_CUDA_KERNELS_H
#define FAKE_CUDA_KERNELS_H

#include "fake.h"

CUresult cupy_kernel_run(const struct launch *launch);

#endif
