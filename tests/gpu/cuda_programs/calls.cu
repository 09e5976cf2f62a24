// Calls and copies, one round at a time, for tests/benchmarks/lupine.py; lines as workloads.py has them.
//
// `make NAME` prepares a row and answers `READY value`, where value is what the GPU made of it and must
// be the same everywhere; `play NAME STEPS` runs steps and answers `MS milliseconds` of one. What fails
// answers `FAILED why`.
#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

extern "C" __global__ void increment(int *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] += 1;
}

static const int LAUNCHES = 1000;
static const size_t LARGE = 256 << 20, MEDIUM = 64 << 10, SMALL = 4 << 10, PIECE = 1 << 20;

static char *device, *pinned, *pageable;
static cudaError_t failed;

static void need(cudaError_t code) {
    if (code != cudaSuccess && failed == cudaSuccess) failed = code;
}

static void launch() { increment<<<4, 256>>>((int *)device, 1); }

static void settle() { need(cudaDeviceSynchronize()); }

// Like the weights of a model, which hardly compress: half of a float's bits are as good as random.
static void fill(char *bytes, size_t size) {
    uint64_t state = 88172645463325252u;
    for (size_t at = 0; at + 8 <= size; at += 8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        uint64_t word = (state & 0x80ffffff80ffffffu) | 0x3c0000003c000000u;
        memcpy(bytes + at, &word, 8);
    }
}

static double sum(const char *bytes, size_t size) {
    uint32_t total = 0, word;
    for (size_t at = 0; at + 4 <= size; at += 4) {
        memcpy(&word, bytes + at, 4);
        total = total * 31 + word;
    }
    return total % 1000003;
}

static void up(const char *from, size_t size) {
    need(cudaMemcpy(device, from, size, cudaMemcpyHostToDevice));
}

static void down(char *to, size_t size) {
    need(cudaMemcpy(to, device, size, cudaMemcpyDeviceToHost));
}

// What is on the GPU, by way of memory that no row measures.
static double content(size_t size) {
    std::vector<char> found(size);
    down(found.data(), size);
    return sum(found.data(), size);
}

static double counted() {
    int count = 0;
    need(cudaMemcpy(&count, device, 4, cudaMemcpyDeviceToHost));
    return count;
}

static void allocate(bool in_order) {
    void *made = nullptr;
    if (in_order) {
        need(cudaMallocAsync(&made, PIECE, 0));
        need(cudaFreeAsync(made, 0));
    } else {
        need(cudaMalloc(&made, PIECE));
        need(cudaFree(made));
    }
}

struct row {
    const char *name;
    void (*prepare)();
    void (*step)();
    double (*value)();
};

static void zero() { need(cudaMemset(device, 0, LARGE)); }
static void filled() { up(pageable, LARGE); }
static void cleared() {
    filled();
    memset(pinned, 0, LARGE);
}

static std::vector<char> *target;

static const row ROWS[] = {
    {"launches", zero,
     [] {
         for (int at = 0; at < LAUNCHES; at++) launch();
     },
     counted},
    {"launch_wait", zero,
     [] {
         launch();
         settle();
     },
     counted},
    {"up_4k", zero, [] { up(pageable, SMALL); }, [] { return content(SMALL); }},
    {"up_64k_pinned", zero,
     [] { need(cudaMemcpyAsync(device, pinned, MEDIUM, cudaMemcpyHostToDevice, 0)); },
     [] { return content(MEDIUM); }},
    {"down_4", filled, [] { down(pinned, 4); }, [] { return sum(pinned, 4); }},
    {"down_64k", filled, [] { down(target->data(), MEDIUM); },
     [] { return sum(target->data(), MEDIUM); }},
    {"up_pinned", zero, [] { up(pinned, LARGE); }, [] { return content(LARGE); }},
    {"up_pageable", zero, [] { up(pageable, LARGE); }, [] { return content(LARGE); }},
    {"down_pinned", cleared, [] { down(pinned, LARGE); }, [] { return sum(pinned, LARGE); }},
    {"down_pageable", filled, [] { down(target->data(), LARGE); },
     [] { return sum(target->data(), LARGE); }},
    {"malloc", nullptr, [] { allocate(false); }, [] { return 1.0; }},
    {"malloc_async", nullptr, [] { allocate(true); }, [] { return 1.0; }},
};

static void start() {
    if (device != nullptr) return;
    need(cudaMalloc(&device, LARGE));
    need(cudaMallocHost(&pinned, LARGE));
    pageable = new char[LARGE];
    target = new std::vector<char>(LARGE);
    if (failed != cudaSuccess) return;
    fill(pageable, LARGE);
}

static double elapsed_ms(const row &row, int steps) {
    settle();
    auto start = std::chrono::steady_clock::now();
    for (int at = 0; at < steps; at++) row.step();
    settle();
    std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    return took.count() / steps;
}

static std::string answer(const char *word, const row &row, int steps) {
    char text[64];
    if (strcmp(word, "make") == 0) {
        start();
        if (failed == cudaSuccess) {
            memcpy(pinned, pageable, LARGE);
            if (row.prepare != nullptr) row.prepare();
            row.step();
            settle();
            snprintf(text, sizeof text, "READY %.9g", row.value());
        }
    } else {
        snprintf(text, sizeof text, "MS %.7f", elapsed_ms(row, steps));
    }
    need(cudaGetLastError());
    if (failed == cudaSuccess) return text;
    return std::string("FAILED ") + cudaGetErrorName(failed);
}

int main() {
    char line[200], word[20], name[60];
    int steps = 1;
    while (fgets(line, sizeof line, stdin) != nullptr) {
        if (sscanf(line, "%19s %59s %d", word, name, &steps) < 2) continue;
        std::string said = "FAILED no such row";
        for (const row &row : ROWS) {
            if (strcmp(row.name, name) == 0) said = answer(word, row, steps);
        }
        printf("%s\n", said.c_str());
        fflush(stdout);
    }
    return 0;
}
