// cuSPARSE, cuSOLVER, cuRAND and cuBLASLt of the CUDA toolkit.
#include <cublasLt.h>
#include <curand.h>
#include <cusolverDn.h>
#include <cusparse.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "check.h"

template <typename T> static T *on_device(const std::vector<T> &host) {
    T *made = nullptr;
    if (cudaMalloc(&made, host.size() * sizeof(T))) return nullptr;
    cudaMemcpy(made, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice);
    return made;
}

// A tridiagonal matrix times a vector.
static int sparse() {
    const int n = 1000;
    std::vector<int> rows{0}, columns;
    std::vector<double> values, x(n), y(n);
    for (int i = 0; i < n; i++) {
        x[i] = i % 7;
        for (int j = i - 1; j <= i + 1; j++)
            if (j >= 0 && j < n) {
                columns.push_back(j);
                values.push_back(i == j ? 2 : -1);
            }
        rows.push_back(int(columns.size()));
    }
    int *row = on_device(rows), *column = on_device(columns);
    double *value = on_device(values), *dx = on_device(x), *dy = on_device(y);
    cusparseHandle_t handle;
    cusparseSpMatDescr_t matrix;
    cusparseDnVecDescr_t in, out;
    CHECK_LIBRARY(cusparseCreate(&handle));
    CHECK_LIBRARY(cusparseCreateCsr(&matrix, n, n, int64_t(values.size()), row, column, value,
                                    CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I,
                                    CUSPARSE_INDEX_BASE_ZERO, CUDA_R_64F));
    CHECK_LIBRARY(cusparseCreateDnVec(&in, n, dx, CUDA_R_64F));
    CHECK_LIBRARY(cusparseCreateDnVec(&out, n, dy, CUDA_R_64F));
    const double one = 1, zero = 0;
    size_t size = 0;
    void *scratch = nullptr;
    CHECK_LIBRARY(cusparseSpMV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, matrix,
                                          in, &zero, out, CUDA_R_64F, CUSPARSE_SPMV_ALG_DEFAULT,
                                          &size));
    CHECK(cudaMalloc(&scratch, size + 1));
    CHECK_LIBRARY(cusparseSpMV(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, matrix, in, &zero,
                               out, CUDA_R_64F, CUSPARSE_SPMV_ALG_DEFAULT, scratch));
    CHECK(cudaMemcpy(y.data(), dy, n * 8, cudaMemcpyDeviceToHost));
    printf("RESULT sparse %g %g %g\n", y[0], y[7], y[999]);
    return 0;
}

// A symmetric, positive matrix: its factor, its eigenvalues, a system's solution.
static int dense() {
    const int n = 64;
    std::vector<double> a(n * n), b(n, 1);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) a[i * n + j] = (i == j ? n : 0) + 1.0 / (1 + abs(i - j));
    double *da = on_device(a), *db = on_device(b), *work, *dw = on_device(b);
    int *info, lwork = 0, status;
    cusolverDnHandle_t handle;
    CHECK(cudaMalloc(&info, 4));
    CHECK_LIBRARY(cusolverDnCreate(&handle));
    CHECK_LIBRARY(cusolverDnDpotrf_bufferSize(handle, CUBLAS_FILL_MODE_LOWER, n, da, n, &lwork));
    CHECK(cudaMalloc(&work, lwork * 8));
    CHECK_LIBRARY(cusolverDnDpotrf(handle, CUBLAS_FILL_MODE_LOWER, n, da, n, work, lwork, info));
    CHECK_LIBRARY(cusolverDnDpotrs(handle, CUBLAS_FILL_MODE_LOWER, n, 1, da, n, db, n, info));
    CHECK(cudaMemcpy(&status, info, 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(b.data(), db, n * 8, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(da, a.data(), n * n * 8, cudaMemcpyHostToDevice));
    CHECK_LIBRARY(cusolverDnDsyevd_bufferSize(handle, CUSOLVER_EIG_MODE_NOVECTOR,
                                              CUBLAS_FILL_MODE_LOWER, n, da, n, dw, &lwork));
    CHECK(cudaFree(work));
    CHECK(cudaMalloc(&work, lwork * 8));
    CHECK_LIBRARY(cusolverDnDsyevd(handle, CUSOLVER_EIG_MODE_NOVECTOR, CUBLAS_FILL_MODE_LOWER, n,
                                   da, n, dw, work, lwork, info));
    std::vector<double> w(n);
    CHECK(cudaMemcpy(w.data(), dw, n * 8, cudaMemcpyDeviceToHost));
    printf("RESULT dense %d %.6f %.6f %.6f\n", status, b[0], w[0], w[63]);
    return 0;
}

static int numbers() {
    curandGenerator_t device, host;
    float *values, last[4], own[4];
    CHECK(cudaMalloc(&values, 1 << 20));
    CHECK_LIBRARY(curandCreateGenerator(&device, CURAND_RNG_PSEUDO_PHILOX4_32_10));
    CHECK_LIBRARY(curandSetPseudoRandomGeneratorSeed(device, 7));
    CHECK_LIBRARY(curandGenerateUniform(device, values, 1 << 18));
    CHECK(cudaMemcpy(last, values + 1000, sizeof last, cudaMemcpyDeviceToHost));
    CHECK_LIBRARY(curandCreateGenerator(&host, CURAND_RNG_QUASI_SCRAMBLED_SOBOL32));
    CHECK_LIBRARY(curandSetQuasiRandomGeneratorDimensions(host, 4));
    CHECK_LIBRARY(curandGenerateUniform(host, values, 4096));
    CHECK(cudaMemcpy(own, values, sizeof own, cudaMemcpyDeviceToHost));
    printf("RESULT random %.7f %.7f\n", last[0], own[3]);
    CHECK_LIBRARY(curandDestroyGenerator(device));
    CHECK_LIBRARY(curandDestroyGenerator(host));
    return 0;
}

// Half-precision product with a bias and a ReLU in one.
static int fused() {
    const int n = 256;
    std::vector<float> a(n * n), b(n * n), bias(n), c(n * n);
    for (int i = 0; i < n * n; i++) {
        a[i] = float(i % 5) - 2;
        b[i] = float(i % 3) - 1;
    }
    for (int i = 0; i < n; i++) bias[i] = float(i % 4);
    float *da = on_device(a), *db = on_device(b), *dc = on_device(c), *dbias = on_device(bias);
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t layout;
    CHECK_LIBRARY(cublasLtCreate(&handle));
    CHECK_LIBRARY(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_RELU_BIAS;
    CHECK_LIBRARY(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                 sizeof epilogue));
    CHECK_LIBRARY(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &dbias,
                                                 sizeof dbias));
    CHECK_LIBRARY(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, n, n, n));
    const float one = 1, zero = 0;
    CHECK_LIBRARY(cublasLtMatmul(handle, product, &one, da, layout, db, layout, &zero, dc, layout,
                                 dc, layout, nullptr, nullptr, 0, nullptr));
    CHECK(cudaMemcpy(c.data(), dc, n * n * 4, cudaMemcpyDeviceToHost));
    double sum = 0;
    for (int i = 0; i < n * n; i++) sum += c[i] * (i % 3);
    printf("RESULT fused %.1f\n", sum);
    return 0;
}

int main() { return sparse() || dense() || numbers() || fused(); }
