// Does one thing wrong, as it is asked.
#include <cooperative_groups.h>
#include <cstdio>
#include <cstdlib>
#include <string>

__global__ void shift(int *x) { x[threadIdx.x] = x[(threadIdx.x + 1) % 64]; }  // race

__global__ void fill(int *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) x[i] = i;  // overrun
}

__global__ void copy(int *to, const int *from) {
    to[threadIdx.x] = from[threadIdx.x];  // copy
}

__global__ void stop(int *x) {
    if (x[0] == 0) __trap();
}

__global__ void all_wait() { cooperative_groups::this_grid().sync(); }  // grid

__global__ void later() { asm volatile("bar.arrive 1, 64;"); }

int main(int argc, char **argv) {
    std::string fault = argv[1];
    int *x, *y, host[64] = {};
    cudaMalloc(&x, sizeof host);
    cudaMalloc(&y, sizeof host);
    if (fault != "uninitialized") cudaMemset(x, 0, sizeof host);
    if (fault == "race") shift<<<1, 64>>>(x);
    if (fault == "overrun") fill<<<1, 128>>>(x, 64);
    if (fault == "uninitialized") copy<<<1, 64>>>(y, x);
    if (fault == "freed") cudaFree(x), copy<<<1, 64>>>(y, x);
    if (fault == "null") copy<<<1, 64>>>(y, nullptr);
    if (fault == "freed in a structure") {
        int **inside;
        cudaMallocManaged(&inside, sizeof *inside);
        *inside = x, cudaFree(x);
        copy<<<1, 2>>>(y, (int *)inside), copy<<<1, 64>>>(y, *inside + 1);
    }
    if (fault.rfind("streams", 0) == 0) {
        cudaStream_t one, other;
        cudaStreamCreateWithFlags(&one, fault == "streams apart" ? cudaStreamNonBlocking : cudaStreamDefault);
        cudaStreamCreate(&other);
        copy<<<1, 64, 0, one>>>(y, x);
        if (fault == "streams") copy<<<1, 64, 0, other>>>(x, y);
        if (fault == "streams apart") copy<<<1, 64>>>(x, y);
        if (fault == "streams and a copy") cudaMemcpyAsync(host, y, sizeof host, cudaMemcpyDeviceToHost, other);
    }
    if (fault == "long copy") cudaMemcpy(x, host, sizeof host + 4, cudaMemcpyHostToDevice);
    if (fault == "copy of freed memory") cudaFree(x), cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost);
    if (fault == "freed by another") cudaMallocManaged(&x, 4), cudaFreeHost(x);
    if (fault == "wrong way") cudaMemcpy(host, x, sizeof host, cudaMemcpyHostToDevice);
    if (fault == "freed twice") cudaFree(x), cudaFree(x);
    if (fault == "no stream") copy<<<1, 64, 0, (cudaStream_t)77>>>(y, x);
    if (fault == "touched by the host") *x = 1;
    if (fault == "too much") copy<<<1, 64, 50000>>>(y, x);
    if (fault == "too large") copy<<<1, 2048>>>(y, x);
    if (fault == "too cooperative") {
        void *arguments[] = {&y, &x};
        cudaLaunchCooperativeKernel((void *)copy, 1000, 64, arguments, 0, 0);
    }
    if (fault == "not cooperative") all_wait<<<2, 32>>>();
    if (fault == "trap") stop<<<1, 1>>>(x), copy<<<1, 64>>>(y, x);
    if (fault == "unknown") later<<<1, 1>>>();
    if (fault == "missing") cudaGraphCreate((cudaGraph_t *)host, 0);
    printf("%s\n", cudaGetErrorName(cudaGetLastError()));
    return 0;
}
