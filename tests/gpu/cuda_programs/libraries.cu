// cuBLAS and cuFFT of the CUDA toolkit: a product, a batched one, and a transform there and back.
#include <cublas_v2.h>
#include <cufft.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "check.h"

static int products() {
    const int n = 192, count = 5;
    std::vector<float> a(n * n * count), b(n * n * count), c(n * n * count);
    for (size_t i = 0; i < a.size(); i++) {
        a[i] = float(i * 7 % 13) - 6;
        b[i] = float(i * 5 % 11) - 5;
    }
    float *da, *db, *dc;
    CHECK(cudaMalloc(&da, a.size() * 4));
    CHECK(cudaMalloc(&db, b.size() * 4));
    CHECK(cudaMalloc(&dc, c.size() * 4));
    CHECK(cudaMemcpy(da, a.data(), a.size() * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(db, b.data(), b.size() * 4, cudaMemcpyHostToDevice));
    cublasHandle_t handle;
    CHECK_LIBRARY(cublasCreate(&handle));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_LIBRARY(cublasSetStream(handle, stream));
    const float one = 1, zero = 0;
    CHECK_LIBRARY(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, n, n, n, &one, da, n, db, n, &zero,
                              dc, n));
    CHECK(cudaMemcpyAsync(c.data(), dc, n * n * 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    double sum = 0;
    for (int i = 0; i < n * n; i++)
        sum += c[i] * (i % 3);
    printf("RESULT gemm %.1f\n", sum);
    const long long step = n * n;
    CHECK_LIBRARY(cublasSgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, da, n,
                                            step, db, n, step, &zero, dc, n, step, count));
    CHECK(cudaMemcpyAsync(c.data(), dc, c.size() * 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    sum = 0;
    for (size_t i = 0; i < c.size(); i++)
        sum += c[i] * (i % 3);
    printf("RESULT batched %.1f\n", sum);
    float length = 0;  // the result goes to the host's memory, so the call waits
    CHECK_LIBRARY(cublasSnrm2(handle, n * n, da, 1, &length));
    printf("RESULT norm %.3f\n", length);
    CHECK_LIBRARY(cublasDestroy(handle));
    CHECK(cudaFree(da));
    CHECK(cudaFree(db));
    CHECK(cudaFree(dc));
    return 0;
}

static int transforms() {
    const int n = 4096, rows = 8;
    std::vector<float> wave(n * rows), back(n * rows);
    for (size_t i = 0; i < wave.size(); i++)
        wave[i] = std::sin(0.01f * i) + float(i % 17);
    float *data;
    cufftComplex *spectrum;
    CHECK(cudaMalloc(&data, wave.size() * 4));
    CHECK(cudaMalloc(&spectrum, sizeof(cufftComplex) * (n / 2 + 1) * rows));
    CHECK(cudaMemcpy(data, wave.data(), wave.size() * 4, cudaMemcpyHostToDevice));
    cufftHandle forward, inverse;
    CHECK_LIBRARY(cufftPlan1d(&forward, n, CUFFT_R2C, rows));
    CHECK_LIBRARY(cufftPlan1d(&inverse, n, CUFFT_C2R, rows));
    CHECK_LIBRARY(cufftExecR2C(forward, data, spectrum));
    std::vector<cufftComplex> first(64);
    CHECK(cudaMemcpy(first.data(), spectrum, 64 * sizeof(cufftComplex), cudaMemcpyDeviceToHost));
    double sum = 0;
    for (const cufftComplex &each : first)
        sum += std::hypot(each.x, each.y);
    printf("RESULT spectrum %.2f\n", sum);
    CHECK_LIBRARY(cufftExecC2R(inverse, spectrum, data));
    CHECK(cudaMemcpy(back.data(), data, back.size() * 4, cudaMemcpyDeviceToHost));
    double worst = 0;
    for (size_t i = 0; i < wave.size(); i++)
        worst = std::fmax(worst, std::fabs(back[i] / n - wave[i]));
    printf("RESULT inverse %d\n", worst < 1e-3);
    CHECK_LIBRARY(cufftDestroy(forward));
    CHECK_LIBRARY(cufftDestroy(inverse));
    CHECK(cudaFree(data));
    CHECK(cudaFree(spectrum));
    return 0;
}

int main() {
    return products() || transforms();
}
