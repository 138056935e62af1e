// x and y in turn from each other, with barriers of the whole grid.
#include <cooperative_groups.h>

extern "C" __global__ void stepped(float *x, float *y, int n, int steps) {
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    const int i = grid.thread_rank();
    for (int k = 0; k < steps; k++) {
        y[i] = x[(i + 37) % n] + 1;  // NO_SECOND_BARRIER: race
        grid.sync();
        x[i] = 2 * y[(i + 91) % n];
#ifndef NO_SECOND_BARRIER
        grid.sync();
#endif
    }
}
