// A libcuda that launches nothing. Numba, its linker and cuda.core run on it as they are, so that it shows what the host
// asks of a GPU, and refuses what a GPU would: launches beyond its limits, and what must not happen while launches are
// recorded. Memory is the host's, and kernels compute nothing.
//
// Every line of the log (the file that DRIVER_LOG names) is one thing asked for. DRIVER_MAX_THREADS is how many threads
// a block of any kernel has registers for; DRIVER_FAILS=1 has every launch that is being recorded fail.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

typedef struct Stream {
    unsigned number, flags;
    struct Stream *origin;  // of the recording that it is part of
    long launches, joined;  // how many the origin has waited for
} Stream;

typedef struct {
    Stream *stream, *origin;
    long launches;  // of the stream so far
} Event;

enum { STREAMS = 4096, SHARED = 49152 };
static Stream legacy, *streams[STREAMS];
static unsigned created;
static int recording;
static long recorded;
static CUcontext context = (CUcontext)1, current;

static FILE *out(void) {
    static FILE *file;
    if (!file) {
        const char *path = getenv("DRIVER_LOG");
        file = path ? fopen(path, "a") : stderr;
        setvbuf(file, NULL, _IOLBF, 0);
    }
    return file;
}

static Stream *stream_of(CUstream handle) { return (size_t)handle <= 2 ? &legacy : (Stream *)handle; }

static void unsafe(const char *what) {
    if (recording) fprintf(out(), "UNSAFE while recording: %s\n", what);
}

static CUresult zero(void) { return CUDA_SUCCESS; }

// The device: one H100, roughly.

static CUresult version(int *value) { return *value = 13000, CUDA_SUCCESS; }
static CUresult device(CUdevice *value, int number) { return *value = number, CUDA_SUCCESS; }
static CUresult device_count(int *value) { return *value = 1, CUDA_SUCCESS; }
static CUresult device_name(char *name, int size, CUdevice d) { return snprintf(name, size, "stand-in"), CUDA_SUCCESS; }
static CUresult device_uuid(CUuuid *uuid, CUdevice d) { return memset(uuid, 7, sizeof *uuid), CUDA_SUCCESS; }
static CUresult device_memory(size_t *bytes, CUdevice d) { return *bytes = 80ull << 30, CUDA_SUCCESS; }

static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice d) {
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = SHARED; break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 232448; break;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
        case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = 1; break;
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: *value = 1; break;
        default: *value = 0;
    }
    return CUDA_SUCCESS;
}

static CUresult retain(CUcontext *c, CUdevice d) { return *c = context, CUDA_SUCCESS; }
static CUresult get_current(CUcontext *c) { return *c = current, CUDA_SUCCESS; }
static CUresult set_current(CUcontext c) { return current = c, CUDA_SUCCESS; }
static CUresult pop_current(CUcontext *c) {
    if (c) *c = current;
    return current = NULL, CUDA_SUCCESS;
}
static CUresult current_device(CUdevice *d) { return *d = 0, CUDA_SUCCESS; }
static CUresult synchronize(void) { return unsafe("cuCtxSynchronize"), CUDA_SUCCESS; }
static CUresult priorities(int *least, int *greatest) { return *least = 0, *greatest = -5, CUDA_SUCCESS; }

// Memory.

