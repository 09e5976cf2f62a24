// Launches, round trips and copies, measured.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

__global__ void empty() {}
__global__ void eight(float *a, float *b, int c, int d, float e, float f, int *g, int *h) {
    if (c == -1) *a = *b + d + e + f + *g + *h;
}

using Clock = std::chrono::steady_clock;

template <typename Work> static double median_us(int repeat, Work work) {
    std::vector<double> times;
    for (int i = 0; i < repeat; i++) {
        auto start = Clock::now();
        work();
        times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

int main(int count, char **) {
    const size_t size = 256 << 20;
    auto start = Clock::now();
    char *device, *pinned, *pageable = (char *)malloc(size);
    if (cudaMalloc(&device, size) || cudaMallocHost(&pinned, size)) return 1;
    printf("RESULT start_ms %.1f\n",
           std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    memset(pinned, 1, size);
    memset(pageable, 2, size);
    const int launches = 20000;
    for (int i = 0; i < 100; i++) empty<<<1, 32>>>();
    cudaDeviceSynchronize();
    double empties = median_us(5, [] {
        for (int i = 0; i < launches; i++) empty<<<4, 256>>>();
        cudaDeviceSynchronize();
    });
    printf("RESULT launch_us %.3f\n", empties / launches);
    double issues = median_us(5, [] {
        for (int i = 0; i < 1000; i++) empty<<<4, 256>>>();
    });
    cudaDeviceSynchronize();
    printf("RESULT issue_us %.3f\n", issues / 1000);
    double eights = median_us(5, [=] {
        for (int i = 0; i < launches; i++) {
            eight<<<4, 256>>>((float *)device, (float *)device, i, 2, 3.f, 4.f, (int *)device,
                              (int *)device);
        }
        cudaDeviceSynchronize();
    });
    printf("RESULT launch8_us %.3f\n", eights / launches);
    if (count > 1) return 0;  // "launches": nothing else
    printf("RESULT synchronize_us %.2f\n", median_us(2001, [] { cudaDeviceSynchronize(); }));
    int value;
    printf("RESULT copy4_us %.2f\n", median_us(2001, [&] {
               cudaMemcpy(&value, device, 4, cudaMemcpyDeviceToHost);
           }));
    struct {
        const char *name;
        void *to, *from;
        cudaMemcpyKind kind;
    } copies[] = {
        {"h2d_pinned_GBps", device, pinned, cudaMemcpyHostToDevice},
        {"h2d_pageable_GBps", device, pageable, cudaMemcpyHostToDevice},
        {"d2h_pinned_GBps", pinned, device, cudaMemcpyDeviceToHost},
        {"d2h_pageable_GBps", pageable, device, cudaMemcpyDeviceToHost},
    };
    for (auto &copy : copies) {
        double us = median_us(5, [&] {
            cudaMemcpy(copy.to, copy.from, size, copy.kind);
            cudaDeviceSynchronize();
        });
        printf("RESULT %s %.2f\n", copy.name, size / us / 1e3);
    }
    printf("RESULT last %d\n", cudaGetLastError());
    return 0;
}
