// Textbook kernels, some with a fault where FAULTS is defined. The PTX beside this was made by CUDA 13.0, paths and debug
// sections taken out: nvcc -ptx -arch=sm_90 -lineinfo textbook.cu, and with -DFAULTS -o faults.ptx.
#include <cuda_fp16.h>
extern "C" __global__ void matmul(const float* a,const float* b,float* c,int n){
  __shared__ float s[16][16], t[16][16];
  int x=threadIdx.x,y=threadIdx.y,i=blockIdx.y*16+y,j=blockIdx.x*16+x; float v=0;
  for(int k=0;k<n;k+=16){ s[y][x]=a[i*n+k+x]; t[y][x]=b[(k+y)*n+j]; __syncthreads(); for(int q=0;q<16;q++) v+=s[y][q]*t[q][x];
#ifndef FAULTS
   __syncthreads();
#endif
  }
  c[i*n+j]=v; }
extern "C" __global__ void reduce(const float* a,float* out,int n){
  float v=0; for(int i=blockIdx.x*blockDim.x+threadIdx.x;i<n;i+=gridDim.x*blockDim.x) v+=a[i];
  for(int d=16;d;d>>=1) v+=__shfl_down_sync(~0u,v,d);
  __shared__ float w[32]; if(threadIdx.x%32==0) w[threadIdx.x/32]=v; __syncthreads();
  if(threadIdx.x<32){ v=threadIdx.x<blockDim.x/32?w[threadIdx.x]:0; for(int d=16;d;d>>=1) v+=__shfl_down_sync(~0u,v,d); if(!threadIdx.x) atomicAdd(out,v);} }
extern "C" __global__ void hist(const int* a,int* out,int n){ extern __shared__ int h[]; for(int i=threadIdx.x;i<64;i+=blockDim.x) h[i]=0; __syncthreads();
  for(int i=blockIdx.x*blockDim.x+threadIdx.x;i<n;i+=gridDim.x*blockDim.x) atomicAdd(&h[a[i]&63],1); __syncthreads(); for(int i=threadIdx.x;i<64;i+=blockDim.x) atomicAdd(&out[i],h[i]); }
extern "C" __global__ void half2f(const __half* a,float* o,int n){ int i=blockIdx.x*blockDim.x+threadIdx.x; if(i<n) o[i]=__expf(__half2float(a[i]))+tanhf(__half2float(a[i])); }
__device__ __noinline__ float poly(float x, int n){ float v=1; for(int i=0;i<n;i++) v=v*x+i; if(v<0) return -v; return v; }
__device__ __noinline__ float twice(float x,int n){ return poly(x,n)+poly(x+1,n+1); }
struct P { int n; float s; double d; };
extern "C" __global__ void calls(const float* x, float* o, P p){ int i=blockIdx.x*blockDim.x+threadIdx.x; if(i>=p.n) return; o[i]=twice(x[i],i%4)*p.s+(float)p.d; }
__constant__ float table[4]={1.f,2.f,3.f,4.5f};
__device__ int counter=7;
extern "C" __global__ void sw(const int* x,float* o,int n){ int i=threadIdx.x; float a[8]; for(int k=0;k<8;k++) a[k]=k*i; float v; switch(x[i]){case 0:v=a[x[i+1]&7];break;case 1:v=2;break;case 2:v=table[i&3];break;case 3:v=__sinf(i);break;case 4:v=5;break;case 5:v=a[i&7];break;default:v=counter;} o[i]=v; }
__device__ __noinline__ float via(const float* p,int i){ return p[i]; }
extern "C" __global__ void generic(const float* x,float* o){ __shared__ float s[64]; int i=threadIdx.x; s[i]=x[i]*2; __syncthreads(); const float* p = i&1 ? s : x; o[i]=via(p,63-i); }
extern "C" __global__ void counts(const int* x,int* o){ int i=threadIdx.x; int c=__syncthreads_count(x[i]>0); int a=__syncthreads_and(x[i]>-100), b=__syncthreads_or(x[i]>1000); o[i]=c*100+(a!=0)*10+(b!=0);
 unsigned m=__match_any_sync(~0u,x[i]&3); o[i+64]=__popc(m); o[i+128]=__reduce_add_sync(~0u,x[i]); o[i+192]=__ballot_sync(~0u,x[i]>0); }
extern "C" __global__ void warpsum(const float* x,float* o){ __shared__ volatile float s[64]; int i=threadIdx.x; s[i]=x[i]; 
#define STEP(d) __syncwarp(); if(i<d) s[i]+=s[i+d];
 __syncthreads(); STEP(32)
 __syncwarp(); if(i<16) s[i]+=s[i+16]; __syncwarp(); if(i<8) s[i]+=s[i+8]; __syncwarp(); if(i<4) s[i]+=s[i+4]; __syncwarp(); if(i<2) s[i]+=s[i+2]; __syncwarp(); if(i<1) o[0]=s[0]+s[1]; }