static CUresult memory_left(size_t *left, size_t *all) { return *left = 78ull << 30, *all = 80ull << 30, CUDA_SUCCESS; }
static CUresult allocate(CUdeviceptr *place, size_t bytes) {
    unsafe("cuMemAlloc");
    *place = (CUdeviceptr)calloc(1, bytes + 256);
    return *place ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult release(CUdeviceptr place) { return unsafe("cuMemFree"), free((void *)place), CUDA_SUCCESS; }
static CUresult copy(const char *what, CUdeviceptr to, const void *from, size_t bytes, Stream *stream) {
    if (what) unsafe(what);
    if (what) fprintf(out(), "%s stream %u\n", what, stream->number);
    return memcpy((void *)to, from, bytes), CUDA_SUCCESS;
}
static CUresult send(CUdeviceptr to, const void *from, size_t bytes) {
    return copy("cuMemcpyHtoD", to, from, bytes, &legacy);
}
static CUresult fetch(void *to, CUdeviceptr from, size_t bytes) {
    return copy("cuMemcpyDtoH", (CUdeviceptr)to, (void *)from, bytes, &legacy);
}
static CUresult send_on(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return copy("cuMemcpyHtoDAsync", to, from, bytes, stream_of(stream));
}
static CUresult fetch_on(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy("cuMemcpyDtoHAsync", (CUdeviceptr)to, (void *)from, bytes, stream_of(stream));
}
static CUresult move(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy(NULL, to, (void *)from, bytes, &legacy);
}
static CUresult move_on(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(NULL, to, (void *)from, bytes, stream_of(stream));
}
static CUresult fill(CUdeviceptr to, unsigned char value, size_t bytes) {
    return memset((void *)to, value, bytes), CUDA_SUCCESS;
}

// Streams and events.

static CUresult create_stream(CUstream *handle, unsigned flags, int priority) {
    Stream *stream = calloc(1, sizeof *stream);
    streams[created++ % STREAMS] = stream;
    stream->number = created;
    stream->flags = flags;
    fprintf(out(), "STREAM %u %s the legacy stream\n", created, flags & 1 ? "passes" : "waits for");
    return *handle = (CUstream)stream, CUDA_SUCCESS;
}
static CUresult create_plain_stream(CUstream *handle, unsigned flags) { return create_stream(handle, flags, 0); }
static CUresult wait_for_stream(CUstream handle) {
    return stream_of(handle)->origin ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}
static CUresult stream_context(CUstream handle, CUcontext *c) { return *c = context, CUDA_SUCCESS; }
static CUresult stream_flags(CUstream handle, unsigned *flags) { return *flags = stream_of(handle)->flags, CUDA_SUCCESS; }
static CUresult stream_priority(CUstream handle, int *priority) { return *priority = 0, CUDA_SUCCESS; }
static CUresult create_event(CUevent *event, unsigned flags) {
    return *event = (CUevent)calloc(1, sizeof(Event)), CUDA_SUCCESS;
}
static CUresult record_event(CUevent handle, CUstream stream) {
    Stream *here = stream_of(stream);
    *(Event *)handle = (Event){here, here->origin, here->launches};
    return CUDA_SUCCESS;
}
static CUresult wait_for_event(CUstream handle, CUevent event, unsigned flags) {
    Stream *stream = stream_of(handle);
    Event *what = (Event *)event;
    if (what->origin && !stream->origin) {  // becomes part of the recording
        stream->origin = what->origin;
        stream->joined = -1;
        stream->launches++;
        fprintf(out(), "FORK stream %u\n", stream->number);
    } else if (what->origin && stream == what->origin && what->stream != stream) {
        what->stream->joined = what->launches;
    }
    return CUDA_SUCCESS;
}

// Recording.

static CUresult begin(CUstream handle, CUstreamCaptureMode mode) {
    Stream *stream = stream_of(handle);
    if (stream == &legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream->origin = stream;
    recording++;
    recorded = 0;
    return fprintf(out(), "BEGIN stream %u\n", stream->number), CUDA_SUCCESS;
}
static CUresult end(CUstream handle, CUgraph *graph) {
    Stream *stream = stream_of(handle);
    CUresult result = CUDA_SUCCESS;
    recording--;
    for (unsigned i = 0; i < created && i < STREAMS; i++) {
        Stream *other = streams[i];
        if (other == stream || other->origin != stream) continue;
        if (other->joined < other->launches) {
            fprintf(out(), "UNJOINED stream %u\n", other->number);
            result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        }
        other->origin = NULL;
    }
    stream->origin = NULL;
    if (graph) *graph = (CUgraph)1;
    return fprintf(out(), "END launches %ld\n", recorded), result;
}
static CUresult status(CUstream handle, CUstreamCaptureStatus *value) {
    *value = stream_of(handle)->origin ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
static CUresult info(CUstream handle, CUstreamCaptureStatus *value, cuuint64_t *id, CUgraph *graph,
                     const CUgraphNode **nodes, size_t *count) {
    if (id) *id = 1;
    if (graph) *graph = (CUgraph)1;
    if (nodes) *nodes = NULL;
    if (count) *count = 0;
    return status(handle, value);
}
static CUresult info_with_edges(CUstream handle, CUstreamCaptureStatus *value, cuuint64_t *id, CUgraph *graph,
                                const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count) {
    if (edges) *edges = NULL;
    return info(handle, value, id, graph, nodes, count);
}
static CUresult instantiate(CUgraphExec *made, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    *made = (CUgraphExec)calloc(1, 64);
    parameters->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return CUDA_SUCCESS;
}
static CUresult replay(CUgraphExec graph, CUstream stream) {
    return fprintf(out(), "REPLAY stream %u\n", stream_of(stream)->number), CUDA_SUCCESS;
}

// Kernels: a kernel is its name.

static CUresult load(CUlibrary *library, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
    return unsafe("cuLibraryLoadData"), *library = (CUlibrary)calloc(1, 64), CUDA_SUCCESS;
}
static CUresult find(CUkernel *kernel, CUlibrary library, const char *name) {
    const char *ours = strstr(name, "bppsa");
    return *kernel = (CUkernel)strdup(ours ? ours : name), CUDA_SUCCESS;
}
static int max_threads(void) {
    const char *value = getenv("DRIVER_MAX_THREADS");
    return value ? atoi(value) : 1024;
}
static CUresult kernel_attribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice d) {
    return *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? max_threads() : 0, CUDA_SUCCESS;
}
static CUresult function(CUfunction *made, CUkernel kernel) { return *made = (CUfunction)kernel, CUDA_SUCCESS; }
static CUresult launch(CUfunction kernel, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c,
                       unsigned shared, CUstream handle, void **arguments, void **extra) {
    Stream *stream = stream_of(handle);
    unsigned threads = a * b * c;
    if (stream->origin) {
        if (getenv("DRIVER_FAILS")) return CUDA_ERROR_UNKNOWN;
        recorded++;
        stream->launches++;
    }
    fprintf(out(), "LAUNCH %.100s grid %u block %u shared %u stream %u\n", (char *)kernel, x * y * z, threads, shared,
            stream->number);
    if ((int)threads > max_threads()) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    return x && y <= 65535 && z <= 65535 && shared <= SHARED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult launch_with(const CUlaunchConfig *how, CUfunction kernel, void **arguments, void **extra) {
    return launch(kernel, how->gridDimX, how->gridDimY, how->gridDimZ, how->blockDimX, how->blockDimY, how->blockDimZ,
                  how->sharedMemBytes, how->hStream, arguments, extra);
}
static CUresult error_name(CUresult error, const char **name) { return *name = "refused by the stand-in", CUDA_SUCCESS; }

// What the bindings ask for by name; whatever is not here does nothing.

static const struct {
    const char *name;
    void *function;
} known[] = {
    {"cuDriverGetVersion", version}, {"cuDeviceGet", device}, {"cuDeviceGetCount", device_count},
    {"cuDeviceGetName", device_name}, {"cuDeviceGetUuid", device_uuid}, {"cuDeviceTotalMem", device_memory},
    {"cuDeviceGetAttribute", device_attribute}, {"cuDevicePrimaryCtxRetain", retain},
    {"cuCtxGetCurrent", get_current}, {"cuCtxSetCurrent", set_current}, {"cuCtxPushCurrent", set_current},
    {"cuCtxPopCurrent", pop_current}, {"cuCtxGetDevice", current_device}, {"cuCtxSynchronize", synchronize},
    {"cuCtxGetStreamPriorityRange", priorities}, {"cuMemGetInfo", memory_left}, {"cuMemAlloc", allocate},
    {"cuMemFree", release}, {"cuMemcpyHtoD", send}, {"cuMemcpyDtoH", fetch}, {"cuMemcpyDtoD", move},
    {"cuMemcpyHtoDAsync", send_on}, {"cuMemcpyDtoHAsync", fetch_on}, {"cuMemcpyDtoDAsync", move_on},
    {"cuMemsetD8", fill}, {"cuStreamCreateWithPriority", create_stream}, {"cuStreamCreate", create_plain_stream},
    {"cuStreamSynchronize", wait_for_stream}, {"cuStreamGetCtx", stream_context}, {"cuStreamGetFlags", stream_flags},
    {"cuStreamGetPriority", stream_priority}, {"cuEventCreate", create_event}, {"cuEventRecord", record_event},
    {"cuStreamWaitEvent", wait_for_event}, {"cuStreamBeginCapture", begin}, {"cuStreamEndCapture", end},
    {"cuStreamIsCapturing", status}, {"cuLibraryLoadData", load}, {"cuLibraryGetKernel", find},
    {"cuKernelGetAttribute", kernel_attribute}, {"cuKernelGetFunction", function}, {"cuLaunchKernelEx", launch_with},
    {"cuLaunchKernel", launch}, {"cuGraphInstantiate", instantiate}, {"cuGraphInstantiateWithParams", instantiate},
    {"cuGraphLaunch", replay}, {"cuGetErrorName", error_name}, {"cuGetErrorString", error_name},
};

CUresult cuGetProcAddress_v2(const char *name, void **found, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *result) {
    if (result) *result = CU_GET_PROC_ADDRESS_SUCCESS;
    *found = zero;
    if (!strcmp(name, "cuGetProcAddress")) *found = cuGetProcAddress_v2;
    if (!strcmp(name, "cuStreamGetCaptureInfo")) *found = version >= 12030 ? (void *)info_with_edges : (void *)info;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name)) *found = known[i].function;
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *value) { return version(value); }
