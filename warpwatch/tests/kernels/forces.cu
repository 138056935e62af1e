// force[i] = sum over j of mass_j (x_j - x_i) / (|x_j - x_i|^2 + 0.01)^(3/2); x is (n, 4), mass last.
extern "C" __global__ void forces(const float4 *x, float3 *force, int n) {
    __shared__ float4 tile[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    float4 me = i < n ? x[i] : make_float4(0, 0, 0, 0);
    float3 f = {0, 0, 0};
    for (int start = 0; start < n; start += 64) {
        int j = start + threadIdx.x;
        tile[threadIdx.x] = j < n ? x[j] : make_float4(0, 0, 0, 0);
        __syncthreads();
#pragma unroll 1
        for (int q = 0; q < 64; q++) {
            float4 other = tile[q];
            float u = other.x - me.x, v = other.y - me.y, w = other.z - me.z;
            float r = rsqrtf(u * u + v * v + w * w + 0.01f), k = other.w * r * r * r;
            f.x += k * u, f.y += k * v, f.z += k * w;
        }
        __syncthreads();
    }
    if (i < n) force[i] = f;
}