extern "C" __global__ void v4(const float4* x,float4* o){ int i=threadIdx.x; float4 a=x[i]; a.x+=a.w; o[i]=a; }
extern "C" __global__ void half2k(const __half2* a,const __half2* b,__half2* o){ int i=threadIdx.x; o[i]=__hfma2(a[i],b[i],__hadd2(a[i],b[i])); }
extern "C" __global__ void spin(int* x){ while(x[0]==0); x[1]=1; }
extern "C" __global__ void assertion(int* x){ if(x[threadIdx.x]==5) __trap(); x[threadIdx.x]=1; }
extern "C" __global__ void saxpy(int n, float a, const float* x, float* y){ int i=blockIdx.x*blockDim.x+threadIdx.x;
#ifdef FAULTS
  if(i<=n)
#else
  if(i<n)
#endif
    y[i]=a*x[i]+y[i]; }
extern "C" __global__ void transpose(const float* a, float* b, int n){ __shared__ float t[16][17]; int x=threadIdx.x,y=threadIdx.y,i=blockIdx.x*16,j=blockIdx.y*16;
  t[y][x]=a[(j+y)*n+i+x];
#ifndef FAULTS
  __syncthreads();
#endif
  b[(i+y)*n+j+x]=t[x][y]; }
extern "C" __global__ void scan(const float* x, float* o){ __shared__ float s[2][128]; int i=threadIdx.x,p=0; s[0][i]=x[i]; __syncthreads();
  for(int d=1;d<128;d*=2){
#ifdef FAULTS
    s[p][i] = i>=d ? s[p][i]+s[p][i-d] : s[p][i];
#else
    s[1-p][i] = i>=d ? s[p][i]+s[p][i-d] : s[p][i]; p=1-p;
#endif
    __syncthreads(); } o[i]=s[p][i]; }
extern "C" __global__ void stencil(const float* x, float* o, int n){ __shared__ float s[66]; int t=threadIdx.x,i=blockIdx.x*64+t; s[t+1]=x[i];
  if(t==0) s[0]= i ? x[i-1] : 0;
#ifndef FAULTS
  if(t==63) s[65]= i+1<n ? x[i+1] : 0;
#endif
  __syncthreads(); o[i]=s[t]+s[t+1]+s[t+2]; }
extern "C" __global__ void softmax(const float* x, float* o, int n){ __shared__ float s[64]; int t=threadIdx.x; const float* row=x+blockIdx.x*n; float m=-1e30f,v=0;
  for(int i=t;i<n;i+=64) m=fmaxf(m,row[i]); s[t]=m; __syncthreads();
  for(int d=32;d;d/=2){ if(t<d) s[t]=fmaxf(s[t],s[t+d]); __syncthreads(); } m=s[0];
#ifndef FAULTS
  __syncthreads();
#endif
  for(int i=t;i<n;i+=64) v+=__expf(row[i]-m); s[t]=v; __syncthreads();
  for(int d=32;d;d/=2){ if(t<d) s[t]+=s[t+d]; __syncthreads(); } for(int i=t;i<n;i+=64) o[blockIdx.x*n+i]=__expf(row[i]-m)/s[0]; }
extern "C" __global__ void dot(const double* x, const double* y, double* o, int n){ __shared__ double s[64]; int t=threadIdx.x; double v=0; for(int i=t;i<n;i+=64) v+=x[i]*y[i]; s[t]=v;
  for(int d=32;d;d/=2){ 
#ifndef FAULTS
  __syncthreads();
#endif
  if(t<d) s[t]+=s[t+d]; } if(!t) *o=s[0]; }
extern "C" __global__ void bitonic(int* x){ __shared__ int s[128]; int t=threadIdx.x; s[t]=x[t]; __syncthreads();
  for(int k=2;k<=128;k*=2) for(int j=k/2;j;j/=2){ int o=t^j; if(o>t){ int a=s[t],b=s[o]; if(((t&k)==0)==(a>b)){ s[t]=b; s[o]=a; } }
#ifndef FAULTS
   __syncthreads();
#endif
  } x[t]=s[t]; }
extern "C" __global__ void jacobi(const double* a, double* b, int n){ int x=blockIdx.x*8+threadIdx.x,y=blockIdx.y*8+threadIdx.y;
#ifdef FAULTS
  b[y*n+x]=.25*(a[y*n+x-1]+a[y*n+x+1]+a[(y-1)*n+x]+a[(y+1)*n+x]);
#else
  if(x>0&&y>0&&x<n-1&&y<n-1) b[y*n+x]=.25*(a[y*n+x-1]+a[y*n+x+1]+a[(y-1)*n+x]+a[(y+1)*n+x]);
#endif
}
extern "C" __global__ void total(const float* x, float* o){
#ifdef FAULTS
  *o+=x[blockIdx.x*blockDim.x+threadIdx.x];
#else
  atomicAdd(o,x[blockIdx.x*blockDim.x+threadIdx.x]);
#endif
}
