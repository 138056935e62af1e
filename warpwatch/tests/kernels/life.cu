// A step of the game of life on a torus of bytes.
extern "C" __global__ void life(const unsigned char *now, unsigned char *next, int height, int width) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y, sum = 0;
    if (x >= width || y >= height) return;
#pragma unroll 1
    for (int k = 0; k < 9; k++) {
        int i = (y + k / 3 + height - 1) % height, j = (x + k % 3 + width - 1) % width;
        if (k != 4) sum += now[i * width + j];
    }
    next[y * width + x] = sum == 3 || (sum == 2 && now[y * width + x]);
}
