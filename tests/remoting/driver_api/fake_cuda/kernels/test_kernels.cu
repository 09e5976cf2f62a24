// The kernels that the fake driver knows by name (../kernels.c runs them on the CPU).
// Built once by ./build_images.sh; the images are committed, so that tests need no nvcc.

struct mixed {
    char tag;
    double weight;
    int values[3];
};

struct large {
    int words[2048];
};

extern "C" {

__device__ int offset = 100;
__device__ unsigned long long table[64];
__constant__ float coefficient[4] = {1.0f, 2.0f, 3.0f, 4.0f};

__global__ void vector_add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

__global__ void saxpy(float a, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

__global__ void fill(float *out, float value, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = value;
}

__global__ void increment(int *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] += 1;
}

// One block; the order of the additions is that of one thread, so that sums compare exactly.
__global__ void reduce_sum(const float *in, float *out, int n) {
    if (threadIdx.x != 0) return;
    float sum = 0;
    for (int i = 0; i < n; i++) sum += in[i];
    *out = sum;
}

__global__ void add_offset(int *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] += offset;
}

__global__ void polynomial(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] = coefficient[0] +
               x[i] * (coefficient[1] + x[i] * (coefficient[2] + x[i] * coefficient[3]));
}

__global__ void mixed_params(double *out, char c, mixed m, short s) {
    out[0] = c;
    out[1] = m.tag;
    out[2] = m.weight;
    for (int i = 0; i < 3; i++) out[3 + i] = m.values[i];
    out[6] = s;
}

__global__ void large_param(long long *sum, large values) {
    long long total = 0;
#pragma unroll 1
    for (int i = 0; i < 2048; i++) total += values.words[i];
    *sum = total;
}

__global__ void wait_for_flag(volatile int *flag) {
    while (*flag == 0) {
    }
}

__global__ void sleep_us(long long microseconds) {
    for (long long i = 0; i < microseconds; i++) __nanosleep(1000);
}

__global__ void out_of_bounds(int *data) { data[1ll << 40] = 1; }

__global__ void trap() { __trap(); }

__global__ void empty() {}

#ifdef WITHOUT_CLUSTERS
#define PAIRS
#else
#define PAIRS __cluster_dims__(2, 1, 1)
#endif

// Not run by the fake: its resources and layout are what tests look at.
__global__ void __launch_bounds__(256) PAIRS
resources(float *out, unsigned long long when) {
    __shared__ float row[300];
    row[threadIdx.x] = when;
    __syncthreads();
    out[threadIdx.x] = row[299 - threadIdx.x];
}
}
