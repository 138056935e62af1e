// out = in convolved with a 3 by 3 filter in constant memory, zeros beyond the edges.
__constant__ float filter[3][3] = {{1, 2, 1}, {0, 0.5, 0}, {-1, -2, -1}};

extern "C" __global__ void convolution(const float *in, float *out, int height, int width) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float sum = 0;
#pragma unroll 1
    for (int i = -1; i <= 1; i++)
#pragma unroll 1
        for (int j = -1; j <= 1; j++)
#ifndef NO_EDGES
            if (y + i >= 0 && y + i < height && x + j >= 0 && x + j < width)
#endif
                sum += filter[i + 1][j + 1] * in[(y + i) * width + x + j];  // NO_EDGES: out of bounds
    out[y * width + x] = sum;
}
