// What the programs share: a call of CUDA's runtime that fails ends the function with 1, and says why.
#pragma once
#include <cuda_runtime.h>

#include <cstdio>

#define CHECK(call)                                                                            \
    do {                                                                                       \
        cudaError_t error = (call);                                                            \
        if (error) {                                                                           \
            printf("line %d: %s: %d %s\n", __LINE__, #call, error, cudaGetErrorString(error)); \
            return 1;                                                                          \
        }                                                                                      \
    } while (0)

// The same for a library's call, whose status is a type of its own.
#define CHECK_LIBRARY(call)                                       \
    do {                                                          \
        int status = int(call);                                   \
        if (status) {                                             \
            printf("line %d: %s: %d\n", __LINE__, #call, status); \
            return 1;                                             \
        }                                                         \
    } while (0)
