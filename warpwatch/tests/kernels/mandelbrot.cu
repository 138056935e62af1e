// steps[y, x] = after how many steps z = z^2 + c leaves the circle of radius 2; at most `limit`.
struct View {
    double left, top, step;
    int width, height;
    unsigned short limit;
};

extern "C" __global__ void mandelbrot(struct View view, unsigned short *steps) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= view.width || y >= view.height) return;
    double re = __dadd_rn(view.left, __dmul_rn(x, view.step)), a = 0, b = 0;
    double im = __dadd_rn(view.top, __dmul_rn(y, view.step));
    unsigned short n = 0;
#pragma unroll 1
    while (a * a + b * b <= 4 && n < view.limit) {  // NOT_COUNTED: endless
        double c = a * a - b * b + re;              // NOT_COUNTED: endless
        b = 2 * a * b + im, a = c;                  // NOT_COUNTED: endless
#ifndef NOT_COUNTED
        n++;
#endif
    }
    steps[y * view.width + x] = n;
}
