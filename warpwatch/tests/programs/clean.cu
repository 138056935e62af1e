// All of it is right: prints what it does, in order, and ends with 7.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define RIGHT(what) \
    if (!(what)) printf("line %d is wrong: %s\n", __LINE__, #what), exit(1)
#define CALL(what) RIGHT((what) == cudaSuccess)

struct Scale {
    float factor;
    int *count;
    char odd[3];
};
__constant__ float table[4];
__device__ int total = 40;
__managed__ int shared_total = 2;

template <typename T>
__global__ void scale(T *x, int n, Scale by, double shift) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    x[i] = x[i] * by.factor * table[i % 4] + T(shift) + by.odd[2];
    atomicAdd(by.count, 1);
    atomicAdd(&total, 1);
}

__global__ void reverse(float *x) {  // a block, of as many numbers as there are threads
    extern __shared__ float part[];
    part[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = part[blockDim.x - 1 - threadIdx.x];
}

__global__ void say(const char *what) {
    printf("kernel: %s %d\n", what, shared_total);
    shared_total++;
}

__global__ void plane(int *x, size_t pitch) {
    int *row = (int *)((char *)x + threadIdx.y * pitch);
    row[threadIdx.x] = 10 * threadIdx.y + threadIdx.x + (int)gridDim.z;
}

void memory() {
    int n = 1000, *count, pinned_is;
    float *x, *pinned;
    std::vector<float> host(n, 2), factors{1, 2, 3, 4};
    CALL(cudaMalloc(&x, n * sizeof *x));
    CALL(cudaMalloc(&count, sizeof *count));
    CALL(cudaMemset(count, 0, sizeof *count));
    CALL(cudaMemcpy(x, host.data(), n * sizeof *x, cudaMemcpyHostToDevice));
    CALL(cudaMemcpyToSymbol(table, factors.data() + 1, 3 * sizeof(float), sizeof(float)));
    CALL(cudaMemcpyToSymbol(table, factors.data(), sizeof(float)));
    scale<<<(n + 127) / 128, 128>>>(x, n, Scale{3, count, {0, 0, 1}}, 0.5);
    CALL(cudaGetLastError());
    CALL(cudaMemcpy(host.data(), x, n * sizeof *x, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) RIGHT(host[i] == 2 * 3 * (i % 4 + 1) + 1.5f);
    int counted, all;
    CALL(cudaMemcpy(&counted, count, sizeof counted, cudaMemcpyDefault));
    CALL(cudaMemcpyFromSymbol(&all, total, sizeof all));
    RIGHT(counted == n && all == 40 + n);
    void *where;
    size_t size;
    CALL(cudaGetSymbolAddress(&where, total));
    CALL(cudaGetSymbolSize(&size, table));
    RIGHT(size == sizeof table);
    CALL(cudaMemset(where, 0, sizeof(int)));
    CALL(cudaMemcpyFromSymbol(&all, total, sizeof all));
    RIGHT(all == 0);
    CALL(cudaHostAlloc(&pinned, 4 * sizeof *pinned, cudaHostAllocMapped));
    for (int i = 0; i < 4; i++) pinned[i] = i;
    reverse<<<1, 4, 4 * sizeof *pinned>>>(pinned);  // which the device reaches as well
    CALL(cudaDeviceSynchronize());
    RIGHT(pinned[0] == 3 && pinned[3] == 0);
    cudaPointerAttributes about;
    CALL(cudaPointerGetAttributes(&about, pinned));
    pinned_is = about.type;
    CALL(cudaPointerGetAttributes(&about, x + 5));
    RIGHT(pinned_is == cudaMemoryTypeHost && about.type == cudaMemoryTypeDevice);
    int *rows, cells[3][4];
    size_t pitch;
    CALL(cudaMallocPitch(&rows, &pitch, sizeof *cells, 3));
    plane<<<dim3(1, 1, 1), dim3(4, 3)>>>(rows, pitch);
    CALL(cudaMemcpy2D(cells, sizeof *cells, rows, pitch, sizeof *cells, 3, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 12; i++) RIGHT(cells[i / 4][i % 4] == i / 4 * 10 + i % 4 + 1);
    CALL(cudaFree(rows));
    CALL(cudaFree(x));
    CALL(cudaFree(count));
    CALL(cudaFree(nullptr));
    CALL(cudaFreeHost(pinned));
}

void streams() {
    float *x, host[64], milliseconds;
    cudaStream_t one, other;
    cudaEvent_t begin, end;
    for (int i = 0; i < 64; i++) host[i] = i;
    CALL(cudaMallocAsync(&x, sizeof host, 0));
    CALL(cudaStreamCreate(&one));
    CALL(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CALL(cudaEventCreate(&begin));
    CALL(cudaEventCreateWithFlags(&end, cudaEventDefault));
    CALL(cudaEventRecord(begin, one));
    CALL(cudaMemcpyAsync(x, host, sizeof host, cudaMemcpyHostToDevice, one));
    reverse<<<1, 64, sizeof host, one>>>(x);
    CALL(cudaEventRecord(end, one));
    CALL(cudaStreamWaitEvent(other, end, 0));
    int called = 0;
    CALL(cudaLaunchHostFunc(other, [](void *times) { ++*(int *)times; }, &called));
    reverse<<<1, 64, sizeof host, other>>>(x);
    CALL(cudaStreamSynchronize(other));
    RIGHT(called == 1);
    reverse<<<1, 64, sizeof host>>>(x);
    CALL(cudaMemcpyAsync(host, x, sizeof host, cudaMemcpyDeviceToHost));
    CALL(cudaDeviceSynchronize());
    for (int i = 0; i < 64; i++) RIGHT(host[i] == 63 - i);
    CALL(cudaEventElapsedTime(&milliseconds, begin, end));
    RIGHT(milliseconds > 0);
    CALL(cudaEventDestroy(begin));
    CALL(cudaStreamDestroy(other));
    CALL(cudaFreeAsync(x, one));
}

void device() {
    cudaDeviceProp about;
    int processors, blocks, threads, count;
    size_t free, whole;
    cudaFuncAttributes of;
    CALL(cudaGetDeviceCount(&count));
    CALL(cudaGetDeviceProperties(&about, count - 1));
    CALL(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    CALL(cudaMemGetInfo(&free, &whole));
    RIGHT(about.major == 9 && about.multiProcessorCount == processors && about.warpSize == 32);
    RIGHT(about.maxThreadsDim[2] == 64 && about.sharedMemPerBlockOptin == 232448 && about.maxGridSize[1] == 65535);
    RIGHT(about.totalGlobalMem == whole && about.maxBlocksPerMultiProcessor == 32 && about.cooperativeLaunch == 1);
    CALL(cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, reverse));
    CALL(cudaFuncGetAttributes(&of, reverse));
    RIGHT(threads == 1024 && blocks == 2 * processors && of.maxDynamicSharedSizeBytes == 49152);
    RIGHT(of.ptxVersion < 90 && of.binaryVersion == 90);
    RIGHT(cudaSetDevice(1) == cudaErrorInvalidDevice && cudaGetLastError() == cudaErrorInvalidDevice);
    RIGHT(cudaGetLastError() == cudaSuccess && !strcmp(cudaGetErrorName(cudaErrorInvalidValue), "cudaErrorInvalidValue"));
}

void launches() {
    float *x;
    CALL(cudaMallocManaged(&x, 1024 * sizeof *x));
    for (int i = 0; i < 1024; i++) x[i] = i;
    CALL(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000));
    reverse<<<1, 1024, 100000>>>(x);
    cudaLaunchConfig_t how = {1, 1024, 4096, 0, nullptr, 0};
    CALL(cudaLaunchKernelEx(&how, reverse, x));
    void *arguments[] = {&x};
    CALL(cudaLaunchCooperativeKernel((void *)reverse, 1, 1024, arguments, 4096, 0));
    CALL(cudaLaunchKernel((void *)reverse, 1, 1024, arguments, 4096, 0));
    CALL(cudaDeviceSynchronize());
    for (int i = 0; i < 1024; i++) RIGHT(x[i] == i);
}

int main(int argc, char **argv) {
    memory(), streams(), device(), launches();
    char *what;
    CALL(cudaMallocManaged(&what, 8));
    strcpy(what, "prints");
    for (int i = 0; i < 2; i++) {
        printf("host %d\n", shared_total);
        say<<<1, 1>>>(what);
        CALL(cudaDeviceSynchronize());
    }
    printf("host %d, %d arguments\n", shared_total, argc);
    CALL(cudaDeviceReset());
    return 7;
}
